//! Gated DeltaNet as a mixer.

use super::forward::Pass;
use super::weights::Loader;
use crate::device::{DeltaIo, DeltaLane, DeltaWeights, Device, RowLane};
use crate::error::Result;

/// Weights and lanes of one DeltaNet layer.
pub struct DeltaLayer<D: Device> {
    qkv: D::Matrix,
    z: D::Matrix,
    a: D::Matrix,
    b: D::Matrix,
    out: D::Matrix,
    taps: D::Vector,
    weights: DeltaWeights<D::Vector>,
    lane: DeltaLane,
    history: RowLane,
}

impl<D: Device> DeltaLayer<D> {
    /// Loads the layer whose tensors start with `at`.
    pub fn load(load: &mut Loader<'_, D>, at: &str) -> Result<Self> {
        let spec = load.store.config().delta.clone();
        Ok(Self {
            qkv: load.matrix(&format!("{at}.in_proj_qkv"))?,
            z: load.matrix(&format!("{at}.in_proj_z"))?,
            a: load.matrix(&format!("{at}.in_proj_a"))?,
            b: load.matrix(&format!("{at}.in_proj_b"))?,
            out: load.matrix(&format!("{at}.out_proj"))?,
            taps: load.vector(&format!("{at}.conv1d"))?,
            lane: load.device.delta_lane(&spec),
            history: load.device.row_lane(spec.channels(), spec.conv_kernel - 1),
            weights: DeltaWeights {
                a_log: load.vector(&format!("{at}.A_log"))?,
                dt_bias: load.vector(&format!("{at}.dt_bias"))?,
                norm: load.vector(&format!("{at}.norm"))?,
                spec,
            },
        })
    }

    /// `y = delta_net(x)`.
    pub fn run(&self, p: &mut Pass<'_, D>) -> Result<()> {
        let acts = p.acts;
        let [raw, qkv, z, a, b, out] = acts.delta;
        p.device.linear(&self.qkv, acts.x, raw)?;
        p.device.linear(&self.z, acts.x, z)?;
        p.device.linear(&self.a, acts.x, a)?;
        p.device.linear(&self.b, acts.x, b)?;
        let kernel = self.weights.spec.conv_kernel;
        p.device.conv_silu(self.history, &self.taps, kernel, raw, qkv)?;
        p.device.delta(self.lane, &self.weights, DeltaIo { qkv, z, a, b, out })?;
        p.device.linear(&self.out, out, acts.y)
    }
}
