//! The command line as it was typed.
//!
//! Owns: names, help texts and what contradicts what. Never: defaults that depend on the model,
//! the environment (see `settings` and `plan`).

pub mod bench;
pub mod eval;
pub mod export;
pub mod plan;
pub mod synth;
pub mod trace;

use crate::exit;
use cherenkov_experts::{Lookahead, READERS_DEFAULT};
use cherenkov_format::Bits;
use cherenkov_format::norms::NormOverride;
use cherenkov_format::pack::Precision;
use cherenkov_model::MAX_TENTATIVE;
use clap::{Args, CommandFactory as _, Parser, Subcommand, ValueEnum};
use plan::MemorySize;
use std::path::{Path, PathBuf};

/// Tokens of a prefill pass where nothing else is asked for.
const CHUNK_DEFAULT: usize = 256;

/// Run language models far larger than memory.
#[derive(Debug, Parser)]
#[command(name = "cherenkov", version, about, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Generate text on the terminal; without a prompt an interactive chat
    Run(Box<RunArgs>),
    /// Turn a checkpoint into a store: streamed, resumable, verified, atomic
    Pack(PackArgs),
    /// Compare the fast engine with the exact reference, or verify every byte of a store
    Check(CheckArgs),
    /// Write a model in a format that other programs read
    Export(export::ExportArgs),
    /// Say how a budget of memory is used, and what speed it leads to
    Plan(Box<plan::PlanArgs>),
    /// Measure the speed of prefill and decode
    Bench(Box<bench::BenchArgs>),
    /// Perplexity of a text, and how far the model is from the exact reference or another store
    Eval(Box<eval::EvalArgs>),
    /// Write what the device does: routes, the likeliest tokens, logits, states
    Trace(Box<trace::TraceArgs>),
    /// Write a model of random weights of any geometry, for benchmarks
    Synth(synth::SynthArgs),
    /// Print a completion script for a shell
    Completions(CompletionsArgs),
}

/// Which hardware computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DeviceName {
    /// The fast kernels on the processor.
    #[default]
    Cpu,
    /// Scalar loops with f64 sums: exact and slow.
    Reference,
    /// A graphics processor: not offered yet, refused.
    Gpu,
}

/// Whether the pool follows the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum GovernorName {
    /// It does.
    On,
    /// It stays as planned.
    Off,
}

/// What the norm of the draft head's hidden input spans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum HiddenNormName {
    /// One RMS over all streams.
    #[default]
    Global,
    /// One RMS per stream.
    PerStream,
}

/// How many drafts a step has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drafts {
    /// As many as pay, as far as can be told from the steps before.
    Auto,
    /// Always so many.
    Count(usize),
}

impl Drafts {
    /// No drafts.
    pub const NONE: Self = Self::Count(0);

    /// Most drafts of a step.
    pub fn most(self) -> usize {
        match self {
            Self::Auto => MAX_TENTATIVE - 1,
            Self::Count(count) => count,
        }
    }
}

impl std::fmt::Display for Drafts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Auto => f.pad("auto"),
            Self::Count(count) => f.pad(&count.to_string()),
        }
    }
}

fn parse_drafts(text: &str) -> Result<Drafts, String> {
    match text {
        "auto" => Ok(Drafts::Auto),
        _ => text.parse().map(Drafts::Count).map_err(|_| {
            format!(
                "found `{text}`, expected auto or a number of drafts from 0 to {}",
                MAX_TENTATIVE - 1
            )
        }),
    }
}

/// Arguments about the model and the machine.
#[derive(Clone, Debug, Args)]
pub struct ModelArgs {
    /// Store or checkpoint directory [default: the bundled pocket model]
    #[arg(long, short, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Pack a checkpoint into the cache without asking
    #[arg(long, short)]
    pub yes: bool,
    /// What computes
    #[arg(long, value_enum, default_value_t)]
    pub device: DeviceName,
    /// Bits of routed experts, of those that the store has [default: the first that it was packed with]
    #[arg(long, value_name = "BITS", value_parser = parse_code_bits)]
    pub experts: Option<Bits>,
    /// Bits of experts that a decode step has to wait for, fewer than --experts; what is read ahead, and
    /// all of a long prompt, comes at full precision. Answers then depend on what is in memory
    #[arg(long, value_name = "BITS", value_parser = parse_code_bits)]
    pub miss_experts: Option<Bits>,
    /// In decode, do without late experts whose share of a row's weights is below W, such as 0.02.
    /// Answers then depend on timing; 0: wait for all
    #[arg(long, value_name = "W", default_value_t = 0.0, value_parser = parse_weak)]
    pub cut_weak: f32,
    /// Memory of the whole process: auto (what the machine can spare), or a size such as 24GB or
    /// 1.5GiB
    #[arg(long, value_name = "SIZE", default_value = "auto", value_parser = plan::parse_memory)]
    pub memory: MemorySize,
    /// Expert records held in memory [default: all that --memory leaves room for]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub pool: Option<usize>,
    /// Whether the pool shrinks while the machine is short of memory, and grows back [default: on,
    /// off with --pool]
    #[arg(long, value_enum)]
    pub governor: Option<GovernorName>,
    /// Directory with a byte-identical copy of the store on another drive: reads are shared out; may
    /// be repeated
    #[arg(long, value_name = "DIR")]
    pub store_copy: Vec<PathBuf>,
    /// Reads of experts at the same time
    #[arg(long, value_name = "N", default_value_t = READERS_DEFAULT, value_parser = positive())]
    pub readers: usize,
    /// Experts read before a layer asks for them: auto, off, or a number per layer
    #[arg(long, value_name = "RULE", default_value = "auto", value_parser = parse_lookahead)]
    pub lookahead: Lookahead,
    /// Tokens of a prefill pass
    #[arg(long, value_name = "N", default_value_t = CHUNK_DEFAULT, value_parser = positive())]
    pub chunk: usize,
    /// Load even if the plan says that memory does not suffice
    #[arg(long)]
    pub overcommit: bool,
}

impl ModelArgs {
    /// The same machine with another model, its experts at their default precision.
    pub fn plain(&self, model: &Path) -> Self {
        let model = Some(model.to_owned());
        Self { model, experts: None, miss_experts: None, cut_weak: 0.0, ..self.clone() }
    }

    /// Whether answers follow from model, prompt and seed alone.
    pub fn one_answer(&self) -> bool {
        self.miss_experts.is_none() && self.cut_weak == 0.0
    }
}

/// Arguments of the cpu device.
#[derive(Clone, Debug, Default, Args)]
pub struct ComputeArgs {
    /// Threads [default: one per performance core that this process may use]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
    /// Instruction set of the cpu device [default: the best this machine has]
    #[arg(long, value_name = "NAME")]
    pub isa: Option<String>,
    /// How the cpu device keeps keys and values [default: f16]
    #[arg(long, value_enum, value_name = "NUMBERS")]
    pub kv: Option<KvName>,
}

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KvName {
    /// Half precision.
    F16,
    /// Eight bits with a scale per row.
    Q8,
    /// Single precision.
    F32,
}

/// Arguments about how tokens are drawn. Defaults come from the model's generation_config.json.
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Sampling (defaults: the model's generation_config.json)")]
pub struct SamplingArgs {
    /// 0 is greedy
    #[arg(long, short, value_name = "T")]
    pub temperature: Option<f32>,
    /// Most candidates; 0 keeps all
    #[arg(long, value_name = "N")]
    pub top_k: Option<usize>,
    /// Smallest probability mass kept
    #[arg(long, value_name = "P")]
    pub top_p: Option<f32>,
    /// Candidates below this share of the best one's probability go
    #[arg(long, value_name = "P")]
    pub min_p: Option<f32>,
    /// Divides the logit of every token seen before
    #[arg(long, value_name = "X")]
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logit of every token of the answer
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub presence_penalty: Option<f32>,
    /// Subtracted per occurrence in the answer
    #[arg(long, value_name = "X", allow_hyphen_values = true)]
    pub frequency_penalty: Option<f32>,
    /// Added to the logit of a token id; may be repeated
    #[arg(long, value_name = "ID=X", value_parser = parse_bias, allow_hyphen_values = true)]
    pub logit_bias: Vec<(u32, f32)>,
    /// The same seed gives the same text, in every repetition [default: another one each time,
    /// shown by --stats; repetition I then uses the seed + I]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

/// Arguments of `run`.
#[derive(Clone, Debug, Args)]
pub struct RunArgs {
    /// The prompt; `-` or a pipe: read from stdin; none: interactive chat
    pub prompt: Option<String>,
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The cpu device.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Continue the prompt as plain text, without chat template
    #[arg(long, conflicts_with_all = ["system", "think", "no_think"])]
    pub raw: bool,
    /// With --raw: text of control tokens is read and shown as control tokens
    #[arg(long, requires = "raw")]
    pub special: bool,
    /// System message
    #[arg(long, value_name = "TEXT")]
    pub system: Option<String>,
    /// Let the model think first [default: as its template likes]
    #[arg(long, conflicts_with = "no_think")]
    pub think: bool,
    /// Do not let the model think
    #[arg(long)]
    pub no_think: bool,
    /// Do not show the thinking
    #[arg(long)]
    pub hide_thinking: bool,
    /// Longest answer in tokens [default: 2048, or what the context leaves]
    #[arg(long, short = 'n', value_name = "N", value_parser = positive())]
    pub max_tokens: Option<usize>,
    /// Context in tokens [default: as much as the prompt needs; in a chat 8192]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub max_ctx: Option<usize>,
    /// How tokens are drawn.
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Drafts to verify per step: a number, or auto for as many as pay [default: auto, or 0 without a
    /// draft head]
    #[arg(long, value_name = "N|auto", value_parser = parse_drafts)]
    pub drafts: Option<Drafts>,
    /// Run the prompt this often, each time from an empty state
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive())]
    pub repeat: usize,
    /// Do not stop at the model's end tokens
    #[arg(long)]
    pub no_eos: bool,
    /// Stop before this text; may be repeated
    #[arg(long, value_name = "TEXT")]
    pub stop: Vec<String>,
    /// Report speed, acceptance and memory on stderr
    #[arg(long)]
    pub stats: bool,
    /// Write the same as JSON, one line per answer, to a file or (`-`) to stderr
    #[arg(long, value_name = "FILE")]
    pub stats_json: Option<PathBuf>,
    /// Compare every verb with the exact reference while running (slow)
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `pack`.
#[derive(Clone, Debug, Args)]
pub struct PackArgs {
    /// Directory of the checkpoint (config.json, *.safetensors, tokenizer.json)
    pub source: PathBuf,
    /// Directory of the store to make [default: SRC-cherenkov]
    pub out: Option<PathBuf>,
    /// Bits of routed experts: 2, 3, 4, 8, or 16 for exact; or a list such as 4,3,2, each in a file of
    /// its own: the first one is used where a command does not say --experts
    #[arg(
        long, value_name = "BITS", default_value = "4", value_delimiter = ',',
        value_parser = parse_bits
    )]
    pub experts: Vec<Precision>,
    /// Bits of everything dense: 2, 3, 4, 8, or 16 for exact
    #[arg(long, value_name = "BITS", default_value = "8", value_parser = parse_bits)]
    pub dense: Precision,
    /// Bits of n-gram rows: 2, 3, 4, 8, or 16 for exact
    #[arg(long, value_name = "BITS", default_value = "4", value_parser = parse_bits)]
    pub ngram: Precision,
    /// What the norm weights mean: auto, raw, shifted, or a list such as trunk=shifted,mtp_inputs=raw
    #[arg(long, value_name = "RULE", default_value = "auto")]
    pub norms: NormOverride,
    /// Norm of the draft head's hidden input
    #[arg(long, value_enum, default_value_t)]
    pub hidden_norm: HiddenNormName,
    /// Token on which the n-gram window resets, when config.json has it wrong
    #[arg(long, value_name = "ID")]
    pub eos_hash: Option<u32>,
    /// Leave the draft head out
    #[arg(long)]
    pub drop_draft: bool,
    /// Leave out tensors that the configuration does not know
    #[arg(long)]
    pub skip_unknown: bool,
    /// Replace what is at OUT
    #[arg(long)]
    pub force: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
}

/// Arguments of `check`.
#[derive(Clone, Debug, Args)]
pub struct CheckArgs {
    /// Verify every byte of this store instead
    #[arg(long, value_name = "DIR", conflicts_with_all = ["model", "prompt", "max_tokens"])]
    pub store: Option<PathBuf>,
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The cpu device.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Prompt to compare on; may be repeated [default: a few of different kinds]
    #[arg(long, value_name = "TEXT")]
    pub prompt: Vec<String>,
    /// Tokens to generate per prompt
    #[arg(long, short = 'n', value_name = "N", default_value_t = 24, value_parser = positive())]
    pub max_tokens: usize,
}

/// Arguments of `completions`.
#[derive(Clone, Debug, Args)]
pub struct CompletionsArgs {
    /// Which shell
    pub shell: clap_complete::Shell,
}

fn positive() -> impl clap::builder::TypedValueParser<Value = usize> {
    use clap::builder::TypedValueParser as _;
    clap::value_parser!(u32).range(1..).map(|n| n as usize)
}

fn parse_bits(text: &str) -> Result<Precision, String> {
    let bits: u32 =
        text.parse().map_err(|_| format!("found `{text}`, expected 2, 3, 4, 8 or 16"))?;
    Precision::try_from(bits)
}

fn parse_code_bits(text: &str) -> Result<Bits, String> {
    let bits: u32 = text.parse().map_err(|_| format!("found `{text}`, expected 2, 3, 4 or 8"))?;
    Bits::try_from(bits)
}

fn parse_weak(text: &str) -> Result<f32, String> {
    let share = text.parse().ok().filter(|share| (0.0..1.0).contains(share));
    share.ok_or_else(|| format!("found `{text}`, expected a share of at least 0 and below 1"))
}

fn parse_lookahead(text: &str) -> Result<Lookahead, String> {
    match text {
        "auto" => Ok(Lookahead::Auto),
        "off" => Ok(Lookahead::Off),
        number => {
            let expected = || format!("found `{text}`, expected auto, off or a number of experts");
            number.parse().map(Lookahead::Fixed).map_err(|_| expected())
        }
    }
}

fn parse_bias(text: &str) -> Result<(u32, f32), String> {
    let expected = || format!("found `{text}`, expected a token id and a number such as 17=-2.5");
    let (id, bias) = text.split_once('=').ok_or_else(expected)?;
    Ok((id.parse().map_err(|_| expected())?, bias.parse().map_err(|_| expected())?))
}

/// Prints the completion script of a shell.
///
/// # Errors
/// When stdout cannot be written.
pub fn completions(shell: clap_complete::Shell) -> anyhow::Result<()> {
    use std::io::Write as _;
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "cherenkov", &mut script);
    std::io::stdout().write_all(&script).map_err(exit::output_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_hold_together() {
        Cli::command().debug_assert();
    }

    #[test]
    fn biases_are_parsed_or_refused() {
        assert_eq!(parse_bias("17=-2.5"), Ok((17, -2.5)));
        assert_eq!(parse_bias("3=-inf"), Ok((3, f32::NEG_INFINITY)));
        for bad in ["", "17", "x=1", "1=x", "-1=2"] {
            assert!(parse_bias(bad).is_err(), "{bad}");
        }
    }
}
