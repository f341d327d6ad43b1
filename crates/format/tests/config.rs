//! Spellings, defaults and refusals of configuration files.

mod common;

use cherenkov_format::checkpoint::json::{self, Choices, Declared, ParsedConfig};
use cherenkov_format::qwen4_exp::config::{Gate, HiddenNorm, Mixer};
use common::*;
use serde_json::{Value, json};
use std::fs;

fn read_with(
    config: &Value,
    generation: Option<Value>,
    choices: Choices,
) -> Result<ParsedConfig, String> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    if let Some(g) = generation {
        fs::write(dir.path().join("generation_config.json"), g.to_string()).unwrap();
    }
    json::read(dir.path(), choices).map_err(|e| e.to_string())
}

fn changed(change: impl FnOnce(&mut Value)) -> Result<ParsedConfig, String> {
    let mut config = text_config();
    change(&mut config);
    read_with(&config, None, CHOICES)
}

fn without(key: &str) -> Result<ParsedConfig, String> {
    changed(|c| drop(c.as_object_mut().unwrap().remove(key)))
}

#[test]
fn nested_and_flat_files_mean_the_same() {
    let flat = read_with(&text_config(), None, CHOICES).unwrap();
    let nested = json!({"model_type": "qwen4_exp", "text_config": text_config()});
    assert_eq!(read_with(&nested, None, CHOICES).unwrap().config, flat.config);
    assert_eq!(flat.config.attention.rope_dims, 8);
    assert_eq!(flat.config.ple.as_ref().unwrap().layers, [1]);
    assert_eq!(flat.mtp, Declared::Yes);
}

#[test]
fn layer_types_have_several_spellings_and_a_default() {
    let full = [Mixer::Delta, Mixer::Delta, Mixer::Attention];
    for name in ["full_attention", "indexed_attention", "qwen_sparse_attention"] {
        assert_eq!(changed(|c| c["layer_types"][2] = name.into()).unwrap().config.layers, full);
    }
    let mut c = text_config();
    c.as_object_mut().unwrap().remove("layer_types");
    c["num_hidden_layers"] = 8.into();
    let layers = read_with(&c, None, CHOICES).unwrap().config.layers;
    let places: Vec<usize> = (0..8).filter(|&i| layers[i] == Mixer::Attention).collect();
    assert_eq!(places, [3, 7]);
    c["full_attention_interval"] = 3.into();
    let layers = read_with(&c, None, CHOICES).unwrap().config.layers;
    assert_eq!((layers[2], layers[5]), (Mixer::Attention, Mixer::Attention));
    let error = changed(|c| c["layer_types"][0] = "sliding".into()).unwrap_err();
    assert!(error.contains("sliding") && error.contains("linear_attention"), "{error}");
    let error = changed(|c| c["num_hidden_layers"] = 4.into()).unwrap_err();
    assert!(error.contains("3 entries"), "{error}");
}

#[test]
fn absent_values_have_the_reference_defaults() {
    assert!(without("norm_topk_prob").unwrap().config.moe.norm_topk);
    assert!(!changed(|c| c["norm_topk_prob"] = false.into()).unwrap().config.moe.norm_topk);
    assert_eq!(without("rms_norm_eps").unwrap().config.eps, 1e-6);
    for gate in [json!(null), json!("silu"), json!("swish")] {
        assert_eq!(
            changed(|c| c["output_gate_type"] = gate).unwrap().config.delta.gate,
            Gate::Silu
        );
    }
    assert_eq!(without("output_gate_type").unwrap().config.delta.gate, Gate::Silu);
    assert_eq!(changed(|_| ()).unwrap().config.delta.gate, Gate::Sigmoid);
    assert_eq!(without("ple_embed_dim").unwrap().config.ple.unwrap().embed_dim, 64);
    assert_eq!(without("ple_layer_ids").unwrap().config.ple, None);
    assert_eq!(changed(|c| c["ple_layer_ids"] = json!([])).unwrap().config.ple, None);
    assert_eq!(without("mtp_num_hidden_layers").unwrap().mtp, Declared::Unsaid);
    assert_eq!(changed(|c| c["mtp_num_hidden_layers"] = 0.into()).unwrap().config.mtp, None);
    let section =
        changed(|c| drop(c["rope_parameters"].as_object_mut().unwrap().remove("mrope_section")));
    assert_eq!(section.unwrap().config.attention.mrope_section, [2, 1, 1]);
    let several = changed(|c| c["ple_layer_ids"] = json!([2, 1, 2])).unwrap();
    assert_eq!(several.config.ple.unwrap().layers, [0, 1]);
}

#[test]
fn rope_values_may_stand_at_the_top() {
    let moved = changed(|c| {
        c["rope_parameters"] = json!({"mrope_section": [2, 1, 1]});
        c["rope_theta"] = 500.0.into();
        c["partial_rotary_factor"] = 0.25.into();
    })
    .unwrap();
    assert_eq!((moved.config.attention.rope_theta, moved.config.attention.rope_dims), (500.0, 8));
    let error =
        changed(|c| c["rope_parameters"] = json!({"partial_rotary_factor": 0.25})).unwrap_err();
    assert!(error.contains("rope_theta"), "{error}");
    let error = changed(|c| c["rope_parameters"]["rope_type"] = "yarn".into()).unwrap_err();
    assert!(error.contains("yarn"), "{error}");
}

#[test]
fn end_tokens_come_from_three_places() {
    let wrapper = |own: Value| {
        let mut text = text_config();
        text["eos_token_id"] = own;
        json!({"model_type": "qwen4_exp", "text_config": text, "eos_token_id": 92})
    };
    let generation = json!({"eos_token_id": [91, 90], "pad_token_id": 90});
    let got = read_with(&wrapper(json!(90)), Some(generation.clone()), CHOICES).unwrap();
    assert_eq!((got.config.eos_hash, got.config.eos_stop), (90, vec![90, 91, 92]));
    assert!(got.notes.is_empty(), "{:?}", got.notes);
    // A converter's list: the first id counts, with a warning when it is not the padding token.
    let got = read_with(&wrapper(json!([91, 90])), Some(generation.clone()), CHOICES).unwrap();
    assert_eq!(got.config.eos_hash, 91);
    assert!(got.notes[0].contains("[91, 90]"), "{:?}", got.notes);
    let got = read_with(&wrapper(json!([90, 91])), Some(generation.clone()), CHOICES).unwrap();
    assert!(got.config.eos_hash == 90 && got.notes.is_empty());
    let chosen = Choices { hidden_norm: HiddenNorm::PerStream, eos_hash: Some(90) };
    let got = read_with(&wrapper(json!([91, 90])), Some(generation), chosen).unwrap();
    assert!(got.config.eos_hash == 90 && got.notes.is_empty());
    assert_eq!(got.config.mtp.unwrap().hidden_norm, HiddenNorm::PerStream);
    for bad in [json!("90"), json!([90, "x"]), json!(-1), json!(4_294_967_296u64)] {
        assert!(read_with(&wrapper(bad), None, CHOICES).is_err());
    }
    assert!(without("eos_token_id").unwrap_err().contains("eos_token_id"));
}

#[test]
fn other_families_and_broken_values_are_refused() {
    let check = |config: Result<ParsedConfig, String>, parts: &[&str]| {
        let error = config.unwrap_err();
        parts.iter().for_each(|p| assert!(error.contains(p), "{error} lacks {p}"));
    };
    check(
        changed(|c| c["model_type"] = "llama".into()),
        &["llama", "unsupported", "qwen4_exp, qwen4_exp_text"],
    );
    check(without("model_type"), &["model_type", "nothing"]);
    check(without("hidden_size"), &["hidden_size", "nothing"]);
    check(changed(|c| c["hidden_size"] = "64".into()), &["hidden_size", "\"64\"", "whole number"]);
    check(changed(|c| c["hidden_size"] = (-64).into()), &["hidden_size", "-64"]);
    check(changed(|c| c["hidden_size"] = 64.5.into()), &["hidden_size", "64.5"]);
    check(changed(|c| c["hidden_size"] = 0.into()), &["hidden 0"]);
    check(changed(|c| c["hidden_act"] = "gelu".into()), &["hidden_act", "gelu"]);
    check(changed(|c| c["attention_bias"] = true.into()), &["attention_bias"]);
    check(changed(|c| c["indexer_kv_heads"] = 2.into()), &["indexer_kv_heads", "2"]);
    check(changed(|c| c["output_gate_type"] = "tanh".into()), &["output_gate_type", "tanh"]);
    check(changed(|c| c["ple_layer_ids"] = json!([0])), &["ple_layer_ids", "from 1"]);
    check(changed(|c| c["ple_layer_ids"] = json!([3])), &["ple.layers", "linear-attention"]);
    check(changed(|c| c["mtp_num_hidden_layers"] = 2.into()), &["mtp_num_hidden_layers", "2"]);
    check(
        changed(|c| c["mtp_use_dedicated_embeddings"] = true.into()),
        &["mtp_use_dedicated_embeddings"],
    );
    check(changed(|c| c["num_experts_per_tok"] = 9.into()), &["top_k 9"]);
    check(changed(|c| c["heads_per_ngram"] = 0.into()), &["heads_per_ngram 0"]);
    check(changed(|c| c["ngram_size"] = 1.into()), &["ngram 1"]);
    check(changed(|c| c["indexer_compress_ratio"] = 0.into()), &["index_ratio 0"]);
}
