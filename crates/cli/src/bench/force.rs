//! Drafts that are accepted at a given rate.
//!
//! Owns: the continuation that is known from a run without drafts, and the random choice of the
//! drafts that fail. Never: verifying (the engine does, as always).
//! Invariant: the choice follows from seed and position alone. Answers cannot change: the engine
//! verifies these drafts like any others.

use cherenkov_engine::Rewrite;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Debug, Default)]
struct Known {
    /// Position of the first token of `next`.
    start: usize,
    next: Vec<u32>,
}

/// Makes drafts right or wrong.
#[derive(Clone, Debug)]
pub struct Forced {
    share: f64,
    seed: u64,
    vocab: u32,
    known: Arc<Mutex<Known>>,
}

impl Forced {
    /// Has this share of the drafts accepted.
    pub fn new(share: f64) -> Self {
        Self { share, seed: 0, vocab: 1, known: Arc::default() }
    }

    /// With this seed, for a model with this vocabulary.
    pub fn seeded(self, seed: u64, vocab: usize) -> Self {
        Self { seed, vocab: vocab as u32, ..self }
    }

    /// What follows position `start`, as a run without drafts has it.
    pub fn learn(&self, start: usize, next: Vec<u32>) {
        *self.known.lock().unwrap_or_else(PoisonError::into_inner) = Known { start, next };
    }

    /// For the engine.
    pub fn rewrite(&self) -> Rewrite {
        let this = self.clone();
        Box::new(move |position, own| this.draft(position, own))
    }

    /// The draft at a position; beyond what is known the head's own.
    fn draft(&self, position: usize, own: u32) -> u32 {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let right = position.checked_sub(known.start).and_then(|i| known.next.get(i));
        match right {
            None => own,
            Some(&right) if self.succeeds(position) => right,
            Some(&right) => (right + 1) % self.vocab,
        }
    }

    fn succeeds(&self, position: usize) -> bool {
        let key = [self.seed, position as u64].map(u64::to_le_bytes).concat();
        let at = cherenkov_format::checksum(&key) >> 11;
        (at as f64) < self.share * (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_met_and_repeats() {
        let forced = Forced::new(0.7).seeded(3, 50);
        forced.learn(100, (0..10_000).map(|i| i % 50).collect());
        let right = |forced: &Forced| -> Vec<bool> {
            (0..10_000).map(|i| forced.draft(100 + i, 7) == i as u32 % 50).collect()
        };
        let hits = right(&forced);
        let share = hits.iter().filter(|&&hit| hit).count();
        assert!((6800..7200).contains(&share), "{share}");
        assert_eq!(right(&forced), hits);
        assert_ne!(right(&Forced { seed: 4, ..forced.clone() }), hits);
        assert_eq!(forced.draft(99, 7), 7, "before what is known");
        assert_eq!(forced.draft(10_100, 7), 7, "beyond what is known");
        for (share, all) in [(0.0, 0), (1.0, 10_000)] {
            let forced = Forced { share, ..forced.clone() };
            assert_eq!(right(&forced).iter().filter(|&&hit| hit).count(), all);
        }
    }
}
