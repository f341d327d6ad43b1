//! Arguments of `synth`.
//!
//! Owns: names and help texts. Never: geometries (see `cherenkov_format::synth`).

use super::{parse_bits, positive};
use cherenkov_format::pack::Precision;
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// A geometry to start from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PresetName {
    /// Qwen3.8-Flash-Next, with a small n-gram table.
    FlashNext,
    /// The bundled pocket model.
    Pocket,
    /// A small model whose n-gram rows are as wide as its residual.
    Small,
}

/// What is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum FormName {
    /// What `run` reads.
    #[default]
    Store,
    /// What `pack` reads: bf16 safetensors under the official names.
    Checkpoint,
}

/// Arguments of `synth`.
#[derive(Clone, Debug, Args)]
pub struct SynthArgs {
    /// Directory to make
    pub out: PathBuf,
    /// The geometry to start from
    #[arg(long, value_enum)]
    pub preset: PresetName,
    /// Layers of the trunk: every fourth is attention (of fewer than four the last)
    #[arg(long, value_name = "N", value_parser = positive())]
    pub layers: Option<usize>,
    /// Experts of a layer
    #[arg(long, value_name = "N", value_parser = positive())]
    pub experts: Option<usize>,
    /// Experts per token
    #[arg(long, value_name = "N", value_parser = positive())]
    pub top_k: Option<usize>,
    /// Width of a residual stream, and of the n-gram rows of a token
    #[arg(long, value_name = "N", value_parser = positive())]
    pub hidden: Option<usize>,
    /// Tokens of the vocabulary
    #[arg(long, value_name = "N", value_parser = positive())]
    pub vocab: Option<usize>,
    /// Rows of an n-gram head, about; the official model has 20000000 (a table of 32 GB at 4 bits)
    #[arg(long, value_name = "N", value_parser = positive())]
    pub ngram_rows: Option<usize>,
    /// Leave the draft head out
    #[arg(long)]
    pub no_draft_head: bool,
    /// Any other value of the geometry, as in the manifest's `config`: `attention.head_dim=128`,
    /// `layers=["delta","attention"]`; may be repeated
    #[arg(long, value_name = "PATH=VALUE", value_parser = parse_set)]
    pub set: Vec<(String, String)>,
    /// What is written
    #[arg(long, value_enum, default_value_t)]
    pub format: FormName,
    /// Bits of routed experts of a store: 2, 3, 4, 8, or 16; or a list such as 4,3,2
    #[arg(
        long, value_name = "BITS", default_value = "4", value_delimiter = ',',
        value_parser = parse_bits
    )]
    pub experts_bits: Vec<Precision>,
    /// Bits of everything dense of a store: 2, 3, 4, 8, or 16
    #[arg(long, value_name = "BITS", default_value = "8", value_parser = parse_bits)]
    pub dense: Precision,
    /// Bits of n-gram rows of a store: 2, 3, 4, 8, or 16
    #[arg(long, value_name = "BITS", default_value = "4", value_parser = parse_bits)]
    pub ngram: Precision,
    /// Another seed gives other weights
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Replace the store at OUT
    #[arg(long)]
    pub force: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
}

fn parse_set(text: &str) -> Result<(String, String), String> {
    let (path, value) = text.split_once('=').ok_or_else(|| {
        format!("found `{text}`, expected a path and a value such as moe.width=96")
    })?;
    Ok((path.to_owned(), value.to_owned()))
}
