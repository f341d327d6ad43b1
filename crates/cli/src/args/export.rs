//! Arguments of `export`.
//!
//! Owns: names and help texts. Never: formats (see `cherenkov_format::gguf`).

use super::positive;
use cherenkov_format::gguf::Type;
use clap::Args;
use std::path::PathBuf;

/// Arguments of `export`.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Write a GGUF file of the qwen4exp architecture
    #[arg(long, value_name = "FILE", required = true)]
    pub gguf: PathBuf,
    /// Store or checkpoint directory [default: the bundled pocket model]
    #[arg(long, short, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// Routed experts: q4_0, q4_1, q8_0, f16, bf16 or f32
    #[arg(long, value_name = "TYPE", default_value = "q4_1", value_parser = parse_type)]
    pub experts: Type,
    /// Everything dense but routers, small gates and norms, which are f32
    #[arg(long, value_name = "TYPE", default_value = "q8_0", value_parser = parse_type)]
    pub dense: Type,
    /// N-gram tables [default: as the experts]
    #[arg(long, value_name = "TYPE", value_parser = parse_type)]
    pub ngram: Option<Type>,
    /// Replace a file that is there already
    #[arg(long)]
    pub force: bool,
    /// Threads [default: one per core]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub threads: Option<usize>,
}

fn parse_type(text: &str) -> Result<Type, String> {
    let found = Type::ALL.into_iter().find(|t| t.name() == text);
    found.ok_or_else(|| {
        let names: Vec<&str> = Type::ALL.iter().map(|t| t.name()).collect();
        format!("found `{text}`, expected one of {}", names.join(", "))
    })
}
