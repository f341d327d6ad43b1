//! A `qwen4_exp` checkpoint in a directory.
//!
//! Owns: finding the weight files, joining shards into one catalogue of canonical names, and
//! telling which foreign format a directory holds. Never: converting numbers.

pub mod catalog;
pub mod json;
pub(crate) mod names;
pub mod safetensors;
pub mod source;

use crate::error::{Error, Result};
use names::{Name, Part};
use safetensors::{Dtype, TensorInfo};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

const INDEX_FILE: &str = "model.safetensors.index.json";
const SMALL_FILE_BYTES_MAX: u64 = 1 << 28;

/// An open weight file.
#[derive(Debug)]
pub struct Shard {
    /// Where it is.
    pub path: PathBuf,
    /// The open file.
    pub file: File,
}

/// A tensor and the shard that holds it.
#[derive(Clone, Debug)]
pub struct Located {
    /// Number of the shard.
    pub shard: usize,
    /// The tensor.
    pub info: TensorInfo,
}

/// The parts stored under one canonical name.
#[derive(Clone, Debug, Default)]
pub struct Parts {
    /// Numbers or codes.
    pub weight: Option<Located>,
    /// MLX scales.
    pub scales: Option<Located>,
    /// MLX biases.
    pub biases: Option<Located>,
}

/// All text tensors of a checkpoint, by canonical name.
#[derive(Debug)]
pub struct Checkpoint {
    /// The directory.
    pub dir: PathBuf,
    /// Its weight files.
    pub shards: Vec<Shard>,
    /// Parts by canonical name.
    pub tensors: BTreeMap<String, Parts>,
    /// Shards that the index names and the directory lacks.
    pub missing_shards: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Reads a small file whole; `None` when it does not exist.
pub(crate) fn read_small(path: &Path) -> Result<Option<Vec<u8>>> {
    let meta = match std::fs::metadata(path) {
        Ok(meta) => meta,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(Error::io(path, "open", e)),
    };
    if meta.len() > SMALL_FILE_BYTES_MAX {
        let expected = format!("at most {SMALL_FILE_BYTES_MAX}");
        let found = format!("{} bytes", meta.len());
        return Err(Error::invalid(path, "size", found, expected, "name a checkpoint directory"));
    }
    std::fs::read(path).map(Some).map_err(|e| Error::io(path, "read", e))
}

#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens every weight file of `dir` and reads the headers.
    pub fn open(dir: &Path) -> Result<Self> {
        let present = weight_files(dir)?;
        let listed = listed_shards(dir)?;
        let missing: Vec<String> =
            listed.iter().filter(|s| !present.contains(*s)).cloned().collect();
        let mut checkpoint = Self {
            dir: dir.to_owned(),
            shards: Vec::new(),
            tensors: BTreeMap::new(),
            missing_shards: missing,
            notes: Vec::new(),
        };
        if present.is_empty() {
            return Err(checkpoint.no_weights());
        }
        // Listed shards first: they win over strays that repeat a tensor.
        let (first, strays): (Vec<&String>, Vec<&String>) =
            present.iter().partition(|s| listed.is_empty() || listed.contains(*s));
        let mut vision = 0;
        for name in first {
            vision += checkpoint.add_shard(name, Stray::Refuse)?;
        }
        for name in strays {
            checkpoint.notes.push(format!("{name} is not in the index; its new tensors were used"));
            vision += checkpoint.add_shard(name, Stray::Ignore)?;
        }
        if vision > 0 {
            checkpoint.notes.push(format!("{vision} vision tensors were left out"));
        }
        if !checkpoint.missing_shards.is_empty() {
            let names = checkpoint.missing_shards.join(", ");
            checkpoint.notes.push(format!("the index names shards that are absent: {names}"));
        }
        Ok(checkpoint)
    }

    fn no_weights(&self) -> Error {
        let names = std::fs::read_dir(&self.dir).into_iter().flatten().flatten();
        let gguf = names.filter(|e| e.path().extension().is_some_and(|x| x == "gguf")).count();
        if gguf > 0 {
            return unsupported(&self.dir, "weights", "a GGUF file");
        }
        let (found, remedy) = if self.missing_shards.is_empty() {
            ("no safetensors file".into(), "name the directory of a checkpoint".into())
        } else {
            let names = self.missing_shards.join(", ");
            (format!("none of the shards {names}"), "download the missing shards".to_string())
        };
        Error::invalid(&self.dir, "weights", found, "model.safetensors or its shards", remedy)
    }

    fn add_shard(&mut self, name: &str, stray: Stray) -> Result<usize> {
        let path = self.dir.join(name);
        let file = File::open(&path).map_err(|e| Error::io(&path, "open", e))?;
        let infos = safetensors::read_header(&file, &path)?;
        let shard = self.shards.len();
        self.shards.push(Shard { path: path.clone(), file });
        let mut vision = 0;
        for info in infos {
            match names::canonical(&info.name) {
                Name::Vision => vision += 1,
                Name::Derived => {}
                Name::Text(base, part) => {
                    self.add_part(&path, base, part, Located { shard, info }, stray)?;
                }
            }
        }
        Ok(vision)
    }

    fn add_part(
        &mut self,
        path: &Path,
        base: String,
        part: Part,
        at: Located,
        stray: Stray,
    ) -> Result<()> {
        if part == Part::Foreign || at.info.dtype == Dtype::F8 {
            let nvfp4 =
                at.info.name.ends_with("weight_scale_2") || at.info.name.ends_with("weight_packed");
            let format = if nvfp4 { "NVFP4 weights" } else { "FP8 or NVFP4 weights" };
            return Err(unsupported(path, &format!("tensor {}", at.info.name), format));
        }
        let parts = self.tensors.entry(base).or_default();
        let slot = match part {
            Part::Scales => &mut parts.scales,
            Part::Biases => &mut parts.biases,
            _ => &mut parts.weight,
        };
        match (&slot, stray) {
            (None, _) => *slot = Some(at),
            (Some(_), Stray::Ignore) => {}
            (Some(first), Stray::Refuse) => {
                let other = &self.shards[first.shard].path;
                return Err(Error::invalid(
                    path,
                    format!("tensor {}", at.info.name),
                    format!("the same tensor as {} of {}", first.info.name, other.display()),
                    "every tensor once",
                    "remove the file that does not belong to this checkpoint",
                ));
            }
        }
        Ok(())
    }

    /// The path of a located tensor's shard.
    pub fn path_of(&self, at: &Located) -> &Path {
        &self.shards[at.shard].path
    }
}

/// What to do with a tensor that is there already.
#[derive(Clone, Copy)]
enum Stray {
    Refuse,
    Ignore,
}

/// The error for a format that a later version may read.
pub(crate) fn unsupported(path: &Path, subject: &str, found: &str) -> Error {
    Error::invalid(
        path,
        subject,
        found,
        "bf16, f16, f32 or MLX affine safetensors",
        "this format is not supported yet: pack the bf16 or an MLX affine checkpoint",
    )
}

/// Names of the weight files in `dir`, sorted.
fn weight_files(dir: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(dir).map_err(|e| Error::io(dir, "list", e))?;
    let mut names = BTreeSet::new();
    for entry in entries {
        let entry = entry.map_err(|e| Error::io(dir, "list", e))?;
        if let Ok(name) = entry.file_name().into_string()
            && name.ends_with(".safetensors")
            && !name.starts_with('.')
        {
            names.insert(name);
        }
    }
    Ok(names)
}

/// Names of the shards that the index lists; empty without an index.
fn listed_shards(dir: &Path) -> Result<BTreeSet<String>> {
    let path = dir.join(INDEX_FILE);
    let Some(bytes) = read_small(&path)? else { return Ok(BTreeSet::new()) };
    let remedy = "download the index again";
    let index: Index = serde_json::from_slice(&bytes).map_err(|e| {
        Error::invalid(&path, "json", e.to_string(), "an object with a weight_map", remedy)
    })?;
    let names: BTreeSet<String> = index.weight_map.into_values().collect();
    let plain = |n: &str| !n.contains(['/', '\\', ':']) && n.ends_with(".safetensors");
    if let Some(bad) = names.iter().find(|n| !plain(n)) {
        let expected = "plain names of safetensors files";
        return Err(Error::invalid(&path, "weight_map", format!("{bad:?}"), expected, remedy));
    }
    Ok(names)
}
