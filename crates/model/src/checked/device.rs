//! The verbs of a checked device.
//!
//! Owns: running both devices in step. Never: what counts as agreement (see [`Checked`]).

use super::{Checked, Oracle, Pair, PairBank, Split, Verb};
use crate::batch::Batch;
use crate::device::{
    Act, AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Device, Hyper, KvLane, Limits, PageId,
    Picks, Place, PleWeights, Recall, Routes, RowLane, Shared, SlotId, TopkNorm,
};
use crate::error::{Error, Result};
use cherenkov_experts::{Bank, Layouts, Wave};
use cherenkov_format::Matrix;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};

/// Handles count up from 0 on every device, so both give out the same ones.
fn same<T: PartialEq + std::fmt::Debug>(fast: T, oracle: T) -> T {
    assert_eq!(fast, oracle, "both devices count handles alike");
    fast
}

/// Appends the bytes of both devices, each behind its length.
fn save_both(
    out: &mut Vec<u8>,
    fast: impl FnOnce(&mut Vec<u8>) -> Result<()>,
    oracle: impl FnOnce(&mut Vec<u8>) -> Result<()>,
) -> Result<()> {
    let mut part = Vec::new();
    fast(&mut part)?;
    out.extend((part.len() as u64).to_le_bytes());
    out.append(&mut part);
    oracle(&mut part)?;
    out.extend((part.len() as u64).to_le_bytes());
    out.append(&mut part);
    Ok(())
}

/// The first part of bytes of [`save_both`], and what follows it.
fn part(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_at_checked(8)?;
    let len = u64::from_le_bytes(len.try_into().ok()?);
    rest.split_at_checked(usize::try_from(len).ok()?)
}

/// The two parts of bytes of [`save_both`].
fn parts(bytes: &[u8]) -> Result<(&[u8], &[u8])> {
    let both = part(bytes).and_then(|(fast, rest)| Some((fast, part(rest)?)));
    match both {
        Some((fast, (oracle, []))) => Ok((fast, oracle)),
        _ => Err(Error::State {
            found: format!("{} bytes", bytes.len()),
            expected: "two parts, each behind its length".to_owned(),
        }),
    }
}

impl<F: Device, R: Oracle> Device for Checked<F, R>
where
    F::Matrix: Clone,
    F::Vector: Clone,
    R::Matrix: Clone,
    R::Vector: Clone,
{
    type Matrix = Pair<F::Matrix, R::Matrix>;
    type Vector = Pair<F::Vector, R::Vector>;
    type Bank = PairBank<F::Bank, R::Bank>;

    fn name(&self) -> &'static str {
        self.fast.name()
    }

    fn kv_numbers(&self) -> &'static str {
        self.fast.kv_numbers()
    }

    fn matrix(&mut self, matrix: Matrix) -> Result<Self::Matrix> {
        Ok(Pair { fast: self.fast.matrix(matrix.clone())?, oracle: self.oracle.matrix(matrix)? })
    }

    fn vector(&mut self, values: &[f32]) -> Result<Self::Vector> {
        Ok(Pair { fast: self.fast.vector(values)?, oracle: self.oracle.vector(values)? })
    }

    fn act(&mut self, width: usize) -> Act {
        same(self.fast.act(width), self.oracle.act(width))
    }

    fn picks(&mut self, blocks: usize) -> Picks {
        same(self.fast.picks(blocks), self.oracle.picks(blocks))
    }

    fn row_lane(&mut self, width: usize, history: usize) -> RowLane {
        same(self.fast.row_lane(width, history), self.oracle.row_lane(width, history))
    }

    fn delta_lane(&mut self, spec: &Delta) -> DeltaLane {
        same(self.fast.delta_lane(spec), self.oracle.delta_lane(spec))
    }

    fn kv_lane(&mut self, spec: &Attention) -> KvLane {
        same(self.fast.kv_lane(spec), self.oracle.kv_lane(spec))
    }

    fn allocate(&mut self, limits: Limits) -> Result<()> {
        self.fast.allocate(limits)?;
        self.oracle.allocate(limits)
    }

    fn bank(&mut self, slots: usize, layouts: &Layouts) -> Result<Self::Bank> {
        Ok(PairBank {
            fast: self.fast.bank(slots, layouts)?,
            oracle: self.oracle.bank(slots, layouts)?,
        })
    }

    fn memory(&self) -> Vec<(&'static str, usize)> {
        self.fast.memory()
    }

    fn reset_slot(&mut self, slot: SlotId) -> Result<()> {
        self.fast.reset_slot(slot)?;
        self.oracle.reset_slot(slot)
    }

    fn copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        self.fast.copy_slot(from, to)?;
        self.oracle.copy_slot(from, to)
    }

    fn save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        let (fast, oracle) = (&mut self.fast, &mut self.oracle);
        save_both(out, |out| fast.save_slot(slot, out), |out| oracle.save_slot(slot, out))
    }

    fn load_slot(&mut self, slot: SlotId, bytes: &[u8]) -> Result<()> {
        let (fast, oracle) = parts(bytes)?;
        self.fast.load_slot(slot, fast)?;
        self.oracle.load_slot(slot, oracle)
    }

    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        self.fast.copy_page(from, to)?;
        self.oracle.copy_page(from, to)
    }

    fn save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        let (fast, oracle) = (&mut self.fast, &mut self.oracle);
        save_both(out, |out| fast.save_page(page, out), |out| oracle.save_page(page, out))
    }

    fn load_page(&mut self, page: PageId, bytes: &[u8]) -> Result<()> {
        let (fast, oracle) = parts(bytes)?;
        self.fast.load_page(page, fast)?;
        self.oracle.load_page(page, oracle)
    }

    fn settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        self.fast.settle(slot, rows)?;
        self.oracle.settle(slot, rows)
    }

    fn begin(&mut self, batch: &Batch) -> Result<()> {
        self.fast.begin(batch)?;
        self.oracle.begin(batch)
    }

    fn enter(&mut self, place: Place) {
        self.place = place;
        self.fast.enter(place);
        self.oracle.enter(place);
    }

    fn put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        self.fast.put(x, values)?;
        self.oracle.put(x, values)
    }

    fn fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        self.fast.fetch(x)
    }

    fn fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        self.fast.fetch_picks(picks)
    }

    fn put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        self.fast.put_picks(picks, blocks)?;
        self.oracle.put_picks(picks, blocks)
    }

    fn embed(&mut self, table: &Self::Matrix, out: Act) -> Result<()> {
        self.fast.embed(&table.fast, out)?;
        self.oracle.embed(&table.oracle, out)?;
        self.agree(Verb::Embed, out)
    }

    fn repeat(&mut self, x: Act, out: Act) -> Result<()> {
        self.fast.repeat(x, out)?;
        self.oracle.repeat(x, out)?;
        self.agree(Verb::Repeat, out)
    }

    fn add_repeat(&mut self, x: Act, stream: Act) -> Result<()> {
        self.fast.add_repeat(x, stream)?;
        self.oracle.add_repeat(x, stream)?;
        self.agree(Verb::AddRepeat, stream)
    }

    fn norm(&mut self, w: &Self::Vector, groups: usize, x: Act, out: Act) -> Result<()> {
        self.fast.norm(&w.fast, groups, x, out)?;
        self.oracle.norm(&w.oracle, groups, x, out)?;
        self.agree(Verb::Norm, out)
    }

    fn linear(&mut self, w: &Self::Matrix, x: Act, out: Act) -> Result<()> {
        self.fast.linear(&w.fast, x, out)?;
        self.oracle.linear(&w.oracle, x, out)?;
        self.agree_product(Verb::Linear, &w.oracle, x, out)
    }

    fn linear_streams(&mut self, w: &Self::Matrix, x: Act, out: Act) -> Result<()> {
        self.fast.linear_streams(&w.fast, x, out)?;
        self.oracle.linear_streams(&w.oracle, x, out)?;
        self.agree_product(Verb::LinearStreams, &w.oracle, x, out)
    }

    fn hyper_read(
        &mut self,
        w: &Hyper<Self::Matrix, Self::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.hyper_read(&fast, stream, out, gate)?;
        self.oracle.hyper_read(&oracle, stream, out, gate)?;
        self.agree(Verb::HyperRead, out)?;
        if w.inject.is_some() { self.agree(Verb::HyperRead, gate) } else { Ok(()) }
    }

    fn hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        self.fast.hyper_write(y, gate, stream)?;
        self.oracle.hyper_write(y, gate, stream)?;
        self.agree(Verb::HyperWrite, stream)
    }

    fn hyper_turn(
        &mut self,
        y: Act,
        w: &Hyper<Self::Matrix, Self::Vector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.hyper_turn(y, &fast, stream, out, gate)?;
        self.oracle.hyper_turn(y, &oracle, stream, out, gate)?;
        self.agree(Verb::HyperTurn, stream)?;
        self.agree(Verb::HyperTurn, out)?;
        if w.inject.is_some() { self.agree(Verb::HyperTurn, gate) } else { Ok(()) }
    }

    fn conv_silu(
        &mut self,
        lane: RowLane,
        taps: &Self::Vector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        self.fast.conv_silu(lane, &taps.fast, kernel, x, out)?;
        self.oracle.conv_silu(lane, &taps.oracle, kernel, x, out)?;
        self.agree(Verb::ConvSilu, out)
    }

    fn delta(
        &mut self,
        lane: DeltaLane,
        w: &DeltaWeights<Self::Vector>,
        io: DeltaIo,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.delta(lane, &fast, io)?;
        self.oracle.delta(lane, &oracle, io)?;
        self.agree(Verb::Delta, io.out)
    }

    fn kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<Self::Vector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.kv_append(lane, raw, &fast, k, v, index)?;
        self.oracle.kv_append(lane, raw, &oracle, k, v, index)
    }

    fn select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Self::Vector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.select(lane, &fast, index, picks)?;
        self.oracle.select(lane, &oracle, index, picks)?;
        self.agree_picks(lane, &oracle, index, picks)
    }

    fn attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<Self::Vector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.attend(lane, &fast, q, picks, out)?;
        self.oracle.attend(lane, &oracle, q, picks, out)?;
        self.agree(Verb::Attend, out)
    }

    fn route(&mut self, w: &Self::Matrix, k: usize, norm: TopkNorm, x: Act) -> Result<Routes> {
        let found = self.fast.route(&w.fast, k, norm, x)?;
        let expected = self.oracle.route(&w.oracle, k, norm, x)?;
        self.agree_routes(&w.oracle, norm, x, &found, &expected)?;
        Ok(found)
    }

    fn foresee(&mut self, w: &Self::Matrix, k: usize, x: Act) -> Result<Vec<u32>> {
        self.fast.foresee(&w.fast, k, x)
    }

    fn experts(
        &mut self,
        bank: &Self::Bank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<<Self::Bank as Bank>::Ticket> {
        let fast = self.fast.experts(&bank.fast, wave, routes, x, parts)?;
        let oracle = self.oracle.experts(&bank.oracle, wave, routes, x, parts)?;
        self.agree_wave(wave, routes, parts)?;
        Ok((fast, oracle))
    }

    fn shared_expert(&mut self, w: &Shared<Self::Matrix>, x: Act, out: Act) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.shared_expert(&fast, x, out)?;
        self.oracle.shared_expert(&oracle, x, out)?;
        self.agree(Verb::SharedExpert, out)
    }

    fn combine(&mut self, routes: &Routes, parts: Act, shared: Act, out: Act) -> Result<()> {
        self.fast.combine(routes, parts, shared, out)?;
        self.oracle.combine(routes, parts, shared, out)?;
        self.agree(Verb::Combine, out)
    }

    fn ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<Self::Vector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        let (fast, oracle) = w.split();
        self.fast.ngram_add(lane, &fast, key, val, stream)?;
        self.oracle.ngram_add(lane, &oracle, key, val, stream)?;
        self.agree(Verb::NgramAdd, stream)
    }

    fn keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        self.fast.keep(lane, x)?;
        self.oracle.keep(lane, x)
    }

    fn recall(&mut self, lane: RowLane, x: Act, from: &[Recall], out: Act) -> Result<()> {
        self.fast.recall(lane, x, from, out)?;
        self.oracle.recall(lane, x, from, out)?;
        self.agree(Verb::Recall, out)
    }

    fn logits(&mut self, w: &Self::Matrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let found = self.fast.logits(&w.fast, x, rows)?;
        let expected = self.oracle.logits(&w.oracle, x, rows)?;
        self.close_product(Verb::Logits, &w.oracle, x, rows, (&found, &expected))?;
        Ok(found)
    }
}
