//! A store or checkpoint as a GGUF file of the `qwen4exp` architecture, for other programs.
//!
//! Owns: the export as a whole. Never: single blocks (see `blocks`), names (see `names`).
//! Invariant: the file appears under its name only when it is whole. The draft head is left out:
//! the architecture has none.

mod blocks;
mod file;
mod meta;
mod names;
mod source;
mod vocab;

pub use blocks::{Tally, Type};

use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::float::bf16_to_f32;
use crate::matrix::MatrixRef;
use crate::pack::layout::{Job, Unit};
use crate::pack::work::{Meter, each, workers};
use crate::pio;
use crate::progress::{Progress, Stage, Status};
use crate::qwen4_exp::tensors::{self, Kind, TensorSpec};
use crate::record::Projection;
use crate::tile16::{TILE_ROWS, block_bytes, get_row};
use blocks::{BLOCK, Codes, Row};
use file::{ALIGN, Tensor};
use names::Move;
use source::Source;
use std::collections::HashMap;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// How numbers are written.
#[derive(Clone, Debug)]
pub struct Options {
    /// Routed experts.
    pub experts: Type,
    /// Projections, embedding and lm_head. Routers and small gates are always f32, as are norms.
    pub dense: Type,
    /// N-gram tables.
    pub ngram: Type,
    /// Replace a file that is there already.
    pub replace: bool,
    /// Worker threads; all that the machine has when not given.
    pub threads: Option<NonZeroUsize>,
}

/// What an export did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The file.
    pub out: PathBuf,
    /// Its size.
    pub bytes: u64,
    /// Tensors in it.
    pub tensors: usize,
    /// How closely it follows its source: dense, experts, ngram.
    pub parts: [(&'static str, Tally); 3],
    /// What the user should know.
    pub notes: Vec<String>,
}

/// The tensors of the file, and where each comes from.
struct Plan {
    specs: Vec<TensorSpec>,
    tensors: Vec<Tensor>,
    places: HashMap<String, usize>,
    /// Bytes of all tensors.
    bytes: u64,
    notes: Vec<String>,
}

impl Plan {
    fn new(source: &Source, options: &Options) -> std::result::Result<Self, String> {
        let config = &source.config;
        let mut plan = Self {
            specs: tensors::dense(config),
            tensors: Vec::new(),
            places: HashMap::new(),
            bytes: 0,
            notes: Vec::new(),
        };
        for spec in &plan.specs.clone() {
            for part in names::parts(spec, config) {
                let kind = match spec.kind {
                    Kind::Linear | Kind::Mix | Kind::Vocab => options.dense,
                    Kind::Gate | Kind::Norm | Kind::Plain => Type::F32,
                };
                let dims =
                    if spec.rows == 1 { vec![spec.cols] } else { vec![spec.cols, part.rows] };
                plan.add(part.name, &dims, kind)?;
            }
        }
        let (hidden, width, count) = (config.hidden, config.moe.width, config.moe.experts);
        for layer in 0..config.layers.len() {
            for which in ["gate", "up"] {
                plan.add(names::experts(layer, which), &[hidden, width, count], options.experts)?;
            }
            plan.add(names::experts(layer, "down"), &[width, hidden, count], options.experts)?;
        }
        if let Some(table) = source.layout.ngram.first() {
            plan.add(names::TABLE.into(), &[table.width, table.rows as usize], options.ngram)?;
        }
        Ok(plan)
    }

    fn add(&mut self, name: String, dims: &[usize], kind: Type) -> std::result::Result<(), String> {
        let kind = if kind.row_bytes(dims[0]).is_some() {
            kind
        } else {
            self.notes.push(format!(
                "{name}: {} inputs are not a multiple of {BLOCK}, stored as f32",
                dims[0]
            ));
            Type::F32
        };
        let row = kind.row_bytes(dims[0]).ok_or_else(|| name.clone())? as u64;
        let rows = dims[1..].iter().try_fold(1u64, |a, &d| a.checked_mul(d as u64));
        let bytes = rows.and_then(|r| r.checked_mul(row)).ok_or_else(|| name.clone())?;
        let dims = dims.iter().map(|&d| d as u64).collect();
        self.places.insert(name.clone(), self.tensors.len());
        self.tensors.push(Tensor { name, dims, kind, offset: self.bytes });
        self.bytes = (self.bytes + bytes).next_multiple_of(ALIGN);
        Ok(())
    }

    fn tensor(&self, name: &str) -> &Tensor {
        &self.tensors[self.places[name]]
    }
}

/// Writes the store or checkpoint in `dir` to the file `out`.
///
/// # Errors
/// When the model is one that the architecture cannot express, a weight is too large for its type, or
/// the disk refuses.
pub fn export(
    dir: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report> {
    if out.exists() && !(options.replace && out.is_file()) {
        let (expected, remedy) = ("no such file", "force replacement or name another output");
        return Err(Error::invalid(out, "output", "something there already", expected, remedy));
    }
    let mut tick = |stage, done, total, skipped| {
        let flow = progress.update(Status { stage, done, total, skipped });
        if flow.is_break() { Err(Error::Cancelled { path: out.to_owned() }) } else { Ok(()) }
    };
    tick(Stage::Inspect, 0, 1, 0)?;
    let source = Source::open(dir)?;
    meta::check(&source.config).map_err(|found| {
        let expected = "a model that the qwen4exp architecture can express";
        Error::invalid(dir, "config", found, expected, "there is no way to export this one")
    })?;
    let plan = Plan::new(&source, options).map_err(|what| {
        let (found, expected) = ("a size that overflows", "sizes that a file can have");
        Error::invalid(dir, what, found, expected, "export a smaller model")
    })?;
    let mut head = meta::head(&source.config, dir, options);
    let worded = vocab::put(&mut head, &source.side, &source.config, dir)?;
    let head = head.finish(&plan.tensors);
    tick(Stage::Inspect, 1, 1, 0)?;
    let partial = partial(out)?;
    let exporter = Exporter {
        file: create(&partial, head.len() as u64 + plan.bytes)?,
        path: partial,
        start: head.len() as u64,
        source: &source,
        plan: &plan,
    };
    pio::write_all_at(&exporter.file, &exporter.path, 0, &head)?;
    let parts = exporter.run(options, &mut tick);
    let parts = parts.inspect_err(|_| drop(fs::remove_file(&exporter.path)))?;
    exporter.publish(out)?;
    let mut notes = source.notes.clone();
    notes.extend(plan.notes);
    notes.extend(meta::notes(&source.config));
    if !worded {
        notes.push("there is no tokenizer: the file takes token ids only".into());
    }
    let bytes = head.len() as u64 + plan.bytes;
    Ok(Report { out: out.to_owned(), bytes, tensors: plan.tensors.len(), parts, notes })
}

/// The file's name until it is whole.
fn partial(out: &Path) -> Result<PathBuf> {
    let Some(name) = out.file_name() else {
        let expected = "the name of a file";
        return Err(Error::invalid(out, "output", "no name", expected, "name another output"));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(".partial");
    Ok(out.with_file_name(hidden))
}

fn create(path: &Path, bytes: u64) -> Result<File> {
    let parent = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| Error::io(parent, "create", e))?;
    let available =
        fs4::available_space(parent).map_err(|e| Error::io(parent, "ask the free space", e))?;
    if available < bytes {
        return Err(Error::Space { path: path.to_owned(), needed: bytes, available });
    }
    let file = File::create(path).map_err(|e| Error::io(path, "create", e))?;
    file.set_len(bytes).map_err(|e| Error::io(path, "set the size", e))?;
    Ok(file)
}

/// Writes tensors.
struct Exporter<'a> {
    path: PathBuf,
    file: File,
    /// First byte of the first tensor.
    start: u64,
    source: &'a Source,
    plan: &'a Plan,
}

/// Reports a step; an error when the caller wants to stop.
type Tick<'a> = dyn FnMut(Stage, u64, u64, u64) -> Result<()> + 'a;

impl Exporter<'_> {
    fn run(&self, options: &Options, tick: &mut Tick<'_>) -> Result<[(&'static str, Tally); 3]> {
        let units = &self.source.layout.units;
        let layers = self.source.config.layers.len();
        let wanted = |unit: &Unit| match unit.job {
            // Of several precisions the default one goes along.
            Job::Expert { section, layer, .. } => section == 0 && layer < layers,
            Job::Dense { tensor, .. } => !self.plan.specs[tensor].name.starts_with("mtp."),
            Job::Ngram { .. } => true,
        };
        let todo: Vec<usize> = (0..units.len()).filter(|&u| wanted(&units[u])).collect();
        let total = todo.iter().map(|&u| units[u].bytes as u64).sum();
        let meter = Meter { stage: Stage::Convert, total, skipped: 0 };
        let mut parts = ["dense", "experts", "ngram"].map(|name| (name, Tally::default()));
        let work = |number: usize| self.unit(&units[number]);
        let land = |number: usize, tally: Tally| {
            let part = match units[number].job {
                Job::Dense { .. } => 0,
                Job::Expert { .. } => 1,
                Job::Ngram { .. } => 2,
            };
            parts[part].1.add(&tally);
            Ok(units[number].bytes as u64)
        };
        each(&todo, workers(options.threads), work, land, &meter, tick)?;
        Ok(parts)
    }

    fn publish(&self, out: &Path) -> Result<()> {
        self.file.sync_all().map_err(|e| Error::io(&self.path, "sync", e))?;
        let action = format!("rename to {}", out.display());
        fs::rename(&self.path, out).map_err(|e| Error::io(&self.path, action, e))
    }

    fn unit(&self, unit: &Unit) -> Result<Tally> {
        let bytes = self.source.read(unit)?;
        let mut tally = Tally::default();
        match unit.job {
            Job::Dense { tensor, first, rows } => {
                self.dense(tensor, first, rows, &bytes, &mut tally)?;
            }
            Job::Expert { section, layer, expert } => {
                let layout = self.source.layout.experts[section].layout;
                for (which, name) in
                    [(Projection::Gate, "gate"), (Projection::Up, "up"), (Projection::Down, "down")]
                {
                    let matrix = layout.matrix(&bytes, which);
                    let to = self.plan.tensor(&names::experts(layer, name));
                    let rows = matrix.rows();
                    let at = |row: usize| expert * rows + row;
                    self.matrix(matrix, Move::None, to, &at, &mut tally)?;
                }
            }
            Job::Ngram { table, first, rows } => {
                let section = &self.source.layout.ngram[table];
                let to = self.plan.tensor(names::TABLE);
                let mut values = vec![0f32; section.width];
                let (mut codes, mut pairs) = (vec![0; section.width], Vec::new());
                let mut out = Rows::new(self, to, first as usize, rows);
                for row in bytes.chunks_exact(section.row_bytes as usize) {
                    section.encoding.decode(row, &mut values);
                    let affine = section.encoding.codes(row, &mut codes, &mut pairs);
                    let codes = affine.map(|group| Codes { codes: &codes, pairs: &pairs, group });
                    out.put(Row { values: &values, codes }, &mut tally)?;
                }
                out.write()?;
            }
        }
        Ok(tally)
    }

    fn dense(
        &self,
        tensor: usize,
        first: usize,
        rows: usize,
        bytes: &[u8],
        tally: &mut Tally,
    ) -> Result<()> {
        let (spec, delta) = (&self.plan.specs[tensor], &self.source.config.delta);
        let encoding = self.source.layout.dense.tensors[tensor].encoding;
        let how = names::moved(spec, delta);
        let matrix = MatrixRef::new(rows, spec.cols, encoding, bytes).expect("a unit's length");
        for part in names::parts(spec, &self.source.config) {
            let to = self.plan.tensor(&part.name);
            let inside = |row: usize| {
                let row = names::row(first + row, how, delta);
                row.checked_sub(part.first).filter(|&row| row < part.rows)
            };
            // Rows of other parts are skipped.
            let at = |row: usize| inside(row).unwrap_or(usize::MAX);
            self.matrix(matrix, how, to, &at, tally)?;
        }
        Ok(())
    }

    /// Writes the rows of a matrix; `at` says where each goes, `usize::MAX` that it does not.
    fn matrix(
        &self,
        matrix: MatrixRef<'_>,
        how: Move,
        to: &Tensor,
        at: &dyn Fn(usize) -> usize,
        tally: &mut Tally,
    ) -> Result<()> {
        let delta = &self.source.config.delta;
        let mut line = Line::new(matrix);
        let mut run: Option<Rows<'_>> = None;
        let mut next = 0;
        for row in 0..matrix.rows() {
            let place = at(row);
            if place == usize::MAX {
                continue;
            }
            line.read(row);
            if let Move::Cols(size) = how {
                line.permute(size, |head| names::head(head, delta));
            }
            if to.name.ends_with("ssm_a") {
                // The decay itself instead of its logarithm.
                line.values.iter_mut().for_each(|v| *v = -f64::from(*v).exp() as f32);
            }
            if run.is_none() || place != next {
                if let Some(done) = run.take() {
                    done.write()?;
                }
                run = Some(Rows::new(self, to, place, matrix.rows() - row));
            }
            if let Some(run) = &mut run {
                run.put(line.row(), tally)?;
            }
            next = place + 1;
        }
        run.map_or(Ok(()), Rows::write)
    }
}

/// One row of a matrix as values and, where it has them, codes.
struct Line<'a> {
    matrix: MatrixRef<'a>,
    values: Vec<f32>,
    codes: Vec<u8>,
    pairs: Vec<(f32, f32)>,
}

impl<'a> Line<'a> {
    fn new(matrix: MatrixRef<'a>) -> Self {
        let cols = matrix.cols();
        let values = vec![0f32; cols];
        let (codes, pairs) = match matrix.encoding() {
            Encoding::Tile16 { group, .. } => (vec![0; cols], vec![(0.0, 0.0); cols / group.get()]),
            _ => (Vec::new(), Vec::new()),
        };
        Self { matrix, values, codes, pairs }
    }

    fn group(&self) -> usize {
        if self.pairs.is_empty() { 0 } else { self.codes.len() / self.pairs.len() }
    }

    fn read(&mut self, row: usize) {
        let Encoding::Tile16 { bits, group } = self.matrix.encoding() else {
            self.matrix.read_row(row, &mut self.values);
            return;
        };
        let size = block_bytes(bits, group);
        let per_tile = self.pairs.len();
        let parts = self.codes.chunks_exact_mut(group.get());
        let parts = parts.zip(self.values.chunks_exact_mut(group.get())).zip(&mut self.pairs);
        for (g, ((codes, values), pair)) in parts.enumerate() {
            let block = &self.matrix.bytes()[(row / TILE_ROWS * per_tile + g) * size..][..size];
            let (s, b) = get_row(block, bits, group, row % TILE_ROWS, codes);
            *pair = (bf16_to_f32(s), bf16_to_f32(b));
            for (value, &code) in values.iter_mut().zip(&*codes) {
                *value = f32::from(code) * pair.0 + pair.1;
            }
        }
    }

    /// Moves pieces of `size` columns; codes are kept where groups move as a whole.
    fn permute(&mut self, size: usize, to: impl Fn(usize) -> usize) {
        let moved = |old: &[f32], new: &mut [f32], size: usize| {
            for (from, piece) in old.chunks_exact(size).enumerate() {
                new[to(from) * size..][..size].copy_from_slice(piece);
            }
        };
        let old = self.values.clone();
        moved(&old, &mut self.values, size);
        let group = self.group();
        if group == 0 || !size.is_multiple_of(group) {
            (self.codes, self.pairs) = (Vec::new(), Vec::new());
            return;
        }
        let (codes, pairs, per_piece) = (self.codes.clone(), self.pairs.clone(), size / group);
        for from in 0..codes.len() / size {
            let at = to(from);
            self.codes[at * size..][..size].copy_from_slice(&codes[from * size..][..size]);
            self.pairs[at * per_piece..][..per_piece]
                .copy_from_slice(&pairs[from * per_piece..][..per_piece]);
        }
    }

    fn row(&self) -> Row<'_> {
        let group = self.group();
        let codes = (group > 0).then(|| Codes { codes: &self.codes, pairs: &self.pairs, group });
        Row { values: &self.values, codes }
    }
}

/// Consecutive rows of one tensor of the file.
struct Rows<'a> {
    exporter: &'a Exporter<'a>,
    to: &'a Tensor,
    offset: u64,
    row_bytes: usize,
    bytes: Vec<u8>,
}

impl<'a> Rows<'a> {
    fn new(exporter: &'a Exporter<'a>, to: &'a Tensor, first: usize, rows: usize) -> Self {
        let row_bytes = to.kind.row_bytes(to.dims[0] as usize).expect("planned");
        let offset = exporter.start + to.offset + (first * row_bytes) as u64;
        Self { exporter, to, offset, row_bytes, bytes: Vec::with_capacity(rows * row_bytes) }
    }

    fn put(&mut self, row: Row<'_>, tally: &mut Tally) -> Result<()> {
        let at = self.bytes.len();
        self.bytes.resize(at + self.row_bytes, 0);
        blocks::put_row(row, self.to.kind, &mut self.bytes[at..], tally).map_err(|value| {
            let found = format!("a weight of {value}");
            let expected = format!("numbers that {} can hold", self.to.kind.name());
            let subject = self.to.name.clone();
            Error::invalid(&self.exporter.path, subject, found, expected, "choose bf16 or f32")
        })
    }

    fn write(self) -> Result<()> {
        let e = self.exporter;
        pio::write_all_at(&e.file, &e.path, self.offset, &self.bytes)
    }
}
