//! What a run shall do, with every default resolved.
//!
//! Owns: how command line and generation_config.json become one set of values.
//! Never: memory and context (see `plan`).
//! Invariant: after [`Settings::resolve`] nothing asks the command line again.

use crate::args::{Drafts, RunArgs, SamplingArgs};
use crate::exit::usage;
use anyhow::Context as _;
use cherenkov_engine::SampleParams;
use cherenkov_format::Store;
use cherenkov_model::MAX_TENTATIVE;
use cherenkov_text::{SpecialTokens, StopStrings};
use serde::Deserialize;
use std::hash::{BuildHasher as _, Hasher as _};
use std::path::{Path, PathBuf};

/// What the prompt is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A conversation that the chat template renders.
    Chat {
        /// System message.
        system: Option<String>,
        /// Thinking on, off, or as the template likes.
        thinking: Option<bool>,
    },
    /// Plain text to continue.
    Raw(SpecialTokens),
}

/// Whether thinking is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Thinking {
    /// Between its markers.
    Shown,
    /// Not at all.
    Hidden,
}

/// Where the seeds of answers come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seeds {
    /// The user's: the same for every answer, so the same text.
    Fixed(u64),
    /// Another one for every answer, counted up from this one.
    From(u64),
}

impl Seeds {
    /// The seed of the `index`-th answer.
    pub fn of(self, index: u64) -> u64 {
        match self {
            Self::Fixed(seed) => seed,
            Self::From(seed) => seed.wrapping_add(index),
        }
    }
}

/// Where statistics go.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// A table on stderr.
    pub table: bool,
    /// Lines of JSON in this file; `-` is stderr.
    pub json: Option<PathBuf>,
}

/// Everything that shapes the answers of a run.
#[derive(Clone, Debug)]
pub struct Settings {
    /// What the prompt is.
    pub mode: Mode,
    /// Whether thinking is shown.
    pub thinking: Thinking,
    /// How tokens are drawn, but for the seed.
    pub params: SampleParams,
    /// The seed.
    pub seeds: Seeds,
    /// Longest answer, if one was asked for.
    pub max_tokens: Option<usize>,
    /// Context, if one was asked for.
    pub max_ctx: Option<usize>,
    /// How many drafts a step has.
    pub drafts: Drafts,
    /// The most that it can have.
    pub most_drafts: usize,
    /// Tokens that end an answer.
    pub stop_ids: Vec<u32>,
    /// Texts that end an answer.
    pub stop_texts: Vec<String>,
    /// Answers to the same prompt.
    pub repeat: usize,
    /// Where statistics go.
    pub reports: Reports,
}

/// The part of generation_config.json that concerns us.
#[derive(Debug, Default, Deserialize)]
struct Defaults {
    do_sample: Option<bool>,
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl Defaults {
    /// Of the store in `dir`; without the file there are none, and that means greedy.
    fn read(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("generation_config.json");
        let bytes = match std::fs::read(&path) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => {
                return Err(error).with_context(|| format!("cannot read {}", path.display()));
            }
        };
        serde_json::from_slice(&bytes).with_context(|| format!("{}: not usable", path.display()))
    }
}

fn params(args: &SamplingArgs, defaults: &Defaults) -> anyhow::Result<SampleParams> {
    let plain = SampleParams::default();
    let warm = defaults.do_sample == Some(true);
    let default = if warm { defaults.temperature.unwrap_or(1.0) } else { 0.0 };
    let params = SampleParams {
        temperature: args.temperature.unwrap_or(default),
        top_k: args.top_k.or(defaults.top_k).unwrap_or(plain.top_k),
        top_p: args.top_p.or(defaults.top_p).unwrap_or(plain.top_p),
        min_p: args.min_p.or(defaults.min_p).unwrap_or(plain.min_p),
        repetition_penalty: args
            .repetition_penalty
            .or(defaults.repetition_penalty)
            .unwrap_or(plain.repetition_penalty),
        presence_penalty: args.presence_penalty.unwrap_or(plain.presence_penalty),
        frequency_penalty: args.frequency_penalty.unwrap_or(plain.frequency_penalty),
        logit_bias: args.logit_bias.clone(),
        ..plain
    };
    params.validate().map_err(|e| usage(format!("sampling: {e}")))?;
    Ok(params)
}

/// The rule for drafts, and the most that a step can have.
///
/// # Errors
/// A usage error for more than the model and the engine can.
pub fn drafts(wanted: Option<Drafts>, store: &Store) -> anyhow::Result<(Drafts, usize)> {
    let limit = if store.config().mtp.is_some() { MAX_TENTATIVE - 1 } else { 0 };
    match wanted {
        None | Some(Drafts::Auto) if limit > 0 => Ok((Drafts::Auto, limit)),
        None => Ok((Drafts::Count(0), 0)),
        Some(Drafts::Count(count)) if count <= limit => Ok((Drafts::Count(count), count)),
        Some(wanted) if limit == 0 => Err(usage(format!(
            "--drafts {wanted}: this model has no draft head; expected 0, or a store packed with one"
        ))),
        Some(wanted) => {
            Err(usage(format!("--drafts {wanted}: expected at most {limit} drafts per step")))
        }
    }
}

fn mode(args: &RunArgs) -> Mode {
    if args.raw {
        let specials = if args.special { SpecialTokens::Show } else { SpecialTokens::Hide };
        return Mode::Raw(specials);
    }
    let thinking = match (args.think, args.no_think) {
        (true, _) => Some(true),
        (_, true) => Some(false),
        _ => None,
    };
    Mode::Chat { system: args.system.clone(), thinking }
}

/// A seed that nobody has seen before; the standard library's hasher is keyed by the system.
fn fresh_seed() -> u64 {
    let hasher = std::collections::hash_map::RandomState::new().build_hasher();
    // Short enough to be typed again.
    hasher.finish() >> 32
}

impl Settings {
    /// Resolves the command line for a store.
    ///
    /// # Errors
    /// A usage error for values that contradict each other or the model.
    pub fn resolve(args: &RunArgs, store: &Store) -> anyhow::Result<Self> {
        let defaults = Defaults::read(store.dir())?;
        StopStrings::new(args.stop.clone()).map_err(|e| usage(format!("--stop: {e}")))?;
        let bias = &args.sampling.logit_bias;
        if let Some((id, _)) = bias.iter().find(|(id, _)| *id as usize >= store.config().vocab) {
            let vocab = store.config().vocab;
            return Err(usage(format!("--logit-bias {id}: expected a token id below {vocab}")));
        }
        let (drafts, most_drafts) = drafts(args.drafts, store)?;
        Ok(Self {
            mode: mode(args),
            thinking: if args.hide_thinking { Thinking::Hidden } else { Thinking::Shown },
            params: params(&args.sampling, &defaults)?,
            seeds: args.sampling.seed.map_or_else(|| Seeds::From(fresh_seed()), Seeds::Fixed),
            max_tokens: args.max_tokens,
            max_ctx: args.max_ctx,
            drafts,
            most_drafts,
            stop_ids: if args.no_eos { Vec::new() } else { store.config().eos_stop.clone() },
            stop_texts: args.stop.clone(),
            repeat: args.repeat,
            reports: Reports { table: args.stats, json: args.stats_json.clone() },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: SamplingArgs, defaults: &str, want: (f32, usize, f32)) {
        let got = params(&args, &serde_json::from_str(defaults).unwrap()).unwrap();
        assert_eq!((got.temperature, got.top_k, got.top_p), want, "{args:?} {defaults}");
    }

    #[test]
    fn the_command_line_wins_over_the_model_and_the_model_over_greedy() {
        let none = SamplingArgs::default;
        let warm = r#"{"do_sample": true, "temperature": 0.7, "top_p": 0.9, "top_k": 20, "x": 1}"#;
        check(none(), warm, (0.7, 20, 0.9));
        check(none(), "{}", (0.0, 0, 1.0));
        check(none(), r#"{"do_sample": true, "top_k": null}"#, (1.0, 0, 1.0));
        check(none(), r#"{"do_sample": false, "temperature": 0.7}"#, (0.0, 0, 1.0));
        check(none(), r#"{"temperature": 0.7}"#, (0.0, 0, 1.0));
        check(SamplingArgs { temperature: Some(0.0), ..none() }, warm, (0.0, 20, 0.9));
        check(SamplingArgs { temperature: Some(1.5), ..none() }, "{}", (1.5, 0, 1.0));
        check(SamplingArgs { top_k: Some(3), ..none() }, warm, (0.7, 3, 0.9));
    }

    #[test]
    fn values_out_of_range_are_usage_errors() {
        for args in [
            SamplingArgs { temperature: Some(-1.0), ..Default::default() },
            SamplingArgs { top_p: Some(0.0), ..Default::default() },
            SamplingArgs { min_p: Some(f32::NAN), ..Default::default() },
        ] {
            let error = params(&args, &Defaults::default()).unwrap_err();
            assert!(error.is::<crate::exit::Usage>(), "{error}");
        }
    }

    #[test]
    fn a_given_seed_is_every_answers_seed() {
        assert_eq!([0, 1, 2].map(|i| Seeds::Fixed(7).of(i)), [7, 7, 7]);
        assert_eq!([0, 1].map(|i| Seeds::From(u64::MAX).of(i)), [u64::MAX, 0]);
    }
}
