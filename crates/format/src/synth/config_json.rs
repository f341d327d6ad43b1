//! The config.json of a synthetic checkpoint.
//!
//! Owns: the inverse of `checkpoint::json`. Never: reading.

use crate::qwen4_exp::config::{Config, Gate, Mixer};
use serde_json::{Value, json};

/// The whole file. `ngram_parts`: into how many tensors each n-gram table is cut.
pub fn config_json(c: &Config, ngram_parts: usize) -> Value {
    json!({
        "architectures": ["Qwen4ExpForConditionalGeneration"],
        "model_type": "qwen4_exp",
        "tie_word_embeddings": c.tied_embeddings,
        "text_config": text_config(c, ngram_parts),
    })
}

/// A factor whose product with `head_dim`, rounded down, is `rope_dims`.
fn rotary_factor(rope_dims: usize, head_dim: usize) -> f64 {
    // A quotient that binary or decimal rounding could push below its value gets half a step more.
    let exact = head_dim.is_power_of_two() || rope_dims == head_dim;
    (rope_dims as f64 + if exact { 0.0 } else { 0.5 }) / head_dim as f64
}

fn text_config(c: &Config, ngram_parts: usize) -> Value {
    let (a, d, m) = (&c.attention, &c.delta, &c.moe);
    let layers = c.layers.iter().map(|mixer| match mixer {
        Mixer::Delta => "linear_attention",
        Mixer::Attention => "full_attention",
    });
    let factor = rotary_factor(a.rope_dims, a.head_dim);
    let mut text = json!({
        "model_type": "qwen4_exp_text", "hidden_size": c.hidden, "num_hidden_layers": c.layers.len(),
        "vocab_size": c.vocab, "rms_norm_eps": c.eps, "max_position_embeddings": c.max_positions,
        "tie_word_embeddings": c.tied_embeddings, "layer_types": layers.collect::<Vec<_>>(),
        "num_attention_heads": a.heads, "num_key_value_heads": a.kv_heads, "head_dim": a.head_dim,
        "attention_bias": false, "hidden_act": "silu",
        "rope_parameters": {"rope_theta": a.rope_theta, "partial_rotary_factor": factor,
            "rope_type": "default", "mrope_section": a.mrope_section, "mrope_interleaved": true},
        "indexer_n_heads": a.index_heads, "indexer_kv_heads": 1, "indexer_head_dim": a.index_dim,
        "indexer_budget": a.index_budget, "indexer_compress_ratio": a.index_ratio,
        "linear_num_key_heads": d.key_heads, "linear_num_value_heads": d.value_heads,
        "linear_key_head_dim": d.key_dim, "linear_value_head_dim": d.value_dim,
        "linear_conv_kernel_dim": d.conv_kernel,
        "output_gate_type": match d.gate { Gate::Sigmoid => "sigmoid", Gate::Silu => "silu" },
        "num_experts": m.experts, "num_experts_per_tok": m.top_k, "moe_intermediate_size": m.width,
        "shared_expert_intermediate_size": m.shared_width, "norm_topk_prob": m.norm_topk,
        "hc_count": c.hyper.count, "hc_lowrank": c.hyper.rank,
        "mtp_num_hidden_layers": usize::from(c.mtp.is_some()), "mtp_use_dedicated_embeddings": false,
        "eos_token_id": c.eos_hash, "dtype": "bfloat16",
    });
    if let Some(p) = &c.ple {
        // One-based in the file.
        let layers: Vec<usize> = p.layers.iter().map(|l| l + 1).collect();
        let ple = json!({
            "ple_layer_ids": layers, "ple_embed_dim": p.embed_dim,
            "ple_conv_kernel_size": p.conv_kernel, "ngram_size": p.ngram,
            "heads_per_ngram": p.heads_per_ngram, "ngram_vocab_size_base": p.vocab_base,
            "make_ngram_vocab_size_divisible_by": p.divisor, "seed": p.seed,
            "split_ngram_parts": ngram_parts,
        });
        let more = ple.as_object().into_iter().flatten();
        let text = text.as_object_mut().expect("an object was written above");
        text.extend(more.map(|(key, value)| (key.clone(), value.clone())));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checkpoint::json::{self, Choices};
    use crate::qwen4_exp::config::HiddenNorm;
    use crate::synth::{Preset, geometry, words};

    fn check(config: &Config) {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        write("config.json", config_json(config, 4).to_string().as_bytes());
        for (name, bytes) in words::files(config.vocab, config.eos_hash, &config.eos_stop) {
            write(name, &bytes);
        }
        let choices = Choices { hidden_norm: HiddenNorm::Global, eos_hash: None };
        assert_eq!(&json::read(dir.path(), choices).unwrap().config, config);
    }

    #[test]
    fn what_is_written_is_read_back() {
        for preset in [Preset::FlashNext, Preset::Pocket, Preset::Small] {
            check(&preset.config());
        }
        let small = Preset::Small.config();
        let mut odd = geometry::set(&small, "delta.gate", "silu").unwrap();
        geometry::set_layers(&mut odd, 3);
        (odd.mtp, odd.tied_embeddings, odd.moe.norm_topk) = (None, true, false);
        check(&odd);
        odd.ple = None;
        // A factor that a plain quotient would round down to less.
        for (rope, head) in [(6, 49), (2, 3), (14, 25), (22, 93)] {
            odd.attention.rope_dims = rope;
            odd.attention.head_dim = head;
            odd.attention.mrope_section = [rope / 2, 0, 0];
            check(&odd);
        }
    }
}
