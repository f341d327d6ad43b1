//! Drafts per step of one answer.
//!
//! Owns: the clock that the choice of a depth is told. Never: the choice (see
//! [`cherenkov_engine::Depth`]).

use crate::args::Drafts;
use cherenkov_engine::{Depth, Engine, Error, Step};
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
