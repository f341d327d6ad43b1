//! The GPU device on wgpu: Vulkan, Metal and DX12 from one set of WGSL kernels.
//!
//! Owns: kernels, buffers, the bank in GPU memory, the choice of an adapter.
//! Never: layer order; wgpu types in the public API.
//! Invariant: a row's arithmetic is the same whatever the number of rows, their company and the cut
//! into batches; every sum has one written order and no float is added atomically.
//!
//! Numerics: activations stay f32 and codes are widened as they are read. Decode waits for memory, not for
//! arithmetic, so int8 products would buy little there and cost an error of a percent; Apple's GPUs
//! have no int8 products at all. There is one class of kernels: one row and many rows differ only in how
//! many rows share a load of weights, so drafts are verified with the arithmetic that decodes.
//!
//! Order of things: verbs record kernels into one encoder; it is handed over every dozen kernels, before
//! an upload, and when the host needs a result (`route`, `logits`, `fetch`). Two verbs wait for what
//! comes next: `hyper_write` is done together with the read that follows, and rows of a tentative run are
//! logged and replayed by the next run, so that taking drafts back costs nothing.
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
mod profile;
mod state;
mod stream;
mod tables;
mod verbs;

pub use adapters::{AdapterInfo, Backend, Features, Kind, Limits, Selection, adapters};
pub use bank::{GpuBank, Landing};
pub use device::{GpuDevice, GpuMatrix, GpuVector, Options, ParamPath, SlabPath};
pub use error::{Error, Result};
pub use profile::{Cost, Profiling};
pub use stream::Counts;
pub use verbs::resident::{MoeActs, MoeWeights, Residency};

/// Name of the device in messages.
pub const NAME: &str = "gpu";
