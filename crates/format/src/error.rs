//! The one error type of this crate.

use std::io;
use std::path::{Path, PathBuf};

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong with bytes on disk. Every message names the file, what was found, what was
/// expected and what to do next.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The operating system refused a file operation.
    #[error("{}: {action} failed: {source}", path.display())]
    Io {
        /// File or directory concerned.
        path: PathBuf,
        /// What was attempted: "open", "read 4096 bytes at 8192", ...
        action: String,
        /// The system's own error.
        #[source]
        source: io::Error,
    },
    /// A file is not what its format demands.
    #[error("{}: {subject}: found {found}, expected {expected}; {remedy}", path.display())]
    Invalid {
        /// File concerned.
        path: PathBuf,
        /// Field, tensor or record within the file.
        subject: String,
        /// What the file holds.
        found: String,
        /// What would be right.
        expected: String,
        /// What the user can do.
        remedy: String,
    },
    /// Not enough room on the volume that holds `path`.
    #[error(
        "{}: {needed} bytes are needed and {available} are free on this volume; free space or name another output directory",
        path.display()
    )]
    Space {
        /// Directory that was to be written.
        path: PathBuf,
        /// Bytes the operation will write.
        needed: u64,
        /// Bytes the volume offers.
        available: u64,
    },
    /// The caller's progress callback asked to stop.
    #[error("{}: stopped on request; run the same command again to go on", path.display())]
    Cancelled {
        /// What was being written or verified.
        path: PathBuf,
    },
}

impl Error {
    /// An [`Error::Io`] for `path`.
    pub fn io(path: &Path, action: impl Into<String>, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action: action.into(), source }
    }

    /// An [`Error::Invalid`] for `path`.
    pub fn invalid(
        path: &Path,
        subject: impl Into<String>,
        found: impl Into<String>,
        expected: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Invalid {
            path: path.to_owned(),
            subject: subject.into(),
            found: found.into(),
            expected: expected.into(),
            remedy: remedy.into(),
        }
    }
}
