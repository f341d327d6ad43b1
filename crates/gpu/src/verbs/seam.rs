//! The device behind the seam.

use crate::bank::GpuBank;
use crate::device::{GpuDevice, GpuMatrix, GpuVector};
use crate::verbs::rows::Onto;
use cherenkov_experts::{Bank, Layouts, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Hyper, KvLane, PleWeights, RowLane, Shared,
    TopkNorm,
};
use cherenkov_model::{Act, Batch, Device, Limits, PageId, Picks, Recall, Result, Routes, SlotId};

impl Device for GpuDevice {
    type Matrix = GpuMatrix;
    type Vector = GpuVector;
    type Bank = GpuBank;

    fn name(&self) -> &'static str {
        crate::NAME
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<GpuMatrix> {
        Ok(self.load_matrix(&matrix)?)
    }

    fn vector(&mut self, values: &[f32]) -> Result<GpuVector> {
        Ok(self.load_vector(values)?)
    }

    fn act(&mut self, width: usize) -> Act {
        self.declare_act(width)
    }

    fn picks(&mut self, blocks: usize) -> Picks {
        self.declare_picks(blocks)
    }

    fn row_lane(&mut self, width: usize, history: usize) -> RowLane {
        self.declare_ring(width, history)
    }

    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane {
        self.declare_delta(spec)
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        self.declare_kv(spec)
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        Ok(self.make_room(limits)?)
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<GpuBank> {
        Ok(self.make_bank(slots, layouts)?)
    }

    fn memory(&self) -> Vec<(&'static str, usize)> {
        self.arena.held()
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        Ok(self.verb_reset_slot(slot)?)
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        Ok(self.verb_copy_slot(from, to)?)
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        Ok(self.verb_save_slot(slot, out)?)
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        Ok(self.verb_load_slot(slot, bytes)??)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        Ok(self.verb_copy_page(from, to)?)
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        Ok(self.verb_save_page(page, out)?)
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        Ok(self.verb_load_page(page, bytes)??)
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        Ok(self.verb_settle(slot, rows)?)
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        Ok(self.start(batch)?)
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        Ok(self.verb_put(x, values)?)
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        Ok(self.verb_fetch(x)?)
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        Ok(self.verb_fetch_picks(picks)?)
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        Ok(self.verb_put_picks(picks, blocks)?)
    }

    fn embed(&mut self, table: &GpuMatrix, out: Act) -> Result<()> {
        Ok(self.verb_embed(table, out)?)
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        Ok(self.verb_repeat(x, out, Onto::Replaced)?)
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        Ok(self.verb_repeat(x, stream, Onto::Added)?)
    }

    fn norm(&mut self, w: &GpuVector, groups: usize, x: Act, out: Act) -> Result<()> {
        Ok(self.verb_norm(w, groups, x, out)?)
    }

    fn linear(&mut self, w: &GpuMatrix, x: Act, out: Act) -> Result<()> {
        Ok(self.verb_linear(w, x, out)?)
    }

    fn linear_streams(&mut self, w: &GpuMatrix, x: Act, out: Act) -> Result<()> {
        Ok(self.verb_linear_streams(w, x, out)?)
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<GpuMatrix, GpuVector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        Ok(self.verb_hyper_read(w, stream, out, gate)?)
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        Ok(self.verb_hyper_write(y, gate, stream)?)
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &GpuVector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        Ok(self.verb_conv_silu(lane, taps, kernel, x, out)?)
    }

    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<GpuVector>, io: DeltaIo) -> Result<()> {
        Ok(self.verb_delta(lane, w, io)?)
    }

    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<GpuVector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        Ok(self.verb_kv_append(lane, raw, w, k, v, index)?)
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<GpuVector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        Ok(self.verb_select(lane, w, index, picks)?)
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<GpuVector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        Ok(self.verb_attend(lane, w, q, picks, out)?)
    }

    fn route(&mut self, w: &GpuMatrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        Ok(self.verb_route(w, k, norm, x)?)
    }

    fn experts(
        &mut self,
        bank: &GpuBank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<<GpuBank as Bank>::Ticket> {
        Ok(self.verb_experts(bank, wave, routes, x, parts)?)
    }

    fn shared_expert(&mut self, w: &Shared<GpuMatrix>, x: Act, out: Act) -> Result<()> {
        Ok(self.verb_shared_expert(w, x, out)?)
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        Ok(self.verb_combine(routes, parts, shared, out)?)
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<GpuVector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        Ok(self.verb_ngram_add(lane, w, key, val, stream)?)
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        Ok(self.verb_keep(lane, x)?)
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        Ok(self.verb_recall(lane, x, from, out)?)
    }

    fn logits(&mut self, w: &GpuMatrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        Ok(self.verb_logits(w, x, rows)?)
    }
}
