//! The CPU device on 16-bit weights, where nothing but the order of sums differs from the public
//! implementation: logits and greedy choices of every random fixture.

mod common;

use cherenkov_cpu::KvPrecision;
use cherenkov_engine::Engine;
use cherenkov_format::Store;
use cherenkov_format::pack::{self, Precision};
use common::{Packed, Setup, root};
use safetensors::SafeTensors;
use std::path::Path;
use std::sync::Arc;

/// Packs without loss.
fn exact(fixture: &Path) -> Packed {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let options = pack::Options {
        experts: Precision::Bf16,
        dense: Precision::Bf16,
        ngram: Precision::Bf16,
        ..pack::Options::default()
    };
    pack::pack(fixture, &out, &options, &mut cherenkov_format::progress::Silent).unwrap();
    Packed::new(Store::open(&out).map(Arc::new).unwrap(), dir)
}

fn argmax(row: &[f32]) -> usize {
    (0..row.len()).fold(0, |best, i| if row[i] > row[best] { i } else { best })
}

/// Largest difference of a prompt's logits, as a share of the largest logit of their row, and whether
/// every row chooses the same token.
fn compare(engine: &mut dyn Engine, ids: &[u32], golden: &[f32]) -> (f32, bool) {
    let vocab = engine.info().vocab;
    let (mut rows, mut worst, mut same) = (golden.chunks_exact(vocab), 0f32, true);
    let seq = engine.open().unwrap();
    // One more token, so that all of the prompt's are run.
    let tokens = [ids, &[0]].concat();
    engine
        .score(seq, &tokens, &mut |found| {
            let expected = rows.next().unwrap();
            let size = expected.iter().fold(0f32, |m, v| m.max(v.abs()));
            let off = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
            worst = worst.max(off.fold(0.0, f32::max) / size);
            same &= argmax(found) == argmax(expected);
        })
        .unwrap();
    assert!(rows.next().is_none(), "a row for every token");
    engine.close(seq);
    (worst, same)
}

#[test]
fn sixteen_bit_weights_give_the_public_implementations_logits() {
    let mut fixtures: Vec<_> = std::fs::read_dir(root().join("fixtures/random"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    fixtures.sort();
    assert!(fixtures.len() >= 8, "{fixtures:?}");
    for fixture in fixtures {
        let packed = exact(&fixture);
        let bytes = std::fs::read(fixture.join("golden/golden.safetensors")).unwrap();
        let golden = SafeTensors::deserialize(&bytes).unwrap();
        let text = std::fs::read_to_string(fixture.join("golden/golden.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for (kv, bound) in [(KvPrecision::F32, 2e-5), (KvPrecision::F16, 5e-3)] {
            let mut engine = Setup { threads: 2, kv, ..Setup::default() }.cpu(&packed);
            for prompt in json["prompts"].as_array().unwrap() {
                let name = prompt["name"].as_str().unwrap();
                let ids = prompt["input_ids"].as_array().unwrap().iter();
                let ids: Vec<u32> = ids.map(|v| v.as_u64().unwrap() as u32).collect();
                let logits = golden.tensor(&format!("{name}.logits")).unwrap();
                let logits = logits.data().as_chunks().0.iter().map(|b| f32::from_le_bytes(*b));
                let logits: Vec<f32> = logits.collect();
                let (worst, same) = compare(&mut engine, &ids, &logits);
                println!("{} {name} {kv:?}: {worst:.1e} {same}", fixture.display());
                assert!(worst < bound, "{} {name}, {kv:?}: {worst:.1e}", fixture.display());
                assert!(same, "{} {name}, {kv:?}: another choice", fixture.display());
            }
        }
    }
}
