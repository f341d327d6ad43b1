//! QSA attention as a mixer.

use super::forward::Pass;
use super::weights::Loader;
use crate::device::{AttentionWeights, Device, KvLane, RowLane};
use crate::error::Result;

/// Weights and lanes of one attention layer.
pub struct AttentionLayer<D: Device> {
    q: D::Matrix,
    k: D::Matrix,
    v: D::Matrix,
    o: D::Matrix,
    index: D::Matrix,
    weights: AttentionWeights<D::Vector>,
    lane: KvLane,
    raw: RowLane,
}

impl<D: Device> AttentionLayer<D> {
    /// Loads the layer whose tensors start with `at`.
    pub fn load(load: &mut Loader<'_, D>, at: &str) -> Result<Self> {
        let spec = load.store.config().attention.clone();
        Ok(Self {
            q: load.matrix(&format!("{at}.q_proj"))?,
            k: load.matrix(&format!("{at}.k_proj"))?,
            v: load.matrix(&format!("{at}.v_proj"))?,
            o: load.matrix(&format!("{at}.o_proj"))?,
            index: load.matrix(&format!("{at}.indexer.index_qk_proj"))?,
            lane: load.device.kv_lane(&spec),
            raw: load.device.row_lane(spec.index_dim, spec.index_ratio),
            weights: AttentionWeights {
                q_norm: load.vector(&format!("{at}.q_norm"))?,
                k_norm: load.vector(&format!("{at}.k_norm"))?,
                index_q_norm: load.vector(&format!("{at}.indexer.q_layernorm"))?,
                index_k_norm: load.vector(&format!("{at}.indexer.k_layernorm"))?,
                spec,
            },
        })
    }

    /// `y = attention(x)`.
    pub fn run(&self, p: &mut Pass<'_, D>) -> Result<()> {
        let a = p.acts;
        let [q, k, v, index, out] = a.attention;
        p.device.linear(&self.q, a.x, q)?;
        p.device.linear(&self.k, a.x, k)?;
        p.device.linear(&self.v, a.x, v)?;
        p.device.linear(&self.index, a.x, index)?;
        p.device.kv_append(self.lane, self.raw, &self.weights, k, v, index)?;
        p.device.select(self.lane, &self.weights, index, a.picks)?;
        p.device.attend(self.lane, &self.weights, q, a.picks, out)?;
        p.device.linear(&self.o, out, a.y)
    }
}
