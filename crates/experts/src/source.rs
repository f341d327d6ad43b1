//! Where records come from.
//!
//! Owns: reading one record whole and verified. Never: which record to read, or where to put it.

use crate::error::{Error, Result};
use cherenkov_format::{RecordLayout, Store};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One routed expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Layer; the draft head's comes after the trunk's.
    pub layer: u32,
    /// Expert within the layer.
    pub expert: u32,
}

/// A place that records can be read from, by several threads at once.
pub trait Source: Send + Sync {
    /// Layout of every record.
    fn layout(&self) -> &RecordLayout;

    /// Fills `out` (one record long) with the verified bytes of `key`.
    ///
    /// # Errors
    /// [`Error::Read`] after a second failure or a wrong checksum; `out` then holds garbage.
    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()>;
}

impl<S: Source + ?Sized> Source for Box<S> {
    fn layout(&self) -> &RecordLayout {
        (**self).layout()
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        (**self).read(key, out)
    }
}

/// Records in a store's experts file.
pub struct FileSource {
    store: Arc<Store>,
    layout: RecordLayout,
    /// One bit per record whose checksum has been found right.
    verified: Vec<AtomicU64>,
}

impl FileSource {
    /// Reads the experts of `store`.
    pub fn new(store: Arc<Store>) -> Self {
        let experts = store.experts();
        let records = experts.layers() * experts.per_layer();
        let verified = (0..records.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Self { layout: experts.layout(), verified, store }
    }

    fn attempt(&self, key: ExpertKey, out: &mut [u8]) -> cherenkov_format::Result<()> {
        let experts = self.store.experts();
        let (layer, expert) = (key.layer as usize, key.expert as usize);
        let record = layer * experts.per_layer() + expert;
        let (word, bit) = (&self.verified[record / 64], 1u64 << (record % 64));
        if word.load(Ordering::Relaxed) & bit != 0 {
            return experts.read_unverified(layer, expert, out);
        }
        experts.read(layer, expert, out)?;
        word.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }
}

impl Source for FileSource {
    fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        // A read that failed once may succeed the second time (a drive waking up, a flaky link).
        self.attempt(key, out).or_else(|_| self.attempt(key, out)).map_err(|source| Error::Read {
            layer: key.layer,
            expert: key.expert,
            source,
        })
    }
}
