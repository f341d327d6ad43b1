//! Random models of any geometry, for benchmarks of real size and for tests.
//!
//! Owns: synthetic stores and checkpoints as a whole. Never: the geometry of a preset (see
//! `geometry`), single numbers (see `values`), how a store is written (see `pack`).
//! Invariant: the bytes follow from geometry, precisions and seed alone; a checkpoint holds the same
//! weights as the 16-bit store of the same geometry and seed, so packing it at 16 bits gives that.

mod checkpoint;
mod config_json;
pub mod geometry;
mod values;
mod words;

pub use checkpoint::checkpoint;
pub use geometry::Preset;

use crate::checksum::{Checksums, checksum};
use crate::encoding::{Bits, Encoding, Group};
use crate::error::{Error, Result};
use crate::manifest::{Manifest, SourceInfo};
use crate::pack::build::{Builder, Task};
use crate::pack::convert::Stats;
use crate::pack::journal::Done;
use crate::pack::layout::{Encodings, Job, Layout};
use crate::pack::{Existing, Precision, Report};
use crate::progress::{Progress, Stage};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::qwen4_exp::tensors::{self, Kind, TensorSpec};
use crate::record::{Projection, RecordLayout};
use crate::rows::{ROW_GROUP, RowEncoding};
use std::num::NonZeroUsize;
use std::path::Path;
use values::{Noise, Spread};

/// Changes whenever the same options would give other bytes than before.
const RECIPE: u32 = 1;

/// What to make.
#[derive(Clone, Debug)]
pub struct Options {
    /// Geometry. The end tokens should be those of [`geometry::set_vocab`], so that the tokenizer
    /// agrees with them.
    pub config: Config,
    /// Routed experts of a store.
    pub experts: Precision,
    /// Routed experts of a store at other precisions, each in a file of its own. Their weights are
    /// drawn anew: they have nothing in common with those at the first precision but their spread.
    pub other_experts: Vec<Precision>,
    /// Projections, embedding and lm_head of a store.
    pub dense: Precision,
    /// N-gram tables of a store.
    pub ngram: Precision,
    /// Another seed gives other weights.
    pub seed: u64,
    /// A store that is there already.
    pub existing: Existing,
    /// Worker threads; all that the machine has when not given.
    pub threads: Option<NonZeroUsize>,
}

impl Options {
    /// A model of this geometry: experts and n-gram rows at 4 bits, everything else at 8.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            experts: Precision::Bits(Bits::B4),
            other_experts: Vec::new(),
            dense: Precision::Bits(Bits::B8),
            ngram: Precision::Bits(Bits::B4),
            seed: 1,
            existing: Existing::default(),
            threads: None,
        }
    }

    fn check(&self, out: &Path) -> Result<()> {
        self.config.validate().map_err(|found| {
            let expected = "a geometry that this family allows";
            Error::invalid(out, "geometry", found, expected, "change the values named")
        })
    }
}

/// Writes a store of random weights to `out`. It is verified, run and served like any other; an
/// interrupted run resumes when it is repeated with the same options.
///
/// # Errors
/// When the geometry is impossible, `out` is taken, or the disk refuses.
pub fn store(out: &Path, options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    options.check(out)?;
    let mut builder = Builder::new(out, options.existing, progress)?;
    builder.tick(Stage::Inspect, 0, 1, 0)?;
    let source = Source::new(options);
    let (encodings, notes) = encodings(out, options, &source.specs)?;
    let layout = Layout::new(&options.config, &encodings).map_err(|what| {
        let (found, expected) = ("a size that overflows", "sizes that fit in memory");
        Error::invalid(out, what, found, expected, "choose a smaller geometry")
    })?;
    let c = &options.config;
    let side = words::files(c.vocab, c.eos_hash, &c.eos_stop);
    let task = Task { layout, side, identity: identity(options), threads: options.threads };
    builder.tick(Stage::Inspect, 1, 1, 0)?;
    let fill = |jobs: &[Job], out: &mut [Vec<u8>]| {
        jobs.iter().zip(out).for_each(|(&job, out)| source.fill(&task.layout, job, out));
        Ok(vec![Stats::default(); jobs.len()])
    };
    builder.build(&task, &fill, |done| (manifest(options, &task, done, notes), Vec::new()))
}

/// Digest of everything that decides the store's bytes.
fn identity(options: &Options) -> u64 {
    let config = serde_json::to_string(&options.config).expect("a config serialises");
    let text = format!(
        "synth {RECIPE} {:?} {:?} {:?} {:?} seed {} {config}",
        options.experts, options.other_experts, options.dense, options.ngram, options.seed
    );
    checksum(text.as_bytes())
}

fn manifest(options: &Options, task: &Task, done: &[Done], mut notes: Vec<String>) -> Manifest {
    notes.insert(0, format!("random weights from seed {}: the text is noise", options.seed));
    let source = SourceInfo {
        model_type: "qwen4_exp".into(),
        format: "synthetic".into(),
        bytes: 0,
        identity: Checksums(vec![task.identity]),
    };
    // No norms were read: the effective weights are drawn.
    task.manifest(options.config.clone(), done, Vec::new(), source, notes)
}

/// The encoding for every tensor, chosen as `pack` does for a bf16 source, and what to note.
fn encodings(
    out: &Path,
    options: &Options,
    specs: &[TensorSpec],
) -> Result<(Encodings, Vec<String>)> {
    let mut notes = Vec::new();
    let mut choose = |what: &str, cols: usize, precision: Precision| {
        match (precision, Group::dividing(cols)) {
            (Precision::Bits(bits), Some(group)) => return Encoding::Tile16 { bits, group },
            (Precision::Bits(_), None) => notes.push(format!(
                "{what}: {cols} inputs are not a multiple of 32, stored unquantised"
            )),
            _ => {}
        }
        Encoding::Bf16
    };
    let dense = specs.iter().map(|spec| match spec.kind {
        Kind::Linear | Kind::Mix | Kind::Vocab => {
            choose(&spec.name, spec.cols, options.dense.of(spec.kind))
        }
        Kind::Gate => Encoding::Bf16,
        Kind::Norm | Kind::Plain => Encoding::F32,
    });
    let dense = dense.collect();
    let mut experts: Vec<[Encoding; 2]> = Vec::new();
    for &wanted in [&options.experts].into_iter().chain(&options.other_experts) {
        let inner = choose("expert gate and up", options.config.hidden, wanted);
        let outer = choose("expert down", options.config.moe.width, wanted);
        if experts.contains(&[inner, outer]) {
            let (found, expected) = ("the same precision twice", "each once");
            return Err(Error::invalid(out, "experts", found, expected, "leave one out"));
        }
        experts.push([inner, outer]);
    }
    let tables = options.config.ple.iter().flat_map(|ple| {
        let width = ple.row_width();
        let encoding = match options.ngram {
            Precision::Bits(bits) if width.is_multiple_of(ROW_GROUP) => {
                RowEncoding::Affine { bits }
            }
            _ => RowEncoding::Bf16,
        };
        vec![encoding; ple.layers.len()]
    });
    Ok((Encodings { dense, experts, tables: tables.collect() }, notes))
}

/// All weights of a model, by name and row.
struct Source<'a> {
    config: &'a Config,
    seed: u64,
    specs: Vec<TensorSpec>,
    tables: Vec<HashTable>,
}

impl<'a> Source<'a> {
    fn new(options: &'a Options) -> Self {
        let config = &options.config;
        let (specs, tables) = (tensors::dense(config), HashTable::all(config));
        Self { config, seed: options.seed, specs, tables }
    }

    /// Draws a row of a dense tensor as a checkpoint stores it.
    fn dense_row(&self, spec: &TensorSpec, row: usize, out: &mut [f32]) {
        let noise = Noise::new(self.seed, &spec.name, row as u64);
        values::row(noise, Spread::of(spec, self.config), out);
    }

    /// Draws a row of an expert's matrix.
    fn expert_row(
        &self,
        layer: usize,
        expert: usize,
        which: Projection,
        row: usize,
        out: &mut [f32],
    ) {
        let noise = Noise::new(self.seed, &expert_name(layer, expert, which), row as u64);
        values::row(noise, Spread::expert(out.len()), out);
    }

    /// Draws a row of an n-gram table.
    fn table_row(&self, table: usize, row: u64, out: &mut [f32]) {
        values::row(Noise::new(self.seed, &table_name(table), row), Spread::NGRAM, out);
    }

    /// Writes the bytes of one unit to `out`, which is zeroed.
    fn fill(&self, layout: &Layout, job: Job, out: &mut [u8]) {
        match job {
            Job::Dense { tensor, first, rows } => {
                let spec = &self.specs[tensor];
                let float = |row: usize, out: &mut [f32]| {
                    self.dense_row(spec, first + row, out);
                    if spec.kind == Kind::Norm {
                        out.iter_mut().for_each(|w| *w += 1.0);
                    }
                };
                let mut noise = Noise::new(self.seed, &spec.name, first as u64);
                let encoding = layout.dense.tensors[tensor].encoding;
                let spread = Spread::of(spec, self.config);
                values::matrix(&mut noise, spread, (rows, spec.cols), encoding, float, out);
            }
            Job::Expert { section, layer, expert } => {
                self.record(&layout.experts[section].layout, layer, expert, out);
            }
            Job::Ngram { table, first, rows } => {
                let section = &layout.ngram[table];
                let mut noise = Noise::new(self.seed, &table_name(table), first);
                let float =
                    |row: usize, out: &mut [f32]| self.table_row(table, first + row as u64, out);
                values::table(&mut noise, section.width, rows, section.encoding, float, out);
            }
        }
    }

    fn record(&self, record: &RecordLayout, layer: usize, expert: usize, out: &mut [u8]) {
        for which in [Projection::Gate, Projection::Up, Projection::Down] {
            let (rows, cols, encoding) = record.shape(which);
            let (offset, len) = record.span(which);
            let mut noise = Noise::new(self.seed, &expert_name(layer, expert, which), 0);
            let float =
                |row: usize, out: &mut [f32]| self.expert_row(layer, expert, which, row, out);
            let out = &mut out[offset..][..len];
            values::matrix(&mut noise, Spread::expert(cols), (rows, cols), encoding, float, out);
        }
    }
}

fn expert_name(layer: usize, expert: usize, which: Projection) -> String {
    format!("expert {layer}/{expert} {which:?}")
}

fn table_name(table: usize) -> String {
    format!("ngram {table}")
}
