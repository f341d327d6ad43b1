//! Which records are worth keeping.
//!
//! Owns: the seam [`Policy`] and the policies that know the past only. Never: slots (see `pool`),
//! numbers of a model.
//! Invariant: a record's rank changes only when the record is used, so that ranks can be kept sorted.

use crate::pool::Rank;
use crate::source::ExpertKey;
use std::collections::HashMap;

/// A use of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Use {
    /// Which record.
    pub key: ExpertKey,
    /// Rows routed to it that say something about coming steps: all rows of a decode step, the last
    /// ones of a prompt.
    pub rows: u32,
}

/// What becomes of the records of a pass that wants more than the pool can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scans {
    /// They go through a ring, and what others keep stays.
    Ring,
    /// They are treated as those of any pass.
    AsOthers,
}

/// Says how long records are to be kept.
pub trait Policy: Send {
    /// Short name for tables.
    fn name(&self) -> &'static str;

    /// How large passes are treated.
    fn scans(&self) -> Scans {
        Scans::Ring
    }

    /// A pass over the layers begins.
    fn pass(&mut self);

    /// A record is used, resident or not.
    fn used(&mut self, used: Use);

    /// What the record is worth now. Between two uses of the record the answer is the same.
    fn rank(&self, key: ExpertKey) -> Rank;
}

/// Least recently used goes first.
#[derive(Debug, Default)]
pub struct Lru {
    clock: u64,
    last: HashMap<ExpertKey, u64>,
}

impl Policy for Lru {
    fn name(&self) -> &'static str {
        "lru"
    }

    fn scans(&self) -> Scans {
        Scans::AsOthers
    }

    fn pass(&mut self) {}

    fn used(&mut self, used: Use) {
        if used.rows > 0 {
            self.clock += 1;
            self.last.insert(used.key, self.clock);
        }
    }

    fn rank(&self, key: ExpertKey) -> Rank {
        Rank(self.last.get(&key).copied().unwrap_or(0))
    }
}

/// Recency and frequency in one number: every use counts `rows`, and half as much `HALF_LIFE` passes
/// later. All counts fade alike, so their order changes only by uses: the rank is
/// `log2(sum over uses of rows * 2^(pass / HALF_LIFE))`. Counts outlive residency: a record that comes
/// back is as old a friend as before.
#[derive(Debug, Default)]
pub struct Fading {
    pass: u64,
    level: HashMap<ExpertKey, f64>,
}

/// Passes after which a use counts half.
const HALF_LIFE: f64 = 64.0;

impl Policy for Fading {
    fn name(&self) -> &'static str {
        "fading"
    }

    fn pass(&mut self) {
        self.pass += 1;
    }

    fn used(&mut self, used: Use) {
        if used.rows == 0 {
            return;
        }
        let new = self.pass as f64 / HALF_LIFE + f64::from(used.rows).log2();
        let level = self.level.entry(used.key).or_insert(f64::NEG_INFINITY);
        let (low, high) = (level.min(new), level.max(new));
        *level = high + (1.0 + (low - high).exp2()).log2();
    }

    fn rank(&self, key: ExpertKey) -> Rank {
        // Levels are not negative, and the bits of such numbers are in their order.
        Rank(self.level.get(&key).map_or(0, |level| (level + 1.0).to_bits()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    #[test]
    fn uses_fade_by_half_in_a_half_life() {
        let mut policy = Fading::default();
        let once = |policy: &mut Fading, expert| policy.used(Use { key: key(expert), rows: 1 });
        assert_eq!(policy.rank(key(1)), Rank(0));
        for _ in 0..3 {
            once(&mut policy, 1);
        }
        (0..HALF_LIFE as u64).for_each(|_| policy.pass());
        once(&mut policy, 2);
        assert!(policy.rank(key(1)) > policy.rank(key(2)), "three halves are more than one");
        once(&mut policy, 2);
        assert!(policy.rank(key(1)) < policy.rank(key(2)));
        policy.used(Use { key: key(3), rows: 0 });
        assert_eq!(policy.rank(key(3)), Rank(0), "rows that say nothing do not count");
        once(&mut policy, 3);
        assert!(policy.rank(key(3)) > Rank(0));
    }

    #[test]
    fn the_least_recently_used_has_the_lowest_rank() {
        let mut policy = Lru::default();
        for expert in [1, 2, 1, 3] {
            policy.used(Use { key: key(expert), rows: 2 });
        }
        let mut order = [1, 2, 3];
        order.sort_by_key(|&e| policy.rank(key(e)));
        assert_eq!(order, [2, 1, 3]);
    }
}
