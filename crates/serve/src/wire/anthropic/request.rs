//! The request of `/v1/messages`.
//!
//! Owns: its fields, its blocks, its tools. Never: its response.
//! Invariants: without `thinking` there is none, as clients expect that did not ask for it; a line
//! that changes with every request and says nothing to the model never reaches the prompt.

use crate::error::{Error, Result};
use crate::wire::ask::{Ask, Calls, Input, Mode, effort};
use crate::wire::fields::{Fields, Refused, refused, wrong};
use cherenkov_text::{Conversation, LocalTime, Message, RenderOptions, Role, ToolCall};
use serde_json::{Map, Value, json};

/// Beginning of a line that some clients put before the system text. Its checksum changes with
/// every request and would make every prompt new from its first token on.
const BILLING: &str = "x-anthropic-billing-header";

const HARMLESS: &[&str] =
    &["metadata", "service_tier", "context_management", "cache_control", "betas", "inference_geo"];

const REFUSED: &[Refused] = &[
    refused("mcp_servers", &["[]"], "servers of tools"),
    refused("container", &[], "containers"),
    refused("output_format", &[], "structured output"),
];

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    Answer,
    Count,
}

/// Reads a request. `now` is for templates that print the date.
pub(crate) fn parse(body: &[u8], now: LocalTime, purpose: Purpose) -> Result<Ask> {
    let mut fields = Fields::body(body)?;
    let mut list = Vec::new();
    if let Some(system) = fields.take("system") {
        let text = system_text(system)?;
        if !text.is_empty() {
            list.push(Message::new(Role::System, text));
        }
    }
    let items = fields.need("messages")?;
    let Value::Array(items) = items else {
        return Err(wrong("messages", &items, "a list"));
    };
    for (at, item) in items.into_iter().enumerate() {
        message(Fields::of(item, &format!("messages[{at}]"))?, &mut list)?;
    }
    if list.last().is_some_and(|m| m.role == Role::Assistant) {
        return Err(Error::unsupported("messages", "an answer that begins with a given text"));
    }
    let mut conversation = Conversation::new(list);
    conversation.tools = tools(fields.list("tools")?.unwrap_or_default())?;
    let mut ask = Ask::new(Vec::new());
    ask.model = fields.string("model")?;
    tool_choice(&mut fields, &mut ask)?;
    if ask.calls == Calls::Off {
        conversation.tools.clear();
    }
    let render = thinking(&mut fields, &mut ask, now)?;
    ask.max_tokens = fields.positive("max_tokens")?;
    if purpose == Purpose::Answer && ask.max_tokens.is_none() {
        return Err(Error::invalid("max_tokens", "found nothing, expected a whole number"));
    }
    ask.sampling.temperature = fields.float("temperature")?;
    ask.sampling.top_p = fields.float("top_p")?;
    ask.sampling.top_k = fields.count("top_k")?;
    ask.stops = fields.strings("stop_sequences")?;
    let stream = fields.flag("stream")?.unwrap_or(false);
    ask.mode = if stream { Mode::Stream } else { Mode::Whole };
    fields.finish(HARMLESS, &[REFUSED])?;
    ask.inputs = vec![Input::Chat(Box::new(conversation), Box::new(render))];
    Ok(ask)
}

fn thinking(fields: &mut Fields, ask: &mut Ask, now: LocalTime) -> Result<RenderOptions> {
    let mut options =
        RenderOptions { thinking: Some(false), now: Some(now), ..RenderOptions::default() };
    if let Some(mut thinking) = fields.object("thinking")? {
        let kind = thinking.need("type")?;
        match kind.as_str() {
            Some("enabled" | "adaptive") => options.thinking = Some(true),
            Some("disabled") => {}
            _ => return Err(wrong("thinking.type", &kind, "enabled, adaptive or disabled")),
        }
        ask.thinking_max = thinking.positive("budget_tokens")?;
        thinking.finish(&["display"], &[])?;
    }
    if let Some(mut output) = fields.object("output_config")? {
        options.effort = effort(output.string("effort")?)?;
        const STRUCTURED: &[Refused] = &[refused("format", &[], "structured output")];
        output.finish(&[], &[STRUCTURED])?;
    }
    Ok(options.fold()?)
}

fn tool_choice(fields: &mut Fields, ask: &mut Ask) -> Result<()> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok(()) };
    let kind = choice.need("type")?;
    match kind.as_str() {
        Some("auto") => {}
        Some("none") => ask.calls = Calls::Off,
        Some("any") => return Err(Error::unsupported("tool_choice", "required calls")),
        Some("tool") => return Err(Error::unsupported("tool_choice", "calls of a named tool")),
        _ => return Err(wrong("tool_choice.type", &kind, "auto, none, any or tool")),
    }
    if choice.flag("disable_parallel_tool_use")? == Some(true) {
        ask.calls_max = Some(1);
    }
    choice.finish(&[], &[])
}

fn tools(items: Vec<Value>) -> Result<Vec<Value>> {
    let one = |(at, item): (usize, Value)| {
        let path = format!("tools[{at}]");
        let mut tool = Fields::of(item, &path)?;
        if let Some(kind) = tool.string("type")?.filter(|kind| kind != "custom") {
            return Err(Error::unsupported(path, format!("tools of type `{kind}`")));
        }
        let name = tool.need("name")?;
        let mut function = Map::new();
        function.insert("name".into(), name);
        if let Some(description) = tool.take("description") {
            function.insert("description".into(), description);
        }
        let schema = tool.take("input_schema");
        function.insert("parameters".into(), schema.unwrap_or_else(|| json!({"type": "object"})));
        Ok(json!({ "type": "function", "function": function }))
    };
    items.into_iter().enumerate().map(one).collect()
}

fn system_text(value: Value) -> Result<String> {
    let blocks = match value {
        Value::String(text) => vec![text],
        Value::Array(items) => {
            let one = |(at, item)| {
                let mut block = Fields::of(item, &format!("system[{at}]"))?;
                block.string("text").map(Option::unwrap_or_default)
            };
            items.into_iter().enumerate().map(one).collect::<Result<_>>()?
        }
        other => return Err(wrong("system", &other, "a string or a list of blocks")),
    };
    let kept: Vec<String> =
        blocks.into_iter().filter(|text| !text.trim_start().starts_with(BILLING)).collect();
    Ok(kept.join("\n\n"))
}

/// One message; results of tools become messages of their own.
fn message(mut fields: Fields, list: &mut Vec<Message>) -> Result<()> {
    let role = fields.need("role")?;
    let role = match role.as_str() {
        Some("user") => Role::User,
        Some("assistant") => Role::Assistant,
        Some("system") => Role::System,
        _ => return Err(wrong(&fields.name("role"), &role, "user or assistant")),
    };
    let path = fields.name("content");
    let blocks = match fields.need("content")? {
        Value::String(text) => {
            list.push(Message::new(role, text));
            return Ok(());
        }
        Value::Array(blocks) => blocks,
        other => return Err(wrong(&path, &other, "a string or a list of blocks")),
    };
    let mut message = Message::new(role, "");
    let mut results = Vec::new();
    for (at, item) in blocks.into_iter().enumerate() {
        let block = Fields::of(item, &format!("{path}[{at}]"))?;
        add_block(block, &mut message, &mut results)?;
    }
    let empty =
        message.content.is_empty() && message.reasoning.is_none() && message.tool_calls.is_empty();
    let only_results = empty && !results.is_empty();
    list.append(&mut results);
    if !only_results {
        list.push(message);
    }
    Ok(())
}

fn add_block(mut block: Fields, message: &mut Message, results: &mut Vec<Message>) -> Result<()> {
    let kind = block.need("type")?;
    match kind.as_str().unwrap_or_default() {
        "text" => {
            let text = block.string("text")?.unwrap_or_default();
            if !message.content.is_empty() && !text.is_empty() {
                message.content.push('\n');
            }
            message.content.push_str(&text);
        }
        "thinking" => {
            let text = block.string("thinking")?.unwrap_or_default();
            message.reasoning.get_or_insert_default().push_str(&text);
        }
        // Written by another server for itself.
        "redacted_thinking" => {}
        "tool_use" => {
            let name = block.string("name")?.unwrap_or_default();
            let input = match block.take("input") {
                Some(Value::Object(map)) => map,
                None => Map::new(),
                Some(other) => return Err(wrong(&block.name("input"), &other, "an object")),
            };
            message
                .tool_calls
                .push(ToolCall { id: block.string("id")?, ..ToolCall::new(name, input) });
        }
        "tool_result" => {
            let mut result = Message::new(Role::Tool, result_text(&mut block)?);
            result.tool_call_id = block.string("tool_use_id")?;
            results.push(result);
        }
        other => {
            let reason = format!("blocks of type `{other}`");
            return Err(Error::unsupported(block.name("type"), reason));
        }
    }
    Ok(())
}

fn result_text(block: &mut Fields) -> Result<String> {
    let path = block.name("content");
    let items = match block.take("content") {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong(&path, &other, "a string or a list of blocks")),
    };
    let mut texts = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut part = Fields::of(item, &path)?;
        match part.string("type")?.as_deref() {
            Some("text") => texts.push(part.string("text")?.unwrap_or_default()),
            other => {
                let reason = format!("blocks of type `{}`", other.unwrap_or("none"));
                return Err(Error::unsupported(path, reason));
            }
        }
    }
    Ok(texts.join("\n"))
}
