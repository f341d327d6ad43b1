//! The `qwen4_exp` family: weights, state and the one statement of its wiring.
//!
//! Owns: the order of verbs. Never: what a verb computes, where experts are, files other than
//! through the store.
//! Invariant: decode, verification of drafts, short and long prefill are the same call.

mod attention;
mod delta;
mod forward;
mod moe;
mod mtp;
mod ngram;
mod sequence;
mod weights;

pub use forward::{DraftSource, Input, Pass};
pub use sequence::Sequence;
pub use weights::{Acts, Draft, Layer, LoadDraft, Model, act_widths};
