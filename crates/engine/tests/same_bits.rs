//! One set of bits from every instruction set, number of threads, chunk and number of drafts, and on
//! every architecture: the numbers below were recorded once.
//!
//! A change of numerics changes them on purpose: run the test, copy what it found, and name the change
//! in CHANGELOG.md and docs/numerics.md.

mod common;

use cherenkov_cpu::{Isa, KvPrecision};
use cherenkov_engine::Engine;
use cherenkov_format::checksum;
use cherenkov_format::qwen4_exp::config::{Config, Mixer};
use cherenkov_format::synth::{Preset, geometry};
use common::{Answer, Packed, Setup, Writer, pocket, prompt, synthetic, warm, write};

/// Tokens of a prefill pass: single rows, less than a panel of kernels, a panel, one more, many.
const CHUNKS: [usize; 6] = [1, 5, 16, 17, 64, 500];
const DRAFTS: [usize; 6] = [0, 1, 2, 3, 5, 7];

/// Every instruction set with every chunk; threads and drafts go round.
fn circumstances(kv: KvPrecision) -> Vec<(Setup, usize)> {
    let mut all = Vec::new();
    for (i, isa) in Isa::available().into_iter().enumerate() {
        for (j, chunk) in CHUNKS.into_iter().enumerate() {
            let (threads, pool_slots) = (1 + (i + j) % 3, [11, 64, 5000][j % 3]);
            let setup = Setup { isa, threads, kv, chunk, pool_slots, ..Setup::default() };
            all.push((setup, DRAFTS[(2 * i + j) % DRAFTS.len()]));
        }
    }
    all
}

/// Hashes of the logits of a prompt, and of an answer with its distributions.
fn bits(packed: &Packed, setup: &Setup, drafts: usize, lengths: [usize; 2]) -> (u64, Answer) {
    let mut engine = setup.cpu(packed);
    let vocab = engine.info().vocab;
    let prompt = prompt(lengths[0], vocab, 5);
    let seq = engine.open().unwrap();
    let mut logits = Vec::new();
    let see = &mut |row: &[f32]| logits.extend(row.iter().flat_map(|v| v.to_bits().to_le_bytes()));
    engine.score(seq, &prompt, see).unwrap();
    assert_eq!(logits.len(), (lengths[0] - 1) * vocab * 4);
    let mut writer = Writer::new(seq, &warm(11), &prompt, vocab);
    write(&mut engine, &mut writer, drafts, lengths[1]);
    (checksum(&logits), writer.answer())
}

fn check(name: &str, packed: &Packed, kv: KvPrecision, lengths: [usize; 2], recorded: [u64; 2]) {
    for (setup, drafts) in circumstances(kv) {
        let (prompt, answer) = bits(packed, &setup, drafts, lengths);
        assert!(answer.tokens.windows(2).any(|w| w[0] != w[1]), "{name}: {:?}", answer.tokens);
        assert_eq!(
            [prompt, answer.hash],
            recorded,
            "{name}: found {prompt:#018x}, {:#018x} with {setup:?}, {drafts} drafts",
            answer.hash
        );
    }
}

#[test]
fn pocket_model() {
    // Beyond the selection budget of 128 tokens.
    let recorded = [0x3460_305d_89f2_1d5c, 0x4e9c_dc6f_b57c_caf6];
    check("pocket", &pocket(), KvPrecision::F16, [150, 24], recorded);
}

#[test]
fn pocket_model_with_keys_and_values_in_eight_bits() {
    check(
        "pocket",
        &pocket(),
        KvPrecision::Q8,
        [150, 24],
        [0x413a_4eb2_8fd1_f471, 0x1fdd_570f_c31e_bb8f],
    );
}

/// Heads, blocks, groups and experts as the official model has them; a narrow residual, few layers and
/// a small selection budget.
fn official_heads() -> Config {
    let mut c = Preset::FlashNext.config();
    geometry::set_vocab(&mut c, 512);
    c.layers = vec![Mixer::Delta, Mixer::Attention];
    (c.hidden, c.hyper.rank) = (64, 64);
    c.attention.index_budget = 64;
    let ple = c.ple.as_mut().unwrap();
    (ple.layers, ple.embed_dim, ple.vocab_base) = (vec![0], 512, 500);
    c
}

#[test]
fn the_official_sizes_of_heads_and_experts() {
    let recorded = [0xc910_770b_57d9_e959, 0x7c33_8cdf_59c0_6790];
    check("official heads", &synthetic(official_heads()), KvPrecision::F16, [100, 12], recorded);
}
