//! Sequences, prefill, decode, speculation and sampling.
//!
//! Owns: what a request's tokens are. Never: HTTP, strings, kernels.
#![forbid(unsafe_code)]

mod depth;
mod draft;
mod engine;
mod error;
pub mod noise;
mod runner;
mod sample;
mod saved;

pub use cherenkov_experts::{Lookahead, Snapshot as Streamed, Streaming};
pub use cherenkov_model::qwen4_exp::LoadDraft;
pub use depth::Depth;
pub use engine::{Engine, Info, SeqId, Snapshot, Step};
pub use error::{Error, Result};
pub use runner::{Options, Rewrite, Runner};
pub use sample::{Drawn, LogProbs, SampleParams, Sampler};
