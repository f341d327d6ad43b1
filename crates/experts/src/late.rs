//! What is done about misses besides waiting for them: small records instead of whole ones, and weak
//! experts left out.
//!
//! Owns: which grade is read, when a small record gives way to a whole one, which late experts a step
//! does without. Never: reading, slots' lines (see `pool`).
//! Invariants: passes of more than [`STEP_ROWS`] rows use whole records only and leave nothing out;
//! without lookahead a record's grade follows from the requests alone; an expert is left out only
//! where the caller said that it may be.

use crate::bank::{Bank, Slot};
use crate::grade::Grade;
use crate::lookahead::Lookahead;
use crate::pool::Line;
use crate::queue::Priority;
use crate::source::ExpertKey;
use crate::waves::Experts;
use std::collections::BTreeSet;

/// Most rows of a pass that may use small records and leave out weak experts. Longer passes read a
/// record for many rows at a time, and what they get wrong stays in the context.
pub const STEP_ROWS: usize = 16;

/// One slot in so many may be giving its small record for a whole one.
const UPGRADES_PER_SLOTS: usize = 8;

/// Small records and late experts.
#[derive(Debug, Default)]
pub(crate) struct Late {
    /// Experts whose small record is giving way to the whole one, in its place.
    upgrades: BTreeSet<ExpertKey>,
    /// Experts that were left out while they were being read.
    strays: BTreeSet<ExpertKey>,
    /// Experts whose share of every row is below this may be left out.
    pub cut: f32,
}

impl Late {
    /// Forgets a read that came to its end; says whether its record is worth keeping although nobody
    /// waits for it.
    pub fn landed(&mut self, key: ExpertKey) -> bool {
        let upgrade = self.upgrades.remove(&key);
        self.strays.remove(&key) || upgrade
    }
}

impl<B: Bank> Experts<B> {
    /// Has late experts left out whose share of every row's weights is below `share`: 0 for none.
    pub fn set_cut_weak(&mut self, share: f32) {
        self.late.cut = share;
    }

    /// The share below which late experts are left out.
    pub fn cut_weak(&self) -> f32 {
        self.late.cut
    }

    /// Says that the open request can do without these experts if they are late.
    pub fn spare(&mut self, experts: &[u32]) {
        if self.asked.step {
            self.asked.weak.extend(experts);
        }
    }

    /// The experts that the last request did without, ascending.
    pub fn left_out(&self) -> impl ExactSizeIterator<Item = u32> + '_ {
        self.asked.left_out.iter().copied()
    }

    /// The grade at which a miss of the open request is read.
    pub(crate) fn miss_grade(&self) -> Grade {
        if self.asked.step && self.layouts.low.is_some() { Grade::Low } else { Grade::Full }
    }

    /// An expert of the open request is in memory: it is used as it is, but a pass that is no step
    /// has small records read anew.
    pub(crate) fn found(&mut self, key: ExpertKey, slot: Slot) {
        let low = self.pool.grade(slot) == Grade::Low;
        if low && !self.asked.step {
            self.visit.misses += 1;
            self.tally.expert(key).misses += 1;
            self.tally.layer(key.layer).misses += 1;
            self.read_anew(key, slot);
            return;
        }
        if low {
            self.asked.again.insert(key.expert);
            self.tally.layer(key.layer).low_hits += 1;
        }
        self.pool.put(slot, Line::Pinned);
        self.asked.ready.push_back((key.expert, slot));
        self.tally.expert(key).hits += 1;
        self.tally.layer(key.layer).hits += 1;
    }

    /// The record of an expert that the open request waits for has landed. A small one that a step had
    /// asked for does not do for a longer pass.
    pub(crate) fn arrived(&mut self, key: ExpertKey, slot: Slot) {
        if self.pool.grade(slot) == Grade::Low && !self.asked.step {
            self.read_anew(key, slot);
        } else {
            self.pool.put(slot, Line::Pinned);
            self.asked.ready.push_back((key.expert, slot));
        }
    }

    /// Reads the whole record into the slot of the small one; the open request waits for it.
    fn read_anew(&mut self, key: ExpertKey, slot: Slot) {
        self.pool.put(slot, Line::Loading);
        self.asked.awaited.push(key.expert);
        self.tally.layer(key.layer).upgrades += 1;
        self.submit(Priority::Demand, key, Grade::Full, slot);
    }

    /// Takes back the read of a whole record that has not begun: the small one is still in its place.
    pub(crate) fn take_back(&mut self, key: ExpertKey, slot: Slot) -> bool {
        if !self.late.upgrades.contains(&key) {
            return false;
        }
        let Some(landing) = self.reads.cancel(key) else { return false };
        self.late.upgrades.remove(&key);
        self.bank.withdraw(slot, landing);
        self.tally.layer(key.layer).upgrades -= 1;
        true
    }

    /// Begins to read the whole record of an expert into the slot of its small one, which has just
    /// been used for the second time or more. Says whether it did: not while the step still waits,
    /// and few at a time.
    pub(crate) fn upgrade(&mut self, key: ExpertKey, slot: Slot) -> bool {
        let most = (self.reads.width() / 2).max(1).min(self.pool.slots() / UPGRADES_PER_SLOTS);
        let busy = !self.asked.rest.is_empty() || !self.asked.awaited.is_empty();
        let wanted = self.asked.step && self.asked.again.contains(&key.expert);
        let off = self.width.mode() == Lookahead::Off;
        if off || busy || !wanted || self.late.upgrades.len() >= most {
            return false;
        }
        self.pool.put(slot, Line::Loading);
        self.late.upgrades.insert(key);
        self.tally.layer(key.layer).upgrades += 1;
        self.submit(Priority::Lookahead, key, Grade::Full, slot);
        true
    }

    /// Does without the weak experts of the open request that are not there. Reads that have not begun
    /// are taken back; the record of one under way is kept when it lands.
    pub(crate) fn leave_out_late(&mut self) {
        let Some(layer) = self.asked.layer else { return };
        let weak = std::mem::take(&mut self.asked.weak);
        for &expert in &weak {
            let key = ExpertKey { layer, expert };
            if let Some(at) = self.asked.rest.iter().position(|e| *e == expert) {
                self.asked.rest.remove(at);
            } else if let Some(at) = self.asked.awaited.iter().position(|e| *e == expert) {
                self.asked.awaited.swap_remove(at);
                let (slot, _) = self.pool.find(key).expect("a record on its way has a slot");
                if let Some(landing) = self.reads.cancel(key) {
                    self.bank.withdraw(slot, landing);
                    self.pool.clear(slot);
                } else {
                    self.late.strays.insert(key);
                }
            } else {
                continue;
            }
            self.asked.left_out.insert(expert);
            self.tally.layer(layer).left_out += 1;
        }
        // Their slots are free for others.
        self.pump();
    }
}
