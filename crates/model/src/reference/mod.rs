//! The exact reference: every verb as a scalar loop with f64 sums, row by row.
//!
//! Owns: the yardstick that fast devices and golden values are compared with.
//! Never: speed. Invariant: obviously the equations of the model, in their order.

mod attention;
mod delta;
mod math;
mod oracle;
mod state;

use crate::batch::Batch;
use crate::device::{
    Act, AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Device, Hyper, KvLane, Limits, PageId,
    Picks, PleWeights, Recall, Routes, RowLane, Shared, SlotId, TopkNorm,
};
use crate::error::{Error, Result};
use cherenkov_experts::{Bank, Layouts, RamBank, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_format::record::Projection;
use state::{DeltaState, KvState, RowRing, State};

/// The reference device.
#[derive(Debug)]
pub struct Reference {
    eps: f64,
    widths: Vec<usize>,
    acts: Vec<Vec<f32>>,
    picks: Vec<Vec<Vec<u32>>>,
    state: State,
    layouts: Option<Layouts>,
    batch: Batch,
    limits: Option<Limits>,
}

impl Reference {
    /// A reference for a model with this norm epsilon.
    pub fn new(eps: f64) -> Self {
        Self {
            eps,
            widths: Vec::new(),
            acts: Vec::new(),
            picks: Vec::new(),
            state: State::default(),
            layouts: None,
            batch: Batch::default(),
            limits: None,
        }
    }

    fn get(&self, x: Act) -> &[f32] {
        &self.acts[x.id as usize]
    }

    fn set(&mut self, out: Act, values: Vec<f32>) {
        assert_eq!(values.len(), self.batch.rows() * out.width as usize);
        self.acts[out.id as usize] = values;
    }

    /// Normed streams and their gated mean; also the injection gate.
    fn hyper(&self, w: &Hyper<Matrix, Vec<f32>>, stream: &[f32]) -> (Vec<f32>, Vec<f32>) {
        let wide = w.norm.len();
        let (c, h) = (w.count, wide / w.count);
        let normed: Vec<f32> = stream
            .chunks_exact(wide)
            .flat_map(|row| math::norm(row, &w.norm, c, self.eps))
            .collect();
        let down = math::linear(w.down.view(), &normed);
        let act: Vec<f32> =
            down.iter().map(|&d| math::silu(f64::from(d) / c as f64) as f32).collect();
        let up = math::linear(w.up.view(), &act);
        let mut out = Vec::new();
        for (n, g) in normed.chunks_exact(wide).zip(up.chunks_exact(wide)) {
            out.extend((0..h).map(|i| {
                let stream =
                    |s: usize| math::sigmoid(f64::from(g[s * h + i])) * f64::from(n[s * h + i]);
                ((0..c).map(stream).sum::<f64>() / c as f64) as f32
            }));
        }
        let gate = w.inject.as_ref().map_or_else(Vec::new, |inject| {
            let raw = math::linear(inject.view(), &normed);
            raw.iter().map(|&r| (2.0 * math::sigmoid(f64::from(r) / c as f64)) as f32).collect()
        });
        (out, gate)
    }
}

fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f32> {
    let one = |(&g, &u): (&f32, &f32)| (math::silu(f64::from(g)) * f64::from(u)) as f32;
    gate.iter().zip(up).map(one).collect()
}

impl Device for Reference {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Bank = RamBank;

    fn name(&self) -> &'static str {
        "reference"
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<Matrix> {
        Ok(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>> {
        Ok(values.to_vec())
    }

    fn act(&mut self, width: usize) -> Act {
        self.widths.push(width);
        self.acts.push(Vec::new());
        Act { id: (self.widths.len() - 1) as u16, width: width as u32 }
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
        self.state.deltas.push(DeltaState::new(spec));
        DeltaLane((self.state.deltas.len() - 1) as u16)
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        self.state.kvs.push(KvState::new(spec));
        KvLane((self.state.kvs.len() - 1) as u16)
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        self.state.allocate(&limits);
        self.limits = Some(limits);
        Ok(())
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<RamBank> {
        self.layouts = Some(*layouts);
        Ok(RamBank::new(slots, layouts.full.bytes()))
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        self.state.reset(slot.0 as usize);
        Ok(())
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        let mut bytes = Vec::new();
        self.save_slot(from, &mut bytes)?;
        self.load_slot(to, &bytes)
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        state::save(self.state.slot_parts(slot.0 as usize), out);
        Ok(())
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        self.state.reset(slot.0 as usize);
        state::load(self.state.slot_parts(slot.0 as usize), bytes)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        for kv in &mut self.state.kvs {
            kv.pages[to.0 as usize] = kv.pages[from.0 as usize].clone();
        }
        Ok(())
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        state::save(self.state.page_parts(page.0 as usize), out);
        Ok(())
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        state::load(self.state.page_parts(page.0 as usize), bytes)
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        for delta in &mut self.state.deltas {
            let planes = std::mem::take(&mut delta.tentative[slot.0 as usize]);
            if rows > 0 {
                delta.settled[slot.0 as usize] = planes[rows - 1].clone();
            }
        }
        Ok(())
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let limit = self.limits.map_or(0, |l| l.rows);
        if batch.rows() > limit {
            return Err(Error::Device {
                device: "reference",
                what: format!("a batch has {} rows, room is for {limit}", batch.rows()),
            });
        }
        self.batch = batch.clone();
        Ok(())
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        self.set(x, values.to_vec());
        Ok(())
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        Ok(self.get(x).to_vec())
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        Ok(self.picks[picks.id as usize].clone())
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        self.picks[picks.id as usize] = blocks.to_vec();
        Ok(())
    }

    fn embed(&mut self, table: &Matrix, out: Act) -> Result<()> {
        let width = out.width as usize;
        let mut values = vec![0.0; self.batch.rows() * width];
        for (row, &token) in values.chunks_exact_mut(width).zip(&self.batch.tokens) {
            table.view().read_row(token as usize, row);
        }
        self.set(out, values);
        Ok(())
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        let count = (out.width / x.width) as usize;
        let rows = self.get(x).chunks_exact(x.width as usize);
        let values = rows.flat_map(|row| row.repeat(count)).collect();
        self.set(out, values);
        Ok(())
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        let (h, wide) = (x.width as usize, stream.width as usize);
        let mut values = self.get(stream).to_vec();
        for (row, x) in values.chunks_exact_mut(wide).zip(self.get(x).chunks_exact(h)) {
            for stream in row.chunks_exact_mut(h) {
                stream.iter_mut().zip(x).for_each(|(s, x)| *s += x);
            }
        }
        self.set(stream, values);
        Ok(())
    }

    fn norm(&mut self, w: &Vec<f32>, groups: usize, x: Act, out: Act) -> Result<()> {
        let rows = self.get(x).chunks_exact(w.len());
        let values = rows.flat_map(|row| math::norm(row, w, groups, self.eps)).collect();
        self.set(out, values);
        Ok(())
    }

    fn linear(&mut self, w: &Matrix, x: Act, out: Act) -> Result<()> {
        let values = math::linear(w.view(), self.get(x));
        self.set(out, values);
        Ok(())
    }

    fn linear_streams(&mut self, w: &Matrix, x: Act, out: Act) -> Result<()> {
        self.linear(w, x, out)
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<Matrix, Vec<f32>>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        let (mixed, inject) = self.hyper(w, self.get(stream));
        self.set(out, mixed);
        if w.inject.is_some() {
            self.set(gate, inject);
        }
        Ok(())
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        let (h, count) = (y.width as usize, gate.width as usize);
        let mut values = self.get(stream).to_vec();
        let (y, gate) = (self.get(y), self.get(gate));
        for (i, stream) in values.chunks_exact_mut(h).enumerate() {
            let y = &y[i / count * h..][..h];
            for (s, &y) in stream.iter_mut().zip(y) {
                *s = (f64::from(*s) + f64::from(gate[i]) * f64::from(y)) as f32;
            }
        }
        self.set(stream, values);
        Ok(())
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &Vec<f32>,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        let ring = &mut self.state.rings[lane.0 as usize];
        let x = &self.acts[x.id as usize];
        let sums = delta::conv(ring, &self.batch, (taps, kernel, 1), x);
        self.set(out, sums.iter().map(|&s| math::silu(s) as f32).collect());
        Ok(())
    }

    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<Vec<f32>>, io: DeltaIo) -> Result<()> {
        let act = |x: Act| &self.acts[x.id as usize][..];
        let inputs = delta::Inputs { qkv: act(io.qkv), z: act(io.z), a: act(io.a), b: act(io.b) };
        let state = &mut self.state.deltas[lane.0 as usize];
        let values = delta::run(state, w, &self.batch, self.eps, inputs);
        self.set(io.out, values);
        Ok(())
    }

    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<Vec<f32>>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        let kv = &mut self.state.kvs[lane.0 as usize];
        let raw = &mut self.state.rings[raw.0 as usize];
        let act = |x: Act| &self.acts[x.id as usize][..];
        attention::append(kv, raw, w, &self.batch, self.eps, (act(k), act(v), act(index)));
        Ok(())
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Vec<f32>>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        let kv = &self.state.kvs[lane.0 as usize];
        let chosen = attention::select(kv, w, &self.batch, self.eps, self.get(index));
        self.picks[picks.id as usize] = chosen;
        Ok(())
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Vec<f32>>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        let kv = &self.state.kvs[lane.0 as usize];
        let picks = &self.picks[picks.id as usize];
        let values = attention::attend(kv, w, &self.batch, self.eps, self.get(q), picks);
        self.set(out, values);
        Ok(())
    }

    fn route(&mut self, w: &Matrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        let logits = math::linear(w.view(), self.get(x));
        let mut routes = Routes { k, ..Routes::default() };
        for row in logits.chunks_exact(w.view().rows()) {
            let row: Vec<f64> = row.iter().map(|&l| f64::from(l)).collect();
            let probabilities = math::softmax(&row);
            let ids = math::top_k(&row, k);
            let sum: f64 = match norm {
                TopkNorm::Sum => ids.iter().map(|&e| probabilities[e as usize]).sum(),
                TopkNorm::None => 1.0,
            };
            routes.weights.extend(ids.iter().map(|&e| (probabilities[e as usize] / sum) as f32));
            routes.ids.extend(ids);
        }
        Ok(routes)
    }

    fn experts(
        &mut self,
        bank: &RamBank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<<RamBank as Bank>::Ticket> {
        let layouts = self.layouts.expect("the bank was made by this device");
        let h = x.width as usize;
        let mut values = std::mem::take(&mut self.acts[parts.id as usize]);
        values.resize(self.batch.rows() * parts.width as usize, 0.0);
        for (i, &expert) in wave.experts.iter().enumerate() {
            let (record, layout) = (bank.record(wave.slots[i]), layouts.of(wave.grades[i]));
            let matrix = |which| layout.matrix(record, which);
            let routed = (0..routes.ids.len()).filter(|&i| routes.ids[i] == expert);
            let routed: Vec<usize> = routed.collect();
            let x: Vec<f32> = routed
                .iter()
                .flat_map(|&i| &self.acts[x.id as usize][i / routes.k * h..][..h])
                .copied()
                .collect();
            let gate = math::linear(matrix(Projection::Gate), &x);
            let up = math::linear(matrix(Projection::Up), &x);
            let down = math::linear(matrix(Projection::Down), &swiglu(&gate, &up));
            for (&i, down) in routed.iter().zip(down.chunks_exact(h)) {
                values[i * h..][..h].copy_from_slice(down);
            }
        }
        self.acts[parts.id as usize] = values;
        Ok(())
    }

    fn shared_expert(&mut self, w: &Shared<Matrix>, x: Act, out: Act) -> Result<()> {
        let input = self.get(x);
        let gate = math::linear(w.gate_proj.view(), input);
        let up = math::linear(w.up_proj.view(), input);
        let mut values = math::linear(w.down_proj.view(), &swiglu(&gate, &up));
        let open = math::linear(w.gate.view(), input);
        for (row, open) in values.chunks_exact_mut(out.width as usize).zip(open) {
            let open = math::sigmoid(f64::from(open));
            row.iter_mut().for_each(|y| *y = (f64::from(*y) * open) as f32);
        }
        self.set(out, values);
        Ok(())
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        let h = out.width as usize;
        let (parts, shared) = (self.get(parts), self.get(shared));
        let mut values = Vec::with_capacity(shared.len());
        for (row, shared) in shared.chunks_exact(h).enumerate() {
            values.extend((0..h).map(|i| {
                let part = |rank: usize| {
                    let at = row * routes.k + rank;
                    let (weight, part) = (f64::from(routes.weights[at]), parts[at * h + i]);
                    if weight == 0.0 { 0.0 } else { weight * f64::from(part) }
                };
                ((0..routes.k).map(part).sum::<f64>() + f64::from(shared[i])) as f32
            }));
        }
        self.set(out, values);
        Ok(())
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<Vec<f32>>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        let (wide, h) = (stream.width as usize, val.width as usize);
        let mut gated = Vec::new();
        for row in 0..self.batch.rows() {
            let key =
                math::norm(&self.get(key)[row * wide..][..wide], &w.norm_key, w.count, self.eps);
            let query = &self.get(stream)[row * wide..][..wide];
            let query = math::norm(query, &w.norm_query, w.count, self.eps);
            for (key, query) in key.chunks_exact(h).zip(query.chunks_exact(h)) {
                let a = math::dot(key, query) / (h as f64).sqrt();
                // sign(0) is 0 here; f64::signum would say 1.
                let sign = if a == 0.0 { 0.0 } else { a.signum() };
                let open = math::sigmoid(sign * a.abs().max(1e-6).sqrt());
                let val = &self.get(val)[row * h..][..h];
                gated.extend(val.iter().map(|&v| (open * f64::from(v)) as f32));
            }
        }
        let normed: Vec<f32> = gated
            .chunks_exact(wide)
            .flat_map(|row| math::norm(row, &w.norm_conv, w.count, self.eps))
            .collect();
        let ring = &mut self.state.rings[lane.0 as usize];
        let conv = delta::conv(ring, &self.batch, (&w.taps, w.kernel, w.dilation), &normed);
        let mut values = self.get(stream).to_vec();
        for ((s, &g), c) in values.iter_mut().zip(&gated).zip(conv) {
            *s = (f64::from(*s) + f64::from(g) + math::silu(c)) as f32;
        }
        self.set(stream, values);
        Ok(())
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        let width = x.width as usize;
        let ring = &mut self.state.rings[lane.0 as usize];
        for run in &self.batch.runs {
            for row in run.range() {
                let at = run.start + (row - run.first) as u32;
                let values = &self.acts[x.id as usize][row * width..][..width];
                ring.put(run.slot.0 as usize, at, values);
            }
        }
        Ok(())
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        let width = x.width as usize;
        let ring = &self.state.rings[lane.0 as usize];
        let row = |from: &Recall| match *from {
            Recall::Row(row) => self.get(x)[row as usize * width..][..width].to_vec(),
            Recall::Kept { slot, index } => ring.row(slot.0 as usize, i64::from(index)),
        };
        let values = from.iter().flat_map(row).collect();
        self.set(out, values);
        Ok(())
    }

    fn logits(&mut self, w: &Matrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let width = x.width as usize;
        let row = |&row: &u32| &self.get(x)[row as usize * width..][..width];
        let chosen: Vec<f32> = rows.iter().flat_map(row).copied().collect();
        Ok(math::linear(w.view(), &chosen))
    }
}
