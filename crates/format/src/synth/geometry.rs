//! Geometries of synthetic models.
//!
//! Owns: the presets and how their values are changed by name. Never: numbers of weights.
//! Invariant: what [`Preset::config`] returns is valid, and every change keeps what depends on the
//! changed value in step (or the final check names what does not fit).

use super::words;
use crate::qwen4_exp::config::{
    Attention, Config, Delta, Gate, HiddenNorm, Hyper, Mixer, Moe, Mtp, Ple,
};
use serde_json::Value;

/// A geometry to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    /// Qwen3.8-Flash-Next, but for the n-gram table: its heads have about 10 thousand rows instead
    /// of 20 million.
    FlashNext,
    /// The bundled pocket model.
    Pocket,
    /// A small model whose n-gram rows are as wide as its residual, as llama.cpp demands.
    Small,
}

/// Every fourth layer is attention; in a trunk of fewer than four layers the last one.
fn mixers(count: usize) -> Vec<Mixer> {
    let every = count.clamp(2, 4);
    let mixer = |i: usize| {
        if (i + 1).is_multiple_of(every) { Mixer::Attention } else { Mixer::Delta }
    };
    (0..count).map(mixer).collect()
}

/// The n-gram block stands on the second layer, or on the first when the second is attention.
fn ple_layer(layers: &[Mixer]) -> usize {
    usize::from(layers.get(1) == Some(&Mixer::Delta))
}

impl Preset {
    /// The geometry.
    pub fn config(self) -> Config {
        let mut config = match self {
            Self::FlashNext => flash_next(),
            Self::Pocket => pocket(),
            Self::Small => small(),
        };
        let vocab = config.vocab;
        set_vocab(&mut config, vocab);
        config
    }
}

fn flash_next() -> Config {
    let layers = mixers(48);
    Config {
        hidden: 2560,
        vocab: 248_320,
        eps: 1e-6,
        max_positions: 262_144,
        tied_embeddings: false,
        attention: Attention {
            heads: 24,
            kv_heads: 2,
            head_dim: 256,
            rope_dims: 64,
            rope_theta: 1e7,
            mrope_section: [11, 11, 10],
            index_heads: 4,
            index_dim: 128,
            index_budget: 2048,
            index_ratio: 4,
        },
        delta: Delta {
            key_heads: 16,
            value_heads: 48,
            key_dim: 128,
            value_dim: 128,
            conv_kernel: 4,
            gate: Gate::Sigmoid,
        },
        moe: Moe { experts: 512, top_k: 10, width: 640, shared_width: 640, norm_topk: true },
        hyper: Hyper { count: 4, rank: 320 },
        ple: Some(Ple {
            layers: vec![ple_layer(&layers)],
            embed_dim: 2560,
            conv_kernel: 4,
            ngram: 3,
            heads_per_ngram: 8,
            vocab_base: 10_000,
            divisor: 128,
            seed: 1234,
        }),
        mtp: Some(Mtp { hidden_norm: HiddenNorm::Global }),
        eos_hash: 0,
        eos_stop: Vec::new(),
        layers,
    }
}

fn pocket() -> Config {
    let mut c = flash_next();
    c.layers = mixers(8);
    (c.hidden, c.vocab, c.max_positions) = (256, 4096, 8192);
    c.attention = Attention {
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rope_dims: 16,
        rope_theta: 1e4,
        mrope_section: [3, 3, 2],
        index_heads: 4,
        index_dim: 64,
        index_budget: 128,
        index_ratio: 4,
    };
    c.delta = Delta { key_heads: 4, value_heads: 8, key_dim: 64, value_dim: 64, ..c.delta };
    c.moe = Moe { experts: 48, top_k: 4, width: 64, shared_width: 128, norm_topk: true };
    c.hyper.rank = 64;
    if let Some(ple) = &mut c.ple {
        ple.embed_dim = 512;
    }
    c
}

fn small() -> Config {
    let mut c = pocket();
    (c.hidden, c.vocab, c.max_positions) = (512, 8192, 32_768);
    c.attention = Attention {
        head_dim: 128,
        rope_dims: 32,
        mrope_section: [6, 5, 5],
        index_dim: 128,
        index_budget: 512,
        ..c.attention
    };
    c.delta = Delta { key_dim: 128, value_dim: 128, ..c.delta };
    c.moe = Moe { experts: 64, top_k: 6, width: 128, shared_width: 128, norm_topk: true };
    if let Some(ple) = &mut c.ple {
        ple.embed_dim = 512;
    }
    c
}

/// Cuts the trunk to `count` layers, or extends it: every fourth one is attention (the last one in
/// a trunk of fewer), and the n-gram block goes where such a block may stand.
pub fn set_layers(config: &mut Config, count: usize) {
    config.layers = mixers(count);
    if let Some(ple) = &mut config.ple {
        ple.layers = vec![ple_layer(&config.layers)];
    }
}

/// Changes the width of a residual stream, and with it the width of the concatenated n-gram rows.
pub fn set_hidden(config: &mut Config, hidden: usize) {
    config.hidden = hidden;
    if let Some(ple) = &mut config.ple {
        ple.embed_dim = hidden;
    }
}

/// Changes the vocabulary, and with it the end tokens (see `words`).
pub fn set_vocab(config: &mut Config, vocab: usize) {
    config.vocab = vocab;
    let (hash, stop) = words::end_tokens(vocab);
    (config.eos_hash, config.eos_stop) = (hash, stop);
}

/// Changes any value by its path in the manifest's `config`, for example `moe.experts` to `64` or
/// `layers` to `["delta","attention"]`. Nothing else follows: [`Config::validate`] has the last word.
///
/// # Errors
/// When there is no such value, or it cannot be that.
pub fn set(config: &Config, path: &str, value: &str) -> Result<Config, String> {
    let mut all = serde_json::to_value(config).expect("a config serialises");
    let pointer = format!("/{}", path.replace('.', "/"));
    let Some(slot) = all.pointer_mut(&pointer) else {
        let names = names(&all);
        return Err(format!("found no value `{path}`, expected one of {}", names.join(", ")));
    };
    *slot = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_string()));
    serde_json::from_value(all).map_err(|e| format!("{path}: found `{value}`: {e}"))
}

/// Paths of all values.
fn names(all: &Value) -> Vec<String> {
    let mut names = Vec::new();
    for (key, value) in all.as_object().into_iter().flatten() {
        match value.as_object() {
            Some(inner) => names.extend(inner.keys().map(|k| format!("{key}.{k}"))),
            None => names.push(key.clone()),
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Preset; 3] = [Preset::FlashNext, Preset::Pocket, Preset::Small];

    #[test]
    fn presets_are_valid_at_every_depth() {
        for preset in ALL {
            preset.config().validate().unwrap();
            for count in 2..9 {
                let mut config = preset.config();
                set_layers(&mut config, count);
                config.validate().unwrap();
                assert!(config.layers.contains(&Mixer::Attention), "{count}");
            }
        }
        let official = Preset::FlashNext.config();
        assert_eq!(official.layers.iter().filter(|&&m| m == Mixer::Attention).count(), 12);
        assert_eq!((official.eos_hash, official.layers[3]), (248_315, Mixer::Attention));
    }

    #[test]
    fn values_are_changed_by_path_or_refused_by_name() {
        let config = Preset::Small.config();
        assert_eq!(set(&config, "moe.experts", "7").unwrap().moe.experts, 7);
        let mixed = set(&config, "layers", r#"["delta","attention"]"#).unwrap();
        assert_eq!(mixed.layers, [Mixer::Delta, Mixer::Attention]);
        assert_eq!(set(&config, "delta.gate", "silu").unwrap().delta.gate, Gate::Silu);
        assert!(set(&config, "mtp", "null").unwrap().mtp.is_none());
        let unknown = set(&config, "moe.exparts", "7").unwrap_err();
        assert!(unknown.contains("moe.exparts") && unknown.contains("moe.experts"), "{unknown}");
        let wrong = set(&config, "moe.experts", "many").unwrap_err();
        assert!(wrong.contains("moe.experts") && wrong.contains("many"), "{wrong}");
    }
}
