//! Synthetic checkpoints: official names and shapes in bf16, as sharded safetensors.
//!
//! Owns: the list of tensors, the shards' headers, the index. Never: numbers (see `values`).

use super::config_json::config_json;
use super::{Options, Source, words};
use crate::checkpoint::names;
use crate::error::{Error, Result};
use crate::float::f32_to_bf16;
use crate::pack::build::write_synced;
use crate::pack::journal::Journal;
use crate::pack::place::Place;
use crate::pack::work::{Meter, each, workers};
use crate::pack::{Existing, Report};
use crate::pio;
use crate::progress::{Progress, Stage, Status};
use crate::qwen4_exp::tensors::{Kind, TensorSpec};
use crate::record::Projection;
use serde_json::{Map, Value, json};
use std::fs::File;
use std::path::{Path, PathBuf};

/// Bytes of a shard, about.
const SHARD_BYTES: u64 = 4 << 30;
/// Bytes of a piece of work, about.
const PIECE_BYTES: usize = 4 << 20;

/// Where the numbers of a tensor come from.
#[derive(Clone, Copy, Debug)]
enum Numbers {
    /// A dense tensor, by its place in the list.
    Dense(usize),
    /// Gate and up of all experts of a layer.
    Inner(usize),
    /// Down of all experts of a layer.
    Outer(usize),
    /// Rows of an n-gram table from this one on.
    Table(usize, u64),
    /// One of the three lists of hash constants of a table.
    Constants(usize, usize),
}

/// One tensor of the checkpoint.
#[derive(Debug)]
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<usize>,
    numbers: Numbers,
    /// Rows and bytes per row.
    rows: usize,
    row_bytes: usize,
}

impl Tensor {
    fn new(name: String, shape: Vec<usize>, numbers: Numbers) -> Self {
        let cols = shape.last().copied().unwrap_or(1);
        let rows = shape.iter().product::<usize>() / cols;
        let (dtype, width) =
            if matches!(numbers, Numbers::Constants(..)) { ("I64", 8) } else { ("BF16", 2) };
        Self { name, dtype, shape, numbers, rows, row_bytes: cols * width }
    }

    fn bytes(&self) -> u64 {
        self.rows as u64 * self.row_bytes as u64
    }
}

/// A run of rows of one tensor, and where it goes.
#[derive(Clone, Copy, Debug)]
struct Piece {
    shard: usize,
    offset: u64,
    tensor: usize,
    first: usize,
    rows: usize,
}

/// Writes a checkpoint of random weights to the new directory `out`. Precisions do not apply: all
/// weights are bf16. An interrupted run starts over.
///
/// # Errors
/// When the geometry is impossible, `out` is taken, or the disk refuses.
pub fn checkpoint(out: &Path, options: &Options, progress: &mut dyn Progress) -> Result<Report> {
    options.check(out)?;
    let place = Place::new(out)?;
    place.check_free(Existing::Refuse)?;
    let source = Source::new(options);
    let (tensors, parts) = tensors(&source);
    let total: u64 = tensors.iter().map(Tensor::bytes).sum();
    place.check_space(total)?;
    place.create_partial()?;
    // Marks the directory as ours and keeps two runs apart.
    let (journal, _) = Journal::open(&place.partial, 0, 0)?;
    place.clear_partial()?;
    let shards = shards(&tensors);
    let mut files = Vec::new();
    let mut pieces = Vec::new();
    for (number, members) in shards.iter().enumerate() {
        files.push(open_shard(
            &place.partial,
            number,
            shards.len(),
            &tensors,
            members,
            &mut pieces,
        )?);
    }
    let todo: Vec<usize> = (0..pieces.len()).collect();
    let write = |number: usize| write_piece(&source, &tensors, &files, &pieces[number]);
    let mut tick = |stage, done, total, skipped| {
        let flow = progress.update(Status { stage, done, total, skipped });
        if flow.is_break() { Err(Error::Cancelled { path: place.out.clone() }) } else { Ok(()) }
    };
    let meter = Meter { stage: Stage::Convert, total, skipped: 0 };
    each(&todo, workers(options.threads), write, |_, bytes| Ok(bytes), &meter, &mut tick)?;
    for (at, (path, file)) in files.iter().enumerate() {
        tick(Stage::Sync, at as u64, files.len() as u64, 0)?;
        file.sync_all().map_err(|e| Error::io(path, "sync", e))?;
    }
    let small = small_files(&source, &tensors, &shards, parts, total);
    for (name, bytes) in &small {
        write_synced(&place.partial.join(name), bytes)?;
    }
    let report = report(&place, &files, &small)?;
    // Some systems refuse to rename a directory with open files.
    drop(files);
    journal.delete()?;
    place.publish()?;
    Ok(report)
}

/// All tensors under their official names, and into how many parts n-gram tables are cut.
fn tensors(source: &Source<'_>) -> (Vec<Tensor>, usize) {
    let c = source.config;
    let mut list = Vec::new();
    for (number, spec) in source.specs.iter().enumerate() {
        let name = names::official(&spec.name);
        list.push(Tensor::new(name, official_shape(spec), Numbers::Dense(number)));
    }
    let (e, i, h) = (c.moe.experts, c.moe.width, c.hidden);
    for layer in 0..c.expert_layers() {
        let at = match layer.checked_sub(c.layers.len()) {
            None => format!("layers.{layer}"),
            Some(head) => format!("mtp.layers.{head}"),
        };
        let name = |which: &str| names::official(&format!("{at}.mlp.experts.{which}"));
        list.push(Tensor::new(name("gate_up_proj"), vec![e, 2 * i, h], Numbers::Inner(layer)));
        list.push(Tensor::new(name("down_proj"), vec![e, h, i], Numbers::Outer(layer)));
    }
    let even = source.tables.iter().all(|t| t.rows.is_multiple_of(4));
    let parts = if even { 4 } else { 1 };
    for (table, hash) in source.tables.iter().enumerate() {
        let ple = c.ple.as_ref().expect("a table belongs to a block");
        let at = format!("layers.{}.ple.ple_embedding", ple.layers[table]);
        let lists = ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"];
        let lens = [hash.multipliers.len(), hash.sizes.len(), hash.offsets.len()];
        for (which, (list_name, len)) in lists.iter().zip(lens).enumerate() {
            let name = names::official(&format!("{at}.{list_name}"));
            list.push(Tensor::new(name, vec![len], Numbers::Constants(table, which)));
        }
        let rows = hash.rows / parts as u64;
        for part in 0..parts {
            let name = names::official(&format!("{at}.ngram_embedding.shard_{part}"));
            let numbers = Numbers::Table(table, part as u64 * rows);
            list.push(Tensor::new(name, vec![rows as usize, ple.row_width()], numbers));
        }
    }
    (list, parts)
}

fn official_shape(spec: &TensorSpec) -> Vec<usize> {
    if spec.name.ends_with("conv1d") {
        vec![spec.rows, 1, spec.cols]
    } else if spec.rows == 1 && matches!(spec.kind, Kind::Norm | Kind::Plain) {
        vec![spec.cols]
    } else {
        vec![spec.rows, spec.cols]
    }
}

/// Cuts the list of tensors into shards.
fn shards(tensors: &[Tensor]) -> Vec<std::ops::Range<usize>> {
    let (mut shards, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (number, tensor) in tensors.iter().enumerate() {
        if bytes > 0 && bytes + tensor.bytes() > SHARD_BYTES {
            shards.push(start..number);
            (start, bytes) = (number, 0);
        }
        bytes += tensor.bytes();
    }
    shards.push(start..tensors.len());
    shards
}

fn shard_name(number: usize, count: usize) -> String {
    if count == 1 {
        return "model.safetensors".into();
    }
    format!("model-{:05}-of-{count:05}.safetensors", number + 1)
}

/// Creates a shard with its header, and adds the pieces that will fill it.
fn open_shard(
    dir: &Path,
    number: usize,
    count: usize,
    tensors: &[Tensor],
    members: &std::ops::Range<usize>,
    pieces: &mut Vec<Piece>,
) -> Result<(PathBuf, File)> {
    let mut header = Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0u64;
    for t in &tensors[members.clone()] {
        let end = at + t.bytes();
        let entry = json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end]});
        header.insert(t.name.clone(), entry);
        at = end;
    }
    let mut text = Value::Object(header).to_string().into_bytes();
    text.resize(text.len().next_multiple_of(8), b' ');
    let mut offset = 8 + text.len() as u64;
    let path = dir.join(shard_name(number, count));
    let file = File::create_new(&path).map_err(|e| Error::io(&path, "create", e))?;
    file.set_len(offset + at).map_err(|e| Error::io(&path, "set the size", e))?;
    let head = [&(text.len() as u64).to_le_bytes()[..], &text].concat();
    pio::write_all_at(&file, &path, 0, &head)?;
    for tensor in members.clone() {
        let t = &tensors[tensor];
        let step = (PIECE_BYTES / t.row_bytes).max(1);
        for first in (0..t.rows).step_by(step) {
            let rows = step.min(t.rows - first);
            pieces.push(Piece { shard: number, offset, tensor, first, rows });
            offset += (rows * t.row_bytes) as u64;
        }
    }
    Ok((path, file))
}

fn write_piece(
    source: &Source<'_>,
    tensors: &[Tensor],
    files: &[(PathBuf, File)],
    piece: &Piece,
) -> Result<u64> {
    let t = &tensors[piece.tensor];
    let mut bytes = vec![0; piece.rows * t.row_bytes];
    if let Numbers::Constants(table, which) = t.numbers {
        let hash = &source.tables[table];
        let list = [&hash.multipliers, &hash.sizes, &hash.offsets][which];
        for (out, value) in bytes.chunks_exact_mut(8).zip(list) {
            out.copy_from_slice(&value.to_le_bytes());
        }
    } else {
        let mut values = vec![0f32; t.row_bytes / 2];
        for (number, out) in bytes.chunks_exact_mut(t.row_bytes).enumerate() {
            draw(source, t.numbers, piece.first + number, &mut values);
            for (out, &value) in out.chunks_exact_mut(2).zip(&values) {
                out.copy_from_slice(&f32_to_bf16(value).to_le_bytes());
            }
        }
    }
    let (path, file) = &files[piece.shard];
    pio::write_all_at(file, path, piece.offset, &bytes)?;
    Ok(bytes.len() as u64)
}

fn draw(source: &Source<'_>, numbers: Numbers, row: usize, out: &mut [f32]) {
    let (width, hidden) = (source.config.moe.width, source.config.hidden);
    match numbers {
        Numbers::Dense(tensor) => source.dense_row(&source.specs[tensor], row, out),
        Numbers::Inner(layer) => {
            let (expert, row) = (row / (2 * width), row % (2 * width));
            // Gate rows first.
            let which = if row < width { Projection::Gate } else { Projection::Up };
            source.expert_row(layer, expert, which, row % width, out);
        }
        Numbers::Outer(layer) => {
            source.expert_row(layer, row / hidden, Projection::Down, row % hidden, out);
        }
        Numbers::Table(table, first) => source.table_row(table, first + row as u64, out),
        Numbers::Constants(..) => unreachable!("written as they are"),
    }
}

/// config.json, the tokenizer's files, and the index if there are several shards.
fn small_files(
    source: &Source<'_>,
    tensors: &[Tensor],
    shards: &[std::ops::Range<usize>],
    parts: usize,
    total: u64,
) -> Vec<(&'static str, Vec<u8>)> {
    let c = source.config;
    let mut files = words::files(c.vocab, c.eos_hash, &c.eos_stop);
    files.push(("config.json", config_json(c, parts).to_string().into_bytes()));
    if shards.len() > 1 {
        let mut map = Map::new();
        for (number, members) in shards.iter().enumerate() {
            let name = shard_name(number, shards.len());
            for t in &tensors[members.clone()] {
                map.insert(t.name.clone(), json!(name));
            }
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        files.push(("model.safetensors.index.json", index.to_string().into_bytes()));
    }
    files
}

fn report(
    place: &Place,
    files: &[(PathBuf, File)],
    small: &[(&'static str, Vec<u8>)],
) -> Result<Report> {
    let mut all = Vec::new();
    for (path, file) in files {
        let len = file.metadata().map_err(|e| Error::io(path, "ask the size", e))?.len();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        all.push((name, len));
    }
    all.extend(small.iter().map(|(name, bytes)| (name.to_string(), bytes.len() as u64)));
    Ok(Report {
        out: place.out.clone(),
        bytes: all.iter().map(|(_, bytes)| bytes).sum(),
        files: all,
        resumed_bytes: 0,
        norms: Vec::new(),
        quality: Vec::new(),
        notes: Vec::new(),
    })
}
