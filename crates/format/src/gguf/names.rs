//! From canonical tensors to those of a `qwen4exp` file.
//!
//! Owns: names, and which row and column goes where. Never: numbers.
//!
//! Two things are arranged differently there. The index projection is two tensors. Value heads of a
//! DeltaNet layer are interleaved among key heads instead of grouped by them: head `k * r + i` of ours,
//! the i-th of the r heads that share key head k, is head `i * key_heads + k` of theirs.

use crate::qwen4_exp::config::{Config, Delta};
use crate::qwen4_exp::tensors::TensorSpec;

/// Canonical endings within a layer and their names in the file, without `blk.N.`.
const LAYER: [(&str, &str); 37] = [
    ("ple.key_proj", "ple_key.weight"),
    ("ple.value_proj", "ple_value.weight"),
    ("ple.norm_key", "ple_norm_key.weight"),
    ("ple.norm_query", "ple_norm_query.weight"),
    ("ple.norm_conv", "ple_norm_conv.weight"),
    ("ple.conv1d", "ple_conv1d.weight"),
    ("attn_hyper_connection.hc_norm", "hc_attn_norm.weight"),
    ("attn_hyper_connection.input_mix_weight_down", "hc_attn_down.weight"),
    ("attn_hyper_connection.input_mix_weight_up", "hc_attn_up.weight"),
    ("attn_hyper_connection.block_inject_weight", "hc_attn_inject.weight"),
    ("mlp_hyper_connection.hc_norm", "hc_ffn_norm.weight"),
    ("mlp_hyper_connection.input_mix_weight_down", "hc_ffn_down.weight"),
    ("mlp_hyper_connection.input_mix_weight_up", "hc_ffn_up.weight"),
    ("mlp_hyper_connection.block_inject_weight", "hc_ffn_inject.weight"),
    ("linear_attn.in_proj_qkv", "attn_qkv.weight"),
    ("linear_attn.in_proj_z", "attn_gate.weight"),
    ("linear_attn.in_proj_a", "ssm_alpha.weight"),
    ("linear_attn.in_proj_b", "ssm_beta.weight"),
    ("linear_attn.conv1d", "ssm_conv1d.weight"),
    ("linear_attn.A_log", "ssm_a"),
    ("linear_attn.dt_bias", "ssm_dt.bias"),
    ("linear_attn.norm", "ssm_norm.weight"),
    ("linear_attn.out_proj", "ssm_out.weight"),
    ("self_attn.q_proj", "attn_q.weight"),
    ("self_attn.k_proj", "attn_k.weight"),
    ("self_attn.v_proj", "attn_v.weight"),
    ("self_attn.o_proj", "attn_output.weight"),
    ("self_attn.q_norm", "attn_q_norm.weight"),
    ("self_attn.k_norm", "attn_k_norm.weight"),
    ("self_attn.indexer.index_qk_proj", "indexer.q_proj.weight"),
    ("self_attn.indexer.q_layernorm", "indexer.q_norm.weight"),
    ("self_attn.indexer.k_layernorm", "indexer.k_norm.weight"),
    ("mlp.gate", "ffn_gate_inp.weight"),
    ("mlp.shared_expert.gate_proj", "ffn_gate_shexp.weight"),
    ("mlp.shared_expert.up_proj", "ffn_up_shexp.weight"),
    ("mlp.shared_expert.down_proj", "ffn_down_shexp.weight"),
    ("mlp.shared_expert_gate", "ffn_gate_inp_shexp.weight"),
];

/// The second half of the index projection.
const INDEX_KEY: &str = "indexer.k_proj.weight";

/// Tensors outside layers.
const OUTSIDE: [(&str, &str); 5] = [
    ("embed_tokens", "token_embd.weight"),
    ("hyper_connection_mixer.hc_norm", "output_hc_norm.weight"),
    ("hyper_connection_mixer.input_mix_weight_down", "output_hc_down.weight"),
    ("hyper_connection_mixer.input_mix_weight_up", "output_hc_up.weight"),
    ("lm_head", "output.weight"),
];

/// Name of a matrix of all experts of a layer.
pub fn experts(layer: usize, which: &str) -> String {
    format!("blk.{layer}.ffn_{which}_exps.weight")
}

/// Name of the n-gram table.
pub const TABLE: &str = "per_layer_token_embd.weight";

/// A tensor of the file that takes rows of a canonical one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// First row of the canonical tensor that it takes.
    pub first: usize,
    /// Rows that it takes.
    pub rows: usize,
}

/// The tensors of the file that a canonical one becomes; none for those of the draft head.
pub fn parts(spec: &TensorSpec, config: &Config) -> Vec<Part> {
    let whole = |name: String| vec![Part { name, first: 0, rows: spec.rows }];
    if let Some((_, name)) = OUTSIDE.iter().find(|(ours, _)| *ours == spec.name) {
        return whole((*name).to_string());
    }
    let Some((number, rest)) = spec.name.strip_prefix("layers.").and_then(|s| s.split_once('.'))
    else {
        return Vec::new();
    };
    let Some((ours, name)) = LAYER.iter().find(|(ours, _)| *ours == rest) else {
        return Vec::new();
    };
    let name = format!("blk.{number}.{name}");
    if !ours.ends_with("index_qk_proj") {
        return whole(name);
    }
    let queries = config.attention.index_heads * config.attention.index_dim;
    let key = format!("blk.{number}.{INDEX_KEY}");
    vec![
        Part { name, first: 0, rows: queries },
        Part { name: key, first: queries, rows: spec.rows - queries },
    ]
}

/// How value heads are moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Move {
    /// Nothing moves.
    None,
    /// Rows from this one on, each head so many rows.
    Rows(usize, usize),
    /// Columns, each head so many.
    Cols(usize),
}

/// What moves in a tensor.
pub fn moved(spec: &TensorSpec, delta: &Delta) -> Move {
    let keys = 2 * delta.key_heads * delta.key_dim;
    match spec.name.rsplit_once("linear_attn.").map(|(_, end)| end) {
        Some("in_proj_qkv" | "conv1d") => Move::Rows(keys, delta.value_dim),
        Some("in_proj_z") => Move::Rows(0, delta.value_dim),
        Some("in_proj_a" | "in_proj_b") => Move::Rows(0, 1),
        Some("A_log" | "dt_bias") => Move::Cols(1),
        Some("out_proj") => Move::Cols(delta.value_dim),
        _ => Move::None,
    }
}

/// Where value head `head` goes.
pub fn head(head: usize, delta: &Delta) -> usize {
    let shared = delta.value_heads / delta.key_heads;
    head % shared * delta.key_heads + head / shared
}

/// Where row `row` goes.
pub fn row(row: usize, how: Move, delta: &Delta) -> usize {
    match how {
        Move::Rows(first, size) if row >= first => {
            let at = row - first;
            first + head(at / size, delta) * size + at % size
        }
        _ => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qwen4_exp::tensors;
    use crate::synth::Preset;
    use std::collections::BTreeSet;

    #[test]
    fn every_tensor_of_the_trunk_has_a_name_of_its_own() {
        for preset in [Preset::FlashNext, Preset::Small] {
            let config = preset.config();
            let mut seen = BTreeSet::new();
            for spec in tensors::dense(&config) {
                let parts = parts(&spec, &config);
                assert_eq!(parts.is_empty(), spec.name.starts_with("mtp."), "{}", spec.name);
                let rows: usize = parts.iter().map(|p| p.rows).sum();
                assert!(parts.is_empty() || rows == spec.rows, "{}", spec.name);
                for part in parts {
                    assert!(seen.insert(part.name.clone()), "{}", part.name);
                }
            }
            assert!(seen.contains("blk.0.ssm_a") && seen.contains("blk.3.indexer.k_proj.weight"));
        }
    }

    #[test]
    fn value_heads_are_interleaved_among_key_heads() {
        let delta = Preset::FlashNext.config().delta;
        // 16 key heads with 3 value heads each: heads 0, 1, 2 share key head 0.
        assert_eq!([0, 1, 2, 3, 47].map(|h| head(h, &delta)), [0, 16, 32, 1, 47]);
        let all: BTreeSet<usize> = (0..48).map(|h| head(h, &delta)).collect();
        assert_eq!(all.len(), 48);
        let rows = Move::Rows(4096, 128);
        assert_eq!(
            [0, 4095, 4096, 4097, 4224].map(|r| row(r, rows, &delta)),
            [0, 4095, 4096, 4097, 6144]
        );
    }
}
