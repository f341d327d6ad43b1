//! `cherenkov trace`.
//!
//! Owns: the run that is looked at. Never: what is written (see `sink`).

mod sink;

use crate::args::Drafts;
use crate::args::trace::TraceArgs;
use crate::device::{self, Choice, Instruments};
use crate::exit;
use crate::interrupt::Interrupt;
use crate::locate;
use crate::memory::Machine;
use crate::pace::{self, Pace};
use crate::plan::{Asked, Copies, Lengths, Plan, Wanted};
use crate::prompt::Words;
use crate::settings::{self, Mode};
use anyhow::Context as _;
use cherenkov_engine::{Engine, SampleParams, Sampler};
use cherenkov_text::SpecialTokens;
use sink::{Header, Sink};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

/// Runs a prompt and a greedy answer, and writes what the device did.
///
/// # Errors
/// When the model does not load, the device fails or the file cannot be written.
pub fn run(args: &TraceArgs) -> anyhow::Result<()> {
    let device = Choice::of(args.model.device, &args.compute)?;
    let interrupt = Interrupt::install()?;
    let store = locate::store(&args.model, &interrupt)?;
    let (_, drafts) = settings::drafts(Some(Drafts::Count(args.drafts)), &store)?;
    let specials = if args.special { SpecialTokens::Show } else { SpecialTokens::Hide };
    let mode = Mode::Raw(specials);
    let prompt = Words::open(&store, &mode)?.prompt(&args.prompt, &mode)?.ids;
    let output = Some(args.max_tokens);
    let asked = Asked { prompt: prompt.len(), output, drafts, context: None };
    let lengths = Lengths::plan(asked, store.config())?;
    let (context, copies) = (lengths.context, Copies::Single);
    let wanted = Wanted { device, context, sequences: 1, drafts, copies, engines: 1 };
    let plan = Plan::make(&args.model, &store, wanted, Machine::look())?;
    let out: Box<dyn Write + Send> = if args.out == Path::new("-") {
        Box::new(std::io::stdout())
    } else {
        let file = File::create(&args.out);
        Box::new(file.with_context(|| format!("cannot create {}", args.out.display()))?)
    };
    let header = Header {
        kind: "header",
        format: "cherenkov-trace",
        version: 1,
        model: &store.dir().display().to_string(),
        device: &device.describe(),
        layers: store.config().layers.len(),
        experts: store.config().moe.experts,
        top_k: store.config().moe.top_k,
        vocab: store.config().vocab,
        prompt: &prompt,
    };
    let sink = Sink::new(BufWriter::new(out), &args.what);
    sink.write(&header);
    let instruments = Instruments { trace: Some(Box::new(sink.clone())), rewrite: None };
    let streaming = device::streaming(&args.model);
    let mut engine = device
        .instrumented(&store, plan.options, streaming, instruments)
        .with_context(|| format!("cannot load {}", store.dir().display()))?;
    let done = generate(&mut *engine, &prompt, args.max_tokens, drafts, &interrupt);
    // A file that could not be written explains more than what came of it.
    sink.finish().map_err(exit::output_error)?;
    done
}

fn generate(
    engine: &mut dyn Engine,
    prompt: &[u32],
    output: usize,
    drafts: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let seq = engine.open()?;
    for piece in prompt.chunks(engine.info().pass_tokens(prompt.len())) {
        interrupt.check()?;
        // Every row's logits are asked for, so that they can be seen.
        engine.score(seq, piece, &mut |_| {})?;
    }
    let mut sampler = Sampler::new(SampleParams::default(), prompt)?;
    pace::write(engine, seq, &mut sampler, Pace::Fixed(drafts), output, interrupt)?;
    Ok(())
}
