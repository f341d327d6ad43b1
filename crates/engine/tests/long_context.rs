//! Prompts of 32K tokens: every row attends to the blocks that its budget allows, in whatever pieces the
//! prompt comes, and the answer stays the same.

mod common;

use cherenkov_cpu::{CpuDevice, CpuOptions};
use cherenkov_engine::{Engine, LoadDraft, Runner};
use cherenkov_format::qwen4_exp::config::Mixer;
use cherenkov_model::traced::{At, Trace, Traced};
use common::{Answer, Setup, answer, greedy, pocket, prompt};
use std::sync::{Arc, Mutex};

const TOKENS: usize = 32 * 1024;
const ANSWER: usize = 8;

/// What was seen of the choices of blocks.
#[derive(Debug, Default)]
struct Seen {
    rows: usize,
    tokens_attended: usize,
    /// Rows that saw more blocks than their budget, and kept one of the first half of them.
    far: usize,
}

/// Checks every choice against what its row can see.
struct Choices {
    ratio: usize,
    budget: usize,
    seen: Arc<Mutex<Seen>>,
    /// Tokens before the pass, by its calls: every attention layer chooses once a pass.
    passes: Vec<(At, usize)>,
}

impl Trace for Choices {
    fn picks(&mut self, at: At, blocks: &[Vec<u32>]) {
        let found = self.passes.iter().position(|(known, _)| *known == at);
        let index = found.unwrap_or_else(|| {
            self.passes.push((at, 0));
            self.passes.len() - 1
        });
        let start = &mut self.passes[index].1;
        let mut seen = self.seen.lock().unwrap();
        for (row, picks) in blocks.iter().enumerate() {
            let complete = (*start + row + 1) / self.ratio;
            assert_eq!(picks.len(), complete.min(self.budget), "{at:?}, token {}", *start + row);
            assert!(picks.windows(2).all(|w| w[0] < w[1]), "{at:?}: {picks:?}");
            assert!(picks.last().is_none_or(|last| (*last as usize) < complete), "{at:?}");
            seen.rows += 1;
            seen.tokens_attended += picks.len() * self.ratio;
            let far = |first: &u32| complete > self.budget && (*first as usize) < complete / 2;
            seen.far += usize::from(picks.first().is_some_and(far));
        }
        *start += blocks.len();
    }
}

fn setup() -> Setup {
    Setup { context: TOKENS + 64, sequences: 1, chunk: 512, pool_slots: 5000, ..Setup::default() }
}

fn ask(engine: &mut dyn Engine, drafts: usize) -> Answer {
    let prompt = prompt(TOKENS, engine.info().vocab, 3);
    answer(engine, &prompt, &greedy(), drafts, ANSWER)
}

#[test]
fn a_row_attends_to_its_budget_however_long_the_context() {
    let packed = pocket();
    let config = packed.store.config();
    let (ratio, budget) = (config.attention.index_ratio, config.attention.budget_blocks());
    let seen = Arc::new(Mutex::new(Seen::default()));
    let choices = Choices { ratio, budget, seen: Arc::clone(&seen), passes: Vec::new() };
    let setup = Setup { draft: LoadDraft::No, threads: 2, ..setup() };
    let device = CpuDevice::new(CpuOptions::new(setup.threads, config.eps)).unwrap();
    let traced = Traced::new(device, choices);
    let mut engine =
        Runner::load(&packed.store, traced, setup.options(), setup.streaming()).unwrap();
    let expected = ask(&mut engine, 0);

    let seen = seen.lock().unwrap();
    let layers = config.layers.iter().filter(|m| **m == Mixer::Attention).count();
    assert_eq!(seen.rows, layers * (TOKENS - 1 + ANSWER));
    assert!(seen.tokens_attended <= seen.rows * budget * ratio);
    assert!(seen.far > seen.rows / 2, "choices are not only the newest blocks: {seen:?}");

    // Other pieces, a thread less, drafts, a small pool: the same answer.
    let setup = Setup { chunk: 391, pool_slots: 24, threads: 1, ..self::setup() };
    assert_eq!(ask(&mut setup.cpu(&packed), 3), expected);
}
