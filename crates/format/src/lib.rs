//! Every byte on disk: checkpoint readers, affine codes, tiles, records, the manifest, the packer.
//!
//! Owns: file formats. Never: residency policy, arithmetic on activations.

pub mod encoding;
mod error;
pub mod float;
pub mod matrix;
pub mod qwen4_exp;
pub mod record;
pub mod tile16;

pub use encoding::{Bits, Encoding, Group};
pub use error::{Error, Result};
pub use matrix::{Matrix, MatrixRef};
