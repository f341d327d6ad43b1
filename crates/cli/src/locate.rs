//! Which store a command works on.
//!
//! Owns: the way from `--model` (or nothing) to the directory of a store. Never: reading bulk bytes.

use crate::args::ModelArgs;
use crate::interrupt::Interrupt;
use crate::terminal::{self, note};
use crate::{bundled, dirs, pack};
use anyhow::{Context as _, bail};
use cherenkov_format::manifest::{self, MANIFEST_FILE};
use cherenkov_format::pack::{Existing, Options};
use cherenkov_format::{Store, checksum};
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

/// Opens the store that the arguments name; a checkpoint is packed into the cache first.
///
/// # Errors
/// When there is none, or it is damaged.
pub fn store(args: &ModelArgs, interrupt: &Interrupt) -> anyhow::Result<Arc<Store>> {
    let dir = match &args.model {
        None => bundled::dir()?,
        Some(path) => from_path(path, args.yes, interrupt)?,
    };
    let mut store = Store::open(&dir).with_context(|| format!("cannot open {}", dir.display()))?;
    if let Some(bits) = args.experts {
        store.use_experts(bits).with_context(|| format!("--experts {}", bits.get()))?;
    }
    Ok(Arc::new(store))
}

fn from_path(path: &Path, yes: bool, interrupt: &Interrupt) -> anyhow::Result<PathBuf> {
    const EXPECTED: &str = "expected a store (with manifest.json) or a checkpoint (with config.json and *.safetensors)";
    if !path.exists() {
        bail!("{}: no such directory; {EXPECTED}", path.display());
    }
    if !path.is_dir() {
        bail!("{}: not a directory; {EXPECTED}", path.display());
    }
    if path.join(MANIFEST_FILE).exists() {
        return Ok(path.to_owned());
    }
    let weights = weights(path)?;
    if !path.join("config.json").is_file() || weights.is_empty() {
        bail!("{}: neither store nor checkpoint; {EXPECTED}", path.display());
    }
    packed(path, &weights, yes, interrupt)
}

/// Name, length and time of every weight file, sorted.
fn weights(dir: &Path) -> anyhow::Result<Vec<(PathBuf, u64, u128)>> {
    let context = || format!("cannot list {}", dir.display());
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).with_context(context)? {
        let path = entry.with_context(context)?.path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            // Checkpoints from the Hub's cache are links.
            let meta =
                fs::metadata(&path).with_context(|| format!("cannot read {}", path.display()))?;
            let since = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok());
            found.push((path, meta.len(), since.map_or(0, |d| d.as_nanos())));
        }
    }
    found.sort();
    Ok(found)
}

/// The store in the cache that was made from this checkpoint, which is made now if there is none.
fn packed(
    path: &Path,
    weights: &[(PathBuf, u64, u128)],
    yes: bool,
    interrupt: &Interrupt,
) -> anyhow::Result<PathBuf> {
    let Some(cache) = dirs::cache() else {
        bail!(
            "{}: a checkpoint must be packed and there is no cache directory; run `cherenkov pack {0} OUT`",
            path.display()
        );
    };
    let path =
        fs::canonicalize(path).with_context(|| format!("cannot resolve {}", path.display()))?;
    let mut seen = format!("{}\n", path.display());
    for (file, len, time) in weights {
        let _ = writeln!(seen, "{} {len} {time}", file.display());
    }
    let config = fs::read(path.join("config.json")).context("cannot read config.json")?;
    let key = checksum(&[seen.as_bytes(), &config].concat());
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let out = cache.join("packed").join(format!("{name}-{key:016x}"));
    if manifest::read(&out).is_ok() {
        return Ok(out);
    }
    let total: u64 = weights.iter().map(|w| w.1).sum();
    let what = format!(
        "{} is a checkpoint of {}; it is packed once into {}",
        path.display(),
        terminal::bytes(total),
        out.display()
    );
    if yes {
        note(&what);
    } else {
        match terminal::ask(&format!("{what}. Pack now?")) {
            Some(true) => {}
            Some(false) => {
                bail!("not packed; `cherenkov pack {} OUT` chooses another place", path.display())
            }
            None => bail!(
                "{what}; add --yes, or run `cherenkov pack {} OUT` and name OUT",
                path.display()
            ),
        }
    }
    let options = Options { existing: Existing::Replace, ..Options::default() };
    pack::pack_into(&path, &out, &options, interrupt)?;
    Ok(out)
}
