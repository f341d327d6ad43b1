//! The verbs of the seam, each as a few kernels.
//!
//! Owns: which kernels make up a verb, and with which parameters. Never: buffers' lifetimes.

/// Ends a verb with [`crate::Error::Misuse`] when its operands do not fit each other. Kernels do not look
/// at bounds, so every verb has to.
macro_rules! ensure {
    ($condition:expr, $($message:tt)+) => {
        if !$condition {
            return Err(crate::error::Error::Misuse { what: format!($($message)+) });
        }
    };
}

mod attention;
mod delta;
pub(crate) mod hyper;
mod linear;
mod memory;
mod moe;
pub(crate) mod resident;
mod rows;
mod seam;
mod slots;
