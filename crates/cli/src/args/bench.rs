//! Arguments of `bench`.
//!
//! Owns: names, help texts and what contradicts what. Never: measuring.

use super::{Drafts, KvName, ModelArgs, parse_drafts, positive};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

/// What tokens are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TokensName {
    /// Drawn uniformly from the vocabulary, as other programs' benchmarks do.
    Random,
    /// A conversation that the model would be asked to go on with: what drafts are made for.
    Text,
}

/// Arguments of `bench`.
#[derive(Clone, Debug, Args)]
pub struct BenchArgs {
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// Prompt lengths to measure; `none` for no prefill
    #[arg(long, short, value_name = "N,...", default_value = "512,4096", value_parser = parse_lengths)]
    pub prompt: Lengths,
    /// Tokens to generate; `none` for no decode
    #[arg(long, short = 'n', value_name = "N,...", default_value = "128", value_parser = parse_lengths)]
    pub generate: Lengths,
    /// Tokens that lie in the context before
    #[arg(long, value_name = "N,...", default_value = "0", value_delimiter = ',')]
    pub depth: Vec<usize>,
    /// Threads [default: one per performance core that this process may use]
    #[arg(long, value_name = "N,...", value_delimiter = ',', value_parser = positive())]
    pub threads: Vec<usize>,
    /// Instruction sets of the cpu device [default: the best this machine has]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub isa: Vec<String>,
    /// How the cpu device keeps keys and values [default: f16]
    #[arg(long, value_enum, value_name = "NUMBERS,...", value_delimiter = ',')]
    pub kv: Vec<KvName>,
    /// Drafts per step of the decode, numbers or auto; prefill is measured with the draft head only if
    /// the first is not 0
    #[arg(long, value_name = "N|auto,...", default_value = "0", value_delimiter = ',', value_parser = parse_drafts)]
    pub drafts: Vec<Drafts>,
    /// Have this share of the drafts accepted: the true next token is put in their place, or by a
    /// random choice a wrong one (0.7 stands for text that is harder than the prompt)
    #[arg(long, value_name = "SHARE", value_parser = parse_share)]
    pub force_acceptance: Option<f64>,
    /// How tokens are drawn; 0 is greedy
    #[arg(long, short, value_name = "T", default_value_t = 0.0)]
    pub temperature: f32,
    /// Seed of the sampling, of random tokens and of --force-acceptance
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// What tokens are run [default: text, random for models of random weights]
    #[arg(long, value_enum)]
    pub tokens: Option<TokensName>,
    /// A file with the text instead of the built-in question
    #[arg(long, value_name = "FILE")]
    pub text: Option<PathBuf>,
    /// How often everything is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = positive())]
    pub repeat: usize,
    /// Also measure where the time goes: every verb of the prefill of the first prompt length and of
    /// the decode
    #[arg(long)]
    pub verbs: bool,
    /// Measure no speed: record which experts some conversations are routed to, or take a file with
    /// such routes, and print how often a pool of several sizes would have held them under each policy
    #[arg(long, value_name = "FILE", num_args = 0..=1, conflicts_with_all = ["verbs", "force_acceptance"])]
    pub trace: Option<Option<PathBuf>>,
    /// Keep the recorded routes in a file, for --trace and for other programs
    #[arg(long, value_name = "FILE", requires = "trace")]
    pub save_trace: Option<PathBuf>,
    /// Write everything as JSON to a file, or (`-`) to stdout instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// A list of lengths, which may be empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lengths(pub Vec<usize>);

fn parse_lengths(text: &str) -> Result<Lengths, String> {
    if text == "none" {
        return Ok(Lengths(Vec::new()));
    }
    let one = |part: &str| part.trim().parse().ok().filter(|&n| n > 0);
    let all: Option<Vec<usize>> = text.split(',').map(one).collect();
    all.map(Lengths)
        .ok_or_else(|| format!("found `{text}`, expected lengths such as 512,4096, or none"))
}

fn parse_share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| format!("found `{text}`, expected a number from 0 to 1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_shares_are_parsed_or_refused() {
        assert_eq!(parse_lengths("512,4096"), Ok(Lengths(vec![512, 4096])));
        assert_eq!(parse_lengths("none"), Ok(Lengths(vec![])));
        for bad in ["", "0", "512,", "x", "-1"] {
            assert!(parse_lengths(bad).is_err(), "{bad}");
        }
        assert_eq!(parse_share("0.7"), Ok(0.7));
        for bad in ["", "1.1", "-0.1", "NaN", "70%"] {
            assert!(parse_share(bad).is_err(), "{bad}");
        }
    }
}
