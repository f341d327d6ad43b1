//! Units of a pack filled from the checkpoint.
//!
//! Owns: which rows of which source tensors make a unit. Never: files of the store, conversion itself
//! (see `convert`).

use super::Inspected;
use super::convert::{self, Stats};
use super::layout::{Job, Layout};
use crate::checkpoint::source::{RowBlock, SourceMatrix};
use crate::error::Result;
use crate::norms::{Convention, NormGroup};
use crate::qwen4_exp::tensors::Kind;
use crate::record::Projection;

/// Writes the bytes of some units of one batch, each to a zeroed buffer.
pub fn fill(
    seen: &Inspected,
    layout: &Layout,
    jobs: &[Job],
    out: &mut [Vec<u8>],
) -> Result<Vec<Stats>> {
    if let Some(&Job::Expert { layer, expert, .. }) = jobs.first() {
        return records(seen, layout, (layer, expert), jobs, out);
    }
    let each = jobs.iter().zip(out).map(|(&job, out)| match job {
        Job::Dense { tensor, first, rows } => dense(seen, layout, tensor, first, rows, out),
        Job::Ngram { table, first, rows } => table_rows(seen, layout, table, first, rows, out),
        Job::Expert { .. } => unreachable!("experts make a batch of their own"),
    });
    each.collect()
}

fn dense(
    seen: &Inspected,
    layout: &Layout,
    tensor: usize,
    first: usize,
    rows: usize,
    out: &mut [u8],
) -> Result<Stats> {
    let (spec, matrix) = &seen.catalog.dense[tensor];
    let block = seen.checkpoint.read_rows(matrix, first, rows)?;
    if spec.kind == Kind::Norm {
        let group = NormGroup::of(&spec.name);
        let convention = seen.norms.iter().find(|d| d.group == group).map(|d| d.convention);
        let mut values = vec![0f32; spec.cols];
        block.values(0, &mut values);
        for (out, &w) in out.chunks_exact_mut(4).zip(&values) {
            out.copy_from_slice(&effective(convention, w).to_le_bytes());
        }
        return Ok(Stats::default());
    }
    let encoding = layout.dense.tensors[tensor].encoding;
    Ok(convert::encode(&block, rows, spec.cols, encoding, out))
}

/// The records of one expert at the precisions of `jobs`: its numbers are read once.
fn records(
    seen: &Inspected,
    layout: &Layout,
    (layer, expert): (usize, usize),
    jobs: &[Job],
    out: &mut [Vec<u8>],
) -> Result<Vec<Stats>> {
    let experts = &seen.catalog.experts[layer];
    let mut stats = vec![Stats::default(); jobs.len()];
    let parts = [
        (Projection::Gate, &experts.gate),
        (Projection::Up, &experts.up),
        (Projection::Down, &experts.down),
    ];
    for (which, source) in parts {
        let (rows, cols, _) = layout.default_experts().layout.shape(which);
        let (matrix, first) = source.get(expert);
        let block = seen.checkpoint.read_rows(matrix, first, rows)?;
        for ((job, out), stats) in jobs.iter().zip(&mut *out).zip(&mut stats) {
            let &Job::Expert { section, .. } = job else { unreachable!("a batch of one expert") };
            let layout = layout.experts[section].layout;
            let ((_, _, encoding), (offset, len)) = (layout.shape(which), layout.span(which));
            stats.add(&convert::encode(&block, rows, cols, encoding, &mut out[offset..][..len]));
        }
    }
    Ok(stats)
}

/// Rows of a table, which may come from several shards.
fn table_rows(
    seen: &Inspected,
    layout: &Layout,
    table: usize,
    first: u64,
    rows: usize,
    out: &mut [u8],
) -> Result<Stats> {
    let section = &layout.ngram[table];
    let row_bytes = section.row_bytes as usize;
    let mut stats = Stats::default();
    let (mut start, mut at, end) = (0u64, first, first + rows as u64);
    let mut out = out;
    for shard in &seen.catalog.ngram[table] {
        let stop = start + shard.rows as u64;
        if at < stop && at < end {
            let take = (end.min(stop) - at) as usize;
            let (head, tail) = std::mem::take(&mut out).split_at_mut(take * row_bytes);
            let block: RowBlock = read(seen, shard, (at - start) as usize, take)?;
            stats.add(&convert::encode_rows(&block, take, section.width, section.encoding, head));
            out = tail;
            at += take as u64;
        }
        start = stop;
    }
    debug_assert!(out.is_empty());
    Ok(stats)
}

fn read(seen: &Inspected, matrix: &SourceMatrix, first: usize, rows: usize) -> Result<RowBlock> {
    seen.checkpoint.read_rows(matrix, first, rows)
}

/// The value that a norm gets in the store.
fn effective(convention: Option<Convention>, w: f32) -> f32 {
    match convention {
        Some(Convention::Raw) => 1.0 + w,
        Some(Convention::Shifted) | None => w,
    }
}
