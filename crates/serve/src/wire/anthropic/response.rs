//! The response of `/v1/messages`.
//!
//! Owns: its events and its whole. Never: its request.
//! Invariant: the blocks that a stream builds are those of the whole response.

use crate::error::Error;
use crate::outbox::{Delta, Finish, Usage};
use crate::wire::fault::Dialect;
use crate::wire::writer::{Head, StreamWriter, Whole, event};
use cherenkov_text::Event;
use serde_json::{Value, json};

/// Stands where the signature of a think block would stand; nothing is signed here.
const SIGNATURE: &str = "unsigned";

fn stop_reason(finish: &Finish) -> (&'static str, Value) {
    match finish {
        Finish::Stop => ("end_turn", Value::Null),
        Finish::StopString(text) => ("stop_sequence", json!(text)),
        Finish::Length => ("max_tokens", Value::Null),
        Finish::ToolCalls => ("tool_use", Value::Null),
    }
}

fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.answer,
    })
}

fn frame(head: &Head, content: Value, stop: (Value, Value), usage: Value) -> Value {
    json!({
        "id": &*head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
        "stop_reason": stop.0,
        "stop_sequence": stop.1,
        "usage": usage,
    })
}

/// A whole response.
pub(crate) fn whole(head: &Head, answer: Whole) -> Value {
    let mut content = Vec::new();
    let output = answer.output;
    if let Some(thinking) = output.reasoning {
        content.push(json!({ "type": "thinking", "thinking": thinking, "signature": SIGNATURE }));
    }
    if let Some(text) = output.content {
        content.push(json!({ "type": "text", "text": text }));
    }
    for call in output.tool_calls {
        let input: Value = serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        content
            .push(json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": input }));
    }
    let (reason, sequence) = stop_reason(&answer.finish);
    frame(head, json!(content), (json!(reason), sequence), usage(answer.usage))
}

/// The kind of the block that is open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Block {
    Thinking,
    Text,
    Tool,
}

/// A streamed response.
pub(crate) struct Stream {
    head: Head,
    open: Option<Block>,
    /// Blocks that were opened.
    blocks: usize,
}

impl Stream {
    pub(crate) fn new(head: Head) -> Self {
        Self { head, open: None, blocks: 0 }
    }

    fn block_delta(&self, delta: &Value) -> String {
        let index = self.blocks - 1;
        let value = json!({ "type": "content_block_delta", "index": index, "delta": delta });
        event("content_block_delta", &value)
    }

    fn close(&mut self) -> String {
        let Some(kind) = self.open.take() else { return String::new() };
        let mut out = String::new();
        if kind == Block::Thinking {
            let signature = json!({ "type": "signature_delta", "signature": SIGNATURE });
            out.push_str(&self.block_delta(&signature));
        }
        let value = json!({ "type": "content_block_stop", "index": self.blocks - 1 });
        out + &event("content_block_stop", &value)
    }

    fn open(&mut self, kind: Block, block: &Value) -> String {
        let mut out = self.close();
        let value = json!({
            "type": "content_block_start",
            "index": self.blocks,
            "content_block": block,
        });
        self.blocks += 1;
        self.open = Some(kind);
        out.push_str(&event("content_block_start", &value));
        out
    }

    fn text(&mut self, kind: Block, empty: &Value, delta: &Value) -> String {
        let opened = if self.open == Some(kind) { String::new() } else { self.open(kind, empty) };
        opened + &self.block_delta(delta)
    }

    fn event(&mut self, of: Event) -> String {
        match of {
            Event::Reasoning(text) => self.text(
                Block::Thinking,
                &json!({ "type": "thinking", "thinking": "", "signature": "" }),
                &json!({ "type": "thinking_delta", "thinking": text }),
            ),
            Event::Content(text) => self.text(
                Block::Text,
                &json!({ "type": "text", "text": "" }),
                &json!({ "type": "text_delta", "text": text }),
            ),
            Event::ToolCallStart { id, name, .. } => self.open(
                Block::Tool,
                &json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
            ),
            Event::ToolArgument(text) => {
                self.block_delta(&json!({ "type": "input_json_delta", "partial_json": text }))
            }
            Event::ToolCallEnd => self.close(),
        }
    }
}

impl StreamWriter for Stream {
    fn begin(&mut self) -> String {
        let started = Usage { prompt: self.head.prompt_tokens, ..Usage::default() };
        let message = frame(&self.head, json!([]), (Value::Null, Value::Null), usage(started));
        event("message_start", &json!({ "type": "message_start", "message": message }))
    }

    fn delta(&mut self, _: usize, delta: Delta) -> String {
        delta.events.into_iter().map(|event| self.event(event)).collect()
    }

    fn end(&mut self, _: usize, finish: Finish, total: Usage) -> String {
        let (reason, sequence) = stop_reason(&finish);
        let value = json!({
            "type": "message_delta",
            "delta": { "stop_reason": reason, "stop_sequence": sequence },
            "usage": usage(total),
        });
        self.close() + &event("message_delta", &value)
    }

    fn done(&mut self) -> String {
        event("message_stop", &json!({ "type": "message_stop" }))
    }

    fn ping(&mut self, _: usize) -> String {
        event("ping", &json!({ "type": "ping" }))
    }

    fn fail(&mut self, error: &Error) -> String {
        event("error", &Dialect::Anthropic.body(error))
    }
}
