//! Weights to be exported, unit by unit.
//!
//! Owns: the one way of reading a store or a checkpoint here. Never: what becomes of the numbers.
//! Invariant: a checkpoint's units are those of the store that packs it without loss.

use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::manifest::MANIFEST_FILE;
use crate::pack::fill::fill;
use crate::pack::layout::{Job, Layout, Unit};
use crate::pack::{self, Inspected, Precision};
use crate::pio;
use crate::qwen4_exp::config::Config;
use crate::store::Store;
use std::fs::File;
use std::path::{Path, PathBuf};

/// Where the numbers come from.
enum Origin {
    /// Open data files of a store, in the order of [`Unit::file`].
    Store(Vec<(PathBuf, File)>),
    /// A checkpoint.
    Checkpoint(Box<Inspected>),
}

/// A store, or a checkpoint seen as one.
pub struct Source {
    origin: Origin,
    /// Geometry.
    pub config: Config,
    /// Encodings and units.
    pub layout: Layout,
    /// Tokenizer and template.
    pub side: Vec<(&'static str, Vec<u8>)>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Source {
    /// Opens the store or checkpoint in `dir`.
    ///
    /// # Errors
    /// When it is neither, or damaged.
    pub fn open(dir: &Path) -> Result<Self> {
        if !dir.join(MANIFEST_FILE).exists() {
            let exact = Precision::Bf16;
            let options =
                pack::Options { experts: exact, dense: exact, ngram: exact, ..Default::default() };
            let (seen, task) = pack::inspect(dir, &options)?;
            let (config, notes) = (seen.parsed.config.clone(), seen.notes.clone());
            let origin = Origin::Checkpoint(Box::new(seen));
            return Ok(Self { origin, config, layout: task.layout, side: task.side, notes });
        }
        let store = Store::open(dir)?;
        let manifest = store.manifest();
        let layout = Layout::of(manifest);
        let mut files = Vec::new();
        for (name, _) in layout.files() {
            let path = dir.join(name);
            let file = File::open(&path).map_err(|e| Error::io(&path, "open", e))?;
            files.push((path, file));
        }
        let side = pack::side_files(dir)?;
        let config = manifest.config.clone();
        Ok(Self { origin: Origin::Store(files), config, layout, side, notes: Vec::new() })
    }

    /// The bytes of one unit, as a store holds them.
    ///
    /// # Errors
    /// When they cannot be read or are damaged.
    pub fn read(&self, unit: &Unit) -> Result<Vec<u8>> {
        let mut bytes = vec![0; unit.bytes];
        match &self.origin {
            Origin::Checkpoint(seen) => {
                fill(seen, &self.layout, &[unit.job], std::slice::from_mut(&mut bytes))?;
            }
            Origin::Store(files) => {
                let (path, file) = &files[unit.file];
                pio::read_exact_at(file, path, unit.offset, &mut bytes)?;
                if checksum(&bytes) != self.expected(unit.job) {
                    let end = unit.offset + unit.bytes as u64;
                    let subject = format!("bytes {}..{end}", unit.offset);
                    let (found, remedy) = ("another checksum", "the store is damaged: pack again");
                    return Err(Error::invalid(path, subject, found, "the packed bytes", remedy));
                }
            }
        }
        Ok(bytes)
    }

    fn expected(&self, job: Job) -> u64 {
        let l = &self.layout;
        match job {
            Job::Dense { tensor, first, .. } => {
                let t = &l.dense.tensors[tensor];
                t.checksums.0[first / t.chunk_rows]
            }
            Job::Expert { section, layer, expert } => l.experts[section].checksums[layer].0[expert],
            Job::Ngram { table, first, .. } => {
                let n = &l.ngram[table];
                n.checksums.0[(first / n.chunk_rows) as usize]
            }
        }
    }
}
