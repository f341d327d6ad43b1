//! From a plan to a published store.
//!
//! Owns: the order of writing, syncing and renaming; the manifest of what was written.
//! Never: where numbers come from (the caller fills every unit), printing, clocks.
//! Invariant: the output appears whole or not at all; an interrupted build resumes.

use super::convert::Stats;
use super::journal::{self, Done};
use super::layout::{Job, Layout};
use super::place::{self, Place};
use super::{Existing, Quality, Report, work};
use crate::checksum::{Checksums, checksum};
use crate::error::{Error, Result};
use crate::manifest::{
    self, ExpertSection, FORMAT, FileEntry, MANIFEST_FILE, Manifest, NormDecision, SourceInfo,
    VERSION, VERSION_MANY,
};
use crate::progress::{Progress, Stage, Status};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use std::fs::{self, File};
use std::num::NonZeroUsize;
use std::path::Path;

/// Writes the bytes of some units of one batch, each into a zeroed buffer. The bytes of a unit follow
/// from its job alone.
pub type Fill<'a> = dyn Fn(&[Job], &mut [Vec<u8>]) -> Result<Vec<Stats>> + Sync + 'a;

/// Reports a step; an error when the caller wants to stop.
pub type Tick<'a> = dyn FnMut(Stage, u64, u64, u64) -> Result<()> + 'a;

/// A store to be written.
#[derive(Debug)]
pub struct Task {
    /// Sections and units.
    pub layout: Layout,
    /// Files that go along as they are.
    pub side: Vec<(&'static str, Vec<u8>)>,
    /// Digest of everything that decides the store's bytes.
    pub identity: u64,
    /// Worker threads; all that the machine has when not given.
    pub threads: Option<NonZeroUsize>,
}

impl Task {
    /// Sums of the conversions of dense tensors, experts at each precision and n-gram tables.
    pub fn sums(&self, done: &[Done]) -> Vec<(String, Stats)> {
        let experts = &self.layout.experts;
        let mut sums = vec![("dense".to_owned(), Stats::default())];
        sums.extend(experts.iter().map(|x| (part_name(x, experts.len()), Stats::default())));
        sums.push(("ngram".to_owned(), Stats::default()));
        for (unit, one) in self.layout.units.iter().zip(done) {
            let part = match unit.job {
                Job::Dense { .. } => 0,
                Job::Expert { section, .. } => 1 + section,
                Job::Ngram { .. } => 1 + experts.len(),
            };
            sums[part].1.add(&one.stats);
        }
        sums
    }

    /// The manifest, once every unit is written.
    pub fn manifest(
        &self,
        config: Config,
        done: &[Done],
        norms: Vec<NormDecision>,
        source: SourceInfo,
        notes: Vec<String>,
    ) -> Manifest {
        let layout = &self.layout;
        let (mut dense, mut experts, mut ngram) =
            (layout.dense.clone(), layout.experts.clone(), layout.ngram.clone());
        for x in &mut experts {
            x.checksums = vec![Checksums::default(); x.layers];
        }
        for (unit, one) in layout.units.iter().zip(done) {
            let list = match unit.job {
                Job::Dense { tensor, .. } => &mut dense.tensors[tensor].checksums,
                Job::Expert { section, layer, .. } => &mut experts[section].checksums[layer],
                Job::Ngram { table, .. } => &mut ngram[table].checksums,
            };
            list.0.push(one.checksum);
        }
        let other_experts = experts.split_off(1);
        let experts = experts.remove(0);
        Manifest {
            format: FORMAT.into(),
            version: if other_experts.is_empty() { VERSION } else { VERSION_MANY },
            hash_tables: HashTable::all(&config),
            config,
            dense,
            experts,
            other_experts,
            ngram,
            files: self.side.iter().map(|(name, bytes)| side_entry(name, bytes)).collect(),
            norms,
            source,
            notes,
        }
    }
}

/// Builds one store; reports to the caller on the way.
pub struct Builder<'a> {
    place: Place,
    progress: &'a mut dyn Progress,
}

impl<'a> Builder<'a> {
    /// Makes sure that the output's name is free, or may be replaced.
    pub fn new(out: &Path, existing: Existing, progress: &'a mut dyn Progress) -> Result<Self> {
        let place = Place::new(out)?;
        place.check_free(existing)?;
        Ok(Self { place, progress })
    }

    /// Reports a step; an error when the caller wants to stop.
    pub fn tick(&mut self, stage: Stage, done: u64, total: u64, skipped: u64) -> Result<()> {
        let flow = self.progress.update(Status { stage, done, total, skipped });
        if flow.is_break() {
            return Err(Error::Cancelled { path: self.place.out.clone() });
        }
        Ok(())
    }

    /// Writes every unit that an earlier, interrupted run has not written, and publishes the store.
    /// `manifest` is asked once all units are there.
    pub fn build(
        mut self,
        task: &Task,
        fill: &Fill<'_>,
        manifest: impl FnOnce(&[Done]) -> (Manifest, Vec<Quality>),
    ) -> Result<Report> {
        let place = self.place.clone();
        let mut tick = |stage, done, total, skipped| self.tick(stage, done, total, skipped);
        let (manifest, quality, resumed_bytes) = match finished(&place, task.identity) {
            // Everything was written and only the renames are left.
            Some(manifest) => (manifest, Vec::new(), task.layout.bytes()),
            None => {
                let (done, resumed) = work::run(&place, task, fill, &mut tick)?;
                let (manifest, quality) = manifest(&done);
                sync_files(&place, task, &mut tick)?;
                tick(Stage::Publish, 0, 3, 0)?;
                write_manifest(&place, &manifest)?;
                (manifest, quality, resumed)
            }
        };
        tick(Stage::Publish, 1, 3, 0)?;
        journal::delete_in(&place.partial)?;
        tick(Stage::Publish, 2, 3, 0)?;
        place.publish()?;
        report(&place, manifest, quality, resumed_bytes)
    }
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
    files.push((manifest.dense.file.clone(), manifest.dense.bytes));
    files.extend(manifest.all_experts().map(|x| (x.file.clone(), x.bytes)));
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

/// What a report calls the experts of one section of `count`.
fn part_name(x: &ExpertSection, count: usize) -> String {
    match x.layout.code_bits() {
        _ if count == 1 => "experts".to_owned(),
        Some(bits) => format!("experts at {} bits", bits.get()),
        None => "experts at 16 bits".to_owned(),
    }
}

fn side_entry(name: &str, bytes: &[u8]) -> FileEntry {
    FileEntry {
        file: name.into(),
        bytes: bytes.len() as u64,
        checksum: Checksums(vec![checksum(bytes)]),
    }
}

/// Writes the copied files and waits until the disk has everything.
fn sync_files(place: &Place, task: &Task, tick: &mut Tick<'_>) -> Result<()> {
    let files = task.layout.files();
    let total = files.len() as u64 + task.side.len() as u64;
    for (at, (name, bytes)) in task.side.iter().enumerate() {
        tick(Stage::Sync, at as u64, total, 0)?;
        write_synced(&place.partial.join(name), bytes)?;
    }
    for (at, (name, _)) in files.iter().enumerate() {
        tick(Stage::Sync, (task.side.len() + at) as u64, total, 0)?;
        let path = place.partial.join(name);
        let file = File::options().write(true).open(&path);
        file.and_then(|f| f.sync_all()).map_err(|e| Error::io(&path, "sync", e))?;
    }
    place::sync_dir(&place.partial)
}

/// Writes a small file and waits until the disk has it.
pub fn write_synced(path: &Path, bytes: &[u8]) -> Result<()> {
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
