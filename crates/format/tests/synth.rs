//! Synthetic stores and checkpoints: whole, repeatable, the same weights in both forms, and numbers
//! that a model can compute with.

use cherenkov_format::float::{bf16_to_f32, f16_to_f32, f32_to_f16};
use cherenkov_format::pack::{self, Precision};
use cherenkov_format::progress::Silent;
use cherenkov_format::qwen4_exp::config::{Config, Mixer};
use cherenkov_format::synth::{self, Options, Preset, geometry};
use cherenkov_format::{Bits, Encoding, Group, Projection, Store, tile16, verify};
use std::fs;
use std::num::NonZeroUsize;
use std::path::Path;

/// Every part of the family, small enough to be written often.
fn little() -> Config {
    let mut c = Preset::Pocket.config();
    geometry::set_layers(&mut c, 3);
    geometry::set_hidden(&mut c, 96);
    geometry::set_vocab(&mut c, 300);
    (c.moe.experts, c.moe.width, c.hyper.rank) = (5, 32, 48);
    let ple = c.ple.as_mut().unwrap();
    (ple.vocab_base, ple.divisor, ple.embed_dim) = (50, 8, 512);
    c
}

fn at(bits: u32, config: Config) -> Options {
    let precision = Precision::try_from(bits).unwrap();
    let mixed = Options::new(config);
    Options { experts: precision, dense: precision, ngram: precision, ..mixed }
}

fn make(dir: &Path, options: &Options) -> Store {
    let report = synth::store(dir, options, &mut Silent).unwrap();
    let checked = verify::verify(dir, &mut Silent).unwrap();
    assert_eq!((checked.bytes, checked.strays), (report.bytes, vec![]));
    Store::open(dir).unwrap()
}

fn same_files(a: &Path, b: &Path, names: &[&str]) {
    for name in names {
        assert!(fs::read(a.join(name)).unwrap() == fs::read(b.join(name)).unwrap(), "{name}");
    }
}

const DATA: [&str; 3] = ["dense.bin", "experts.bin", "ngram-0.bin"];

#[test]
fn every_precision_makes_a_whole_store() {
    let dir = tempfile::tempdir().unwrap();
    for bits in [2, 3, 4, 8, 16] {
        let store = make(&dir.path().join(bits.to_string()), &at(bits, little()));
        assert_eq!(store.config(), &little());
        assert_eq!(store.manifest().files.len(), 4);
    }
}

#[test]
fn a_packed_checkpoint_is_the_16_bit_store() {
    let dir = tempfile::tempdir().unwrap();
    let [checkpoint, packed, direct] =
        ["checkpoint", "packed", "direct"].map(|n| dir.path().join(n));
    let mut config = little();
    config.tied_embeddings = true;
    let options = at(16, config);
    let report = synth::checkpoint(&checkpoint, &options, &mut Silent).unwrap();
    assert_eq!(report.files.len(), 6);
    let bf16 = Precision::Bf16;
    let exact =
        pack::Options { experts: bf16, dense: bf16, ngram: bf16, ..pack::Options::default() };
    pack::pack(&checkpoint, &packed, &exact, &mut Silent).unwrap();
    make(&direct, &options);
    same_files(&packed, &direct, &DATA);
    same_files(&packed, &direct, &["tokenizer.json", "generation_config.json"]);
    let error = synth::checkpoint(&checkpoint, &options, &mut Silent).unwrap_err();
    assert!(error.to_string().contains("something there already"), "{error}");
}

#[test]
fn bytes_follow_from_the_seed_and_not_from_threads() {
    let dir = tempfile::tempdir().unwrap();
    let [a, b, c] = ["a", "b", "c"].map(|n| dir.path().join(n));
    let one = Options { threads: NonZeroUsize::new(1), ..Options::new(little()) };
    make(&a, &one);
    make(&b, &Options { threads: NonZeroUsize::new(5), ..one.clone() });
    make(&c, &Options { seed: 2, ..one });
    same_files(&a, &b, &DATA);
    assert_ne!(fs::read(a.join("experts.bin")).unwrap(), fs::read(c.join("experts.bin")).unwrap());
}

/// Mean and standard deviation.
fn moments(values: &[f32]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let square = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
    (mean, square.sqrt())
}

#[test]
fn projections_keep_activations_near_one() {
    let dir = tempfile::tempdir().unwrap();
    for bits in [2, 3, 4, 8, 16] {
        let store = make(&dir.path().join(bits.to_string()), &at(bits, little()));
        let mut record = vec![0; store.experts().record_bytes() as usize];
        store.experts().read(1, 2, &mut record).unwrap();
        let gate = store.experts().layout().matrix(&record, Projection::Gate).to_f32();
        for (values, cols) in [
            (store.matrix("layers.0.linear_attn.in_proj_qkv").unwrap().view().to_f32(), 96.0),
            (store.matrix("layers.2.self_attn.o_proj").unwrap().view().to_f32(), 256.0),
            (gate, 96.0),
        ] {
            let (mean, deviation) = moments(&values);
            let expected = 1.0 / f64::sqrt(cols);
            assert!((deviation / expected - 1.0).abs() < 0.05, "{bits} bits: {deviation}");
            assert!(
                mean.abs() < 4.0 * expected / (values.len() as f64).sqrt(),
                "{bits} bits: {mean}"
            );
        }
        let (mean, _) = moments(
            &store.matrix("layers.2.attn_hyper_connection.hc_norm").unwrap().view().to_f32(),
        );
        assert!((mean - 1.0).abs() < 0.05, "{mean}");
    }
}

#[test]
fn codes_of_4_and_8_bits_are_signed_numbers_times_a_half_precision_scale() {
    let dir = tempfile::tempdir().unwrap();
    for (number, middle) in [(4, 8u8), (8, 128)] {
        let bits = Bits::try_from(number).unwrap();
        let store = make(&dir.path().join(number.to_string()), &at(number, little()));
        // 96 inputs: groups of 32.
        let q = store.matrix("layers.2.self_attn.k_proj").unwrap();
        let q = q.view();
        assert_eq!(q.encoding(), Encoding::Tile16 { bits, group: Group::G32 });
        for block in q.bytes().chunks(tile16::block_bytes(bits, Group::G32)) {
            for row in 0..16 {
                let mut codes = [0; 32];
                let (s, b) = tile16::get_row(block, bits, Group::G32, row, &mut codes);
                let (s, b) = (bf16_to_f32(s), bf16_to_f32(b));
                assert_eq!(b, -f32::from(middle) * s);
                assert_eq!(f16_to_f32(f32_to_f16(s)), s);
                assert!(!codes.contains(&0));
            }
        }
    }
}

#[test]
fn rows_beyond_a_matrix_are_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let store = make(&dir.path().join("x"), &at(3, little()));
    // A vocabulary of 300 leaves 4 rows of the last tile.
    let m = store.matrix("lm_head").unwrap();
    let m = m.view();
    let Encoding::Tile16 { bits, group } = m.encoding() else { panic!("not tiles") };
    let tile = tile16::block_bytes(bits, group) * (96 / group.get());
    let last = &m.bytes()[m.bytes().len() - tile..];
    for block in last.chunks(tile16::block_bytes(bits, group)) {
        for row in 0..16 {
            let mut codes = vec![0; group.get()];
            let (s, b) = tile16::get_row(block, bits, group, row, &mut codes);
            let empty = s == 0 && b == 0 && codes.iter().all(|&c| c == 0);
            assert_eq!(empty, row >= 12, "row {row}");
        }
    }
}

#[test]
fn official_head_sizes_fit_a_small_model() {
    let mut c = Preset::FlashNext.config();
    geometry::set_layers(&mut c, 4);
    geometry::set_hidden(&mut c, 128);
    geometry::set_vocab(&mut c, 512);
    c.hyper.rank = 32;
    c.layers = vec![Mixer::Delta, Mixer::Delta, Mixer::Attention, Mixer::Attention];
    c.ple.as_mut().unwrap().vocab_base = 100;
    let dir = tempfile::tempdir().unwrap();
    let store = make(&dir.path().join("x"), &Options::new(c));
    assert_eq!(store.experts().per_layer(), 512);
}

#[test]
fn an_impossible_geometry_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let mut config = little();
    config.attention.kv_heads = 3;
    for make in [synth::store, synth::checkpoint] {
        let error = make(&dir.path().join("x"), &Options::new(config.clone()), &mut Silent);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("attention.heads 4 over kv_heads 3"), "{error}");
        assert!(!dir.path().join("x").exists());
    }
}
