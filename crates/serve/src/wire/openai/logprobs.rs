//! Log-probabilities as the OpenAI dialect writes them.
//!
//! Owns: both of its shapes. Never: choosing which tokens are shown.
//! Invariant: a token's text is its bytes, read with replacement marks; its exact bytes stand beside.

use crate::outbox::TokenLog;
use cherenkov_text::Tokenizer;
use serde_json::{Map, Value, json};

fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(token).unwrap_or_default()).into_owned()
}

fn entry(tokenizer: &Tokenizer, token: u32, logprob: f32) -> Value {
    json!({
        "token": text(tokenizer, token),
        "logprob": logprob,
        "bytes": tokenizer.token_bytes(token).unwrap_or_default(),
    })
}

/// `logprobs` of a chat choice.
pub(super) fn chat(tokenizer: &Tokenizer, logs: &[TokenLog]) -> Value {
    let content = logs.iter().map(|log| {
        let mut value = entry(tokenizer, log.token, log.logprob);
        let top = log.top.iter().map(|&(token, logprob)| entry(tokenizer, token, logprob));
        value["top_logprobs"] = top.collect();
        value
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// `logprobs` of a completion choice whose text begins at character `offset` of the whole answer;
/// moves the offset on.
pub(super) fn completion(tokenizer: &Tokenizer, logs: &[TokenLog], offset: &mut usize) -> Value {
    let mut tokens = Vec::new();
    let mut chosen = Vec::new();
    let mut tops = Vec::new();
    let mut offsets = Vec::new();
    for log in logs {
        let token = text(tokenizer, log.token);
        offsets.push(*offset);
        *offset += token.chars().count();
        tokens.push(token);
        chosen.push(log.logprob);
        let mut top = Map::new();
        for &(token, logprob) in &log.top {
            // Of two tokens with one text the likelier stands first.
            top.entry(text(tokenizer, token)).or_insert_with(|| json!(logprob));
        }
        tops.push(top);
    }
    json!({
        "tokens": tokens,
        "token_logprobs": chosen,
        "top_logprobs": tops,
        "text_offset": offsets,
    })
}
