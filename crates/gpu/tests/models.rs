//! Whole models: the answers of the reference, whatever the cut into passes.

mod common;

use cherenkov_format::pack::Precision;
use cherenkov_gpu::{AdapterInfo, GpuDevice, Options, Selection, adapters};
use cherenkov_model::checked::{Bounds, Checked};
use cherenkov_model::reference::Reference;
use cherenkov_model::{Keep, Result};
use common::{Packed, Runner, row_error};

/// Runs `check` on every adapter of this machine, or says that there is none.
fn on_adapters(name: &str, checks: usize, check: impl Fn(&AdapterInfo)) {
    let adapters = adapters();
    if adapters.is_empty() {
        println!("no adapter: {checks} checks not run ({name})");
    }
    adapters.iter().for_each(check);
}

fn on_gpu(adapter: &AdapterInfo, packed: &Packed, slots: usize) -> Runner<GpuDevice> {
    let selection = Selection::Named(adapter.name.clone());
    let device = GpuDevice::new(&selection, Options::new(packed.store.config().eps)).unwrap();
    Runner::new(device, packed, slots)
}

fn on_reference(packed: &Packed) -> Runner<Reference> {
    Runner::new(Reference::new(packed.store.config().eps), packed, 4)
}

/// Largest difference of a row's logits over the row's largest logit.
const BOUND: f64 = 1e-4;

fn check_fixture(name: &str, packed: &Packed) {
    let prompts = common::random_prompts(name);
    let mut reference = on_reference(packed);
    let vocab = reference.model.config.vocab;
    let mut expected = Vec::new();
    for (_, ids) in &prompts {
        reference.reset();
        let logits = reference.pass(ids, Keep::All);
        let mut next = ids[1..].to_vec();
        next.push(common::best(&logits[logits.len() - vocab..]));
        let draft = reference.model.draft.is_some().then(|| reference.draft(0, &next));
        expected.push((logits, next, draft));
    }
    on_adapters(name, prompts.len(), |adapter| {
        let mut gpu = on_gpu(adapter, packed, 3);
        let mut worst = [0f64; 2];
        for ((prompt, ids), (logits, next, draft)) in prompts.iter().zip(&expected) {
            gpu.reset();
            let found = gpu.pass(ids, Keep::All);
            let error = row_error(&found, logits, vocab);
            assert!(error < BOUND, "{name}/{prompt}: logits are off by {error:e}");
            worst[0] = worst[0].max(error);
            if let Some(draft) = draft {
                let error = row_error(&gpu.draft(0, next), draft, vocab);
                assert!(error < BOUND, "{name}/{prompt}: draft head is off by {error:e}");
                worst[1] = worst[1].max(error);
            }
            for chunk in [1, 3] {
                gpu.reset();
                let again = gpu.chunks(ids, chunk);
                assert!(same(&again, &found), "{name}/{prompt}: other bits in chunks of {chunk}");
            }
        }
        println!(
            "{adapter}: {name}: logits off by {:.1e}, draft head by {:.1e}",
            worst[0], worst[1]
        );
    });
}

fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}

macro_rules! fixtures {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            let exact = common::random(stringify!($name), Precision::Bf16, Precision::Bf16);
            check_fixture(stringify!($name), &exact);
            check_fixture(stringify!($name), &common::usual(stringify!($name)));
        }
    )*};
}

fixtures!(base, ple3, wide, silu, interval2, ties);

#[test]
fn the_pocket_model_answers_as_on_the_reference() {
    let packed = common::pocket();
    let prompts: Vec<_> =
        common::pocket_prompts().into_iter().filter(|(_, ids)| ids.len() < 60).collect();
    let count = 24;
    let mut reference = on_reference(&packed);
    let expected: Vec<_> = prompts.iter().map(|(_, ids)| reference.greedy(ids, count)).collect();
    on_adapters("pocket", prompts.len(), |adapter| {
        let mut gpu = on_gpu(adapter, &packed, 96);
        for ((name, ids), expected) in prompts.iter().zip(&expected) {
            assert_eq!(&gpu.greedy(ids, count), expected, "{name}");
        }
        println!("{adapter}: {} greedy answers of {count} tokens agree", prompts.len());
    });
}

#[test]
fn drafts_that_are_taken_back_leave_no_trace() {
    let packed = common::pocket();
    let (_, ids) = &common::pocket_prompts()[2];
    on_adapters("drafts", 1, |adapter| {
        let mut gpu = on_gpu(adapter, &packed, 64);
        let vocab = gpu.model.config.vocab;
        let plain = gpu.chunks(ids, ids.len());
        gpu.reset();
        let mut found = gpu.pass(&ids[..2], Keep::All);
        let (mut at, mut stay) = (2, 0);
        while at < ids.len() {
            let kept = stay.min(ids.len() - at);
            // After the rows that stay come wrong ones.
            let tokens: Vec<u32> = (0..5).map(|i| if i < kept { ids[at + i] } else { 7 }).collect();
            let logits = gpu.pass(&tokens, Keep::Tentative);
            gpu.settle(kept);
            found.extend_from_slice(&logits[..kept * vocab]);
            (at, stay) = (at + kept, (stay + 1) % 6);
        }
        assert!(same(&found, &plain), "{adapter}: other bits with drafts");
    });
}

/// A prompt through the checked device: every verb against the reference on the same inputs.
fn checked(adapter: &AdapterInfo, packed: &Packed, ids: &[u32], bounds: Bounds) -> Result<()> {
    let eps = packed.store.config().eps;
    let selection = Selection::Named(adapter.name.clone());
    let gpu = GpuDevice::new(&selection, Options::new(eps)).unwrap();
    let device = Checked::new(gpu, Reference::new(eps), bounds);
    Runner::new(device, packed, 64).try_pass(ids, Keep::All).map(drop)
}

#[test]
fn every_verb_of_the_pocket_model_is_close() {
    let packed = common::pocket();
    let (_, ids) = &common::pocket_prompts()[2];
    on_adapters("checked", 1, |adapter| {
        checked(adapter, &packed, ids, Bounds::f32()).unwrap();
    });
}
