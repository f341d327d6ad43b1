//! Memory of a pool that shrinks really goes back to the system. Alone in its process, which is measured.
#![cfg(target_os = "linux")]

mod common;

use cherenkov_engine::Engine as _;
use common::{Setup, greedy, prompt, synthetic};

/// Bytes of memory of this process that no file stands for.
fn anonymous() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.trim().strip_suffix("kB").unwrap().trim().parse::<u64>().unwrap() * 1024
}

#[test]
fn slots_that_are_given_up_go_back_to_the_system() {
    let mut config = cherenkov_format::synth::Preset::Small.config();
    cherenkov_format::synth::geometry::set_layers(&mut config, 8);
    (config.moe.experts, config.moe.width) = (64, 512);
    let store = synthetic(config);
    let record = store.store.experts().record_bytes();
    let all = 9 * 64;
    let setup = Setup { pool_slots: all, chunk: 64, threads: 1, ..Setup::default() };
    let mut engine = setup.cpu(&store);
    let vocab = engine.info().vocab;
    let text = prompt(400, vocab, 3);
    // As often as it takes to fill the pool.
    for _ in 0..3 {
        common::answer(&mut engine, &text, &greedy(), 2, 8);
    }
    let full = anonymous();
    let held = engine.streamed().experts.iter().filter(|e| e.reads > 0).count() as u64;
    assert!(held > 500, "{held} records were read");
    assert_eq!(engine.resize_pool(60).unwrap(), 60);
    let small = anonymous();
    let given = full.saturating_sub(small);
    let expected = (held - 60) * record;
    assert!(given as f64 > 0.95 * expected as f64, "{given} of {expected} bytes were given back");
    assert_eq!(engine.resize_pool(all).unwrap(), all);
    assert!(anonymous() < small + expected / 10, "memory comes with use");
    common::answer(&mut engine, &text, &greedy(), 2, 8);
    assert!(anonymous() > small + expected / 2, "the pool is used again");
}
