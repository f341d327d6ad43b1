//! What a pack will write, decided before a byte is written.
//!
//! Owns: encodings, offsets, chunks, the unfinished manifest and the list of units.
//! Never: writing. Invariant: the plan follows from checkpoint and options alone, so an interrupted
//! pack finds the same plan again.

use super::convert::fits_bf16;
use super::{Options, Precision};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::catalog::{Catalog, ExpertRows};
use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::source::{Numbers, SourceMatrix};
use crate::checksum::Checksums;
use crate::encoding::{Bits, Encoding, Group};
use crate::error::{Error, Result};
use crate::manifest::{
    DENSE_ALIGN, DENSE_FILE, DenseSection, EXPERTS_FILE, ExpertSection, NgramSection, TensorEntry,
    ngram_file,
};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::tensors::Kind;
use crate::record::RecordLayout;
use crate::rows::{ROW_GROUP, RowEncoding};

/// Values of a chunk, about: bounds the memory of a worker.
const CHUNK_VALUES: usize = 1 << 20;

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

/// Sections of the manifest without checksums, and the units that will supply them.
#[derive(Debug)]
pub struct Plan {
    /// Dense tensors.
    pub dense: DenseSection,
    /// Expert records.
    pub experts: ExpertSection,
    /// N-gram tables.
    pub ngram: Vec<NgramSection>,
    /// All units; a unit's number is its place here.
    pub units: Vec<Unit>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Plan {
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

    /// Plans a store for `catalog`.
    pub fn new(
        checkpoint: &Checkpoint,
        config: &Config,
        catalog: &Catalog,
        options: &Options,
    ) -> Result<Self> {
        let mut planner = Planner { checkpoint, notes: Vec::new(), units: Vec::new() };
        let dense = planner.dense(catalog, options)?;
        let experts = planner.experts(config, catalog, options)?;
        let mut ngram = Vec::new();
        for (index, shards) in catalog.ngram.iter().enumerate() {
            let rows = catalog.hash_tables[index].rows;
            ngram.push(planner.table(index, shards, rows, options)?);
        }
        Ok(Self { dense, experts, ngram, units: planner.units, notes: planner.notes })
    }
}

struct Planner<'a> {
    checkpoint: &'a Checkpoint,
    notes: Vec<String>,
    units: Vec<Unit>,
}

/// The narrowest width of ours that holds codes of `bits` bits.
fn tile_bits(bits: usize) -> Bits {
    Bits::ALL.into_iter().find(|b| b.get() >= bits).unwrap_or(Bits::B8)
}

/// An encoding that holds exactly what both hold.
fn join(a: Encoding, b: Encoding) -> Encoding {
    match (a, b) {
        (Encoding::Tile16 { bits: x, group: g }, Encoding::Tile16 { bits: y, group: h }) => {
            let group = if g.get() < h.get() { g } else { h };
            Encoding::Tile16 { bits: x.max(y), group }
        }
        (a, b) if a == b => a,
        _ => Encoding::F32,
    }
}

impl Planner<'_> {
    /// bf16 if every value fits, else f32.
    fn exact(&self, m: &SourceMatrix) -> Result<Encoding> {
        let Numbers::Float(at) = &m.numbers else { return Ok(Encoding::F32) };
        if at.info.dtype == Dtype::Bf16 {
            return Ok(Encoding::Bf16);
        }
        let step = (CHUNK_VALUES / m.cols.max(1)).max(1);
        let mut values = vec![0f32; m.cols];
        for first in (0..m.rows).step_by(step) {
            let rows = step.min(m.rows - first);
            let block = self.checkpoint.read_rows(m, first, rows)?;
            for row in 0..rows {
                block.values(row, &mut values);
                if !values.iter().all(|&v| fits_bf16(v)) {
                    return Ok(Encoding::F32);
                }
            }
        }
        Ok(Encoding::Bf16)
    }

    /// The encoding of a quantisable matrix; `None` for the bits when no group divides its width.
    fn quantised(&self, m: &SourceMatrix, wanted: Precision) -> Result<Encoding> {
        if let Numbers::Affine { bits, group, .. } = m.numbers {
            let tile = tile_bits(bits);
            let keep = match wanted {
                Precision::Bits(wanted) => tile <= wanted,
                Precision::Bf16 => true,
            };
            if keep {
                let group = if group == 32 { Group::G32 } else { Group::G64 };
                return Ok(Encoding::Tile16 { bits: tile, group });
            }
        }
        match (wanted, Group::dividing(m.cols)) {
            (Precision::Bits(bits), Some(group)) => Ok(Encoding::Tile16 { bits, group }),
            _ => self.exact(m),
        }
    }

    fn note_width(&mut self, what: &str, cols: usize, wanted: Precision, got: Encoding) {
        if matches!(wanted, Precision::Bits(_)) && !matches!(got, Encoding::Tile16 { .. }) {
            self.notes.push(format!(
                "{what}: {cols} inputs are not a multiple of 32, stored unquantised"
            ));
        }
    }

    fn dense(&mut self, catalog: &Catalog, options: &Options) -> Result<DenseSection> {
        let mut tensors = Vec::with_capacity(catalog.dense.len());
        let mut end = 0u64;
        for (number, (spec, matrix)) in catalog.dense.iter().enumerate() {
            let encoding = match spec.kind {
                Kind::Linear | Kind::Mix | Kind::Vocab => {
                    let mix = spec.kind == Kind::Mix;
                    let precision = if mix { options.dense.at_least_8() } else { options.dense };
                    let encoding = self.quantised(matrix, precision)?;
                    self.note_width(&spec.name, spec.cols, precision, encoding);
                    encoding
                }
                Kind::Gate => self.exact(matrix)?,
                Kind::Norm | Kind::Plain => Encoding::F32,
            };
            let offset = end.next_multiple_of(DENSE_ALIGN);
            let chunk_rows = (CHUNK_VALUES / spec.cols).next_multiple_of(16).max(16);
            let mut at = offset;
            for first in (0..spec.rows).step_by(chunk_rows) {
                let rows = chunk_rows.min(spec.rows - first);
                let bytes =
                    encoding.byte_len(rows, spec.cols).ok_or_else(|| self.too_large(&spec.name))?;
                let job = Job::Dense { tensor: number, first, rows };
                self.units.push(Unit { file: 0, offset: at, bytes, job });
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

    fn too_large(&self, what: &str) -> Error {
        let expected = "sizes that fit in memory";
        Error::invalid(
            &self.checkpoint.dir,
            what,
            "a size that overflows",
            expected,
            "check config.json",
        )
    }

    fn joined(&self, rows: &[&ExpertRows], wanted: Precision) -> Result<Encoding> {
        let mut all: Option<Encoding> = None;
        for matrix in rows.iter().flat_map(|r| r.matrices()) {
            // f32 holds everything: no need to look further.
            if all == Some(Encoding::F32) {
                break;
            }
            let one = self.quantised(matrix, wanted)?;
            all = Some(all.map_or(one, |all| join(all, one)));
        }
        Ok(all.expect("every model has experts"))
    }

    fn experts(
        &mut self,
        config: &Config,
        catalog: &Catalog,
        options: &Options,
    ) -> Result<ExpertSection> {
        let layers = &catalog.experts;
        let inner: Vec<&ExpertRows> = layers.iter().flat_map(|l| [&l.gate, &l.up]).collect();
        let outer: Vec<&ExpertRows> = layers.iter().map(|l| &l.down).collect();
        let inner = self.joined(&inner, options.experts)?;
        let outer = self.joined(&outer, options.experts)?;
        self.note_width("expert gate and up", config.hidden, options.experts, inner);
        self.note_width("expert down", config.moe.width, options.experts, outer);
        let layout = RecordLayout::new(config.hidden, config.moe.width, inner, outer)
            .ok_or_else(|| self.too_large("experts"))?;
        let (count, per_layer) = (layers.len(), config.moe.experts);
        let record = layout.bytes();
        let bytes = (record as u64).checked_mul((count * per_layer) as u64);
        let bytes = bytes.ok_or_else(|| self.too_large("experts"))?;
        for number in 0..count * per_layer {
            let job = Job::Expert { layer: number / per_layer, expert: number % per_layer };
            self.units.push(Unit {
                file: 1,
                offset: number as u64 * record as u64,
                bytes: record,
                job,
            });
        }
        Ok(ExpertSection {
            file: EXPERTS_FILE.into(),
            bytes,
            layout,
            record_bytes: record as u64,
            layers: count,
            per_layer,
            checksums: Vec::new(),
        })
    }

    /// The row encoding that holds every shard of a table.
    fn row_encoding(&self, shards: &[SourceMatrix], wanted: Precision) -> Result<RowEncoding> {
        let mut all: Option<Encoding> = None;
        for shard in shards {
            if all == Some(Encoding::F32) {
                break;
            }
            let one = self.quantised(shard, wanted)?;
            all = Some(all.map_or(one, |all| join(all, one)));
        }
        Ok(match all {
            // Rows always use groups of 32: a wider source group is repeated.
            Some(Encoding::Tile16 { bits, .. }) => RowEncoding::Affine { bits },
            Some(Encoding::Bf16) => RowEncoding::Bf16,
            _ => RowEncoding::F32,
        })
    }

    fn table(
        &mut self,
        index: usize,
        shards: &[SourceMatrix],
        rows: u64,
        options: &Options,
    ) -> Result<NgramSection> {
        let width = shards.first().map_or(0, |s| s.cols);
        let encoding = self.row_encoding(shards, options.ngram)?;
        if matches!(options.ngram, Precision::Bits(_)) && !width.is_multiple_of(ROW_GROUP) {
            self.notes.push(format!(
                "n-gram rows of {width} values are not a multiple of 32, stored unquantised"
            ));
        }
        let row_bytes = encoding.row_bytes(width).ok_or_else(|| self.too_large("n-gram rows"))?;
        let bytes =
            rows.checked_mul(row_bytes as u64).ok_or_else(|| self.too_large("n-gram table"))?;
        let chunk_rows = (CHUNK_VALUES / width).max(1);
        for first in (0..rows).step_by(chunk_rows) {
            let rows = (rows - first).min(chunk_rows as u64) as usize;
            let job = Job::Ngram { table: index, first, rows };
            let offset = first * row_bytes as u64;
            self.units.push(Unit { file: 2 + index, offset, bytes: rows * row_bytes, job });
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
}
