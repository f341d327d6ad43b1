//! Checks of the repository that are no compiler's business.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

pub mod tidy;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the root").to_owned()
}
