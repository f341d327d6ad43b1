//! The tokenizer as GGUF metadata.
//!
//! Owns: tokens, their kinds, merges, end tokens, the chat template. Never: encoding text.

use super::file::Head;
use crate::error::{Error, Result};
use crate::qwen4_exp::config::Config;
use serde_json::Value;
use std::path::Path;

const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER: i32 = 4;
const UNUSED: i32 = 5;

type Side = [(&'static str, Vec<u8>)];

fn side<'a>(files: &'a Side, name: &str) -> Option<&'a [u8]> {
    files.iter().find(|(n, _)| *n == name).map(|(_, bytes)| &bytes[..])
}

/// Adds the tokenizer among `files` to the head. Without one the file says that there is none;
/// returns whether there is one.
///
/// # Errors
/// When tokenizer.json is not a byte-level BPE file that fits the vocabulary.
pub fn put(head: &mut Head, files: &Side, config: &Config, dir: &Path) -> Result<bool> {
    let Some(bytes) = side(files, "tokenizer.json") else {
        head.text("tokenizer.ggml.model", "none");
        head.u32("qwen4exp.vocab_size", config.vocab);
        return Ok(false);
    };
    let path = dir.join("tokenizer.json");
    let bad = |found: String, expected: &str| {
        Error::invalid(&path, "tokenizer", found, expected, "export without the file, or mend it")
    };
    let file: Value =
        serde_json::from_slice(bytes).map_err(|e| bad(e.to_string(), "a JSON object"))?;
    let (tokens, kinds) = tokens(&file, config.vocab).map_err(|f| bad(f, "one token an id"))?;
    let merges = merges(&file).ok_or_else(|| bad("other merges".into(), "pairs of tokens"))?;
    head.text("tokenizer.ggml.model", "gpt2");
    head.text("tokenizer.ggml.pre", "qwen35");
    head.texts("tokenizer.ggml.tokens", &tokens);
    head.i32s("tokenizer.ggml.token_type", &kinds);
    head.texts("tokenizer.ggml.merges", &merges);
    special(head, files, config, &tokens);
    head.flag("tokenizer.ggml.add_bos_token", false);
    if let Some(template) = template(files) {
        head.text("tokenizer.chat_template", &template);
    }
    Ok(true)
}

/// Every token and its kind; ids without one are unused.
fn tokens(file: &Value, vocab: usize) -> std::result::Result<(Vec<String>, Vec<i32>), String> {
    let mut tokens: Vec<String> = (0..vocab).map(|id| format!("[PAD{id}]")).collect();
    let mut kinds = vec![UNUSED; vocab];
    let mut set = |id: Option<u64>, token: &str, kind: i32| -> std::result::Result<(), String> {
        let place = id.and_then(|id| usize::try_from(id).ok()).filter(|&id| id < vocab);
        let place = place.ok_or_else(|| format!("token {token:?} outside 0..{vocab}"))?;
        tokens[place] = token.to_string();
        kinds[place] = kind;
        Ok(())
    };
    let own = file["model"]["vocab"].as_object().ok_or("no model.vocab")?;
    for (token, id) in own {
        set(id.as_u64(), token, NORMAL)?;
    }
    for token in file["added_tokens"].as_array().into_iter().flatten() {
        let kind = if token["special"].as_bool() == Some(true) { CONTROL } else { USER };
        set(token["id"].as_u64(), token["content"].as_str().unwrap_or_default(), kind)?;
    }
    Ok((tokens, kinds))
}

/// Merges as `a b`; files spell them so or as pairs.
fn merges(file: &Value) -> Option<Vec<String>> {
    let one = |merge: &Value| match merge {
        Value::String(text) => Some(text.clone()),
        pair => {
            let (a, b) = (pair.get(0)?.as_str()?, pair.get(1)?.as_str()?);
            Some(format!("{a} {b}"))
        }
    };
    file["model"]["merges"].as_array()?.iter().map(one).collect()
}

/// End and padding tokens as tokenizer_config.json names them, else as the model's configuration does.
fn special(head: &mut Head, files: &Side, config: &Config, tokens: &[String]) {
    let named: Value = side(files, "tokenizer_config.json")
        .and_then(|bytes| serde_json::from_slice(bytes).ok())
        .unwrap_or_default();
    let id_of = |key: &str| {
        let text = named[key].as_str().or_else(|| named[key]["content"].as_str())?;
        tokens.iter().position(|t| t == text)
    };
    let stop = config.eos_stop.last().map(|&id| id as usize);
    if let Some(id) = id_of("eos_token").or(stop) {
        head.u32("tokenizer.ggml.eos_token_id", id);
    }
    head.u32(
        "tokenizer.ggml.padding_token_id",
        id_of("pad_token").unwrap_or(config.eos_hash as usize),
    );
    if let Some(id) = id_of("bos_token") {
        head.u32("tokenizer.ggml.bos_token_id", id);
    }
}

fn template(files: &Side) -> Option<String> {
    if let Some(bytes) = side(files, "chat_template.jinja") {
        return String::from_utf8(bytes.to_vec()).ok();
    }
    let config: Value = serde_json::from_slice(side(files, "tokenizer_config.json")?).ok()?;
    config["chat_template"].as_str().map(str::to_owned)
}
