//! Arguments of `eval`.
//!
//! Owns: names and help texts. Never: measuring.

use super::{ComputeArgs, ModelArgs, positive};
use clap::{ArgGroup, Args};
use std::convert::Infallible;
use std::path::PathBuf;
use std::str::FromStr;

/// What the model is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    /// The exact reference on the same weights.
    Reference,
    /// The same device on another store or checkpoint.
    Model(PathBuf),
}

impl FromStr for Against {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(if text == "reference" { Self::Reference } else { Self::Model(text.into()) })
    }
}

/// Arguments of `eval`.
#[derive(Clone, Debug, Args)]
#[command(group(ArgGroup::new("what").required(true)))]
pub struct EvalArgs {
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The cpu device.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// The text
    #[arg(long, value_name = "FILE", group = "what")]
    pub text: Option<PathBuf>,
    /// With --text: text of control tokens stands for the tokens
    #[arg(long, requires = "text")]
    pub special: bool,
    /// Token ids between spaces instead; every line is a text of its own
    #[arg(long, value_name = "FILE", group = "what")]
    pub tokens: Option<PathBuf>,
    /// Compare with `reference` (exact arithmetic on the same weights) or with another store of the
    /// same vocabulary, its experts at their default precision
    #[arg(long, value_name = "reference|DIR")]
    pub against: Option<Against>,
    /// Tokens seen together: a text is cut into windows, each of which begins with an empty context
    /// [default: 1024, or what the model was made for]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub window: Option<usize>,
    /// At most this many tokens, those that only begin a window included [default: all]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub limit: Option<usize>,
    /// Write the figures as JSON instead of the table
    #[arg(long)]
    pub json: bool,
    /// Write the figures by the number of tokens seen before, as lines of this file
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Positions on one line of --csv [default: a sixteenth of the window]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub bucket: Option<usize>,
}
