//! Where records come from.
//!
//! Owns: reading one record whole and verified, from one or several copies of the file.
//! Never: which record to read, or where to put it.
//! Invariant: bytes handed out have the manifest's checksum, checked at the first read of each record
//! from each copy.

use crate::direct_io::{Access, DirectFile, RecordFile};
use crate::error::{Error, Result};
use cherenkov_format::record::PAGE_BYTES;
use cherenkov_format::{Bits, ExpertFile, RecordLayout, Store, checksum};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// One routed expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ExpertKey {
    /// Layer; the draft head's comes after the trunk's.
    pub layer: u32,
    /// Expert within the layer.
    pub expert: u32,
}

/// A file that records come from, as statistics show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drive {
    /// The file.
    pub path: PathBuf,
    /// How its bytes reach memory.
    pub access: Access,
    /// Bytes read so far.
    pub read_bytes: u64,
    /// Reads that failed at the first attempt.
    pub retries: u64,
}

/// A place that records can be read from, by several threads at once.
pub trait Source: Send + Sync {
    /// Layout of every record at the precision of the run.
    fn layout(&self) -> &RecordLayout;

    /// Layout of the small records, if misses are to be read as such; not larger than the others.
    fn low(&self) -> Option<&RecordLayout> {
        None
    }

    /// Layers with experts, and experts of a layer.
    fn shape(&self) -> (usize, usize);

    /// Fills `out` (one record long) with the verified bytes of `key`.
    ///
    /// # Errors
    /// [`Error::Read`] after a second failure or a wrong checksum; `out` then holds garbage.
    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()>;

    /// As [`Self::read`], of the small record.
    ///
    /// # Errors
    /// As [`Self::read`].
    ///
    /// # Panics
    /// Where [`Self::low`] has no layout.
    fn read_low(&self, key: ExpertKey, _out: &mut [u8]) -> Result<()> {
        panic!("{key:?}: this source has no small records")
    }

    /// The files behind it.
    fn drives(&self) -> Vec<Drive> {
        Vec::new()
    }
}

impl<S: Source + ?Sized> Source for Arc<S> {
    fn layout(&self) -> &RecordLayout {
        (**self).layout()
    }

    fn shape(&self) -> (usize, usize) {
        (**self).shape()
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        (**self).read(key, out)
    }

    fn low(&self) -> Option<&RecordLayout> {
        (**self).low()
    }

    fn read_low(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        (**self).read_low(key, out)
    }

    fn drives(&self) -> Vec<Drive> {
        (**self).drives()
    }
}

/// Which records a file holds, one after the other, layer by layer.
#[derive(Clone, Debug)]
pub struct Index {
    /// Layout of every record.
    pub layout: RecordLayout,
    /// Experts of a layer.
    pub per_layer: usize,
    /// xxh3-64 of each record, padding included.
    pub checksums: Vec<u64>,
}

/// One copy of the file.
struct Copy {
    file: Box<dyn RecordFile>,
    /// One bit per record whose checksum has been found right.
    verified: Vec<AtomicU64>,
    /// Reads under way.
    busy: AtomicUsize,
    read_bytes: AtomicU64,
    retries: AtomicU64,
}

impl Copy {
    fn new(file: Box<dyn RecordFile>, records: usize) -> Self {
        Self {
            file,
            verified: (0..records.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            busy: AtomicUsize::new(0),
            read_bytes: AtomicU64::new(0),
            retries: AtomicU64::new(0),
        }
    }

    /// Fills `out` from `offset`, however many reads that takes.
    fn fill(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let mut at = 0;
        while at < out.len() {
            match self.file.read_at(offset + at as u64, &mut out[at..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) if at + count == out.len() => at = out.len(),
                // Uncached reads begin on page boundaries: what a short one left of a page comes again.
                Ok(count) if count < PAGE_BYTES => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => at += count / PAGE_BYTES * PAGE_BYTES,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Records of one layout in a file, or in several byte-identical copies of it on several drives: each
/// read goes to the copy with the fewest reads under way.
struct Records {
    index: Index,
    copies: Vec<Copy>,
    /// Where the search for an idle copy begins.
    turn: AtomicUsize,
}

/// Records in a store's experts files and in copies of them.
pub struct FileSource {
    full: Records,
    low: Option<Records>,
}

impl FileSource {
    /// Reads the experts of `store`, and of copies of it in other directories.
    ///
    /// # Errors
    /// When a file cannot be opened, or a directory does not hold a copy of this store.
    pub fn open(store: &Store, copies: &[PathBuf]) -> cherenkov_format::Result<Self> {
        Ok(Self { full: Records::open(store, store.experts(), copies)?, low: None })
    }

    /// Reads the records with codes of `bits` bits too, for misses.
    ///
    /// # Errors
    /// As [`Self::open`]; when the store has no such records, or no wider ones are in use.
    pub fn with_low(
        self,
        store: &Store,
        bits: Bits,
        copies: &[PathBuf],
    ) -> cherenkov_format::Result<Self> {
        let experts = store.experts_at(bits)?;
        // No narrower codes make a longer record.
        let whole = store.experts().layout().code_bits();
        if whole.is_some_and(|whole| whole <= bits) {
            return Err(cherenkov_format::Error::invalid(
                experts.path(),
                "records for misses",
                format!("{} bits", bits.get()),
                format!("fewer than the {} of the records in use", whole.map_or(16, Bits::get)),
                "choose fewer bits for misses than for the run",
            ));
        }
        Ok(Self { low: Some(Records::open(store, experts, copies)?), ..self })
    }

    /// Reads the records of `index` from files that all hold the same bytes.
    ///
    /// # Panics
    /// Without a file.
    pub fn over(index: Index, files: Vec<Box<dyn RecordFile>>) -> Self {
        Self { full: Records::over(index, files), low: None }
    }

    /// Has small records too.
    ///
    /// # Panics
    /// Without a file.
    pub fn over_low(self, index: Index, files: Vec<Box<dyn RecordFile>>) -> Self {
        Self { low: Some(Records::over(index, files)), ..self }
    }
}

impl Records {
    fn open(
        store: &Store,
        experts: &ExpertFile,
        copies: &[PathBuf],
    ) -> cherenkov_format::Result<Self> {
        let mut files = vec![Box::new(DirectFile::open(experts.path())?) as Box<dyn RecordFile>];
        for dir in copies {
            files.push(Box::new(DirectFile::open(&store.experts_copy(experts, dir)?)?));
        }
        let (layers, per_layer) = (experts.layers(), experts.per_layer());
        let each = (0..layers).flat_map(|l| (0..per_layer).map(move |e| (l, e)));
        let index = Index {
            layout: experts.layout(),
            per_layer,
            checksums: each.map(|(l, e)| experts.checksum(l, e)).collect(),
        };
        Ok(Self::over(index, files))
    }

    fn over(index: Index, files: Vec<Box<dyn RecordFile>>) -> Self {
        assert!(!files.is_empty(), "a source has a file");
        let records = index.checksums.len();
        let copies = files.into_iter().map(|file| Copy::new(file, records)).collect();
        Self { index, copies, turn: AtomicUsize::new(0) }
    }

    /// The copy with the fewest reads under way, others being equal in turns.
    fn idlest(&self) -> usize {
        let (count, turn) = (self.copies.len(), self.turn.fetch_add(1, Ordering::Relaxed));
        let busy = |i: &usize| self.copies[*i].busy.load(Ordering::Relaxed);
        (0..count).map(|i| (turn + i) % count).min_by_key(busy).expect("a source has a file")
    }

    fn attempt(&self, copy: usize, key: ExpertKey, out: &mut [u8]) -> cherenkov_format::Result<()> {
        let copy = &self.copies[copy];
        let record = key.layer as usize * self.index.per_layer + key.expert as usize;
        let offset = record as u64 * out.len() as u64;
        copy.busy.fetch_add(1, Ordering::Relaxed);
        let filled = copy.fill(offset, out);
        copy.busy.fetch_sub(1, Ordering::Relaxed);
        let path = copy.file.path();
        let action = || format!("read {} bytes at {offset}", out.len());
        filled.map_err(|e| cherenkov_format::Error::io(path, action(), e))?;
        copy.read_bytes.fetch_add(out.len() as u64, Ordering::Relaxed);
        let (word, bit) = (&copy.verified[record / 64], 1u64 << (record % 64));
        if word.load(Ordering::Relaxed) & bit == 0 {
            verify(path, key, self.index.checksums[record], out)?;
            word.fetch_or(bit, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn verify(path: &Path, key: ExpertKey, want: u64, record: &[u8]) -> cherenkov_format::Result<()> {
    let found = checksum(record);
    if found == want {
        return Ok(());
    }
    Err(cherenkov_format::Error::invalid(
        path,
        format!("expert {}/{}", key.layer, key.expert),
        format!("checksum {found:016x}"),
        format!("{want:016x}"),
        "the store is damaged: pack again",
    ))
}

impl Source for FileSource {
    fn layout(&self) -> &RecordLayout {
        &self.full.index.layout
    }

    fn low(&self) -> Option<&RecordLayout> {
        self.low.as_ref().map(|low| &low.index.layout)
    }

    fn shape(&self) -> (usize, usize) {
        let index = &self.full.index;
        (index.checksums.len() / index.per_layer, index.per_layer)
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        self.full.read(key, out)
    }

    fn read_low(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        self.low.as_ref().expect("small records are asked for where there are some").read(key, out)
    }

    fn drives(&self) -> Vec<Drive> {
        let low = self.low.iter().flat_map(|low| low.drives());
        self.full.drives().into_iter().chain(low).collect()
    }
}

impl Records {
    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        assert_eq!(out.len(), self.index.layout.bytes(), "the landing of {key:?}");
        let first = self.idlest();
        let Err(_) = self.attempt(first, key, out) else { return Ok(()) };
        // A read that failed once may succeed the second time (a drive waking up, a flaky link, or
        // another copy).
        self.copies[first].retries.fetch_add(1, Ordering::Relaxed);
        let second = (first + 1) % self.copies.len();
        self.attempt(second, key, out).map_err(|source| Error::Read {
            layer: key.layer,
            expert: key.expert,
            source,
        })
    }

    fn drives(&self) -> Vec<Drive> {
        let drive = |copy: &Copy| Drive {
            path: copy.file.path().to_owned(),
            access: copy.file.access(),
            read_bytes: copy.read_bytes.load(Ordering::Relaxed),
            retries: copy.retries.load(Ordering::Relaxed),
        };
        self.copies.iter().map(drive).collect()
    }
}
