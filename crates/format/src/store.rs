//! An opened store.
//!
//! Owns: access by name and number to the bytes of a store, and the check of their checksums.
//! Never: residency (see `experts` for record reads in bulk), conversion.
//! Invariant: every byte handed out as a matrix or a record has passed its checksum.

use crate::checksum::checksum;
use crate::encoding::Bits;
use crate::error::{Error, Result};
use crate::manifest::{self, ExpertSection, Manifest, NgramSection, TensorEntry};
use crate::map::Map;
use crate::matrix::Matrix;
use crate::pio;
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::record::RecordLayout;
use crate::rows::RowEncoding;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const REMEDY: &str = "the store is damaged: pack again";

/// An opened store.
#[derive(Debug)]
pub struct Store {
    dir: PathBuf,
    manifest: Manifest,
    dense: File,
    index: HashMap<String, usize>,
    /// At each precision; those in use come first.
    experts: Vec<ExpertFile>,
}

fn open_sized(path: &Path, bytes: u64) -> Result<File> {
    let file = File::open(path).map_err(|e| Error::io(path, "open", e))?;
    let meta = file.metadata().map_err(|e| Error::io(path, "ask the size", e))?;
    if !meta.is_file() || meta.len() != bytes {
        let found = format!("{} bytes", meta.len());
        return Err(Error::invalid(path, "size", found, format!("{bytes} bytes"), REMEDY));
    }
    Ok(file)
}

impl Store {
    /// Opens the store in `dir`: the manifest's version and geometry and all file sizes are
    /// checked; no bulk bytes are read (see [`crate::verify`]).
    pub fn open(dir: &Path) -> Result<Self> {
        let manifest = manifest::read(dir)?;
        let dense = open_sized(&dir.join(&manifest.dense.file), manifest.dense.bytes)?;
        let experts = manifest.all_experts().map(|x| ExpertFile::open(dir, x));
        let experts = experts.collect::<Result<Vec<_>>>()?;
        for n in &manifest.ngram {
            open_sized(&dir.join(&n.file), n.bytes)?;
        }
        for f in &manifest.files {
            open_sized(&dir.join(&f.file), f.bytes)?;
        }
        let names = manifest.dense.tensors.iter().enumerate();
        let index = names.map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { dir: dir.to_owned(), manifest, dense, index, experts })
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The manifest.
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// The model's configuration.
    pub fn config(&self) -> &Config {
        &self.manifest.config
    }

    /// Reads one dense tensor by canonical name; its checksums are verified.
    pub fn matrix(&self, name: &str) -> Result<Matrix> {
        let path = self.dir.join(&self.manifest.dense.file);
        let Some(&at) = self.index.get(name) else {
            return Err(Error::invalid(
                &path,
                name,
                "no such tensor",
                "a canonical name of this configuration",
                "see `qwen4_exp::tensors::dense`",
            ));
        };
        let t = &self.manifest.dense.tensors[at];
        let mut bytes = vec![0; t.byte_len().expect("checked by the manifest") as usize];
        pio::read_exact_at(&self.dense, &path, t.offset, &mut bytes)?;
        if let Some(chunk) = bad_chunk(t, &bytes) {
            let rows = chunk * t.chunk_rows;
            let subject = format!("tensor {name}, rows from {rows}");
            return Err(Error::invalid(
                &path,
                subject,
                "another checksum",
                "the packed bytes",
                REMEDY,
            ));
        }
        Ok(Matrix::new(t.rows, t.cols, t.encoding, bytes).expect("length taken from the encoding"))
    }

    /// The hash constants, one table per PLE layer.
    pub fn hash_tables(&self) -> &[HashTable] {
        &self.manifest.hash_tables
    }

    /// The file of expert records in use: at the default precision, or see [`Self::use_experts`].
    pub fn experts(&self) -> &ExpertFile {
        &self.experts[0]
    }

    /// The file of expert records with codes of this width.
    ///
    /// # Errors
    /// When there is none; says which there are.
    pub fn experts_at(&self, bits: Bits) -> Result<&ExpertFile> {
        Ok(&self.experts[self.place_of(bits)?])
    }

    /// Has the experts with codes of this width in use from now on.
    ///
    /// # Errors
    /// As [`Self::experts_at`].
    pub fn use_experts(&mut self, bits: Bits) -> Result<()> {
        let place = self.place_of(bits)?;
        self.experts[..=place].rotate_right(1);
        Ok(())
    }

    fn place_of(&self, bits: Bits) -> Result<usize> {
        let place = self.experts.iter().position(|x| x.layout.code_bits() == Some(bits));
        place.ok_or_else(|| {
            let name = |x: &ExpertFile| match x.layout.code_bits() {
                Some(bits) => bits.get().to_string(),
                None => "16".to_owned(),
            };
            let mut names: Vec<String> = self.experts.iter().map(name).collect();
            names.sort();
            let bits = bits.get();
            Error::invalid(
                &self.dir,
                "experts",
                format!("{} bits", names.join(", ")),
                format!("{bits} bits"),
                format!("choose among these, or `cherenkov pack SRC --experts 4,{bits}` again"),
            )
        })
    }

    /// The file `experts` of this store in a copy of it in another directory, which needs no more
    /// than that file and the manifest.
    ///
    /// # Errors
    /// When `dir` does not hold a copy of this store: the manifests, and with them all checksums,
    /// must be equal.
    pub fn experts_copy(&self, experts: &ExpertFile, dir: &Path) -> Result<PathBuf> {
        if manifest::read(dir)? != self.manifest {
            return Err(Error::invalid(
                &dir.join(manifest::MANIFEST_FILE),
                "contents",
                "another store",
                format!("a copy of {}", self.dir.display()),
                "copy the store's files, or leave this directory out",
            ));
        }
        let path = dir.join(experts.path.file_name().expect("named by the manifest"));
        open_sized(&path, experts.bytes())?;
        Ok(path)
    }

    /// Maps the n-gram table of the `index`-th PLE layer. Its bytes are not verified here: rows are
    /// read one by one and a checksum covers thousands of them.
    pub fn ngram(&self, index: usize) -> Result<NgramTable> {
        let Some(section) = self.manifest.ngram.get(index) else {
            return Err(Error::invalid(
                &self.dir.join(manifest::MANIFEST_FILE),
                format!("n-gram table {index}"),
                format!("{} tables", self.manifest.ngram.len()),
                "a lower number",
                "ask for a table that the model has",
            ));
        };
        NgramTable::open(&self.dir.join(&section.file), section)
    }
}

/// Bytes of each checksum chunk of a tensor, in order.
pub(crate) fn chunk_lens(t: &TensorEntry) -> impl Iterator<Item = usize> + '_ {
    (0..t.rows).step_by(t.chunk_rows).map(|row| {
        let rows = t.chunk_rows.min(t.rows - row);
        t.encoding.byte_len(rows, t.cols).expect("checked by the manifest")
    })
}

fn bad_chunk(t: &TensorEntry, bytes: &[u8]) -> Option<usize> {
    let mut rest = bytes;
    chunk_lens(t).zip(&t.checksums.0).position(|(len, &sum)| {
        let (chunk, tail) = rest.split_at(len);
        rest = tail;
        checksum(chunk) != sum
    })
}

/// The file of expert records: all layers one after the other, page-aligned.
#[derive(Debug)]
pub struct ExpertFile {
    path: PathBuf,
    file: File,
    layout: RecordLayout,
    layers: usize,
    per_layer: usize,
    record_bytes: u64,
    checksums: Vec<u64>,
}

impl ExpertFile {
    fn open(dir: &Path, x: &ExpertSection) -> Result<Self> {
        let path = dir.join(&x.file);
        Ok(Self {
            file: open_sized(&path, x.bytes)?,
            path,
            layout: x.layout,
            layers: x.layers,
            per_layer: x.per_layer,
            record_bytes: x.record_bytes,
            checksums: x.checksums.iter().flat_map(|list| list.0.iter().copied()).collect(),
        })
    }

    /// The file, for readers that open it their own way.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub fn bytes(&self) -> u64 {
        self.record_bytes * (self.layers * self.per_layer) as u64
    }

    /// Layout of every record.
    pub fn layout(&self) -> RecordLayout {
        self.layout
    }

    /// Layers with experts: the trunk's, then the draft head's.
    pub fn layers(&self) -> usize {
        self.layers
    }

    /// Experts of a layer.
    pub fn per_layer(&self) -> usize {
        self.per_layer
    }

    /// Bytes of a record: a multiple of the page.
    pub fn record_bytes(&self) -> u64 {
        self.record_bytes
    }

    fn number(&self, layer: usize, expert: usize) -> usize {
        assert!(layer < self.layers && expert < self.per_layer, "expert {layer}/{expert}");
        layer * self.per_layer + expert
    }

    /// First byte of a record.
    ///
    /// # Panics
    /// When there is no such expert.
    pub fn offset(&self, layer: usize, expert: usize) -> u64 {
        self.number(layer, expert) as u64 * self.record_bytes
    }

    /// xxh3-64 of a whole record, padding included.
    ///
    /// # Panics
    /// When there is no such expert.
    pub fn checksum(&self, layer: usize, expert: usize) -> u64 {
        self.checksums[self.number(layer, expert)]
    }

    /// Reads one record into `record`, buffered, and verifies it.
    ///
    /// # Panics
    /// When there is no such expert or `record` is not one record long.
    pub fn read(&self, layer: usize, expert: usize, record: &mut [u8]) -> Result<()> {
        assert_eq!(record.len() as u64, self.record_bytes);
        pio::read_exact_at(&self.file, &self.path, self.offset(layer, expert), record)?;
        let (found, expected) = (checksum(record), self.checksum(layer, expert));
        if found != expected {
            return Err(Error::invalid(
                &self.path,
                format!("expert {layer}/{expert}"),
                format!("checksum {found:016x}"),
                format!("{expected:016x}"),
                REMEDY,
            ));
        }
        Ok(())
    }
}

/// Most bytes of one n-gram table that rows read through the map hold in memory.
pub const NGRAM_RESIDENT_BYTES: u64 = 64 << 20;
/// Most bytes that the system maps when one row is read: those around it come along if it has them.
const FAULT_BYTES: u64 = 64 << 10;

/// The mapped n-gram table of one PLE layer.
#[derive(Debug)]
pub struct NgramTable {
    map: Map,
    /// Rows read since the map was last forgotten.
    touched: AtomicU64,
    path: PathBuf,
    rows: u64,
    width: usize,
    encoding: RowEncoding,
    row_bytes: usize,
}

impl NgramTable {
    fn open(path: &Path, section: &NgramSection) -> Result<Self> {
        let file = open_sized(path, section.bytes)?;
        Ok(Self {
            map: Map::new(&file, path)?,
            touched: AtomicU64::new(0),
            path: path.to_owned(),
            rows: section.rows,
            width: section.width,
            encoding: section.encoding,
            row_bytes: section.row_bytes as usize,
        })
    }

    /// Rows, padding included.
    pub fn rows(&self) -> u64 {
        self.rows
    }

    /// Values per row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Layout of a row.
    pub fn encoding(&self) -> RowEncoding {
        self.encoding
    }

    /// The file, for readers that open it their own way.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The encoded bytes of one row.
    ///
    /// # Panics
    /// When there is no such row.
    pub fn row(&self, row: u64) -> &[u8] {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        &self.map.bytes()[row as usize * self.row_bytes..][..self.row_bytes]
    }

    /// Writes the exact values of one row to `out`. However many rows are read, they hold no more
    /// than [`NGRAM_RESIDENT_BYTES`] of memory.
    ///
    /// # Panics
    /// When there is no such row or `out` is not `width` long.
    pub fn read_row(&self, row: u64, out: &mut [f32]) {
        const ROWS: u64 = NGRAM_RESIDENT_BYTES / FAULT_BYTES;
        if self.touched.fetch_add(1, Ordering::Relaxed) % ROWS == ROWS - 1 {
            self.map.forget();
        }
        self.encoding.decode(self.row(row), out);
    }
}
