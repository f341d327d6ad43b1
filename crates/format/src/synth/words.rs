//! The tokenizer, template and generation config of a synthetic model.
//!
//! Owns: the files that let a synthetic model be prompted with text. Never: weights.
//!
//! Ids: the 256 bytes, then pairs of small letters (with their merges), then words that only
//! decoding meets, and at the end the control tokens. A vocabulary too small for that has no
//! tokenizer: such a model takes token ids.

use serde_json::{Value, json};

/// Control tokens, at the end of the vocabulary.
const CONTROLS: [&str; 5] = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>"];
/// The smallest vocabulary with a tokenizer: all bytes, and the control tokens.
const VOCAB_MIN: usize = 256 + CONTROLS.len();

const TEMPLATE: &str = "\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\\n\\n</think>\\n\\n' }}
    {%- else %}
        {{- '<think>\\n' }}
    {%- endif %}
{%- endif %}
";

/// The token that resets the n-gram window, and those that end generation, ascending.
pub fn end_tokens(vocab: usize) -> (u32, Vec<u32>) {
    if vocab < VOCAB_MIN {
        let last = vocab.saturating_sub(1) as u32;
        return (last, vec![last]);
    }
    let first = (vocab - CONTROLS.len()) as u32;
    (first, vec![first, first + 2])
}

/// The character that stands for a byte in byte-level vocabularies: itself where it prints, else
/// one of those from U+0100 on.
fn alphabet() -> [char; 256] {
    let prints = |b: u8| matches!(b, 0x21..=0x7E | 0xA1..=0xAC | 0xAE..=0xFF);
    let mut shifted = 0x100..;
    std::array::from_fn(|b| {
        let code = if prints(b as u8) { b as u32 } else { shifted.next().unwrap_or_default() };
        char::from_u32(code).unwrap_or_default()
    })
}

fn letter(n: usize) -> char {
    char::from(b'a' + (n % 26) as u8)
}

/// The `n`-th token after the bytes, and the merge that makes it if there is one.
fn filler(n: usize) -> (String, Option<[String; 2]>) {
    if n < 26 * 26 {
        let (a, b) = (letter(n / 26).to_string(), letter(n).to_string());
        return (format!("{a}{b}"), Some([a, b]));
    }
    // A space, then at least three letters: no two numbers have the same.
    let mut word = String::new();
    let mut rest = n;
    while rest > 0 {
        word.push(letter(rest));
        rest /= 26;
    }
    (format!("\u{120}{word}"), None)
}

fn tokenizer(vocab: usize) -> Value {
    let mut tokens = serde_json::Map::new();
    for (id, c) in alphabet().into_iter().enumerate() {
        tokens.insert(c.to_string(), json!(id));
    }
    let first_control = vocab - CONTROLS.len();
    let mut merges = Vec::new();
    for id in 256..first_control {
        let (token, merge) = filler(id - 256);
        tokens.insert(token, json!(id));
        merges.extend(merge);
    }
    let controls = CONTROLS.iter().enumerate().map(|(i, content)| {
        json!({"id": first_control + i, "content": content, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": i < 3})
    });
    let split = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": controls.collect::<Vec<_>>(),
        "normalizer": {"type": "NFC"},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": split}, "behavior": "Isolated", "invert": false},
            byte_level,
        ]},
        "post_processor": byte_level, "decoder": byte_level,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
            "continuing_subword_prefix": null, "end_of_word_suffix": null, "fuse_unk": false,
            "byte_fallback": false, "ignore_merges": false, "vocab": tokens, "merges": merges},
    })
}

/// Names and contents of the files, in the order of [`crate::manifest::SIDE_FILES`].
pub fn files(vocab: usize, eos_hash: u32, eos_stop: &[u32]) -> Vec<(&'static str, Vec<u8>)> {
    let generation =
        json!({"eos_token_id": eos_stop, "pad_token_id": eos_hash, "do_sample": false});
    let generation = ("generation_config.json", generation.to_string().into_bytes());
    if vocab < VOCAB_MIN {
        return vec![generation];
    }
    let config = json!({"eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "bos_token": null,
        "tokenizer_class": "PreTrainedTokenizerFast"});
    vec![
        ("tokenizer.json", tokenizer(vocab).to_string().into_bytes()),
        ("tokenizer_config.json", config.to_string().into_bytes()),
        ("chat_template.jinja", TEMPLATE.as_bytes().to_vec()),
        generation,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_id_has_one_token() {
        for vocab in [VOCAB_MIN, VOCAB_MIN + 1, 1000, 40_000] {
            let file = tokenizer(vocab);
            let own = file["model"]["vocab"].as_object().unwrap().len();
            let added = file["added_tokens"].as_array().unwrap();
            assert_eq!(own + added.len(), vocab);
            assert_eq!(added[4]["id"], json!(vocab - 1));
        }
        assert_eq!(end_tokens(1000), (995, vec![995, 997]));
        assert_eq!(end_tokens(20), (19, vec![19]));
        assert_eq!(files(20, 19, &[19]).len(), 1);
    }
}
