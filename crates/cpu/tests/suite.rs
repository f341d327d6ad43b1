//! The conformance suite, on every instruction set and number of threads.

use cherenkov_cpu::{CpuDevice, CpuOptions, Isa, KvPrecision};
use cherenkov_model::checked::{Bounds, Verb};
use cherenkov_model::suite::{Plan, Scope, run};

/// Bounds of this device: products as coarse as quantised activations make them.
fn bounds(kv: KvPrecision) -> Bounds {
    match kv {
        KvPrecision::F32 => Bounds::int8(),
        KvPrecision::F16 => Bounds::int8().with(Verb::Select, 2e-3).with(Verb::Attend, 2e-3),
        // A value is off by up to half of 1/127 of its row's largest, and scores are a little: 2.5e-2
        // was never reached over six seeds.
        KvPrecision::Q8 => Bounds::int8().with(Verb::Select, 2e-3).with(Verb::Attend, 3e-2),
    }
}

fn check(isa: Isa, threads: usize, kv: KvPrecision, seed: u64) {
    let mut make = |eps| CpuDevice::new(CpuOptions { threads, isa, kv, eps }).expect("a device");
    let plan = Plan { seed, scope: Scope::All };
    match run(&mut make, &plan, &bounds(kv)) {
        Ok(report) => println!("{}, {threads} threads, {kv:?}: {report:?}", isa.name()),
        Err(failure) => panic!("{}, {threads} threads, {kv:?}: {failure}", isa.name()),
    }
}

#[test]
fn the_fastest_instruction_set_keeps_every_promise() {
    check(Isa::detect(), 2, KvPrecision::F16, 1);
    check(Isa::detect(), 3, KvPrecision::F32, 2);
    check(Isa::detect(), 2, KvPrecision::Q8, 4);
}

#[test]
fn every_instruction_set_keeps_every_promise() {
    for (i, isa) in Isa::available().into_iter().enumerate() {
        check(isa, 1 + i % 3, KvPrecision::F16, 3);
        check(isa, 1 + (i + 1) % 3, KvPrecision::Q8, 5);
    }
}
