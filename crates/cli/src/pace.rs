//! Drafts per step of one answer.
//!
//! Owns: the clock that the choice of a depth is told, answers that nothing ends. Never: the choice (see
//! [`cherenkov_engine::Depth`]).

use crate::args::Drafts;
use crate::interrupt::Interrupt;
use cherenkov_engine::{Depth, Engine, Error, Sampler, SeqId, Step};
use std::time::Instant;

/// How many drafts the next step has.
#[derive(Clone, Debug)]
pub enum Pace {
    /// Always so many.
    Fixed(usize),
    /// As many as pay.
    Adaptive(Depth),
}

impl Pace {
    /// As the rule says, where a step may have at most `most`.
    pub fn new(rule: Drafts, most: usize) -> Self {
        match rule {
            Drafts::Auto => Self::Adaptive(Depth::new(most)),
            Drafts::Count(count) => Self::Fixed(count),
        }
    }

    /// Drafts of the next step.
    pub fn next(&self) -> usize {
        match self {
            Self::Fixed(count) => *count,
            Self::Adaptive(depth) => depth.next(),
        }
    }

    /// Runs a step of one sequence and learns from it.
    ///
    /// # Errors
    /// When the engine fails; a failure of the sequence alone is in the step.
    pub fn decode(&mut self, engine: &mut dyn Engine, step: &mut Step<'_>) -> Result<(), Error> {
        let began = Instant::now();
        engine.decode(std::slice::from_mut(step))?;
        if let Self::Adaptive(depth) = self {
            depth.learn(step.drafts, step.out.len(), began.elapsed());
        }
        Ok(())
    }
}

/// Draws `count` tokens. Nothing ends the answer but the user: what follows an end is arithmetic like any
/// other.
///
/// # Errors
/// When the engine fails, or the user stopped it.
pub fn write(
    engine: &mut dyn Engine,
    seq: SeqId,
    sampler: &mut Sampler,
    mut pace: Pace,
    count: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<Vec<u32>> {
    let mut tokens = Vec::with_capacity(count);
    while tokens.len() < count {
        interrupt.check()?;
        let drafts = pace.next().min(count - tokens.len() - 1);
        let mut step = Step::new(seq, sampler, drafts, &[]);
        pace.decode(engine, &mut step)?;
        if let Some(failure) = step.failure {
            return Err(failure.into());
        }
        tokens.extend(step.out.iter().map(|drawn| drawn.token));
    }
    Ok(tokens)
}
