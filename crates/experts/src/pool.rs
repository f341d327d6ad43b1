//! Which record is in which slot.
//!
//! Owns: the map between records and slots, recency, pins. Never: I/O, arithmetic.
//! Invariant: a record is in at most one slot; a pinned slot is never given away.

use crate::bank::Slot;
use crate::source::ExpertKey;
use std::collections::HashMap;

#[derive(Clone, Copy, Debug, Default)]
struct Entry {
    key: Option<ExpertKey>,
    /// Step of the last use; larger is more recent.
    used: u64,
    pinned: bool,
}

/// Bookkeeping of a bank's slots: least recently used goes first.
#[derive(Debug)]
pub struct Pool {
    entries: Vec<Entry>,
    held: HashMap<ExpertKey, Slot>,
    clock: u64,
}

impl Pool {
    /// A pool over `slots` empty slots.
    pub fn new(slots: usize) -> Self {
        Self { entries: vec![Entry::default(); slots], held: HashMap::new(), clock: 0 }
    }

    /// The slot that holds `key`, marked as used and pinned.
    pub fn pin_resident(&mut self, key: ExpertKey) -> Option<Slot> {
        let slot = *self.held.get(&key)?;
        self.touch(slot);
        Some(slot)
    }

    /// Gives `key` the least recently used slot that is not pinned, and pins it.
    ///
    /// The caller fills the slot, or calls [`Self::forget`] if it could not.
    pub fn pin_victim(&mut self, key: ExpertKey) -> Option<Slot> {
        let free = |(_, e): &(usize, &Entry)| !e.pinned;
        let (index, _) =
            self.entries.iter().enumerate().filter(free).min_by_key(|(i, e)| (e.used, *i))?;
        let slot = Slot(index as u32);
        self.forget(slot);
        self.entries[index].key = Some(key);
        self.held.insert(key, slot);
        self.touch(slot);
        Some(slot)
    }

    /// Empties a slot.
    pub fn forget(&mut self, slot: Slot) {
        let entry = &mut self.entries[slot.0 as usize];
        if let Some(key) = entry.key.take() {
            self.held.remove(&key);
        }
        *entry = Entry::default();
    }

    /// Lets slots be given away again.
    pub fn unpin(&mut self, slots: &[Slot]) {
        for slot in slots {
            self.entries[slot.0 as usize].pinned = false;
        }
    }

    fn touch(&mut self, slot: Slot) {
        self.clock += 1;
        let entry = &mut self.entries[slot.0 as usize];
        entry.used = self.clock;
        entry.pinned = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    #[test]
    fn the_least_recently_used_unpinned_slot_is_given_away() {
        let mut pool = Pool::new(2);
        let a = pool.pin_victim(key(1)).unwrap();
        let b = pool.pin_victim(key(2)).unwrap();
        assert_eq!(pool.pin_victim(key(3)), None, "both are pinned");
        pool.unpin(&[a, b]);
        assert_eq!(pool.pin_resident(key(1)), Some(a));
        pool.unpin(&[a]);
        assert_eq!(pool.pin_victim(key(3)), Some(b), "1 was used later than 2");
        assert_eq!(pool.pin_resident(key(2)), None);
    }

    #[test]
    fn a_forgotten_slot_is_empty() {
        let mut pool = Pool::new(1);
        let slot = pool.pin_victim(key(1)).unwrap();
        pool.forget(slot);
        assert_eq!(pool.pin_resident(key(1)), None);
        assert_eq!(pool.pin_victim(key(2)), Some(slot));
    }
}
