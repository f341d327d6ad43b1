//! A file mapped for reading, memory of its own, and how memory is backed.
//!
//! Owns: the unsafe calls of this crate. Never: writable mappings of files.

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

    /// Lets go of the memory behind the bytes that were read; they come back from the file when they
    /// are read again.
    pub fn forget(&self) {
        // SAFETY: the mapping is shared with the file and never written, so that what is read again
        // is what was read before, also through slices that are still held.
        #[cfg(unix)]
        let _ = unsafe { self.0.unchecked_advise(memmap2::UncheckedAdvice::DontNeed) };
    }
}

/// Zeroed memory that starts on a page boundary and goes back to the system when it is dropped. The
/// allocator of a program keeps what it is given back, for the most part.
#[derive(Debug)]
pub struct OwnPages(memmap2::MmapMut);

impl OwnPages {
    /// `len` zeroed bytes.
    ///
    /// # Errors
    /// When the system has no room.
    pub fn new(len: usize) -> std::io::Result<Self> {
        let pages = memmap2::MmapMut::map_anon(len)?;
        ask_for_huge_pages(&pages[..]);
        Ok(Self(pages))
    }
}

impl AsRef<[u8]> for OwnPages {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl AsMut<[u8]> for OwnPages {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.0
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
    use super::{OwnPages, ask_for_huge_pages};

    #[test]
    fn own_pages_are_zeroed_and_start_on_a_page() {
        for len in [1, 4096, 3 << 20] {
            let mut pages = OwnPages::new(len).unwrap();
            assert_eq!(pages.as_ref().len(), len);
            assert!(pages.as_ref().as_ptr().addr().is_multiple_of(4096));
            assert!(pages.as_ref().iter().all(|byte| *byte == 0));
            pages.as_mut().fill(7);
            assert!(OwnPages::new(len).unwrap().as_ref().iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    fn asking_changes_nothing() {
        let memory: Vec<u8> = (0..5 << 20).map(|i: u32| i as u8).collect();
        ask_for_huge_pages(&memory);
        ask_for_huge_pages(&memory[3..100]);
        ask_for_huge_pages::<u64>(&[]);
        assert!(memory.iter().enumerate().all(|(i, byte)| *byte == i as u8));
    }
}
