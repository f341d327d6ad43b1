//! `/v1/completions`: text goes on, without a template.
//!
//! Owns: its request and its response. Never: chat.
//! Invariant: answer `i * n + j` is the `j`th to prompt `i`.

use super::{HARMLESS, REFUSED, finish_reason, logprobs, usage};
use crate::error::{Error, Result};
use crate::outbox::{Delta, Finish, TokenLog, Usage};
use crate::wire::ask::{Ask, Calls, Input};
use crate::wire::fault::Dialect;
use crate::wire::fields::{Fields, Refused, count, refused, wrong};
use crate::wire::writer::{Head, StreamWriter, Whole, data, sum};
use cherenkov_text::Event;
use serde_json::{Value, json};

/// Most likely tokens that may be asked for.
const LOGPROBS_MAX: usize = 20;
/// Prompts of one request.
const PROMPTS_MAX: usize = 64;

const COMPLETION_REFUSED: &[Refused] = &[
    refused("suffix", &["\"\""], "text after the answer"),
    refused("echo", &["false"], "echo"),
    refused("best_of", &["1"], "more answers than are returned"),
];

/// Reads a request.
pub(crate) fn parse(body: &[u8]) -> Result<Ask> {
    let mut fields = Fields::body(body)?;
    let inputs = prompts(fields.need("prompt")?)?;
    if inputs.len() > PROMPTS_MAX {
        let reason = format!("found {} prompts, expected at most {PROMPTS_MAX}", inputs.len());
        return Err(Error::invalid("prompt", reason));
    }
    let mut ask = Ask::new(inputs);
    ask.take_openai(&mut fields)?;
    ask.calls = Calls::Off;
    ask.sampling.logprobs = fields.count("logprobs")?;
    if let Some(top) = ask.sampling.logprobs.filter(|&top| top > LOGPROBS_MAX) {
        let reason = format!("found {top}, expected at most {LOGPROBS_MAX}");
        return Err(Error::invalid("logprobs", reason));
    }
    if ask.thinking_max.is_some() {
        return Err(Error::unsupported("thinking_budget", "thinking without a chat"));
    }
    fields.finish(HARMLESS, &[REFUSED, COMPLETION_REFUSED])?;
    Ok(ask)
}

/// One text, several, one list of tokens, or several.
fn prompts(value: Value) -> Result<Vec<Input>> {
    const EXPECTED: &str = "a text, a list of texts, a list of tokens or a list of such lists";
    let items = match value {
        Value::String(text) => return Ok(vec![Input::Text(text)]),
        Value::Array(items) if items.is_empty() => {
            return Err(Error::invalid("prompt", format!("found nothing, expected {EXPECTED}")));
        }
        Value::Array(items) => items,
        other => return Err(wrong("prompt", &other, EXPECTED)),
    };
    if items.iter().all(Value::is_number) {
        return Ok(vec![Input::Tokens(tokens("prompt", &items)?)]);
    }
    let one = |item: Value| match item {
        Value::String(text) => Ok(Input::Text(text)),
        Value::Array(ids) => Ok(Input::Tokens(tokens("prompt", &ids)?)),
        other => Err(wrong("prompt", &other, EXPECTED)),
    };
    items.into_iter().map(one).collect()
}

/// A list of token ids.
pub(crate) fn tokens(name: &str, items: &[Value]) -> Result<Vec<u32>> {
    let id = |item: &Value| {
        let id = count(item).and_then(|id| u32::try_from(id).ok());
        id.ok_or_else(|| wrong(name, item, "a token id"))
    };
    items.iter().map(id).collect()
}

fn text_of(events: Vec<Event>) -> String {
    let text = |event| match event {
        Event::Content(text) => text,
        // Without a parser all is content.
        _ => String::new(),
    };
    events.into_iter().map(text).collect()
}

/// A whole response to prompts with `n` answers each.
pub(crate) fn whole(head: &Head, answers: Vec<Whole>, n: usize) -> Value {
    let usages: Vec<Usage> = answers.iter().map(|a| a.usage).collect();
    let choices: Vec<Value> = answers
        .into_iter()
        .enumerate()
        .map(|(index, answer)| {
            json!({
                "index": index,
                "text": answer.output.content.unwrap_or_default(),
                "logprobs": logs(head, &answer.logs, &mut 0),
                "finish_reason": finish_reason(&answer.finish),
            })
        })
        .collect();
    let mut response = frame(head, json!(choices));
    response["usage"] = usage(sum(&usages, n));
    response
}

fn frame(head: &Head, choices: Value) -> Value {
    json!({
        "id": &*head.id,
        "object": "text_completion",
        "created": head.created,
        "model": head.model,
        "choices": choices,
    })
}

fn logs(head: &Head, logs: &[TokenLog], offset: &mut usize) -> Value {
    if head.logprobs { logprobs::completion(&head.tokenizer, logs, offset) } else { Value::Null }
}

/// A streamed response.
pub(crate) struct Stream {
    head: Head,
    n: usize,
    offsets: Vec<usize>,
    usages: Vec<Usage>,
}

impl Stream {
    pub(crate) fn new(head: Head, answers: usize, n: usize) -> Self {
        Self { head, n, offsets: vec![0; answers], usages: vec![Usage::default(); answers] }
    }

    fn choice(&self, index: usize, text: &str, logs: Value, finish: Value) -> String {
        let choice =
            json!({ "index": index, "text": text, "logprobs": logs, "finish_reason": finish });
        let mut chunk = frame(&self.head, json!([choice]));
        if self.head.include_usage {
            chunk["usage"] = Value::Null;
        }
        data(&chunk)
    }
}

impl StreamWriter for Stream {
    fn begin(&mut self) -> String {
        String::new()
    }

    fn delta(&mut self, index: usize, delta: Delta) -> String {
        let logs = logs(&self.head, &delta.logs, &mut self.offsets[index]);
        self.choice(index, &text_of(delta.events), logs, Value::Null)
    }

    fn end(&mut self, index: usize, finish: Finish, usage: Usage) -> String {
        self.usages[index] = usage;
        self.choice(index, "", Value::Null, json!(finish_reason(&finish)))
    }

    fn done(&mut self) -> String {
        let mut out = String::new();
        if self.head.include_usage {
            let mut chunk = frame(&self.head, json!([]));
            chunk["usage"] = usage(sum(&self.usages, self.n));
            out.push_str(&data(&chunk));
        }
        out + "data: [DONE]\n\n"
    }

    fn ping(&mut self, index: usize) -> String {
        self.choice(index, "", Value::Null, Value::Null)
    }

    fn fail(&mut self, error: &Error) -> String {
        data(&Dialect::OpenAi.body(error)) + "data: [DONE]\n\n"
    }
}
