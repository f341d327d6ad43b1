//! The reference shows what its selections rest on.

use super::{Reference, attention};
use crate::checked::Oracle;
use crate::device::{Act, AttentionWeights, KvLane};
use crate::error::Result;

impl Oracle for Reference {
    fn block_scores(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Vec<f32>>,
        index: Act,
    ) -> Result<Vec<Vec<f64>>> {
        let kv = &self.state.kvs[lane.0 as usize];
        Ok(attention::scores(kv, w, &self.batch, self.eps, self.get(index)))
    }
}
