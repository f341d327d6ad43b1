//! Which record is in which slot, and which slot is given away next.
//!
//! Owns: the map between records and slots, the lines in which slots wait to be given away.
//! Never: I/O, arithmetic, how much a record is worth (see `policy`).
//! Invariants: a record is in at most one slot; a slot that is loading or pinned is never given away;
//! a pass that reads more than it can keep (a scan) has at most its ring of the slots that others
//! filled.

use crate::bank::Slot;
use crate::grade::Grade;
use crate::source::ExpertKey;
use std::collections::{BTreeSet, HashMap};

/// How long a record should be kept: higher is longer. Made by a policy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank(pub u64);

/// What a slot's record is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// There is no record.
    Free,
    /// Its bytes are on their way.
    Loading,
    /// A step works with it.
    Pinned,
    /// It was used and may be again.
    Kept(Rank),
    /// A scan has passed it: its next use is a whole scan away, or in decode as its rank says.
    Passed(Rank),
    /// It was read ahead for the coming layer.
    Ahead,
    /// It was read ahead in vain.
    Spent,
}

/// For whom a slot is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// A step that keeps what it reads.
    Step,
    /// A scan that may have this many slots.
    Scan {
        /// Its ring.
        ring: usize,
    },
}

/// Whether records that were read ahead may be given away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Press {
    /// They may, when there is nothing else: a step waits.
    Demand,
    /// They may not.
    Lookahead,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    key: Option<ExpertKey>,
    line: Line,
    /// Which of the expert's records it is, once landed.
    grade: Grade,
    /// Moment of the release, for passed records.
    stamp: u64,
    /// Whose it is; counts against the ring of a scan.
    scanned: bool,
}

const FREE: Entry =
    Entry { key: None, line: Line::Free, grade: Grade::Full, stamp: 0, scanned: false };

/// Bookkeeping of a bank's slots.
#[derive(Debug)]
pub struct Pool {
    entries: Vec<Entry>,
    held: HashMap<ExpertKey, Slot>,
    free: BTreeSet<u32>,
    /// Slots without memory.
    closed: BTreeSet<u32>,
    spent: BTreeSet<u32>,
    ahead: BTreeSet<u32>,
    /// Kept and passed ones: the lowest rank goes first.
    ranked: BTreeSet<(Rank, u32)>,
    /// Passed ones: for a scan the last one goes first.
    passed: BTreeSet<(u64, u32)>,
    scanned: usize,
    clock: u64,
}

impl Pool {
    /// A pool over `slots` empty slots.
    pub fn new(slots: usize) -> Self {
        Self {
            entries: vec![FREE; slots],
            held: HashMap::new(),
            free: (0..slots as u32).collect(),
            closed: BTreeSet::new(),
            spent: BTreeSet::new(),
            ahead: BTreeSet::new(),
            ranked: BTreeSet::new(),
            passed: BTreeSet::new(),
            scanned: 0,
            clock: 0,
        }
    }

    /// Slots, empty ones included, closed ones not.
    pub fn slots(&self) -> usize {
        self.entries.len() - self.closed.len()
    }

    /// Closes the slot that a step would be given next; `None` when all are pinned or loading.
    pub fn close(&mut self) -> Option<Slot> {
        let index = self.victim(Taker::Step, Press::Demand)?;
        self.clear(Slot(index));
        self.free.remove(&index);
        self.closed.insert(index);
        Some(Slot(index))
    }

    /// A closed slot, if there is one.
    pub fn closed(&self) -> Option<Slot> {
        self.closed.first().map(|index| Slot(*index))
    }

    /// Makes a closed slot an empty one.
    pub fn reopen(&mut self, slot: Slot) {
        if self.closed.remove(&slot.0) {
            self.free.insert(slot.0);
        }
    }

    /// The slot that holds `key` or will, and what it waits for.
    pub fn find(&self, key: ExpertKey) -> Option<(Slot, Line)> {
        let slot = *self.held.get(&key)?;
        Some((slot, self.entries[slot.0 as usize].line))
    }

    /// The record of a slot.
    pub fn key(&self, slot: Slot) -> Option<ExpertKey> {
        self.entries[slot.0 as usize].key
    }

    /// Which of its expert's records a slot holds.
    pub fn grade(&self, slot: Slot) -> Grade {
        self.entries[slot.0 as usize].grade
    }

    /// Notes which of its expert's records has landed in a slot.
    pub fn set_grade(&mut self, slot: Slot, grade: Grade) {
        self.entries[slot.0 as usize].grade = grade;
    }

    /// Moves a slot to another line. A scan does not take over what others keep.
    ///
    /// # Panics
    /// When the slot is free.
    pub fn put(&mut self, slot: Slot, line: Line) {
        self.leave(slot);
        self.clock += 1;
        let entry = &mut self.entries[slot.0 as usize];
        assert!(entry.key.is_some() && line != Line::Free, "slot {slot:?} holds a record");
        entry.line = line;
        entry.stamp = self.clock;
        let index = slot.0;
        match line {
            Line::Free | Line::Loading | Line::Pinned => {}
            Line::Spent => drop(self.spent.insert(index)),
            Line::Ahead => drop(self.ahead.insert(index)),
            Line::Kept(rank) => {
                self.scanned -= usize::from(std::mem::take(&mut entry.scanned));
                self.ranked.insert((rank, index));
            }
            Line::Passed(rank) => {
                self.ranked.insert((rank, index));
                if entry.scanned {
                    self.passed.insert((self.clock, index));
                }
            }
        }
    }

    /// Gives `key` a slot, which is loading from then on.
    pub fn take(&mut self, key: ExpertKey, taker: Taker, press: Press) -> Option<Slot> {
        debug_assert!(!self.held.contains_key(&key), "{key:?} has a slot");
        let index = self.victim(taker, press)?;
        let slot = Slot(index);
        self.clear(slot);
        self.free.remove(&index);
        let scanned = taker != Taker::Step;
        self.scanned += usize::from(scanned);
        self.entries[index as usize] =
            Entry { key: Some(key), line: Line::Loading, grade: Grade::Full, stamp: 0, scanned };
        self.held.insert(key, slot);
        Some(slot)
    }

    fn victim(&self, taker: Taker, press: Press) -> Option<u32> {
        let first = self.free.first().or(self.spent.first()).copied();
        let lowest = || self.ranked.first().map(|(_, index)| *index);
        let found = first.or_else(|| match taker {
            Taker::Step => lowest(),
            Taker::Scan { ring } if self.scanned < ring => {
                self.passed.last().map(|(_, index)| *index).or_else(lowest)
            }
            Taker::Scan { .. } => self.passed.last().map(|(_, index)| *index),
        });
        let last = || (press == Press::Demand).then(|| self.ahead.first().copied()).flatten();
        found.or_else(last)
    }

    /// Empties a slot.
    pub fn clear(&mut self, slot: Slot) {
        self.leave(slot);
        let entry = std::mem::replace(&mut self.entries[slot.0 as usize], FREE);
        if let Some(key) = entry.key {
            self.held.remove(&key);
        }
        self.scanned -= usize::from(entry.scanned);
        self.free.insert(slot.0);
    }

    /// Takes a slot out of the line it stands in.
    fn leave(&mut self, slot: Slot) {
        let (entry, index) = (self.entries[slot.0 as usize], slot.0);
        match entry.line {
            Line::Free | Line::Loading | Line::Pinned => {}
            Line::Spent => drop(self.spent.remove(&index)),
            Line::Ahead => drop(self.ahead.remove(&index)),
            Line::Kept(rank) | Line::Passed(rank) => {
                self.ranked.remove(&(rank, index));
                self.passed.remove(&(entry.stamp, index));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEP: Taker = Taker::Step;

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    fn kept(pool: &mut Pool, expert: u32, rank: u64) -> Slot {
        let slot = pool.take(key(expert), STEP, Press::Demand).unwrap();
        pool.put(slot, Line::Kept(Rank(rank)));
        slot
    }

    #[test]
    fn a_step_takes_free_then_spent_then_the_lowest_rank_then_what_was_read_ahead() {
        let mut pool = Pool::new(4);
        let a = kept(&mut pool, 1, 7);
        let b = kept(&mut pool, 2, 3);
        let c = pool.take(key(3), STEP, Press::Demand).unwrap();
        let d = pool.take(key(4), STEP, Press::Lookahead).unwrap();
        pool.put(c, Line::Spent);
        pool.put(d, Line::Ahead);
        assert_eq!(pool.take(key(5), STEP, Press::Demand), Some(c));
        assert_eq!(pool.take(key(6), STEP, Press::Demand), Some(b));
        assert_eq!(pool.take(key(7), STEP, Press::Demand), Some(a));
        assert_eq!(pool.take(key(8), STEP, Press::Lookahead), None, "what was read ahead stays");
        assert_eq!(pool.take(key(8), STEP, Press::Demand), Some(d));
        assert_eq!(pool.take(key(9), STEP, Press::Demand), None, "all are loading");
        assert_eq!(pool.find(key(1)), None);
        pool.clear(a);
        assert_eq!(pool.take(key(9), STEP, Press::Demand), Some(a));
    }

    #[test]
    fn what_is_worth_the_least_is_closed_first_and_opens_empty() {
        let mut pool = Pool::new(4);
        let (a, b) = (kept(&mut pool, 1, 7), kept(&mut pool, 2, 3));
        let c = pool.take(key(3), STEP, Press::Demand).unwrap();
        let empty = pool.close().unwrap();
        assert!(![a, b, c].contains(&empty));
        assert_eq!((pool.close(), pool.close()), (Some(b), Some(a)));
        assert_eq!(pool.close(), None, "the last one is loading");
        assert_eq!((pool.slots(), pool.find(key(1))), (1, None));
        assert_eq!(pool.take(key(9), STEP, Press::Demand), None, "closed slots are not taken");
        let first = pool.closed().unwrap();
        pool.reopen(first);
        pool.reopen(first);
        assert_eq!(pool.slots(), 2);
        assert_eq!(pool.take(key(9), STEP, Press::Demand), Some(first));
    }

    #[test]
    fn a_pinned_slot_is_never_given_away() {
        let mut pool = Pool::new(1);
        let slot = kept(&mut pool, 1, 0);
        pool.put(slot, Line::Pinned);
        assert_eq!(pool.take(key(2), STEP, Press::Demand), None);
        assert_eq!(pool.find(key(1)), Some((slot, Line::Pinned)));
    }

    #[test]
    fn a_scan_reuses_its_ring_and_leaves_the_rest_alone() {
        let mut pool = Pool::new(6);
        for expert in 0..6 {
            kept(&mut pool, expert, 10 + u64::from(expert));
        }
        let scan = Taker::Scan { ring: 2 };
        for expert in 10..40 {
            let slot = pool.take(key(expert), scan, Press::Demand).unwrap();
            pool.put(slot, Line::Pinned);
            pool.put(slot, Line::Passed(Rank(0)));
        }
        let left = (0..6).filter(|&e| pool.find(key(e)).is_some()).count();
        assert_eq!(left, 5, "one slot was enough for a scan that holds one record at a time");
        let first = pool.take(key(50), scan, Press::Demand).unwrap();
        let second = pool.take(key(51), scan, Press::Demand).unwrap();
        assert_eq!(pool.take(key(52), scan, Press::Demand), None, "the ring is full");
        // What a step adopts is no longer the scan's.
        pool.put(first, Line::Kept(Rank(99)));
        assert!(pool.take(key(52), scan, Press::Demand).is_some());
        pool.put(second, Line::Passed(Rank(0)));
        assert_eq!(pool.take(key(60), STEP, Press::Demand), Some(second), "lowest rank");
    }
}
