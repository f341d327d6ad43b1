//! The one error type of this crate.

use cherenkov_experts as experts;
use cherenkov_format as format;

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a model could not be loaded or a pass not be finished.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The store is not usable.
    #[error(transparent)]
    Store(#[from] format::Error),
    /// A routed expert could not be read.
    #[error(transparent)]
    Experts(#[from] experts::Error),
    /// The device cannot do what the model asks of it.
    #[error("device {device}: {what}")]
    Device {
        /// Name of the device.
        device: &'static str,
        /// What is missing and what to do about it.
        what: String,
    },
    /// The model has a shape that this program cannot run.
    #[error("{what}: found {found}, expected {expected}")]
    Unsupported {
        /// Field of the configuration.
        what: &'static str,
        /// Its value.
        found: String,
        /// What would work.
        expected: String,
    },
    /// A checked run found the fast device and the reference too far apart.
    #[error(
        "{verb} in {place}, row {row}: the device is off by {worst:.3e}, allowed are {allowed:.3e}; \
         everything before it agreed"
    )]
    Diverged {
        /// Verb whose result differs.
        verb: &'static str,
        /// Where in the forward pass.
        place: crate::device::Place,
        /// Row of the batch.
        row: usize,
        /// Largest difference.
        worst: f32,
        /// Bound that was exceeded.
        allowed: f32,
    },
    /// No page or slot is left for a sequence.
    #[error("{what}: all {limit} are in use; close a sequence or start with a larger context")]
    Exhausted {
        /// Resource.
        what: &'static str,
        /// How many there are.
        limit: usize,
    },
    /// A saved state does not belong to this model.
    #[error(
        "saved state: found {found}, expected {expected}; it belongs to another model or version"
    )]
    State {
        /// What the bytes hold.
        found: String,
        /// What this model needs.
        expected: String,
    },
}
