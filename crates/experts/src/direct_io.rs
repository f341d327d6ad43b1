//! A file of records, read past the page cache.
//!
//! Owns: the flags of each system for uncached reads, and the fallback where they are refused.
//! Never: which bytes to read, retries, checksums.
//! Invariant: a file that opened answers reads of whole pages at page boundaries into page-aligned
//! memory; it says whether they are uncached, and if not why.

use crate::bank::PageBuf;
use cherenkov_format::record::PAGE_BYTES;
use cherenkov_format::{Error, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};

/// How the bytes of a file reach memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Access {
    /// From the drive into place.
    Direct,
    /// Through the page cache; the system refused uncached reads.
    Buffered {
        /// What it said.
        reason: String,
    },
}

/// A file that records are read from, by several threads at once.
pub trait RecordFile: Send + Sync {
    /// Its name, for messages.
    fn path(&self) -> &Path;

    /// How its bytes reach memory.
    fn access(&self) -> Access;

    /// Reads from `offset` to the front of `out`; returns how many bytes, which may be fewer than
    /// asked for and are 0 at the end of the file. `offset` and the length of `out` are multiples of
    /// [`PAGE_BYTES`], and `out` starts at one.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize>;
}

/// A file of this system.
#[derive(Debug)]
pub struct DirectFile {
    file: File,
    path: PathBuf,
    access: Access,
}

impl DirectFile {
    /// Opens a file for uncached reads, or buffered ones where the system refuses those (some
    /// network and memory file systems).
    ///
    /// # Errors
    /// When it cannot be read either way.
    pub fn open(path: &Path) -> Result<Self> {
        let reason = match uncached(path) {
            Ok(file) => {
                return Ok(Self { file, path: path.to_owned(), access: Access::Direct });
            }
            Err(error) => error.to_string(),
        };
        let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
        Ok(Self { file, path: path.to_owned(), access: Access::Buffered { reason } })
    }
}

impl RecordFile for DirectFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn access(&self) -> Access {
        self.access.clone()
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        read_once(&self.file, offset, out)
    }
}

/// Opens for uncached reads and proves it with one: some systems refuse only the read.
fn uncached(path: &Path) -> io::Result<File> {
    let file = open_uncached(path)?;
    let mut page = PageBuf::new(PAGE_BYTES);
    read_once(&file, 0, page.as_mut())?;
    Ok(file)
}

#[cfg(any(target_os = "linux", target_os = "android", target_os = "freebsd"))]
fn open_uncached(path: &Path) -> io::Result<File> {
    use std::os::unix::fs::OpenOptionsExt as _;
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(direct).open(path)
}

#[cfg(target_vendor = "apple")]
fn open_uncached(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).open(path)?;
    rustix::fs::fcntl_nocache(&file, true)?;
    Ok(file)
}

#[cfg(windows)]
fn open_uncached(path: &Path) -> io::Result<File> {
    use std::os::windows::fs::OpenOptionsExt as _;
    /// FILE_FLAG_NO_BUFFERING.
    const NO_BUFFERING: u32 = 0x2000_0000;
    OpenOptions::new().read(true).custom_flags(NO_BUFFERING).open(path)
}

#[cfg(not(any(
    target_os = "linux",
    target_os = "android",
    target_os = "freebsd",
    target_vendor = "apple",
    windows
)))]
fn open_uncached(_path: &Path) -> io::Result<File> {
    Err(io::ErrorKind::Unsupported.into())
}

#[cfg(unix)]
fn read_once(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::unix::fs::FileExt::read_at(file, out, offset)
}

#[cfg(windows)]
fn read_once(file: &File, offset: u64, out: &mut [u8]) -> io::Result<usize> {
    std::os::windows::fs::FileExt::seek_read(file, out, offset)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_pages_are_read_wherever_the_file_lies() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("records");
        let bytes: Vec<u8> = (0..3 * PAGE_BYTES).map(|i| (i / 7) as u8).collect();
        std::fs::write(&path, &bytes).unwrap();
        let file = DirectFile::open(&path).unwrap();
        let mut out = PageBuf::new(2 * PAGE_BYTES);
        assert_eq!(file.read_at(PAGE_BYTES as u64, out.as_mut()).unwrap(), 2 * PAGE_BYTES);
        assert_eq!(out.as_ref(), &bytes[PAGE_BYTES..]);
        assert_eq!(file.read_at(3 * PAGE_BYTES as u64, out.as_mut()).unwrap(), 0, "the end");
        assert!(DirectFile::open(&dir.path().join("absent")).is_err());
    }

    /// The proc file system has no uncached reads.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_refusal_falls_back_to_buffered_reads_and_is_told() {
        let file = DirectFile::open(Path::new("/proc/self/maps")).unwrap();
        let Access::Buffered { reason } = file.access() else { panic!("{:?}", file.access()) };
        assert!(!reason.is_empty());
        let mut out = PageBuf::new(PAGE_BYTES);
        assert!(file.read_at(0, out.as_mut()).unwrap() > 0);
    }
}
