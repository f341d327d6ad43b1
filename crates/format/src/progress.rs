//! How long operations report to their caller.
//!
//! Owns: the callback trait and its values. Never: printing, clocks (the caller has both).

use std::ops::ControlFlow;

/// What an operation is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Reading headers and norms, planning.
    Inspect,
    /// Verifying what an earlier, interrupted run left.
    Resume,
    /// Converting and writing.
    Convert,
    /// Waiting for the disk to have everything.
    Sync,
    /// Writing the manifest, then renaming; `done` counts the steps.
    Publish,
    /// Comparing checksums.
    Verify,
}

/// Where an operation stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// What it is doing.
    pub stage: Stage,
    /// Bytes of the store dealt with in this stage (steps, when publishing).
    pub done: u64,
    /// Bytes (or steps) this stage has in all.
    pub total: u64,
    /// Part of `done` that was there when the stage began: an ETA counts without it.
    pub skipped: u64,
}

/// Receives progress, on the thread that called the operation.
pub trait Progress {
    /// Called often; `Break` stops the operation with [`crate::Error::Cancelled`]. A stopped pack
    /// resumes later.
    fn update(&mut self, status: Status) -> ControlFlow<()>;
}

/// Reports nothing.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn update(&mut self, _: Status) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

impl<F: FnMut(Status) -> ControlFlow<()>> Progress for F {
    fn update(&mut self, status: Status) -> ControlFlow<()> {
        self(status)
    }
}
