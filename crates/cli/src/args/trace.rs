//! Arguments of `trace`.
//!
//! Owns: names, help texts. Never: what is written (see `trace`).

use super::{ComputeArgs, ModelArgs, positive};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// Something that can be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Subject {
    /// The experts chosen for each row, with their weights.
    Routes,
    /// The blocks that attention chose for each row.
    Picks,
    /// The likeliest token after each row.
    Argmax,
    /// All logits after each row (large).
    Logits,
    /// The residual after each layer (large).
    States,
}

/// Arguments of `trace`.
#[derive(Clone, Debug, Args)]
pub struct TraceArgs {
    /// The prompt, continued as plain text
    pub prompt: String,
    /// The file to write: one JSON object per line; `-` for stdout
    #[arg(long, short, value_name = "FILE")]
    pub out: PathBuf,
    /// What to look at
    #[arg(long, value_enum, value_delimiter = ',', default_value = "routes,argmax")]
    pub what: Vec<Subject>,
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The cpu device.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Text of control tokens is read as control tokens
    #[arg(long)]
    pub special: bool,
    /// Tokens to generate behind the prompt, the likeliest ones
    #[arg(long, short = 'n', value_name = "N", default_value_t = 8, value_parser = positive())]
    pub max_tokens: usize,
    /// Drafts to verify per step
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub drafts: usize,
}
