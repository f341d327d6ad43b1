//! Expert records in GPU memory.
//!
//! Owns: the slabs, the host memory that records land in on their way.
//! Never: which record is where (see the pool), reading files.
//! Invariant: a record's bytes enter its slot after every command given so far and before every later
//! one: the queue keeps the order, so no work in flight has to be waited for.

use crate::arena::{Arena, Buf};
use crate::error::{Error, Result};
use crate::stream::Stream;
use cherenkov_experts::{Bank, Layouts, PageBuf, Slot};
use std::sync::{Arc, Mutex, PoisonError};

/// Slabs are at most this large by default, whatever the adapter allows.
pub(crate) const SLAB_BYTES: u64 = 1 << 30;

/// Host bytes on their way into a slot.
pub type Landing = PageBuf;

/// A bank whose slots lie in GPU memory.
#[derive(Debug)]
pub struct GpuBank {
    stream: Arc<Mutex<Stream>>,
    pub(crate) slabs: Vec<Buf>,
    pub(crate) layouts: Layouts,
    per_slab: usize,
    slots: usize,
    spare: Vec<Landing>,
}

impl GpuBank {
    pub(crate) fn new(
        arena: &mut Arena,
        stream: Arc<Mutex<Stream>>,
        (slots, slab_bytes): (usize, u64),
        layouts: &Layouts,
    ) -> Result<Self> {
        let record = layouts.full.bytes();
        let limit = arena.largest().min(slab_bytes);
        let per_slab = (limit / record as u64) as usize;
        if per_slab == 0 {
            let (what, bytes) = ("an expert record", record as u64);
            let remedy = "this GPU cannot hold one expert; choose another device";
            return Err(Error::TooLarge { what, bytes, limit, remedy });
        }
        let mut slabs = Vec::new();
        let mut left = slots;
        while left > 0 {
            let some = left.min(per_slab);
            let slab = arena.storage("experts", some as u64 * record as u64)?;
            // The driver zeroes memory at its first use: better now than in the first passes.
            stream.lock().unwrap_or_else(PoisonError::into_inner).clear(&slab, 0, slab.bytes);
            slabs.push(slab);
            left -= some;
        }
        Ok(Self { stream, slabs, layouts: *layouts, per_slab, slots, spare: Vec::new() })
    }

    /// (slab, byte offset within it) of a slot.
    pub(crate) fn place(&self, slot: Slot) -> (usize, u64) {
        let (slab, at) = (slot.0 as usize / self.per_slab, slot.0 as usize % self.per_slab);
        (slab, at as u64 * self.layouts.full.bytes() as u64)
    }
}

impl Bank for GpuBank {
    type Landing = Landing;
    type Ticket = ();

    fn slots(&self) -> usize {
        self.slots
    }

    fn land(&mut self, _slot: Slot) -> Landing {
        self.spare.pop().unwrap_or_else(|| PageBuf::new(self.layouts.full.bytes()))
    }

    fn publish(&mut self, slot: Slot, landing: Landing) {
        let (slab, at) = self.place(slot);
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        // A failure sticks to the device: the next verb reports it.
        let _reported_later = stream.write(&self.slabs[slab], at, landing.as_ref());
        drop(stream);
        self.spare.push(landing);
    }

    fn withdraw(&mut self, _slot: Slot, landing: Landing) {
        self.spare.push(landing);
    }

    fn wait(&mut self, (): ()) {}
}
