//! The verbs of the CPU device: handles become slices, slices go to the modules that compute.
//!
//! Owns: that translation. Never: arithmetic.

use super::weights::{CpuMatrix, CpuVector};
use super::{CpuDevice, NAME, attention, delta, moe, residual};
use crate::device::engine::Engine;
use crate::device::pages::KvState;
use crate::device::state::RowRing;
use crate::threads::Cut;
use cherenkov_experts::{Layouts, RamBank, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Hyper, KvLane, PleWeights, RowLane, Shared,
    TopkNorm,
};
use cherenkov_model::{
    Act, Batch, Device, Error, Limits, PageId, Picks, Recall, Result, Routes, SlotId,
};

impl CpuDevice {
    /// Runs `f` with the memory of `out`, the batch's rows of it.
    fn write(&mut self, out: Act, f: impl FnOnce(&mut Self, &mut [f32])) {
        let mut data = self.acts.take(out);
        let len = self.acts.rows * out.width as usize;
        f(self, &mut data[..len]);
        self.acts.give(out, data);
    }

    /// `out = W x` for rows of any width that the matrix takes.
    fn product(&mut self, w: &CpuMatrix, x: Act, out: Act) {
        self.write(out, |d, out| {
            let stamp = d.acts.stamp(x);
            d.engine.linear(w.view(), d.acts.get(x), Some(stamp), out);
        });
    }
}

impl Device for CpuDevice {
    type Matrix = CpuMatrix;
    type Vector = CpuVector;
    type Bank = RamBank;

    fn name(&self) -> &'static str {
        NAME
    }

    fn kv_numbers(&self) -> &'static str {
        self.options.kv.name()
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<CpuMatrix> {
        self.weight_bytes += matrix.view().bytes().len();
        Ok(CpuMatrix::new(matrix))
    }

    fn vector(&mut self, values: &[f32]) -> Result<CpuVector> {
        self.weight_bytes += size_of_val(values);
        Ok(CpuVector::new(values))
    }

    fn act(&mut self, width: usize) -> Act {
        self.acts.declare(width)
    }

    fn picks(&mut self, blocks: usize) -> Picks {
        self.picks.push(Vec::new());
        Picks { id: (self.picks.len() - 1) as u16, blocks: blocks as u32 }
    }

    fn row_lane(&mut self, width: usize, history: usize) -> RowLane {
        self.state.rings.push(RowRing::new(width, history));
        RowLane((self.state.rings.len() - 1) as u16)
    }

    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane {
        self.state.deltas.push(super::state::DeltaState::new(spec));
        DeltaLane((self.state.deltas.len() - 1) as u16)
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        self.state.kvs.push(KvState::new(spec, self.options.kv));
        KvLane((self.state.kvs.len() - 1) as u16)
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        self.acts.allocate(limits.rows);
        self.state.allocate(&limits);
        self.limits = limits;
        for picks in &mut self.picks {
            picks.resize_with(limits.rows, Vec::new);
        }
        Ok(())
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<RamBank> {
        self.layouts = Some(*layouts);
        Ok(RamBank::new(slots, layouts.full.bytes()))
    }

    fn memory(&self) -> Vec<(&'static str, usize)> {
        self.memory_by_purpose()
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        self.state.reset(slot.0 as usize);
        Ok(())
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        self.flush(from);
        self.state.copy_slot(from.0 as usize, to.0 as usize);
        Ok(())
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        self.flush(slot);
        self.state.save_slot(slot.0 as usize, out);
        Ok(())
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        self.state.load_slot(slot.0 as usize, bytes)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        self.state.copy_page(from.0 as usize, to.0 as usize);
        Ok(())
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        self.state.save_page(page.0 as usize, out);
        Ok(())
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        self.state.load_page(page.0 as usize, bytes)
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        for state in &mut self.state.deltas {
            delta::settle(state, slot.0 as usize, rows);
        }
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let (rows, limit) = (batch.rows(), self.limits.rows);
        if rows > limit {
            let what = format!("a batch has {rows} rows, room is for {limit}");
            return Err(Error::Device { device: NAME, what });
        }
        self.batch.clone_from(batch);
        self.acts.rows = rows;
        self.ropes.clear();
        Ok(())
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        self.write(x, |_, out| out.copy_from_slice(values));
        Ok(())
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        Ok(self.acts.get(x).to_vec())
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        Ok(self.picks[picks.id as usize][..self.acts.rows].to_vec())
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        self.picks[picks.id as usize][..blocks.len()].clone_from_slice(blocks);
        Ok(())
    }

    fn embed(&mut self, table: &CpuMatrix, out: Act) -> Result<()> {
        let width = out.width as usize;
        self.write(out, |d, out| {
            let (tokens, table) = (&d.batch.tokens, table.view());
            let parts = d.engine.parts(out.len() * 2);
            let cut = Cut::slice(out, width, parts);
            d.engine.run(parts, &|i| {
                let tokens = &tokens[cut.units(i)];
                for (row, token) in cut.take(i).row(0).chunks_exact_mut(width).zip(tokens) {
                    table.read_row(*token as usize, row);
                }
            });
        });
        Ok(())
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        self.write(out, |d, out| {
            let rows = d.acts.get(x).chunks_exact(x.width as usize);
            for (out, x) in out.chunks_exact_mut(out_width(out, d.acts.rows)).zip(rows) {
                out.chunks_exact_mut(x.len()).for_each(|stream| stream.copy_from_slice(x));
            }
        });
        Ok(())
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        self.write(stream, |d, stream| {
            residual::add_repeat(&mut d.engine, (d.acts.get(x), x.width as usize), stream);
        });
        Ok(())
    }

    fn norm(&mut self, w: &CpuVector, groups: usize, x: Act, out: Act) -> Result<()> {
        let width = w.len() / groups;
        self.write(out, |d, out| {
            residual::norm(&mut d.engine, (w, width, d.eps), d.acts.get(x), out);
        });
        Ok(())
    }

    fn linear(&mut self, w: &CpuMatrix, x: Act, out: Act) -> Result<()> {
        self.product(w, x, out);
        Ok(())
    }

    fn linear_streams(&mut self, w: &CpuMatrix, x: Act, out: Act) -> Result<()> {
        self.product(w, x, out);
        Ok(())
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<CpuMatrix, CpuVector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.write(gate, |d, gate| {
            d.write(out, |d, out| {
                let (weights, stream) = ((w, d.eps), d.acts.get(stream));
                residual::hyper_read(&mut d.engine, &mut d.scratch, weights, stream, out, gate);
            });
        });
        Ok(())
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        self.write(stream, |d, stream| {
            let (y_values, gate) = (d.acts.get(y), d.acts.get(gate));
            residual::hyper_write(&mut d.engine, y_values, gate, (stream, y.width as usize));
        });
        Ok(())
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &CpuVector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        self.write(out, |d, out| {
            let (ring, taps) = (&mut d.state.rings[lane.0 as usize], taps.by_tap(kernel));
            let mut conv = residual::Conv { ring, taps, kernel, dilation: 1 };
            residual::conv_silu(&mut d.engine, &mut conv, &d.batch, d.acts.get(x), out);
        });
        Ok(())
    }

    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<CpuVector>, io: DeltaIo) -> Result<()> {
        let mut done = Ok(());
        self.write(io.out, |d, out| {
            let get = |x: Act| d.acts.get(x);
            let io = delta::Inputs { qkv: get(io.qkv), z: get(io.z), a: get(io.a), b: get(io.b) };
            let (state, batch) = (&mut d.state.deltas[lane.0 as usize], (&d.batch, d.eps));
            done = delta::run(&mut d.engine, &mut d.scratch, state, w, batch, io, out);
        });
        done
    }

    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<CpuVector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        self.ropes.prepare(&w.spec, &self.batch);
        let inputs = [self.acts.get(k), self.acts.get(v), self.acts.get(index)];
        let layer = attention::Layer { w, batch: &self.batch, ropes: &self.ropes, eps: self.eps };
        let (kv, ring) =
            (&mut self.state.kvs[lane.0 as usize], &mut self.state.rings[raw.0 as usize]);
        attention::append(&mut self.engine, kv, ring, &layer, inputs);
        Ok(())
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<CpuVector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        self.ropes.prepare(&w.spec, &self.batch);
        let layer = attention::Layer { w, batch: &self.batch, ropes: &self.ropes, eps: self.eps };
        let kv = &self.state.kvs[lane.0 as usize];
        let picks = &mut self.picks[picks.id as usize][..self.acts.rows];
        attention::select(&mut self.engine, kv, &layer, self.acts.get(index), picks);
        Ok(())
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<CpuVector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        self.ropes.prepare(&w.spec, &self.batch);
        self.write(out, |d, out| {
            let layer = attention::Layer { w, batch: &d.batch, ropes: &d.ropes, eps: d.eps };
            let kv = &d.state.kvs[lane.0 as usize];
            let picks = &d.picks[picks.id as usize];
            attention::attend(&mut d.engine, kv, &layer, d.acts.get(q), picks, out);
        });
        Ok(())
    }

    fn route(&mut self, w: &CpuMatrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        let experts = w.view().rows();
        let [logits, ..] = &mut self.scratch;
        let logits = logits.reserve(self.acts.rows * experts);
        let stamp = self.acts.stamp(x);
        self.engine.linear(w.view(), self.acts.get(x), Some(stamp), logits);
        Ok(moe::choose(&mut self.engine, logits, experts, k, norm))
    }

    fn experts(
        &mut self,
        bank: &RamBank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<()> {
        let layouts = self.layouts.expect("the bank was made by this device");
        self.write(parts, |d, out| {
            let x = d.acts.get(x);
            let experts = moe::Experts { bank, layouts: &layouts, wave, routes, x };
            experts.run(&mut d.engine, &mut d.grouped, &mut d.scratch, out);
        });
        Ok(())
    }

    fn shared_expert(&mut self, w: &Shared<CpuMatrix>, x: Act, out: Act) -> Result<()> {
        self.write(out, |d, out| {
            let x = (d.acts.get(x), d.acts.stamp(x));
            moe::shared(&mut d.engine, &mut d.scratch, w, x, out);
        });
        Ok(())
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        self.write(out, |d, values| {
            let (parts, shared) = (d.acts.get(parts), d.acts.get(shared));
            moe::combine(&mut d.engine, routes, parts, shared, (values, out.width as usize));
        });
        Ok(())
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<CpuVector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        self.write(stream, |d, stream| {
            let (ring, taps) = (&mut d.state.rings[lane.0 as usize], w.taps.by_tap(w.kernel));
            let mut conv = residual::Conv { ring, taps, kernel: w.kernel, dilation: w.dilation };
            let (key, val) = (d.acts.get(key), d.acts.get(val));
            let ngram = residual::Ngram { w, eps: d.eps, key, val };
            let (engine, scratch) = (&mut d.engine, &mut d.scratch);
            residual::ngram_add(engine, scratch, &mut conv, &d.batch, ngram, stream);
        });
        Ok(())
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        let ring = &mut self.state.rings[lane.0 as usize];
        for run in &self.batch.runs {
            for row in run.rows.saturating_sub(ring.capacity)..run.rows {
                let from = self.acts.row(x, run.first + row);
                ring.row(run.slot.0 as usize, run.start as usize + row).copy_from_slice(from);
            }
        }
        Ok(())
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        self.write(out, |d, out| {
            let ring = &mut d.state.rings[lane.0 as usize];
            for (out, from) in out.chunks_exact_mut(x.width as usize).zip(from) {
                match from {
                    Recall::Row(row) => out.copy_from_slice(d.acts.row(x, *row as usize)),
                    Recall::Kept { slot, index } => {
                        out.copy_from_slice(ring.row(slot.0 as usize, *index as usize));
                    }
                }
            }
        });
        Ok(())
    }

    fn logits(&mut self, w: &CpuMatrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let mut out = vec![0.0; rows.len() * w.view().rows()];
        let width = x.width as usize;
        let chosen = self.scratch[0].reserve(rows.len() * width);
        for (out, row) in chosen.chunks_exact_mut(width).zip(rows) {
            out.copy_from_slice(self.acts.row(x, *row as usize));
        }
        self.engine.linear(w.view(), chosen, None, &mut out);
        Ok(out)
    }
}

impl CpuDevice {
    /// Applies the settled rows that the slot's recurrent matrices lack.
    fn flush(&mut self, slot: SlotId) {
        let engine: &mut Engine = &mut self.engine;
        for state in &mut self.state.deltas {
            delta::flush(engine, state, slot.0 as usize);
        }
    }
}

fn out_width(out: &[f32], rows: usize) -> usize {
    (out.len() / rows.max(1)).max(1)
}
