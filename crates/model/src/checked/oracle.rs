//! What a comparison must know beyond results.
//!
//! Owns: the extra question to an exact device. Never: its answer.

use crate::device::{Act, AttentionWeights, Device, KvLane};
use crate::error::Result;

/// An exact device that also says what its selections rest on, so that a near-tie can be told from
/// an error.
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
}
