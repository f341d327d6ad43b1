//! The OpenAI dialect: chat completions and completions.
//!
//! Owns: their requests and responses. Never: other dialects.
//! Invariant: `finish_reason` is null in every chunk of an answer but its last.

pub(crate) mod chat_request;
pub(crate) mod chat_response;
pub(crate) mod completions;
pub(crate) mod logprobs;
mod messages;

use super::fields::{Refused, refused};
use crate::outbox::{Finish, Usage};
use serde_json::{Value, json};

/// Fields that clients send and that change no answer.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_key",
    "prompt_cache_retention",
    "cache_prompt",
    "verbosity",
];

/// Fields of both endpoints that this server does not do.
const REFUSED: &[Refused] = &[
    refused("response_format", &["{\"type\":\"text\"}"], "structured output"),
    refused("grammar", &["\"\""], "structured output"),
    refused("json_schema", &[], "structured output"),
    refused("structured_outputs", &[], "structured output"),
    refused("guided_json", &[], "structured output"),
    refused("guided_regex", &[], "structured output"),
    refused("guided_choice", &[], "structured output"),
    refused("guided_grammar", &[], "structured output"),
    refused("use_beam_search", &["false"], "beam search"),
    refused("prompt_logprobs", &["0", "false"], "log-probabilities of the prompt"),
    refused("min_tokens", &["0"], "a least number of tokens"),
    refused("stop_token_ids", &["[]"], "stop tokens by id; use stop strings"),
    refused("bad_words", &["[]"], "banned words; use logit_bias"),
    refused("typical_p", &["1", "1.0"], "typical sampling"),
    refused("mirostat", &["0"], "mirostat sampling"),
];

pub(crate) fn finish_reason(finish: &Finish) -> &'static str {
    match finish {
        Finish::Stop | Finish::StopString(_) => "stop",
        Finish::Length => "length",
        Finish::ToolCalls => "tool_calls",
    }
}

pub(crate) fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.answer,
        "total_tokens": usage.prompt + usage.answer,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
        "completion_tokens_details": { "reasoning_tokens": usage.reasoning },
    })
}
