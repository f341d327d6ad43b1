//! How the numbers of a checkpoint will be encoded, decided before a byte is written.
//!
//! Owns: the choice of encodings. Never: offsets (see `layout`), writing.
//! Invariant: the choice follows from checkpoint and options alone, so an interrupted pack makes it
//! again.

use super::convert::fits_bf16;
use super::layout::{CHUNK_VALUES, Encodings, Layout};
use super::{Options, Precision};
use crate::checkpoint::Checkpoint;
use crate::checkpoint::catalog::{Catalog, ExpertRows};
use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::source::{Numbers, SourceMatrix};
use crate::encoding::{Bits, Encoding, Group};
use crate::error::{Error, Result};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::tensors::Kind;
use crate::record::RecordLayout;
use crate::rows::{ROW_GROUP, RowEncoding};

/// Plans a store for `catalog`. Returns what the user should know besides.
pub fn plan(
    checkpoint: &Checkpoint,
    config: &Config,
    catalog: &Catalog,
    options: &Options,
) -> Result<(Layout, Vec<String>)> {
    let mut planner = Planner { checkpoint, notes: Vec::new() };
    let dense = planner.dense(catalog, options)?;
    let mut experts = Vec::new();
    for &wanted in [&options.experts].into_iter().chain(&options.other_experts) {
        experts.push(planner.experts(config, catalog, wanted)?);
    }
    let mut tables = Vec::new();
    for shards in &catalog.ngram {
        tables.push(planner.table(shards, options)?);
    }
    let encodings = Encodings { dense, experts, tables };
    let layout = Layout::new(config, &encodings).map_err(|what| {
        let (found, expected) = ("a size that overflows", "sizes that fit in memory");
        Error::invalid(&checkpoint.dir, what, found, expected, "check config.json")
    })?;
    let twice = |x: &RecordLayout, y: &RecordLayout| x.code_bits() == y.code_bits();
    let layouts: Vec<RecordLayout> = layout.experts.iter().map(|x| x.layout).collect();
    for (i, x) in layouts.iter().enumerate() {
        if layouts[..i].iter().any(|y| twice(x, y)) {
            let width = x.code_bits().map_or(16, Bits::get);
            return Err(Error::invalid(
                &checkpoint.dir,
                "experts",
                format!("two precisions that both come to {width} bits"),
                "as many different ones as are asked for",
                "ask for each once, and for none above what the checkpoint has",
            ));
        }
    }
    Ok((layout, planner.notes))
}

struct Planner<'a> {
    checkpoint: &'a Checkpoint,
    notes: Vec<String>,
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

    fn dense(&mut self, catalog: &Catalog, options: &Options) -> Result<Vec<Encoding>> {
        let mut chosen = Vec::with_capacity(catalog.dense.len());
        for (spec, matrix) in &catalog.dense {
            chosen.push(match spec.kind {
                Kind::Linear | Kind::Mix | Kind::Vocab => {
                    let precision = options.dense.of(spec.kind);
                    let encoding = self.quantised(matrix, precision)?;
                    self.note_width(&spec.name, spec.cols, precision, encoding);
                    encoding
                }
                Kind::Gate => self.exact(matrix)?,
                Kind::Norm | Kind::Plain => Encoding::F32,
            });
        }
        Ok(chosen)
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
        wanted: Precision,
    ) -> Result<[Encoding; 2]> {
        let layers = &catalog.experts;
        let inner: Vec<&ExpertRows> = layers.iter().flat_map(|l| [&l.gate, &l.up]).collect();
        let outer: Vec<&ExpertRows> = layers.iter().map(|l| &l.down).collect();
        let inner = self.joined(&inner, wanted)?;
        let outer = self.joined(&outer, wanted)?;
        self.note_width("expert gate and up", config.hidden, wanted, inner);
        self.note_width("expert down", config.moe.width, wanted, outer);
        Ok([inner, outer])
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

    fn table(&mut self, shards: &[SourceMatrix], options: &Options) -> Result<RowEncoding> {
        let width = shards.first().map_or(0, |s| s.cols);
        let encoding = self.row_encoding(shards, options.ngram)?;
        if matches!(options.ngram, Precision::Bits(_)) && !width.is_multiple_of(ROW_GROUP) {
            self.notes.push(format!(
                "n-gram rows of {width} values are not a multiple of 32, stored unquantised"
            ));
        }
        Ok(encoding)
    }
}
