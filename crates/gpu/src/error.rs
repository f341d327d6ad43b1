//! The one error type of this crate.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a GPU could not be opened or stopped working.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No adapter at all, or none of the wanted kind.
    #[error(
        "no GPU adapter: found {found}, expected {wanted}; install a Vulkan, Metal or DX12 driver, \
         or choose another device"
    )]
    NoAdapter {
        /// Names of the adapters that are there.
        found: String,
        /// What was asked for.
        wanted: String,
    },
    /// The adapter lacks something every kernel needs.
    #[error(
        "GPU {adapter}: found {found}, expected {expected}; update the driver or choose another"
    )]
    Missing {
        /// Name of the adapter.
        adapter: String,
        /// What it offers.
        found: String,
        /// What is needed.
        expected: String,
    },
    /// One buffer would be larger than the adapter can bind.
    #[error("{what} takes {bytes} bytes, the GPU binds at most {limit}; {remedy}")]
    TooLarge {
        /// Purpose of the buffer.
        what: &'static str,
        /// Its size.
        bytes: u64,
        /// The adapter's limit.
        limit: u64,
        /// What would help.
        remedy: &'static str,
    },
    /// The adapter has no memory left.
    #[error(
        "the GPU has no memory for {bytes} more bytes of {what}; give less to the pool or context"
    )]
    Memory {
        /// Purpose of the buffer.
        what: &'static str,
        /// Its size.
        bytes: u64,
    },
    /// The adapter went away (driver reset, unplugged) or refused a command.
    #[error("the GPU failed: {why}; everything on it is lost, start again")]
    Lost {
        /// The driver's words.
        why: String,
    },
    /// The caller broke a rule of the seam.
    #[error("{what}")]
    Misuse {
        /// Which one.
        what: String,
    },
}

impl From<Error> for cherenkov_model::Error {
    fn from(error: Error) -> Self {
        Self::Device { device: crate::NAME, what: error.to_string() }
    }
}
