//! `cherenkov bench --trace`: how policies would have done on real routes.
//!
//! Owns: recording the routes of some conversations, the pools that are tried, the table. Never:
//! policies and their replay (see `cherenkov_experts`).

use super::Session;
use super::measure::Bench;
use super::tokens::Tokens;
use crate::args::{ComputeArgs, Drafts};
use crate::device::{Choice, Instruments};
use crate::exit::output_error;
use crate::terminal::note;
use anyhow::Context as _;
use cherenkov_experts::{Belady, Fading, Lru, Policy, Replayed, Routed, Trace as Visits, replay};
use cherenkov_model::device::{Place, Routes};
use cherenkov_model::traced::{At, Trace};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shares of all experts that the pools hold, in percent.
const SHARES: [usize; 5] = [5, 10, 25, 50, 75];

/// Notes the routes of a traced device. Copies share what they note.
#[derive(Clone)]
struct Recorder {
    visits: Arc<Mutex<Visits>>,
    trunk: u32,
}

impl Recorder {
    fn visits(&self) -> MutexGuard<'_, Visits> {
        self.visits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Trace for Recorder {
    fn wants(&self, _: At) -> bool {
        false
    }

    fn routes(&mut self, at: At, routes: &Routes) {
        let layer = match at.place {
            Place::Layer(layer) => layer,
            Place::Draft => self.trunk,
            Place::Embed | Place::Head => return,
        };
        self.visits().visits.push(Routed { layer, k: routes.k, ids: routes.ids.clone() });
    }
}

/// Hit rates of one pool.
struct Rates {
    share: usize,
    slots: usize,
    /// By policy: name and what was counted.
    policies: Vec<(&'static str, Replayed)>,
}

/// Records or reads routes, and prints what every policy would have done with them.
///
/// # Errors
/// When the model does not load, or a file cannot be read or written.
pub fn run(session: &Session<'_>, file: Option<&Path>) -> anyhow::Result<()> {
    let visits = match file {
        None => record(session)?,
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| format!("cannot read {}", path.display()))?;
            Visits::parse(&text).with_context(|| path.display().to_string())?
        }
    };
    if let Some(path) = &session.args.save_trace {
        std::fs::write(path, visits.to_text())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let all = visits.layers * visits.per_layer;
    let mut rates = Vec::new();
    for share in SHARES {
        session.interrupt.check()?;
        let slots = (all * share).div_ceil(100);
        rates.push(Rates { share, slots, policies: every_policy(&visits, slots) });
    }
    print(session, &visits, &rates)
}

fn every_policy(visits: &Visits, slots: usize) -> Vec<(&'static str, Replayed)> {
    let policies: [Box<dyn Policy>; 3] =
        [Box::<Lru>::default(), Box::<Fading>::default(), Box::new(Belady::new(visits))];
    policies.map(|policy| (policy.name(), replay(visits, slots, policy))).into()
}

/// The routes of some conversations: each prompt and the answer to it.
fn record(session: &Session<'_>) -> anyhow::Result<Visits> {
    let args = session.args;
    let config = session.store.config();
    let trunk = config.layers.len();
    let drafts = args.drafts.first().copied().unwrap_or(Drafts::NONE);
    let layers = trunk + usize::from(drafts != Drafts::NONE);
    let recorder = Recorder {
        visits: Arc::new(Mutex::new(Visits::new((layers, config.moe.experts)))),
        trunk: trunk as u32,
    };
    let first = |list: &[String]| list.first().cloned();
    let compute = ComputeArgs {
        threads: args.threads.first().copied(),
        isa: first(&args.isa),
        kv: args.kv.first().copied(),
    };
    let device = Choice::of(args.model.device, &compute)?;
    let instruments = Instruments { rewrite: None, trace: Some(Box::new(recorder.clone())) };
    let mut engine = session.engine(device, drafts, instruments)?;
    let count = args.generate.0.first().copied().unwrap_or(1);
    for prompt in conversations(session)? {
        let (read, forced, interrupt) = (None, None, session.interrupt);
        let tokens = &session.tokens;
        let mut bench =
            Bench { engine: &mut *engine, args, tokens, read, drafts, forced, interrupt };
        let seq = bench.engine.open()?;
        bench.run_prompt(seq, &prompt)?;
        bench.generate(seq, &prompt, count, drafts)?;
        bench.engine.close(seq);
    }
    let visits = recorder.visits().clone();
    note(&format!("recorded {} visits of {layers} layers", visits.visits.len()));
    Ok(visits)
}

/// Prompts to answer: the text given, or several of our own; random tokens where there are no words.
fn conversations(session: &Session<'_>) -> anyhow::Result<Vec<Vec<u32>>> {
    const RANDOM_PROMPT: usize = 64;
    match &session.tokens {
        random @ Tokens::Random { .. } => Ok(vec![random.prompt(RANDOM_PROMPT)]),
        Tokens::Text(given) if session.args.text.is_some() => Ok(vec![given.clone()]),
        Tokens::Text(_) => Tokens::conversations(session.store),
    }
}

fn print(session: &Session<'_>, visits: &Visits, rates: &[Rates]) -> anyhow::Result<()> {
    let text = match &session.args.json {
        None => table(rates),
        Some(_) => format!("{:#}\n", json(visits, rates)),
    };
    match &session.args.json {
        Some(path) if path != Path::new("-") => {
            std::fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
        }
        _ => std::io::stdout().write_all(text.as_bytes()).map_err(output_error),
    }
}

/// Hit rates in steps of decode.
fn table(rates: &[Rates]) -> String {
    let mut out = String::from("hits in decode\npool  slots");
    for (name, _) in &rates[0].policies {
        let _ = write!(out, " {name:>9}");
    }
    out.push('\n');
    for r in rates {
        let _ = write!(out, "{:>2} %  {:>5}", r.share, r.slots);
        for (_, replayed) in &r.policies {
            let _ = write!(out, " {:>7.1} %", 100.0 * replayed.steps.hit_rate());
        }
        out.push('\n');
    }
    out
}

fn json(visits: &Visits, rates: &[Rates]) -> Value {
    let policy = |(name, replayed): &(&str, Replayed)| {
        let (steps, prompts) = (replayed.steps.hit_rate(), replayed.prompts.hit_rate());
        ((*name).to_owned(), json!({ "steps": steps, "prompts": prompts }))
    };
    let pool = |r: &Rates| {
        let rates: serde_json::Map<_, _> = r.policies.iter().map(policy).collect();
        json!({ "percent": r.share, "slots": r.slots, "hit_rates": rates })
    };
    json!({
        "layers": visits.layers,
        "experts": visits.per_layer,
        "visits": visits.visits.len(),
        "pools": rates.iter().map(pool).collect::<Vec<_>>(),
    })
}
