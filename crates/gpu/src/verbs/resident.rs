//! A whole mixture of experts without the host, when every expert of the layer lies in GPU memory.
//!
//! Owns: where experts lie, on the device. Never: which ones (the pool's).
//! Invariant: the same bits as `route`, `experts`, `shared_expert` and `combine` one after the other.

use crate::arena::Buf;
use crate::bank::GpuBank;
use crate::device::{GpuDevice, GpuMatrix, Scratch};
use crate::error::Result;
use crate::kernels::{JOB_WORDS, Kernel, LANES};
use crate::params;
use crate::verbs::moe::Jobs;
use cherenkov_experts::{Bank, Grade, Slot, Wave};
use cherenkov_format::record::{PAGE_BYTES, Projection};
use cherenkov_model::device::{Shared, TopkNorm};
use cherenkov_model::{Act, MAX_TENTATIVE};

/// Where every expert of a layer lies.
#[derive(Clone, Debug)]
pub struct Residency {
    slots: Vec<Slot>,
    /// Per expert: page, slab.
    places: Buf,
}

/// The weights of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeWeights<'a> {
    /// `[experts, hidden]`.
    pub router: &'a GpuMatrix,
    /// Experts per row.
    pub k: usize,
    /// Whether their weights are divided by their sum.
    pub norm: TopkNorm,
    /// The shared expert.
    pub shared: &'a Shared<GpuMatrix>,
}

/// The activations of a mixture of experts.
#[derive(Clone, Copy, Debug)]
pub struct MoeActs {
    /// Input.
    pub x: Act,
    /// Outputs of the routed experts, `[k * hidden]`.
    pub parts: Act,
    /// Output of the shared expert.
    pub shared: Act,
    /// Result.
    pub out: Act,
}

impl GpuDevice {
    /// Notes where every expert of a layer lies; `slots[e]` is expert `e`'s, and keeps its record, of the
    /// full grade, for as long as the result is used.
    ///
    /// # Errors
    /// When the device has no room or a slot is not the bank's.
    pub fn residency(&mut self, bank: &GpuBank, slots: &[Slot]) -> Result<Residency> {
        let known = slots.iter().all(|slot| (slot.0 as usize) < bank.slots());
        ensure!(known, "a slot beyond the bank's {}", bank.slots());
        let place = |&slot: &Slot| {
            let (slab, at) = bank.place(slot);
            [(at / PAGE_BYTES as u64) as u32, slab as u32]
        };
        let words: Vec<u32> = slots.iter().flat_map(place).collect();
        let places = self.arena.filled("tables", bytemuck::cast_slice(&words))?;
        Ok(Residency { slots: slots.to_vec(), places })
    }

    /// `out = routed experts + shared expert` of `x`. Up to [`MAX_TENTATIVE`] rows the host does not
    /// wait; more rows are grouped by expert, which it does.
    ///
    /// # Errors
    /// When the device fails or the operands do not fit.
    pub fn resident_moe(
        &mut self,
        bank: &GpuBank,
        residency: &Residency,
        w: MoeWeights<'_>,
        a: MoeActs,
    ) -> Result<()> {
        ensure!(w.router.rows as usize == residency.slots.len(), "experts of another layer");
        if self.batch.rows() > MAX_TENTATIVE || !self.sees_slabs(bank.slabs.len()) {
            return self.grouped_moe(bank, residency, w, a);
        }
        let layout = bank.layouts.full;
        let hidden = layout.hidden() as u32;
        let fits = a.x.width == hidden && a.parts.width == hidden * w.k as u32;
        ensure!(fits, "experts: {:?} into {:?}", a.x, a.parts);
        let routes = self.route_on_device(w.router, w.k, w.norm, a.x)?;
        let pairs = self.rows() * w.k as u32;
        let table = self.scratch(Scratch::Jobs, u64::from(pairs * JOB_WORDS) * 4)?;
        let params = params::Jobs { pairs, k: w.k as u32 };
        let grid = [pairs.div_ceil(LANES), 1, 1];
        self.run(Kernel::Jobs, &[&routes, &residency.places, &table], &params, grid)?;
        let jobs = Jobs::all(pairs);
        let [up, down] = [Projection::Gate, Projection::Down].map(|which| {
            let (_, cols, encoding) = layout.shape(which);
            self.variant(encoding, cols)
        });
        let inner = self.scratch_rows(Scratch::Inner, (w.k * layout.width()) as u32)?;
        let (input, output) = (self.buf(a.x)?, self.buf(a.parts)?);
        self.expert_up((bank, &layout), &jobs, (up, w.k as u32, 1), [&input, &table, &inner])?;
        self.expert_down((bank, &layout), &jobs, (down, 1), [&inner, &table, &output])?;
        self.verb_shared_expert(w.shared, a.x, a.shared)?;
        self.combine_by(&routes, w.k, a.parts, a.shared, a.out)
    }

    fn grouped_moe(
        &mut self,
        bank: &GpuBank,
        residency: &Residency,
        w: MoeWeights<'_>,
        a: MoeActs,
    ) -> Result<()> {
        let routes = self.verb_route(w.router, w.k, w.norm, a.x)?;
        let experts = routes.distinct();
        let slots = experts.iter().map(|&e| residency.slots[e as usize]).collect();
        let grades = vec![Grade::Full; experts.len()];
        let wave = Wave { layer: 0, experts, slots, grades };
        self.verb_experts(bank, &wave, &routes, a.x, a.parts)?;
        self.verb_shared_expert(w.shared, a.x, a.shared)?;
        self.verb_combine(&routes, a.parts, a.shared, a.out)
    }
}
