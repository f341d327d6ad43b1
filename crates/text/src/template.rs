//! Owns: the chat template of a checkpoint and its rendering to a prompt.
//! Never: tokens of the prompt (see `Tokenizer::encode_prompt`).
//! Invariants: content reaches the template only behind the shield; a template can neither read files nor run
//! for ever.

use std::io::{self, Write};
use std::path::Path;

use minijinja::{Environment, ErrorKind, Value};
use serde_json::Value as Json;

use crate::conversation::{Conversation, Message, Role};
use crate::error::{Error, Result};
use crate::options::{Effort, GenerationPrompt, RenderOptions};
use crate::prompt::Prompt;
use crate::shield::{Hide, Shield};
use crate::template_env::{self, FUEL, MARKS, Raised};
use crate::tokenizer::Tokenizer;

/// Bytes that a rendered prompt may have.
const OUTPUT_MAX: usize = 64 << 20;

/// A chat template, bound to the tokenizer whose control tokens it writes.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    tokenizer: Tokenizer,
    source: String,
    /// Used instead when tools are offered.
    tool_use: Option<String>,
    /// `bos_token` and its like.
    named_tokens: Vec<(String, String)>,
}

impl ChatTemplate {
    /// A template from its source.
    pub fn new(source: &str, tokenizer: &Tokenizer) -> Result<Self> {
        let source = clean(source);
        check_syntax(&source)?;
        Ok(Self { tokenizer: tokenizer.clone(), source, tool_use: None, named_tokens: Vec::new() })
    }

    /// The template of a checkpoint's folder: chat_template.jinja, else the `chat_template` key of
    /// tokenizer_config.json (one text, or a list of named ones: `default`, and `tool_use` with tools).
    pub fn from_dir(dir: &Path, tokenizer: &Tokenizer) -> Result<Self> {
        let config_path = dir.join("tokenizer_config.json");
        let config = match read_optional(&config_path)? {
            None => Json::Null,
            Some(text) => serde_json::from_str(&text).map_err(|e| Error::Config {
                path: config_path.clone(),
                reason: format!("{e}; expected a JSON object"),
            })?,
        };
        let file = read_optional(&dir.join("chat_template.jinja"))?;
        let named = |name: &str| {
            let entries = config["chat_template"].as_array()?;
            let entry = entries.iter().find(|entry| entry["name"] == name)?;
            entry["template"].as_str().map(str::to_owned)
        };
        let source = file
            .clone()
            .or_else(|| config["chat_template"].as_str().map(str::to_owned))
            .or_else(|| named("default"))
            .ok_or_else(|| Error::NoTemplate { dir: dir.to_owned() })?;
        let mut template = Self::new(&source, tokenizer)?;
        if file.is_none()
            && let Some(tool_use) = named("tool_use")
        {
            let tool_use = clean(&tool_use);
            check_syntax(&tool_use)?;
            template.tool_use = Some(tool_use);
        }
        template.named_tokens = named_tokens(&config);
        Ok(template)
    }

    /// Renders a conversation, after bringing it and the options to their normal form.
    pub fn render(&self, conversation: &Conversation, options: &RenderOptions) -> Result<Prompt> {
        let conversation = conversation.clone().normalise()?;
        let options = options.clone().fold()?;
        let source = match &self.tool_use {
            Some(tool_use) if !conversation.tools.is_empty() => tool_use,
            _ => &self.source,
        };
        let mut shield = Shield::new(&self.tokenizer);
        reserve(&mut shield, source, &conversation, &options);
        let mut context = self.context(&mut shield, &conversation, &options);
        let literals = shield.literals()?;
        let marks: String = literals.iter().map(|(mark, _)| *mark).collect();
        context.push((MARKS.to_owned(), Value::from(marks)));
        let env = template_env::environment(options.now);
        let marked = run(&env, source, Value::from_iter(context))?;
        Ok(Prompt::new(marked, literals, &self.tokenizer))
    }

    fn context(
        &self,
        shield: &mut Shield,
        conversation: &Conversation,
        options: &RenderOptions,
    ) -> Vec<(String, Value)> {
        let mut context = Vec::new();
        for (name, token) in &self.named_tokens {
            context.push((name.clone(), Value::from(token.as_str())));
        }
        for (name, value) in &options.extra {
            let hidden = shield.hide_json(value);
            context.push((name.clone(), to_value(&hidden)));
        }
        let messages = conversation.messages.iter();
        let messages: Vec<Value> = messages.map(|m| message_value(shield, m)).collect();
        let tools = conversation.tools.iter();
        let tools: Vec<Value> = tools.map(|tool| to_value(&shield.hide_json(tool))).collect();
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(tools) };
        let mut set = |name: &str, value: Value| context.push((name.to_owned(), value));
        set("messages", Value::from(messages));
        set("tools", tools);
        set("documents", Value::from(()));
        let opens = options.generation_prompt == GenerationPrompt::Add;
        set("add_generation_prompt", Value::from(opens));
        if let Some(thinking) = options.thinking {
            set("enable_thinking", Value::from(thinking));
        }
        if let Some(preserve) = options.preserve_thinking {
            set("preserve_thinking", Value::from(preserve));
        }
        if let Some(effort) = options.effort.filter(|effort| *effort != Effort::None) {
            set("reasoning_effort", Value::from(effort.name()));
        }
        context
    }
}

/// Line ends as Python reads them, and without the tags that only mark a span for training.
fn clean(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(at) = rest.find("{%") {
        let Some(len) = rest[at..].find("%}") else { break };
        let inside = &rest[at + 2..at + len];
        let word = inside.trim_matches(['-', '+']).trim();
        out.push_str(&rest[..at + 2]);
        match word {
            "generation" => out.push_str(&inside.replace("generation", "if true")),
            "endgeneration" => out.push_str(&inside.replace("endgeneration", "endif")),
            _ => out.push_str(inside),
        }
        out.push_str("%}");
        rest = &rest[at + len + 2..];
    }
    out.push_str(rest);
    out
}

fn check_syntax(source: &str) -> Result<()> {
    let env = template_env::environment(None);
    let parsed = env.template_from_named_str("chat_template", source);
    parsed.map(drop).map_err(|e| Error::TemplateSyntax(e.to_string()))
}

fn read_optional(path: &Path) -> Result<Option<String>> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Read { path: path.to_owned(), source }),
    }
}

/// Named tokens of tokenizer_config.json: a text, or an object with the text as `content`.
fn named_tokens(config: &Json) -> Vec<(String, String)> {
    let names = [
        "bos_token",
        "eos_token",
        "unk_token",
        "pad_token",
        "sep_token",
        "cls_token",
        "mask_token",
    ];
    let text = |name: &str| {
        let token = &config[name];
        token.as_str().or_else(|| token["content"].as_str()).map(str::to_owned)
    };
    names.iter().filter_map(|name| Some(((*name).to_owned(), text(name)?))).collect()
}

fn reserve(shield: &mut Shield, source: &str, talk: &Conversation, options: &RenderOptions) {
    shield.reserve(source);
    talk.tools.iter().for_each(|tool| shield.reserve_json(tool));
    options.extra.values().for_each(|value| shield.reserve_json(value));
    for message in &talk.messages {
        shield.reserve(&message.content);
        for text in [&message.reasoning, &message.name, &message.tool_call_id].into_iter().flatten()
        {
            shield.reserve(text);
        }
        for call in &message.tool_calls {
            shield.reserve(&call.name);
            shield.reserve(call.id.as_deref().unwrap_or_default());
            shield.reserve_json(&call.arguments);
        }
    }
}

/// A message in the shape that templates expect.
fn message_value(shield: &mut Shield, message: &Message) -> Value {
    // Without reasoning of its own, an answer may carry it in think tags, which templates look for.
    let old_style = message.role == Role::Assistant && message.reasoning.is_none();
    let hide = if old_style { Hide::AllButThinking } else { Hide::All };
    let mut pairs = vec![
        ("role", Value::from(message.role.name())),
        ("content", Value::from(shield.hide(&message.content, hide))),
    ];
    if let Some(reasoning) = &message.reasoning {
        let reasoning = Value::from(shield.hide(reasoning, Hide::All));
        pairs.push(("reasoning_content", reasoning.clone()));
        pairs.push(("thinking", reasoning));
    }
    if !message.tool_calls.is_empty() {
        let calls = message.tool_calls.iter().map(|call| {
            let function = Value::from_iter([
                ("name", Value::from(shield.hide(&call.name, Hide::All))),
                ("arguments", to_value(&shield.hide_json(&call.arguments))),
            ]);
            let mut pairs = vec![("type", Value::from("function")), ("function", function)];
            if let Some(id) = &call.id {
                pairs.push(("id", Value::from(shield.hide(id, Hide::All))));
            }
            Value::from_iter(pairs)
        });
        let calls: Vec<Value> = calls.collect();
        pairs.push(("tool_calls", Value::from(calls)));
    }
    if let Some(name) = &message.name {
        pairs.push(("name", Value::from(shield.hide(name, Hide::All))));
    }
    if let Some(id) = &message.tool_call_id {
        pairs.push(("tool_call_id", Value::from(shield.hide(id, Hide::All))));
    }
    Value::from_iter(pairs)
}

fn to_value(json: &Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(value) => Value::from(*value),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(value), _) => Value::from(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => Value::from(items.iter().map(to_value).collect::<Vec<_>>()),
        Json::Object(map) => {
            Value::from_iter(map.iter().map(|(key, item)| (key.as_str(), to_value(item))))
        }
    }
}

/// Collects the output up to a limit.
struct Bounded(Vec<u8>);

impl Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > OUTPUT_MAX {
            return Err(io::Error::from(io::ErrorKind::FileTooLarge));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn run(env: &Environment, source: &str, context: Value) -> Result<String> {
    let template = env
        .template_from_named_str("chat_template", source)
        .map_err(|e| Error::TemplateSyntax(e.to_string()))?;
    let mut out = Bounded(Vec::new());
    template.render_captured_to(context, &mut out).map_err(failure)?;
    String::from_utf8(out.0).map_err(|e| Error::TemplateFailed(e.to_string()))
}

fn failure(error: minijinja::Error) -> Error {
    match error.kind() {
        ErrorKind::OutOfFuel => return Error::TemplateFuel { fuel: FUEL },
        ErrorKind::WriteFailure => return Error::TemplateOutput { limit: OUTPUT_MAX },
        _ => {}
    }
    let mut source = std::error::Error::source(&error);
    while let Some(cause) = source {
        if let Some(raised) = cause.downcast_ref::<Raised>() {
            return Error::TemplateRaised(raised.0.clone());
        }
        source = cause.source();
    }
    Error::TemplateFailed(error.to_string())
}
