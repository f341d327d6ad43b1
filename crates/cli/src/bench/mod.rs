//! `cherenkov bench`.
//!
//! Owns: the order of measurements. Never: single measurements (see `measure`), printing (see
//! `report`).
//! Invariant: every configuration is warmed up before it is timed, and the plain read that decode is
//! compared with alternates with the decodes themselves.

pub mod cost;
mod force;
mod machine;
mod measure;
mod report;
mod routes;
mod tokens;
mod verbs;

use crate::args::bench::BenchArgs;
use crate::args::{ComputeArgs, DeviceName, Drafts};
use crate::device::{Choice, Instruments, streaming, warn_of_circumstances};
use crate::exit::usage;
use crate::interrupt::Interrupt;
use crate::locate;
use crate::memory::Machine;
use crate::plan::{Copies, Plan, Wanted, probe};
use crate::terminal::note;
use anyhow::Context as _;
use cherenkov_engine::Engine;
use cherenkov_format::Store;
use cherenkov_model::MAX_TENTATIVE;
use cost::Cost;
use force::Forced;
use measure::{Bench, Row};
use report::Report;
use std::sync::Arc;
use tokens::Tokens;
use verbs::Stopwatch;

/// Measures, and prints a table or JSON.
///
/// # Errors
/// When the model does not load, a measurement fails, or the user stopped it.
pub fn run(args: &BenchArgs) -> anyhow::Result<()> {
    check(args)?;
    let interrupt = Interrupt::install()?;
    let store = locate::store(&args.model, &interrupt)?;
    warn_of_circumstances(&args.model);
    if args.drafts.iter().any(|&d| d != Drafts::NONE) && store.config().mtp.is_none() {
        return Err(usage("--drafts: this model has no draft head; expected 0"));
    }
    let session = Session {
        args,
        tokens: Tokens::open(args, &store)?,
        cost: Cost::of(&store),
        store: &store,
        interrupt: &interrupt,
    };
    if let Some(file) = &args.trace {
        return routes::run(&session, file.as_deref());
    }
    let mut report = Report::new(args, &store, &session.tokens, &session.cost);
    for isa in options_of(&args.isa) {
        for threads in options_of(&args.threads) {
            for kv in options_of(&args.kv) {
                let compute = ComputeArgs { threads, isa: isa.clone(), kv };
                session.configuration(Choice::of(args.model.device, &compute)?, &mut report)?;
            }
        }
    }
    report.write(args)
}

/// Every value of a list, or once none.
fn options_of<T: Clone>(list: &[T]) -> Vec<Option<T>> {
    if list.is_empty() { vec![None] } else { list.iter().cloned().map(Some).collect() }
}

fn check(args: &BenchArgs) -> anyhow::Result<()> {
    if let Some(&d) = args.drafts.iter().find(|d| d.most() >= MAX_TENTATIVE) {
        return Err(usage(format!("--drafts {d}: expected at most {}", MAX_TENTATIVE - 1)));
    }
    if args.force_acceptance.is_some() && args.drafts.iter().all(|&d| d == Drafts::NONE) {
        return Err(usage("--force-acceptance needs --drafts of 1 or more"));
    }
    if args.prompt.0.is_empty() && args.generate.0.is_empty() {
        return Err(usage("nothing to measure: --prompt and --generate are both none"));
    }
    let computing = args.threads.is_empty() && args.isa.is_empty() && args.kv.is_empty();
    if args.model.device != DeviceName::Cpu && !computing {
        return Err(usage("--threads, --isa and --kv belong to --device cpu"));
    }
    Ok(())
}

/// What all configurations have in common.
struct Session<'a> {
    args: &'a BenchArgs,
    store: &'a Arc<Store>,
    tokens: Tokens,
    cost: Cost,
    interrupt: &'a Interrupt,
}

impl Session<'_> {
    /// Measures everything with one instruction set and thread count.
    fn configuration(&self, device: Choice, report: &mut Report) -> anyhow::Result<()> {
        let args = self.args;
        let mut read = probe::plain_read(device)?;
        // With and without the draft head: it takes part in every prefill once it is loaded.
        for (number, &drafts) in args.drafts.iter().enumerate() {
            let forced = args.force_acceptance.filter(|_| drafts != Drafts::NONE).map(Forced::new);
            let forced = forced.map(|f| f.seeded(args.seed, self.store.config().vocab));
            let instruments =
                Instruments { rewrite: forced.as_ref().map(Forced::rewrite), trace: None };
            let mut engine = self.engine(device, drafts, instruments)?;
            let mut bench = Bench {
                engine: &mut *engine,
                args,
                tokens: &self.tokens,
                read: read.as_mut(),
                drafts,
                forced,
                interrupt: self.interrupt,
            };
            bench.warm_up()?;
            let prompts = if number == 0 { &args.prompt.0[..] } else { &[] };
            for &depth in &args.depth {
                let base = bench.base(depth)?;
                for &n in prompts {
                    self.add(report, device, bench.prefill(&base, n)?);
                }
                for &n in &args.generate.0 {
                    self.add(report, device, bench.decode(&base, n)?);
                }
                bench.engine.close(base.seq);
            }
        }
        if args.verbs { self.verbs(device, report) } else { Ok(()) }
    }

    fn add(&self, report: &mut Report, device: Choice, row: Row) {
        note(&report.line(device, &row));
        report.rows.push((device, row));
    }

    /// Loads an engine with room for the longest measurement.
    fn engine(
        &self,
        device: Choice,
        drafts: Drafts,
        instruments: Instruments,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let args = self.args;
        let most = |list: &[usize]| list.iter().copied().max().unwrap_or(0);
        let depth = self.tokens.depth(most(&args.depth));
        let longest = most(&args.prompt.0)
            .max(most(&args.generate.0))
            .max(measure::warm_up(args.model.chunk));
        // A pending token before, one after, and drafts beyond the end.
        let context = depth + longest + 2 + MAX_TENTATIVE;
        let copies = Copies::Single;
        let drafts = drafts.most();
        let wanted = Wanted { device, context, sequences: 2, drafts, copies, engines: 1 };
        let plan = Plan::make(&args.model, self.store, wanted, Machine::look())?;
        let loaded =
            device.instrumented(self.store, plan.options, streaming(&args.model), instruments);
        self.interrupt.check()?;
        loaded.with_context(|| format!("cannot load {}", self.store.dir().display()))
    }

    /// One prefill and one decode under a stopwatch.
    fn verbs(&self, device: Choice, report: &mut Report) -> anyhow::Result<()> {
        let args = self.args;
        let drafts = args.drafts.first().copied().unwrap_or(Drafts::NONE);
        let watch = Stopwatch::default();
        let instruments = Instruments { rewrite: None, trace: Some(Box::new(watch.clone())) };
        let mut engine = self.engine(device, drafts, instruments)?;
        let (tokens, interrupt) = (&self.tokens, self.interrupt);
        let read = None;
        let mut bench =
            Bench { engine: &mut *engine, args, tokens, read, drafts, forced: None, interrupt };
        bench.warm_up()?;
        let base = bench.base(args.depth.first().copied().unwrap_or(0))?;
        if let Some(&n) = args.prompt.0.first() {
            let profile = watch.profile(|| bench.prefill(&base, n))?;
            report.profile(device, profile, &self.cost);
        }
        if let Some(&n) = args.generate.0.first() {
            let profile = watch.profile(|| bench.decode(&base, n))?;
            report.profile(device, profile, &self.cost);
        }
        Ok(())
    }
}
