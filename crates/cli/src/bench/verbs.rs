//! Where the time goes, verb by verb.
//!
//! Owns: the stopwatch that a traced device calls, and the profile that it makes. Never: printing.

use super::measure::Row;
use cherenkov_model::device::Place;
use cherenkov_model::traced::{At, Trace, Work};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Which part of the model calls belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stage {
    /// The trunk, the embedding included.
    Trunk,
    /// The draft head.
    Draft,
    /// Final mixer and logits.
    Head,
}

impl Stage {
    fn of(place: Place) -> Self {
        match place {
            Place::Embed | Place::Layer(_) => Self::Trunk,
            Place::Head => Self::Head,
            Place::Draft => Self::Draft,
        }
    }

    /// For people.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trunk => "trunk",
            Self::Draft => "draft",
            Self::Head => "head",
        }
    }
}

/// Calls of one kind.
#[derive(Clone, Debug)]
pub struct Calls {
    /// One of them.
    pub at: At,
    /// What it had to do.
    pub work: Work,
    /// How many.
    pub count: u64,
    /// Routed experts of all of them.
    pub experts: usize,
    /// Time of all of them.
    pub time: Duration,
}

/// A measurement taken apart.
#[derive(Clone, Debug)]
pub struct Profile {
    /// The measurement.
    pub row: Row,
    /// Its calls, the most expensive kind first.
    pub calls: Vec<Calls>,
}

/// Stage, verb, inputs, outputs.
type Key = (Stage, cherenkov_model::checked::Verb, u32, u32);

#[derive(Debug, Default)]
struct State {
    began: Option<Instant>,
    calls: BTreeMap<Key, Calls>,
}

/// Times every call of a traced device. Copies share what they measure.
#[derive(Clone, Debug, Default)]
pub struct Stopwatch(Arc<Mutex<State>>);

impl Stopwatch {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a measurement spends on each verb.
    ///
    /// # Errors
    /// As the measurement.
    pub fn profile(
        &self,
        measure: impl FnOnce() -> anyhow::Result<Row>,
    ) -> anyhow::Result<Profile> {
        self.state().calls.clear();
        let row = measure()?;
        let calls = std::mem::take(&mut self.state().calls);
        let mut calls: Vec<Calls> = calls.into_values().collect();
        calls.sort_by_key(|c| std::cmp::Reverse(c.time));
        Ok(Profile { row, calls })
    }
}

impl Trace for Stopwatch {
    fn before(&mut self, _: At) {
        self.state().began = Some(Instant::now());
    }

    fn after(&mut self, at: At, work: Work) {
        let ended = Instant::now();
        let mut state = self.state();
        let time = state.began.take().map_or(Duration::ZERO, |began| ended - began);
        let key = (Stage::of(at.place), at.verb, work.inputs, work.outputs);
        let fresh = || Calls { at, work, count: 0, experts: 0, time: Duration::ZERO };
        let calls = state.calls.entry(key).or_insert_with(fresh);
        calls.count += 1;
        calls.experts += work.experts;
        calls.time += time;
    }

    fn wants(&self, _: At) -> bool {
        false
    }
}

impl Calls {
    /// Which part of the model they belong to.
    pub fn stage(&self) -> Stage {
        Stage::of(self.at.place)
    }

    /// Verb and shape.
    pub fn name(&self) -> String {
        match (self.work.inputs, self.work.outputs) {
            (0, 0) => self.at.verb.name().to_owned(),
            (inputs, outputs) => format!("{} {inputs}>{outputs}", self.at.verb),
        }
    }
}
