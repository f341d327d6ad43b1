//! What becomes of records that were read ahead, once the truth is known.
//!
//! Owns: telling right from wrong, what the width controller learns from it. Never: the guess, the
//! width itself (see `lookahead`).

use crate::bank::{Bank, Slot};
use crate::lookahead::{Lookahead, Origin, Outcome, scan_pays};
use crate::pool::Line;
use crate::source::ExpertKey;
use crate::waves::Experts;
use std::time::Duration;

impl<B: Bank> Experts<B> {
    /// What was read ahead turns out right or wrong: wrong reads that have not begun are taken back,
    /// and wrong records are the first to go.
    pub(crate) fn settle_ahead(&mut self, layer: u32) {
        self.ahead.plan.clear();
        let (mut landed, begun) = (0, self.ahead.begun);
        for (key, origin) in std::mem::take(&mut self.ahead.open) {
            let right = key.layer == layer && self.asked.tails.contains_key(&key.expert);
            let found = self.pool.find(key);
            landed += usize::from(matches!(found, Some((_, Line::Ahead))));
            match (found, origin) {
                (Some((slot, Line::Ahead)), Origin::There(line)) if !right => {
                    self.pool.put(slot, line);
                }
                (_, Origin::There(_)) => {}
                (found, Origin::Read(outcome)) => self.settle_read(key, found, outcome, right),
            }
        }
        if self.asked.scan && begun > 0 {
            self.window = landed;
        }
        self.ahead.begun = 0;
    }

    /// As `settle_ahead`, of one record that was read ahead.
    fn settle_read(
        &mut self,
        key: ExpertKey,
        found: Option<(Slot, Line)>,
        mut outcome: Outcome,
        right: bool,
    ) {
        let counters = self.tally.layer(key.layer);
        match found {
            Some((_, Line::Ahead)) if right => {
                counters.ahead_right += 1;
                outcome.hindered = Duration::ZERO;
            }
            Some((_, Line::Loading)) if right => {
                counters.ahead_late += 1;
                self.ahead.late.insert(key, outcome.place);
                return;
            }
            Some((slot, Line::Ahead)) => {
                counters.ahead_wasted += 1;
                outcome.saved = 0.0;
                self.pool.put(slot, Line::Spent);
            }
            Some((slot, _)) => {
                if let Some(landing) = self.reads.cancel(key) {
                    counters.ahead_cancelled += 1;
                    self.bank.withdraw(slot, landing);
                    self.pool.clear(slot);
                } else {
                    counters.ahead_wasted += 1;
                    self.ahead.stale.insert(key, outcome.place);
                }
                return;
            }
            // It made room for a demand, or its read failed.
            None => counters.ahead_wasted += 1,
        }
        self.visit.outcomes.push(outcome);
    }

    /// Notes what became of a record that was read ahead.
    pub(crate) fn learn_read(&mut self, key: ExpertKey, started: Duration, ended: Duration) {
        // The drive was shared with the reads that the step stood still for, if it did.
        let share = self.reads.width().min(self.visit.misses + 1) as u32;
        let hindered = self.stops.within(started, ended) / share;
        let saved = |wanted: Duration| {
            let before = wanted.min(ended).saturating_sub(started);
            let computed = before.saturating_sub(self.stops.within(started, wanted.min(ended)));
            let time = ended.saturating_sub(started).as_secs_f64();
            if time > 0.0 { computed.as_secs_f64() / time } else { 0.0 }
        };
        if let Some(place) = self.ahead.late.remove(&key) {
            let (saved, hindered) = (saved(self.since), Duration::ZERO);
            self.visit.outcomes.push(Outcome { place, saved, hindered });
        } else if let Some(place) = self.ahead.stale.remove(&key) {
            self.visit.outcomes.push(Outcome { place, saved: 0.0, hindered });
        } else if let Some(Origin::Read(outcome)) = self.ahead.open.get_mut(&key) {
            *outcome = Outcome { place: outcome.place, saved: saved(ended), hindered };
        }
    }

    /// Whether a scan reads on into the next layer.
    pub(crate) fn scan_on(&self, layer: u32, wanted: usize) -> bool {
        let (_, per_layer) = self.source.shape();
        let more = (layer as usize) + 1 < self.layers && self.width.mode() != Lookahead::Off;
        more && scan_pays(wanted, per_layer, self.window.max(1), self.reads.width())
    }
}
