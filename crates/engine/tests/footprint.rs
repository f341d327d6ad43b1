//! What the cpu device says that it will hold, against what it holds after long prompts, drafts and
//! several sequences.

mod common;

use cherenkov_cpu::{Footprint, KvPrecision};
use cherenkov_engine::{Engine, LoadDraft};
use cherenkov_model::qwen4_exp::Model;
use cherenkov_model::{Limits, MAX_TENTATIVE};
use common::{Packed, Setup, answer, pocket, prompt, random, warm};

fn check(packed: &Packed, setup: &Setup) {
    let config = packed.store.config();
    let mut engine = setup.cpu(packed);
    let most = engine.info().drafts;
    for (seed, drafts) in [(1, 0), (2, 7), (3, 2)] {
        let text = prompt(300, config.vocab, seed);
        answer(&mut engine, &text, &warm(seed), drafts.min(most), 20);
    }
    // Every sequence is used.
    let text = prompt(90, config.vocab, 4);
    for _ in 0..setup.sequences {
        let seq = engine.open().unwrap();
        engine.prefill(seq, &text).unwrap();
        let mut writer = common::Writer::new(seq, &warm(1), &text, config.vocab);
        common::write(&mut engine, &mut writer, most.min(3), 8);
    }
    let held = engine.snapshot().memory;
    let of = |what: &str| held.iter().find(|(name, _)| *name == what).unwrap().1;
    let page_rows = Model::<cherenkov_cpu::CpuDevice>::page_rows(config);
    let pages = (setup.context + MAX_TENTATIVE).div_ceil(page_rows) * setup.sequences;
    let rows = setup.chunk.max(2 * MAX_TENTATIVE);
    let limits = Limits { rows, slots: setup.sequences, pages, page_rows };
    let (draft, kv, threads) = (setup.draft, setup.kv, setup.threads);
    let said = Footprint { config, draft, kv, threads };
    // Every buffer begins on a cache line.
    let lines = 64 * 8 * (config.layers.len() + 1);
    let near = |what: &str, held: usize, said: usize, slack: f64| {
        let most = held as f64 * slack + (setup.sequences * lines) as f64;
        assert!(held <= said, "{what}: {held} bytes held, {said} said, {setup:?}");
        assert!(said as f64 <= most, "{what}: {held} held, {said} said, {setup:?}");
    };
    near("pages", of("context pages"), pages * said.page(page_rows) + lines, 1.05);
    near("state", of("recurrent state"), setup.sequences * said.slot(), 1.05);
    let scratch = of("activations") + of("scratch");
    near("scratch", scratch, said.scratch(&limits), 1.8);
}

#[test]
fn a_device_holds_what_it_says_and_hardly_less() {
    let base = Setup { chunk: 200, ..Setup::default() };
    for setup in [
        base.clone(),
        Setup { threads: 3, chunk: 40, ..base.clone() },
        Setup { kv: KvPrecision::F32, sequences: 1, ..base.clone() },
        Setup { kv: KvPrecision::Q8, threads: 2, ..base.clone() },
        Setup { draft: LoadDraft::No, ..base.clone() },
        // Experts come one by one, so that few are computed together.
        Setup { pool_slots: 3, ..base },
    ] {
        check(&pocket(), &setup);
    }
}

#[test]
fn a_device_holds_no_more_than_it_says_for_other_geometries() {
    for name in ["base", "wide", "ple3", "interval2"] {
        let packed = random(name);
        let setup = Setup { chunk: 100, sequences: 2, ..Setup::default() };
        check(&packed, &setup);
    }
}
