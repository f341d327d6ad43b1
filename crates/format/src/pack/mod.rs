//! Checkpoint to store.
//!
//! Owns: options, the order of work, workers. Never: printing, clocks.
//! Invariant: memory is bounded by a few chunks or experts per worker, whatever the model's size;
//! the store's bytes follow from source and options alone, however often the work was interrupted.

pub(crate) mod build;
pub(crate) mod convert;
pub(crate) mod fill;
pub(crate) mod journal;
pub(crate) mod layout;
pub(crate) mod place;
mod plan;
pub(crate) mod work;

pub use crate::checkpoint::catalog::ExtraTensors;
pub use place::default_out;

use crate::checkpoint::catalog::{self, Catalog};
use crate::checkpoint::json::{self, Choices, Declared, ParsedConfig};
use crate::checkpoint::source::Numbers;
use crate::checkpoint::{Checkpoint, read_small};
use crate::checksum::{Checksums, checksum};
use crate::encoding::Bits;
use crate::error::{Error, Result};
use crate::manifest::{Manifest, NormDecision, Origin, SIDE_FILES, SourceInfo, VERSION};
use crate::norms::{self, NormOverride, NormStat};
use crate::progress::{Progress, Stage};
use crate::qwen4_exp::config::HiddenNorm;
use crate::qwen4_exp::tensors::Kind;
use build::{Builder, Task};
use journal::Done;
use layout::Job;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Changes whenever the same source and options would give other bytes than before.
const RECIPE: u32 = 3;

/// How wide numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precision {
    /// Affine codes of this width; narrower codes of the source stay as they are.
    Bits(Bits),
    /// The source's numbers exactly: bf16 where it holds them all, else f32; codes of the source
    /// stay as they are.
    Bf16,
}

impl Precision {
    /// The precision of a dense tensor of this kind where this is asked for: mixing projections get
    /// 8 bits or more.
    pub(crate) fn of(self, kind: Kind) -> Self {
        match (self, kind) {
            (Self::Bits(_), Kind::Mix) => Self::Bits(Bits::B8),
            (other, _) => other,
        }
    }
}

impl TryFrom<u32> for Precision {
    type Error = String;

    /// 2, 3, 4, 8 or 16.
    fn try_from(bits: u32) -> std::result::Result<Self, String> {
        if bits == 16 {
            return Ok(Self::Bf16);
        }
        let known = Bits::try_from(bits)
            .map_err(|_| format!("found {bits} bits, expected 2, 3, 4, 8 or 16"));
        known.map(Self::Bits)
    }
}

/// What to do with an output that is there already.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// An error.
    #[default]
    Refuse,
    /// Replace it once the new store is whole; only a store is ever replaced.
    Replace,
}

/// What to do about the draft head.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DraftHead {
    /// Pack it when the configuration declares it; its absence is then an error.
    #[default]
    AsDeclared,
    /// Leave it out.
    Drop,
}

/// Choices of a pack.
#[derive(Clone, Debug)]
pub struct Options {
    /// Routed experts.
    pub experts: Precision,
    /// The same experts at other precisions, each in a file of its own.
    pub other_experts: Vec<Precision>,
    /// Projections, embedding and lm_head; mixing projections of hyper-connections get 8 bits or more.
    pub dense: Precision,
    /// N-gram tables.
    pub ngram: Precision,
    /// Norm conventions that the user imposes.
    pub norms: NormOverride,
    /// Norm of the draft head's hidden input.
    pub hidden_norm: HiddenNorm,
    /// Whether the draft head is packed.
    pub draft: DraftHead,
    /// Token on which the n-gram window resets, when config.json has it wrong.
    pub eos_hash: Option<u32>,
    /// Tensors that the configuration does not know.
    pub extra: ExtraTensors,
    /// An output that is there already.
    pub existing: Existing,
    /// Worker threads; all that the machine has when not given.
    pub threads: Option<NonZeroUsize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            experts: Precision::Bits(Bits::B4),
            other_experts: Vec::new(),
            dense: Precision::Bits(Bits::B8),
            ngram: Precision::Bits(Bits::B4),
            norms: NormOverride::default(),
            hidden_norm: HiddenNorm::Global,
            draft: DraftHead::default(),
            eos_hash: None,
            extra: ExtraTensors::default(),
            existing: Existing::default(),
            threads: None,
        }
    }
}

/// How closely a part of the store follows its source.
#[derive(Clone, Debug, PartialEq)]
pub struct Quality {
    /// `dense`, `experts` (`experts at 3 bits` where there are several precisions) or `ngram`.
    pub part: String,
    /// Values.
    pub values: u64,
    /// Root of (squared error over squares); 0 when exact.
    pub relative_rms: f64,
    /// The same, had every scale come from the plain range of its group.
    pub plain_relative_rms: f64,
}

/// What a pack did.
#[derive(Clone, Debug)]
pub struct Report {
    /// The store.
    pub out: PathBuf,
    /// Its files with their sizes.
    pub files: Vec<(String, u64)>,
    /// All sizes together.
    pub bytes: u64,
    /// Bytes that an earlier, interrupted run had written.
    pub resumed_bytes: u64,
    /// How norms were read.
    pub norms: Vec<NormDecision>,
    /// How closely the store follows the source.
    pub quality: Vec<Quality>,
    /// What the user should know; also in the manifest.
    pub notes: Vec<String>,
}

/// Everything known before writing.
pub(crate) struct Inspected {
    checkpoint: Checkpoint,
    pub(crate) parsed: ParsedConfig,
    catalog: Catalog,
    norms: Vec<NormDecision>,
    pub(crate) notes: Vec<String>,
}

/// Packs the checkpoint in `src` into the store `out`. An interrupted pack resumes when it is run
/// again with the same source and options.
pub fn pack(
    src: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let mut builder = Builder::new(out, options.existing, progress)?;
    builder.tick(Stage::Inspect, 0, 1, 0)?;
    let (seen, task) = inspect(src, options)?;
    builder.tick(Stage::Inspect, 1, 1, 0)?;
    let fill = |jobs: &[Job], out: &mut [Vec<u8>]| fill::fill(&seen, &task.layout, jobs, out);
    builder.build(&task, &fill, |done| complete(&seen, &task, done))
}

/// Looks at a checkpoint and decides everything.
pub(crate) fn inspect(src: &Path, options: &Options) -> Result<(Inspected, Task)> {
    let choices = Choices { hidden_norm: options.hidden_norm, eos_hash: options.eos_hash };
    let mut parsed = json::read(src, choices)?;
    let checkpoint = Checkpoint::open(src)?;
    let mut notes = std::mem::take(&mut parsed.notes);
    let undeclared = parsed.mtp == Declared::Unsaid && !catalog::has_draft_head(&checkpoint);
    if options.draft == DraftHead::Drop || undeclared {
        parsed.config.mtp = None;
    }
    let catalog = catalog::find(&checkpoint, &parsed.config, options.extra)?;
    let norms = decide_norms(&checkpoint, &catalog, &options.norms)?;
    let (layout, planned) = plan::plan(&checkpoint, &parsed.config, &catalog, options)?;
    let side = side_files(src)?;
    if !side.iter().any(|(name, _)| *name == "tokenizer.json") {
        notes.push("tokenizer.json is absent: the store takes token ids only".into());
    }
    notes.extend(checkpoint.notes.iter().cloned());
    notes.extend(catalog.notes.iter().cloned());
    notes.extend(planned);
    let identity = identity(src, &checkpoint, options, &side)?;
    let task = Task { layout, side, identity, threads: options.threads };
    Ok((Inspected { checkpoint, parsed, catalog, norms, notes }, task))
}

/// The tokenizer's files that `dir` has.
pub(crate) fn side_files(dir: &Path) -> Result<Vec<(&'static str, Vec<u8>)>> {
    let mut side = Vec::new();
    for name in SIDE_FILES {
        if let Some(bytes) = read_small(&dir.join(name))? {
            side.push((name, bytes));
        }
    }
    Ok(side)
}

fn decide_norms(
    checkpoint: &Checkpoint,
    catalog: &Catalog,
    imposed: &NormOverride,
) -> Result<Vec<NormDecision>> {
    let mut stats = Vec::new();
    for (spec, matrix) in catalog.dense.iter().filter(|(spec, _)| spec.kind == Kind::Norm) {
        let mut values = vec![0f32; spec.cols];
        checkpoint.read_rows(matrix, 0, 1)?.values(0, &mut values);
        let count = values.len() as f64;
        stats.push(NormStat {
            name: spec.name.clone(),
            mean: values.iter().map(|&v| f64::from(v)).sum::<f64>() / count,
            negative: values.iter().filter(|&&v| v < 0.0).count() as f64 / count,
        });
    }
    let decided = norms::decide(&stats, imposed).map_err(|found| {
        let expected = "medians near 0 (raw) or near 1 (shifted), one convention per group";
        let remedy = "say what the norms are, for example `trunk=raw` or `shifted`";
        Error::invalid(&checkpoint.dir, "norms", found, expected, remedy)
    })?;
    let decision = |e: norms::Evidence| NormDecision {
        group: e.group,
        convention: e.convention,
        mean: e.mean,
        negative: e.negative,
        tensors: e.tensors,
        origin: if imposed.0.contains_key(&e.group) { Origin::Override } else { Origin::Evidence },
    };
    Ok(decided.into_iter().map(decision).collect())
}

/// Digest of everything that decides the store's bytes.
fn identity(
    src: &Path,
    checkpoint: &Checkpoint,
    options: &Options,
    side: &[(&'static str, Vec<u8>)],
) -> Result<u64> {
    let config = read_small(&src.join("config.json"))?.unwrap_or_default();
    let mut text = format!(
        "recipe {RECIPE} version {VERSION} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} config {:016x}\n",
        options.experts,
        options.other_experts,
        options.dense,
        options.ngram,
        options.norms,
        options.hidden_norm,
        options.draft,
        options.eos_hash,
        options.extra,
        checksum(&config)
    );
    for (name, bytes) in side {
        text += &format!("{name} {:016x}\n", checksum(bytes));
    }
    for shard in &checkpoint.shards {
        let meta = shard.file.metadata().map_err(|e| Error::io(&shard.path, "ask the size", e))?;
        let time = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
        text += &format!("{:?} {} {:?}\n", shard.path.file_name(), meta.len(), time);
    }
    Ok(checksum(text.as_bytes()))
}

/// The finished manifest, and how close the conversion came.
fn complete(seen: &Inspected, task: &Task, done: &[Done]) -> (Manifest, Vec<Quality>) {
    let mut notes = seen.notes.clone();
    let mut quality = Vec::new();
    for (part, s) in task.sums(done) {
        let rms = |error: f64| if s.squares > 0.0 { (error / s.squares).sqrt() } else { 0.0 };
        let (relative_rms, plain_relative_rms) = (rms(s.error), rms(s.plain));
        if s.values > 0 {
            notes.push(format!(
                "{part}: relative rms error {relative_rms:.6} ({plain_relative_rms:.6} with plain ranges)"
            ));
        }
        if s.rounded > 0 {
            notes.push(format!(
                "{part}: {} groups had a scale or bias that bf16 cannot hold; codes kept, scale rounded, bias refitted",
                s.rounded
            ));
        }
        if s.values > 0 {
            quality.push(Quality { part, values: s.values, relative_rms, plain_relative_rms });
        }
    }
    let affine =
        seen.catalog.dense.iter().any(|(_, m)| matches!(m.numbers, Numbers::Affine { .. }));
    let bytes =
        seen.checkpoint.shards.iter().filter_map(|s| s.file.metadata().ok()).map(|m| m.len()).sum();
    let source = SourceInfo {
        model_type: seen.parsed.model_type.clone(),
        format: if affine { "mlx-affine" } else { "float" }.into(),
        bytes,
        identity: Checksums(vec![task.identity]),
    };
    let config = seen.parsed.config.clone();
    (task.manifest(config, done, seen.norms.clone(), source, notes), quality)
}
