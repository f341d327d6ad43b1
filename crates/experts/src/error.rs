//! The one error type of this crate.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// A routed expert could not be brought into memory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The record could not be read, also not at the second attempt.
    #[error("expert {layer}/{expert}, second attempt: {source}")]
    Read {
        /// Layer of the expert (the draft head's comes after the trunk's).
        layer: u32,
        /// Expert within the layer.
        expert: u32,
        /// What went wrong.
        source: cherenkov_format::Error,
    },
    /// The pool is too small for any progress.
    #[error("the expert pool has {found} slots, expected at least 1; give more memory")]
    NoSlots {
        /// Slots of the pool.
        found: usize,
    },
    /// A reader thread could not be started.
    #[error("a reader thread cannot be started: {source}; lower --readers")]
    Threads {
        /// What the system said.
        source: std::io::Error,
    },
    /// A reader thread is gone, and with it a read.
    #[error("a reader of experts has failed; this is a fault of the program: restart it")]
    Readers,
}
