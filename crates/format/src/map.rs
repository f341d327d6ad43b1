//! A file mapped for reading, and how memory is backed.
//!
//! Owns: the unsafe calls of this crate. Never: writable mappings.

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

/// Asks for huge pages behind `memory`, best before it is first written: weights are read in long
/// streams that cross a small page every few hundred nanoseconds. A wish: it may be refused, and only
/// Linux is asked.
pub fn ask_for_huge_pages<T>(memory: &[T]) {
    #[cfg(target_os = "linux")]
    {
        const PAGE: usize = 4096;
        const HUGE: usize = 2 << 20;
        let all: *const u8 = memory.as_ptr().cast();
        let skip = all.align_offset(PAGE);
        let len = size_of_val(memory).saturating_sub(skip) / PAGE * PAGE;
        if len < HUGE {
            return;
        }
        let start = all.wrapping_add(skip).cast_mut().cast();
        // SAFETY: whole pages of the slice, and advice that never changes their contents.
        let _ = unsafe { rustix::mm::madvise(start, len, rustix::mm::Advice::LinuxHugepage) };
    }
    #[cfg(not(target_os = "linux"))]
    let _ = memory;
}

#[cfg(test)]
mod tests {
    use super::ask_for_huge_pages;

    #[test]
    fn asking_changes_nothing() {
        let memory: Vec<u8> = (0..5 << 20).map(|i: u32| i as u8).collect();
        ask_for_huge_pages(&memory);
        ask_for_huge_pages(&memory[3..100]);
        ask_for_huge_pages::<u64>(&[]);
        assert!(memory.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }
}
