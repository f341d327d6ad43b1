//! The workers that write a store.
//!
//! Owns: running units on all cores, resuming, the journal. Never: planning, publishing.
//! Invariant: a unit is journaled after its bytes are in the file; the calling thread alone
//! journals and reports.

use super::build::{Fill, Task, Tick};
use super::journal::{Done, Journal};
use super::layout::{Job, Unit};
use super::place::{self, Place};
use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::manifest::MANIFEST_FILE;
use crate::pio;
use crate::progress::Stage;
use std::fs::File;
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
    task: &Task,
    fill: &Fill<'_>,
    tick: &mut Tick<'_>,
) -> Result<(Vec<Done>, u64)> {
    let units = &task.layout.units;
    let total = task.layout.bytes();
    let side: u64 = task.side.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    if !place.partial.is_dir() {
        place.check_space(total + side)?;
    }
    place.create_partial()?;
    let (mut journal, listed) = Journal::open(&place.partial, task.identity, units.len())?;
    // A manifest that got here does not match: `finished` would have taken it.
    place::remove_file(&place.partial.join(MANIFEST_FILE))?;
    let threads = workers(task.threads);
    let mut done = vec![None; units.len()];
    if let Some(listed) = listed {
        let targets = open_targets(place, task)?;
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
        place.clear_partial()?;
    }
    let targets = open_targets(place, task)?;
    clear_gaps(&targets[0], task)?;
    journal.rewrite(task.identity, &done)?;
    let unmade = |u: &usize| done[*u].is_none();
    let missing: u64 = (0..units.len()).filter(unmade).map(|u| units[u].bytes as u64).sum();
    let batches = task.layout.batches().into_iter();
    let batches = batches.map(|batch| batch.filter(unmade).collect::<Vec<usize>>());
    let batches: Vec<Vec<usize>> = batches.filter(|batch| !batch.is_empty()).collect();
    place.check_space(missing + side)?;
    let meter = Meter { stage: Stage::Convert, total, skipped: total - missing };
    let todo: Vec<usize> = (0..batches.len()).collect();
    let convert = |batch: usize| {
        let batch: Vec<&Unit> = batches[batch].iter().map(|&number| &units[number]).collect();
        write_batch(fill, &targets, &batch)
    };
    each(
        &todo,
        threads,
        convert,
        |batch, made| {
            let mut bytes = 0;
            for (&number, one) in batches[batch].iter().zip(made) {
                journal.append(number, &one)?;
                done[number] = Some(one);
                bytes += units[number].bytes as u64;
            }
            Ok(bytes)
        },
        &meter,
        tick,
    )?;
    let done = done.into_iter().map(|d| d.expect("every unit was run")).collect();
    Ok((done, total - missing))
}

/// How many threads work: as many as asked for, else all that the machine has.
pub fn workers(asked: Option<NonZeroUsize>) -> usize {
    let threads = asked.or_else(|| std::thread::available_parallelism().ok());
    threads.map_or(1, NonZeroUsize::get)
}

fn open_targets(place: &Place, task: &Task) -> Result<Vec<Target>> {
    let open = |(name, bytes): (String, u64)| {
        let path = place.partial.join(name);
        let file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        let file = file.map_err(|e| Error::io(&path, "open", e))?;
        file.set_len(bytes).map_err(|e| Error::io(&path, "set the size", e))?;
        Ok(Target { path, file })
    };
    task.layout.files().into_iter().map(open).collect()
}

/// Zeros the few bytes between dense tensors, which belong to no unit.
fn clear_gaps(dense: &Target, task: &Task) -> Result<()> {
    let mut end = 0;
    for t in &task.layout.dense.tensors {
        let gap = vec![0; (t.offset - end) as usize];
        pio::write_all_at(&dense.file, &dense.path, end, &gap)?;
        end = t.offset + t.byte_len().expect("planned");
    }
    Ok(())
}

/// What `each` reports.
pub struct Meter {
    /// Stage of the work.
    pub stage: Stage,
    /// Bytes of all units, those done before included.
    pub total: u64,
    /// Bytes done before.
    pub skipped: u64,
}

/// Runs `work` for every number of `todo` on `threads` threads, and `land` for every result on this
/// one. The first error ends it, after the units in flight.
pub fn each<T: Send>(
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

/// Makes units of one batch, which may have been made in part before.
fn write_batch(fill: &Fill<'_>, targets: &[Target], batch: &[&Unit]) -> Result<Vec<Done>> {
    let jobs: Vec<Job> = batch.iter().map(|unit| unit.job).collect();
    let mut buffers: Vec<Vec<u8>> = batch.iter().map(|unit| vec![0; unit.bytes]).collect();
    let stats = fill(&jobs, &mut buffers)?;
    let mut made = Vec::with_capacity(batch.len());
    for ((unit, bytes), stats) in batch.iter().zip(&buffers).zip(stats) {
        let target = &targets[unit.file];
        pio::write_all_at(&target.file, &target.path, unit.offset, bytes)?;
        made.push(Done { checksum: checksum(bytes), stats });
    }
    Ok(made)
}
