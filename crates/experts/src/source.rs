//! Where records come from.
//!
//! Owns: reading one record whole and verified. Never: which record to read, or where to put it.

use crate::error::{Error, Result};
use cherenkov_format::record::RecordLayout;
use cherenkov_format::{checksum, store::ExpertFile};
use std::fs::File;
use std::path::PathBuf;
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
    file: File,
    path: PathBuf,
    experts: ExpertFile,
    /// One bit per record whose checksum has been found right.
    verified: Vec<AtomicU64>,
}

impl FileSource {
    /// Opens the file that `experts` describes.
    ///
    /// # Errors
    /// When the file cannot be opened.
    pub fn open(experts: &ExpertFile) -> cherenkov_format::Result<Self> {
        let path = experts.path().to_owned();
        let file =
            File::open(&path).map_err(|e| cherenkov_format::Error::io(&path, "open", e))?;
        let records = experts.layers() * experts.experts();
        let verified = (0..records.div_ceil(64)).map(|_| AtomicU64::new(0)).collect();
        Ok(Self { file, path, experts: experts.clone(), verified })
    }

    fn attempt(&self, key: ExpertKey, out: &mut [u8]) -> std::result::Result<(), String> {
        let (layer, expert) = (key.layer as usize, key.expert as usize);
        let offset = self.experts.offset(layer, expert);
        cherenkov_format::io::read_exact_at(&self.file, out, offset)
            .map_err(|e| format!("reading {} bytes at {offset} failed: {e}", out.len()))?;
        let record = layer * self.experts.experts() + expert;
        let (word, bit) = (&self.verified[record / 64], 1u64 << (record % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            let (found, expected) = (checksum(out), self.experts.checksum(layer, expert));
            if found != expected {
                return Err(format!("found checksum {found:016x}, expected {expected:016x}"));
            }
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

impl Source for FileSource {
    fn layout(&self) -> &RecordLayout {
        self.experts.layout()
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        // A read that failed once may succeed the second time (a drive waking up, a flaky link).
        self.attempt(key, out).or_else(|_| self.attempt(key, out)).map_err(|what| Error::Read {
            path: self.path.clone(),
            layer: key.layer,
            expert: key.expert,
            what,
        })
    }
}
