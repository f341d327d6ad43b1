//! The workers of a pack.
//!
//! Owns: running units on all cores, resuming, the journal. Never: planning, publishing.
//! Invariant: a unit is journaled after its bytes are in the file; the calling thread alone
//! journals and reports.

use super::convert::{self, Stats};
use super::journal::{Done, Journal};
use super::place::{Place, remove_all};
use super::plan::{Job, Unit};
use super::{Inspected, Options, Tick, effective};
use crate::checkpoint::source::{RowBlock, SourceMatrix};
use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::manifest::MANIFEST_FILE;
use crate::norms::NormGroup;
use crate::pio;
use crate::progress::Stage;
use crate::qwen4_exp::tensors::Kind;
use crate::record::Projection;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

/// An output file.
struct Target {
    path: PathBuf,
    file: File,
}

/// Writes every unit that is not there yet. Returns all units, and the bytes found from before.
pub fn run(
    place: &Place,
    seen: &Inspected,
    options: &Options,
    tick: &mut Tick<'_>,
) -> Result<(Vec<Done>, u64)> {
    let units = &seen.plan.units;
    let total = seen.plan.bytes();
    let side: u64 = seen.side.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if !place.partial.is_dir() {
        place.check_space(total + side)?;
    }
    place.create_partial()?;
    let (mut journal, listed) = Journal::open(&place.partial, seen.identity, units.len())?;
    // A manifest that got here does not match: `finished` would have taken it.
    remove_file(&place.partial.join(MANIFEST_FILE))?;
    let threads = options.threads.or_else(|| std::thread::available_parallelism().ok());
    let threads = threads.map_or(1, NonZeroUsize::get);
    let mut done = vec![None; units.len()];
    if let Some(listed) = listed {
        let targets = open_targets(place, seen)?;
        let todo: Vec<usize> = (0..units.len()).filter(|&u| listed[u].is_some()).collect();
        let bytes = todo.iter().map(|&u| units[u].bytes as u64).sum();
        let meter = Meter { stage: Stage::Resume, total: bytes, skipped: 0 };
        let check = |number: usize| check_unit(&targets, &units[number], listed[number]);
        each(
            &todo,
            threads,
            check,
            |number, good| {
                done[number] = good;
                Ok(units[number].bytes as u64)
            },
            &meter,
            tick,
        )?;
    } else {
        drop(open_fresh(place, seen)?);
    }
    let targets = open_targets(place, seen)?;
    clear_gaps(&targets[0], seen)?;
    journal.rewrite(seen.identity, &done)?;
    let todo: Vec<usize> = (0..units.len()).filter(|&u| done[u].is_none()).collect();
    let missing: u64 = todo.iter().map(|&u| units[u].bytes as u64).sum();
    place.check_space(missing + side)?;
    let meter = Meter { stage: Stage::Convert, total, skipped: total - missing };
    let convert = |number: usize| write_unit(seen, &targets, &units[number]);
    each(
        &todo,
        threads,
        convert,
        |number, one| {
            journal.append(number, &one)?;
            done[number] = Some(one);
            Ok(units[number].bytes as u64)
        },
        &meter,
        tick,
    )?;
    let done = done.into_iter().map(|d| d.expect("every unit was run")).collect();
    Ok((done, total - missing))
}

fn remove_file(path: &std::path::Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, "delete", e)),
        _ => Ok(()),
    }
}

/// Removes what an unrelated, unfinished pack left, except the journal that this one holds.
fn open_fresh(place: &Place, seen: &Inspected) -> Result<Vec<Target>> {
    let dir = &place.partial;
    for entry in fs::read_dir(dir).map_err(|e| Error::io(dir, "list", e))? {
        let path = entry.map_err(|e| Error::io(dir, "list", e))?.path();
        if path.is_dir() {
            remove_all(&path)?;
        } else if path.file_name().is_some_and(|n| n != super::JOURNAL_FILE) {
            remove_file(&path)?;
        }
    }
    open_targets(place, seen)
}

fn open_targets(place: &Place, seen: &Inspected) -> Result<Vec<Target>> {
    let open = |(name, bytes): (String, u64)| {
        let path = place.partial.join(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| Error::io(&path, "open", e))?;
        file.set_len(bytes).map_err(|e| Error::io(&path, "set the size", e))?;
        Ok(Target { path, file })
    };
    seen.plan.files().into_iter().map(open).collect()
}

/// Zeros the few bytes between dense tensors, which belong to no unit.
fn clear_gaps(dense: &Target, seen: &Inspected) -> Result<()> {
    let mut end = 0;
    for t in &seen.plan.dense.tensors {
        let gap = vec![0; (t.offset - end) as usize];
        pio::write_all_at(&dense.file, &dense.path, end, &gap)?;
        end = t.offset + t.byte_len().expect("planned");
    }
    Ok(())
}

/// What `each` reports.
struct Meter {
    stage: Stage,
    total: u64,
    skipped: u64,
}

/// Runs `work` for every number of `todo` on `threads` threads, and `land` for every result on this
/// one. The first error ends it, after the units in flight.
fn each<T: Send>(
    todo: &[usize],
    threads: usize,
    work: impl Fn(usize) -> Result<T> + Sync,
    mut land: impl FnMut(usize, T) -> Result<u64>,
    meter: &Meter,
    tick: &mut Tick<'_>,
) -> Result<()> {
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut done = meter.skipped;
    tick(meter.stage, done, meter.total, meter.skipped)?;
    std::thread::scope(|scope| {
        // A small bound: results wait for the journal, not in memory.
        let (sender, receiver) = mpsc::sync_channel(2 * threads);
        for _ in 0..threads.min(todo.len()) {
            let (sender, work, next, stop) = (sender.clone(), &work, &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let Some(&number) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else {
                        break;
                    };
                    if sender.send((number, work(number))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut outcome = Ok(());
        for (number, result) in receiver {
            // Results in flight after an error still land: they are good work.
            let landed = result.and_then(|value| land(number, value)).and_then(|bytes| {
                done += bytes;
                if outcome.is_ok() {
                    tick(meter.stage, done, meter.total, meter.skipped)
                } else {
                    Ok(())
                }
            });
            if let Err(e) = landed {
                stop.store(true, Ordering::Relaxed);
                outcome = outcome.and(Err(e));
            }
        }
        outcome
    })
}

/// Whether a unit from an earlier run is in the file as the journal says.
fn check_unit(targets: &[Target], unit: &Unit, listed: Option<Done>) -> Result<Option<Done>> {
    let target = &targets[unit.file];
    let mut bytes = vec![0; unit.bytes];
    pio::read_exact_at(&target.file, &target.path, unit.offset, &mut bytes)?;
    Ok(listed.filter(|done| done.checksum == checksum(&bytes)))
}

fn write_unit(seen: &Inspected, targets: &[Target], unit: &Unit) -> Result<Done> {
    let mut bytes = vec![0; unit.bytes];
    let stats = match unit.job {
        Job::Dense { tensor, first, rows } => dense(seen, tensor, first, rows, &mut bytes)?,
        Job::Expert { layer, expert } => record(seen, layer, expert, &mut bytes)?,
        Job::Ngram { table, first, rows } => table_rows(seen, table, first, rows, &mut bytes)?,
    };
    let target = &targets[unit.file];
    pio::write_all_at(&target.file, &target.path, unit.offset, &bytes)?;
    Ok(Done { checksum: checksum(&bytes), stats })
}

fn dense(
    seen: &Inspected,
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
    let encoding = seen.plan.dense.tensors[tensor].encoding;
    Ok(convert::encode(&block, rows, spec.cols, encoding, out))
}

fn record(seen: &Inspected, layer: usize, expert: usize, out: &mut [u8]) -> Result<Stats> {
    let (experts, layout) = (&seen.catalog.experts[layer], seen.plan.experts.layout);
    let mut stats = Stats::default();
    let parts = [
        (Projection::Gate, &experts.gate),
        (Projection::Up, &experts.up),
        (Projection::Down, &experts.down),
    ];
    for (which, source) in parts {
        let (rows, cols, encoding) = layout.shape(which);
        let (offset, len) = layout.span(which);
        let (matrix, first) = source.get(expert);
        let block = seen.checkpoint.read_rows(matrix, first, rows)?;
        stats.add(&convert::encode(&block, rows, cols, encoding, &mut out[offset..][..len]));
    }
    Ok(stats)
}

/// Rows of a table, which may come from several shards.
fn table_rows(
    seen: &Inspected,
    table: usize,
    first: u64,
    rows: usize,
    out: &mut [u8],
) -> Result<Stats> {
    let section = &seen.plan.ngram[table];
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
