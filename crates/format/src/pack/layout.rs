//! Where every byte of a store goes, decided before one is written.
//!
//! Owns: offsets, chunks, the manifest's sections without checksums, the list of units.
//! Never: choosing encodings (see `plan`), writing. Invariant: the layout follows from geometry and
//! encodings alone, so an interrupted build finds the same one again.

use crate::checksum::Checksums;
use crate::encoding::Encoding;
use crate::manifest::{
    DENSE_ALIGN, DENSE_FILE, DenseSection, EXPERTS_FILE, ExpertSection, Manifest, NgramSection,
    TensorEntry, ngram_file, other_experts_file,
};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::qwen4_exp::tensors::{self, TensorSpec};
use crate::record::RecordLayout;
use crate::rows::RowEncoding;
use crate::store::chunk_lens;
use std::ops::Range;

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
        /// Place in the list of precisions.
        section: usize,
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
    /// Number of the file: dense, experts by precision, then the n-gram tables.
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
    /// Gate and up, and down of every expert, at each precision; the default comes first.
    pub experts: Vec<[Encoding; 2]>,
    /// One per n-gram table.
    pub tables: Vec<RowEncoding>,
}

/// Sections of the manifest without checksums, and the units that will supply them.
#[derive(Debug)]
pub struct Layout {
    /// Dense tensors.
    pub dense: DenseSection,
    /// Expert records at each precision; the default comes first.
    pub experts: Vec<ExpertSection>,
    /// N-gram tables.
    pub ngram: Vec<NgramSection>,
    /// All units; a unit's number is its place here.
    pub units: Vec<Unit>,
}

impl Layout {
    /// Lays out a store. `Err` names what is too large, or does not fit its encoding.
    pub fn new(config: &Config, encodings: &Encodings) -> Result<Self, String> {
        let specs = tensors::dense(config);
        let dense = dense(&specs, &encodings.dense)?;
        let experts = encodings.experts.iter().enumerate();
        let experts = experts.map(|(i, &pair)| section(config, i, pair));
        let experts = experts.collect::<Result<Vec<_>, _>>()?;
        let width = config.ple.as_ref().map_or(0, |p| p.row_width());
        let tables = HashTable::all(config).into_iter().zip(&encodings.tables).enumerate();
        let ngram = tables
            .map(|(i, (hash, &encoding))| table(i, hash.rows, width, encoding))
            .collect::<Result<Vec<_>, _>>()?;
        let units = units(&dense, &experts, &ngram);
        Ok(Self { dense, experts, ngram, units })
    }

    /// The layout of a finished store, whose manifest has been checked.
    pub fn of(manifest: &Manifest) -> Self {
        let dense = manifest.dense.clone();
        let experts: Vec<_> = manifest.all_experts().cloned().collect();
        let ngram = manifest.ngram.clone();
        let units = units(&dense, &experts, &ngram);
        Self { dense, experts, ngram, units }
    }

    /// Names and sizes of the data files, in the order of [`Unit::file`].
    pub fn files(&self) -> Vec<(String, u64)> {
        let mut files = vec![(self.dense.file.clone(), self.dense.bytes)];
        files.extend(self.experts.iter().map(|x| (x.file.clone(), x.bytes)));
        files.extend(self.ngram.iter().map(|n| (n.file.clone(), n.bytes)));
        files
    }

    /// The first expert records: all the others have this geometry.
    pub fn default_experts(&self) -> &ExpertSection {
        &self.experts[0]
    }

    /// Units that are made together, since they come from the same numbers: the records of an expert
    /// at all precisions; any other unit alone. Every unit is in one batch, in order.
    pub fn batches(&self) -> Vec<Range<usize>> {
        let mut batches: Vec<Range<usize>> = Vec::new();
        for (number, unit) in self.units.iter().enumerate() {
            match (batches.last_mut(), unit.job) {
                (Some(last), Job::Expert { section, .. }) if section > 0 => last.end = number + 1,
                _ => batches.push(number..number + 1),
            }
        }
        batches
    }

    /// Bytes of all units.
    pub fn bytes(&self) -> u64 {
        self.units.iter().map(|u| u.bytes as u64).sum()
    }
}

/// Every unit, by file and place; the records of an expert follow each other.
fn units(dense: &DenseSection, experts: &[ExpertSection], ngram: &[NgramSection]) -> Vec<Unit> {
    let mut units = Vec::new();
    for (tensor, t) in dense.tensors.iter().enumerate() {
        let mut offset = t.offset;
        let chunks = (0..t.rows).step_by(t.chunk_rows).zip(chunk_lens(t));
        for (first, bytes) in chunks {
            let rows = t.chunk_rows.min(t.rows - first);
            let job = Job::Dense { tensor, first, rows };
            units.push(Unit { file: 0, offset, bytes, job });
            offset += bytes as u64;
        }
    }
    let (layers, per_layer) = (experts[0].layers, experts[0].per_layer);
    for number in 0..layers * per_layer {
        let (layer, expert) = (number / per_layer, number % per_layer);
        for (section, x) in experts.iter().enumerate() {
            let (offset, bytes) = (number as u64 * x.record_bytes, x.record_bytes as usize);
            let job = Job::Expert { section, layer, expert };
            units.push(Unit { file: 1 + section, offset, bytes, job });
        }
    }
    for (table, n) in ngram.iter().enumerate() {
        for first in (0..n.rows).step_by(n.chunk_rows as usize) {
            let rows = (n.rows - first).min(n.chunk_rows) as usize;
            let (offset, bytes) = (first * n.row_bytes, rows * n.row_bytes as usize);
            let job = Job::Ngram { table, first, rows };
            units.push(Unit { file: 1 + experts.len() + table, offset, bytes, job });
        }
    }
    units
}

fn dense(specs: &[TensorSpec], encodings: &[Encoding]) -> Result<DenseSection, String> {
    let mut tensors = Vec::with_capacity(specs.len());
    let mut end = 0u64;
    for (spec, &encoding) in specs.iter().zip(encodings) {
        let offset = end.next_multiple_of(DENSE_ALIGN);
        let chunk_rows = (CHUNK_VALUES / spec.cols).next_multiple_of(16).max(16);
        let bytes = encoding.byte_len(spec.rows, spec.cols).ok_or_else(|| spec.name.clone())?;
        end = offset.checked_add(bytes as u64).ok_or_else(|| spec.name.clone())?;
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

fn section(
    config: &Config,
    index: usize,
    [inner, outer]: [Encoding; 2],
) -> Result<ExpertSection, String> {
    let too_large = || "experts".to_string();
    let layout =
        RecordLayout::new(config.hidden, config.moe.width, inner, outer).ok_or_else(too_large)?;
    let (layers, per_layer) = (config.expert_layers(), config.moe.experts);
    let record = layout.bytes();
    let bytes = (record as u64).checked_mul((layers * per_layer) as u64).ok_or_else(too_large)?;
    Ok(ExpertSection {
        file: if index == 0 { EXPERTS_FILE.into() } else { other_experts_file(&layout) },
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
) -> Result<NgramSection, String> {
    let row_bytes = encoding.row_bytes(width).ok_or("n-gram rows")?;
    let bytes = rows.checked_mul(row_bytes as u64).ok_or("n-gram table")?;
    let chunk_rows = (CHUNK_VALUES / width).max(1);
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
