//! Where a pack writes, and how the result becomes visible.
//!
//! Owns: the unfinished directory beside the output, free space, the renames at the end.
//! Never: contents. Invariant: the output's name always stands for a whole store or for nothing.

use super::Existing;
use crate::error::{Error, Result};
use crate::manifest::{FORMAT, MANIFEST_FILE};
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// The paths of one pack, absolute.
#[derive(Clone, Debug)]
pub struct Place {
    /// The store to be.
    pub out: PathBuf,
    /// The directory that will hold it.
    parent: PathBuf,
    /// The unfinished store.
    pub partial: PathBuf,
    /// A replaced store, until it is deleted.
    old: PathBuf,
}

/// The output beside `src` that is used when none is named: `SRC-cherenkov`.
pub fn default_out(src: &Path) -> PathBuf {
    let src = fs::canonicalize(src).unwrap_or_else(|_| src.to_owned());
    let mut name = src.file_name().unwrap_or_default().to_os_string();
    name.push("-cherenkov");
    src.with_file_name(name)
}

impl Place {
    /// Resolves the paths for `out`.
    pub fn new(out: &Path) -> Result<Self> {
        let out = std::path::absolute(out).map_err(|e| Error::io(out, "resolve", e))?;
        let (Some(parent), Some(name)) = (out.parent(), out.file_name()) else {
            let expected = "the name of a new directory";
            return Err(Error::invalid(&out, "output", "a root", expected, "name another output"));
        };
        let beside = |suffix: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            parent.join(hidden)
        };
        let (partial, old) = (beside(".partial"), beside(".old"));
        Ok(Self { parent: parent.to_owned(), partial, old, out })
    }

    /// Refuses an output that is there already, unless it is a store and may be replaced.
    pub fn check_free(&self, existing: Existing) -> Result<()> {
        if !self.taken()? {
            return Ok(());
        }
        let refuse = |found: &str, remedy: &str| {
            Err(Error::invalid(&self.out, "output", found, "no such directory", remedy))
        };
        match existing {
            Existing::Refuse => {
                refuse("something there already", "force replacement or name another output")
            }
            Existing::Replace if is_store(&self.out) => Ok(()),
            Existing::Replace => refuse(
                "something that is not a store",
                "only stores are replaced: move it away or name another output",
            ),
        }
    }

    /// Whether something other than an empty directory has the output's name.
    fn taken(&self) -> Result<bool> {
        match fs::read_dir(&self.out) {
            Ok(mut entries) => Ok(entries.next().is_some()),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => Ok(true),
            Err(e) => Err(Error::io(&self.out, "list", e)),
        }
    }

    /// Checks that the volume which will hold the output has `needed` bytes.
    pub fn check_space(&self, needed: u64) -> Result<()> {
        // The nearest directory that exists lies on the volume that the new ones will lie on.
        let base = self.parent.ancestors().find(|a| a.is_dir()).unwrap_or(&self.parent);
        let available =
            fs4::available_space(base).map_err(|e| Error::io(base, "ask the free space", e))?;
        if available < needed {
            return Err(Error::Space { path: self.out.clone(), needed, available });
        }
        Ok(())
    }

    /// Creates the unfinished directory, or takes over one that an earlier pack left.
    pub fn create_partial(&self) -> Result<()> {
        let ours =
            self.partial.join(super::journal::JOURNAL_FILE).is_file() || is_store(&self.partial);
        let full = fs::read_dir(&self.partial).is_ok_and(|mut entries| entries.next().is_some());
        if full && !ours {
            return Err(Error::invalid(
                &self.partial,
                "unfinished output",
                "something that no pack left",
                "a journal",
                "move it away or name another output",
            ));
        }
        fs::create_dir_all(&self.partial).map_err(|e| Error::io(&self.partial, "create", e))
    }

    /// Removes what an unrelated, unfinished run left, except the journal.
    pub fn clear_partial(&self) -> Result<()> {
        let dir = &self.partial;
        for entry in fs::read_dir(dir).map_err(|e| Error::io(dir, "list", e))? {
            let path = entry.map_err(|e| Error::io(dir, "list", e))?.path();
            if path.is_dir() {
                remove_all(&path)?;
            } else if path.file_name().is_some_and(|n| n != super::journal::JOURNAL_FILE) {
                remove_file(&path)?;
            }
        }
        Ok(())
    }

    /// Gives the finished directory its name.
    pub fn publish(&self) -> Result<()> {
        sync_dir(&self.partial)?;
        let replaced = self.taken()?;
        if replaced {
            remove_store(&self.old)?;
            rename(&self.out, &self.old)?;
        } else if self.out.is_dir() {
            // Empty: renaming over it works on some systems only.
            fs::remove_dir(&self.out).map_err(|e| Error::io(&self.out, "remove", e))?;
        }
        if let Err(e) = rename(&self.partial, &self.out) {
            if replaced {
                rename(&self.old, &self.out)?;
            }
            return Err(e);
        }
        sync_dir(&self.parent)?;
        remove_store(&self.old)
    }
}

fn rename(from: &Path, to: &Path) -> Result<()> {
    fs::rename(from, to).map_err(|e| Error::io(from, format!("rename to {}", to.display()), e))
}

/// Deletes a replaced store, or an empty directory; refuses anything else.
fn remove_store(path: &Path) -> Result<()> {
    if is_store(path) {
        return remove_all(path);
    }
    match fs::remove_dir(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, "delete", e)),
        _ => Ok(()),
    }
}

/// Deletes a file of ours; its absence is fine.
pub fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, "delete", e)),
        _ => Ok(()),
    }
}

/// Deletes a directory of ours; its absence is fine.
pub fn remove_all(path: &Path) -> Result<()> {
    match fs::remove_dir_all(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(Error::io(path, "delete", e)),
        _ => Ok(()),
    }
}

/// Whether `dir` looks like a store, damaged or not.
fn is_store(dir: &Path) -> bool {
    let mut head = Vec::new();
    let read =
        fs::File::open(dir.join(MANIFEST_FILE)).and_then(|f| f.take(4096).read_to_end(&mut head));
    read.is_ok() && String::from_utf8_lossy(&head).contains(&format!("\"{FORMAT}\""))
}

/// Makes renames and new names within `dir` durable, where the system can.
#[cfg(unix)]
pub fn sync_dir(dir: &Path) -> Result<()> {
    fs::File::open(dir).and_then(|d| d.sync_all()).map_err(|e| Error::io(dir, "sync", e))
}

/// Windows has no such call for directories; its renames are journaled.
#[cfg(not(unix))]
pub fn sync_dir(_: &Path) -> Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_asked_from_the_nearest_directory_that_exists() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("a/b/c")).unwrap();
        place.check_space(1).unwrap();
        let error = place.check_space(u64::MAX).unwrap_err();
        assert!(matches!(error, Error::Space { .. }), "{error}");
        assert!(!dir.path().join("a").exists());
        // A relative path is resolved before the volume is asked.
        Place::new(Path::new("not-there/x")).unwrap().check_space(1).unwrap();
    }

    #[test]
    fn only_stores_are_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("x");
        let place = Place::new(&out).unwrap();
        place.check_free(Existing::Refuse).unwrap();
        fs::create_dir(&out).unwrap();
        place.check_free(Existing::Refuse).unwrap();
        fs::write(out.join("precious"), "data").unwrap();
        assert!(place.check_free(Existing::Refuse).is_err());
        assert!(place.check_free(Existing::Replace).is_err());
        fs::write(out.join(MANIFEST_FILE), format!("{{\n\"format\": \"{FORMAT}\"")).unwrap();
        assert!(place.check_free(Existing::Refuse).is_err());
        place.check_free(Existing::Replace).unwrap();
    }

    #[test]
    fn nothing_that_no_pack_left_is_taken_over_or_deleted() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::new(&dir.path().join("x")).unwrap();
        for taken in [&place.partial, &place.old] {
            fs::create_dir(taken).unwrap();
            fs::write(taken.join("precious"), "data").unwrap();
        }
        let error = place.create_partial().unwrap_err().to_string();
        assert!(error.contains("no pack left"), "{error}");
        assert!(remove_store(&place.old).is_err());
        assert!(place.old.join("precious").exists());
    }

    #[test]
    fn the_default_output_lies_beside_the_source() {
        assert_eq!(default_out(Path::new("/no/such/model")), Path::new("/no/such/model-cherenkov"));
    }
}
