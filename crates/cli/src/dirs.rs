//! Where files of this program live on this machine.
//!
//! Owns: the environment variables and conventions of each system. Never: creating anything.

use etcetera::BaseStrategy as _;
use std::path::PathBuf;

/// Name of our directory within the system's.
const NAME: &str = "cherenkov";

/// For files that can be made again: XDG_CACHE_HOME or ~/.cache, ~/Library/Caches, %LOCALAPPDATA%.
/// `None` without a home directory.
pub fn cache() -> Option<PathBuf> {
    let base = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(base.cache_dir().join(NAME))
}

/// For files that record what the user did: XDG_STATE_HOME or ~/.local/state, else the data
/// directory. `None` without a home directory.
pub fn state() -> Option<PathBuf> {
    let base = etcetera::base_strategy::choose_native_strategy().ok()?;
    Some(base.state_dir().unwrap_or_else(|| base.data_dir()).join(NAME))
}
