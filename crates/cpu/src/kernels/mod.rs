//! The algorithms, each written once over [`crate::simd::Simd`].
//!
//! Owns: the order of every sum. Never: threads, memory of the device, intrinsics.
//! Invariant: a row's result is a function of that row, its state and the weights alone.

pub mod dense;
pub mod lanes;
pub mod math;
pub mod quant;
pub mod tile;
