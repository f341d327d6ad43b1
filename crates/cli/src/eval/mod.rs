//! `cherenkov eval`.
//!
//! Owns: which models are scored on which text, and what is refused. Never: the formulas (see
//! `score`), who works when (see `work`), printing (see `report`).

mod report;
mod score;
mod texts;
mod work;

use crate::args::ModelArgs;
use crate::args::eval::{Against, EvalArgs};
use crate::device::{Choice, warn_of_circumstances};
use crate::exit::usage;
use crate::interrupt::Interrupt;
use crate::plan::Copies;
use crate::run::Load;
use crate::{cores, locate, memory};
use anyhow::Context as _;
use cherenkov_engine::Engine;
use cherenkov_format::Store;
use report::Figures;
use std::fs::File;
use std::sync::{Arc, Mutex};
use texts::Texts;
use work::Work;

/// Tokens seen together where nothing else is asked for.
const WINDOW_DEFAULT: usize = 1024;
/// Lines by position where nothing else is asked for.
const BUCKETS_DEFAULT: usize = 16;

/// Scores a text, and prints figures.
///
/// # Errors
/// When a model does not load, there is nothing to score, or the user stopped it.
pub fn run(args: &EvalArgs) -> anyhow::Result<()> {
    let device = Choice::of(args.model.device, &args.compute)?;
    let interrupt = Interrupt::install()?;
    let store = locate::store(&args.model, &interrupt)?;
    warn_of_circumstances(&args.model);
    let window = window(args, &store)?;
    let texts = Texts::open(args, &store)?;
    let windows = texts.windows(window);
    // Now, rather than after an hour of work.
    let create = |path| File::create(path).with_context(|| format!("cannot write {path:?}"));
    let csv = args.csv.as_ref().map(create).transpose()?;
    let session = Session { args, store: &store, device, interrupt: &interrupt, window };
    let bases = session.bases(&texts, windows.len())?;
    let model = session.load(&store, &args.model, device, bases.len().max(1))?;
    let bucket = args.bucket.unwrap_or((window - 1).div_ceil(BUCKETS_DEFAULT));
    let work = Work { model: Mutex::new(model), windows, bucket, interrupt: &interrupt };
    let buckets = work.run(bases)?;
    let windows = work.windows.len();
    Figures { buckets, bucket, window, windows, device, args }.write(csv)
}

/// Tokens of a window.
fn window(args: &EvalArgs, store: &Store) -> anyhow::Result<usize> {
    let most = store.config().max_positions;
    match args.window {
        None => Ok(WINDOW_DEFAULT.min(most)),
        Some(window) if (2..=most).contains(&window) => Ok(window),
        Some(window) => Err(usage(format!(
            "--window {window}: expected 2 to {most} tokens, as many as the model was made for"
        ))),
    }
}

/// What loading takes.
struct Session<'a> {
    args: &'a EvalArgs,
    store: &'a Arc<Store>,
    device: Choice,
    interrupt: &'a Interrupt,
    window: usize,
}

impl Session<'_> {
    fn load(
        &self,
        store: &Arc<Store>,
        args: &ModelArgs,
        device: Choice,
        sequences: usize,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let copies = Copies::Single;
        let engines = if self.args.against.is_some() { 2 } else { 1 };
        let load = Load { store, args, device, copies, engines, interrupt: self.interrupt };
        load.engine(self.window, sequences, 0)
    }

    /// The engines of the base: one per worker.
    fn bases(&self, texts: &Texts, windows: usize) -> anyhow::Result<Vec<Box<dyn Engine>>> {
        match &self.args.against {
            None => Ok(Vec::new()),
            Some(Against::Reference) => self.references(windows),
            Some(Against::Model(dir)) => {
                let args = self.args.model.plain(dir);
                let store = locate::store(&args, self.interrupt)
                    .with_context(|| format!("--against {}", dir.display()))?;
                let (found, expected) = (store.config().vocab, self.store.config().vocab);
                if found != expected {
                    let dir = dir.display();
                    return Err(usage(format!(
                        "--against {dir}: found {found} tokens, expected the model's {expected}; \
                         the vocabularies differ"
                    )));
                }
                texts.check(self.args, &store)?;
                Ok(vec![self.load(&store, &args, self.device, 1)?])
            }
        }
    }

    /// The reference computes with one thread, so there is one for each; more than one only while all
    /// of the model fits in half of the free memory once more.
    fn references(&self, windows: usize) -> anyhow::Result<Vec<Box<dyn Engine>>> {
        let threads = match self.device {
            Choice::Cpu { threads, .. } => threads,
            Choice::Reference => cores::performance(),
        };
        let manifest = self.store.manifest();
        let whole = manifest.dense.bytes + manifest.experts.bytes;
        let load = || self.load(self.store, &self.args.model, Choice::Reference, 1);
        let mut all = vec![load()?];
        while all.len() < threads.min(windows) && whole <= memory::available() / 2 {
            all.push(load()?);
        }
        Ok(all)
    }
}
