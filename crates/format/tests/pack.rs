//! Packing: every layout of a checkpoint, exactness, norms, refusals.

mod common;

use cherenkov_format::norms::{Convention, NormGroup};
use cherenkov_format::pack::{self, DraftHead, ExtraTensors, Options, Precision};
use cherenkov_format::progress::Silent;
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_format::qwen4_exp::tensors::{self, Kind};
use cherenkov_format::{
    Bits, Encoding, Error, Group, Projection, RowEncoding, Store, tile16, verify,
};
use common::*;
use std::fs;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

struct Packed {
    _dir: TempDir,
    out: PathBuf,
    report: pack::Report,
}

fn pack_with(options: &Options, write: impl FnOnce(&Path)) -> Result<Packed, Error> {
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    write(&src);
    let report = pack::pack(&src, &out, options, &mut Silent)?;
    let checked = verify::verify(&out, &mut Silent).unwrap();
    assert!(checked.strays.is_empty(), "{:?}", checked.strays);
    assert_eq!(checked.bytes, report.bytes);
    Ok(Packed { _dir: dir, out, report })
}

fn open(packed: &Packed) -> Store {
    Store::open(&packed.out).unwrap()
}

/// Every number of an exact store is the checkpoint's, norms with their 1.
fn assert_exact(store: &Store, tiny: &Tiny) {
    for spec in tensors::dense(store.config()) {
        let mut want = values(&tiny.tensors[&official(&spec.name)]);
        if spec.kind == Kind::Norm {
            want.iter_mut().for_each(|w| *w += 1.0);
        }
        assert_eq!(store.matrix(&spec.name).unwrap().view().to_f32(), want, "{}", spec.name);
    }
    let layout = store.experts().layout();
    let (i, h) = (layout.width(), layout.hidden());
    let mut record = vec![0; layout.bytes()];
    for layer in 0..store.experts().layers() {
        let at = [
            "model.language_model.layers.0",
            "model.language_model.layers.1",
            "model.language_model.layers.2",
            "mtp.layers.0",
        ][layer];
        let both = values(&tiny.tensors[&format!("{at}.mlp.experts.gate_up_proj")]);
        let down = values(&tiny.tensors[&format!("{at}.mlp.experts.down_proj")]);
        for e in 0..store.experts().per_layer() {
            store.experts().read(layer, e, &mut record).unwrap();
            let got = |which| layout.matrix(&record, which).to_f32();
            let both = &both[e * 2 * i * h..][..2 * i * h];
            assert_eq!(got(Projection::Gate), both[..i * h]);
            assert_eq!(got(Projection::Up), both[i * h..]);
            assert_eq!(got(Projection::Down), down[e * i * h..][..i * h]);
        }
    }
    let at = "model.language_model.layers.1.ple.ple_embedding.ngram_embedding";
    let mut rows = values(&tiny.tensors[&format!("{at}.shard_0.weight")]);
    rows.extend(values(&tiny.tensors[&format!("{at}.shard_1.weight")]));
    let table = store.ngram(0).unwrap();
    assert_eq!(table.rows() as usize * table.width(), rows.len());
    let mut row = vec![0.0; table.width()];
    for (r, want) in rows.chunks(table.width()).enumerate() {
        table.read_row(r as u64, &mut row);
        assert_eq!(row, want);
    }
}

#[test]
fn sixteen_bits_are_exact() {
    let (tiny, _) = tiny();
    let packed = pack_with(&exact(), |d| tiny.write(d)).unwrap();
    let store = open(&packed);
    assert_exact(&store, &tiny);
    assert_eq!(store.ngram(0).unwrap().encoding(), RowEncoding::Bf16);
    assert_eq!(store.config().eos_hash, 90);
    assert_eq!(store.config().eos_stop, [90, 91]);
    assert!(packed.report.norms.iter().all(|d| d.convention == Convention::Raw));
    assert!(packed.report.quality.iter().all(|q| q.relative_rms == 0.0));
    assert_eq!(fs::read(packed.out.join("chat_template.jinja")).unwrap(), b"{{ messages }}");
}

#[test]
fn every_layout_gives_the_same_store() {
    let (tiny, _) = tiny();
    let want = contents(&pack_with(&exact(), |d| tiny.write(d)).unwrap().out);
    let check = |what: &str, write: &dyn Fn(&Path)| {
        let packed = pack_with(&exact(), write).unwrap_or_else(|e| panic!("{what}: {e}"));
        let got = contents(&packed.out);
        for (name, bytes) in &want {
            assert!(name == "manifest.json" || &got[name] == bytes, "{what}: {name}");
        }
        assert_exact(&open(&packed), &tiny);
    };
    check("sharded", &|d| tiny.write_sharded(d, 4));
    check("flat config", &|d| {
        let mut flat = tiny.clone();
        flat.config = text_config();
        flat.write(d);
    });
    let stem = |name: &str| name.strip_prefix("model.language_model.").unwrap_or(name).to_string();
    for prefix in ["", "model.", "language_model.model.", "language_model."] {
        let renamed = tiny.clone().renamed(|name| {
            let bare = stem(name);
            if bare.starts_with("mtp.") { bare } else { format!("{prefix}{bare}") }
        });
        check(prefix, &|d| renamed.write(d));
    }
    let moved = tiny.clone().mapped(|mut t| {
        if t.name.contains("conv1d") {
            t.shape = vec![t.shape[0], t.shape[2], 1];
        }
        t.name = t.name.replace("shard_", "shards.");
        vec![t]
    });
    check("moved axes", &|d| moved.write(d));
    let split = tiny.clone().mapped(split_switch);
    check("switch_mlp", &|d| split.write(d));
    let each = tiny.clone().mapped(split_each);
    check("one tensor per expert", &|d| each.write(d));
}

/// gate_up_proj cut into gate_proj and up_proj, all under `switch_mlp`.
fn split_switch(t: Tensor) -> Vec<Tensor> {
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

/// One tensor per expert and projection.
fn split_each(t: Tensor) -> Vec<Tensor> {
    let stacked = split_switch(t);
    if !stacked[0].name.contains("switch_mlp") {
        return stacked;
    }
    let one = |t: &Tensor, e: usize| {
        let (head, which) = t.name.split_once(".switch_mlp.").unwrap();
        let size = t.bytes.len() / t.shape[0];
        Tensor {
            name: format!("{head}.experts.{e}.{which}"),
            dtype: t.dtype,
            shape: t.shape[1..].to_vec(),
            bytes: t.bytes[e * size..][..size].to_vec(),
        }
    };
    stacked.iter().flat_map(|t| (0..t.shape[0]).map(move |e| one(t, e))).collect()
}

#[test]
fn wider_floats_stay_exact() {
    let (tiny, _) = tiny();
    let wide = tiny.clone().mapped(|t| {
        if t.dtype != "BF16" {
            return vec![t];
        }
        // Half of the tensors get bits that bf16 lacks.
        let odd = t.name.len() % 2 == 0;
        let x: Vec<f32> = values(&t).iter().map(|v| if odd { v * 1.000_1 } else { *v }).collect();
        vec![floats(&t.name, "F32", t.shape, &x)]
    });
    let packed = pack_with(&exact(), |d| wide.write(d)).unwrap();
    let store = open(&packed);
    assert_exact(&store, &wide);
    for t in &store.manifest().dense.tensors {
        let odd = official(&t.name).len() % 2 == 0;
        let norm = t.rows == 1 && !t.name.ends_with("gate") || t.name.ends_with("conv1d");
        let want = if odd || norm { Encoding::F32 } else { Encoding::Bf16 };
        assert_eq!(t.encoding, want, "{}", t.name);
    }
}

#[test]
fn f16_sources_are_read() {
    let (tiny, _) = tiny();
    let half = tiny.clone().mapped(|t| {
        if t.dtype != "BF16" {
            return vec![t];
        }
        vec![floats(&t.name, "F16", t.shape.clone(), &values(&t))]
    });
    let store = pack_with(&Options::default(), |d| half.write(d)).unwrap();
    let (got, want) =
        (open(&store), open(&pack_with(&Options::default(), |d| tiny.write(d)).unwrap()));
    let max = |m: &[f32]| m.iter().fold(0f32, |a, b| a.max(b.abs()));
    for name in ["embed_tokens", "layers.0.linear_attn.in_proj_qkv", "layers.0.mlp.gate"] {
        let [a, b] = [&got, &want].map(|s| s.matrix(name).unwrap().view().to_f32());
        let d: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a - b).collect();
        assert!(max(&d) < 0.01 * max(&b), "{name}");
    }
}

/// Rewrites the quantisable tensors as MLX would; returns the codes by name.
fn to_mlx(
    tiny: &Tiny,
    config: &Config,
    bits: usize,
    group: usize,
    dtype: &'static str,
) -> (Tiny, Vec<(String, Mlx)>) {
    let mut all = Vec::new();
    let mut out = tiny.clone().mapped(split_switch);
    let mut names: Vec<String> = tensors::dense(config)
        .into_iter()
        .filter(|s| matches!(s.kind, Kind::Linear | Kind::Vocab) && s.cols % group == 0)
        .map(|s| official(&s.name))
        .collect();
    names.extend(
        out.tensors.keys().filter(|n| n.contains("switch_mlp") || n.contains("shard_")).cloned(),
    );
    for name in names {
        let t = out.tensors.remove(&name).unwrap();
        // n-gram rows and expert inner widths are 32 wide: their group is 32 always.
        let group = if t.shape[t.shape.len() - 1] % group == 0 { group } else { 32 };
        let m = mlx(&t, bits, group, dtype);
        [&m.weight, &m.scales, &m.biases].into_iter().for_each(|t| out.put(t.clone()));
        all.push((name, m));
    }
    out.config["quantization"] = serde_json::json!({"group_size": group, "bits": bits, "mode": "affine",
        "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}});
    (out, all)
}

fn codes_of(store: &Store, name: &str) -> (Vec<u8>, Vec<f32>) {
    let matrix = store.matrix(name).unwrap();
    let view = matrix.view();
    let Encoding::Tile16 { bits, group } = view.encoding() else { panic!("{name}") };
    let (size, groups) = (tile16::block_bytes(bits, group), view.cols() / group.get());
    let mut codes = Vec::new();
    for row in 0..view.rows() {
        for g in 0..groups {
            let mut part = vec![0; group.get()];
            let block = &view.bytes()[(row / 16 * groups + g) * size..][..size];
            tile16::get_row(block, bits, group, row % 16, &mut part);
            codes.extend(part);
        }
    }
    (codes, view.to_f32())
}

#[test]
fn mlx_codes_are_kept_bit_for_bit() {
    let (tiny, config) = tiny();
    for (bits, group) in [(2, 32), (3, 64), (4, 64), (4, 32), (4, 128), (5, 64), (6, 32), (8, 64)] {
        let (source, all) = to_mlx(&tiny, &config, bits, group, "BF16");
        let options = Options {
            experts: Precision::Bits(Bits::B8),
            ngram: Precision::Bits(Bits::B8),
            ..Options::default()
        };
        let packed = pack_with(&options, |d| source.write(d)).unwrap();
        let store = open(&packed);
        assert_eq!(store.manifest().source.format, "mlx-affine");
        let mut compared = 0;
        for (name, m) in &all {
            let canonical = name.strip_prefix("model.language_model.").unwrap_or(name);
            let canonical = canonical.strip_suffix(".weight").unwrap();
            if canonical.contains("switch_mlp") || canonical.contains("shard_") {
                continue;
            }
            let (codes, got) = codes_of(&store, canonical);
            assert_eq!(codes, m.codes, "{bits}/{group} {name}");
            let g = codes.len() / values(&m.scales).len();
            let (scales, biases) = (values(&m.scales), values(&m.biases));
            let want: Vec<f32> = m
                .codes
                .iter()
                .enumerate()
                .map(|(i, &c)| f32::from(c) * scales[i / g] + biases[i / g])
                .collect();
            assert_eq!(got, want, "{bits}/{group} {name}");
            compared += 1;
        }
        assert!(compared > 5);
        // Experts and table: the values the codes stand for, and no error counted.
        assert!(
            packed
                .report
                .quality
                .iter()
                .filter(|q| q.part != "dense")
                .all(|q| q.relative_rms == 0.0)
        );
        let (_, up) = all
            .iter()
            .find(|(n, _)| n.ends_with("layers.1.mlp.switch_mlp.up_proj.weight"))
            .unwrap();
        let layout = store.experts().layout();
        let mut record = vec![0; layout.bytes()];
        store.experts().read(1, 2, &mut record).unwrap();
        let got = layout.matrix(&record, Projection::Up).to_f32();
        let (g, n) = (up.codes.len() / values(&up.scales).len(), got.len());
        let want: Vec<f32> = (2 * n..3 * n)
            .map(|i| f32::from(up.codes[i]) * values(&up.scales)[i / g] + values(&up.biases)[i / g])
            .collect();
        assert_eq!(got, want, "{bits}/{group}");
    }
}

#[test]
fn wider_codes_are_quantised_anew() {
    let (tiny, config) = tiny();
    let (source, _) = to_mlx(&tiny, &config, 8, 64, "BF16");
    let packed = pack_with(&Options::default(), |d| source.write(d)).unwrap();
    let store = open(&packed);
    let (_, _, inner) = store.experts().layout().shape(Projection::Gate);
    assert_eq!(inner, Encoding::Tile16 { bits: Bits::B4, group: Group::G64 });
    let quality =
        |part| packed.report.quality.iter().find(|q| q.part == part).unwrap().relative_rms;
    assert!((0.01..0.2).contains(&quality("experts")), "{}", quality("experts"));
    assert_eq!(store.ngram(0).unwrap().encoding(), RowEncoding::Affine { bits: Bits::B4 });
}

#[test]
fn half_precision_scales_keep_their_codes_and_are_noted() {
    let (tiny, config) = tiny();
    let (source, all) = to_mlx(&tiny, &config, 4, 64, "F16");
    let packed = pack_with(&Options::default(), |d| source.write(d)).unwrap();
    let (name, m) = all.iter().find(|(n, _)| n.contains("in_proj_qkv")).unwrap();
    let canonical =
        name.strip_prefix("model.language_model.").unwrap().strip_suffix(".weight").unwrap();
    assert_eq!(codes_of(&open(&packed), canonical).0, m.codes);
    assert!(
        packed.report.notes.iter().any(|n| n.contains("bf16 cannot hold")),
        "{:?}",
        packed.report.notes
    );
    let quality = &packed.report.quality[0];
    assert!(quality.relative_rms > 0.0 && quality.relative_rms < 0.02, "{quality:?}");
}

#[test]
fn mixed_expert_widths_share_one_exact_layout() {
    let (tiny, config) = tiny();
    let (mut source, _) = to_mlx(&tiny, &config, 4, 64, "BF16");
    let wide = mlx(
        &tiny.clone().mapped(split_switch).tensors["model.language_model.layers.0.mlp.switch_mlp.gate_proj.weight"],
        8,
        32,
        "BF16",
    );
    [&wide.weight, &wide.scales, &wide.biases].into_iter().for_each(|t| source.put(t.clone()));
    let options = Options { experts: Precision::Bits(Bits::B8), ..Options::default() };
    let packed = pack_with(&options, |d| source.write(d)).unwrap();
    let layout = open(&packed).experts().layout();
    assert_eq!(
        layout.shape(Projection::Gate).2,
        Encoding::Tile16 { bits: Bits::B8, group: Group::G32 }
    );
    assert_eq!(
        layout.shape(Projection::Down).2,
        Encoding::Tile16 { bits: Bits::B4, group: Group::G32 }
    );
    let experts = packed.report.quality.iter().find(|q| q.part == "experts").unwrap();
    assert_eq!(experts.relative_rms, 0.0);
}

#[test]
fn norms_are_decided_group_by_group() {
    let (tiny, _) = tiny();
    let shift = |keep: &'static str| {
        tiny.clone().mapped(move |t| {
            let norm = t.name.contains("norm")
                && !t.name.contains("linear_attn")
                && !t.name.starts_with(keep);
            if !norm {
                return vec![t];
            }
            let x: Vec<f32> = values(&t).iter().map(|v| v + 1.0).collect();
            vec![floats(&t.name, "F32", t.shape, &x)]
        })
    };
    let decided = |packed: &Packed| -> Vec<(NormGroup, Convention)> {
        packed.report.norms.iter().map(|d| (d.group, d.convention)).collect()
    };
    let shifted = pack_with(&exact(), |d| shift("none").write(d)).unwrap();
    assert!(decided(&shifted).iter().all(|d| d.1 == Convention::Shifted));
    let raw = pack_with(&exact(), |d| tiny.write(d)).unwrap();
    let mixed = pack_with(&exact(), |d| shift("mtp.pre_fc").write(d)).unwrap();
    for (group, convention) in decided(&mixed) {
        let want =
            if group == NormGroup::MtpInputs { Convention::Raw } else { Convention::Shifted };
        assert_eq!(convention, want, "{group}");
    }
    for packed in [&shifted, &mixed] {
        for name in [
            "layers.0.attn_hyper_connection.hc_norm",
            "mtp.pre_fc_norm_hidden",
            "layers.1.ple.norm_key",
        ] {
            let [a, b] = [packed, &raw].map(|p| open(p).matrix(name).unwrap().into_bytes());
            assert_eq!(a, b, "{name}");
        }
    }
    let imposed = Options { norms: "trunk=shifted".parse().unwrap(), ..exact() };
    let packed = pack_with(&imposed, |d| tiny.write(d)).unwrap();
    let stored = open(&packed).matrix("hyper_connection_mixer.hc_norm").unwrap().view().to_f32();
    assert_eq!(stored, values(&tiny.tensors[&official("hyper_connection_mixer.hc_norm")]));
}

#[test]
fn the_draft_head_may_be_dropped_but_not_lost() {
    let (tiny, _) = tiny();
    let headless =
        tiny.clone().mapped(|t| if t.name.starts_with("mtp.") { vec![] } else { vec![t] });
    let error = pack_with(&exact(), |d| headless.write(d)).map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("mtp.") && error.contains("drop the head"), "{error}");
    let dropped = Options { draft: DraftHead::Drop, ..exact() };
    for source in [&tiny, &headless] {
        let packed = pack_with(&dropped, |d| source.write(d)).unwrap();
        assert_eq!(open(&packed).config().mtp, None);
        assert_eq!(open(&packed).experts().layers(), 3);
    }
    let silent =
        headless.with_config(|c| drop(c.as_object_mut().unwrap().remove("mtp_num_hidden_layers")));
    assert_eq!(open(&pack_with(&exact(), |d| silent.write(d)).unwrap()).config().mtp, None);
}

#[test]
fn tied_embeddings_need_no_head() {
    let (tiny, _) = tiny();
    let tied = tiny.clone().with_config(|c| c["tie_word_embeddings"] = true.into());
    let packed = pack_with(&exact(), |d| tied.write(d)).unwrap();
    assert!(open(&packed).matrix("lm_head").is_err());
    assert!(packed.report.notes.iter().any(|n| n.contains("lm_head")));
}

fn check_refused(what: &str, source: &Tiny, parts: &[&str]) {
    let error = match pack_with(&exact(), |d| source.write(d)) {
        Ok(_) => panic!("{what}: packed"),
        Err(e) => e.to_string(),
    };
    for part in parts {
        assert!(error.contains(part), "{what}: {error:?} lacks {part:?}");
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    let (tiny, _) = tiny();
    let q = official("layers.2.self_attn.q_proj");
    let change = |f: &dyn Fn(&mut Tensor)| {
        let mut t = tiny.clone();
        f(t.tensors.get_mut(&q).unwrap());
        t
    };
    let mut missing = tiny.clone();
    missing.tensors.remove(&q);
    check_refused("missing", &missing, &["tensor layers.2.self_attn.q_proj", "no such tensor"]);
    let shape = change(&|t| t.shape.reverse());
    check_refused("shape", &shape, &["model.safetensors", &q, "[64, 128]", "[128, 64]"]);
    let integers = change(&|t| {
        t.dtype = "I64";
        t.shape = vec![32, 64];
    });
    check_refused(
        "type",
        &integers,
        &[&q, "I64", "BF16, F16 or F32 [[128, 64]".trim_start_matches("BF16, F16 or F32 [")],
    );
    let nan = change(&|t| t.bytes[20..22].copy_from_slice(&[0xc0, 0x7f]));
    check_refused("nan", &nan, &[&q, "row 0, column 10", "NaN", "finite"]);
    let mut extra = tiny.clone();
    extra.put(floats("model.language_model.layers.9.what.weight", "BF16", vec![1], &[0.0]));
    check_refused("extra", &extra, &["layers.9.what.weight", "skip extra"]);
    let skip = Options { extra: ExtraTensors::Skip, ..exact() };
    pack_with(&skip, |d| extra.write(d)).unwrap();
    let mut twice = tiny.clone();
    let copy =
        Tensor { name: q.replace("model.language_model.", "model."), ..tiny.tensors[&q].clone() };
    twice.put(copy);
    check_refused("twice", &twice, &[&q, "every tensor once"]);
    let mut hash = tiny.clone();
    let name = "model.language_model.layers.1.ple.ple_embedding.layer_multipliers";
    hash.tensors.get_mut(name).unwrap().bytes[0] ^= 2;
    check_refused("hash", &hash, &[name, "by seed and geometry"]);
    let mut short = tiny.clone();
    short
        .tensors
        .remove("model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_1.weight");
    check_refused("table", &short, &["shard_1", "rows in 1 parts"]);
    let seed = tiny.clone().with_config(|c| c["seed"] = 5.into());
    check_refused("seed", &seed, &["layer_multipliers"]);
}

#[test]
fn other_formats_are_named() {
    let (tiny, _) = tiny();
    let name = official("layers.2.self_attn.q_proj");
    let mut fp8 = tiny.clone();
    fp8.put(floats(&name.replace(".weight", ".weight_scale_inv"), "F32", vec![1, 1], &[1.0]));
    check_refused("fp8", &fp8, &["FP8", "not supported yet"]);
    let mut declared = tiny.clone();
    declared.config["quantization_config"] =
        serde_json::json!({"quant_method": "modelopt", "quant_algo": "NVFP4"});
    check_refused("modelopt", &declared, &["modelopt NVFP4 weights", "not supported yet"]);
    let mut mxfp4 = tiny.clone();
    mxfp4.config["quantization"] =
        serde_json::json!({"group_size": 32, "bits": 4, "mode": "mxfp4"});
    check_refused("mxfp4", &mxfp4, &["MLX mxfp4 weights"]);
    let gguf = pack_with(&exact(), |d| {
        tiny.write_json(d);
        fs::write(d.join("model.gguf"), "GGUF").unwrap();
    });
    assert!(gguf.map(|_| ()).unwrap_err().to_string().contains("GGUF"));
}

#[test]
fn nan_scales_are_refused() {
    let (tiny, config) = tiny();
    let (mut source, all) = to_mlx(&tiny, &config, 4, 64, "BF16");
    let name = all[0].1.scales.name.clone();
    source.tensors.get_mut(&name).unwrap().bytes[0..2].copy_from_slice(&[0xc0, 0x7f]);
    check_refused("nan scale", &source, &[&name, "NaN"]);
}

#[test]
fn shards_are_judged_by_tensors() {
    let (tiny, _) = tiny();
    let index = "model.safetensors.index.json";
    // A stale index: other names, every tensor present.
    let packed = pack_with(&exact(), |d| {
        tiny.write_sharded(d, 3);
        let text = fs::read_to_string(d.join(index)).unwrap().replace("-of-00003", "-of-00030");
        fs::write(d.join(index), text).unwrap();
    })
    .unwrap();
    assert!(
        packed.report.notes.iter().any(|n| n.contains("model-00001-of-00030")),
        "{:?}",
        packed.report.notes
    );
    let lost = pack_with(&exact(), |d| {
        tiny.write_sharded(d, 3);
        fs::remove_file(d.join("model-00002-of-00003.safetensors")).unwrap();
    });
    let error = lost.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("download the missing shards: model-00002-of-00003"), "{error}");
    let torn = pack_with(&exact(), |d| {
        tiny.write_sharded(d, 3);
        let path = d.join("model-00002-of-00003.safetensors");
        let bytes = fs::read(&path).unwrap();
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
    });
    let error = torn.map(|_| ()).unwrap_err().to_string();
    assert!(error.contains("truncated") && error.contains("model-00002"), "{error}");
    let outside = pack_with(&exact(), |d| {
        tiny.write_json(d);
        fs::write(d.join(index), "{\"weight_map\": {\"a\": \"../x.safetensors\"}}").unwrap();
    });
    assert!(outside.map(|_| ()).unwrap_err().to_string().contains("plain names"));
}
