//! What a dialect does with an answer.
//!
//! Owns: the interface between the items of an answer and their JSON.
//! Never: sockets. Invariant: writers are fed the same items whether an answer streams or not.

use crate::error::Error;
use crate::outbox::{Delta, End, Finish, TokenLog, Usage};
use cherenkov_text::{ParsedOutput, Tokenizer};
use serde_json::Value;
use std::sync::Arc;

/// What is the same in all parts of a response.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub(crate) id: Arc<str>,
    pub(crate) model: String,
    pub(crate) created: u64,
    pub(crate) tokenizer: Tokenizer,
    pub(crate) include_usage: bool,
    /// Whether log-probabilities were asked for.
    pub(crate) logprobs: bool,
    pub(crate) prompt_tokens: usize,
}

/// Writes a stream of events.
pub(crate) trait StreamWriter: Send {
    /// What comes first.
    fn begin(&mut self) -> String;
    /// More of answer `index`.
    fn delta(&mut self, index: usize, delta: Delta) -> String;
    /// The end of answer `index`.
    fn end(&mut self, index: usize, finish: Finish, usage: Usage) -> String;
    /// What comes last, after all answers ended.
    fn done(&mut self) -> String;
    /// An event that shows life, in answer `index`, which has not ended.
    fn ping(&mut self, index: usize) -> String;
    /// The stream ends with an error.
    fn fail(&mut self, error: &Error) -> String;
}

/// One whole answer.
#[derive(Debug)]
pub(crate) struct Whole {
    pub(crate) output: ParsedOutput,
    pub(crate) logs: Vec<TokenLog>,
    pub(crate) finish: Finish,
    pub(crate) usage: Usage,
}

/// Collects the items of one answer.
#[derive(Default)]
pub(crate) struct Collector {
    output: ParsedOutput,
    logs: Vec<TokenLog>,
}

impl Collector {
    pub(crate) fn add(&mut self, delta: Delta) {
        delta.events.into_iter().for_each(|event| self.output.add(event));
        self.logs.extend(delta.logs);
    }

    pub(crate) fn end(self, end: End) -> Result<Whole, Error> {
        let Self { output, logs } = self;
        end.outcome.map(|finish| Whole { output, logs, finish, usage: end.usage })
    }
}

/// A server-sent event without a name.
pub(crate) fn data(value: &Value) -> String {
    format!("data: {value}\n\n")
}

/// A server-sent event with a name.
pub(crate) fn event(name: &str, value: &Value) -> String {
    format!("event: {name}\ndata: {value}\n\n")
}

/// Tokens of several answers to their prompts.
pub(crate) fn sum(usages: &[Usage], n: usize) -> Usage {
    let mut total = Usage::default();
    for (index, usage) in usages.iter().enumerate() {
        // The answers of one prompt share it.
        if index % n.max(1) == 0 {
            total.prompt += usage.prompt;
            total.cached += usage.cached;
        }
        total.answer += usage.answer;
        total.reasoning += usage.reasoning;
    }
    total
}
