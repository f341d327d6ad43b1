//! The pocket model that travels inside the program.
//!
//! Owns: its bytes, and the directory they are unpacked into on first use.
//! Never: reading it (it is a store like any other).
//! Invariants: a directory that [`dir`] returns was verified against the bytes in the program; one
//! process at a time unpacks, so an intact directory is never taken away from under another.

use crate::terminal::note;
use crate::{dirs, exit};
use anyhow::Context as _;
use cherenkov_format::progress::Silent;
use cherenkov_format::{checksum, verify};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../assets/pocket/", $name)) as &[u8])),*]
    };
}

/// Every file of the store; the manifest, which has the checksums of the others, comes first.
const FILES: [(&str, &[u8]); 8] = files![
    "manifest.json",
    "dense.bin",
    "experts.bin",
    "ngram-0.bin",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
];

/// Held by the process that unpacks; it stays, because removing it would let two hold it.
const LOCK: &str = ".lock";

/// What to call it in messages.
pub const NAME: &str = "the bundled pocket model";

/// The directory with the unpacked model: in the cache, or where that cannot be written in the
/// system's temporary directory.
///
/// # Errors
/// When neither can be written.
pub fn dir() -> anyhow::Result<PathBuf> {
    let mut reason = "there is no home directory".to_owned();
    if let Some(cache) = dirs::cache() {
        match install(&cache.join("models")) {
            Ok(dir) => return Ok(dir),
            Err(error) => reason = exit::message(&error),
        }
    }
    let temp = std::env::temp_dir().join("cherenkov-models");
    note(&format!("note: {reason}; {NAME} goes to {} instead", temp.display()));
    install(&temp).with_context(|| format!("cannot unpack {NAME}"))
}

/// Unpacks into a directory of `base`, unless an intact one is there.
fn install(base: &Path) -> anyhow::Result<PathBuf> {
    let name = format!("pocket-{:016x}", checksum(FILES[0].1));
    let dir = base.join(&name);
    if intact(&dir) {
        return Ok(dir);
    }
    create_dir(base)?;
    // Where the file system has no locks, two processes that start together may disturb each other.
    let lock = fs::File::create(base.join(LOCK)).ok();
    let _held = lock.filter(|lock| lock.lock().is_ok());
    // Another process may have been faster.
    if intact(&dir) {
        return Ok(dir);
    }
    let fresh = base.join(format!(".{name}.{}", std::process::id()));
    let published = unpack(&fresh).and_then(|()| publish(&fresh, &dir));
    if published.is_err() {
        let _ = fs::remove_dir_all(&fresh);
    }
    published.map(|()| dir)
}

/// Whether `dir` holds exactly our bytes: the manifest's, and what its checksums demand.
fn intact(dir: &Path) -> bool {
    let (manifest, bytes) = FILES[0];
    fs::read(dir.join(manifest)).is_ok_and(|found| found == bytes)
        && verify::verify(dir, &mut Silent).is_ok()
}

fn create_dir(dir: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))
}

fn unpack(dir: &Path) -> anyhow::Result<()> {
    let _ = fs::remove_dir_all(dir);
    create_dir(dir)?;
    for (name, bytes) in FILES {
        let path = dir.join(name);
        fs::File::create(&path)
            .and_then(|mut file| file.write_all(bytes).and_then(|()| file.sync_all()))
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(())
}

/// Gives the unpacked directory its name; a damaged one of that name goes away.
fn publish(fresh: &Path, dir: &Path) -> anyhow::Result<()> {
    let damaged = fresh.with_extension("damaged");
    if fs::rename(dir, &damaged).is_ok() {
        let _ = fs::remove_dir_all(&damaged);
    }
    fs::rename(fresh, dir).with_context(|| format!("cannot create {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_asset_is_bundled() {
        let assets = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket");
        let mut found: Vec<String> = fs::read_dir(assets)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .filter(|name| !name.ends_with(".md"))
            .collect();
        found.sort();
        let mut bundled = FILES.map(|(name, _)| name.to_owned());
        bundled.sort();
        assert_eq!(found, bundled);
        let bytes: usize = FILES.iter().map(|(_, bytes)| bytes.len()).sum();
        assert!(bytes <= 24_000_000, "{bytes} bytes are more than the repository should carry");
    }

    #[test]
    fn damage_and_leftovers_are_repaired() {
        let base = tempfile::tempdir().unwrap();
        let dir = install(base.path()).unwrap();
        assert!(intact(&dir));
        let path = dir.join("ngram-0.bin");
        let mut bytes = fs::read(&path).unwrap();
        bytes[1000] ^= 1;
        fs::write(&path, bytes).unwrap();
        assert!(!intact(&dir));
        assert_eq!(install(base.path()).unwrap(), dir);
        assert!(intact(&dir));
        fs::remove_file(&path).unwrap();
        assert_eq!(install(base.path()).unwrap(), dir);
        assert!(intact(&dir));
        let left = fs::read_dir(base.path()).unwrap().map(|entry| entry.unwrap().file_name());
        let left: Vec<_> = left.filter(|name| name != LOCK).collect();
        assert_eq!(left, [dir.file_name().unwrap()], "nothing else is left behind");
    }

    #[test]
    fn those_who_start_together_share_one_directory() {
        let base = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    let dir = install(base.path()).unwrap();
                    (0..5).for_each(|_| assert!(intact(&dir), "it was taken away"));
                });
            }
        });
    }
}
