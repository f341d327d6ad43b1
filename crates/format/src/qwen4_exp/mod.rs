//! What a `qwen4_exp` checkpoint or store holds: configuration, tensor list, hash constants.

pub mod config;
pub mod hash;
pub mod tensors;
