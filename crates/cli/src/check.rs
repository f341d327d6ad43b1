//! `cherenkov check`.
//!
//! Owns: prompts to compare devices on, and the verdicts. Never: the comparison (see
//! `cherenkov_model::checked` and `cherenkov_format::verify`).

use crate::args::CheckArgs;
use crate::device::{Choice, warn_of_circumstances};
use crate::interrupt::Interrupt;
use crate::pace::{self, Pace};
use crate::plan::{Asked, Copies, Lengths};
use crate::progress::Meter;
use crate::prompt::Words;
use crate::run::{Load, prefill};
use crate::settings::Mode;
use crate::terminal::{bytes, note};
use crate::{exit, locate};
use anyhow::Context as _;
use cherenkov_engine::{Engine, SampleParams, Sampler};
use cherenkov_format::{Error, Store, verify};
use cherenkov_model::MAX_TENTATIVE;
use std::path::Path;

/// Of different kinds: a story, thinking, and one long enough that attention must select.
pub const PROMPTS: [&str; 3] = [
    "Tell me a story about a fox and a lantern.",
    "What is 256 + 387?",
    "Read this: On Friday, Tovik the sailor went to Rotterdam. He carried nine lemons. Behind a loose \
     brick, he found a rusty trumpet. Tovik gave the rusty trumpet to Dora the nurse. On Sunday, Dora \
     walked to the market with a basket of plums, a blue book and the rusty trumpet. There she met \
     Brakto, who had seven green bottles and no trumpet at all. Dora gave him the blue book, and \
     Brakto gave her two bottles. In the evening it began to rain, and the river rose to the third \
     step of the old stone bridge. Nobody crossed it until Tuesday.\n\nWho got the rusty trumpet?",
];
/// Tokens to run where a store has no tokenizer.
const PLAIN_TOKENS: u32 = 200;

/// Checks a store's bytes, or a device's arithmetic.
///
/// # Errors
/// When anything is wrong.
pub fn run(args: CheckArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    match &args.store {
        Some(dir) => bytes_of(dir, &interrupt),
        None => arithmetic(&args, &interrupt),
    }
}

fn bytes_of(dir: &Path, interrupt: &Interrupt) -> anyhow::Result<()> {
    let mut meter = Meter::new(interrupt);
    let verified = verify::verify(dir, &mut meter);
    meter.clear();
    let report = match verified {
        Err(Error::Cancelled { .. }) => return Err(exit::Interrupted.into()),
        verified => verified?,
    };
    note(&format!(
        "{}: {} files, {}, {} checksums: every byte is as it was packed ({:.1} s)",
        dir.display(),
        report.files,
        bytes(report.bytes),
        report.checksums,
        meter.seconds()
    ));
    for stray in report.strays {
        note(&format!("note: {stray} does not belong to the store"));
    }
    Ok(())
}

/// A prompt and what to call it.
struct Case {
    name: String,
    tokens: Vec<u32>,
}

fn cases(args: &CheckArgs, store: &Store) -> anyhow::Result<Vec<Case>> {
    if !store.dir().join("tokenizer.json").exists() {
        let vocab = store.config().vocab as u32;
        let tokens = (0..PLAIN_TOKENS).map(|i| i.wrapping_mul(7919) % vocab).collect();
        return Ok(vec![Case { name: "made-up tokens".into(), tokens }]);
    }
    let mode = Mode::Chat { system: None, thinking: None };
    let words = Words::open(store, &mode)?;
    let given: Vec<&str> = args.prompt.iter().map(String::as_str).collect();
    let prompts = if given.is_empty() { &PROMPTS[..] } else { &given };
    let case = |text: &&str| {
        let tokens = words.prompt(text, &mode)?.ids;
        Ok(Case { name: format!("{:?}", shortened(text)), tokens })
    };
    prompts.iter().map(case).collect()
}

fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 48;
    let mut short: String = text.chars().take(CHARS_MAX).collect();
    if short.len() < text.len() {
        short.push_str("...");
    }
    short
}

fn arithmetic(args: &CheckArgs, interrupt: &Interrupt) -> anyhow::Result<()> {
    let device = Choice::of(args.model.device, &args.compute)?;
    let store = locate::store(&args.model, interrupt)?;
    warn_of_circumstances(&args.model);
    let cases = cases(args, &store)?;
    let drafts = if store.config().mtp.is_some() { MAX_TENTATIVE - 1 } else { 0 };
    let mut context = 0;
    for case in &cases {
        let (prompt, output) = (case.tokens.len(), Some(args.max_tokens));
        let asked = Asked { prompt, output, drafts, context: None };
        context = context.max(Lengths::plan(asked, store.config())?.context);
    }
    let copies = Copies::Checked;
    let load = Load { store: &store, args: &args.model, device, copies, engines: 1, interrupt };
    let mut engine = load.engine(context, 1, drafts)?;
    let mut total = 0;
    for case in &cases {
        let run = compare(&mut *engine, case, args.max_tokens, drafts, interrupt);
        let made = run.with_context(|| format!("on {}", case.name))?;
        total += case.tokens.len() + made;
        note(&format!("{}: {} + {made} tokens agree", case.name, case.tokens.len()));
    }
    note(&format!(
        "checked: {} agrees with the exact reference in every verb and layer over {total} tokens",
        device.describe()
    ));
    Ok(())
}

/// Runs a prompt and an answer, with as many drafts as there can be; counts the answer's tokens.
fn compare(
    engine: &mut dyn Engine,
    case: &Case,
    output: usize,
    drafts: usize,
    interrupt: &Interrupt,
) -> anyhow::Result<usize> {
    let seq = engine.open()?;
    prefill(engine, seq, &case.tokens, interrupt)?;
    let mut sampler = Sampler::new(SampleParams::default(), &case.tokens)?;
    let made = pace::write(engine, seq, &mut sampler, Pace::Fixed(drafts), output, interrupt)?;
    engine.close(seq);
    Ok(made.len())
}
