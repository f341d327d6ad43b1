//! Watches the memory of the machine and gives some back, or takes it again.
//!
//! Owns: when the pool of experts is resized. Never: what a smaller pool means (see the engine).
//! Invariants: the decision is a pure function of readings; no reading changes a token.

mod governed;
mod sense;

use crate::args::{GovernorName, ModelArgs};
use crate::memory::Machine;
use crate::plan::Plan;
use cherenkov_engine::Engine;
pub use governed::Governed;
pub use sense::{Sense, System};

/// The engine, watched as the arguments say: a pool of a size that was asked for stays.
pub fn watched(
    engine: Box<dyn Engine>,
    args: &ModelArgs,
    plan: &Plan,
    machine: Machine,
) -> Box<dyn Engine> {
    let usual = if args.pool.is_some() { GovernorName::Off } else { GovernorName::On };
    if args.governor.unwrap_or(usual) == GovernorName::Off {
        return engine;
    }
    let most = machine.resident + machine.available;
    let left = most.saturating_sub(plan.parts.total());
    let slots = (plan.options.pool_slots, plan.sizes.least);
    let rules = Rules::new(slots, plan.sizes.record, left, machine.available);
    let sense = Box::new(System::watch());
    Box::new(Governed::new(engine, Governor::new(rules), sense))
}

/// What the machine says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// Bytes that can be had without pushing others out.
    pub available: u64,
    /// Share of the last ten seconds in which somebody waited for memory, in percent; `None` where the
    /// system does not tell.
    pub pressure: Option<f64>,
}

/// When the pool may be resized, and how far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Most records: what was planned.
    pub most: usize,
    /// Fewest records.
    pub least: usize,
    /// Bytes of a record.
    pub record: u64,
    /// Below this many available bytes the pool shrinks.
    pub low: u64,
    /// A pool that grows leaves at least this much available.
    pub high: u64,
}

/// Waiting for memory this much of the time is shortage, whatever is available.
const PRESSURE_HIGH: f64 = 10.0;
/// Below this much of it nobody is hurt.
const PRESSURE_LOW: f64 = 1.0;
/// Calm readings before the pool grows, and between two steps of growth.
const CALM: u32 = 8;
/// Readings after a step down for pressure before the next one: the average lags behind.
const LAG: u32 = 8;
/// The pool shrinks by at least one part in so many.
const SHRINK: usize = 8;
/// The pool grows by at most one part in so many of what was planned.
const GROW: usize = 16;

impl Rules {
    /// For a pool that was planned with `left` bytes of the machine's `total` to spare: what is
    /// usually left over is no shortage.
    pub fn new((most, least): (usize, usize), record: u64, left: u64, total: u64) -> Self {
        let low = (total / 32).min(left / 2);
        Self { most, least: least.min(most), record: record.max(1), low, high: low + low / 2 }
    }
}

/// Decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Governor {
    rules: Rules,
    slots: usize,
    /// Readings since the last one that was not calm, or since the last step of growth.
    calm: u32,
    /// Readings until pressure counts again.
    lag: u32,
}

impl Governor {
    /// Of a pool as it was planned.
    pub fn new(rules: Rules) -> Self {
        Self { rules, slots: rules.most, calm: 0, lag: 0 }
    }

    /// Records that the pool should hold after this reading, if that is another number than before.
    pub fn decide(&mut self, reading: Reading) -> Option<usize> {
        let Rules { most, least, record, low, high } = self.rules;
        self.lag = self.lag.saturating_sub(1);
        let pressed = reading.pressure.is_some_and(|p| p >= PRESSURE_HIGH) && self.lag == 0;
        let short = reading.available < low;
        let records = |bytes: u64| usize::try_from(bytes / record).unwrap_or(usize::MAX);
        let next = if short || pressed {
            (self.calm, self.lag) = (0, LAG);
            // At least as many as bring back what should be there.
            let missing = records(high.saturating_sub(reading.available)).saturating_add(1);
            let missing = if short { missing } else { 0 };
            let step = missing.max(self.slots / SHRINK).max(1);
            self.slots.saturating_sub(step).max(least)
        } else {
            let calm = reading.pressure.is_none_or(|p| p < PRESSURE_LOW);
            self.calm = if calm { self.calm + 1 } else { 0 };
            let room = records(reading.available.saturating_sub(high));
            let step = (most / GROW).max(1).min(room);
            if self.calm < CALM || self.slots == most || step == 0 {
                return None;
            }
            self.calm = 0;
            (self.slots + step).min(most)
        };
        let changed = next != self.slots;
        self.slots = next;
        changed.then_some(next)
    }

    /// Notes how many records the pool really holds.
    pub fn holds(&mut self, slots: usize) {
        self.slots = slots;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RULES: Rules = Rules { most: 160, least: 10, record: 10, low: 1000, high: 1500 };

    fn reading(available: u64, pressure: f64) -> Reading {
        Reading { available, pressure: Some(pressure) }
    }

    #[test]
    fn a_shortage_is_met_at_once_and_growth_waits_for_calm() {
        let mut governor = Governor::new(RULES);
        assert_eq!(governor.decide(reading(1000, 0.0)), None);
        // 510 bytes are missing to 1500, and one record more.
        assert_eq!(governor.decide(reading(990, 0.0)), Some(160 - 52));
        // What was given back is there; in between nothing happens, however long.
        for _ in 0..100 {
            assert_eq!(governor.decide(reading(1500, 0.0)), None);
        }
        let mut steps = Vec::new();
        for _ in 0..100 {
            steps.extend(governor.decide(reading(5000, 0.0)));
        }
        assert_eq!(steps, [118, 128, 138, 148, 158, 160]);
    }

    #[test]
    fn pressure_shrinks_step_by_step_down_to_the_least() {
        let mut governor = Governor::new(RULES);
        let mut steps = Vec::new();
        for _ in 0..1000 {
            steps.extend(governor.decide(reading(1 << 40, 30.0)));
        }
        assert_eq!(steps[..3], [140, 123, 108]);
        assert_eq!(steps.last(), Some(&10));
        // Some pressure: neither up nor down.
        assert_eq!((0..100).find_map(|_| governor.decide(reading(1 << 40, 5.0))), None);
        assert!((0..CALM).any(|_| governor.decide(reading(1 << 40, 0.5)).is_some()));
    }

    #[test]
    fn where_the_system_does_not_tell_pressure_availability_decides() {
        let mut governor = Governor::new(RULES);
        let plenty = Reading { available: 1 << 40, pressure: None };
        assert!(governor.decide(Reading { available: 0, pressure: None }).is_some());
        assert!((0..CALM).any(|_| governor.decide(plenty).is_some()));
    }

    #[test]
    fn what_is_usually_left_is_no_shortage() {
        let rules = Rules::new((100, 10), 1000, 8000, 1 << 20);
        assert_eq!((rules.low, rules.high), (4000, 6000));
        assert_eq!(Rules::new((100, 10), 1000, 0, 1 << 20).low, 0, "pressure alone decides");
        assert_eq!(Rules::new((5, 10), 0, 1 << 30, 64_000).least, 5);
        assert_eq!(Rules::new((5, 10), 0, 1 << 30, 64_000).low, 2000);
    }

    proptest! {
        /// The pool against a machine whose other programs want this and that: it stays within its
        /// bounds, never grows into a shortage, and settles when nothing changes.
        #[test]
        fn it_settles(wants in prop::collection::vec(0u64..6000, 1..8)) {
            let mut governor = Governor::new(RULES);
            for want in wants {
                let mut changes = 0;
                for _ in 0..400 {
                    let held = governor.slots as u64 * RULES.record;
                    let available = 5000u64.saturating_sub(held + want);
                    if let Some(next) = governor.decide(reading(available, 0.0)) {
                        changes += 1;
                        prop_assert!((RULES.least..=RULES.most).contains(&next));
                    }
                }
                prop_assert!(changes <= 40, "{changes} changes");
                let held = governor.slots as u64 * RULES.record;
                let available = 5000u64.saturating_sub(held + want);
                prop_assert_eq!(governor.decide(reading(available, 0.0)), None);
                prop_assert!(available >= RULES.low || governor.slots == RULES.least);
            }
        }
    }
}
