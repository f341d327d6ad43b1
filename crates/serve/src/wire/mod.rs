//! Wire types: what clients send and what they get.
//!
//! Owns: the dialects. Never: the worker, the engine.
//! Invariants: a field that asks for something this server does not do is refused by name; a stream
//! and a whole answer are written from the same items.

pub(crate) mod anthropic;
pub(crate) mod ask;
pub(crate) mod fault;
pub(crate) mod fields;
pub(crate) mod openai;
pub(crate) mod writer;
