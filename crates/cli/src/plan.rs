//! What a run needs, before anything is loaded.
//!
//! Owns: the arithmetic of context and memory, and refusals with numbers. Never: allocation.
//! Invariant: a plan that was made fits the context, and the memory unless the user insisted.

use crate::args::ModelArgs;
use crate::exit::usage;
use crate::terminal::bytes;
use cherenkov_engine::{LoadDraft, Options};
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::{Config, Mixer};
use cherenkov_model::MAX_TENTATIVE;

/// Longest answer where none was asked for.
pub const OUTPUT_DEFAULT: usize = 2048;
/// Context of a chat where none was asked for.
pub const CHAT_CONTEXT_DEFAULT: usize = 8192;
/// Bytes of a number of state or activation.
const FLOAT_BYTES: usize = 4;

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

/// Memory by purpose, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Memory {
    /// Dense weights.
    pub dense: u64,
    /// State of all sequences.
    pub context: u64,
    /// Activations.
    pub scratch: u64,
    /// One expert record.
    pub record: u64,
}

impl Memory {
    fn of(store: &Store, sequences: usize, context: usize, rows: usize) -> Self {
        let c = store.config();
        let (a, d) = (&c.attention, &c.delta);
        let deltas = c.layers.iter().filter(|m| **m == Mixer::Delta).count();
        let attentions = c.layers.len() - deltas + usize::from(c.mtp.is_some());
        let token = attentions * (2 * a.kv_heads * a.head_dim + a.index_dim);
        // Each tentative row keeps the state from before it.
        let state = deltas * d.value_heads * d.key_dim * d.value_dim * (1 + MAX_TENTATIVE);
        let rings = (deltas * d.channels() + 2 * c.wide()) * 2 * MAX_TENTATIVE;
        let sequence = (context + MAX_TENTATIVE) * token + state + rings;
        let mixer = (2 * d.channels() + 2 * d.value_width()).max(4 * a.heads * a.head_dim);
        let row = (5 + c.moe.top_k) * c.hidden + 6 * c.wide() + mixer;
        Self {
            dense: store.manifest().dense.bytes,
            context: (sequences * sequence * FLOAT_BYTES) as u64,
            scratch: (rows * row * FLOAT_BYTES) as u64,
            record: store.experts().record_bytes(),
        }
    }

    /// Everything but the pool.
    fn fixed(&self) -> u64 {
        self.dense + self.context + self.scratch
    }

    /// Records that the pool holds.
    fn pool(&self, asked: Option<usize>, records: usize, available: u64) -> usize {
        let most = (available / 2).min(available.saturating_sub(self.fixed()));
        let fits = usize::try_from(most / self.record).unwrap_or(usize::MAX);
        asked.unwrap_or(fits.max(1)).min(records)
    }
}

/// What is loaded, and how much of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// For the engine.
    pub options: Options,
    /// Memory by purpose.
    pub memory: Memory,
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
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences open at a time.
    pub sequences: usize,
    /// Drafts per step.
    pub drafts: usize,
    /// Whether everything is held twice.
    pub copies: Copies,
}

impl Plan {
    /// Plans the memory of a run, of which `available` bytes can be had.
    ///
    /// # Errors
    /// With all numbers when it does not suffice.
    pub fn make(
        args: &ModelArgs,
        store: &Store,
        wanted: Wanted,
        available: u64,
    ) -> anyhow::Result<Self> {
        let experts = store.experts();
        let records = experts.layers() * experts.per_layer();
        let chunk = args.chunk.min(wanted.context);
        let mut memory = Memory::of(store, wanted.sequences, wanted.context, chunk);
        if wanted.copies == Copies::Checked {
            memory.dense *= 2;
            memory.context *= 2;
            memory.scratch *= 2;
            memory.record *= 2;
        }
        let pool_slots = memory.pool(args.pool, records, available);
        let draft = if wanted.drafts > 0 { LoadDraft::Yes } else { LoadDraft::No };
        let options = Options {
            context: wanted.context,
            sequences: wanted.sequences,
            chunk,
            step_rows: wanted.drafts + 1,
            draft,
            pool_slots,
        };
        let plan = Self { options, memory };
        let needed = memory.fixed() + pool_slots as u64 * memory.record;
        if needed > available && !args.overcommit {
            anyhow::bail!("{}", plan.refusal(needed, available));
        }
        Ok(plan)
    }

    fn refusal(&self, needed: u64, available: u64) -> String {
        let (m, slots) = (&self.memory, self.options.pool_slots);
        format!(
            "memory: dense {} + context {} + scratch {} + pool {} ({slots} experts) = {}, available \
             are {}; lower --pool or --max-ctx, or insist with --overcommit",
            bytes(m.dense),
            bytes(m.context),
            bytes(m.scratch),
            bytes(slots as u64 * m.record),
            bytes(needed),
            bytes(available)
        )
    }
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
        let wanted = Wanted { context: 256, sequences: 1, drafts: 2, copies: Copies::Single };
        Plan::make(&args.model, &store(), wanted, available).map_err(|e| e.to_string())
    }

    #[test]
    fn the_pool_takes_half_of_the_memory_at_most_unless_told() {
        let store = store();
        let records = store.experts().layers() * store.experts().per_layer();
        let whole = plan(&[], 1 << 40).unwrap();
        assert_eq!(whole.options.pool_slots, records);
        let fixed = whole.memory.fixed();
        let pool = records as u64 * whole.memory.record;
        let short = plan(&[], pool + fixed - 1).unwrap();
        assert_eq!(short.options.pool_slots, records - 1);
        let memory = Memory { dense: 30, context: 10, scratch: 0, record: 10 };
        assert_eq!(memory.pool(None, 100, 400), 20, "all of it would fit, but not in half");
        assert_eq!(memory.pool(None, 100, 60), 2, "the rest needs more than half");
        assert_eq!(memory.pool(None, 100, 0), 1);
        assert_eq!(plan(&["--pool", "7"], 1 << 40).unwrap().options.pool_slots, 7);
        assert_eq!(plan(&["--pool", "9999"], 1 << 40).unwrap().options.pool_slots, records);
        assert_eq!(plan(&["--chunk", "99999"], 1 << 40).unwrap().options.chunk, 256);
    }

    #[test]
    fn too_little_memory_is_refused_with_numbers_unless_insisted() {
        let error = plan(&["--pool", "100"], 10_000_000).unwrap_err();
        for word in ["memory: dense ", "(100 experts)", "available are 10.0 MB", "--overcommit"] {
            assert!(error.contains(word), "no {word} in {error}");
        }
        assert!(plan(&[], 0).is_err());
        let insisted = plan(&["--overcommit"], 0).unwrap();
        assert_eq!(insisted.options.pool_slots, 1);
    }
}
