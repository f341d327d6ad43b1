//! A request in no dialect.
//!
//! Owns: what all dialects can ask for, and the fields that several of them share.
//! Never: JSON of responses.
//! Invariant: two fields that mean the same and disagree are an error.

use super::fields::{Fields, wrong};
use crate::error::{Error, Result};
use crate::schedule::Priority;
use cherenkov_engine::SampleParams;
use cherenkov_text::{Conversation, Effort, RenderOptions};
use serde_json::Value;

/// Answers to one prompt that a request may ask for.
const CHOICES_MAX: usize = 16;

/// A prompt in one of its forms.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    Chat(Box<Conversation>, Box<RenderOptions>),
    Text(String),
    Tokens(Vec<u32>),
}

/// Whether tools may be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) enum Calls {
    #[default]
    Auto,
    Off,
}

/// Whether an answer comes as it is made or as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Whole,
    Stream,
}

/// Sampling as far as a request names it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sampling {
    pub(crate) temperature: Option<f32>,
    pub(crate) top_p: Option<f32>,
    pub(crate) top_k: Option<usize>,
    pub(crate) min_p: Option<f32>,
    pub(crate) seed: Option<u64>,
    pub(crate) presence: Option<f32>,
    pub(crate) frequency: Option<f32>,
    pub(crate) repetition: Option<f32>,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) logprobs: Option<usize>,
}

impl Sampling {
    /// Takes the fields that both OpenAI endpoints have.
    pub(crate) fn take(fields: &mut Fields) -> Result<Self> {
        let top_k = match fields.take("top_k") {
            None => None,
            // vLLM's way to say "all".
            Some(value) if value.as_i64() == Some(-1) => Some(0),
            Some(value) => match super::fields::count(&value) {
                Some(count) => Some(count),
                None => return Err(wrong("top_k", &value, "a whole number")),
            },
        };
        let repetition = fields.float("repetition_penalty")?;
        Ok(Self {
            temperature: fields.float("temperature")?,
            top_p: fields.float("top_p")?,
            top_k,
            min_p: fields.float("min_p")?,
            seed: fields.seed("seed")?,
            presence: fields.float("presence_penalty")?,
            frequency: fields.float("frequency_penalty")?,
            repetition: agree(
                ("repetition_penalty", repetition),
                ("repeat_penalty", fields.float("repeat_penalty")?),
            )?,
            logit_bias: logit_bias(fields)?,
            logprobs: None,
        })
    }

    /// Settings for the sampler: the request's, else the model's.
    pub(crate) fn settle(&self, base: &SampleParams, seed: u64) -> SampleParams {
        SampleParams {
            temperature: self.temperature.unwrap_or(base.temperature),
            top_k: self.top_k.unwrap_or(base.top_k),
            top_p: self.top_p.unwrap_or(base.top_p),
            min_p: self.min_p.unwrap_or(base.min_p),
            seed: self.seed.unwrap_or(seed),
            repetition_penalty: self.repetition.unwrap_or(base.repetition_penalty),
            presence_penalty: self.presence.unwrap_or(base.presence_penalty),
            frequency_penalty: self.frequency.unwrap_or(base.frequency_penalty),
            logit_bias: if self.logit_bias.is_empty() {
                base.logit_bias.clone()
            } else {
                self.logit_bias.clone()
            },
            logprobs: self.logprobs,
        }
    }
}

/// A request.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) model: Option<String>,
    pub(crate) inputs: Vec<Input>,
    pub(crate) n: usize,
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) thinking_max: Option<usize>,
    pub(crate) stops: Vec<String>,
    pub(crate) calls: Calls,
    pub(crate) calls_max: Option<usize>,
    pub(crate) ignore_ends: bool,
    pub(crate) mode: Mode,
    pub(crate) include_usage: bool,
    pub(crate) priority: Priority,
}

impl Ask {
    /// A request for one whole answer.
    pub(crate) fn new(inputs: Vec<Input>) -> Self {
        Self {
            model: None,
            inputs,
            n: 1,
            sampling: Sampling::default(),
            max_tokens: None,
            thinking_max: None,
            stops: Vec::new(),
            calls: Calls::Auto,
            calls_max: None,
            ignore_ends: false,
            mode: Mode::Whole,
            include_usage: false,
            priority: Priority::Interactive,
        }
    }

    /// Takes the fields that both OpenAI endpoints have.
    pub(crate) fn take_openai(&mut self, fields: &mut Fields) -> Result<()> {
        self.model = fields.string("model")?;
        self.sampling = Sampling::take(fields)?;
        self.max_tokens = max_tokens(fields)?;
        self.thinking_max = fields.count("thinking_budget")?;
        self.stops = fields.strings("stop")?;
        self.ignore_ends = fields.flag("ignore_eos")?.unwrap_or(false);
        self.n = fields.positive("n")?.unwrap_or(1);
        if self.n > CHOICES_MAX {
            let reason = format!("found {}, expected at most {CHOICES_MAX}", self.n);
            return Err(Error::invalid("n", reason));
        }
        self.take_stream(fields)?;
        self.priority = priority(fields)?;
        Ok(())
    }

    fn take_stream(&mut self, fields: &mut Fields) -> Result<()> {
        let stream = fields.flag("stream")?.unwrap_or(false);
        self.mode = if stream { Mode::Stream } else { Mode::Whole };
        if let Some(mut options) = fields.object("stream_options")? {
            self.include_usage = options.flag("include_usage")?.unwrap_or(false);
            options.finish(&["include_obfuscation"], &[])?;
        }
        Ok(())
    }
}

/// The cap of tokens under all its names.
fn max_tokens(fields: &mut Fields) -> Result<Option<usize>> {
    let old = ("max_tokens", fields.positive("max_tokens")?);
    let new = ("max_completion_tokens", fields.positive("max_completion_tokens")?);
    let both = agree(old, new)?;
    let output = ("max_output_tokens", fields.positive("max_output_tokens")?);
    agree(("max_tokens", both), output)
}

fn priority(fields: &mut Fields) -> Result<Priority> {
    match fields.take("priority") {
        None => Ok(Priority::Interactive),
        Some(Value::String(name)) if name == "interactive" => Ok(Priority::Interactive),
        Some(Value::String(name)) if name == "background" => Ok(Priority::Background),
        Some(other) => Err(wrong("priority", &other, "\"interactive\" or \"background\"")),
    }
}

/// One value for two names.
pub(crate) fn agree<T: PartialEq + std::fmt::Display>(
    first: (&str, Option<T>),
    second: (&str, Option<T>),
) -> Result<Option<T>> {
    match (first.1, second.1) {
        (Some(a), Some(b)) if a != b => Err(Error::invalid(
            second.0,
            format!("found {b}, but {} is {a}; expected one value, remove one of them", first.0),
        )),
        (a, b) => Ok(a.or(b)),
    }
}

fn logit_bias(fields: &mut Fields) -> Result<Vec<(u32, f32)>> {
    let Some(bias) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let one = |(token, value): (String, Value)| {
        let id = token.parse::<u32>().map_err(|_| {
            Error::invalid("logit_bias", format!("found key `{token}`, expected a token id"))
        })?;
        let bias = value.as_f64().filter(|v| (-100.0..=100.0).contains(v));
        let bias = bias.ok_or_else(|| wrong("logit_bias", &value, "a number from -100 to 100"))?;
        Ok((id, bias as f32))
    };
    bias.rest().into_iter().map(one).collect()
}

/// An effort under its name.
pub(crate) fn effort(name: Option<String>) -> Result<Option<Effort>> {
    Ok(name.as_deref().map(Effort::parse).transpose()?)
}
