//! A whole model on a checked device: a fault is named with its verb and layer.

use crate::faulty::{Call, Fault, Faulty};
use cherenkov_experts::{Experts, FileSource, Layouts, RamBank, Streaming};
use cherenkov_format::Store;
use cherenkov_model::checked::{Bounds, Checked, PairBank, Verb};
use cherenkov_model::pages::Pages;
use cherenkov_model::qwen4_exp::{Input, LoadDraft, Model, Sequence};
use cherenkov_model::reference::Reference;
use cherenkov_model::{Device, Error, Keep, Place, Result, SlotId};
use std::path::Path;
use std::sync::Arc;

type Both = Checked<Faulty, Reference>;

/// A small model, packed without loss.
fn store() -> (tempfile::TempDir, Arc<Store>) {
    use cherenkov_format::pack::{Options, Precision, pack};
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/random/base");
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let options = Options {
        experts: Precision::Bf16,
        dense: Precision::Bf16,
        ngram: Precision::Bf16,
        ..Options::default()
    };
    pack(&src, &out, &options, &mut cherenkov_format::progress::Silent).unwrap();
    let store = Arc::new(Store::open(&out).unwrap());
    (dir, store)
}

/// A model on a checked device.
struct Loaded {
    device: Both,
    model: Model<Both>,
    experts: Experts<PairBank<RamBank, RamBank>>,
    pages: Pages,
}

const TOKENS: usize = 48;

fn tokens(vocab: usize) -> Vec<u32> {
    (0..TOKENS as u32).map(|i| (i * 37 + i * i * 11) % vocab as u32).collect()
}

impl Loaded {
    fn new(store: &Arc<Store>, fault: Fault, bounds: Bounds) -> Self {
        let eps = store.config().eps;
        let mut device = Checked::new(Faulty::new(eps, fault), Reference::new(eps), bounds);
        let model = Model::load(store, &mut device, LoadDraft::Yes, (TOKENS, 2, 6)).unwrap();
        let source = FileSource::open(store, &[]).unwrap();
        let bank = device.bank(4, &Layouts::of_source(&source)).unwrap();
        let experts = Experts::new(bank, source, Streaming::default()).unwrap();
        Self { device, model, experts, pages: Pages::new(6) }
    }

    fn open(&mut self, slot: u32) -> Sequence {
        let mut sequence = Sequence::open(&self.model, &mut self.device, SlotId(slot)).unwrap();
        sequence.reserve(&mut self.device, &mut self.pages, TOKENS).unwrap();
        sequence
    }

    /// Logits of the last row.
    fn run(&mut self, sequence: &mut Sequence, tokens: &[u32], keep: Keep) -> Result<Vec<f32>> {
        let mut input = Input::default();
        input.push(&self.model, sequence, tokens, keep);
        self.model.trunk(&mut self.device, &mut self.experts, &input)?;
        self.model.logits(&mut self.device, &[tokens.len() as u32 - 1])
    }

    /// A prompt, drafts of which three stay, then the rest.
    fn whole(&mut self) -> Result<Vec<f32>> {
        let tokens = tokens(self.model.config.vocab);
        let mut sequence = self.open(0);
        self.run(&mut sequence, &tokens[..30], Keep::All)?;
        self.run(&mut sequence, &tokens[30..35], Keep::Tentative)?;
        sequence.settle(&mut self.device, 3)?;
        self.run(&mut sequence, &tokens[33..], Keep::All)
    }
}

#[test]
fn devices_that_agree_pass() {
    let (_dir, store) = store();
    let exact = Loaded::new(&store, Fault::Skips(Call::ResetSlot), Bounds::exact()).whole();
    let rounded = Loaded::new(&store, Fault::Int8, Bounds::int8()).whole();
    let (exact, rounded) = (exact.unwrap(), rounded.unwrap());
    assert_ne!(exact, rounded, "the fast device's results are the ones that count");
}

#[test]
fn a_fault_is_named_with_its_verb_and_layer() {
    let (_dir, store) = store();
    let layers = (0..store.config().layers.len() as u32).map(Place::Layer);
    let places: Vec<Place> = layers.chain([Place::Embed, Place::Head]).collect();
    let verbs = Verb::ALL.into_iter().filter(|verb| {
        // These have no values of their own, or belong to the draft head.
        !matches!(verb, Verb::KvAppend | Verb::Select | Verb::Keep | Verb::Recall | Verb::Norm)
            && !matches!(verb, Verb::AddRepeat | Verb::LinearStreams)
    });
    for verb in verbs {
        let mut caught = 0;
        for &bad in &places {
            match Loaded::new(&store, Fault::Off(verb, Some(bad)), Bounds::int8()).whole() {
                Err(Error::Diverged { verb: named, place, .. }) => {
                    assert_eq!((named, place), (verb.name(), bad));
                    caught += 1;
                }
                Err(other) => panic!("{verb} in {bad}: {other}"),
                Ok(_) => {}
            }
        }
        assert!(caught > 0, "{verb}");
    }
}

#[test]
fn a_wrong_choice_is_named() {
    let (_dir, store) = store();
    let result = Loaded::new(&store, Fault::Newest, Bounds::int8()).whole();
    assert!(matches!(result, Err(Error::Diverged { verb: "select", .. })), "{result:?}");
}

#[test]
fn saved_state_holds_both_devices() {
    let (_dir, store) = store();
    let mut loaded = Loaded::new(&store, Fault::Skips(Call::ResetSlot), Bounds::exact());
    let tokens = tokens(store.config().vocab);
    let mut sequence = loaded.open(0);
    loaded.run(&mut sequence, &tokens[..20], Keep::All).unwrap();
    let mut copy = sequence.fork(&mut loaded.device, &mut loaded.pages, SlotId(1)).unwrap();
    let mut bytes = Vec::new();
    loaded.device.save_slot(SlotId(0), &mut bytes).unwrap();
    loaded.run(&mut sequence, &tokens[20..21], Keep::All).unwrap();
    loaded.device.load_slot(SlotId(1), &bytes).unwrap();
    copy.reserve(&mut loaded.device, &mut loaded.pages, 8).unwrap();
    loaded.run(&mut copy, &tokens[20..28], Keep::All).unwrap();
    for len in [0, 7, 8, bytes.len() / 2, bytes.len() - 1] {
        let result = loaded.device.load_slot(SlotId(1), &bytes[..len]);
        assert!(matches!(result, Err(Error::State { .. })), "{len} bytes");
    }
    bytes.push(0);
    assert!(matches!(loaded.device.load_slot(SlotId(1), &bytes), Err(Error::State { .. })));
}

/// Pages of its own that a fork of two pages and a half takes before its next row.
fn copied(draft: LoadDraft) -> usize {
    let (_dir, store) = store();
    let mut device = Reference::new(store.config().eps);
    let rows = 5 * Model::<Reference>::page_rows(store.config()) / 2;
    let model = Model::load(&store, &mut device, draft, (rows, 2, 9)).unwrap();
    let source = FileSource::open(&store, &[]).unwrap();
    let bank = device.bank(4, &Layouts::of_source(&source)).unwrap();
    let mut experts = Experts::new(bank, source, Streaming::default()).unwrap();
    let mut pages = Pages::new(9);
    let mut sequence = Sequence::open(&model, &mut device, SlotId(0)).unwrap();
    sequence.reserve(&mut device, &mut pages, rows).unwrap();
    let tokens: Vec<u32> = (0..rows).map(|i| (i % model.config.vocab) as u32).collect();
    let mut input = Input::default();
    input.push(&model, &mut sequence, &tokens, Keep::All);
    model.trunk(&mut device, &mut experts, &input).unwrap();
    let mut fork = sequence.fork(&mut device, &mut pages, SlotId(1)).unwrap();
    let before = pages.available();
    fork.reserve(&mut device, &mut pages, 1).unwrap();
    before - pages.available()
}

#[test]
fn a_fork_copies_the_pages_that_it_can_write() {
    assert_eq!(copied(LoadDraft::No), 1);
    // The head has made no row yet.
    assert_eq!(copied(LoadDraft::Yes), 3);
}
