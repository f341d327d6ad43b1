//! A decorator that shows every verb's call and result to a sink.
//!
//! Owns: when a result is read back. Never: what becomes of it (see [`Trace`]), numbers, clocks (a
//! sink may have one).
//! Invariant: the device runs exactly the calls it would run without the decorator, and reads between.

use crate::batch::Batch;
use crate::checked::Verb;
use crate::device::{
    Act, AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Device, Hyper, KvLane, Limits, PageId,
    Picks, Place, PleWeights, Recall, Routes, RowLane, Shared, SlotId, TopkNorm,
};
use crate::error::Result;
use cherenkov_experts::{Bank, Layouts, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};

/// The call that a result belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Which verb.
    pub verb: Verb,
    /// Where in the forward pass.
    pub place: Place,
}

/// How much a call has to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows of the pass.
    pub rows: usize,
    /// Width of the input of a projection, else 0.
    pub inputs: u32,
    /// Width of the output of a projection, else 0.
    pub outputs: u32,
    /// Routed experts of a wave, else 0.
    pub experts: usize,
}

/// Who looks at calls and results.
pub trait Trace {
    /// A pass over these rows begins.
    fn begin(&mut self, _batch: &Batch) {}

    /// A verb is about to be called.
    fn before(&mut self, _at: At) {}

    /// A verb has returned; nothing has been read back yet. A device that works asynchronously may
    /// not be done.
    fn after(&mut self, _at: At, _work: Work) {}

    /// Whether this result is worth reading back.
    fn wants(&self, _at: At) -> bool {
        true
    }

    /// An activation after a verb that wrote it, `[rows, width]`. A verb with several outputs shows
    /// them in the order of its arguments; the parts of all experts are shown once, when complete.
    fn act(&mut self, _at: At, _act: Act, _values: &[f32]) {}

    /// The experts chosen for each row.
    fn routes(&mut self, _at: At, _routes: &Routes) {}

    /// The blocks chosen for each row.
    fn picks(&mut self, _at: At, _blocks: &[Vec<u32>]) {}

    /// Logits of the chosen rows, `[chosen, vocab]`.
    fn logits(&mut self, _at: At, _rows: &[u32], _values: &[f32]) {}
}

impl<T: Trace + ?Sized> Trace for Box<T> {
    fn begin(&mut self, batch: &Batch) {
        (**self).begin(batch);
    }

    fn before(&mut self, at: At) {
        (**self).before(at);
    }

    fn after(&mut self, at: At, work: Work) {
        (**self).after(at, work);
    }

    fn wants(&self, at: At) -> bool {
        (**self).wants(at)
    }

    fn act(&mut self, at: At, act: Act, values: &[f32]) {
        (**self).act(at, act, values);
    }

    fn routes(&mut self, at: At, routes: &Routes) {
        (**self).routes(at, routes);
    }

    fn picks(&mut self, at: At, blocks: &[Vec<u32>]) {
        (**self).picks(at, blocks);
    }

    fn logits(&mut self, at: At, rows: &[u32], values: &[f32]) {
        (**self).logits(at, rows, values);
    }
}

/// A device whose results a sink sees.
#[derive(Debug)]
pub struct Traced<D, T> {
    /// The device.
    pub device: D,
    /// The sink.
    pub trace: T,
    place: Place,
    rows: usize,
}

impl<D: Device, T: Trace> Traced<D, T> {
    /// Shows the results of `device` to `trace`.
    pub fn new(device: D, trace: T) -> Self {
        Self { device, trace, place: Place::Embed, rows: 0 }
    }

    fn at(&self, verb: Verb) -> At {
        At { verb, place: self.place }
    }

    /// Calls the device, and tells the sink before and after.
    fn call<R>(&mut self, verb: Verb, run: impl FnOnce(&mut D) -> Result<R>) -> Result<R> {
        self.work(verb, Work::default(), run)
    }

    fn project<R>(
        &mut self,
        verb: Verb,
        x: Act,
        out: Act,
        run: impl FnOnce(&mut D) -> Result<R>,
    ) -> Result<R> {
        let work = Work { inputs: x.width, outputs: out.width, ..Work::default() };
        self.work(verb, work, run)
    }

    fn work<R>(
        &mut self,
        verb: Verb,
        work: Work,
        run: impl FnOnce(&mut D) -> Result<R>,
    ) -> Result<R> {
        let at = self.at(verb);
        self.trace.before(at);
        let result = run(&mut self.device);
        self.trace.after(at, Work { rows: self.rows, ..work });
        result
    }

    fn show(&mut self, verb: Verb, acts: &[Act]) -> Result<()> {
        let at = self.at(verb);
        if self.trace.wants(at) {
            for &act in acts {
                let values = self.device.fetch(act)?;
                self.trace.act(at, act, &values);
            }
        }
        Ok(())
    }
}

impl<D: Device, T: Trace> Device for Traced<D, T> {
    type Matrix = D::Matrix;
    type Vector = D::Vector;
    type Bank = D::Bank;

    fn name(&self) -> &'static str {
        self.device.name()
    }

    fn kv_numbers(&self) -> &'static str {
        self.device.kv_numbers()
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<D::Matrix> {
        self.device.matrix(matrix)
    }

    fn vector(&mut self, values: &[f32]) -> Result<D::Vector> {
        self.device.vector(values)
    }

    fn act(&mut self, width: usize) -> Act {
        self.device.act(width)
    }

    fn picks(&mut self, blocks: usize) -> Picks {
        self.device.picks(blocks)
    }

    fn row_lane(&mut self, width: usize, history: usize) -> RowLane {
        self.device.row_lane(width, history)
    }

    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane {
        self.device.delta_lane(spec)
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        self.device.kv_lane(spec)
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        self.device.allocate(limits)
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<D::Bank> {
        self.device.bank(slots, layouts)
    }

    fn memory(&self) -> Vec<(&'static str, usize)> {
        self.device.memory()
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        self.device.reset_slot(slot)
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        self.device.copy_slot(from, to)
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        self.device.save_slot(slot, out)
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        self.device.load_slot(slot, bytes)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        self.device.copy_page(from, to)
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        self.device.save_page(page, out)
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        self.device.load_page(page, bytes)
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        self.device.settle(slot, rows)
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        self.rows = batch.rows();
        self.trace.begin(batch);
        self.device.begin(batch)
    }

    fn enter(&mut self, place: Place) {
        self.place = place;
        self.device.enter(place);
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        self.device.put(x, values)
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        self.device.fetch(x)
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        self.device.fetch_picks(picks)
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        self.device.put_picks(picks, blocks)
    }

    fn embed(&mut self, table: &D::Matrix, out: Act) -> Result<()> {
        self.call(Verb::Embed, |d| d.embed(table, out))?;
        self.show(Verb::Embed, &[out])
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        self.call(Verb::Repeat, |d| d.repeat(x, out))?;
        self.show(Verb::Repeat, &[out])
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        self.call(Verb::AddRepeat, |d| d.add_repeat(x, stream))?;
        self.show(Verb::AddRepeat, &[stream])
    }

    fn norm(&mut self, w: &D::Vector, groups: usize, x: Act, out: Act) -> Result<()> {
        self.call(Verb::Norm, |d| d.norm(w, groups, x, out))?;
        self.show(Verb::Norm, &[out])
    }

    fn linear(&mut self, w: &D::Matrix, x: Act, out: Act) -> Result<()> {
        self.project(Verb::Linear, x, out, |d| d.linear(w, x, out))?;
        self.show(Verb::Linear, &[out])
    }

    fn linear_streams(&mut self, w: &D::Matrix, x: Act, out: Act) -> Result<()> {
        self.project(Verb::LinearStreams, x, out, |d| d.linear_streams(w, x, out))?;
        self.show(Verb::LinearStreams, &[out])
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<D::Matrix, D::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.call(Verb::HyperRead, |d| d.hyper_read(w, stream, out, gate))?;
        let outputs: &[Act] = if w.inject.is_some() { &[out, gate] } else { &[out] };
        self.show(Verb::HyperRead, outputs)
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        self.call(Verb::HyperWrite, |d| d.hyper_write(y, gate, stream))?;
        self.show(Verb::HyperWrite, &[stream])
    }

    fn hyper_turn(
        &mut self,
        y: Act,
        w: &Hyper<D::Matrix, D::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        self.call(Verb::HyperTurn, |d| d.hyper_turn(y, w, stream, out, gate))?;
        let outputs: &[Act] =
            if w.inject.is_some() { &[stream, out, gate] } else { &[stream, out] };
        self.show(Verb::HyperTurn, outputs)
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &D::Vector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        self.call(Verb::ConvSilu, |d| d.conv_silu(lane, taps, kernel, x, out))?;
        self.show(Verb::ConvSilu, &[out])
    }

    fn delta(&mut self, lane: DeltaLane, w: &DeltaWeights<D::Vector>, io: DeltaIo) -> Result<()> {
        self.call(Verb::Delta, |d| d.delta(lane, w, io))?;
        self.show(Verb::Delta, &[io.out])
    }

    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<D::Vector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        self.call(Verb::KvAppend, |d| d.kv_append(lane, raw, w, k, v, index))
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<D::Vector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        self.call(Verb::Select, |d| d.select(lane, w, index, picks))?;
        let at = self.at(Verb::Select);
        if self.trace.wants(at) {
            let blocks = self.device.fetch_picks(picks)?;
            self.trace.picks(at, &blocks);
        }
        Ok(())
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<D::Vector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        self.call(Verb::Attend, |d| d.attend(lane, w, q, picks, out))?;
        self.show(Verb::Attend, &[out])
    }

    fn route(&mut self, w: &D::Matrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        let routes = self.call(Verb::Route, |d| d.route(w, k, norm, x))?;
        self.trace.routes(self.at(Verb::Route), &routes);
        Ok(routes)
    }

    fn foresee(&mut self, w: &D::Matrix, k: usize, x: Act) -> Result<Vec<u32>> {
        self.device.foresee(w, k, x)
    }

    fn experts(
        &mut self,
        bank: &D::Bank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<<D::Bank as Bank>::Ticket> {
        let work = Work { experts: wave.experts.len(), ..Work::default() };
        self.work(Verb::Experts, work, |d| d.experts(bank, wave, routes, x, parts))
    }

    fn shared_expert(&mut self, w: &Shared<D::Matrix>, x: Act, out: Act) -> Result<()> {
        self.call(Verb::SharedExpert, |d| d.shared_expert(w, x, out))?;
        self.show(Verb::SharedExpert, &[out])
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        // Only now has every wave been here.
        self.show(Verb::Experts, &[parts])?;
        self.call(Verb::Combine, |d| d.combine(routes, parts, shared, out))?;
        self.show(Verb::Combine, &[out])
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<D::Vector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        self.call(Verb::NgramAdd, |d| d.ngram_add(lane, w, key, val, stream))?;
        self.show(Verb::NgramAdd, &[stream])
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        self.call(Verb::Keep, |d| d.keep(lane, x))
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        self.call(Verb::Recall, |d| d.recall(lane, x, from, out))?;
        self.show(Verb::Recall, &[out])
    }

    fn logits(&mut self, w: &D::Matrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let values = self.call(Verb::Logits, |d| d.logits(w, x, rows))?;
        self.trace.logits(self.at(Verb::Logits), rows, &values);
        Ok(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Keep;
    use crate::reference::Reference;

    #[derive(Default)]
    struct Seen(Vec<(At, Act, Vec<f32>)>);

    impl Trace for Seen {
        fn act(&mut self, at: At, act: Act, values: &[f32]) {
            self.0.push((at, act, values.to_vec()));
        }
    }

    #[test]
    fn a_result_is_shown_with_its_verb_and_place() {
        let mut device = Traced::new(Reference::new(1e-6), Seen::default());
        let (x, stream) = (device.act(2), device.act(4));
        device.allocate(Limits { rows: 1, slots: 1, pages: 1, page_rows: 4 }).unwrap();
        let mut batch = Batch::default();
        batch.push(SlotId(0), 0, &[0], &[PageId(0)], Keep::All);
        device.begin(&batch).unwrap();
        device.put(x, &[1.0, 2.0]).unwrap();
        device.enter(Place::Layer(3));
        device.repeat(x, stream).unwrap();
        let at = At { verb: Verb::Repeat, place: Place::Layer(3) };
        assert_eq!(device.trace.0, [(at, stream, vec![1.0, 2.0, 1.0, 2.0])]);
    }
}
