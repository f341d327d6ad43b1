//! Positional reads and writes: no shared cursor, so any number of threads may use one file.
//!
//! Owns: the difference between Unix and Windows here. Never: caching, retries.

use crate::error::{Error, Result};
use std::fs::File;
use std::io;
use std::path::Path;

/// Fills `buf` from `offset`; a file that ends early is an error.
pub fn read_exact_at(file: &File, path: &Path, offset: u64, buf: &mut [u8]) -> Result<()> {
    read_all(file, offset, buf)
        .map_err(|e| Error::io(path, format!("read {} bytes at {offset}", buf.len()), e))
}

/// Writes all of `buf` at `offset`.
pub fn write_all_at(file: &File, path: &Path, offset: u64, buf: &[u8]) -> Result<()> {
    write_all(file, offset, buf)
        .map_err(|e| Error::io(path, format!("write {} bytes at {offset}", buf.len()), e))
}

#[cfg(unix)]
fn read_all(file: &File, offset: u64, buf: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, buf, offset)
}

#[cfg(unix)]
fn write_all(file: &File, offset: u64, buf: &[u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, buf, offset)
}

#[cfg(windows)]
fn read_all(file: &File, mut offset: u64, mut buf: &mut [u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !buf.is_empty() {
        match file.seek_read(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => {
                buf = &mut buf[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

#[cfg(windows)]
fn write_all(file: &File, mut offset: u64, mut buf: &[u8]) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !buf.is_empty() {
        match file.seek_write(buf, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                buf = &buf[n..];
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
