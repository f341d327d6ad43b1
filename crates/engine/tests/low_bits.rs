//! Experts at fewer bits on the bundled model: how far the packer's codes are from those at 4 bits, next
//! to dropping the low bits. The table in docs/low-bits.md is made in the same way, from more text.

mod common;
#[path = "common/narrow.rs"]
mod narrow;

use cherenkov_cpu::{CpuDevice, CpuOptions};
use cherenkov_engine::{Engine, Runner};
use cherenkov_experts::{Counters, FileSource, Lookahead, STEP_ROWS, Source};
use cherenkov_format::{Bits, Store};
use common::{
    Answer, Drive, Packed, Setup, answer, greedy, pocket, prompt, random_with, root, warm,
};
use narrow::{Divergence, Narrowed, Scheme};

/// Prompts of the model's own kind with the answers of the public implementation.
fn texts() -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(root().join("fixtures/pocket/golden.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ids = |v: &serde_json::Value| -> Vec<u32> {
        v.as_array().unwrap().iter().map(|v| v.as_u64().unwrap() as u32).collect()
    };
    let prompts = json["prompts"].as_array().unwrap().iter();
    // A stray token is no text of the model's kind.
    let prompts = prompts.filter(|p| p["name"] != "one");
    prompts.map(|p| [ids(&p["input_ids"]), ids(&p["greedy"])].concat()).collect()
}

/// The logits after every token of every text.
fn logits(packed: &Packed, source: impl Source + 'static) -> Vec<Vec<f32>> {
    let options = CpuOptions::new(2, packed.store.config().eps);
    let device = CpuDevice::new(options).unwrap();
    let setup = Setup { pool_slots: 1000, ..Setup::default() };
    let (options, streaming) = (setup.options(), setup.streaming());
    let mut engine =
        Runner::with_source(&packed.store, device, source, options, streaming).unwrap();
    let mut rows = Vec::new();
    for text in texts() {
        let seq = engine.open().unwrap();
        engine.score(seq, &text, &mut |row| rows.push(row.to_vec())).unwrap();
        engine.close(seq);
    }
    rows
}

#[test]
fn the_search_at_least_halves_the_divergence_of_dropped_bits() {
    let packed = pocket();
    let open = || FileSource::open(&packed.store, &[]).unwrap();
    let exact = logits(&packed, open());
    assert!(exact.len() > 600, "{} tokens", exact.len());
    let of = |bits, scheme| {
        let rows = logits(&packed, Narrowed::new(open(), bits, scheme));
        let mut sum = Divergence::default();
        exact.iter().zip(&rows).for_each(|(exact, row)| sum.add(exact, row));
        println!("{bits:?} {scheme:?}: {:.4} nats, {} of {}", sum.mean(), sum.agree, sum.tokens);
        sum.mean()
    };
    for bits in [Bits::B2, Bits::B3] {
        let [search, plain, centred] =
            [Scheme::Search, Scheme::Drop, Scheme::DropCentred].map(|scheme| of(bits, scheme));
        assert!(search > 0.0);
        assert!(2.0 * search < plain, "{bits:?}: {search}, {plain}");
        // Whoever thinks of moving the bias is nearly there: their levels are as far apart.
        assert!(search < 1.2 * centred, "{bits:?}: {search}, {centred}");
    }
}

/// A store with small records.
fn graded() -> Packed {
    random_with("base", &[Bits::B2])
}

/// Misses at 2 bits, nothing read ahead, a pool that no pass scans.
fn fixed_grades(store: &Packed) -> Setup {
    let experts = store.store.experts();
    let pool_slots = experts.layers() * experts.per_layer();
    Setup { miss: Some(Bits::B2), lookahead: Lookahead::Off, pool_slots, ..Setup::default() }
}

fn answered(setup: &Setup, store: &Packed, rows: usize) -> (Answer, Counters) {
    let mut engine = setup.cpu(store);
    let prompt = prompt(rows, store.store.config().vocab, 3);
    let got = answer(&mut engine, &prompt, &warm(5), 2, 24);
    (got, engine.streamed().total())
}

#[test]
fn small_records_for_misses_give_one_answer_where_nothing_depends_on_time() {
    let store = graded();
    let base = fixed_grades(&store);
    let (want, counters) = answered(&base, &store, 4);
    assert!(counters.low_reads > 0 && counters.low_reads == counters.demand_reads, "{counters:?}");
    assert_eq!(counters.upgrades, 0, "nothing is read ahead");
    for (readers, threads, drive) in
        [(1, 1, Drive::Plain), (4, 2, Drive::Slow(300)), (3, 3, Drive::Slow(100))]
    {
        let setup = Setup { readers, threads, drive, ..base.clone() };
        assert_eq!(answered(&setup, &store, 4).0, want, "{setup:?}");
    }
    for isa in cherenkov_cpu::Isa::available() {
        let setup = Setup { isa, ..base.clone() };
        assert_eq!(answered(&setup, &store, 4).0, want, "{setup:?}");
    }
    let full = Setup { miss: None, ..base.clone() };
    assert_ne!(answered(&full, &store, 4).0, want, "small records are others");
    // All of the run at 2 bits is what the misses were, as long as there was nothing else.
    let mut small = Store::open(store.store.dir()).unwrap();
    small.use_experts(Bits::B2).unwrap();
    let device = CpuDevice::new(CpuOptions::new(1, small.config().eps)).unwrap();
    let mut engine = Runner::load(&small, device, full.options(), full.streaming()).unwrap();
    let prompt = prompt(4, small.config().vocab, 3);
    assert_eq!(answer(&mut engine, &prompt, &warm(5), 2, 24), want);
}

#[test]
fn long_passes_use_whole_records() {
    let store = graded();
    let vocab = store.store.config().vocab;
    let text = prompt(2 * STEP_ROWS + 2, vocab, 9);
    let logits = |miss, warm_up: bool| {
        let chunk = 4 * STEP_ROWS;
        let setup = Setup { miss, chunk, ..fixed_grades(&store) };
        let mut engine = setup.cpu(&store);
        if warm_up {
            // Small records lie in the pool.
            answer(&mut engine, &text[..3], &greedy(), 0, 20);
            assert!(miss.is_none() || engine.streamed().total().low_reads > 0);
        }
        let seq = engine.open().unwrap();
        let mut rows = Vec::new();
        engine.score(seq, &text, &mut |row| rows.push(row.to_vec())).unwrap();
        (rows, engine.streamed().total().upgrades)
    };
    let want = logits(None, false).0;
    for warm_up in [false, true] {
        let (rows, upgrades) = logits(Some(Bits::B2), warm_up);
        assert!(rows == want, "after small records: {warm_up}");
        assert_eq!(upgrades > 0, warm_up, "small records are read anew");
    }
}

#[test]
fn records_that_are_used_again_become_whole() {
    let store = graded();
    let setup = Setup { lookahead: Lookahead::Fixed(2), ..fixed_grades(&store) };
    let mut engine = setup.cpu(&store);
    let vocab = store.store.config().vocab;
    for round in 0..6 {
        answer(&mut engine, &prompt(4, vocab, 3), &greedy(), 0, 24);
        let total = engine.streamed().total();
        if round == 0 {
            assert!(total.low_reads > 0 && total.low_hits > 0, "{total:?}");
        }
    }
    let before = engine.streamed().total();
    assert!(before.upgrades > 0, "{before:?}");
    answer(&mut engine, &prompt(4, vocab, 3), &greedy(), 0, 24);
    let hits = engine.streamed().total().low_hits - before.low_hits;
    let first = Setup { lookahead: Lookahead::Off, ..setup.clone() };
    let mut never = first.cpu(&store);
    answer(&mut never, &prompt(4, vocab, 3), &greedy(), 0, 24);
    let all = never.streamed().total().low_hits;
    assert!(hits * 2 < all, "{hits} of {all} hits are still of small records");
}

#[test]
fn a_store_without_small_records_says_so() {
    let store = random_with("base", &[Bits::B3]);
    let load = |miss| {
        let setup = Setup { miss: Some(miss), ..Setup::default() };
        let device = CpuDevice::new(CpuOptions::new(1, store.store.config().eps)).unwrap();
        let loaded = Runner::load(&store.store, device, setup.options(), setup.streaming());
        loaded.err().map(|e| e.to_string())
    };
    assert_eq!(load(Bits::B3), None);
    let absent = load(Bits::B2).unwrap();
    assert!(absent.contains("found 3, 4 bits, expected 2 bits"), "{absent}");
    let same = load(Bits::B4).unwrap();
    assert!(same.contains("choose fewer bits for misses than for the run"), "{same}");
}

#[test]
fn only_weak_experts_that_come_late_are_left_out() {
    let store = graded();
    let slow = Setup { miss: None, drive: Drive::Slow(400), ..fixed_grades(&store) };
    let (want, none) = answered(&slow, &store, 4);
    assert_eq!(none.left_out, 0);
    // A share of 0 is below no weight; everything in memory is never late.
    let zero = Setup { cut_weak: 0.0, ..slow.clone() };
    assert_eq!(answered(&zero, &store, 4).0, want);
    let resident = |cut_weak| {
        let setup = Setup { cut_weak, ..slow.clone() };
        let mut engine = setup.cpu(&store);
        let vocab = store.store.config().vocab;
        let all = prompt(300, vocab, 1);
        let seq = engine.open().unwrap();
        engine.prefill(seq, &all).unwrap();
        engine.close(seq);
        let before = engine.streamed().total();
        let got = answer(&mut engine, &prompt(40, vocab, 3), &warm(5), 0, 12);
        let after = engine.streamed().total();
        (got, after.misses - before.misses, after.left_out)
    };
    let ((all, misses, _), (cut, _, left_out)) = (resident(0.0), resident(0.9));
    assert!(misses > 0 || (all == cut && left_out == 0), "{misses} misses, {left_out} left out");
    let (other, counters) = answered(&Setup { cut_weak: 0.9, ..slow.clone() }, &store, 4);
    assert!(counters.left_out > 0, "{counters:?}");
    assert_ne!(other, want, "what is left out is missing");
}
