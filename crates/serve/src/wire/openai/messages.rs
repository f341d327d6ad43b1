//! Messages and tools of a chat request.
//!
//! Owns: their way into a conversation. Never: rendering.
//! Invariants: content that is not text is refused by name; arguments of old calls never make a
//! conversation unusable, even if a client kept them half finished.

use crate::error::{Error, Result};
use crate::wire::fields::{Fields, wrong};
use cherenkov_text::{Message, Role, ToolCall};
use serde_json::{Map, Value, json};

/// All messages.
pub(super) fn messages(items: Vec<Value>) -> Result<Vec<Message>> {
    if items.is_empty() {
        return Err(Error::invalid("messages", "found none, expected at least one"));
    }
    let one = |(at, item)| message(Fields::of(item, &format!("messages[{at}]"))?);
    items.into_iter().enumerate().map(one).collect()
}

/// One message. Fields beside those of a message are extras of other servers, echoed by clients.
fn message(mut fields: Fields) -> Result<Message> {
    let role = fields.need("role")?;
    let role = match role.as_str() {
        Some(name) => Role::parse(name)?,
        None => return Err(wrong(&fields.name("role"), &role, "a string")),
    };
    let path = fields.name("content");
    let mut message = Message::new(role, content(fields.take("content"), &path)?);
    message.name = fields.string("name")?;
    message.tool_call_id = fields.string("tool_call_id")?;
    let reasoning = fields.string("reasoning_content")?;
    message.reasoning = reasoning.or(fields.string("reasoning")?).filter(|r| !r.is_empty());
    for (at, call) in fields.list("tool_calls")?.unwrap_or_default().into_iter().enumerate() {
        let path = fields.name(&format!("tool_calls[{at}]"));
        message.tool_calls.push(tool_call(Fields::of(call, &path)?)?);
    }
    if fields.take("function_call").is_some() {
        let name = fields.name("function_call");
        return Err(Error::unsupported(name, "function calls of the old form; use tool_calls"));
    }
    Ok(message)
}

/// Content as one text.
fn content(value: Option<Value>, path: &str) -> Result<String> {
    let parts = match value {
        None => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(wrong(path, &other, "a string or a list of parts")),
    };
    let mut text = String::new();
    for (at, part) in parts.into_iter().enumerate() {
        let path = format!("{path}[{at}]");
        let mut part = Fields::of(part, &path)?;
        let kind = part.string("type")?.unwrap_or_else(|| "text".into());
        match kind.as_str() {
            "text" | "input_text" | "output_text" => {
                text.push_str(&part.string("text")?.unwrap_or_default());
            }
            "refusal" => text.push_str(&part.string("refusal")?.unwrap_or_default()),
            other => {
                return Err(Error::unsupported(path, format!("content of type `{other}`")));
            }
        }
    }
    Ok(text)
}

fn tool_call(mut fields: Fields) -> Result<ToolCall> {
    let id = fields.string("id")?;
    let mut function = match fields.object("function")? {
        Some(function) => function,
        None => {
            let name = fields.name("function");
            return Err(Error::invalid(name, "found nothing, expected an object"));
        }
    };
    let name = function.string("name")?.unwrap_or_default();
    let arguments = arguments(function.take("arguments"));
    Ok(ToolCall { id, ..ToolCall::new(name, arguments) })
}

/// Arguments as an object; what is no object becomes the one argument `arguments`.
fn arguments(value: Option<Value>) -> Map<String, Value> {
    let parsed = match value {
        None => return Map::new(),
        Some(Value::String(text)) if text.trim().is_empty() => return Map::new(),
        Some(Value::String(text)) => serde_json::from_str(&text).unwrap_or(Value::String(text)),
        Some(other) => other,
    };
    match parsed {
        Value::Object(map) => map,
        other => {
            let mut map = Map::new();
            map.insert("arguments".into(), other);
            map
        }
    }
}

/// Tool definitions.
pub(super) fn tools(items: Vec<Value>) -> Result<Vec<Value>> {
    let one = |(at, item): (usize, Value)| {
        let path = format!("tools[{at}]");
        let kind = item.get("type").and_then(Value::as_str).unwrap_or("function");
        if kind != "function" {
            return Err(Error::unsupported(path, format!("tools of type `{kind}`")));
        }
        let function = item.get("function").unwrap_or(&item);
        match function.get("name").and_then(Value::as_str) {
            Some(name) if !name.is_empty() => {}
            _ => {
                let name = format!("{path}.function.name");
                return Err(Error::invalid(name, "found nothing, expected a name"));
            }
        }
        if function.get("strict") == Some(&json!(true)) {
            let name = format!("{path}.function.strict");
            return Err(Error::unsupported(name, "structured output of calls"));
        }
        Ok(item)
    };
    items.into_iter().enumerate().map(one).collect()
}
