//! Residency of routed experts: which records are in memory, and how they come there.
//!
//! Owns: slots, pins, reads, eviction, lookahead. Never: arithmetic.
//!
//! A pass asks for the experts of its rows ([`Experts::request`]), does what needs none of them, and
//! then is given all of them in waves ([`Experts::waves`]). Between the two reader threads fill slots
//! of the bank. Nothing here changes a number of a model: only when it is there.
#![forbid(unsafe_code)]

mod ahead;
mod bank;
mod direct_io;
mod error;
mod grade;
mod late;
mod lookahead;
mod policy;
mod pool;
mod queue;
mod readers;
mod replay;
mod request;
mod resize;
mod source;
mod stats;
mod trace;
mod waves;

pub use bank::{Bank, PageBuf, RamBank, Slot};
pub use direct_io::{Access, DirectFile, RecordFile};
pub use error::{Error, Result};
pub use grade::{Grade, Layouts};
pub use late::STEP_ROWS;
pub use lookahead::{Lookahead, Outcome, Visit, Width, scan_pays};
pub use policy::{Fading, Lru, Policy, Scans, Use};
pub use pool::{Line, Pool, Press, Rank, Taker};
pub use queue::{Job, Priority, Queue};
pub use readers::{Clock, Done, Readers, Reads};
pub use replay::{Belady, Replayed, replay};
pub use request::Wave;
pub use source::{Drive, ExpertKey, FileSource, Index, Source};
pub use stats::{Counters, ExpertCounters, Snapshot};
pub use trace::{BadTrace, Routed, Trace};
pub use waves::{Experts, READERS_DEFAULT, Streaming};
