//! One request for experts: what it wants and what it still has to do.
//!
//! Owns: the shape of requests and waves, how much of the pool a scan may have. Never: slots' lines,
//! reads.

use crate::bank::Slot;
use crate::grade::Grade;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

/// Rows at the end of a pass whose experts the next pass is likely to want.
const TAIL_ROWS: usize = 32;

/// Experts that are in memory together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// Layer of all of them.
    pub layer: u32,
    /// Expert ids.
    pub experts: Vec<u32>,
    /// Where each one lies, in the same order.
    pub slots: Vec<Slot>,
    /// Which of its records that is, in the same order.
    pub grades: Vec<Grade>,
}

/// What the open request still has to do.
#[derive(Default)]
pub(crate) struct Asked {
    pub layer: Option<u32>,
    /// Rows near the end that are routed to each expert.
    pub tails: HashMap<u32, u32>,
    pub scan: bool,
    /// Few rows: misses may be read at a low grade, weak experts left out.
    pub step: bool,
    /// Found in memory at a low grade.
    pub again: BTreeSet<u32>,
    /// May be left out when late.
    pub weak: BTreeSet<u32>,
    /// Were left out.
    pub left_out: BTreeSet<u32>,
    /// Pinned and not presented yet.
    pub ready: VecDeque<(u32, Slot)>,
    /// On their way.
    pub awaited: Vec<u32>,
    /// Without a slot.
    pub rest: VecDeque<u32>,
}

/// Slots of a pool that a scan may fill: a quarter, at least enough to keep the readers busy, at most
/// two layers (the one at work and the next).
pub(crate) fn ring(slots: usize, per_layer: usize, readers: usize) -> usize {
    (slots / 4).max(2 * readers).min(2 * per_layer).min(slots)
}

/// Rows routed to an expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Rows {
    pub all: u32,
    /// Of those, near the end.
    pub tail: u32,
}

pub(crate) fn count(k: usize, ids: &[u32]) -> BTreeMap<u32, Rows> {
    let mut wanted: BTreeMap<u32, Rows> = BTreeMap::new();
    let far = (ids.len() / k.max(1)).saturating_sub(TAIL_ROWS) * k;
    for (at, &expert) in ids.iter().enumerate() {
        let rows = wanted.entry(expert).or_default();
        rows.all += 1;
        rows.tail += u32::from(at >= far);
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_near_the_end_are_counted_by_themselves() {
        let ids: Vec<u32> = (0..2 * (TAIL_ROWS as u32 + 3)).map(|i| u32::from(i >= 6)).collect();
        let got = count(2, &ids);
        let tail = 2 * TAIL_ROWS as u32;
        assert_eq!(got[&0], Rows { all: 6, tail: 0 });
        assert_eq!(got[&1], Rows { all: tail, tail });
        assert_eq!(count(4, &[]).len(), 0);
    }

    #[test]
    fn a_ring_fits_the_pool_and_keeps_the_readers_busy() {
        for (slots, per_layer, readers, want) in [
            (1, 512, 4, 1),
            (6, 512, 4, 6),
            (20, 512, 4, 8),
            (1000, 512, 4, 250),
            (9000, 512, 4, 1024),
        ] {
            assert_eq!(ring(slots, per_layer, readers), want);
        }
    }
}
