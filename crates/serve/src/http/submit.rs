//! From a request of any dialect to jobs of the worker.
//!
//! Owns: rendering, tokens, defaults, limits, places in the queue.
//! Never: JSON. Invariant: what can be refused is refused before the worker hears of it.

use super::answers::Answers;
use super::{App, Shared};
use crate::error::{Error, Result};
use crate::options::{Names, Reserve, TextModel};
use crate::outbox::outbox;
use crate::schedule::RequestId;
use crate::snapshot::Health;
use crate::wire::ask::{Ask, Calls, Input, Mode};
use crate::wire::writer::Head;
use crate::worker::answer::{Ends, Plan, reserve};
use crate::worker::{Event, Job};
use cherenkov_engine::{Info, SampleParams};
use cherenkov_text::{
    CallMode, Conversation, GenerationPrompt, ParserOptions, RenderOptions, Start, ToolSchemas,
};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// What closes a think block that grew too long.
const CLOSE_THINKING: &str = "\n</think>\n\n";

/// How an endpoint names its requests.
#[derive(Clone, Copy)]
pub(crate) struct Endpoint {
    pub(crate) name: &'static str,
    /// Beginning of response ids.
    pub(crate) response: &'static str,
    /// Beginning of call ids.
    pub(crate) call: &'static str,
}

/// A request that the worker has.
pub(crate) struct Submitted {
    pub(crate) head: Head,
    pub(crate) answers: Answers,
    pub(crate) n: usize,
    pub(crate) mode: Mode,
    /// The effort that the template was asked for.
    pub(crate) effort: Option<&'static str>,
}

/// A prompt as tokens, and how its answer begins.
pub(crate) struct Prepared {
    pub(crate) tokens: Vec<u32>,
    boundary: usize,
    start: Option<Start>,
    schemas: ToolSchemas,
    calls: CallMode,
}

impl App {
    /// What the engine can do, once the server answers.
    pub(crate) fn ready(&self) -> Result<&Info> {
        match self.health() {
            Health::Ready => self.desk.info.get().ok_or(Error::Loading),
            Health::Loading => Err(Error::Loading),
            Health::Stopping => Err(Error::Stopping),
            Health::Degraded(reason) => Err(Error::Degraded(reason)),
        }
    }

    /// Refuses the name of another model.
    pub(crate) fn check_model(&self, found: Option<&str>) -> Result<()> {
        let text = &self.desk.text;
        let Some(found) = found else { return Ok(()) };
        let known = found == text.name || text.aliases.iter().any(|a| a == found);
        if known || self.desk.options.names == Names::Any {
            return Ok(());
        }
        let mut expected = format!("`{}`", text.name);
        text.aliases.iter().for_each(|a| expected.push_str(&format!(" or `{a}`")));
        Err(Error::Model { found: found.to_owned(), expected })
    }

    /// Places for so many requests, or none.
    fn places(&self, count: usize) -> Result<Vec<OwnedSemaphorePermit>> {
        if count > self.capacity {
            let reason = format!("found {count} answers, expected at most {}", self.capacity);
            return Err(Error::invalid("n", reason));
        }
        let place = |_| Arc::clone(&self.places).try_acquire_owned().ok();
        let places: Option<Vec<_>> = (0..count).map(place).collect();
        places.ok_or(Error::Busy { limit: self.capacity })
    }
}

/// Renders and encodes prompts on a thread that may take its time.
pub(crate) async fn prepare(
    app: &Shared,
    inputs: Vec<Input>,
    calls: Calls,
) -> Result<Vec<Prepared>> {
    let text = Arc::clone(&app.desk.text);
    let work = tokio::task::spawn_blocking(move || {
        inputs.into_iter().map(|input| prepare_one(&text, input, calls)).collect()
    });
    work.await.map_err(|e| Error::Panicked(e.to_string()))?
}

fn prepare_one(text: &TextModel, input: Input, calls: Calls) -> Result<Prepared> {
    let plain = |tokens: Vec<u32>| Prepared {
        boundary: tokens.len(),
        tokens,
        start: None,
        schemas: ToolSchemas::default(),
        calls: CallMode::Text,
    };
    match input {
        Input::Tokens(tokens) => Ok(plain(tokens)),
        Input::Text(prompt) => Ok(plain(text.tokenizer.encode(&prompt)?)),
        Input::Chat(conversation, options) => prepare_chat(text, &conversation, &options, calls),
    }
}

fn prepare_chat(
    text: &TextModel,
    conversation: &Conversation,
    options: &RenderOptions,
    calls: Calls,
) -> Result<Prepared> {
    let Some(template) = &text.template else {
        let what = "chat with a model that has no chat template".to_owned();
        return Err(Error::NotBuilt { what });
    };
    let prompt = template.render(conversation, options)?;
    let tokens = text.tokenizer.encode_prompt(&prompt)?;
    let closed = RenderOptions { generation_prompt: GenerationPrompt::Omit, ..options.clone() };
    let whole = prompt.text();
    // A template that refuses to render without the model's turn costs the checkpoint only.
    let history = template.render(conversation, &closed).ok();
    let turn = history.as_ref().and_then(|h| whole.strip_prefix(&*h.text()));
    let turn = turn.map(|t| text.tokenizer.encode(t)).transpose()?;
    let boundary = turn.filter(|t| tokens.ends_with(t)).map_or(0, |t| tokens.len() - t.len());
    let mentions = conversation.messages.iter().any(|m| !m.tool_calls.is_empty());
    let parse = calls == Calls::Auto && (mentions || !conversation.tools.is_empty());
    Ok(Prepared {
        boundary,
        start: Some(prompt.start()),
        schemas: ToolSchemas::new(&conversation.tools),
        calls: if parse { CallMode::Parse } else { CallMode::Text },
        tokens,
    })
}

/// Submits a request.
pub(crate) async fn submit(app: &Shared, ask: Ask, endpoint: Endpoint) -> Result<Submitted> {
    app.ready()?;
    app.check_model(ask.model.as_deref())?;
    let places = app.places(ask.inputs.len() * ask.n)?;
    let effort = ask.inputs.iter().find_map(|input| match input {
        Input::Chat(_, options) => options.effort.map(cherenkov_text::Effort::name),
        _ => None,
    });
    let prepared = prepare(app, ask.inputs.clone(), ask.calls).await?;
    let info = app.ready()?;
    let number = app.number();
    let response: Arc<str> =
        format!("{}-{}{number}", endpoint.response, app.desk.options.instance).into();
    let head = Head {
        id: Arc::clone(&response),
        model: app.desk.text.name.clone(),
        created: app.desk.options.clock.now().as_secs(),
        tokenizer: app.desk.text.tokenizer.clone(),
        include_usage: ask.include_usage,
        logprobs: ask.sampling.logprobs.is_some(),
        prompt_tokens: prepared.iter().map(|p| p.tokens.len()).sum(),
    };
    let mut maker = Maker { app, info, ask: &ask, endpoint, response, number };
    let mut jobs = Vec::new();
    let mut receivers = Vec::new();
    let mut places = places.into_iter();
    for prompt in &prepared {
        for choice in 0..ask.n {
            let permit = places.next().expect("one place per answer");
            let (job, receiver) = maker.job(prompt, choice, permit)?;
            jobs.push(job);
            receivers.push(receiver);
        }
    }
    for job in jobs {
        // A worker that has ended drops the job, and the reader hears of it.
        let _ = app.events.send(Event::Submit(Box::new(job)));
    }
    let answers = Answers::new(receivers);
    Ok(Submitted { head, answers, n: ask.n, mode: ask.mode, effort })
}

/// Makes the jobs of one request.
struct Maker<'a> {
    app: &'a App,
    info: &'a Info,
    ask: &'a Ask,
    endpoint: Endpoint,
    response: Arc<str>,
    number: u64,
}

impl Maker<'_> {
    fn job(
        &mut self,
        prompt: &Prepared,
        choice: usize,
        permit: OwnedSemaphorePermit,
    ) -> Result<(Job, crate::outbox::Receiver)> {
        let options = &self.app.desk.options;
        let id = RequestId(if choice == 0 { self.number } else { self.app.number() });
        let close = self.app.desk.text.tokenizer.encode(CLOSE_THINKING)?;
        let plan = self.plan(prompt, id, close.len())?;
        let params = self.params(prompt, choice, id)?;
        let (sender, receiver) = outbox(id, options.outbox, self.app.events.clone());
        let drafts = options.drafts.unwrap_or(self.info.drafts).min(self.info.drafts);
        let job = Job {
            id,
            response: Arc::clone(&self.response),
            endpoint: self.endpoint.name,
            priority: self.ask.priority,
            prompt: prompt.tokens.clone(),
            boundary: prompt.boundary,
            params,
            plan,
            drafts,
            close,
            sender,
            permit,
        };
        Ok((job, receiver))
    }

    fn params(&self, prompt: &Prepared, choice: usize, id: RequestId) -> Result<SampleParams> {
        let text = &self.app.desk.text;
        let base = match prompt.start {
            Some(Start::Reasoning) => &text.thinking,
            _ => &text.plain,
        };
        let seed = mix(self.app.desk.options.clock.now().as_nanos() as u64 ^ mix(id.0));
        let mut params = self.ask.sampling.settle(base, seed);
        params.validate()?;
        if self.ask.sampling.seed.is_some() {
            params.seed = params.seed.wrapping_add(choice as u64);
        }
        Ok(params)
    }

    fn plan(&self, prompt: &Prepared, id: RequestId, close_len: usize) -> Result<Plan> {
        let (limit, vocab) = (self.info.context, self.info.vocab);
        let needed = prompt.tokens.len();
        if needed == 0 {
            return Err(Error::invalid("prompt", "found no tokens, expected at least one"));
        }
        if needed >= limit {
            return Err(Error::Context { needed, limit });
        }
        if let Some(&token) = prompt.tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(cherenkov_engine::Error::Token { token, vocab }.into());
        }
        let options = &self.app.desk.options;
        let room = limit - needed;
        let most = options.max_tokens.unwrap_or(room).min(room);
        let max_tokens = self.ask.max_tokens.unwrap_or(most).min(most);
        let kept = match options.reserve {
            Reserve::Keep => reserve(max_tokens).map(|r| max_tokens - r),
            Reserve::Off => None,
        };
        let asked = self.ask.thinking_max;
        let parser = prompt.start.map(|start| ParserOptions {
            schemas: prompt.schemas.clone(),
            calls: prompt.calls,
            id_prefix: format!("{}_{}{}_", self.endpoint.call, options.instance, id.0),
            ..ParserOptions::new(start)
        });
        Ok(Plan {
            stops: self.ask.stops.clone(),
            parser,
            max_tokens,
            close_len,
            thinking_max: asked.map_or(kept, |a| Some(kept.map_or(a, |k| k.min(a)))),
            calls_max: self.ask.calls_max,
            ends: if self.ask.ignore_ends { Ends::Ignore } else { Ends::Honour },
        })
    }
}

/// Spreads the bits of a number (splitmix64).
fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
