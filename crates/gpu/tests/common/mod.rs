//! Whole models on any device.

#![allow(dead_code, reason = "each test binary uses its own part")]

use cherenkov_experts::{Experts, FileSource, Layouts, Streaming};
use cherenkov_format::pack::{self, Precision};
use cherenkov_format::{Bits, Store};
use cherenkov_model::device::{Device, Recall, SlotId};
use cherenkov_model::pages::Pages;
use cherenkov_model::qwen4_exp::{DraftSource, Input, LoadDraft, Model, Sequence};
use cherenkov_model::{Batch, Keep, Result};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A store in a directory that lives as long as the value.
pub struct Packed {
    pub store: Arc<Store>,
    _dir: Option<tempfile::TempDir>,
}

/// The bundled pocket model.
pub fn pocket() -> Packed {
    let store = Store::open(&root().join("assets/pocket")).expect("the bundled model opens");
    Packed { store: Arc::new(store), _dir: None }
}

/// A random fixture with these precisions of experts and dense weights.
pub fn random(name: &str, experts: Precision, dense: Precision) -> Packed {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let options = pack::Options { experts, dense, ..pack::Options::default() };
    let src = root().join("fixtures/random").join(name);
    pack::pack(&src, &out, &options, &mut cherenkov_format::progress::Silent).unwrap();
    Packed { store: Arc::new(Store::open(&out).unwrap()), _dir: Some(dir) }
}

/// Experts at 4 bits, dense weights at 8.
pub fn usual(name: &str) -> Packed {
    random(name, Precision::Bits(Bits::B4), Precision::Bits(Bits::B8))
}

/// Rows of the largest pass.
const ROWS: usize = 160;
/// Pages of all sequences.
const PAGES: usize = 16;

/// A model on a device, with one sequence.
pub struct Runner<D: Device> {
    pub device: D,
    pub model: Model<D>,
    experts: Experts<D::Bank>,
    pages: Pages,
    sequence: Sequence,
}

impl<D: Device> Runner<D> {
    /// Loads a store, with room for `slots` experts.
    pub fn new(mut device: D, packed: &Packed, slots: usize) -> Self {
        let store = &packed.store;
        let model = Model::load(store, &mut device, LoadDraft::Yes, (ROWS, 2, PAGES)).unwrap();
        let source = FileSource::open(store, &[]).unwrap();
        let bank = device.bank(slots, &Layouts::of_source(&source)).unwrap();
        let experts = Experts::new(bank, source, Streaming::default()).unwrap();
        let sequence = Sequence::open(&model, &mut device, SlotId(0)).unwrap();
        Self { device, model, experts, pages: Pages::new(PAGES), sequence }
    }

    /// Starts over.
    pub fn reset(&mut self) {
        let fresh = Sequence::open(&self.model, &mut self.device, SlotId(0)).unwrap();
        std::mem::replace(&mut self.sequence, fresh).close(&mut self.pages);
    }

    /// Runs tokens; logits of every row.
    pub fn pass(&mut self, tokens: &[u32], keep: Keep) -> Vec<f32> {
        self.try_pass(tokens, keep).unwrap()
    }

    /// As [`Self::pass`], with the device's error.
    pub fn try_pass(&mut self, tokens: &[u32], keep: Keep) -> Result<Vec<f32>> {
        self.sequence.reserve(&mut self.device, &mut self.pages, tokens.len())?;
        let mut input = Input::default();
        input.push(&self.model, &mut self.sequence, tokens, keep);
        self.model.trunk(&mut self.device, &mut self.experts, &input)?;
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        self.model.logits(&mut self.device, &rows)
    }

    /// Runs tokens in chunks; logits of every row.
    pub fn chunks(&mut self, tokens: &[u32], chunk: usize) -> Vec<f32> {
        tokens.chunks(chunk).flat_map(|some| self.pass(some, Keep::All)).collect()
    }

    /// Keeps the first rows of a tentative pass.
    pub fn settle(&mut self, rows: usize) {
        self.sequence.settle(&mut self.device, rows).unwrap();
    }

    /// The draft head over the rows of the last pass, `next` being their next tokens.
    pub fn draft(&mut self, start: usize, next: &[u32]) -> Vec<f32> {
        let from: Vec<Recall> = (0..next.len() as u32).map(Recall::Row).collect();
        let mut batch = Batch::default();
        let sequence = &self.sequence;
        batch.push(sequence.slot(), start as u32, next, sequence.pages(), Keep::All);
        let (device, experts) = (&mut self.device, &mut self.experts);
        self.model.draft(device, experts, &batch, DraftSource::Trunk, &from).unwrap();
        let rows: Vec<u32> = (0..next.len() as u32).collect();
        self.model.draft_logits(device, &rows).unwrap()
    }

    /// Runs a prompt and then `count` greedy tokens, one at a time.
    pub fn greedy(&mut self, prompt: &[u32], count: usize) -> Vec<u32> {
        self.reset();
        let vocab = self.model.config.vocab;
        let logits = self.pass(prompt, Keep::All);
        let mut out = vec![best(&logits[logits.len() - vocab..])];
        while out.len() < count {
            let logits = self.pass(&out[out.len() - 1..], Keep::All);
            out.push(best(&logits));
        }
        out
    }
}

/// The largest logit, the lowest id among equals.
pub fn best(logits: &[f32]) -> u32 {
    let mut best = 0;
    for (i, &l) in logits.iter().enumerate() {
        if l > logits[best] {
            best = i;
        }
    }
    best as u32
}

/// Largest difference of a row over the row's largest magnitude.
pub fn row_error(found: &[f32], expected: &[f32], width: usize) -> f64 {
    assert_eq!(found.len(), expected.len());
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    let error = |(f, e): (&[f32], &[f32])| {
        let scale = e.iter().fold(0f64, |m, &e| m.max(f64::from(e).abs()));
        let off = |(&f, &e): (&f32, &f32)| (f64::from(f) - f64::from(e)).abs();
        f.iter().zip(e).map(off).fold(0.0, f64::max) / scale
    };
    rows.map(error).fold(0.0, f64::max)
}

/// The prompts of the pocket model: name and tokens.
pub fn pocket_prompts() -> Vec<(String, Vec<u32>)> {
    let text = std::fs::read_to_string(root().join("fixtures/pocket/prompts.json")).unwrap();
    prompts(&serde_json::from_str(&text).unwrap())
}

/// The prompts of a random fixture.
pub fn random_prompts(name: &str) -> Vec<(String, Vec<u32>)> {
    let path = root().join("fixtures/random").join(name).join("golden/golden.json");
    let json: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    prompts(&json["prompts"])
}

fn prompts(json: &serde_json::Value) -> Vec<(String, Vec<u32>)> {
    let ids = |p: &serde_json::Value| {
        let ids = p["input_ids"].as_array().unwrap().iter();
        ids.map(|id| id.as_u64().unwrap() as u32).collect()
    };
    let all = json.as_array().unwrap().iter();
    all.map(|p| (p["name"].as_str().unwrap().to_owned(), ids(p))).collect()
}
