//! Checkpoint to store.
//!
//! Owns: options, the order of work, workers. Never: printing, clocks.
//! Invariant: memory is bounded by a few chunks or experts per worker, whatever the model's size;
//! the store's bytes follow from source and options alone, however often the work was interrupted.

mod convert;
mod journal;
mod place;
mod plan;
mod work;

pub use crate::checkpoint::catalog::ExtraTensors;
pub use place::default_out;

use crate::checkpoint::catalog::{self, Catalog};
use crate::checkpoint::json::{self, Choices, Declared, ParsedConfig};
use crate::checkpoint::source::Numbers;
use crate::checkpoint::{Checkpoint, read_small};
use crate::checksum::{Checksums, checksum};
use crate::encoding::Bits;
use crate::error::{Error, Result};
use crate::manifest::{
    self, FORMAT, FileEntry, MANIFEST_FILE, Manifest, NormDecision, Origin, SIDE_FILES, SourceInfo,
    VERSION,
};
use crate::norms::{self, Convention, NormOverride, NormStat};
use crate::progress::{Progress, Stage, Status};
use crate::qwen4_exp::config::HiddenNorm;
use crate::qwen4_exp::tensors::Kind;
use convert::Stats;
use journal::{Done, JOURNAL_FILE};
use place::Place;
use plan::{Job, Plan};
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

/// Changes whenever the same source and options would give other bytes than before.
const RECIPE: u32 = 2;

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
    /// This, or 8 bits if it is narrower.
    fn at_least_8(self) -> Self {
        match self {
            Self::Bits(_) => Self::Bits(Bits::B8),
            Self::Bf16 => Self::Bf16,
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
    /// `dense`, `experts` or `ngram`.
    pub part: &'static str,
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
struct Inspected {
    checkpoint: Checkpoint,
    parsed: ParsedConfig,
    catalog: Catalog,
    norms: Vec<NormDecision>,
    plan: Plan,
    side: Vec<(&'static str, Vec<u8>)>,
    identity: u64,
    notes: Vec<String>,
}

/// Packs the checkpoint in `src` into the store `out`. An interrupted pack resumes when it is run
/// again with the same source and options.
pub fn pack(
    src: &Path,
    out: &Path,
    options: &Options,
    progress: &mut dyn Progress,
) -> Result<Report> {
    let place = Place::new(out)?;
    place.check_free(options.existing)?;
    let mut tick = |stage, done, total, skipped| {
        let flow = progress.update(Status { stage, done, total, skipped });
        if flow.is_break() { Err(Error::Cancelled { path: place.out.clone() }) } else { Ok(()) }
    };
    tick(Stage::Inspect, 0, 1, 0)?;
    let seen = inspect(src, options)?;
    tick(Stage::Inspect, 1, 1, 0)?;
    let (manifest, quality, resumed_bytes) = match finished(&place, seen.identity) {
        // Everything was written and only the renames are left.
        Some(manifest) => (manifest, Vec::new(), seen.plan.bytes()),
        None => {
            let (done, resumed) = work::run(&place, &seen, options, &mut tick)?;
            let (manifest, quality) = complete(&seen, &done);
            sync_files(&place, &seen, &mut tick)?;
            tick(Stage::Publish, 0, 3, 0)?;
            write_manifest(&place, &manifest)?;
            (manifest, quality, resumed)
        }
    };
    tick(Stage::Publish, 1, 3, 0)?;
    let journal = place.partial.join(JOURNAL_FILE);
    match fs::remove_file(&journal) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
            return Err(Error::io(&journal, "delete", e));
        }
        _ => {}
    }
    tick(Stage::Publish, 2, 3, 0)?;
    place.publish()?;
    report(&place, manifest, quality, resumed_bytes)
}

/// The manifest of a directory that only lacks its name, if it is ours.
fn finished(place: &Place, identity: u64) -> Option<Manifest> {
    let manifest = manifest::read(&place.partial).ok()?;
    (manifest.source.identity.0 == [identity]).then_some(manifest)
}

fn report(
    place: &Place,
    manifest: Manifest,
    quality: Vec<Quality>,
    resumed_bytes: u64,
) -> Result<Report> {
    let path = place.out.join(MANIFEST_FILE);
    let own = fs::metadata(&path).map_err(|e| Error::io(&path, "ask the size", e))?.len();
    let mut files = vec![(MANIFEST_FILE.to_string(), own)];
    files.push((manifest.dense.file, manifest.dense.bytes));
    files.push((manifest.experts.file, manifest.experts.bytes));
    files.extend(manifest.ngram.into_iter().map(|n| (n.file, n.bytes)));
    files.extend(manifest.files.into_iter().map(|f| (f.file, f.bytes)));
    Ok(Report {
        out: place.out.clone(),
        bytes: files.iter().map(|(_, bytes)| bytes).sum(),
        files,
        resumed_bytes,
        norms: manifest.norms,
        quality,
        notes: manifest.notes,
    })
}

fn inspect(src: &Path, options: &Options) -> Result<Inspected> {
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
    let plan = Plan::new(&checkpoint, &parsed.config, &catalog, options)?;
    let mut side = Vec::new();
    for name in SIDE_FILES {
        if let Some(bytes) = read_small(&src.join(name))? {
            side.push((name, bytes));
        }
    }
    if !side.iter().any(|(name, _)| *name == "tokenizer.json") {
        notes.push("tokenizer.json is absent: the store takes token ids only".into());
    }
    notes.extend(checkpoint.notes.iter().cloned());
    notes.extend(catalog.notes.iter().cloned());
    notes.extend(plan.notes.iter().cloned());
    let identity = identity(src, &checkpoint, options, &side)?;
    Ok(Inspected { checkpoint, parsed, catalog, norms, plan, side, identity, notes })
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
        "recipe {RECIPE} version {VERSION} {:?} {:?} {:?} {:?} {:?} {:?} {:?} {:?} config {:016x}\n",
        options.experts,
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
fn complete(seen: &Inspected, done: &[Done]) -> (Manifest, Vec<Quality>) {
    let plan = &seen.plan;
    let (mut dense, mut experts, mut ngram) =
        (plan.dense.clone(), plan.experts.clone(), plan.ngram.clone());
    experts.checksums = vec![Checksums::default(); experts.layers];
    let mut sums = [Stats::default(); 3];
    for (unit, one) in plan.units.iter().zip(done) {
        let (part, list) = match unit.job {
            Job::Dense { tensor, .. } => (0, &mut dense.tensors[tensor].checksums),
            Job::Expert { layer, .. } => (1, &mut experts.checksums[layer]),
            Job::Ngram { table, .. } => (2, &mut ngram[table].checksums),
        };
        list.0.push(one.checksum);
        sums[part].add(&one.stats);
    }
    let mut notes = seen.notes.clone();
    let mut quality = Vec::new();
    for (part, s) in ["dense", "experts", "ngram"].into_iter().zip(&sums) {
        let rms = |error: f64| if s.squares > 0.0 { (error / s.squares).sqrt() } else { 0.0 };
        let (relative_rms, plain_relative_rms) = (rms(s.error), rms(s.plain));
        if s.values > 0 {
            notes.push(format!(
                "{part}: relative rms error {relative_rms:.6} ({plain_relative_rms:.6} with plain ranges)"
            ));
            quality.push(Quality { part, values: s.values, relative_rms, plain_relative_rms });
        }
        if s.rounded > 0 {
            notes.push(format!(
                "{part}: {} groups had a scale or bias that bf16 cannot hold; codes kept, scale rounded, bias refitted",
                s.rounded
            ));
        }
    }
    let affine =
        seen.catalog.dense.iter().any(|(_, m)| matches!(m.numbers, Numbers::Affine { .. }));
    let bytes =
        seen.checkpoint.shards.iter().filter_map(|s| s.file.metadata().ok()).map(|m| m.len()).sum();
    let manifest = Manifest {
        format: FORMAT.into(),
        version: VERSION,
        config: seen.parsed.config.clone(),
        hash_tables: seen.catalog.hash_tables.clone(),
        dense,
        experts,
        ngram,
        files: seen.side.iter().map(|(name, bytes)| side_entry(name, bytes)).collect(),
        norms: seen.norms.clone(),
        source: SourceInfo {
            model_type: seen.parsed.model_type.clone(),
            format: if affine { "mlx-affine" } else { "float" }.into(),
            bytes,
            identity: Checksums(vec![seen.identity]),
        },
        notes,
    };
    (manifest, quality)
}

fn side_entry(name: &str, bytes: &[u8]) -> FileEntry {
    FileEntry {
        file: name.into(),
        bytes: bytes.len() as u64,
        checksum: Checksums(vec![checksum(bytes)]),
    }
}

/// Reports a step; an error when the caller wants to stop.
type Tick<'a> = dyn FnMut(Stage, u64, u64, u64) -> Result<()> + 'a;

/// Writes the copied files and waits until the disk has everything.
fn sync_files(place: &Place, seen: &Inspected, tick: &mut Tick<'_>) -> Result<()> {
    let files = seen.plan.files();
    let total = files.len() as u64 + seen.side.len() as u64;
    for (at, (name, bytes)) in seen.side.iter().enumerate() {
        tick(Stage::Sync, at as u64, total, 0)?;
        write_synced(&place.partial.join(name), bytes)?;
    }
    for (at, (name, _)) in files.iter().enumerate() {
        tick(Stage::Sync, (seen.side.len() + at) as u64, total, 0)?;
        let path = place.partial.join(name);
        let file = File::options().write(true).open(&path);
        file.and_then(|f| f.sync_all()).map_err(|e| Error::io(&path, "sync", e))?;
    }
    place::sync_dir(&place.partial)
}

fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
    use std::io::Write;
    File::create(path)
        .and_then(|mut f| f.write_all(bytes).and_then(|()| f.sync_all()))
        .map_err(|e| Error::io(path, "write", e))
}

/// Writes the manifest under another name first: a torn one never bears the real name.
fn write_manifest(place: &Place, manifest: &Manifest) -> Result<()> {
    let path = place.partial.join(MANIFEST_FILE);
    let unborn = place.partial.join("manifest.tmp");
    write_synced(&unborn, &manifest::to_bytes(manifest))?;
    fs::rename(&unborn, &path).map_err(|e| Error::io(&path, "rename", e))?;
    place::sync_dir(&place.partial)
}

/// The value that a norm gets in the store.
fn effective(convention: Option<Convention>, w: f32) -> f32 {
    match convention {
        Some(Convention::Raw) => 1.0 + w,
        Some(Convention::Shifted) | None => w,
    }
}
