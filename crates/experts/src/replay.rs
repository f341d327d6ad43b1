//! How a policy would have done on recorded routes.
//!
//! Owns: the replay, and the policy that knows the future. Never: files, time.
//! Invariant: the replay runs the product's own pool and waves, over a bank without bytes and reads
//! that are done at once.

use crate::bank::{Bank, Slot};
use crate::error::{Error, Result};
use crate::grade::Grade;
use crate::lookahead::Lookahead;
use crate::policy::{Policy, Scans, Use};
use crate::pool::Rank;
use crate::queue::Priority;
use crate::readers::{Done, Reads};
use crate::source::{ExpertKey, Source};
use crate::stats::Counters;
use crate::trace::Trace;
use crate::waves::Experts;
use cherenkov_format::{Encoding, RecordLayout};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

/// A bank that holds nothing.
struct Hollow {
    slots: usize,
}

impl Bank for Hollow {
    type Landing = [u8; 0];
    type Ticket = ();

    fn slots(&self) -> usize {
        self.slots
    }

    fn land(&mut self, _slot: Slot) -> [u8; 0] {
        []
    }

    fn publish(&mut self, _slot: Slot, _landing: [u8; 0]) {}

    fn wait(&mut self, (): ()) {}
}

/// A source of which only the shape is known.
struct Shape {
    layout: RecordLayout,
    shape: (usize, usize),
}

impl Source for Shape {
    fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    fn shape(&self) -> (usize, usize) {
        self.shape
    }

    fn read(&self, _key: ExpertKey, _out: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

/// Reads that are done when they are asked for.
#[derive(Default)]
struct AtOnce {
    done: VecDeque<Done<[u8; 0]>>,
}

impl Reads<[u8; 0]> for AtOnce {
    fn submit(&mut self, _: Priority, key: ExpertKey, grade: Grade, landing: [u8; 0]) {
        let (queued, started, ended) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
        self.done.push_back(Done { key, grade, landing, result: Ok(()), queued, started, ended });
    }

    fn promote(&mut self, _key: ExpertKey) {}

    fn cancel(&mut self, _key: ExpertKey) -> Option<[u8; 0]> {
        None
    }

    fn poll(&mut self) -> Result<Option<Done<[u8; 0]>>> {
        Ok(self.done.pop_front())
    }

    fn wait(&mut self) -> Result<Done<[u8; 0]>> {
        self.done.pop_front().ok_or(Error::Readers)
    }

    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn width(&self) -> usize {
        1
    }
}

/// Rows of a visit that belongs to a step of decode; more are part of a prompt.
const STEP_ROWS: usize = 8;

/// What a pool would have counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// In steps of decode.
    pub steps: Counters,
    /// In prompts.
    pub prompts: Counters,
}

impl Counters {
    /// Share of the wanted experts that were in memory.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / (self.hits + self.misses).max(1) as f64
    }
}

/// What a pool of `slots` would have counted on `trace` under `policy`, without lookahead.
///
/// # Panics
/// Without slots.
pub fn replay(trace: &Trace, slots: usize, policy: Box<dyn Policy>) -> Replayed {
    let layout = RecordLayout::new(16, 16, Encoding::F32, Encoding::F32).expect("a valid layout");
    let source = Arc::new(Shape { layout, shape: (trace.layers, trace.per_layer) });
    let reads = Box::new(AtOnce::default());
    let bank = Hollow { slots };
    let experts = Experts::over(bank, source, reads, policy, Lookahead::Off);
    let mut experts = experts.expect("a replay has slots");
    let mut out = Replayed::default();
    for visit in &trace.visits {
        let before = experts.layer_counters(visit.layer);
        experts.request(visit.layer, visit.k, &visit.ids);
        experts.waves::<Error>(|_, _| Ok(())).expect("nothing can fail");
        let after = experts.layer_counters(visit.layer);
        let step = visit.ids.len() <= STEP_ROWS * visit.k;
        let sum = if step { &mut out.steps } else { &mut out.prompts };
        sum.selections += after.selections - before.selections;
        sum.hits += after.hits - before.hits;
        sum.misses += after.misses - before.misses;
    }
    out
}

/// The policy that knows the future: what is used again last goes first (Belady's optimum). No other
/// has more hits on the trace it was made for.
#[derive(Debug)]
pub struct Belady {
    /// The visits still to come in which each record is used.
    next: HashMap<ExpertKey, VecDeque<u64>>,
}

impl Belady {
    /// Knows this trace.
    pub fn new(trace: &Trace) -> Self {
        let mut next: HashMap<ExpertKey, VecDeque<u64>> = HashMap::new();
        for (at, visit) in (1..).zip(&trace.visits) {
            for &expert in &visit.ids {
                let line = next.entry(ExpertKey { layer: visit.layer, expert }).or_default();
                if line.back() != Some(&at) {
                    line.push_back(at);
                }
            }
        }
        Self { next }
    }
}

impl Policy for Belady {
    fn name(&self) -> &'static str {
        "belady"
    }

    fn scans(&self) -> Scans {
        Scans::AsOthers
    }

    fn pass(&mut self) {}

    fn used(&mut self, used: Use) {
        if let Some(line) = self.next.get_mut(&used.key) {
            line.pop_front();
        }
    }

    fn rank(&self, key: ExpertKey) -> Rank {
        let next = self.next.get(&key).and_then(VecDeque::front);
        Rank(next.map_or(0, |at| u64::MAX - at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Lru;
    use crate::trace::Routed;

    fn trace(experts: &[u32]) -> Trace {
        let visits = experts.iter().map(|&e| Routed { layer: 0, k: 1, ids: vec![e] }).collect();
        Trace { layers: 1, per_layer: 8, visits }
    }

    /// The fewest misses of any choice of victims, by trying all.
    fn fewest(experts: &[u32], slots: usize, held: &[u32]) -> u64 {
        let Some((&now, rest)) = experts.split_first() else { return 0 };
        if held.contains(&now) {
            return fewest(rest, slots, held);
        }
        let with = |mut held: Vec<u32>| {
            held.push(now);
            fewest(rest, slots, &held)
        };
        if held.len() < slots {
            return 1 + with(held.to_vec());
        }
        let without = |i| {
            let mut held = held.to_vec();
            held.remove(i);
            held
        };
        1 + (0..slots).map(|i| with(without(i))).min().expect("has slots")
    }

    #[test]
    fn nobody_beats_the_one_who_knows_the_future() {
        let mut state = 1u64;
        for _ in 0..60 {
            let experts: Vec<u32> = (0..14)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
                    (state >> 60) as u32 % 6
                })
                .collect();
            let trace = trace(&experts);
            let misses = replay(&trace, 3, Box::new(Belady::new(&trace))).steps.misses;
            assert_eq!(misses, fewest(&experts, 3, &[]), "{experts:?}");
            assert!(misses <= replay(&trace, 3, Box::new(Lru::default())).steps.misses);
        }
    }

    #[test]
    fn a_cycle_just_too_long_has_no_hit_with_lru() {
        let cycle: Vec<u32> = (0..40).map(|i| i % 4).collect();
        let got = replay(&trace(&cycle), 3, Box::new(Lru::default()));
        assert_eq!((got.steps.hits, got.steps.misses), (0, 40));
        assert!(replay(&trace(&cycle), 4, Box::new(Lru::default())).steps.misses == 4);
    }
}
