//! Residency of routed experts: which records are in memory, and how they come there.
//!
//! Owns: slots, pins, reads, eviction. Never: arithmetic.
#![forbid(unsafe_code)]

mod bank;
mod error;
mod pool;
mod source;
mod waves;

pub use bank::{Bank, PageBuf, RamBank, Slot};
pub use error::{Error, Result};
pub use pool::Pool;
pub use source::{ExpertKey, FileSource, Source};
pub use waves::{Counters, Experts, Wave};
