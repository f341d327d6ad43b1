//! What a run needs, before anything is loaded.
//!
//! Owns: the arithmetic of context, what a budget of memory is cut for, refusals with numbers.
//! Never: allocation, measuring (see `memory`).
//! Invariant: a plan that was made fits the context, and the memory unless the user insisted.

pub mod budget;
pub mod command;
pub mod probe;
mod sizes;
mod speed;

use crate::args::ModelArgs;
use crate::args::plan::MemorySize;
use crate::device::Choice;
use crate::exit::usage;
use crate::memory::Machine;
use crate::terminal::bytes;
use budget::{Cut, Demand, Parts, Shortage, Sizes};
use cherenkov_engine::{LoadDraft, Options};
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::Config;

/// Longest answer where none was asked for.
pub const OUTPUT_DEFAULT: usize = 2048;
/// Context of a chat where none was asked for.
pub const CHAT_CONTEXT_DEFAULT: usize = 8192;
/// Of the free memory, one part in so many is left to others unless told otherwise.
const LEFT_FREE: u64 = 8;
/// The program itself is not of the same size at every start.
const SLACK: u64 = 2 << 20;

/// Tokens that an answer and its prompt may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lengths {
    /// Context of the sequence.
    pub context: usize,
    /// Longest answer.
    pub output: usize,
}

/// What was asked for, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// The prompt.
    pub prompt: usize,
    /// Longest answer.
    pub output: Option<usize>,
    /// Drafts per step.
    pub drafts: usize,
    /// Context.
    pub context: Option<usize>,
}

/// The context that the user may have: what was asked for, if the model can have that.
///
/// # Errors
/// When it is more than the model was made for.
pub fn context_limit(asked: Option<usize>, config: &Config) -> anyhow::Result<usize> {
    match asked {
        Some(asked) if asked > config.max_positions => Err(usage(format!(
            "--max-ctx {asked}: this model was made for at most {} tokens",
            config.max_positions
        ))),
        Some(asked) => Ok(asked),
        None => Ok(config.max_positions),
    }
}

impl Lengths {
    /// Fits prompt, output and drafts into a context.
    ///
    /// # Errors
    /// With all numbers when they do not fit.
    pub fn plan(asked: Asked, config: &Config) -> anyhow::Result<Self> {
        let limit = context_limit(asked.context, config)?;
        let Asked { prompt, drafts, .. } = asked;
        let left = limit.saturating_sub(prompt + drafts);
        let output = asked.output.unwrap_or(OUTPUT_DEFAULT.min(left).max(1));
        let needed = prompt + output + drafts;
        if needed > limit {
            let remedy = if limit < config.max_positions {
                format!("raise --max-ctx (this model: up to {})", config.max_positions)
            } else {
                "lower --max-tokens or shorten the prompt".to_owned()
            };
            return Err(usage(format!(
                "prompt {prompt} + output {output} + drafts {drafts} = {needed} tokens, the context \
                 holds {limit}; {remedy}"
            )));
        }
        Ok(Self { context: asked.context.unwrap_or(needed), output })
    }
}

/// What is loaded, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For the engine.
    pub options: Options,
    /// What is needed, by purpose, whatever there is.
    pub sizes: Sizes,
    /// Memory by purpose.
    pub parts: Parts,
    /// What was cut.
    pub budget: u64,
}

/// How many copies of weights and state a device keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copies {
    /// One.
    Single,
    /// One for the device and one for the reference.
    Checked,
}

/// What a plan is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// What computes.
    pub device: Choice,
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences open at a time.
    pub sequences: usize,
    /// Drafts per step.
    pub drafts: usize,
    /// Whether everything is held twice.
    pub copies: Copies,
    /// Engines of this process that share its memory, this one included.
    pub engines: u64,
}

impl Plan {
    /// Plans the memory of a run on this machine.
    ///
    /// # Errors
    /// With all numbers when it does not suffice, and the nearest settings that would do.
    pub fn make(
        args: &ModelArgs,
        store: &Store,
        wanted: Wanted,
        machine: Machine,
    ) -> anyhow::Result<Self> {
        let draft = if wanted.drafts > 0 { LoadDraft::Yes } else { LoadDraft::No };
        let mut options = Options {
            context: wanted.context,
            sequences: wanted.sequences,
            chunk: args.chunk.min(wanted.context),
            step_rows: wanted.drafts + 1,
            draft,
            pool_slots: 0,
        };
        let sizes = sizes::sizes(store, wanted, &options, args.readers);
        let sizes = Sizes { program: sizes.program + machine.resident, ..sizes };
        let demand = Demand { context: wanted.context, pool: args.pool };
        let (cut, budget) = cut(args, &sizes, demand, (machine, wanted.engines))?;
        options.pool_slots = cut.slots;
        Ok(Self { options, sizes, parts: cut.parts, budget })
    }
}

/// Cuts what the arguments and the machine allow; returns that as well.
fn cut(
    args: &ModelArgs,
    sizes: &Sizes,
    demand: Demand,
    (machine, engines): (Machine, u64),
) -> anyhow::Result<(Cut, u64)> {
    let most = machine.resident + machine.available;
    let whole = match args.memory {
        MemorySize::Bytes(budget) => budget,
        MemorySize::Auto => most - machine.available / LEFT_FREE,
    };
    // What is there already is everybody's.
    let own = whole.saturating_sub(machine.resident) / engines;
    let budget = if engines == 1 { whole } else { machine.resident + own };
    let found = match (sizes.cut(budget, demand), args.memory) {
        // Better a little less left to others than no run at all.
        (Err(short), MemorySize::Auto) => sizes.cut(short.needed.min(most), demand),
        (found, _) => found,
    };
    match found {
        Ok(cut) if cut.parts.total() <= most || args.overcommit => Ok((cut, budget)),
        Ok(cut) => Err(anyhow::anyhow!("{}", too_much(&cut, most))),
        Err(short) if args.overcommit => {
            Ok((Cut { parts: short.parts, slots: short.slots }, short.needed))
        }
        Err(short) => Err(anyhow::anyhow!("{}", refusal(args, &short, budget, demand))),
    }
}

/// A plan in words.
fn sum(parts: &Parts, slots: usize) -> String {
    let shown = parts.list().into_iter().filter(|(_, size)| *size > 0);
    let shown: Vec<String> = shown
        .map(|(what, size)| match what {
            "expert pool" => format!("{what} {} ({slots} experts)", bytes(size)),
            _ => format!("{what} {}", bytes(size)),
        })
        .collect();
    shown.join(" + ")
}

/// The budget is kept, but the machine does not have it.
fn too_much(cut: &Cut, most: u64) -> String {
    format!(
        "memory: {} = {}, this machine can give {}; lower --memory to that, or insist with \
         --overcommit",
        sum(&cut.parts, cut.slots),
        bytes(cut.parts.total()),
        bytes(most)
    )
}

fn refusal(args: &ModelArgs, short: &Shortage, budget: u64, demand: Demand) -> String {
    let (needed, total) = (bytes(short.needed), bytes(short.parts.total()));
    let mut text = format!("memory: {} = {total}", sum(&short.parts, short.slots));
    if short.needed > short.parts.total() {
        text += &format!(", {needed} while weights are loaded");
    }
    match args.memory {
        MemorySize::Bytes(_) => {
            let enough = (short.needed + SLACK).div_ceil(1_000_000);
            text += &format!("; --memory allows {}: give it {enough}MB", bytes(budget));
        }
        MemorySize::Auto => text += &format!("; available are {}", bytes(budget)),
    }
    if demand.pool.is_some() {
        text += ", lower --pool";
    }
    match short.context {
        Some(context) => text += &format!(", or a context of at most {context} (--max-ctx)"),
        None => text += "; no context is small enough",
    }
    if args.memory == MemorySize::Auto {
        text += ", or insist with --overcommit";
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command};
    use clap::Parser as _;
    use std::path::Path;

    fn store() -> Store {
        Store::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket")).unwrap()
    }

    fn lengths(
        prompt: usize,
        output: Option<usize>,
        drafts: usize,
        context: Option<usize>,
    ) -> Result<(usize, usize), String> {
        let asked = Asked { prompt, output, drafts, context };
        let planned = Lengths::plan(asked, store().config());
        planned.map(|l| (l.context, l.output)).map_err(|e| e.to_string())
    }

    #[test]
    fn contexts_are_as_large_as_needed_or_as_asked() {
        assert_eq!(lengths(10, Some(20), 2, None), Ok((32, 20)));
        assert_eq!(lengths(10, Some(20), 2, Some(32)), Ok((32, 20)));
        assert_eq!(lengths(10, None, 2, Some(100)), Ok((100, 88)));
        assert_eq!(lengths(10, None, 2, None), Ok((2060, 2048)));
        assert_eq!(lengths(8189, None, 2, None), Ok((8192, 1)));
        let error = lengths(10, Some(20), 2, Some(31)).unwrap_err();
        assert!(error.contains("prompt 10 + output 20 + drafts 2 = 32"), "{error}");
        assert!(error.contains("holds 31; raise --max-ctx"), "{error}");
        let error = lengths(8190, None, 2, None).unwrap_err();
        assert!(error.contains("holds 8192; lower --max-tokens or shorten"), "{error}");
        assert!(lengths(1, None, 0, Some(8193)).unwrap_err().contains("at most 8192"));
    }

    fn plan(args: &[&str], available: u64) -> Result<Plan, String> {
        let cli = Cli::parse_from([&["cherenkov", "run", "x"], args].concat());
        let Command::Run(args) = cli.command else { unreachable!() };
        let kv = args.compute.kv.map(cherenkov_cpu::KvPrecision::from).unwrap_or_default();
        let device = Choice::Cpu { threads: 2, isa: cherenkov_cpu::Isa::Portable, kv };
        let copies = Copies::Single;
        let wanted = Wanted { device, context: 256, sequences: 1, drafts: 2, copies, engines: 1 };
        let machine = Machine { resident: 30_000_000, available };
        Plan::make(&args.model, &store(), wanted, machine).map_err(|e| e.to_string())
    }

    #[test]
    fn keys_and_values_take_what_their_numbers_take() {
        // Two attention layers and the draft head's: two heads of 64, an index key of 64 per block of 4.
        let page = |args: &[&str]| plan(args, 1 << 40).unwrap().sizes.page;
        assert_eq!(page(&[]), 64 * 3 * (4 * 64 * 2 + 64 * 2 / 4));
        assert_eq!(page(&["--kv", "q8"]), 64 * 3 * (4 * (64 + 4) + 64 * 2 / 4));
        assert_eq!(page(&["--kv", "f32"]), 64 * 3 * (4 * 64 * 4 + 64 * 4 / 4));
    }

    #[test]
    fn the_pool_takes_what_is_left_unless_told() {
        let store = store();
        let records = store.experts().layers() * store.experts().per_layer();
        let whole = plan(&[], 1 << 40).unwrap();
        assert_eq!(whole.options.pool_slots, records);
        assert_eq!(
            whole.sizes.program - 30_000_000,
            plan(&[], 1 << 30).unwrap().sizes.program - 30_000_000
        );
        let total = whole.parts.total();
        let memory = |bytes: u64| plan(&["--memory", &bytes.to_string()], 1 << 40);
        assert_eq!(memory(total).unwrap().options.pool_slots, records);
        assert_eq!(memory(total - 1).unwrap().options.pool_slots, records - 1);
        // An eighth of what is free is left to others, unless nothing would run then.
        let short = plan(&[], total - 30_000_000).unwrap();
        assert!(short.options.pool_slots < records, "{short:?}");
        assert!(short.parts.total() <= total - (total - 30_000_000) / 8);
        let least = plan(&["--pool", "4"], 1 << 40).unwrap().parts.total();
        assert_eq!(plan(&[], least - 30_000_000).unwrap().options.pool_slots, 4);
        assert_eq!(plan(&["--pool", "7"], 1 << 40).unwrap().options.pool_slots, 7);
        assert_eq!(plan(&["--pool", "9999"], 1 << 40).unwrap().options.pool_slots, records);
        assert_eq!(plan(&["--chunk", "99999"], 1 << 40).unwrap().options.chunk, 256);
    }

    #[test]
    fn what_cannot_work_is_refused_with_numbers_and_a_way_out() {
        let error = plan(&["--pool", "100"], 10_000_000).unwrap_err();
        for word in
            ["memory: program ", "(100 experts)", "available are ", "--pool", "--overcommit"]
        {
            assert!(error.contains(word), "no {word} in {error}");
        }
        let insisted = plan(&["--overcommit"], 0).unwrap();
        assert_eq!(insisted.options.pool_slots, 4, "one token's experts of one layer");
        // The least that is named suffices, and hardly more.
        let error = plan(&["--memory", "40MB"], 1 << 40).unwrap_err();
        let words = "--memory allows 40.0 MB: give it ";
        let least = error.split(words).nth(1).and_then(|rest| rest.split("MB").next()).unwrap();
        let least = least.parse::<u64>().unwrap() * 1_000_000;
        assert!(plan(&["--memory", &least.to_string()], 1 << 40).is_ok());
        // So does the context.
        let short = (least - 3_200_000).to_string();
        let error = plan(&["--memory", &short], 1 << 40).unwrap_err();
        let context = error.split("or a context of at most ").nth(1).unwrap();
        let context: usize = context.split(' ').next().unwrap().parse().unwrap();
        assert!((1..256).contains(&context), "{error}");
        // A pool that contradicts the budget, and a budget that the machine does not have.
        let error = plan(&["--memory", &least.to_string(), "--pool", "400"], 1 << 40).unwrap_err();
        assert!(error.contains("lower --pool"), "{error}");
        let error = plan(&["--memory", "1GB"], 20_000_000).unwrap_err();
        assert!(error.contains("this machine can give 50.0 MB; lower --memory"), "{error}");
    }
}
