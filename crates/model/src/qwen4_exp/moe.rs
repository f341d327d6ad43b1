//! The mixture of experts.

use super::forward::Pass;
use super::weights::Loader;
use crate::device::{Device, Shared, TopkNorm};
use crate::error::Result;

/// Router and shared expert of one layer; the routed experts live in the pool.
pub struct MoeLayer<D: Device> {
    layer: u32,
    top_k: usize,
    norm: TopkNorm,
    router: D::Matrix,
    shared: Shared<D::Matrix>,
}

impl<D: Device> MoeLayer<D> {
    /// Loads the layer whose tensors start with `at`; `layer` names its routed experts.
    pub fn load(load: &mut Loader<'_, D>, at: &str, layer: usize) -> Result<Self> {
        let moe = load.store.config().moe.clone();
        Ok(Self {
            layer: layer as u32,
            top_k: moe.top_k,
            norm: if moe.norm_topk { TopkNorm::Sum } else { TopkNorm::None },
            router: load.matrix(&format!("{at}.gate"))?,
            shared: Shared {
                gate_proj: load.matrix(&format!("{at}.shared_expert.gate_proj"))?,
                up_proj: load.matrix(&format!("{at}.shared_expert.up_proj"))?,
                down_proj: load.matrix(&format!("{at}.shared_expert.down_proj"))?,
                gate: load.matrix(&format!("{at}.shared_expert_gate"))?,
            },
        })
    }

    /// `y = routed experts + shared expert` of `x`. While experts are read, those that `next`, the
    /// layer after this one, is likely to want are read ahead: its router is asked about this layer's
    /// input, from which most of its own input will follow. Weak experts that come late are left out,
    /// if the user said so.
    pub fn run(&self, p: &mut Pass<'_, D>, next: Option<&Self>) -> Result<()> {
        let a = p.acts;
        let mut routes = p.device.route(&self.router, self.top_k, self.norm, a.x)?;
        p.experts.request(self.layer, routes.k, &routes.ids);
        if p.experts.cut_weak() > 0.0 {
            p.experts.spare(&routes.weak(p.experts.cut_weak()));
        }
        if let Some(next) = next.filter(|_| p.experts.wants_hint()) {
            let guess = p.device.foresee(&next.router, next.top_k, a.x)?;
            p.experts.hint(next.layer, &guess);
        }
        // Ready whatever is still being read.
        p.device.shared_expert(&self.shared, a.x, a.shared)?;
        let device = &mut *p.device;
        p.experts.waves(|bank, wave| device.experts(bank, wave, &routes, a.x, a.parts))?;
        // The others keep their weights: see docs/low-bits.md.
        routes.leave_out(p.experts.left_out());
        p.device.combine(&routes, a.parts, a.shared, a.y)
    }
}
