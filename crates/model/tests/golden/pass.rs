//! Runs prompts through the wiring on a traced reference.

use crate::files::Prompt;
use cherenkov_experts::{Experts, FileSource, Layouts, RamBank, Streaming};
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_model::checked::Verb;
use cherenkov_model::device::{Act, Device, Place, Recall, Routes, SlotId};
use cherenkov_model::pages::Pages;
use cherenkov_model::qwen4_exp::{DraftSource, Input, LoadDraft, Model, Sequence};
use cherenkov_model::reference::Reference;
use cherenkov_model::traced::{At, Trace, Traced};
use cherenkov_model::{Batch, Keep};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a run through the trunk showed.
#[derive(Default)]
pub struct Run {
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
    /// `[layers + 1, tokens, wide]`.
    pub streams: Vec<f32>,
    /// Per layer and token the experts, ascending.
    pub routes: Vec<Vec<Vec<u32>>>,
    /// Per attention layer and token the blocks.
    pub picks: BTreeMap<usize, Vec<Vec<u32>>>,
}

/// Collects what golden values speak of.
#[derive(Default)]
struct Sink {
    embedding: Vec<f32>,
    streams: BTreeMap<usize, Vec<f32>>,
    latest: Vec<f32>,
    routes: BTreeMap<usize, Vec<Vec<u32>>>,
    picks: BTreeMap<usize, Vec<Vec<u32>>>,
}

impl Trace for Sink {
    fn wants(&self, at: At) -> bool {
        matches!(at.verb, Verb::Repeat | Verb::HyperWrite | Verb::Route | Verb::Select)
    }

    fn act(&mut self, at: At, _: Act, values: &[f32]) {
        match (at.verb, at.place) {
            (Verb::Repeat, Place::Embed) => self.embedding.extend(values),
            // The wiring writes twice per layer (the first time as a turn); the last write stands.
            (Verb::HyperWrite, Place::Layer(layer)) => {
                self.latest = values.to_vec();
                let all = self.streams.entry(layer as usize).or_default();
                all.extend(&self.latest);
            }
            _ => {}
        }
    }

    fn routes(&mut self, at: At, routes: &Routes) {
        if let Place::Layer(layer) = at.place {
            let rows = routes.ids.chunks_exact(routes.k).map(<[u32]>::to_vec);
            self.routes.entry(layer as usize).or_default().extend(rows);
        }
    }

    fn picks(&mut self, at: At, blocks: &[Vec<u32>]) {
        if let Place::Layer(layer) = at.place {
            self.picks.entry(layer as usize).or_default().extend_from_slice(blocks);
        }
    }
}

/// A fixture on the reference.
pub struct Loaded {
    device: Traced<Reference, Sink>,
    model: Model<Traced<Reference, Sink>>,
    experts: Experts<RamBank>,
    pages: Pages,
    sequence: Option<Sequence>,
    _dir: Option<tempfile::TempDir>,
}

const ROWS: usize = 512;

impl Loaded {
    /// Packs a checkpoint without loss and loads it.
    pub fn from_checkpoint(src: &Path) -> Self {
        use cherenkov_format::pack::{Options, Precision, pack};
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("store");
        let options = Options {
            experts: Precision::Bf16,
            dense: Precision::Bf16,
            ngram: Precision::Bf16,
            ..Options::default()
        };
        pack(src, &out, &options, &mut cherenkov_format::progress::Silent).unwrap();
        Self { _dir: Some(dir), ..Self::from_store(&out) }
    }

    /// Loads a store.
    pub fn from_store(dir: &Path) -> Self {
        let store = Arc::new(Store::open(dir).unwrap());
        let mut device = Traced::new(Reference::new(store.config().eps), Sink::default());
        let pages = ROWS / 32;
        let model = Model::load(&store, &mut device, LoadDraft::Yes, (ROWS, 2, pages)).unwrap();
        let source = FileSource::open(&store, &[]).unwrap();
        let bank = device.bank(4, &Layouts::of_source(&source)).unwrap();
        let experts = Experts::new(bank, source, Streaming::default()).unwrap();
        Self { device, model, experts, pages: Pages::new(pages), sequence: None, _dir: None }
    }

    /// The model's geometry.
    pub fn config(&self) -> &Config {
        &self.model.config
    }

    /// Runs a prompt in chunks of at most `chunk` rows, with a fresh sequence.
    pub fn run(&mut self, ids: &[u32], chunk: usize) -> Run {
        self.device.trace = Sink::default();
        let mut sequence = Sequence::open(&self.model, &mut self.device, SlotId(0)).unwrap();
        let mut run = Run::default();
        for ids in ids.chunks(chunk.min(ids.len())) {
            sequence.reserve(&mut self.device, &mut self.pages, ids.len()).unwrap();
            let mut input = Input::default();
            input.push(&self.model, &mut sequence, ids, Keep::All);
            self.model.trunk(&mut self.device, &mut self.experts, &input).unwrap();
            let rows: Vec<u32> = (0..ids.len() as u32).collect();
            run.logits.extend(self.model.logits(&mut self.device, &rows).unwrap());
        }
        let sink = std::mem::take(&mut self.device.trace);
        run.streams = sink.embedding;
        sink.streams.into_values().for_each(|s| run.streams.extend(s));
        run.routes = sink.routes.into_values().collect();
        run.picks = sink.picks;
        self.sequence = Some(sequence);
        run
    }

    /// The `count` tokens that follow a prompt when the largest logit always wins.
    pub fn greedy(&mut self, ids: &[u32], count: usize) -> Vec<u32> {
        let mut logits = self.run(ids, usize::MAX).logits;
        let mut tokens = Vec::new();
        loop {
            let row = &logits[logits.len() - self.model.config.vocab..];
            let best = (0..row.len()).max_by(|&a, &b| row[a].total_cmp(&row[b]).then(b.cmp(&a)));
            tokens.push(best.unwrap() as u32);
            if tokens.len() == count {
                return tokens;
            }
            let mut sequence = self.sequence.take().unwrap();
            sequence.reserve(&mut self.device, &mut self.pages, 1).unwrap();
            let mut input = Input::default();
            input.push(&self.model, &mut sequence, &tokens[tokens.len() - 1..], Keep::All);
            self.model.trunk(&mut self.device, &mut self.experts, &input).unwrap();
            logits = self.model.logits(&mut self.device, &[0]).unwrap();
            self.sequence = Some(sequence);
        }
    }

    fn draft_rows(
        &mut self,
        start: usize,
        tokens: &[u32],
        source: DraftSource,
        from: &[Recall],
    ) -> Vec<f32> {
        let sequence = self.sequence.as_ref().unwrap();
        let mut batch = Batch::default();
        batch.push(sequence.slot(), start as u32, tokens, sequence.pages(), Keep::All);
        self.model.draft(&mut self.device, &mut self.experts, &batch, source, from).unwrap();
        let rows: Vec<u32> = (0..tokens.len() as u32).collect();
        self.model.draft_logits(&mut self.device, &rows).unwrap()
    }

    /// The draft head over a prompt, in chunks as [`Self::run`]: logits of every row, and of two
    /// chained rows.
    pub fn draft(&mut self, prompt: &Prompt, chunk: usize) -> (Vec<f32>, Vec<f32>) {
        self.close();
        let ids = &prompt.ids;
        let mut sequence = Sequence::open(&self.model, &mut self.device, SlotId(0)).unwrap();
        sequence.reserve(&mut self.device, &mut self.pages, ids.len()).unwrap();
        self.sequence = Some(sequence);
        let mut next = ids[1..].to_vec();
        next.push(prompt.bonus.unwrap());
        let (mut logits, chunk) = (Vec::new(), chunk.min(ids.len()));
        for (i, part) in ids.chunks(chunk).enumerate() {
            let mut input = Input::default();
            input.push(&self.model, self.sequence.as_mut().unwrap(), part, Keep::All);
            self.model.trunk(&mut self.device, &mut self.experts, &input).unwrap();
            let start = i * chunk;
            let from: Vec<Recall> = (0..part.len() as u32).map(Recall::Row).collect();
            let tokens = &next[start..start + part.len()];
            logits.extend(self.draft_rows(start, tokens, DraftSource::Trunk, &from));
        }
        let last = (ids.len() - 1) % chunk;
        let mut chain = Vec::new();
        for (i, &token) in prompt.chain.iter().take(2).enumerate() {
            let row = if i == 0 { last as u32 } else { 0 };
            let at = ids.len() + i;
            chain.extend(self.draft_rows(at, &[token], DraftSource::Draft, &[Recall::Row(row)]));
        }
        (logits, chain)
    }

    /// Ends the sequence.
    pub fn close(&mut self) {
        if let Some(sequence) = self.sequence.take() {
            sequence.close(&mut self.pages);
        }
    }
}
