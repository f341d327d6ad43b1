//! The response of `/v1/chat/completions`.
//!
//! Owns: its chunks and its whole. Never: its request.
//! Invariants: the first chunk of an answer holds the role and an empty content; reasons to finish
//! come in a chunk of their own; the usage chunk has no choices.

use super::{finish_reason, logprobs, usage};
use crate::error::Error;
use crate::outbox::{Delta, Finish, TokenLog, Usage};
use crate::wire::fault::Dialect;
use crate::wire::writer::{Head, StreamWriter, Whole, data, sum};
use cherenkov_text::Event;
use serde_json::{Map, Value, json};

/// A whole response; `n` answers per prompt.
pub(crate) fn whole(head: &Head, answers: Vec<Whole>) -> Value {
    let usages: Vec<Usage> = answers.iter().map(|a| a.usage).collect();
    let n = answers.len();
    let choices: Vec<Value> = answers.into_iter().enumerate().map(|c| choice(head, c)).collect();
    json!({
        "id": &*head.id,
        "object": "chat.completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
        "usage": usage(sum(&usages, n)),
    })
}

fn choice(head: &Head, (index, answer): (usize, Whole)) -> Value {
    let output = answer.output;
    let mut message = Map::new();
    message.insert("role".into(), json!("assistant"));
    let empty = if output.tool_calls.is_empty() { json!("") } else { Value::Null };
    message.insert("content".into(), output.content.map_or(empty, Value::String));
    if let Some(reasoning) = output.reasoning {
        message.insert("reasoning_content".into(), Value::String(reasoning));
    }
    if !output.tool_calls.is_empty() {
        let calls = output.tool_calls.into_iter().map(|call| {
            json!({
                "id": call.id,
                "type": "function",
                "function": { "name": call.name, "arguments": call.arguments },
            })
        });
        message.insert("tool_calls".into(), calls.collect());
    }
    json!({
        "index": index,
        "message": message,
        "logprobs": logs(head, &answer.logs),
        "finish_reason": finish_reason(&answer.finish),
    })
}

fn logs(head: &Head, logs: &[TokenLog]) -> Value {
    if head.logprobs { logprobs::chat(&head.tokenizer, logs) } else { Value::Null }
}

/// A streamed response.
pub(crate) struct Stream {
    head: Head,
    /// Per answer: the place of the call that is open, so that arguments find it.
    open: Vec<usize>,
    usages: Vec<Usage>,
}

impl Stream {
    pub(crate) fn new(head: Head, answers: usize) -> Self {
        Self { head, open: vec![0; answers], usages: vec![Usage::default(); answers] }
    }

    fn chunk(&self, choices: Value) -> Value {
        let mut chunk = json!({
            "id": &*self.head.id,
            "object": "chat.completion.chunk",
            "created": self.head.created,
            "model": self.head.model,
            "choices": choices,
        });
        if self.head.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn choice(&self, index: usize, delta: Value, logs: Value, finish: Value) -> String {
        let choice = json!({
            "index": index,
            "delta": delta,
            "logprobs": logs,
            "finish_reason": finish,
        });
        data(&self.chunk(json!([choice])))
    }

    fn event(&mut self, index: usize, event: Event) -> Option<Value> {
        match event {
            Event::Reasoning(text) => Some(json!({ "reasoning_content": text })),
            Event::Content(text) => Some(json!({ "content": text })),
            Event::ToolCallStart { index: place, id, name } => {
                self.open[index] = place;
                Some(json!({ "tool_calls": [{
                    "index": place,
                    "id": id,
                    "type": "function",
                    "function": { "name": name, "arguments": "" },
                }] }))
            }
            Event::ToolArgument(text) => Some(json!({ "tool_calls": [{
                "index": self.open[index],
                "function": { "arguments": text },
            }] })),
            Event::ToolCallEnd => None,
        }
    }
}

impl StreamWriter for Stream {
    fn begin(&mut self) -> String {
        let role = || json!({ "role": "assistant", "content": "" });
        let chunk = |index| self.choice(index, role(), Value::Null, Value::Null);
        (0..self.open.len()).map(chunk).collect()
    }

    fn delta(&mut self, index: usize, delta: Delta) -> String {
        let mut logs = logs(&self.head, &delta.logs);
        let mut deltas: Vec<Value> =
            delta.events.into_iter().filter_map(|event| self.event(index, event)).collect();
        if deltas.is_empty() && !delta.logs.is_empty() {
            // The text waits, its log-probabilities do not.
            deltas.push(json!({ "content": "" }));
        }
        let chunk = |delta| self.choice(index, delta, std::mem::take(&mut logs), Value::Null);
        deltas.into_iter().map(chunk).collect()
    }

    fn end(&mut self, index: usize, finish: Finish, usage: Usage) -> String {
        self.usages[index] = usage;
        self.choice(index, json!({}), Value::Null, json!(finish_reason(&finish)))
    }

    fn done(&mut self) -> String {
        let mut out = String::new();
        if self.head.include_usage {
            let mut chunk = self.chunk(json!([]));
            chunk["usage"] = usage(sum(&self.usages, self.usages.len()));
            out.push_str(&data(&chunk));
        }
        out.push_str("data: [DONE]\n\n");
        out
    }

    fn ping(&mut self, index: usize) -> String {
        self.choice(index, json!({ "content": "" }), Value::Null, Value::Null)
    }

    fn fail(&mut self, error: &Error) -> String {
        data(&Dialect::OpenAi.body(error)) + "data: [DONE]\n\n"
    }
}
