//! Fixtures and small helpers shared by the tests.
#![allow(dead_code)]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use cherenkov_text::{
    ChatTemplate, Conversation, Effort, Event, GenerationPrompt, Message, RenderOptions, Role,
    Tokenizer, ToolCall,
};
use serde_json::Value;

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

pub fn read(name: &str) -> String {
    std::fs::read_to_string(fixtures().join(name)).unwrap()
}

pub fn tokenizer() -> &'static Tokenizer {
    static TOKENIZER: OnceLock<Tokenizer> = OnceLock::new();
    TOKENIZER.get_or_init(|| Tokenizer::from_file(&fixtures().join("tokenizer.json")).unwrap())
}

pub fn template(file: &str) -> ChatTemplate {
    ChatTemplate::new(&read(file), tokenizer()).unwrap()
}

pub fn cases(file: &str) -> Vec<Value> {
    let fixture: Value = serde_json::from_str(&read(file)).unwrap();
    fixture["cases"].as_array().unwrap().clone()
}

pub fn ids(value: &Value) -> Vec<u32> {
    value.as_array().unwrap().iter().map(|id| id.as_u64().unwrap() as u32).collect()
}

fn text(value: &Value) -> Option<String> {
    value.as_str().map(str::to_owned)
}

fn message(value: &Value) -> Message {
    let mut message = Message::new(
        Role::parse(value["role"].as_str().unwrap()).unwrap(),
        value["content"].as_str().unwrap(),
    );
    message.reasoning = text(&value["reasoning_content"]);
    message.name = text(&value["name"]);
    message.tool_call_id = text(&value["tool_call_id"]);
    for call in value["tool_calls"].as_array().into_iter().flatten() {
        let function = &call["function"];
        let arguments = function["arguments"].as_object().unwrap().clone();
        message.tool_calls.push(ToolCall::new(function["name"].as_str().unwrap(), arguments));
    }
    message
}

pub fn conversation(case: &Value) -> Conversation {
    Conversation {
        messages: case["messages"].as_array().unwrap().iter().map(message).collect(),
        tools: case["tools"].as_array().unwrap().clone(),
    }
}

pub fn options(case: &Value) -> RenderOptions {
    let options = &case["options"];
    RenderOptions {
        thinking: options["enable_thinking"].as_bool(),
        effort: options["reasoning_effort"].as_str().map(|name| Effort::parse(name).unwrap()),
        preserve_thinking: options["preserve_thinking"].as_bool(),
        generation_prompt: match options["add_generation_prompt"].as_bool() {
            Some(false) => GenerationPrompt::Omit,
            _ => GenerationPrompt::Add,
        },
        ..Default::default()
    }
}

/// Cuts a text before the characters whose place is marked.
pub fn split<'a>(text: &'a str, cut: &[bool]) -> Vec<&'a str> {
    let mut chunks = Vec::new();
    let mut from = 0;
    for (nth, (at, _)) in text.char_indices().enumerate() {
        if cut.get(nth).copied().unwrap_or(false) {
            chunks.push(&text[from..at]);
            from = at;
        }
    }
    chunks.push(&text[from..]);
    chunks
}

/// Events with neighbours of one kind put together.
pub fn merged(events: impl IntoIterator<Item = Event>) -> Vec<Event> {
    let mut out: Vec<Event> = Vec::new();
    for event in events {
        match (out.last_mut(), &event) {
            (Some(Event::Reasoning(a)), Event::Reasoning(b))
            | (Some(Event::Content(a)), Event::Content(b))
            | (Some(Event::ToolArgument(a)), Event::ToolArgument(b)) => a.push_str(b),
            _ => out.push(event),
        }
    }
    out
}
