//! A pool that shrinks and grows while an engine generates: one set of bits.

mod common;

use cherenkov_engine::{Engine, Step};
use common::{Answer, Setup, Writer, greedy, pocket, prompt, warm};

const TOKENS: usize = 40;

/// Pseudo-random numbers.
struct Dice(u64);

impl Dice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % n
    }
}

/// Answers while the pool is resized at random points, also between parts of the prompt.
fn answer_resized(
    engine: &mut dyn Engine,
    most: usize,
    params: &cherenkov_engine::SampleParams,
    drafts: usize,
    dice: &mut Dice,
) -> Answer {
    let vocab = engine.info().vocab;
    let prompt = prompt(150, vocab, 5);
    let seq = engine.open().unwrap();
    let mut sizes = Vec::new();
    let mut resize = |engine: &mut dyn Engine, dice: &mut Dice| {
        if dice.below(2) == 0 {
            // Small pools as often as large ones.
            let slots = 1 + dice.below(most) / (1 << dice.below(8));
            assert_eq!(engine.resize_pool(slots).unwrap(), slots.clamp(1, most));
            sizes.push(engine.snapshot().pool_slots);
            assert_eq!(sizes.last(), Some(&slots));
        }
    };
    let mut rest = &prompt[..];
    while !rest.is_empty() {
        let (part, left) = rest.split_at((1 + dice.below(70)).min(rest.len()));
        engine.prefill(seq, part).unwrap();
        resize(engine, dice);
        rest = left;
    }
    let mut writer = Writer::new(seq, params, &prompt, vocab);
    while writer.tokens.len() < TOKENS {
        let mut step = [Step::new(seq, &mut writer.sampler, drafts, &[])];
        engine.decode(&mut step).unwrap();
        let [step] = step;
        let out = step.out;
        writer.take(&out, TOKENS);
        resize(engine, dice);
    }
    engine.close(seq);
    assert!(sizes.len() > 5, "{sizes:?}");
    writer.answer()
}

#[test]
fn the_bits_do_not_depend_on_a_pool_that_changes() {
    let store = pocket();
    let vocab = store.store.config().vocab;
    for (params, drafts) in [(greedy(), 0), (warm(3), 2)] {
        let most = 300;
        let setup = Setup { pool_slots: most, chunk: 40, ..Setup::default() };
        let plain =
            common::answer(&mut setup.cpu(&store), &prompt(150, vocab, 5), &params, drafts, TOKENS);
        for seed in 0..6 {
            let mut engine = setup.cpu(&store);
            let got = answer_resized(&mut engine, most, &params, drafts, &mut Dice(seed));
            assert_eq!(got, plain, "seed {seed}");
            assert_eq!(engine.resize_pool(usize::MAX).unwrap(), most, "no more than at the start");
        }
    }
}
