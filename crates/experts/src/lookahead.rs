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
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Origin {
    /// It was read for that. What became of the read is known once it has landed.
    Read(Outcome),
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
    /// Wanted before they had landed: the place of each.
    pub late: HashMap<ExpertKey, usize>,
    /// Turned out wrong before they had landed: the place of each.
    pub stale: HashMap<ExpertKey, usize>,
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

/// What became of a record that was read ahead.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Outcome {
    /// Its place in the order of reads: 0 is the likeliest.
    pub place: usize,
    /// The part of its read that took place while the step computed, before it was wanted; 0 when
    /// nobody wanted it.
    pub saved: f64,
    /// How long it held up reads that a step stood still for; 0 when it was wanted, since then it only
    /// came before its turn.
    pub hindered: Duration,
}

/// The latest times that steps stood still.
#[derive(Debug, Default)]
pub(crate) struct Stops(VecDeque<(Duration, Duration)>);

/// Stops that are remembered: a read lasts no more than a few layers.
const STOPS: usize = 64;

impl Stops {
    /// Notes one.
    pub fn push(&mut self, from: Duration, to: Duration) {
        if self.0.len() == STOPS {
            self.0.pop_front();
        }
        self.0.push_back((from, to));
    }

    /// How much of a stretch of time was spent standing still.
    pub fn within(&self, from: Duration, to: Duration) -> Duration {
        let shared = |(a, b): &(Duration, Duration)| to.min(*b).saturating_sub(from.max(*a));
        self.0.iter().map(shared).sum()
    }
}

/// What one visit of a layer taught.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Visit {
    /// What became of records that were read ahead.
    pub outcomes: Vec<Outcome>,
    /// Records that the step waited for.
    pub misses: usize,
    /// Time it waited for all of them.
    pub waited: Duration,
    /// Time it took to make the guess for the next layer.
    pub guessing: Duration,
}

/// Visits after which an observation counts half.
const MEMORY: f64 = 128.0;
/// Visits after which a place that did not pay is tried again.
const TRIAL: u32 = 512;
/// What a wrong record costs by having taken a slot, as a part of a miss.
const INTRUSION: f64 = 0.1;

/// Fading sums of what reading ahead brought at one place, in seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Balance {
    gained: f64,
    lost: f64,
    /// Visits since it last paid.
    idle: u32,
}

impl Balance {
    fn pays(&self) -> bool {
        self.gained >= self.lost
    }
}

/// How many records are worth reading ahead per layer.
///
/// Gained is what a miss makes a step wait, as far as the read took place while the step computed: what
/// is read while it stands still is only read earlier than something else. Lost is the time for which
/// wrong reads held up others that a step stood still for. Both are kept for each place in the order of
/// likelihood, and the width ends before the first place that does not pay. It is 0 when all of them
/// together bring less than guessing costs. What does not pay is tried again now and then.
#[derive(Clone, Debug, PartialEq)]
pub struct Width {
    mode: Lookahead,
    places: Vec<Balance>,
    /// Fading sums: seconds waited, misses waited for, seconds of guessing.
    waited: f64,
    misses: f64,
    guessing: f64,
    /// Visits for which guessing has not paid.
    idle: u32,
}

impl Width {
    /// A width for this mode.
    pub fn new(mode: Lookahead) -> Self {
        Self { mode, places: Vec::new(), waited: 0.0, misses: 0.0, guessing: 0.0, idle: 0 }
    }

    /// What the user asked for.
    pub fn mode(&self) -> Lookahead {
        self.mode
    }

    /// Records to read ahead for the coming layer.
    pub fn get(&self) -> usize {
        match self.mode {
            Lookahead::Off => 0,
            Lookahead::Fixed(width) => width,
            // Who never waits has nothing to gain.
            Lookahead::Auto if self.idle > 0 || self.waited == 0.0 => 0,
            // One more than is known to pay: the only way to know.
            Lookahead::Auto => {
                let paying = self.places.iter().take_while(|place| place.pays()).count();
                paying + usize::from(paying == self.places.len())
            }
        }
    }

    /// Learns from a visit.
    pub fn learn(&mut self, visit: &Visit) {
        if self.mode != Lookahead::Auto {
            return;
        }
        self.fade();
        self.waited += visit.waited.as_secs_f64();
        self.misses += visit.misses as f64;
        self.guessing += visit.guessing.as_secs_f64();
        let per_miss = if self.misses > 0.0 { self.waited / self.misses } else { 0.0 };
        for outcome in &visit.outcomes {
            if outcome.place >= self.places.len() {
                self.places.resize(outcome.place + 1, Balance::default());
            }
            let place = &mut self.places[outcome.place];
            place.gained += outcome.saved * per_miss;
            place.lost += outcome.hindered.as_secs_f64();
            if outcome.saved == 0.0 {
                place.lost += INTRUSION * per_miss;
            }
        }
        let gained: f64 = self.places.iter().map(|place| place.gained - place.lost).sum();
        // No more can be gained than is waited; a few outcomes say more than the first one.
        let vain = self.waited < self.guessing || (self.places.len() > 1 && gained < self.guessing);
        if self.idle > 0 || vain {
            self.idle = if self.idle < TRIAL { self.idle + 1 } else { 0 };
            if self.idle == 0 {
                (self.guessing, self.places) = (0.0, Vec::new());
            }
        }
    }

    fn fade(&mut self) {
        let fade = (-1.0 / MEMORY).exp2();
        let Self { waited, misses, guessing, .. } = self;
        for sum in [waited, misses, guessing] {
            *sum *= fade;
        }
        for place in &mut self.places {
            place.gained *= fade;
            place.lost *= fade;
            place.idle = if place.pays() { 0 } else { place.idle + 1 };
            if place.idle >= TRIAL {
                *place = Balance::default();
            }
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

    fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    /// A step that waits 100 us for each of 4 misses; of the records read ahead the first `right` save
    /// their whole read, the others hinder for `hindered`.
    fn after(visits: usize, right: usize, hindered: Duration, guessing: Duration) -> Width {
        let mut width = Width::new(Lookahead::Auto);
        for _ in 0..visits {
            let outcome = |place| {
                let good = place < right;
                let hindered = if good { Duration::ZERO } else { hindered };
                Outcome { place, saved: f64::from(u8::from(good)), hindered }
            };
            let outcomes: Vec<Outcome> = (0..width.get()).map(outcome).collect();
            let guessing = if outcomes.is_empty() { Duration::ZERO } else { guessing };
            let visit = Visit { outcomes, misses: 4, waited: us(400), guessing };
            width.learn(&visit);
        }
        width
    }

    #[test]
    fn the_width_ends_where_reading_ahead_no_longer_pays() {
        assert_eq!(after(50, 3, us(50), us(5)).get(), 3);
        assert_eq!(after(50, 6, us(50), us(5)).get(), 6);
        assert_eq!(after(50, 0, us(50), us(5)).get(), 0);
    }

    #[test]
    fn guessing_must_pay_as_a_whole() {
        assert_eq!(after(50, 2, us(50), us(100)).get(), 2);
        assert_eq!(after(50, 2, us(50), us(300)).get(), 0);
    }

    #[test]
    fn what_did_not_pay_is_tried_again_rarely() {
        let mut width = after(50, 0, us(50), us(5));
        let waits = Visit { misses: 4, waited: us(400), ..Visit::default() };
        let mut tries = 0;
        for _ in 0..4 * TRIAL {
            width.learn(&waits);
            if width.get() > 0 {
                tries += 1;
                let outcomes = vec![Outcome { place: 0, saved: 0.0, hindered: us(50) }];
                width.learn(&Visit { outcomes, guessing: us(5), ..waits.clone() });
            }
        }
        assert!((1..=8).contains(&tries), "{tries} tries in {} visits", 4 * TRIAL);
    }

    #[test]
    fn who_does_not_wait_does_not_read_ahead() {
        let mut width = Width::new(Lookahead::Auto);
        for _ in 0..100 {
            width.learn(&Visit::default());
            assert_eq!(width.get(), 0);
        }
    }

    #[test]
    fn late_reads_gain_what_was_over() {
        let with = |saved: f64| {
            let mut width = Width::new(Lookahead::Auto);
            for _ in 0..50 {
                let outcome = Outcome { place: 0, saved, hindered: us(20) };
                let outcomes = if width.get() > 0 { vec![outcome] } else { Vec::new() };
                let (misses, waited) = (1, us(100));
                width.learn(&Visit { outcomes, misses, waited, ..Visit::default() });
            }
            width.places[0].pays()
        };
        assert!(with(0.3), "30 us gained, 20 us lost");
        assert!(!with(0.1));
    }

    #[test]
    fn stops_within_a_stretch_are_summed() {
        let mut stops = Stops::default();
        for at in 0..100 {
            stops.push(us(100 * at + 10), us(100 * at + 40));
        }
        assert_eq!(stops.within(us(9_720), us(9_925)), us(20 + 30 + 15));
        assert_eq!(stops.within(us(9_940), us(9_990)), us(0));
        assert_eq!(stops.within(us(0), us(500)), us(0), "forgotten");
    }

    #[test]
    fn modes_that_are_set_stay() {
        let outcomes = vec![Outcome { place: 0, saved: 0.0, hindered: us(900) }];
        let guessing = us(100);
        let bad = Visit { outcomes, misses: 4, waited: us(400), guessing };
        for (mode, want) in [(Lookahead::Off, 0), (Lookahead::Fixed(5), 5)] {
            let mut width = Width::new(mode);
            (0..99).for_each(|_| width.learn(&bad));
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
