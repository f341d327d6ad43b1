//! Where record bytes land: the memory behind the slots of a pool.
//!
//! Owns: the `Bank` seam and the bank in ordinary memory.
//! Invariant: a slot's bytes are either published (readable) or taken (being written), never both;
//! the type system sees to it, because taking a landing moves the bytes out.

use cherenkov_format::OwnPages;

/// Index of a slot in a bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// Memory for records, one record per slot.
pub trait Bank {
    /// The bytes of one slot on their way to being filled; may travel to a reader thread.
    type Landing: AsRef<[u8]> + AsMut<[u8]> + Send + 'static;
    /// Proof of work in flight that reads some slots.
    type Ticket: Copy + Send;

    /// Number of slots.
    fn slots(&self) -> usize;

    /// Takes the bytes of a slot that no work in flight reads.
    fn land(&mut self, slot: Slot) -> Self::Landing;

    /// Gives the bytes back; the slot is readable from now on.
    fn publish(&mut self, slot: Slot, landing: Self::Landing);

    /// Gives back bytes that hold no record; nobody reads the slot before it is filled again.
    fn withdraw(&mut self, slot: Slot, landing: Self::Landing) {
        self.publish(slot, landing);
    }

    /// Returns once the work behind `ticket` no longer reads its slots.
    fn wait(&mut self, ticket: Self::Ticket);
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
        Self(OwnPages::new(len).expect("the system has memory for a record"))
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
}

impl RamBank {
    /// `slots` slots of `record_bytes` each.
    pub fn new(slots: usize, record_bytes: usize) -> Self {
        Self { slots: (0..slots).map(|_| Some(PageBuf::new(record_bytes))).collect() }
    }

    /// The record in a published slot.
    ///
    /// # Panics
    /// When the slot's bytes are being written.
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
}
