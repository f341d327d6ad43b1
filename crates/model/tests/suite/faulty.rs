//! A reference with one fault, to see tests fail.

use cherenkov_experts::{Layouts, RamBank, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_model::checked::{Oracle, Verb};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Hyper, KvLane, PleWeights, RowLane, Shared,
    TopkNorm,
};
use cherenkov_model::reference::Reference;
use cherenkov_model::{
    Act, Batch, Device, Limits, PageId, Picks, Place, Position, Recall, Result, Routes, SlotId,
};

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fault {
    /// Nothing, but products round their input to int8 as fast devices do.
    Int8,
    /// A value of the last row is off, from this place on.
    Off(Verb, Option<Place>),
    /// The last bit of a value depends on how many rows there are.
    Company(Verb),
    /// Values that are no numbers become 0.
    Hides(Verb),
    /// A value that is no number reaches another row.
    Spreads(Verb),
    /// Among equals the highest id is chosen.
    HighestFirst(Verb),
    /// The last bit of a part depends on its wave.
    Waves,
    /// Every settled run keeps this many rows.
    Settles(usize),
    /// Rings remember so many rows too few.
    ShortRing(usize),
    /// A state call does nothing.
    Skips(Call),
    /// Pages are used in the order of their numbers.
    SortsPages,
    /// Only the time axis counts.
    TextOnly,
    /// The newest blocks are selected, whatever their scores.
    Newest,
    /// The last value of keys is lost.
    LosesKey,
    /// The last value of index keys is lost.
    LosesIndexKey,
}

/// A call that changes state.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Call {
    ResetSlot,
    CopySlot,
    LoadSlot,
    CopyPage,
    LoadPage,
}

/// The reference with a fault.
pub struct Faulty {
    inner: Reference,
    fault: Fault,
    place: Place,
    rows: usize,
}

impl Faulty {
    pub fn new(eps: f64, fault: Fault) -> Self {
        Self { inner: Reference::new(eps), fault, place: Place::Embed, rows: 0 }
    }

    /// Spoils values of a verb.
    fn spoil(&self, verb: Verb, width: usize, values: &mut [f32]) {
        let last = values.len() - 1;
        match self.fault {
            Fault::Off(bad, place) if bad == verb && place.is_none_or(|p| p == self.place) => {
                values[last] = values[last] * 1.25 + 0.25;
            }
            Fault::Company(bad) if bad == verb && self.rows > 1 => {
                values[last] = f32::from_bits(values[last].to_bits() ^ 1);
            }
            Fault::Hides(bad) if bad == verb => {
                values.iter_mut().filter(|v| !v.is_finite()).for_each(|v| *v = 0.0);
            }
            Fault::Spreads(bad) if bad == verb && values.iter().any(|v| !v.is_finite()) => {
                values[0] = f32::NAN;
                values[(self.rows - 1) * width] = f32::NAN;
            }
            _ => {}
        }
    }

    fn after(&mut self, verb: Verb, acts: &[Act]) -> Result<()> {
        for &act in acts {
            let mut values = self.inner.fetch(act)?;
            self.spoil(verb, act.width as usize, &mut values);
            self.inner.put(act, &values)?;
        }
        Ok(())
    }

    fn skips(&self, call: Call) -> bool {
        self.fault == Fault::Skips(call)
    }

    /// Runs a product on an input rounded to int8 in groups of 32.
    fn product<T>(&mut self, x: Act, run: impl FnOnce(&mut Reference) -> Result<T>) -> Result<T> {
        if self.fault != Fault::Int8 {
            return run(&mut self.inner);
        }
        let exact = self.inner.fetch(x)?;
        let mut rounded = exact.clone();
        for group in rounded.chunks_mut(32) {
            let step = group.iter().fold(0f32, |max, v| max.max(v.abs())) / 127.0;
            if group.iter().all(|v| v.is_finite()) && step > 0.0 {
                group.iter_mut().for_each(|v| *v = (*v / step).round() * step);
            }
        }
        self.inner.put(x, &rounded)?;
        let result = run(&mut self.inner)?;
        self.inner.put(x, &exact)?;
        Ok(result)
    }
}

/// The `k` best, highest id first among equals, ascending.
fn highest_first(scores: &[f64], k: usize) -> Vec<u32> {
    let mut ids: Vec<u32> = (0..scores.len() as u32).rev().collect();
    ids.sort_by(|&a, &b| scores[b as usize].total_cmp(&scores[a as usize]));
    ids.truncate(k);
    ids.sort_unstable();
    ids
}

impl Device for Faulty {
    type Matrix = Matrix;
    type Vector = Vec<f32>;
    type Bank = RamBank;

    fn name(&self) -> &'static str {
        "faulty"
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<Matrix> {
        self.inner.matrix(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vec<f32>> {
        self.inner.vector(values)
    }

    fn act(&mut self, width: usize) -> Act {
        self.inner.act(width)
    }

    fn picks(&mut self, blocks: usize) -> Picks {
        self.inner.picks(blocks)
    }

    fn row_lane(&mut self, width: usize, history: usize) -> RowLane {
        let short = if let Fault::ShortRing(rows) = self.fault { rows } else { 0 };
        self.inner.row_lane(width, history.saturating_sub(short))
    }

    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane {
        self.inner.delta_lane(spec)
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        self.inner.kv_lane(spec)
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        self.inner.allocate(limits)
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<RamBank> {
        self.inner.bank(slots, layouts)
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        if self.skips(Call::ResetSlot) { Ok(()) } else { self.inner.reset_slot(slot) }
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        if self.skips(Call::CopySlot) { Ok(()) } else { self.inner.copy_slot(from, to) }
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        self.inner.save_slot(slot, out)
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        if self.skips(Call::LoadSlot) { Ok(()) } else { self.inner.load_slot(slot, bytes) }
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        if self.skips(Call::CopyPage) { Ok(()) } else { self.inner.copy_page(from, to) }
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        self.inner.save_page(page, out)
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        if self.skips(Call::LoadPage) { Ok(()) } else { self.inner.load_page(page, bytes) }
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        let rows = if let Fault::Settles(rows) = self.fault { rows } else { rows };
        self.inner.settle(slot, rows)
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        let mut batch = batch.clone();
        self.rows = batch.rows();
        if self.fault == Fault::SortsPages {
            batch.runs.iter_mut().for_each(|run| run.pages.sort_unstable());
        }
        if self.fault == Fault::TextOnly {
            batch.positions.iter_mut().for_each(|p| *p = Position::text(p.t));
        }
        self.inner.begin(&batch)
    }

    fn enter(&mut self, place: Place) {
        self.place = place;
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        self.inner.put(x, values)
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        self.inner.fetch(x)
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        self.inner.fetch_picks(picks)
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        self.inner.put_picks(picks, blocks)
    }

    fn embed(&mut self, table: &Matrix, out: Act) -> Result<()> {
        self.inner.embed(table, out)?;
        self.after(Verb::Embed, &[out])
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        self.inner.repeat(x, out)?;
        self.after(Verb::Repeat, &[out])
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        self.inner.add_repeat(x, stream)?;
        self.after(Verb::AddRepeat, &[stream])
    }

    fn norm(&mut self, w: &Vec<f32>, groups: usize, x: Act, out: Act) -> Result<()> {
        self.inner.norm(w, groups, x, out)?;
        self.after(Verb::Norm, &[out])
    }

    fn linear(&mut self, w: &Matrix, x: Act, out: Act) -> Result<()> {
        self.product(x, |inner| inner.linear(w, x, out))?;
        self.after(Verb::Linear, &[out])
    }

    fn linear_streams(&mut self, w: &Matrix, x: Act, out: Act) -> Result<()> {
        self.product(x, |inner| inner.linear_streams(w, x, out))?;
        self.after(Verb::LinearStreams, &[out])
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<Matrix, Vec<f32>>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.inner.hyper_read(w, stream, out, gate)?;
        self.after(Verb::HyperRead, &[out])
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        self.inner.hyper_write(y, gate, stream)?;
        self.after(Verb::HyperWrite, &[stream])
    }

    fn hyper_turn(
        &mut self,
        y: Act,
        w: &Hyper<Matrix, Vec<f32>>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.inner.hyper_turn(y, w, stream, out, gate)?;
        self.after(Verb::HyperTurn, &[out])
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &Vec<f32>,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        self.inner.conv_silu(lane, taps, kernel, x, out)?;
        self.after(Verb::ConvSilu, &[out])
    }

    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<Vec<f32>>, io: DeltaIo) -> Result<()> {
        self.inner.delta(lane, w, io)?;
        self.after(Verb::Delta, &[io.out])
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
        let lost = match self.fault {
            Fault::LosesKey => k,
            Fault::LosesIndexKey => index,
            _ => return self.inner.kv_append(lane, raw, w, k, v, index),
        };
        let exact = self.inner.fetch(lost)?;
        let mut values = exact.clone();
        values.chunks_mut(lost.width as usize).for_each(|row| row[row.len() - 1] = 0.0);
        self.inner.put(lost, &values)?;
        self.inner.kv_append(lane, raw, w, k, v, index)?;
        self.inner.put(lost, &exact)
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Vec<f32>>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        self.inner.select(lane, w, index, picks)?;
        let budget = w.spec.budget_blocks();
        let scores = self.inner.block_scores(lane, w, index)?;
        let chosen: Vec<Vec<u32>> = match self.fault {
            Fault::HighestFirst(Verb::Select) => {
                scores.iter().map(|s| highest_first(s, budget)).collect()
            }
            Fault::Newest => {
                let newest = |n: usize| (n.saturating_sub(budget) as u32..n as u32).collect();
                scores.iter().map(|s| newest(s.len())).collect()
            }
            _ => return Ok(()),
        };
        self.inner.put_picks(picks, &chosen)
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Vec<f32>>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        self.inner.attend(lane, w, q, picks, out)?;
        self.after(Verb::Attend, &[out])
    }

    fn route(&mut self, w: &Matrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        let mut routes = self.product(x, |inner| inner.route(w, k, norm, x))?;
        self.spoil(Verb::Route, k, &mut routes.weights);
        if self.fault == Fault::HighestFirst(Verb::Route) {
            let all: Vec<u32> = (0..self.rows as u32).collect();
            let logits = self.inner.logits(w, x, &all)?;
            let rows = logits.chunks_exact(w.view().rows());
            let scores = rows.map(|row| row.iter().map(|&l| f64::from(l)).collect::<Vec<_>>());
            routes.ids = scores.flat_map(|s| highest_first(&s, k)).collect();
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
    ) -> Result<()> {
        self.product(x, |inner| inner.experts(bank, wave, routes, x, parts))?;
        if let Fault::Hides(Verb::Experts) | Fault::Spreads(Verb::Experts) = self.fault {
            return self.after(Verb::Experts, &[parts]);
        }
        let mut values = self.inner.fetch(parts)?;
        let width = parts.width as usize / routes.k;
        for (i, id) in routes.ids.iter().enumerate() {
            if wave.experts.contains(id) {
                let part = &mut values[i * width..(i + 1) * width];
                self.spoil(Verb::Experts, width, part);
                if self.fault == Fault::Waves && wave.experts[0] != *id {
                    part[0] = f32::from_bits(part[0].to_bits() ^ 1);
                }
            }
        }
        self.inner.put(parts, &values)
    }

    fn shared_expert(&mut self, w: &Shared<Matrix>, x: Act, out: Act) -> Result<()> {
        self.product(x, |inner| inner.shared_expert(w, x, out))?;
        self.after(Verb::SharedExpert, &[out])
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        self.inner.combine(routes, parts, shared, out)?;
        self.after(Verb::Combine, &[out])
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<Vec<f32>>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        self.inner.ngram_add(lane, w, key, val, stream)?;
        self.after(Verb::NgramAdd, &[stream])
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        self.inner.keep(lane, x)
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        self.inner.recall(lane, x, from, out)?;
        self.after(Verb::Recall, &[out])
    }

    fn logits(&mut self, w: &Matrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let mut values = self.product(x, |inner| inner.logits(w, x, rows))?;
        self.spoil(Verb::Logits, w.view().rows(), &mut values);
        Ok(values)
    }
}
