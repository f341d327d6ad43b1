//! A file mapped for reading.
//!
//! Owns: the one unsafe call of this crate. Never: writable mappings.

#![allow(unsafe_code)]

use crate::error::{Error, Result};
use std::fs::File;
use std::path::Path;

/// The bytes of a mapped file.
#[derive(Debug)]
pub struct Map(memmap2::Mmap);

impl Map {
    /// Maps the whole of `file`.
    pub fn new(file: &File, path: &Path) -> Result<Self> {
        // SAFETY: the mapping is read-only and private to this value. A published store is never
        // written again (packing replaces the whole directory), so the bytes do not change under
        // the slice; a user who truncates the file while it is open gets a fault of the process
        // from the system, as with every mapped file, and no wrong memory.
        let map = unsafe { memmap2::MmapOptions::new().map(file) };
        let map = map.map_err(|e| Error::io(path, "map", e))?;
        // Rows are picked by a hash: reading ahead would only waste memory. Advice may be refused.
        #[cfg(unix)]
        let _ = map.advise(memmap2::Advice::Random);
        Ok(Self(map))
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}
