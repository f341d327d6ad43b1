//! A tiny checkpoint of the whole family, written with writers of its own.
//!
//! Owns: geometry, safetensors and MLX writers of the tests. Never: code under test, except the list
//! of canonical names.

#![allow(dead_code)]

use cherenkov_format::checkpoint::json::{self, Choices};
use cherenkov_format::checksum;
use cherenkov_format::float::{bf16_to_f32, f32_to_bf16, f32_to_f16};
use cherenkov_format::pack::{self, Options, Precision};
use cherenkov_format::progress::Silent;
use cherenkov_format::qwen4_exp::config::{Config, HiddenNorm};
use cherenkov_format::qwen4_exp::hash::HashTable;
use cherenkov_format::qwen4_exp::tensors::{self, Kind};
use cherenkov_format::{Error, Store, verify};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// What most tests choose.
pub const CHOICES: Choices = Choices { hidden_norm: HiddenNorm::Global, eos_hash: None };

/// The tiny checkpoint and its configuration.
pub fn tiny() -> (Tiny, Config) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("config.json"), text_config().to_string()).unwrap();
    let config = json::read(dir.path(), CHOICES).unwrap().config;
    (Tiny::new(&config), config)
}

/// Everything at 16 bits.
pub fn exact() -> Options {
    let bf16 = Precision::Bf16;
    Options { experts: bf16, dense: bf16, ngram: bf16, ..Options::default() }
}

/// A tensor to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Tensor {
    pub name: String,
    pub dtype: &'static str,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

/// Small repeatable numbers.
pub struct Noise(pub u64);

impl Noise {
    pub fn bits(&mut self) -> u32 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as u32
    }

    /// Within -0.5..0.5.
    pub fn unit(&mut self) -> f32 {
        self.bits() as f32 / (1u64 << 31) as f32 - 0.5
    }
}

pub fn floats(name: &str, dtype: &'static str, shape: Vec<usize>, values: &[f32]) -> Tensor {
    let bytes = match dtype {
        "BF16" => values.iter().flat_map(|&v| f32_to_bf16(v).to_le_bytes()).collect(),
        "F16" => values.iter().flat_map(|&v| f32_to_f16(v).to_le_bytes()).collect(),
        "F32" => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
        other => panic!("{other}"),
    };
    assert_eq!(shape.iter().product::<usize>(), values.len());
    Tensor { name: name.into(), dtype, shape, bytes }
}

pub fn values(t: &Tensor) -> Vec<f32> {
    match t.dtype {
        "BF16" => {
            t.bytes.chunks(2).map(|b| bf16_to_f32(u16::from_le_bytes([b[0], b[1]]))).collect()
        }
        "F32" => t.bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        other => panic!("{other}"),
    }
}

/// The configuration file of the tiny model, flat.
pub fn text_config() -> Value {
    let text = r#"{
        "model_type": "qwen4_exp_text", "hidden_size": 64, "num_hidden_layers": 3, "vocab_size": 96,
        "rms_norm_eps": 1e-6, "max_position_embeddings": 512, "tie_word_embeddings": false,
        "layer_types": ["linear_attention", "linear_attention", "full_attention"],
        "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "attention_bias": false,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25, "rope_type": "default",
            "mrope_section": [2, 1, 1], "mrope_interleaved": true},
        "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 32, "indexer_budget": 8,
        "indexer_compress_ratio": 4, "linear_num_key_heads": 1, "linear_num_value_heads": 2,
        "linear_key_head_dim": 32, "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
        "output_gate_type": "sigmoid", "hidden_act": "silu", "num_experts": 3, "num_experts_per_tok": 2,
        "moe_intermediate_size": 32, "shared_expert_intermediate_size": 32, "hc_count": 2, "hc_lowrank": 32,
        "ple_layer_ids": [2], "ple_embed_dim": 64, "ple_conv_kernel_size": 4, "ngram_size": 3,
        "heads_per_ngram": 1, "ngram_vocab_size_base": 50, "make_ngram_vocab_size_divisible_by": 8,
        "seed": 1234, "split_ngram_parts": 2, "mtp_num_hidden_layers": 1, "eos_token_id": 90
    }"#;
    serde_json::from_str(text).unwrap()
}

/// A checkpoint in memory.
#[derive(Clone, Debug)]
pub struct Tiny {
    pub config: Value,
    pub generation: Value,
    pub tensors: BTreeMap<String, Tensor>,
}

/// The official spelling of a canonical name.
pub fn official(name: &str) -> String {
    let suffix = if name.ends_with("A_log") || name.ends_with("dt_bias") { "" } else { ".weight" };
    let prefix =
        if name.starts_with("mtp.") || name == "lm_head" { "" } else { "model.language_model." };
    format!("{prefix}{name}{suffix}")
}

pub fn official_shape(spec: &tensors::TensorSpec) -> Vec<usize> {
    if spec.name.ends_with("conv1d") {
        vec![spec.rows, 1, spec.cols]
    } else if spec.rows == 1 && matches!(spec.kind, Kind::Norm | Kind::Plain) {
        vec![spec.cols]
    } else {
        vec![spec.rows, spec.cols]
    }
}

impl Tiny {
    /// bf16, official layout.
    pub fn new(config: &Config) -> Self {
        let mut noise = Noise(11);
        let mut tiny = Self {
            config: json!({"model_type": "qwen4_exp", "architectures": ["Qwen4ExpForConditionalGeneration"],
                "text_config": text_config(), "vision_config": {"depth": 0}}),
            generation: json!({"eos_token_id": [90, 91], "pad_token_id": 90}),
            tensors: BTreeMap::new(),
        };
        for spec in tensors::dense(config) {
            let count = spec.rows * spec.cols;
            let values: Vec<f32> = (0..count).map(|_| noise.unit() * 0.2).collect();
            tiny.put(floats(&official(&spec.name), "BF16", official_shape(&spec), &values));
        }
        let (e, i, h) = (config.moe.experts, config.moe.width, config.hidden);
        for layer in 0..config.expert_layers() {
            let at = if layer < config.layers.len() {
                format!("model.language_model.layers.{layer}.mlp.experts")
            } else {
                "mtp.layers.0.mlp.experts".into()
            };
            let mut stacked = |name: &str, shape: Vec<usize>| {
                let values: Vec<f32> =
                    (0..shape.iter().product()).map(|_| noise.unit() * 0.1).collect();
                floats(&format!("{at}.{name}"), "BF16", shape, &values)
            };
            let (inner, outer) =
                (stacked("gate_up_proj", vec![e, 2 * i, h]), stacked("down_proj", vec![e, h, i]));
            tiny.put(inner);
            tiny.put(outer);
        }
        let table = &HashTable::all(config)[0];
        let at = "model.language_model.layers.1.ple.ple_embedding";
        for (name, list) in [
            ("layer_multipliers", &table.multipliers),
            ("ngram_heads_vocab_sizes", &table.sizes),
            ("ngram_heads_offsets", &table.offsets),
        ] {
            let bytes = list.iter().flat_map(|v| v.to_le_bytes()).collect();
            tiny.put(Tensor {
                name: format!("{at}.{name}"),
                dtype: "I64",
                shape: vec![list.len()],
                bytes,
            });
        }
        let half = table.rows as usize / 2;
        for k in 0..2 {
            let values: Vec<f32> = (0..half * 32).map(|_| noise.unit()).collect();
            tiny.put(floats(
                &format!("{at}.ngram_embedding.shard_{k}.weight"),
                "BF16",
                vec![half, 32],
                &values,
            ));
        }
        tiny
    }

    pub fn put(&mut self, tensor: Tensor) {
        self.tensors.insert(tensor.name.clone(), tensor);
    }

    /// Applies `change` to the text configuration.
    pub fn with_config(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.config["text_config"]);
        self
    }

    /// Gives every tensor the name that `rename` makes of it.
    pub fn renamed(mut self, rename: impl Fn(&str) -> String) -> Self {
        let old = std::mem::take(&mut self.tensors);
        for (name, mut tensor) in old {
            tensor.name = rename(&name);
            self.put(tensor);
        }
        self
    }

    /// Changes each tensor into none, one or more.
    pub fn mapped(mut self, change: impl Fn(Tensor) -> Vec<Tensor>) -> Self {
        let old = std::mem::take(&mut self.tensors);
        for (_, tensor) in old {
            change(tensor).into_iter().for_each(|t| self.put(t));
        }
        self
    }

    /// Writes the files that every layout has.
    pub fn write_json(&self, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join("config.json"), self.config.to_string()).unwrap();
        fs::write(dir.join("generation_config.json"), self.generation.to_string()).unwrap();
        fs::write(dir.join("tokenizer.json"), "{\"model\": {}}").unwrap();
        fs::write(dir.join("chat_template.jinja"), "{{ messages }}").unwrap();
    }

    /// One file.
    pub fn write(&self, dir: &Path) {
        self.write_json(dir);
        let all: Vec<&Tensor> = self.tensors.values().collect();
        fs::write(dir.join("model.safetensors"), safetensors(&all)).unwrap();
    }

    /// `count` shards with an index.
    pub fn write_sharded(&self, dir: &Path, count: usize) {
        self.write_json(dir);
        let all: Vec<&Tensor> = self.tensors.values().collect();
        let mut map = serde_json::Map::new();
        for (k, part) in all.chunks(all.len().div_ceil(count)).enumerate() {
            let name = format!("model-{:05}-of-{count:05}.safetensors", k + 1);
            fs::write(dir.join(&name), safetensors(part)).unwrap();
            part.iter().for_each(|t| drop(map.insert(t.name.clone(), json!(name))));
        }
        let index = json!({"metadata": {"total_size": 0}, "weight_map": map});
        fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    }
}

/// The bytes of a safetensors file.
pub fn safetensors(tensors: &[&Tensor]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    header.insert("__metadata__".into(), json!({"format": "pt"}));
    let mut at = 0;
    for t in tensors {
        let end = at + t.bytes.len();
        header.insert(
            t.name.clone(),
            json!({"dtype": t.dtype, "shape": t.shape, "data_offsets": [at, end]}),
        );
        at = end;
    }
    let mut text = Value::Object(header).to_string();
    while !(text.len() + 8).is_multiple_of(8) {
        text.push(' ');
    }
    let mut bytes = (text.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(text.as_bytes());
    tensors.iter().for_each(|t| bytes.extend_from_slice(&t.bytes));
    bytes
}

/// An affine matrix as MLX would hold it, with its codes.
#[derive(Clone, Debug)]
pub struct Mlx {
    pub weight: Tensor,
    pub scales: Tensor,
    pub biases: Tensor,
    pub codes: Vec<u8>,
}

/// Packs as MLX does: words of 32 bits at 2, 4 and 8 bits; little-endian packs of whole bytes else.
fn mlx_pack(codes: &[u8], bits: usize) -> Vec<u8> {
    if 32 % bits == 0 {
        let words = codes.chunks(32 / bits);
        let word =
            |c: &[u8]| c.iter().enumerate().fold(0u32, |w, (i, &c)| w | u32::from(c) << (bits * i));
        return words.flat_map(|c| word(c).to_le_bytes()).collect();
    }
    let (per_pack, bytes) = match bits {
        3 => (8, 3),
        5 => (8, 5),
        6 => (4, 3),
        other => panic!("{other}"),
    };
    let pack =
        |c: &[u8]| c.iter().enumerate().fold(0u64, |w, (i, &c)| w | u64::from(c) << (bits * i));
    codes.chunks(per_pack).flat_map(|c| pack(c).to_le_bytes()[..bytes].to_vec()).collect()
}

/// Quantises the last axis by the plain rule; scales and biases in `dtype`.
pub fn mlx(t: &Tensor, bits: usize, group: usize, dtype: &'static str) -> Mlx {
    let x = values(t);
    let max = ((1u32 << bits) - 1) as f32;
    let (mut codes, mut scales, mut biases) = (Vec::new(), Vec::new(), Vec::new());
    for values in x.chunks(group) {
        let lo = values.iter().copied().fold(f32::INFINITY, f32::min);
        let hi = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = bf16_to_f32(f32_to_bf16(((hi - lo) / max).max(1e-7)));
        let scale = if dtype == "BF16" { scale } else { ((hi - lo) / max).max(1e-4) };
        codes.extend(values.iter().map(|v| ((v - lo) / scale).round().clamp(0.0, max) as u8));
        scales.push(scale);
        biases.push(lo);
    }
    let base = t.name.strip_suffix(".weight").unwrap_or(&t.name).to_string();
    let (lead, cols) = (&t.shape[..t.shape.len() - 1], t.shape[t.shape.len() - 1]);
    let with = |last: usize| lead.iter().copied().chain([last]).collect::<Vec<_>>();
    Mlx {
        weight: Tensor {
            name: format!("{base}.weight"),
            dtype: "U32",
            shape: with(cols * bits / 32),
            bytes: mlx_pack(&codes, bits),
        },
        scales: floats(&format!("{base}.scales"), dtype, with(cols / group), &scales),
        biases: floats(&format!("{base}.biases"), dtype, with(cols / group), &biases),
        codes,
    }
}

/// Names, sizes and digests of all files of a directory.
pub fn contents(dir: &Path) -> BTreeMap<String, (usize, u64)> {
    fs::read_dir(dir)
        .unwrap()
        .map(|e| {
            let path = e.unwrap().path();
            let bytes = fs::read(&path).unwrap();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, (bytes.len(), checksum(&bytes)))
        })
        .collect()
}

/// A packed store that lives as long as this.
pub struct Packed {
    pub _dir: TempDir,
    pub out: PathBuf,
    pub report: pack::Report,
}

/// Packs what `write` writes; the store must verify.
pub fn pack_with(options: &Options, write: impl FnOnce(&Path)) -> Result<Packed, Error> {
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    write(&src);
    let report = pack::pack(&src, &out, options, &mut Silent)?;
    let checked = verify::verify(&out, &mut Silent).unwrap();
    assert!(checked.strays.is_empty(), "{:?}", checked.strays);
    assert_eq!(checked.bytes, report.bytes);
    Ok(Packed { _dir: dir, out, report })
}

/// Opens a packed store.
pub fn open(packed: &Packed) -> Store {
    Store::open(&packed.out).unwrap()
}

/// gate_up_proj cut into gate_proj and up_proj, all under `switch_mlp`.
pub fn split_switch(t: Tensor) -> Vec<Tensor> {
    if !t.name.contains(".mlp.experts.") {
        return vec![t];
    }
    let base = t.name.replace(".experts.", ".switch_mlp.");
    if t.name.ends_with("down_proj") {
        return vec![Tensor { name: format!("{base}.weight"), ..t }];
    }
    let (rows, half) = (t.shape[1], t.shape[1] / 2);
    let row_bytes = t.bytes.len() / (t.shape[0] * rows);
    let part = |which: &str, first: usize| Tensor {
        name: format!("{}.weight", base.replace("gate_up_proj", which)),
        dtype: t.dtype,
        shape: vec![t.shape[0], half, t.shape[2]],
        bytes: (0..t.shape[0])
            .flat_map(|e| t.bytes[(e * rows + first) * row_bytes..][..half * row_bytes].to_vec())
            .collect(),
    };
    vec![part("gate_proj", 0), part("up_proj", half)]
}

/// Packing must fail with all these parts in its message.
pub fn check_refused(what: &str, source: &Tiny, parts: &[&str]) {
    let error = match pack_with(&exact(), |d| source.write(d)) {
        Ok(_) => panic!("{what}: packed"),
        Err(e) => e.to_string(),
    };
    for part in parts {
        assert!(error.contains(part), "{what}: {error:?} lacks {part:?}");
    }
}
