//! What the worker shows of itself.
//!
//! Owns: the immutable picture that health, metrics, lists and dashboards render.
//! Never: wire formats. Invariant: a snapshot is whole: all its numbers are of one moment.

use crate::schedule::{Priority, RequestId, Stage};
use std::sync::Arc;

/// Whether the server answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The model is being loaded.
    Loading,
    /// Requests are answered.
    Ready,
    /// The engine does not work any more; the text says why.
    Degraded(String),
    /// No new requests are taken.
    Stopping,
}

/// One request as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestView {
    /// The worker's number.
    pub id: RequestId,
    /// Id of the response that it belongs to.
    pub response: Arc<str>,
    /// Which endpoint it came through.
    pub endpoint: &'static str,
    /// How far it is.
    pub stage: Stage,
    /// How urgent it is.
    pub priority: Priority,
    /// Tokens of its prompt.
    pub prompt_tokens: usize,
    /// Tokens of the prompt that were read or taken from a checkpoint.
    pub read_tokens: usize,
    /// Tokens of the prompt that a checkpoint held.
    pub cached_tokens: usize,
    /// Tokens of its answer so far.
    pub answer_tokens: usize,
    /// Milliseconds since it arrived.
    pub age_ms: u64,
}

/// Sums since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Requests that came to the worker.
    pub submitted: u64,
    /// Answers that ended well.
    pub finished: u64,
    /// Requests that ended with an error.
    pub failed: u64,
    /// Requests whose client left or that were cancelled.
    pub cancelled: u64,
    /// Panics of the engine.
    pub panics: u64,
    /// Steps that were made again, one request at a time, after a failure.
    pub retried: u64,
    /// Prompt tokens of all requests that began.
    pub prompt_tokens: u64,
    /// Prompt tokens that checkpoints held.
    pub cached_tokens: u64,
    /// Answer tokens.
    pub answer_tokens: u64,
    /// Sum of the times to the first token, in milliseconds.
    pub first_token_ms: u64,
    /// Requests that got a first token.
    pub first_tokens: u64,
}

/// The worker at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Snapshot {
    /// Whether requests are answered.
    pub health: Health,
    /// Requests in the order of arrival.
    pub requests: Vec<RequestView>,
    /// Prefix checkpoints.
    pub checkpoints: usize,
    /// Sums.
    pub counters: Counters,
    /// The engine's own counters.
    pub engine: cherenkov_engine::Snapshot,
}

impl Snapshot {
    pub(crate) fn loading() -> Self {
        Self {
            health: Health::Loading,
            requests: Vec::new(),
            checkpoints: 0,
            counters: Counters::default(),
            engine: cherenkov_engine::Snapshot::default(),
        }
    }

    /// Requests that have not begun.
    pub fn queued(&self) -> usize {
        self.requests.iter().filter(|r| r.stage == Stage::Queued).count()
    }
}
