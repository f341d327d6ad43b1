//! The fast CPU device.
//!
//! Owns: kernels, threads, the memory of activations and of sequence states.
//! Never: layer order (see `cherenkov-model`), residency of experts, clocks, the environment.
//! Invariant: the bits of a row depend on the row, its sequence and the weights alone: not on other
//! rows, chunks, threads or the instruction set.
#![deny(unsafe_code)]

mod device;
mod footprint;
pub mod kernels;
pub mod memory;
mod read;
#[allow(unsafe_code)]
pub mod simd;
#[allow(unsafe_code)]
pub mod threads;

pub use device::{CpuDevice, CpuMatrix, CpuOptions, CpuVector, KvPrecision};
pub use footprint::Footprint;
pub use read::PlainRead;
pub use simd::Isa;
