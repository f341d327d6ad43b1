//! Single measurements.
//!
//! Owns: what is timed: prefill of whole passes, decode of single steps. Never: loading, printing.
//! Invariant: every sample starts from the same state, a copy of a sequence at the given depth, and
//! must give the same tokens as the first, unless the user gave that promise up.

use super::force::Forced;
use super::tokens::Tokens;
use crate::args::Drafts;
use crate::args::bench::BenchArgs;
use crate::interrupt::Interrupt;
use crate::pace::{self, Pace};
use crate::plan::probe;
use cherenkov_cpu::PlainRead;
use cherenkov_engine::{Engine, SampleParams, Sampler, SeqId, Snapshot};
use cherenkov_model::MAX_TENTATIVE;
use std::time::Instant;

/// Tokens of a warm-up prompt.
const WARM_UP: usize = 256;
/// Tokens of the prompt of a warm-up: at least a pass, and one that stays pending.
pub const fn warm_up(chunk: usize) -> usize {
    if chunk < WARM_UP { WARM_UP } else { chunk + 1 }
}

/// Tokens generated after it.
const WARM_UP_ANSWER: usize = 8;
/// Warm-ups until the pool holds what it can.
const WARM_UPS_MAX: usize = 4;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Tokens of a prompt.
    Prefill,
    /// Tokens of an answer.
    Decode,
}

/// One measurement: several samples of the same thing.
#[derive(Clone, Debug)]
pub struct Row {
    /// What.
    pub kind: Kind,
    /// Tokens.
    pub count: usize,
    /// Tokens in the context before.
    pub depth: usize,
    /// Drafts per step.
    pub drafts: Drafts,
    /// Seconds of each sample.
    pub seconds: Vec<f64>,
    /// Bytes per second of the plain read before each sample; empty without one.
    pub reads: Vec<f64>,
    /// Drafts offered and accepted, by depth.
    pub accepted: Vec<(u64, u64)>,
    /// Engine steps of all samples.
    pub steps: u64,
    /// Experts that were not in memory.
    pub misses: u64,
}

impl Row {
    /// Tokens per second of each sample.
    pub fn rates(&self) -> Vec<f64> {
        self.seconds.iter().map(|&s| self.count as f64 / s).collect()
    }
}

/// A sequence that measurements start from.
#[derive(Clone, Debug)]
pub struct Base {
    /// The sequence.
    pub seq: SeqId,
    /// Its tokens, the pending one included.
    tokens: Vec<u32>,
}

impl Base {
    fn depth(&self) -> usize {
        self.tokens.len() - 1
    }
}

/// An engine to measure, and everything that goes with it.
pub struct Bench<'a> {
    /// The engine.
    pub engine: &'a mut dyn Engine,
    /// What was asked for.
    pub args: &'a BenchArgs,
    /// What is run.
    pub tokens: &'a Tokens,
    /// What decode is compared with.
    pub read: Option<&'a mut PlainRead>,
    /// Drafts per step.
    pub drafts: Drafts,
    /// Who makes the drafts right or wrong.
    pub forced: Option<Forced>,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

impl Bench<'_> {
    /// Runs a short prompt and answer, until no expert is missing any more or it is of no use.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn warm_up(&mut self) -> anyhow::Result<()> {
        for _ in 0..WARM_UPS_MAX {
            let misses = self.engine.snapshot().expert_misses;
            // A whole pass: memory for its rows is touched, and given by the system, only then.
            let prompt =
                Tokens::spread(warm_up(self.engine.info().chunk), self.engine.info().vocab);
            let seq = self.engine.open()?;
            self.run_prompt(seq, &prompt)?;
            self.generate(seq, &prompt, WARM_UP_ANSWER, self.drafts)?;
            self.engine.close(seq);
            if self.engine.snapshot().expert_misses == misses {
                break;
            }
        }
        Ok(())
    }

    /// Opens a sequence with so many tokens run, and one pending.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn base(&mut self, depth: usize) -> anyhow::Result<Base> {
        let tokens = self.tokens.before(self.tokens.depth(depth) + 1);
        let seq = self.engine.open()?;
        self.run_prompt(seq, &tokens)?;
        Ok(Base { seq, tokens })
    }

    /// Feeds tokens so that every pass is a whole chunk: one token always stays pending.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn run_prompt(&mut self, seq: SeqId, tokens: &[u32]) -> anyhow::Result<()> {
        let chunk = self.engine.info().chunk;
        let first = usize::from(self.engine.tokens(seq)?.is_empty());
        let (head, rest) = tokens.split_at(tokens.len().min(chunk + first));
        self.engine.prefill(seq, head)?;
        for piece in rest.chunks(chunk) {
            self.interrupt.check()?;
            self.engine.prefill(seq, piece)?;
        }
        self.interrupt.check()
    }

    /// Runs `count` rows behind `base`.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn prefill(&mut self, base: &Base, count: usize) -> anyhow::Result<Row> {
        let tokens = self.tokens.prompt(count);
        let mut row = self.row(Kind::Prefill, count, base);
        let before = self.engine.snapshot();
        for _ in 0..self.args.repeat {
            self.plain_read(&mut row);
            let seq = self.engine.fork(base.seq)?;
            let began = Instant::now();
            self.run_prompt(seq, &tokens)?;
            row.seconds.push(began.elapsed().as_secs_f64());
            self.engine.close(seq);
        }
        finish(&mut row, &before, &self.engine.snapshot());
        Ok(row)
    }

    /// Generates `count` tokens behind `base`.
    ///
    /// # Errors
    /// When the engine fails, or a sample has other tokens than the one before.
    pub fn decode(&mut self, base: &Base, count: usize) -> anyhow::Result<Row> {
        let mut expected = None;
        if let Some(forced) = self.forced.clone() {
            let room = self.engine.info().context - base.tokens.len();
            let seq = self.engine.fork(base.seq)?;
            let plain =
                self.generate(seq, &base.tokens, room.min(count + MAX_TENTATIVE), Drafts::NONE)?;
            self.engine.close(seq);
            expected = Some(plain[..count].to_vec());
            forced.learn(base.tokens.len(), plain);
        }
        let mut row = self.row(Kind::Decode, count, base);
        let before = self.engine.snapshot();
        for _ in 0..self.args.repeat {
            self.plain_read(&mut row);
            let seq = self.engine.fork(base.seq)?;
            let began = Instant::now();
            let tokens = self.generate(seq, &base.tokens, count, self.drafts)?;
            row.seconds.push(began.elapsed().as_secs_f64());
            self.engine.close(seq);
            let first = expected.get_or_insert_with(|| tokens.clone());
            if self.args.model.one_answer() && *first != tokens {
                anyhow::bail!(
                    "the same prompt gave two answers; `cherenkov run --check` finds where the device \
                     goes wrong"
                );
            }
        }
        finish(&mut row, &before, &self.engine.snapshot());
        Ok(row)
    }

    fn row(&self, kind: Kind, count: usize, base: &Base) -> Row {
        Row {
            kind,
            count,
            depth: base.depth(),
            drafts: self.drafts,
            seconds: Vec::new(),
            reads: Vec::new(),
            accepted: Vec::new(),
            steps: 0,
            misses: 0,
        }
    }

    fn plain_read(&mut self, row: &mut Row) {
        row.reads.extend(self.read.as_deref_mut().map(probe::memory_rate));
    }

    /// Draws `count` tokens; nothing ends the answer.
    ///
    /// # Errors
    /// When the engine fails.
    pub fn generate(
        &mut self,
        seq: SeqId,
        before: &[u32],
        count: usize,
        drafts: Drafts,
    ) -> anyhow::Result<Vec<u32>> {
        let (temperature, seed) = (self.args.temperature, self.args.seed);
        let params = SampleParams { temperature, seed, ..SampleParams::default() };
        let mut sampler = Sampler::new(params, before)?;
        let pace = Pace::new(drafts, self.engine.info().drafts);
        pace::write(self.engine, seq, &mut sampler, pace, count, self.interrupt)
    }
}

/// Adds what the engine counted.
fn finish(row: &mut Row, before: &Snapshot, after: &Snapshot) {
    row.steps = after.steps - before.steps;
    row.misses = after.expert_misses - before.expert_misses;
    let at = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
    let counts = (0..after.drafted.len()).map(|i| {
        let offered = at(&after.drafted, i) - at(&before.drafted, i);
        (offered, at(&after.accepted, i) - at(&before.accepted, i))
    });
    row.accepted = counts.take_while(|(offered, _)| *offered > 0).collect();
}
