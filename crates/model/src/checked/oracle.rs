//! What a comparison must know beyond results.
//!
//! Owns: the extra questions to an exact device. Never: their answers.

use crate::device::{Act, AttentionWeights, Device, KvLane};
use crate::error::Result;

/// An exact device that also says what its choices and products rest on, so that a near-tie or a
/// sum that cancels can be told from an error.
pub trait Oracle: Device {
    /// Per row the score of every visible complete block, as `select` ranks them.
    ///
    /// # Errors
    /// When the device fails.
    fn block_scores(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Self::Vector>,
        index: Act,
    ) -> Result<Vec<Vec<f64>>>;

    /// The sum of `|w| |x|` behind every value of `W x`, `[rows, out]`.
    ///
    /// # Errors
    /// When the device fails.
    fn product_scale(&mut self, w: &Self::Matrix, x: Act) -> Result<Vec<f64>>;
}
