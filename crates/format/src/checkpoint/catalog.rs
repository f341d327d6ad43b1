//! The tensors that a configuration needs, found in a checkpoint.
//!
//! Owns: matching names, shapes and types; what is missing, extra or of the wrong kind.
//! Never: reading weights, except the small integer constants.

use super::safetensors::Dtype;
use super::source::{Numbers, SourceMatrix};
use super::{Checkpoint, Located, Parts, unsupported};
use crate::error::{Error, Result};
use crate::pio;
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::qwen4_exp::tensors::{self, Kind, TensorSpec};
use std::collections::BTreeSet;

/// What to do with tensors that the configuration does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExtraTensors {
    /// An error that names the first of them.
    #[default]
    Refuse,
    /// Leave them out, with a note.
    Skip,
}

/// One projection of the experts of a layer.
#[derive(Clone, Debug)]
pub struct ExpertRows {
    /// One stacked matrix, or one per expert.
    matrices: Vec<SourceMatrix>,
    /// Rows from one expert to the next in a stacked matrix.
    stride: usize,
    /// First row within an expert's rows.
    start: usize,
}

impl ExpertRows {
    /// The matrix and the first row of one expert.
    pub fn get(&self, expert: usize) -> (&SourceMatrix, usize) {
        match self.matrices.as_slice() {
            [stacked] if self.stride > 0 => (stacked, expert * self.stride + self.start),
            each => (&each[expert], self.start),
        }
    }

    /// The matrices behind it.
    pub fn matrices(&self) -> &[SourceMatrix] {
        &self.matrices
    }
}

/// The experts of one layer.
#[derive(Clone, Debug)]
pub struct LayerExperts {
    /// `[width, hidden]` each.
    pub gate: ExpertRows,
    /// `[width, hidden]` each.
    pub up: ExpertRows,
    /// `[hidden, width]` each.
    pub down: ExpertRows,
}

/// Everything that a store needs from a checkpoint.
#[derive(Debug)]
pub struct Catalog {
    /// The dense tensors, in store order.
    pub dense: Vec<(TensorSpec, SourceMatrix)>,
    /// Experts by layer: the trunk's, then the draft head's.
    pub experts: Vec<LayerExperts>,
    /// Row ranges of each n-gram table, in row order.
    pub ngram: Vec<Vec<SourceMatrix>>,
    /// Hash constants, agreed between checkpoint and formula.
    pub hash_tables: Vec<HashTable>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Whether the checkpoint holds any tensor of the draft head.
pub fn has_draft_head(checkpoint: &Checkpoint) -> bool {
    checkpoint
        .tensors
        .range("mtp.".to_string()..)
        .next()
        .is_some_and(|(n, _)| n.starts_with("mtp."))
}

/// Finds every tensor of `config`.
pub fn find(checkpoint: &Checkpoint, config: &Config, extra: ExtraTensors) -> Result<Catalog> {
    let mut finder = Finder { checkpoint, used: BTreeSet::new() };
    let mut dense = Vec::new();
    for spec in tensors::dense(config) {
        let matrix = finder.dense(&spec)?;
        dense.push((spec, matrix));
    }
    let mut experts = Vec::new();
    for layer in 0..config.expert_layers() {
        let at = if layer < config.layers.len() {
            format!("layers.{layer}.mlp.experts")
        } else {
            "mtp.layers.0.mlp.experts".to_string()
        };
        experts.push(finder.layer_experts(&at, config)?);
    }
    let mut ngram = Vec::new();
    let hash_tables = HashTable::all(config);
    let ple = config.ple.iter().flat_map(|p| p.layers.iter().map(|&l| (l, p.row_width())));
    for ((layer, width), table) in ple.zip(&hash_tables) {
        let at = format!("layers.{layer}.ple.ple_embedding");
        finder.constants(&at, table)?;
        ngram.push(finder.table(&at, table.rows, width)?);
    }
    let notes = finder.leftovers(config, extra)?;
    Ok(Catalog { dense, experts, ngram, hash_tables, notes })
}

struct Finder<'a> {
    checkpoint: &'a Checkpoint,
    used: BTreeSet<String>,
}

/// The tensor of one name, its shape already chosen.
struct Wanted<'a> {
    name: &'a str,
    /// Accepted shapes.
    shapes: Vec<Vec<u64>>,
    rows: usize,
    cols: usize,
}

fn show(shapes: &[Vec<u64>]) -> String {
    let mut texts: Vec<String> = shapes.iter().map(|s| format!("{s:?}")).collect();
    texts.dedup();
    texts.join(" or ")
}

impl Finder<'_> {
    fn has(&self, name: &str) -> bool {
        self.checkpoint.tensors.contains_key(name)
    }

    fn missing(&self, name: &str) -> Error {
        let absent = &self.checkpoint.missing_shards;
        let remedy = if !absent.is_empty() {
            format!("download the missing shards: {}", absent.join(", "))
        } else if name.starts_with("mtp.") {
            "use a checkpoint with its draft head, or ask to drop the head".to_string()
        } else {
            "use a complete qwen4_exp checkpoint".to_string()
        };
        let expected = "a tensor that config.json demands";
        Error::invalid(
            &self.checkpoint.dir,
            format!("tensor {name}"),
            "no such tensor",
            expected,
            remedy,
        )
    }

    fn parts(&mut self, name: &str) -> Result<Parts> {
        let parts = self.checkpoint.tensors.get(name).ok_or_else(|| self.missing(name))?;
        self.used.insert(name.to_string());
        Ok(parts.clone())
    }

    fn wrong(&self, at: &Located, found: String, expected: String) -> Error {
        let remedy = "config.json and weights do not belong together: use a matching pair";
        let path = self.checkpoint.path_of(at);
        Error::invalid(path, format!("tensor {}", at.info.name), found, expected, remedy)
    }

    fn dense(&mut self, spec: &TensorSpec) -> Result<SourceMatrix> {
        let (rows, cols) = (spec.rows as u64, spec.cols as u64);
        let vector = spec.rows == 1
            && !matches!(spec.kind, Kind::Linear | Kind::Mix | Kind::Vocab | Kind::Gate);
        let shapes = if vector {
            vec![vec![cols]]
        } else if spec.name.ends_with("conv1d") {
            // torch's layout, MLX's (channel axis last) and the squeezed one: the same bytes.
            vec![vec![rows, 1, cols], vec![rows, cols, 1], vec![rows, cols]]
        } else {
            vec![vec![rows, cols]]
        };
        let wanted = Wanted { name: &spec.name, shapes, rows: spec.rows, cols: spec.cols };
        let matrix = self.matrix(&wanted)?;
        let plain = matches!(spec.kind, Kind::Norm | Kind::Plain);
        if let (true, Numbers::Affine { weight, .. }) = (plain, &matrix.numbers) {
            return Err(self.wrong(weight, "affine codes".into(), "BF16, F16 or F32".into()));
        }
        Ok(matrix)
    }

    fn matrix(&mut self, wanted: &Wanted<'_>) -> Result<SourceMatrix> {
        let parts = self.parts(wanted.name)?;
        let Some(weight) = parts.weight else { return Err(self.missing(wanted.name)) };
        let numbers = match (parts.scales, parts.biases) {
            (None, None) => self.float(weight, wanted)?,
            (Some(scales), Some(biases)) => self.affine(weight, scales, biases, wanted)?,
            (Some(at), None) | (None, Some(at)) => {
                let path = self.checkpoint.path_of(&at);
                let subject = format!("tensor {}", wanted.name);
                return Err(if at.info.dtype == Dtype::U8 {
                    unsupported(path, &subject, "MXFP4 or NVFP4 weights of MLX")
                } else {
                    self.wrong(&at, "scales or biases alone".into(), "both".into())
                });
            }
        };
        let (name, rows, cols) = (wanted.name.to_string(), wanted.rows, wanted.cols);
        Ok(SourceMatrix { name, rows, cols, numbers })
    }

    fn float(&self, weight: Located, wanted: &Wanted<'_>) -> Result<Numbers> {
        let info = &weight.info;
        if !info.dtype.is_float() || !wanted.shapes.contains(&info.shape) {
            let found = format!("{:?} {:?}", info.dtype, info.shape);
            let expected = format!("BF16, F16 or F32 {}", show(&wanted.shapes));
            return Err(self.wrong(&weight, found, expected));
        }
        Ok(Numbers::Float(weight))
    }

    /// Bits and group follow from the shapes alone, so that no override can be overlooked.
    fn affine(
        &self,
        weight: Located,
        scales: Located,
        biases: Located,
        wanted: &Wanted<'_>,
    ) -> Result<Numbers> {
        let lead_of = |shape: &[u64]| Some(shape.split_last()?.1.to_vec());
        let leads: Vec<Vec<u64>> = wanted.shapes.iter().filter_map(|s| lead_of(s)).collect();
        let fits = |at: &Located| lead_of(&at.info.shape).is_some_and(|l| leads.contains(&l));
        if weight.info.dtype != Dtype::U32 || !fits(&weight) {
            let found = format!("{:?} {:?}", weight.info.dtype, weight.info.shape);
            let expected = format!("U32 codes for {}", show(&wanted.shapes));
            return Err(self.wrong(&weight, found, expected));
        }
        let float = scales.info.dtype.is_float() && biases.info.dtype.is_float();
        if !float || !fits(&scales) || scales.info.shape != biases.info.shape {
            let found = format!(
                "scales {:?} {:?}, biases {:?} {:?}",
                scales.info.dtype, scales.info.shape, biases.info.dtype, biases.info.shape
            );
            let expected = format!("floats of one shape for {}", show(&wanted.shapes));
            return Err(self.wrong(&scales, found, expected));
        }
        let cols = wanted.cols as u64;
        let (words, groups) = (weight.info.shape.last(), scales.info.shape.last());
        let divide = |a: u64, b: u64| (b > 0 && a.is_multiple_of(b)).then(|| a / b);
        let bits = words.and_then(|w| divide(w.checked_mul(32)?, cols));
        let group = groups.and_then(|&g| divide(cols, g));
        match (bits, group) {
            (Some(bits @ (2..=6 | 8)), Some(group @ (32 | 64 | 128))) => Ok(Numbers::Affine {
                weight,
                scales,
                biases,
                bits: bits as usize,
                group: group as usize,
            }),
            _ => {
                let found = format!("{words:?} words and {groups:?} groups for {cols} inputs");
                let expected = "2, 3, 4, 5, 6 or 8 bits in groups of 32, 64 or 128";
                Err(self.wrong(&weight, found, expected.into()))
            }
        }
    }

    fn stacked(
        &mut self,
        name: &str,
        c: &Config,
        rows: usize,
        cols: usize,
    ) -> Result<SourceMatrix> {
        let experts = c.moe.experts;
        let shapes = vec![vec![experts as u64, rows as u64, cols as u64]];
        self.matrix(&Wanted { name, shapes, rows: experts * rows, cols })
    }

    fn projection(
        &mut self,
        at: &str,
        which: &str,
        c: &Config,
        rows: usize,
        cols: usize,
    ) -> Result<ExpertRows> {
        let stacked = format!("{at}.{which}");
        if self.has(&stacked) || !self.has(&format!("{at}.0.{which}")) {
            let matrices = vec![self.stacked(&stacked, c, rows, cols)?];
            return Ok(ExpertRows { matrices, stride: rows, start: 0 });
        }
        let mut matrices = Vec::with_capacity(c.moe.experts);
        for expert in 0..c.moe.experts {
            let name = format!("{at}.{expert}.{which}");
            let shapes = vec![vec![rows as u64, cols as u64]];
            matrices.push(self.matrix(&Wanted { name: &name, shapes, rows, cols })?);
        }
        Ok(ExpertRows { matrices, stride: 0, start: 0 })
    }

    fn layer_experts(&mut self, at: &str, c: &Config) -> Result<LayerExperts> {
        let (hidden, width) = (c.hidden, c.moe.width);
        let fused = format!("{at}.gate_up_proj");
        // Absence is reported under the official name.
        let split = self.has(&format!("{at}.gate_proj")) || self.has(&format!("{at}.0.gate_proj"));
        let (gate, up) = if split && !self.has(&fused) {
            let gate = self.projection(at, "gate_proj", c, width, hidden)?;
            (gate, self.projection(at, "up_proj", c, width, hidden)?)
        } else {
            let both = self.stacked(&fused, c, 2 * width, hidden)?;
            let half =
                |start| ExpertRows { matrices: vec![both.clone()], stride: 2 * width, start };
            (half(0), half(width))
        };
        let down = self.projection(at, "down_proj", c, hidden, width)?;
        Ok(LayerExperts { gate, up, down })
    }

    /// Compares the stored integer constants of a table, where present, with the formula.
    fn constants(&mut self, at: &str, table: &HashTable) -> Result<()> {
        let parts = [
            ("layer_multipliers", &table.multipliers),
            ("ngram_heads_vocab_sizes", &table.sizes),
            ("ngram_heads_offsets", &table.offsets),
        ];
        for (name, expected) in parts {
            let name = format!("{at}.{name}");
            if !self.has(&name) {
                continue;
            }
            let Some(weight) = self.parts(&name)?.weight else { return Err(self.missing(&name)) };
            let info = &weight.info;
            let count: u64 = info.shape.iter().product();
            if info.dtype != Dtype::I64 || count != expected.len() as u64 {
                let found = format!("{:?} {:?}", info.dtype, info.shape);
                return Err(self.wrong(&weight, found, format!("I64 [{}]", expected.len())));
            }
            let path = self.checkpoint.path_of(&weight);
            let mut bytes = vec![0; expected.len() * 8];
            let file = &self.checkpoint.shards[weight.shard].file;
            pio::read_exact_at(file, path, info.offset, &mut bytes)?;
            let words =
                bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().expect("8 bytes")));
            let found: Vec<i64> = words.collect();
            if &found != expected {
                let expected = format!("{expected:?} by seed and geometry of config.json");
                return Err(self.wrong(&weight, format!("{found:?}"), expected));
            }
        }
        Ok(())
    }

    fn table(&mut self, at: &str, rows: u64, width: usize) -> Result<Vec<SourceMatrix>> {
        let whole = format!("{at}.ngram_embedding");
        let mut shards = Vec::new();
        let mut total = 0u64;
        for k in 0.. {
            let name = if self.has(&whole) && k == 0 {
                whole.clone()
            } else {
                format!("{whole}.shard_{k}")
            };
            let weight = self.checkpoint.tensors.get(&name).and_then(|p| p.weight.as_ref());
            let Some(weight) = weight.filter(|_| total < rows) else { break };
            let found = weight.info.shape.first().copied().unwrap_or(0);
            if weight.info.shape.len() != 2 || found == 0 || found > rows - total {
                let expected = format!("[1..={}, {width}]", rows - total);
                return Err(self.wrong(weight, format!("{:?}", weight.info.shape), expected));
            }
            let shapes = vec![vec![found, width as u64]];
            let wanted = Wanted { name: &name, shapes, rows: found as usize, cols: width };
            shards.push(self.matrix(&wanted)?);
            total += found;
        }
        if total < rows {
            let mut error = self.missing(&format!("{whole}.shard_{}", shards.len()));
            if let Error::Invalid { found, expected, .. } = &mut error {
                *found = format!("{total} rows in {} parts", shards.len());
                *expected = format!("{rows} rows");
            }
            return Err(error);
        }
        Ok(shards)
    }

    /// Judges the tensors that nothing asked for.
    fn leftovers(&self, config: &Config, extra: ExtraTensors) -> Result<Vec<String>> {
        let mut notes = Vec::new();
        let mut unknown = Vec::new();
        let (mut head, mut tied) = (0, 0);
        for (name, parts) in &self.checkpoint.tensors {
            if self.used.contains(name) {
                continue;
            }
            if config.mtp.is_none() && name.starts_with("mtp.") {
                head += 1;
            } else if config.tied_embeddings && name == "lm_head" {
                tied += 1;
            } else {
                let part =
                    parts.weight.as_ref().or(parts.scales.as_ref()).or(parts.biases.as_ref());
                unknown.extend(part.map(|at| (name, at)));
            }
        }
        if head > 0 {
            notes.push(format!("{head} tensors of the draft head were left out"));
        }
        if tied > 0 {
            notes.push("lm_head was left out: config.json ties it to the embedding".into());
        }
        let Some((_, first)) = unknown.first() else { return Ok(notes) };
        if extra == ExtraTensors::Refuse {
            return Err(Error::invalid(
                self.checkpoint.path_of(first),
                format!("tensor {}", first.info.name),
                format!("{} tensors that this configuration does not know", unknown.len()),
                "only tensors of the model",
                "use a matching config.json, or ask to skip extra tensors",
            ));
        }
        let names: Vec<&str> = unknown.iter().take(5).map(|(n, _)| n.as_str()).collect();
        notes.push(format!(
            "{} unknown tensors were left out: {}, ...",
            unknown.len(),
            names.join(", ")
        ));
        Ok(notes)
    }
}
