//! GGUF export, read back by a reader of its own.

use cherenkov_format::gguf::{self, Options, Report, Type};
use cherenkov_format::pack::Precision;
use cherenkov_format::progress::Silent;
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_format::qwen4_exp::hash::HashTable;
use cherenkov_format::synth::{self, Preset, geometry};
use cherenkov_format::{Error, Projection, Store};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// A model with more value heads than key heads, and every part of the family.
fn little() -> Config {
    let mut c = Preset::Small.config();
    geometry::set_layers(&mut c, 3);
    geometry::set_hidden(&mut c, 512);
    geometry::set_vocab(&mut c, 300);
    (c.delta.key_heads, c.delta.value_heads) = (2, 6);
    (c.delta.key_dim, c.delta.value_dim) = (64, 64);
    (c.moe.experts, c.moe.top_k, c.moe.width, c.hyper.rank) = (5, 2, 64, 32);
    c.ple.as_mut().unwrap().vocab_base = 50;
    c
}

struct Made {
    _dir: tempfile::TempDir,
    store: PathBuf,
    out: PathBuf,
}

fn made(bits: u32, config: Config) -> Made {
    let dir = tempfile::tempdir().unwrap();
    let precision = Precision::try_from(bits).unwrap();
    let mixed = synth::Options::new(config);
    let options =
        synth::Options { experts: precision, dense: precision, ngram: precision, ..mixed };
    let (store, out) = (dir.path().join("store"), dir.path().join("x.gguf"));
    synth::store(&store, &options, &mut Silent).unwrap();
    Made { _dir: dir, store, out }
}

fn options(experts: Type, dense: Type) -> Options {
    Options { experts, dense, ngram: experts, replace: false, threads: None }
}

fn export(from: &Path, out: &Path, options: &Options) -> Result<Report, Error> {
    gguf::export(from, out, options, &mut Silent)
}

/// A file, understood.
struct Read {
    meta: BTreeMap<String, Vec<u8>>,
    tensors: BTreeMap<String, (Vec<u64>, u32, Vec<u8>)>,
}

struct Cursor<'a>(&'a [u8], usize);

impl Cursor<'_> {
    fn take(&mut self, n: usize) -> Vec<u8> {
        self.1 += n;
        self.0[self.1 - n..self.1].to_vec()
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take(8).try_into().unwrap())
    }

    fn text(&mut self) -> String {
        let n = self.u64() as usize;
        String::from_utf8(self.take(n)).unwrap()
    }

    /// The bytes of a value of this kind; texts without their lengths.
    fn value(&mut self, kind: u32) -> Vec<u8> {
        match kind {
            0 | 1 | 7 => self.take(1),
            2 | 3 => self.take(2),
            4..=6 => self.take(4),
            10..=12 => self.take(8),
            8 => self.text().into_bytes(),
            9 => {
                let (kind, n) = (self.u32(), self.u64());
                (0..n).flat_map(|_| self.value(kind)).collect()
            }
            other => panic!("kind {other}"),
        }
    }
}

fn read(path: &Path) -> Read {
    let bytes = fs::read(path).unwrap();
    let mut c = Cursor(&bytes, 0);
    assert_eq!((c.take(4), c.u32()), (b"GGUF".to_vec(), 3));
    let (tensors, entries) = (c.u64(), c.u64());
    let meta = (0..entries).map(|_| {
        let key = c.text();
        let kind = c.u32();
        (key, c.value(kind))
    });
    let meta = meta.collect();
    let infos: Vec<_> = (0..tensors)
        .map(|_| {
            let name = c.text();
            let dims: Vec<u64> = (0..c.u32()).map(|_| c.u64()).collect();
            (name, dims, c.u32(), c.u64() as usize)
        })
        .collect();
    let start = c.1.next_multiple_of(32);
    let mut end = start;
    let tensors = infos.into_iter().map(|(name, dims, kind, offset)| {
        let count = dims.iter().product::<u64>() as usize;
        let len = match kind {
            0 => count * 4,
            1 | 30 => count * 2,
            2 => count / 32 * 18,
            3 => count / 32 * 20,
            8 => count / 32 * 34,
            other => panic!("type {other}"),
        };
        assert_eq!(start + offset, end, "{name}");
        end = (end + len).next_multiple_of(32);
        let bytes = bytes[start + offset..][..len].to_vec();
        (name, (dims, kind, bytes))
    });
    let tensors = tensors.collect();
    assert_eq!(end, bytes.len());
    Read { meta, tensors }
}

fn half(b: &[u8]) -> f32 {
    cherenkov_format::float::f16_to_f32(u16::from_le_bytes([b[0], b[1]]))
}

impl Read {
    fn u32(&self, key: &str) -> u32 {
        u32::from_le_bytes(self.meta[&format!("qwen4exp.{key}")][..].try_into().unwrap())
    }

    fn values(&self, name: &str) -> Vec<f32> {
        let (_, kind, bytes) = &self.tensors[name];
        match kind {
            0 => bytes.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
            30 => bytes
                .chunks(2)
                .map(|b| f32::from_bits(u32::from(b[1]) << 24 | u32::from(b[0]) << 16))
                .collect(),
            8 => bytes
                .chunks(34)
                .flat_map(|b| {
                    b[2..].iter().map(|&q| half(b) * f32::from(q as i8)).collect::<Vec<_>>()
                })
                .collect(),
            2 | 3 => {
                let (size, at) = if *kind == 2 { (18, 2) } else { (20, 4) };
                let low = |b: &[u8]| if *kind == 2 { -8.0 * half(b) } else { half(&b[2..]) };
                let block = |b: &[u8]| {
                    let nibbles =
                        b[at..].iter().map(|q| q & 15).chain(b[at..].iter().map(|q| q >> 4));
                    nibbles.map(|q| half(b) * f32::from(q) + low(b)).collect::<Vec<_>>()
                };
                bytes.chunks(size).flat_map(block).collect()
            }
            other => panic!("{other}"),
        }
    }
}

/// Groups of value heads become rounds over key heads: `[k][i][size]` to `[i][k][size]`.
fn tiled(values: &[f32], keys: usize, shared: usize, size: usize) -> Vec<f32> {
    let mut out = Vec::new();
    for i in 0..shared {
        for k in 0..keys {
            out.extend_from_slice(&values[(k * shared + i) * size..][..size]);
        }
    }
    out
}

fn check_values(store: &Store, file: &Read) {
    let c = store.config();
    let (h, d) = (c.hidden, &c.delta);
    let ours = |name: &str| store.matrix(name).unwrap().view().to_f32();
    let same = |theirs: &str, values: Vec<f32>| assert!(file.values(theirs) == values, "{theirs}");
    same("token_embd.weight", ours("embed_tokens"));
    same("output.weight", ours("lm_head"));
    same("output_hc_up.weight", ours("hyper_connection_mixer.input_mix_weight_up"));
    same("blk.1.hc_ffn_inject.weight", ours("layers.1.mlp_hyper_connection.block_inject_weight"));
    same("blk.2.attn_q.weight", ours("layers.2.self_attn.q_proj"));
    same("blk.2.attn_q_norm.weight", ours("layers.2.self_attn.q_norm"));
    same("blk.1.ple_conv1d.weight", ours("layers.1.ple.conv1d"));
    let index = ours("layers.2.self_attn.indexer.index_qk_proj");
    let (q, k) = index.split_at(c.attention.index_heads * c.attention.index_dim * h);
    same("blk.2.indexer.q_proj.weight", q.to_vec());
    same("blk.2.indexer.k_proj.weight", k.to_vec());
    let at = |name: &str| ours(&format!("layers.0.linear_attn.{name}"));
    let qkv = at("in_proj_qkv");
    let (qk, v) = qkv.split_at(2 * 2 * 64 * h);
    same("blk.0.attn_qkv.weight", [qk.to_vec(), tiled(v, 2, 3, 64 * h)].concat());
    let taps = at("conv1d");
    let (qk, v) = taps.split_at(2 * 2 * 64 * d.conv_kernel);
    same("blk.0.ssm_conv1d.weight", [qk.to_vec(), tiled(v, 2, 3, 64 * d.conv_kernel)].concat());
    same("blk.0.attn_gate.weight", tiled(&at("in_proj_z"), 2, 3, 64 * h));
    same("blk.0.ssm_alpha.weight", tiled(&at("in_proj_a"), 2, 3, h));
    same("blk.0.ssm_beta.weight", tiled(&at("in_proj_b"), 2, 3, h));
    same("blk.0.ssm_dt.bias", tiled(&at("dt_bias"), 2, 3, 1));
    let decay = |a: f32| (-f64::from(a).exp()) as f32;
    same("blk.0.ssm_a", tiled(&at("A_log"), 2, 3, 1).into_iter().map(decay).collect());
    let rows = at("out_proj");
    let rows = rows.chunks(d.value_width()).flat_map(|row| tiled(row, 2, 3, 64));
    same("blk.0.ssm_out.weight", rows.collect());
    let records: Vec<Vec<u8>> = (0..c.moe.experts)
        .map(|expert| {
            let mut record = vec![0; store.experts().record_bytes() as usize];
            store.experts().read(1, expert, &mut record).unwrap();
            record
        })
        .collect();
    for (which, name) in
        [(Projection::Gate, "gate"), (Projection::Up, "up"), (Projection::Down, "down")]
    {
        let layout = store.experts().layout();
        let all = records.iter().flat_map(|r| layout.matrix(r, which).to_f32());
        same(&format!("blk.1.ffn_{name}_exps.weight"), all.collect());
    }
    let table = store.ngram(0).unwrap();
    let mut row = vec![0f32; table.width()];
    let rows = (0..table.rows()).flat_map(|r| {
        table.read_row(r, &mut row);
        row.clone()
    });
    same("per_layer_token_embd.weight", rows.collect());
}

#[test]
fn floats_hold_every_weight_exactly() {
    for (bits, kind) in [(16, Type::Bf16), (16, Type::F32), (3, Type::F32)] {
        let made = made(bits, little());
        let report = export(&made.store, &made.out, &options(kind, kind)).unwrap();
        for (part, tally) in &report.parts {
            assert!(tally.values > 0 && tally.error == 0.0, "{part} {tally:?}");
        }
        let file = read(&made.out);
        assert_eq!(
            (file.tensors.len(), fs::metadata(&made.out).unwrap().len()),
            (report.tensors, report.bytes)
        );
        check_values(&Store::open(&made.store).unwrap(), &file);
    }
}

#[test]
fn codes_of_synthetic_models_are_the_same_weights_in_blocks() {
    for (bits, kind) in [(4, Type::Q4_0), (4, Type::Q4_1), (8, Type::Q8_0), (4, Type::Q8_0)] {
        let made = made(bits, little());
        // Mixing projections have 8 bits at least.
        let dense = if bits == 4 { Type::Q8_0 } else { kind };
        let report = export(&made.store, &made.out, &options(kind, dense)).unwrap();
        for (part, tally) in &report.parts {
            assert_eq!((tally.error, tally.requantised), (0.0, 0), "{part} {tally:?}");
        }
        let file = read(&made.out);
        assert_eq!(file.tensors["blk.1.ffn_up_exps.weight"].1, kind.id());
        check_values(&Store::open(&made.store).unwrap(), &file);
    }
}

#[test]
fn what_is_quantised_anew_is_counted() {
    let made = made(8, little());
    let report = export(&made.store, &made.out, &options(Type::Q4_0, Type::Q8_0)).unwrap();
    let [dense, experts, _] = report.parts.map(|(_, tally)| tally);
    assert_eq!(dense.error, 0.0);
    assert!(experts.kept == 0 && experts.requantised > 0);
    let rms = experts.relative_rms();
    assert!((0.03..0.12).contains(&rms), "{rms}");
}

#[test]
fn the_metadata_says_the_geometry() {
    let made = made(4, little());
    export(&made.store, &made.out, &options(Type::Q4_0, Type::Q8_0)).unwrap();
    let (file, c) = (read(&made.out), little());
    assert_eq!(file.meta["general.architecture"], b"qwen4exp");
    for (key, value) in [
        ("block_count", 3),
        ("embedding_length", 512),
        ("expert_count", 5),
        ("expert_used_count", 2),
        ("ssm.group_count", 2),
        ("ssm.time_step_rank", 6),
        ("ssm.inner_size", 384),
        ("attention.indexer.top_k", 512),
        ("full_attention_interval", 3),
        ("embedding_length_per_layer_input", 32),
        ("ple.eos_token_id", c.eos_hash),
    ] {
        assert_eq!(file.u32(key), value, "{key}");
    }
    assert_eq!(file.meta["qwen4exp.attention.recurrent_layers"], [1, 1, 0]);
    let hash = &HashTable::all(&c)[0];
    let bytes: Vec<u8> = hash.multipliers.iter().flat_map(|m| m.to_le_bytes()).collect();
    assert_eq!(file.meta["qwen4exp.ple.layer_multipliers"], bytes);
    assert_eq!(file.meta["tokenizer.ggml.pre"], b"qwen35");
    assert_eq!(file.meta["tokenizer.ggml.token_type"].len(), 4 * 300);
    assert_eq!(file.meta["tokenizer.ggml.eos_token_id"], 297u32.to_le_bytes());
    assert!(file.meta["tokenizer.ggml.merges"].starts_with(b"a aa b"));
    assert_eq!(file.tensors["blk.0.ssm_norm.weight"].0, [64]);
    assert_eq!(file.tensors["blk.0.ffn_down_exps.weight"].0, [64, 512, 5]);
}

#[test]
fn a_checkpoint_gives_the_file_of_its_exact_store() {
    let made = made(16, little());
    let dir = tempfile::tempdir().unwrap();
    let checkpoint = dir.path().join("store");
    synth::checkpoint(&checkpoint, &synth::Options::new(little()), &mut Silent).unwrap();
    let out = dir.path().join("y.gguf");
    let options = options(Type::Q4_1, Type::F16);
    export(&made.store, &made.out, &options).unwrap();
    export(&checkpoint, &out, &options).unwrap();
    assert!(fs::read(&made.out).unwrap() == fs::read(&out).unwrap());
}

#[test]
fn what_the_architecture_cannot_say_is_refused() {
    let refuse = |change: &dyn Fn(&mut Config), words: &str| {
        let mut config = little();
        change(&mut config);
        let made = made(4, config);
        let error = export(&made.store, &made.out, &options(Type::Q4_0, Type::Q8_0)).unwrap_err();
        assert!(error.to_string().contains(words), "{error}");
        assert!(!made.out.exists());
    };
    refuse(&|c| c.delta.gate = cherenkov_format::qwen4_exp::config::Gate::Silu, "silu output gate");
    refuse(&|c| c.moe.norm_topk = false, "not divided by their sum");
    refuse(&|c| c.delta.value_dim = 32, "64 keys and 32 values");
    refuse(&|c| c.ple.as_mut().unwrap().layers = vec![0, 1], "several n-gram layers");
}

#[test]
fn files_are_replaced_only_when_told_and_damage_is_found() {
    let made = made(4, little());
    let options = options(Type::Q4_0, Type::Q8_0);
    export(&made.store, &made.out, &options).unwrap();
    let error = export(&made.store, &made.out, &options).unwrap_err();
    assert!(error.to_string().contains("something there already"), "{error}");
    export(&made.store, &made.out, &Options { replace: true, ..options.clone() }).unwrap();
    let experts = made.store.join("experts.bin");
    let mut bytes = fs::read(&experts).unwrap();
    bytes[5000] ^= 1;
    fs::write(&experts, bytes).unwrap();
    let again = made.out.with_file_name("again.gguf");
    let error = export(&made.store, &again, &options).unwrap_err();
    assert!(error.to_string().contains("another checksum"), "{error}");
    let left: Vec<_> = fs::read_dir(made.out.parent().unwrap())
        .unwrap()
        .flatten()
        .map(|e| e.file_name())
        .collect();
    assert_eq!(left.len(), 2, "{left:?}");
}
