//! The algorithms, each written once over [`crate::simd::Simd`].
//!
//! Owns: the order of every sum. Never: threads, memory of the device, intrinsics.
//! Invariant: a row's result is a function of that row, its state and the weights alone.

// Indices run over several arrays in step; iterators would hide that.
#![allow(clippy::needless_range_loop)]

pub mod attention;
pub mod blocked;
pub mod cache;
pub mod choose;
pub mod conv;
pub mod delta;
pub mod dense;
pub mod heads;
pub mod lanes;
pub mod math;
pub mod norm;
pub mod quant;
pub mod rope;
pub mod tile;
