//! The geometry as GGUF metadata.
//!
//! Owns: keys and values of the `qwen4exp` architecture, and what it cannot express.

use super::Options;
use super::file::Head;
use crate::qwen4_exp::config::{Config, Gate, Mixer};
use crate::qwen4_exp::hash::HashTable;
use std::path::Path;

const ARCH: &str = "qwen4exp";

/// What the architecture takes for granted. `Err` says what is otherwise here.
pub fn check(c: &Config) -> Result<(), String> {
    if c.delta.gate != Gate::Sigmoid {
        return Err("a silu output gate (sigmoid is taken for granted)".into());
    }
    if !c.moe.norm_topk {
        return Err("expert weights that are not divided by their sum".into());
    }
    if c.delta.key_dim != c.delta.value_dim {
        let (k, v) = (c.delta.key_dim, c.delta.value_dim);
        return Err(format!("DeltaNet heads of {k} keys and {v} values (equal sizes only)"));
    }
    if c.ple.as_ref().is_some_and(|p| p.layers.len() > 1) {
        return Err("several n-gram layers (one at most)".into());
    }
    Ok(())
}

/// What programs of today cannot load although the file says it.
pub fn notes(c: &Config) -> Option<String> {
    let width = c.ple.as_ref()?.embed_dim;
    (width != c.hidden).then(|| {
        format!(
            "n-gram rows of {width} values beside a hidden size of {}: llama.cpp expects them to be \
             equal and needs a patch to load this file",
            c.hidden
        )
    })
}

/// Everything but the tokenizer.
pub fn head(c: &Config, dir: &Path, options: &Options) -> Head {
    let mut head = Head::default();
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    head.text("general.architecture", ARCH);
    head.text("general.type", "model");
    head.text("general.name", &name);
    head.u32("general.quantization_version", 2);
    head.u32("general.file_type", options.experts.file_id() as usize);
    let (a, d, m) = (&c.attention, &c.delta, &c.moe);
    let mut number = |key: &str, value: usize| head.u32(&format!("{ARCH}.{key}"), value);
    number("block_count", c.layers.len());
    number("context_length", c.max_positions);
    number("embedding_length", c.hidden);
    number("attention.head_count", a.heads);
    number("attention.head_count_kv", a.kv_heads);
    number("attention.key_length", a.head_dim);
    number("attention.value_length", a.head_dim);
    number("rope.dimension_count", a.rope_dims);
    number("expert_count", m.experts);
    number("expert_used_count", m.top_k);
    number("expert_feed_forward_length", m.width);
    number("expert_shared_feed_forward_length", m.shared_width);
    number("ssm.conv_kernel", d.conv_kernel);
    number("ssm.state_size", d.key_dim);
    number("ssm.group_count", d.key_heads);
    number("ssm.time_step_rank", d.value_heads);
    number("ssm.inner_size", d.value_width());
    number("hyper_connection.count", c.hyper.count);
    number("hyper_connection.low_rank", c.hyper.rank);
    number("attention.indexer.head_count", a.index_heads);
    number("attention.indexer.key_length", a.index_dim);
    number("attention.indexer.top_k", a.index_budget);
    let key = |key: &str| format!("{ARCH}.{key}");
    head.f32(&key("attention.layer_norm_rms_epsilon"), c.eps);
    head.f32(&key("rope.freq_base"), a.rope_theta);
    let [t, h, w] = a.mrope_section.map(|n| n as i32);
    head.i32s(&key("rope.dimension_sections"), &[t, h, w, 0]);
    head.flags(&key("attention.recurrent_layers"), c.layers.iter().map(|&l| l == Mixer::Delta));
    if let Some(interval) = interval(&c.layers) {
        head.u32(&key("full_attention_interval"), interval);
    }
    let ratio = |l: &Mixer| if *l == Mixer::Attention { a.index_ratio } else { 0 };
    head.u32s(&key("attention.compress_ratios"), &c.layers.iter().map(ratio).collect::<Vec<_>>());
    if let (Some(p), Some(hash)) = (&c.ple, HashTable::all(c).first()) {
        head.u32s(&key("ple.layers"), &p.layers);
        head.u32(&key("ple.ngram_size"), p.ngram);
        head.u32(&key("ple.heads_per_ngram"), p.heads_per_ngram);
        head.u32(&key("ple.conv_kernel"), p.conv_kernel);
        head.u32(&key("ple.eos_token_id"), c.eos_hash as usize);
        head.u32(&key("embedding_length_per_layer_input"), p.row_width());
        head.u64s(&key("ple.layer_multipliers"), &hash.multipliers);
        head.u64s(&key("ple.head_offsets"), &hash.offsets);
        head.u64s(&key("ple.head_vocab_sizes"), &hash.sizes);
    }
    head
}

/// Every how many layers one is attention, if it is that regular.
fn interval(layers: &[Mixer]) -> Option<usize> {
    let n = layers.iter().position(|&l| l == Mixer::Attention)? + 1;
    let full = |(i, &l): (usize, &Mixer)| (l == Mixer::Attention) == (i + 1).is_multiple_of(n);
    layers.iter().enumerate().all(full).then_some(n)
}
