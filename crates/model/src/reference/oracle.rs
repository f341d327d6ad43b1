//! The reference shows what its results rest on.

use super::{Reference, attention};
use crate::checked::Oracle;
use crate::device::{Act, AttentionWeights, KvLane};
use crate::error::Result;
use cherenkov_format::Matrix;

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

    fn product_scale(&mut self, w: &Matrix, x: Act) -> Result<Vec<f64>> {
        let view = w.view();
        let x = self.get(x);
        let mut scales = vec![0.0; x.len() / view.cols() * view.rows()];
        let mut weights = vec![0.0; view.cols()];
        for o in 0..view.rows() {
            view.read_row(o, &mut weights);
            for (r, x) in x.chunks_exact(view.cols()).enumerate() {
                let pairs = weights.iter().zip(x);
                let sizes = pairs.map(|(&w, &x)| f64::from(w).abs() * f64::from(x).abs());
                scales[r * view.rows() + o] = sizes.sum();
            }
        }
        Ok(scales)
    }
}
