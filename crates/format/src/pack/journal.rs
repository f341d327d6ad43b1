//! The journal of an unfinished pack: which units are written, with their checksums and sums.
//!
//! Owns: the text form of the journal and the lock that keeps two packs apart.
//! Never: trusting itself: the caller verifies every unit it lists before relying on it.
//!
//! First line: `cherenkov-pack 1 IDENTITY UNITS`. Then one line per unit: number, checksum and the
//! sums of its conversion, all hexadecimal. A line cut short by a kill is ignored.

use super::convert::Stats;
use super::place::remove_file;
use crate::checksum::parse_hex;
use crate::error::{Error, Result};
use fs4::fs_std::FileExt;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Name of the journal within the unfinished directory.
pub const JOURNAL_FILE: &str = "journal";

/// A written unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Done {
    /// xxh3-64 of its bytes.
    pub checksum: u64,
    /// Sums of its conversion.
    pub stats: Stats,
}

/// The open, locked journal.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
}

/// Deletes the journal of the unfinished directory `dir`; its absence is fine.
pub fn delete_in(dir: &Path) -> Result<()> {
    remove_file(&dir.join(JOURNAL_FILE))
}

fn header(identity: u64, units: usize) -> String {
    format!("cherenkov-pack 1 {identity:016x} {units:016x}\n")
}

fn line(unit: usize, done: &Done) -> String {
    let s = &done.stats;
    let words = [
        unit as u64,
        done.checksum,
        s.values,
        s.squares.to_bits(),
        s.error.to_bits(),
        s.plain.to_bits(),
        s.rounded,
    ];
    let mut text = words.map(|w| format!("{w:016x}")).join(" ");
    text.push('\n');
    text
}

fn parse_line(line: &[u8], units: usize) -> Option<(usize, Done)> {
    let words: Option<Vec<u64>> = line.split(|&b| b == b' ').map(parse_hex).collect();
    let [unit, checksum, values, squares, error, plain, rounded] = words?.try_into().ok()?;
    let unit = usize::try_from(unit).ok().filter(|&u| u < units)?;
    let [squares, error, plain] = [squares, error, plain].map(f64::from_bits);
    Some((unit, Done { checksum, stats: Stats { values, squares, error, plain, rounded } }))
}

impl Journal {
    /// Opens or creates the journal in `dir` and locks it. Returns what it lists for this identity;
    /// `None` when it is new or belongs to another source or other options.
    pub fn open(
        dir: &Path,
        identity: u64,
        units: usize,
    ) -> Result<(Self, Option<Vec<Option<Done>>>)> {
        let path = dir.join(JOURNAL_FILE);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
        let mut file = file.map_err(|e| Error::io(&path, "open", e))?;
        let locked = file.try_lock_exclusive().map_err(|e| Error::io(&path, "lock", e))?;
        if !locked {
            return Err(Error::invalid(
                &path,
                "lock",
                "another pack at work on this output",
                "one at a time",
                "wait for it or end it",
            ));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|e| Error::io(&path, "read", e))?;
        let listed = bytes.strip_prefix(header(identity, units).as_bytes()).map(|body| {
            let mut done = vec![None; units];
            // What follows the last newline was cut short.
            let whole =
                body.iter().rposition(|&b| b == b'\n').map_or(&body[..0], |end| &body[..end]);
            for (unit, one) in whole.split(|&b| b == b'\n').filter_map(|l| parse_line(l, units)) {
                done[unit] = Some(one);
            }
            done
        });
        Ok((Self { path, file }, listed))
    }

    /// Deletes it; its absence is fine.
    pub fn delete(self) -> Result<()> {
        drop(self.file);
        remove_file(&self.path)
    }

    /// Starts over with these units.
    pub fn rewrite(&mut self, identity: u64, done: &[Option<Done>]) -> Result<()> {
        let mut text = header(identity, done.len());
        for (unit, one) in done.iter().enumerate() {
            if let Some(one) = one {
                text.push_str(&line(unit, one));
            }
        }
        self.file
            .set_len(0)
            .and_then(|()| self.file.seek(SeekFrom::Start(0)))
            .and_then(|_| self.file.write_all(text.as_bytes()))
            .map_err(|e| Error::io(&self.path, "write", e))
    }

    /// Adds one unit.
    pub fn append(&mut self, unit: usize, done: &Done) -> Result<()> {
        self.file
            .write_all(line(unit, done).as_bytes())
            .map_err(|e| Error::io(&self.path, "write", e))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn done(checksum: u64) -> Done {
        let stats = Stats { values: 3, squares: 0.5, error: 1e-9, plain: 2e-9, rounded: 1 };
        Done { checksum, stats }
    }

    #[test]
    fn a_torn_line_is_ignored_and_others_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (mut journal, listed) = Journal::open(dir.path(), 7, 4).unwrap();
        assert_eq!(listed, None);
        journal.rewrite(7, &[None, Some(done(1)), None, None]).unwrap();
        journal.append(3, &done(2)).unwrap();
        journal.file.write_all(&line(0, &done(9)).as_bytes()[..40]).unwrap();
        drop(journal);
        let (journal, listed) = Journal::open(dir.path(), 7, 4).unwrap();
        assert_eq!(listed, Some(vec![None, Some(done(1)), None, Some(done(2))]));
        drop(journal);
        assert_eq!(Journal::open(dir.path(), 8, 4).unwrap().1, None);
        assert_eq!(Journal::open(dir.path(), 7, 5).unwrap().1, None);
    }

    #[test]
    fn two_packs_do_not_share_a_journal() {
        let dir = tempfile::tempdir().unwrap();
        let _held = Journal::open(dir.path(), 7, 4).unwrap();
        let second = Journal::open(dir.path(), 7, 4).unwrap_err();
        assert!(second.to_string().contains("one at a time"), "{second}");
    }
}
