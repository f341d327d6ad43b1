//! What a trace writes: one JSON object per line (docs/streaming.md).
//!
//! Owns: the lines. Never: the run.
//! Invariant: floats are written so that reading them gives the same bits; what is not finite is null.

use crate::args::trace::Subject;
use cherenkov_model::checked::Verb;
use cherenkov_model::device::{Act, Place, Routes};
use cherenkov_model::traced::{At, Trace};
use cherenkov_model::{Batch, Keep};
use serde::Serialize;
use std::io::{self, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The first line.
#[derive(Debug, Serialize)]
pub struct Header<'a> {
    /// `header`.
    pub kind: &'static str,
    /// `cherenkov-trace`.
    pub format: &'static str,
    /// Of the format.
    pub version: u32,
    /// Directory of the store.
    pub model: &'a str,
    /// What computes.
    pub device: &'a str,
    /// Layers of the trunk.
    pub layers: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts of a row.
    pub top_k: usize,
    /// Tokens of the vocabulary.
    pub vocab: usize,
    /// Tokens of the prompt.
    pub prompt: &'a [u32],
}

/// A pass begins.
#[derive(Serialize)]
struct Pass<'a> {
    kind: &'static str,
    pass: u64,
    part: &'static str,
    /// Rows that may be taken back.
    tentative: Vec<bool>,
    positions: &'a [u32],
    tokens: &'a [u32],
}

/// Something about one row of the pass.
#[derive(Serialize)]
struct Row<'a, T: Serialize> {
    kind: &'static str,
    pass: u64,
    part: &'static str,
    /// Of the trunk; absent outside its layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<u32>,
    position: u32,
    #[serde(flatten)]
    what: &'a T,
}

#[derive(Serialize)]
struct Chosen<'a> {
    experts: &'a [u32],
    weights: &'a [f32],
}

#[derive(Serialize)]
struct Picked<'a> {
    blocks: &'a [u32],
}

/// The likeliest token and how far it is ahead of the second.
#[derive(Serialize)]
struct Best {
    token: u32,
    logit: f32,
    margin: f32,
}

#[derive(Serialize)]
struct Values<'a> {
    values: &'a [f32],
}

struct State {
    out: Box<dyn Write + Send>,
    /// Why the file could not be written on.
    failed: Option<io::Error>,
    pass: u64,
    positions: Vec<u32>,
    tentative: Vec<bool>,
    tokens: Vec<u32>,
    /// Whether the pass has been announced: only then is it known which part it is.
    announced: bool,
}

/// Writes a trace; copies write the same one.
#[derive(Clone)]
pub struct Sink {
    state: Arc<Mutex<State>>,
    what: Arc<[Subject]>,
}

fn part(place: Place) -> &'static str {
    if place == Place::Draft { "draft" } else { "trunk" }
}

fn layer(place: Place) -> Option<u32> {
    match place {
        Place::Layer(layer) => Some(layer),
        Place::Embed | Place::Head | Place::Draft => None,
    }
}

impl Sink {
    /// Writes what is asked for to `out`.
    pub fn new(out: impl Write + Send + 'static, what: &[Subject]) -> Self {
        let state = State {
            out: Box::new(out),
            failed: None,
            pass: 0,
            positions: Vec::new(),
            tentative: Vec::new(),
            tokens: Vec::new(),
            announced: true,
        };
        Self { state: Arc::new(Mutex::new(state)), what: what.into() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shows(&self, subject: Subject) -> bool {
        self.what.contains(&subject)
    }

    /// Writes a line.
    pub fn write(&self, line: &impl Serialize) {
        self.state().write(line);
    }

    /// Writes what is still held back.
    ///
    /// # Errors
    /// When this or an earlier line could not be written.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state();
        match state.failed.take() {
            Some(error) => Err(error),
            None => state.out.flush(),
        }
    }
}

impl State {
    fn write(&mut self, line: &impl Serialize) {
        if self.failed.is_some() {
            return;
        }
        let written = serde_json::to_writer(&mut self.out, line).map_err(io::Error::from);
        let written = written.and_then(|()| self.out.write_all(b"\n"));
        self.failed = written.err();
    }

    fn announce(&mut self, place: Place) {
        if std::mem::replace(&mut self.announced, true) {
            return;
        }
        let positions = std::mem::take(&mut self.positions);
        let tokens = std::mem::take(&mut self.tokens);
        self.write(&Pass {
            kind: "pass",
            pass: self.pass,
            part: part(place),
            tentative: self.tentative.clone(),
            positions: &positions,
            tokens: &tokens,
        });
        (self.positions, self.tokens) = (positions, tokens);
    }

    fn row(&mut self, kind: &'static str, place: Place, row: usize, what: &impl Serialize) {
        self.announce(place);
        let position = self.positions[row];
        let pass = self.pass;
        self.write(&Row { kind, pass, part: part(place), layer: layer(place), position, what });
    }
}

impl Trace for Sink {
    fn begin(&mut self, batch: &Batch) {
        let mut state = self.state();
        state.pass += 1;
        state.announced = false;
        let position =
            |run: &cherenkov_model::Run, row: usize| run.start + (row - run.first) as u32;
        let rows = || batch.runs.iter().flat_map(|run| run.range().map(move |row| (run, row)));
        state.positions = rows().map(|(run, row)| position(run, row)).collect();
        state.tentative = rows().map(|(run, _)| run.keep == Keep::Tentative).collect();
        state.tokens.clone_from(&batch.tokens);
    }

    fn wants(&self, at: At) -> bool {
        match at.verb {
            Verb::Select => self.shows(Subject::Picks),
            Verb::HyperWrite => self.shows(Subject::States),
            _ => false,
        }
    }

    fn act(&mut self, at: At, act: Act, values: &[f32]) {
        let mut state = self.state();
        for (row, values) in values.chunks_exact(act.width as usize).enumerate() {
            state.row("state", at.place, row, &Values { values });
        }
    }

    fn routes(&mut self, at: At, routes: &Routes) {
        if !self.shows(Subject::Routes) {
            return;
        }
        let mut state = self.state();
        let rows = routes.ids.chunks_exact(routes.k).zip(routes.weights.chunks_exact(routes.k));
        for (row, (experts, weights)) in rows.enumerate() {
            state.row("routes", at.place, row, &Chosen { experts, weights });
        }
    }

    fn picks(&mut self, at: At, blocks: &[Vec<u32>]) {
        let mut state = self.state();
        for (row, blocks) in blocks.iter().enumerate() {
            state.row("picks", at.place, row, &Picked { blocks });
        }
    }

    fn logits(&mut self, at: At, rows: &[u32], values: &[f32]) {
        let width = values.len() / rows.len().max(1);
        let mut state = self.state();
        for (&row, values) in rows.iter().zip(values.chunks_exact(width.max(1))) {
            if self.shows(Subject::Argmax) {
                state.row("argmax", at.place, row as usize, &best(values));
            }
            if self.shows(Subject::Logits) {
                state.row("logits", at.place, row as usize, &Values { values });
            }
        }
    }
}

/// The largest logit (the lowest id among equals) and its lead.
fn best(logits: &[f32]) -> Best {
    let (mut token, mut logit, mut second) = (0, f32::NEG_INFINITY, f32::NEG_INFINITY);
    for (id, &value) in logits.iter().enumerate() {
        if value > logit {
            second = logit;
            (token, logit) = (id as u32, value);
        } else if value > second {
            second = value;
        }
    }
    Best { token, logit, margin: logit - second }
}
