//! The Anthropic dialect: messages and the count of their tokens.
//!
//! Owns: its requests and responses. Never: other dialects.
//! Invariant: blocks of a stream open and close in order, one at a time.

pub(crate) mod request;
pub(crate) mod response;
