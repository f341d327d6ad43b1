//! Packing: every layout of a checkpoint, exactness, norms, refusals.

mod common;

use cherenkov_format::norms::{Convention, NormGroup};
use cherenkov_format::pack::{DraftHead, ExtraTensors, Options};
use cherenkov_format::qwen4_exp::tensors::{self, Kind};
use cherenkov_format::{Encoding, Projection, RowEncoding, Store};
use common::*;
use std::fs;
use std::path::Path;

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

/// Large enough that embedding and table take several chunks, and chunks cross shards.
#[test]
fn chunks_join_without_a_seam() {
    let dir = tempfile::tempdir().unwrap();
    let mut text = text_config();
    text["vocab_size"] = 20_000.into();
    text["ngram_vocab_size_base"] = 40_000.into();
    fs::write(dir.path().join("config.json"), text.to_string()).unwrap();
    let config = cherenkov_format::checkpoint::json::read(dir.path(), CHOICES).unwrap().config;
    let mut tiny = Tiny::new(&config);
    tiny.config["text_config"] = text;
    let packed = pack_with(&exact(), |d| tiny.write(d)).unwrap();
    assert_exact(&open(&packed), &tiny);
    let manifest = open(&packed).manifest().clone();
    assert!(manifest.dense.tensors[0].checksums.0.len() > 1);
    assert!(manifest.ngram[0].checksums.0.len() > 2);
    // Quantised chunks start at whole tiles: every value stays next to its own.
    let packed = pack_with(&Options::default(), |d| tiny.write(d)).unwrap();
    let got = open(&packed).matrix("embed_tokens").unwrap().view().to_f32();
    let want = values(&tiny.tensors[&official("embed_tokens")]);
    assert!(got.iter().zip(&want).all(|(a, b)| (a - b).abs() < 0.001));
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
        let odd = official(&t.name).len().is_multiple_of(2);
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
