//! Every byte on disk: checkpoint readers, affine codes, tiles, records, the manifest, the packer.
//!
//! Owns: file formats. Never: residency policy, arithmetic on activations.

#![deny(unsafe_code)]

#[cfg(target_endian = "big")]
compile_error!(
    "the store is little-endian and read in place: big-endian machines are not supported"
);
#[cfg(not(target_pointer_width = "64"))]
compile_error!("stores are larger than a 32-bit address space");

pub mod affine;
pub mod checkpoint;
mod checksum;
pub mod encoding;
mod error;
pub mod float;
pub mod gguf;
pub mod manifest;
mod map;
pub mod matrix;
pub mod norms;
pub mod pack;
mod pio;
pub mod progress;
pub mod qwen4_exp;
pub mod record;
pub mod rows;
mod store;
pub mod synth;
pub mod tile16;
pub mod verify;

pub use checksum::{Checksums, checksum};
pub use encoding::{Bits, Encoding, Group};
pub use error::{Error, Result};
pub use manifest::Manifest;
pub use map::{OwnPages, ask_for_huge_pages};
pub use matrix::{Matrix, MatrixRef};
pub use record::{Projection, RecordLayout};
pub use rows::RowEncoding;
pub use store::{ExpertFile, NGRAM_RESIDENT_BYTES, NgramTable, Store};
