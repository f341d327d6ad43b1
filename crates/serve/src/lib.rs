//! The HTTP server.
//!
//! Owns: HTTP, wire types, the worker thread that owns the engine, the schedule.
//! Never: arithmetic, a device's name, signals, settings.
//! Invariants: one thread makes all engine calls, one per turn; handlers only submit, cancel, and
//! read bounded outboxes and immutable snapshots; a client that goes away cancels its request; what a
//! request asks for is done or refused by name.
//!
//! [`Server::new`] takes an engine, the text side of its model and [`ServeOptions`];
//! [`Server::serve`] takes a listener and a future that says when to stop.
#![forbid(unsafe_code)]

mod error;
mod http;
mod options;
mod outbox;
pub mod schedule;
mod server;
mod snapshot;
mod wire;
mod worker;

pub use error::{Error, Result};
pub use options::{Clock, Names, Reserve, ServeOptions, TextModel};
pub use server::Server;
pub use snapshot::{Counters, Health, RequestView, Snapshot};
