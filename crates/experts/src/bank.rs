//! Where record bytes land: the memory behind the slots of a pool.
//!
//! Owns: the `Bank` seam and the bank in ordinary memory.
//! Invariant: a slot's bytes are either published (readable) or taken (being written), never both;
//! the type system sees to it, because taking a landing moves the bytes out.

use cherenkov_format::OwnPages;
use std::io;

/// Index of a slot in a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// Memory for records, one record per slot.
pub trait Bank {
    /// The bytes of one slot on their way to being filled; may travel to a reader thread.
    type Landing: AsRef<[u8]> + AsMut<[u8]> + Send + 'static;
    /// Proof of work in flight that reads some slots.
    type Ticket: Copy + Send;

    /// Number of slots, discarded ones included.
    fn slots(&self) -> usize;

    /// Takes the bytes of a slot that no work in flight reads.
    fn land(&mut self, slot: Slot) -> Self::Landing;

    /// Gives the bytes back; the slot is readable from now on.
    fn publish(&mut self, slot: Slot, landing: Self::Landing);

    /// Gives back bytes without a record. As long as nothing was written to them the slot still holds
    /// what it held before [`Self::land`]; else nobody reads it before it is filled again.
    fn withdraw(&mut self, slot: Slot, landing: Self::Landing) {
        self.publish(slot, landing);
    }

    /// Returns once the work behind `ticket` no longer reads its slots.
    fn wait(&mut self, ticket: Self::Ticket);

    /// Whether the memory of single slots can be given back to the system.
    fn is_elastic(&self) -> bool {
        false
    }

    /// Gives the memory of a slot that holds no record back to the system. Elastic banks only.
    fn discard(&mut self, _slot: Slot) {}

    /// Gives a discarded slot memory again.
    ///
    /// # Errors
    /// When the system has no room.
    fn restore(&mut self, _slot: Slot) -> io::Result<()> {
        Ok(())
    }
}

/// Bytes that start on a page boundary, and go back to the system with the value.
#[derive(Debug)]
pub struct PageBuf(OwnPages);

impl PageBuf {
    /// `len` zeroed bytes at an address that is a multiple of [`PAGE_BYTES`].
    ///
    /// # Panics
    /// When the system has no room, as for every other allocation.
    ///
    /// [`PAGE_BYTES`]: cherenkov_format::record::PAGE_BYTES
    pub fn new(len: usize) -> Self {
        Self::try_new(len).expect("the system has memory for a record")
    }

    /// As [`Self::new`].
    ///
    /// # Errors
    /// When the system has no room.
    pub fn try_new(len: usize) -> io::Result<Self> {
        OwnPages::new(len).map(Self)
    }
}

impl AsRef<[u8]> for PageBuf {
    fn as_ref(&self) -> &[u8] {
        self.0.as_ref()
    }
}

impl AsMut<[u8]> for PageBuf {
    fn as_mut(&mut self) -> &mut [u8] {
        self.0.as_mut()
    }
}

/// A bank in ordinary memory: the CPU's, and the reference's.
#[derive(Debug)]
pub struct RamBank {
    slots: Vec<Option<PageBuf>>,
    record_bytes: usize,
}

impl RamBank {
    /// `slots` slots of `record_bytes` each.
    pub fn new(slots: usize, record_bytes: usize) -> Self {
        let slots = (0..slots).map(|_| Some(PageBuf::new(record_bytes))).collect();
        Self { slots, record_bytes }
    }

    /// The record in a published slot.
    ///
    /// # Panics
    /// When the slot's bytes are being written, or were given back.
    pub fn record(&self, slot: Slot) -> &[u8] {
        self.slots[slot.0 as usize].as_ref().expect("slot is published").as_ref()
    }
}

impl Bank for RamBank {
    type Landing = PageBuf;
    type Ticket = ();

    fn slots(&self) -> usize {
        self.slots.len()
    }

    fn land(&mut self, slot: Slot) -> PageBuf {
        self.slots[slot.0 as usize].take().expect("slot is published")
    }

    fn publish(&mut self, slot: Slot, landing: PageBuf) {
        self.slots[slot.0 as usize] = Some(landing);
    }

    fn wait(&mut self, (): ()) {}

    fn is_elastic(&self) -> bool {
        true
    }

    fn discard(&mut self, slot: Slot) {
        self.slots[slot.0 as usize] = None;
    }

    fn restore(&mut self, slot: Slot) -> io::Result<()> {
        self.slots[slot.0 as usize] = Some(PageBuf::try_new(self.record_bytes)?);
        Ok(())
    }
}
