//! Where every byte of a store goes, decided before one is written.
//!
//! Owns: offsets, chunks, the manifest's sections without checksums, the list of units.
//! Never: choosing encodings (see `plan`), writing. Invariant: the layout follows from geometry and
//! encodings alone, so an interrupted build finds the same one again.

use crate::checksum::Checksums;
use crate::encoding::Encoding;
use crate::manifest::{
    DENSE_ALIGN, DENSE_FILE, DenseSection, EXPERTS_FILE, ExpertSection, NgramSection, TensorEntry,
    ngram_file,
};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::qwen4_exp::tensors::{self, TensorSpec};
use crate::record::RecordLayout;
use crate::rows::RowEncoding;

/// Values of a chunk, about: bounds the memory of a worker.
pub const CHUNK_VALUES: usize = 1 << 20;

/// A piece of work that writes one run of bytes with one checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Rows of a dense tensor.
    Dense {
        /// Place in the list of tensors.
        tensor: usize,
        /// First row.
        first: usize,
        /// Rows.
        rows: usize,
    },
    /// One expert record.
    Expert {
        /// Layer.
        layer: usize,
        /// Expert of the layer.
        expert: usize,
    },
    /// Rows of an n-gram table.
    Ngram {
        /// Table.
        table: usize,
        /// First row.
        first: u64,
        /// Rows.
        rows: usize,
    },
}

/// A job and where its bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Number of the file: dense, experts, then the n-gram tables.
    pub file: usize,
    /// First byte in it.
    pub offset: u64,
    /// Length.
    pub bytes: usize,
    /// What to do.
    pub job: Job,
}

/// The encoding of everything in a store.
#[derive(Clone, Debug)]
pub struct Encodings {
    /// One per tensor of [`tensors::dense`].
    pub dense: Vec<Encoding>,
    /// Gate and up of every expert.
    pub inner: Encoding,
    /// Down of every expert.
    pub outer: Encoding,
    /// One per n-gram table.
    pub tables: Vec<RowEncoding>,
}

/// Sections of the manifest without checksums, and the units that will supply them.
#[derive(Debug)]
pub struct Layout {
    /// Dense tensors.
    pub dense: DenseSection,
    /// Expert records.
    pub experts: ExpertSection,
    /// N-gram tables.
    pub ngram: Vec<NgramSection>,
    /// All units; a unit's number is its place here.
    pub units: Vec<Unit>,
}

impl Layout {
    /// Lays out a store. `Err` names what is too large, or does not fit its encoding.
    pub fn new(config: &Config, encodings: &Encodings) -> Result<Self, String> {
        let specs = tensors::dense(config);
        let mut units = Vec::new();
        let dense = dense(&specs, &encodings.dense, &mut units)?;
        let experts = experts(config, encodings, &mut units)?;
        let width = config.ple.as_ref().map_or(0, |p| p.row_width());
        let tables = HashTable::all(config).into_iter().zip(&encodings.tables).enumerate();
        let ngram = tables
            .map(|(i, (hash, &encoding))| table(i, hash.rows, width, encoding, &mut units))
            .collect::<Result<_, _>>()?;
        Ok(Self { dense, experts, ngram, units })
    }

    /// Names and sizes of the data files, in the order of [`Unit::file`].
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut files = vec![
            (self.dense.file.clone(), self.dense.bytes),
            (self.experts.file.clone(), self.experts.bytes),
        ];
        files.extend(self.ngram.iter().map(|n| (n.file.clone(), n.bytes)));
        files
    }

    /// Bytes of all units.
    pub fn bytes(&self) -> u64 {
        self.units.iter().map(|u| u.bytes as u64).sum()
    }
}

fn dense(
    specs: &[TensorSpec],
    encodings: &[Encoding],
    units: &mut Vec<Unit>,
) -> Result<DenseSection, String> {
    let mut tensors = Vec::with_capacity(specs.len());
    let mut end = 0u64;
    for (number, (spec, &encoding)) in specs.iter().zip(encodings).enumerate() {
        let offset = end.next_multiple_of(DENSE_ALIGN);
        let chunk_rows = (CHUNK_VALUES / spec.cols).next_multiple_of(16).max(16);
        let mut at = offset;
        for first in (0..spec.rows).step_by(chunk_rows) {
            let rows = chunk_rows.min(spec.rows - first);
            let bytes = encoding.byte_len(rows, spec.cols).ok_or_else(|| spec.name.clone())?;
            let job = Job::Dense { tensor: number, first, rows };
            units.push(Unit { file: 0, offset: at, bytes, job });
            at += bytes as u64;
        }
        end = at;
        tensors.push(TensorEntry {
            name: spec.name.clone(),
            rows: spec.rows,
            cols: spec.cols,
            encoding,
            offset,
            chunk_rows,
            checksums: Checksums::default(),
        });
    }
    Ok(DenseSection { file: DENSE_FILE.into(), bytes: end, tensors })
}

fn experts(
    config: &Config,
    encodings: &Encodings,
    units: &mut Vec<Unit>,
) -> Result<ExpertSection, String> {
    let too_large = || "experts".to_string();
    let (inner, outer) = (encodings.inner, encodings.outer);
    let layout =
        RecordLayout::new(config.hidden, config.moe.width, inner, outer).ok_or_else(too_large)?;
    let (layers, per_layer) = (config.expert_layers(), config.moe.experts);
    let record = layout.bytes();
    let bytes = (record as u64).checked_mul((layers * per_layer) as u64).ok_or_else(too_large)?;
    for number in 0..layers * per_layer {
        let job = Job::Expert { layer: number / per_layer, expert: number % per_layer };
        units.push(Unit { file: 1, offset: number as u64 * record as u64, bytes: record, job });
    }
    Ok(ExpertSection {
        file: EXPERTS_FILE.into(),
        bytes,
        layout,
        record_bytes: record as u64,
        layers,
        per_layer,
        checksums: Vec::new(),
    })
}

fn table(
    index: usize,
    rows: u64,
    width: usize,
    encoding: RowEncoding,
    units: &mut Vec<Unit>,
) -> Result<NgramSection, String> {
    let row_bytes = encoding.row_bytes(width).ok_or("n-gram rows")?;
    let bytes = rows.checked_mul(row_bytes as u64).ok_or("n-gram table")?;
    let chunk_rows = (CHUNK_VALUES / width).max(1);
    for first in (0..rows).step_by(chunk_rows) {
        let rows = (rows - first).min(chunk_rows as u64) as usize;
        let job = Job::Ngram { table: index, first, rows };
        let offset = first * row_bytes as u64;
        units.push(Unit { file: 2 + index, offset, bytes: rows * row_bytes, job });
    }
    Ok(NgramSection {
        file: ngram_file(index),
        bytes,
        rows,
        width,
        encoding,
        row_bytes: row_bytes as u64,
        chunk_rows: chunk_rows as u64,
        checksums: Checksums::default(),
    })
}
