//! The request of `/v1/chat/completions`.
//!
//! Owns: its fields. Never: its response.
//! Invariant: thinking and effort may be asked for in several places; all must agree.

use super::{HARMLESS, REFUSED, messages};
use crate::error::{Error, Result};
use crate::wire::ask::{Ask, Calls, Input, agree, effort};
use crate::wire::fields::{Fields, Refused, refused, wrong};
use cherenkov_text::{Conversation, LocalTime, RenderOptions};
use serde_json::Value;

/// Most likely tokens that may be asked for.
const TOP_LOGPROBS_MAX: usize = 20;

const CHAT_REFUSED: &[Refused] = &[
    refused("functions", &["[]"], "functions of the old form; use tools"),
    refused("function_call", &["\"none\"", "\"auto\""], "functions of the old form; use tools"),
    refused("modalities", &["[\"text\"]"], "answers other than text"),
    refused("audio", &[], "audio"),
    refused("prediction", &[], "predicted output"),
    refused("web_search_options", &[], "web search"),
    refused("continue_final_message", &["false"], "continuing the last message"),
    refused("add_generation_prompt", &["true"], "a prompt without the model's turn"),
    refused("echo", &["false"], "echo"),
    refused("documents", &["[]"], "documents"),
    refused("chat_template", &[], "another template"),
];

/// Reads a request. `now` is for templates that print the date.
pub(crate) fn parse(body: &[u8], now: LocalTime) -> Result<Ask> {
    let mut fields = Fields::body(body)?;
    let items = fields.need("messages")?;
    let Value::Array(items) = items else {
        return Err(wrong("messages", &items, "a list"));
    };
    let mut conversation = Conversation::new(messages::messages(items)?);
    conversation.tools = messages::tools(fields.list("tools")?.unwrap_or_default())?;
    let calls = tool_choice(&mut fields)?;
    if calls == Calls::Off {
        // What the model does not see it does not call.
        conversation.tools.clear();
    }
    let render = render(&mut fields, now)?;
    let mut ask = Ask::new(Vec::new());
    ask.take_openai(&mut fields)?;
    ask.calls = calls;
    ask.calls_max = match fields.flag("parallel_tool_calls")? {
        Some(false) => Some(1),
        _ => None,
    };
    ask.sampling.logprobs = logprobs(&mut fields)?;
    fields.finish(HARMLESS, &[REFUSED, CHAT_REFUSED])?;
    ask.inputs = vec![Input::Chat(Box::new(conversation), Box::new(render))];
    Ok(ask)
}

fn tool_choice(fields: &mut Fields) -> Result<Calls> {
    match fields.take("tool_choice") {
        None => Ok(Calls::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => Ok(Calls::Auto),
            "none" => Ok(Calls::Off),
            "required" => Err(Error::unsupported("tool_choice", "`required` calls")),
            other => {
                let reason = format!("found `{other}`, expected auto, none or required");
                Err(Error::invalid("tool_choice", reason))
            }
        },
        Some(_) => Err(Error::unsupported("tool_choice", "calls of a named tool")),
    }
}

fn render(fields: &mut Fields, now: LocalTime) -> Result<RenderOptions> {
    let nested = match fields.object("reasoning")? {
        None => None,
        Some(mut reasoning) => {
            let effort = reasoning.string("effort")?;
            reasoning.finish(&["summary", "generate_summary"], &[])?;
            effort
        }
    };
    let top = fields.string("reasoning_effort")?;
    let name = agree(("reasoning_effort", top), ("reasoning.effort", nested))?;
    let extra = fields.object("chat_template_kwargs")?.map(Fields::rest).unwrap_or_default();
    let options = RenderOptions {
        thinking: fields.flag("enable_thinking")?,
        effort: effort(name)?,
        extra,
        now: Some(now),
        ..RenderOptions::default()
    };
    Ok(options.fold()?)
}

fn logprobs(fields: &mut Fields) -> Result<Option<usize>> {
    let wanted = fields.flag("logprobs")?.unwrap_or(false);
    let top = fields.count("top_logprobs")?;
    match (wanted, top) {
        (_, Some(top)) if top > TOP_LOGPROBS_MAX => {
            let reason = format!("found {top}, expected at most {TOP_LOGPROBS_MAX}");
            Err(Error::invalid("top_logprobs", reason))
        }
        (false, Some(top)) if top > 0 => {
            Err(Error::invalid("top_logprobs", "found without logprobs, expected logprobs true"))
        }
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, _) => Ok(None),
    }
}
