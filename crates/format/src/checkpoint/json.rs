//! config.json and generation_config.json.
//!
//! Owns: every spelling, nesting and default of the configuration files. Never: tensors.

use super::{read_small, unsupported};
use crate::error::{Error, Result};
use crate::qwen4_exp::config::{
    Attention, Config, Delta, Gate, HiddenNorm, Hyper, Mixer, Moe, Mtp, Ple,
};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

/// `model_type` values that are understood, wrapper or text model.
pub const MODEL_TYPES: [&str; 2] = ["qwen4_exp", "qwen4_exp_text"];

/// Whether a draft head is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Declared {
    /// The configuration says so.
    Yes,
    /// The configuration says there is none.
    No,
    /// The configuration is silent.
    Unsaid,
}

/// What the configuration files say.
#[derive(Clone, Debug)]
pub struct ParsedConfig {
    /// The geometry. `mtp` is filled unless the files say that there is no draft head.
    pub config: Config,
    /// `model_type` of the outer object.
    pub model_type: String,
    /// Whether the draft head was declared.
    pub mtp: Declared,
    /// Bits and group of MLX weights where no override stands, if stated.
    pub mlx: Option<(u64, u64)>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// Choices of the user that the files cannot settle.
#[derive(Clone, Copy, Debug)]
pub struct Choices {
    /// Norm of the draft head's hidden input.
    pub hidden_norm: HiddenNorm,
    /// Token on which the n-gram window resets, when the files have it wrong.
    pub eos_hash: Option<u32>,
}

/// An object of a configuration file, with what its messages need.
struct Fields<'a> {
    path: &'a Path,
    at: &'a str,
    map: &'a Map<String, Value>,
}

impl<'a> Fields<'a> {
    fn get(&self, name: &str) -> Option<&'a Value> {
        self.map.get(name).filter(|v| !v.is_null())
    }

    fn bad(&self, name: &str, found: &str, expected: &str) -> Error {
        let subject = format!("{}{name}", self.at);
        let remedy = "take config.json from the original checkpoint";
        Error::invalid(self.path, subject, found, expected, remedy)
    }

    fn found(&self, name: &str) -> String {
        let text = self.get(name).map_or_else(|| "nothing".to_string(), ToString::to_string);
        text.chars().take(200).collect()
    }

    fn whole(&self, name: &str) -> Result<Option<u64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let whole = value.as_u64().or_else(|| {
            // Some writers print whole numbers as floats.
            value.as_f64().filter(|f| f.fract() == 0.0 && (0.0..9e15).contains(f)).map(|f| f as u64)
        });
        whole.map(Some).ok_or_else(|| self.bad(name, &self.found(name), "a whole number"))
    }

    fn size(&self, name: &str) -> Result<usize> {
        let value = self.whole(name)?;
        value.map(|v| v as usize).ok_or_else(|| self.bad(name, "nothing", "a whole number"))
    }

    fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        Ok(self.whole(name)?.map_or(default, |v| v as usize))
    }

    fn number(&self, name: &str) -> Result<Option<f64>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_f64().map(Some).ok_or_else(|| self.bad(name, &self.found(name), "a number"))
    }

    fn flag(&self, name: &str) -> Result<Option<bool>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_bool().map(Some).ok_or_else(|| self.bad(name, &self.found(name), "true or false"))
    }

    fn text(&self, name: &str) -> Result<Option<&'a str>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.as_str().map(Some).ok_or_else(|| self.bad(name, &self.found(name), "a string"))
    }

    fn list(&self, name: &str) -> Result<Option<&'a [Value]>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let list = value.as_array().map(Vec::as_slice);
        list.map(Some).ok_or_else(|| self.bad(name, &self.found(name), "a list"))
    }

    fn object(&self, name: &str, at: &'a str) -> Result<Option<Fields<'a>>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        let map =
            value.as_object().ok_or_else(|| self.bad(name, &self.found(name), "an object"))?;
        Ok(Some(Fields { path: self.path, at, map }))
    }

    /// Token ids: one number or a list of them.
    fn ids(&self, name: &str) -> Result<Vec<u32>> {
        let Some(value) = self.get(name) else { return Ok(Vec::new()) };
        let one = |v: &Value| v.as_u64().and_then(|id| u32::try_from(id).ok());
        let ids = match value {
            Value::Array(list) => list.iter().map(one).collect(),
            other => one(other).map(|id| vec![id]),
        };
        ids.ok_or_else(|| self.bad(name, &self.found(name), "a token id or a list of them"))
    }

    fn demand(&self, name: &str, holds: bool, expected: &str) -> Result<()> {
        if holds { Ok(()) } else { Err(self.bad(name, &self.found(name), expected)) }
    }
}

fn read_object(path: &Path) -> Result<Option<Map<String, Value>>> {
    let Some(bytes) = read_small(path)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|e| {
        Error::invalid(path, "json", e.to_string(), "an object", "download the file again")
    })
}

/// Reads the configuration files of `dir`.
pub fn read(dir: &Path, choices: Choices) -> Result<ParsedConfig> {
    let path: PathBuf = dir.join("config.json");
    let Some(map) = read_object(&path)? else {
        let source = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(Error::io(&path, "open", source));
    };
    let outer = Fields { path: &path, at: "", map: &map };
    let model_type = supported_type(&outer)?;
    let nested = outer.object("text_config", "text_config.")?;
    let text = nested.as_ref().unwrap_or(&outer);
    if nested.is_some() {
        supported_type(text)?;
    }
    let generation_path = dir.join("generation_config.json");
    let generation = read_object(&generation_path)?.unwrap_or_default();
    let generation = Fields { path: &generation_path, at: "", map: &generation };
    let mlx = quantization(&outer, text)?;
    let mut notes = Vec::new();
    let mtp = draft_head(text, &outer)?;
    let (eos_hash, eos_stop) = end_tokens(&outer, text, &generation, choices, &mut notes)?;
    let tied = text.flag("tie_word_embeddings")?.or(outer.flag("tie_word_embeddings")?);
    refuse_unsupported(text)?;
    let layers = mixers(text)?;
    let hidden = text.size("hidden_size")?;
    let config = Config {
        hidden,
        vocab: text.size("vocab_size")?,
        eps: text.number("rms_norm_eps")?.unwrap_or(1e-6),
        max_positions: text.size_or("max_position_embeddings", 32768)?,
        tied_embeddings: tied.unwrap_or(false),
        layers,
        attention: attention(text)?,
        delta: delta(text)?,
        moe: moe(text)?,
        hyper: Hyper {
            count: text.size_or("hc_count", 4)?,
            rank: text.size_or("hc_lowrank", 320)?,
        },
        ple: ple(text, hidden)?,
        mtp: (mtp != Declared::No).then_some(Mtp { hidden_norm: choices.hidden_norm }),
        eos_hash,
        eos_stop,
    };
    config.validate().map_err(|e| {
        let remedy = "take config.json from the original checkpoint";
        Error::invalid(&path, "geometry", e, "a geometry that this family allows", remedy)
    })?;
    Ok(ParsedConfig { config, model_type, mtp, mlx, notes })
}

fn supported_type(fields: &Fields<'_>) -> Result<String> {
    let found = fields.text("model_type")?;
    if let Some(name) = found.filter(|name| MODEL_TYPES.contains(name)) {
        return Ok(name.to_string());
    }
    Err(Error::invalid(
        fields.path,
        format!("{}model_type", fields.at),
        format!("{} (unsupported)", fields.found("model_type")),
        format!("one of {}", MODEL_TYPES.join(", ")),
        format!("version {} supports these model types only", env!("CARGO_PKG_VERSION")),
    ))
}

/// MLX's (bits, group size), after every other quantisation has been refused by name.
fn quantization(outer: &Fields<'_>, text: &Fields<'_>) -> Result<Option<(u64, u64)>> {
    let mut mlx = None;
    for fields in [outer, text] {
        for key in ["quantization", "quantization_config"] {
            let Some(q) = fields.object(key, "quantization.")? else { continue };
            let method = q.text("quant_method")?;
            if let Some(method) = method.filter(|m| !["mlx", "affine"].contains(m)) {
                let algo = q.text("quant_algo")?.map_or(String::new(), |a| format!(" {a}"));
                return Err(unsupported(fields.path, key, &format!("{method}{algo} weights")));
            }
            if let Some(mode) = q.text("mode")?.filter(|&m| m != "affine") {
                return Err(unsupported(fields.path, key, &format!("MLX {mode} weights")));
            }
            if let (Some(bits), Some(group)) = (q.whole("bits")?, q.whole("group_size")?) {
                mlx = mlx.or(Some((bits, group)));
            }
        }
    }
    Ok(mlx)
}

fn draft_head(text: &Fields<'_>, outer: &Fields<'_>) -> Result<Declared> {
    let mut count = text.whole("mtp_num_hidden_layers")?.or(outer.whole("mtp_num_hidden_layers")?);
    if let Some(mtp) = text.object("mtp", "text_config.mtp.")? {
        count = count.or(mtp.whole("num_hidden_layers")?);
        if let Some(types) = mtp.list("layer_types")? {
            let full = types
                .iter()
                .all(|t| t.as_str().is_some_and(|t| mixer(t) == Some(Mixer::Attention)));
            mtp.demand("layer_types", full, "full attention only")?;
        }
    }
    let dedicated = text.flag("mtp_use_dedicated_embeddings")?.unwrap_or(false);
    text.demand(
        "mtp_use_dedicated_embeddings",
        !dedicated,
        "false: the head shares the embedding",
    )?;
    match count {
        None => Ok(Declared::Unsaid),
        Some(0) => Ok(Declared::No),
        Some(1) => Ok(Declared::Yes),
        Some(_) => {
            Err(text.bad("mtp_num_hidden_layers", &text.found("mtp_num_hidden_layers"), "0 or 1"))
        }
    }
}

/// The token that resets the n-gram window, and those that end generation.
fn end_tokens(
    outer: &Fields<'_>,
    text: &Fields<'_>,
    generation: &Fields<'_>,
    choices: Choices,
    notes: &mut Vec<String>,
) -> Result<(u32, Vec<u32>)> {
    let key = "eos_token_id";
    let own = text.ids(key)?;
    let (wrapper, stops) = (outer.ids(key)?, generation.ids(key)?);
    let first = [&own, &wrapper, &stops].into_iter().find_map(|ids| ids.first().copied());
    let Some(first) = choices.eos_hash.or(first) else {
        return Err(text.bad(key, "nothing", "a token id: the n-gram hash resets on it"));
    };
    if own.is_empty() && choices.eos_hash.is_none() {
        notes.push(format!("the text config has no {key}; the n-gram window resets on {first}"));
    }
    // The official file has one id; a list is a converter's work, and its order decides the hash.
    let mut base = text.ids("pad_token_id")?;
    base.extend(generation.ids("pad_token_id")?);
    base.extend(generation.ids("bos_token_id")?);
    if own.len() > 1 && choices.eos_hash.is_none() && (base.is_empty() || !base.contains(&first)) {
        notes.push(format!(
            "{key} is the list {own:?}: the n-gram window resets on its first id, {first}, which is \
             not the padding token; if the original file has another id, give it as the hash token"
        ));
    }
    let all: BTreeSet<u32> = own.into_iter().chain(wrapper).chain(stops).collect();
    Ok((first, all.into_iter().collect()))
}

fn refuse_unsupported(text: &Fields<'_>) -> Result<()> {
    let bias = text.flag("attention_bias")?.unwrap_or(false);
    text.demand("attention_bias", !bias, "false")?;
    let act = text.text("hidden_act")?.unwrap_or("silu");
    text.demand("hidden_act", act == "silu" || act == "swish", "silu")?;
    let kv = text.size_or("indexer_kv_heads", 1)?;
    text.demand("indexer_kv_heads", kv == 1, "1")
}

fn mixer(name: &str) -> Option<Mixer> {
    match name {
        "linear_attention" => Some(Mixer::Delta),
        "full_attention" | "indexed_attention" | "qwen_sparse_attention" => Some(Mixer::Attention),
        _ => None,
    }
}

fn mixers(text: &Fields<'_>) -> Result<Vec<Mixer>> {
    let count = text.whole("num_hidden_layers")?;
    let Some(list) = text.list("layer_types")? else {
        let count = text.size("num_hidden_layers")?;
        text.demand("num_hidden_layers", count <= 4096, "at most 4096")?;
        let interval = text.size_or("full_attention_interval", 4)?;
        text.demand("full_attention_interval", interval > 0, "at least 1")?;
        let full = |i: usize| (i + 1).is_multiple_of(interval);
        return Ok((0..count)
            .map(|i| if full(i) { Mixer::Attention } else { Mixer::Delta })
            .collect());
    };
    let expected = "linear_attention, full_attention, indexed_attention or qwen_sparse_attention";
    let parsed = list.iter().map(|v| {
        v.as_str().and_then(mixer).ok_or_else(|| {
            let found: String = v.to_string().chars().take(200).collect();
            text.bad("layer_types", &found, expected)
        })
    });
    let layers = parsed.collect::<Result<Vec<Mixer>>>()?;
    if count.is_some_and(|n| n != layers.len() as u64) {
        let expected = format!("{} as in num_hidden_layers", text.found("num_hidden_layers"));
        return Err(text.bad("layer_types", &format!("{} entries", layers.len()), &expected));
    }
    Ok(layers)
}

fn attention(text: &Fields<'_>) -> Result<Attention> {
    let rope = match text.object("rope_parameters", "rope_parameters.")? {
        Some(rope) => Some(rope),
        None => text.object("rope_scaling", "rope_scaling.")?,
    };
    let in_rope = |name: &str| rope.as_ref().map_or(Ok(None), |r| r.number(name));
    if let Some(rope) = &rope {
        for name in ["rope_type", "type"] {
            let kind = rope.text(name)?.unwrap_or("default");
            rope.demand(name, ["default", "mrope"].contains(&kind), "default (no scaling)")?;
        }
    }
    let rope_theta = match in_rope("rope_theta")? {
        Some(theta) => theta,
        None => text
            .number("rope_theta")?
            .ok_or_else(|| text.bad("rope_parameters.rope_theta", "nothing", "a number"))?,
    };
    let factor = match in_rope("partial_rotary_factor")? {
        Some(factor) => factor,
        None => text.number("partial_rotary_factor")?.ok_or_else(|| {
            text.bad("rope_parameters.partial_rotary_factor", "nothing", "a number")
        })?,
    };
    let head_dim = text.size_or("head_dim", 256)?;
    let sane = factor > 0.0 && factor <= 1.0;
    text.demand("partial_rotary_factor", sane, "a number above 0, at most 1")?;
    let rope_dims = (head_dim as f64 * factor) as usize;
    Ok(Attention {
        heads: text.size("num_attention_heads")?,
        kv_heads: text.size("num_key_value_heads")?,
        head_dim,
        rope_dims,
        rope_theta,
        mrope_section: mrope_section(rope.as_ref(), rope_dims)?,
        index_heads: text.size_or("indexer_n_heads", 4)?,
        index_dim: text.size_or("indexer_head_dim", 128)?,
        index_budget: text.size_or("indexer_budget", 2048)?,
        index_ratio: text.size_or("indexer_compress_ratio", 4)?,
    })
}

/// The stated sections, or thirds of the frequencies with the rest going to t, then h.
fn mrope_section(rope: Option<&Fields<'_>>, rope_dims: usize) -> Result<[usize; 3]> {
    let stated = rope.map_or(Ok(None), |r| r.list("mrope_section"))?;
    let (Some(list), Some(rope)) = (stated, rope) else {
        let half = rope_dims / 2;
        let w = half / 3;
        let h = (half - w) / 2;
        return Ok([half - w - h, h, w]);
    };
    let sizes: Option<Vec<usize>> = list.iter().map(|v| v.as_u64().map(|n| n as usize)).collect();
    sizes.and_then(|s| <[usize; 3]>::try_from(s).ok()).ok_or_else(|| {
        rope.bad("mrope_section", &rope.found("mrope_section"), "three whole numbers")
    })
}

fn delta(text: &Fields<'_>) -> Result<Delta> {
    let gate = match text.text("output_gate_type")? {
        Some("sigmoid") => Gate::Sigmoid,
        // Null or absent falls back to hidden_act, which has been checked to be silu.
        None | Some("silu" | "swish") => Gate::Silu,
        Some(_) => {
            let found = text.found("output_gate_type");
            return Err(text.bad("output_gate_type", &found, "sigmoid or silu"));
        }
    };
    Ok(Delta {
        key_heads: text.size_or("linear_num_key_heads", 16)?,
        value_heads: text.size_or("linear_num_value_heads", 32)?,
        key_dim: text.size_or("linear_key_head_dim", 128)?,
        value_dim: text.size_or("linear_value_head_dim", 128)?,
        conv_kernel: text.size_or("linear_conv_kernel_dim", 4)?,
        gate,
    })
}

fn moe(text: &Fields<'_>) -> Result<Moe> {
    Ok(Moe {
        experts: text.size_or("num_experts", 512)?,
        top_k: text.size_or("num_experts_per_tok", 10)?,
        width: text.size("moe_intermediate_size")?,
        shared_width: text.size("shared_expert_intermediate_size")?,
        norm_topk: text.flag("norm_topk_prob")?.unwrap_or(true),
    })
}

fn ple(text: &Fields<'_>, hidden: usize) -> Result<Option<Ple>> {
    let ids = text.list("ple_layer_ids")?.unwrap_or_default();
    if ids.is_empty() {
        return Ok(None);
    }
    // One-based in the file, zero-based everywhere else.
    let zero_based = |v: &Value| (v.as_u64()?.checked_sub(1)).map(|n| n as usize);
    let layers: Option<BTreeSet<usize>> = ids.iter().map(zero_based).collect();
    let Some(layers) = layers else {
        let found = text.found("ple_layer_ids");
        return Err(text.bad("ple_layer_ids", &found, "whole numbers from 1"));
    };
    Ok(Some(Ple {
        layers: layers.into_iter().collect(),
        embed_dim: text.size_or("ple_embed_dim", hidden)?,
        conv_kernel: text.size_or("ple_conv_kernel_size", 4)?,
        ngram: text.size_or("ngram_size", 3)?,
        heads_per_ngram: text.size_or("heads_per_ngram", 8)?,
        vocab_base: text.whole("ngram_vocab_size_base")?.unwrap_or(20_000_000),
        divisor: text.whole("make_ngram_vocab_size_divisible_by")?.unwrap_or(128),
        seed: text.whole("seed")?.unwrap_or(1234),
    }))
}
