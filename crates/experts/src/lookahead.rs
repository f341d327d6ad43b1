//! What is read before it is known to be wanted, and how much of that.
//!
//! Owns: the state of records read ahead for the coming layer, the width controller.
//! Never: reading, slots, the guess itself (the model's).
//! Invariants: the width is a pure function of what was measured; no guess changes a number.

use crate::pool::Line;
use crate::source::ExpertKey;
use std::collections::{HashMap, VecDeque};
use std::time::Duration;

/// Whether records are read before they are known to be wanted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lookahead {
    /// As far as measured times say that it pays.
    #[default]
    Auto,
    /// Never.
    Off,
    /// Always up to this many records.
    Fixed(usize),
}

/// Why a record is held for the coming layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// It was read for that.
    Read,
    /// It was there, in this line.
    There(Line),
}

/// Records of the coming layer.
#[derive(Debug, Default)]
pub(crate) struct Ahead {
    /// Guessed, best first, not looked at yet.
    pub plan: VecDeque<ExpertKey>,
    /// Held or on their way.
    pub open: HashMap<ExpertKey, Origin>,
    /// How many may be read.
    pub limit: usize,
    /// How many were.
    pub begun: usize,
}

impl Ahead {
    /// Forgets the last layer's guess and takes the next one's.
    pub fn begin(&mut self, plan: impl Iterator<Item = ExpertKey>, limit: usize) {
        self.plan.clear();
        self.plan.extend(plan);
        self.limit = limit;
        self.begun = 0;
    }
}

/// What one visit of a layer taught about the lookahead made for it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Visit {
    /// Records read ahead that were there when they were wanted.
    pub right: u32,
    /// Records read ahead that were still on their way when they were wanted.
    pub late: u32,
    /// Records read ahead in vain.
    pub wasted: u32,
    /// Records read because a step waited.
    pub misses: u32,
    /// Time the step waited for all of them.
    pub waited: Duration,
    /// Time the first of the misses waited for a reader: others' reads were in its way.
    pub queued: Duration,
    /// Time it took to make the guess.
    pub guessing: Duration,
}

/// Visits after which an observation counts half, and between two trials while the width is 0.
const MEMORY: f64 = 32.0;

/// How many records are worth reading ahead per layer.
///
/// What is gained: each record that was there would have cost a share of a wait. What is lost: the time
/// that demands spent behind lookahead reads, and the time to guess. The width grows by one while
/// clearly more is gained than lost, halves when less is, and at 0 is tried again now and then.
#[derive(Clone, Debug, PartialEq)]
pub struct Width {
    mode: Lookahead,
    width: usize,
    /// Fading sums, in seconds: gained, lost, waited; and misses behind the waits.
    gained: f64,
    lost: f64,
    waited: f64,
    misses: f64,
    /// Visits until the next trial.
    rest: u32,
}

impl Width {
    /// A width for this mode.
    pub fn new(mode: Lookahead) -> Self {
        let width = match mode {
            Lookahead::Auto => 1,
            Lookahead::Off => 0,
            Lookahead::Fixed(width) => width,
        };
        Self { mode, width, gained: 0.0, lost: 0.0, waited: 0.0, misses: 0.0, rest: MEMORY as u32 }
    }

    /// What the user asked for.
    pub fn mode(&self) -> Lookahead {
        self.mode
    }

    /// Records to read ahead for the coming layer.
    pub fn get(&self) -> usize {
        self.width
    }

    /// Learns from a visit; at most `most` records can be useful.
    pub fn learn(&mut self, visit: &Visit, most: usize) {
        if self.mode != Lookahead::Auto {
            return;
        }
        let fade = (-1.0 / MEMORY).exp2();
        for sum in [&mut self.gained, &mut self.lost, &mut self.waited, &mut self.misses] {
            *sum *= fade;
        }
        self.waited += visit.waited.as_secs_f64();
        self.misses += f64::from(visit.misses + visit.late);
        if self.width == 0 {
            self.trial();
            return;
        }
        let per_miss = if self.misses > 0.0 { self.waited / self.misses } else { 0.0 };
        self.gained += (f64::from(visit.right) + 0.5 * f64::from(visit.late)) * per_miss;
        self.lost += (visit.queued + visit.guessing).as_secs_f64();
        if self.lost > self.gained {
            self.width /= 2;
            self.rest = MEMORY as u32;
        } else if self.gained > 1.5 * self.lost {
            self.width = (self.width + 1).min(most);
        }
    }

    /// With nothing read ahead there is nothing to learn: tries again while steps wait.
    fn trial(&mut self) {
        self.rest = self.rest.saturating_sub(1);
        if self.rest == 0 && self.waited > 0.0 {
            (self.gained, self.lost, self.width) = (0.0, 0.0, 1);
            self.rest = MEMORY as u32;
        }
    }
}

/// Whether a scan should read the next layer before it is known which experts it wants: of `wanted` per
/// `experts` of this layer, as many will be wanted there. The right ones among the `window` reads that
/// fit in before are gained; the wrong ones among the `readers` under way when the truth comes out
/// are lost.
pub fn scan_pays(wanted: usize, experts: usize, window: usize, readers: usize) -> bool {
    let (right, wrong) = (wanted, experts.saturating_sub(wanted));
    right * window > wrong * readers
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn after(visits: usize, visit: Visit, most: usize) -> Width {
        let mut width = Width::new(Lookahead::Auto);
        (0..visits).for_each(|_| width.learn(&visit, most));
        width
    }

    #[test]
    fn right_guesses_widen_up_to_the_most() {
        let good = Visit { right: 3, misses: 2, waited: ms(2), ..Visit::default() };
        assert_eq!(after(100, good, 10).get(), 10);
        let costly = Visit { guessing: ms(1), ..good };
        assert_eq!(after(100, costly, 10).get(), 10, "3 ms gained, 1 ms lost");
    }

    #[test]
    fn queueing_narrows_down_to_zero() {
        let bad = Visit {
            right: 1,
            wasted: 9,
            misses: 4,
            waited: ms(4),
            queued: ms(3),
            ..Visit::default()
        };
        let mut width =
            after(200, Visit { right: 3, misses: 2, waited: ms(2), ..Visit::default() }, 16);
        let mut visits = 0;
        while width.get() > 0 {
            width.learn(&bad, 16);
            visits += 1;
            assert!(visits < 200, "never narrowed");
        }
    }

    #[test]
    fn without_waits_nothing_is_gained_and_guessing_costs() {
        let idle = Visit { right: 0, guessing: ms(1), ..Visit::default() };
        let mut width = after(5, idle, 8);
        assert_eq!(width.get(), 0);
        (0..1000).for_each(|_| width.learn(&Visit::default(), 8));
        assert_eq!(width.get(), 0, "nobody waits: nothing to try");
        let waits = Visit { misses: 3, waited: ms(3), ..Visit::default() };
        let tried = (0..200).any(|_| {
            width.learn(&waits, 8);
            width.get() > 0
        });
        assert!(tried, "steps wait: tried again");
    }

    #[test]
    fn modes_that_are_set_stay() {
        let bad = Visit { wasted: 9, misses: 4, waited: ms(4), queued: ms(9), ..Visit::default() };
        for (mode, want) in [(Lookahead::Off, 0), (Lookahead::Fixed(5), 5)] {
            let mut width = Width::new(mode);
            (0..99).for_each(|_| width.learn(&bad, 16));
            assert_eq!(width.get(), want);
        }
    }

    #[test]
    fn a_scan_reads_on_when_most_experts_are_wanted() {
        assert!(scan_pays(500, 512, 100, 4));
        assert!(scan_pays(512, 512, 1, 4));
        assert!(
            !scan_pays(60, 512, 20, 4),
            "60 of 512: 2 of 20 reads would be right, 4 in the way"
        );
        assert!(!scan_pays(500, 512, 0, 4), "no time for it");
    }
}
