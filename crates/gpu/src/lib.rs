//! The GPU device on wgpu: Vulkan, Metal and DX12 from one set of WGSL kernels.
//!
//! Owns: kernels, buffers, the bank in GPU memory, the choice of an adapter.
//! Never: layer order; wgpu types in the public API.
//! Invariant: a row's arithmetic is the same whatever the number of rows, their company and the cut
//! into batches; every sum has one written order and no float is added atomically.
#![deny(unsafe_code)]

mod adapters;
mod arena;
mod bank;
mod device;
mod error;
mod gpu;
pub mod kernels;
pub mod params;
mod pipelines;
mod state;
mod stream;
mod tables;
mod verbs;

pub use adapters::{AdapterInfo, Backend, Features, Kind, Limits, Selection, adapters};
pub use bank::{GpuBank, Landing};
pub use device::{GpuDevice, GpuMatrix, GpuVector, Options, ParamPath, SlabPath};
pub use error::{Error, Result};
pub use verbs::resident::{MoeActs, MoeWeights, Residency};

/// Name of the device in messages.
pub const NAME: &str = "gpu";
