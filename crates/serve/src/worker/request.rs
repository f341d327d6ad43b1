//! A request as the worker holds it.
//!
//! Owns: its tokens, how many of them the engine has, its sampler, its answer.
//! Never: the engine.
//! Invariant: `context` is the prompt and every token of the answer; `fed` of them are in the
//! engine's sequence; so reading a prompt, closing a think block and starting again after a failed
//! step are the same work: feed the rest.

use super::answer::{Answer, Plan};
use crate::error::Result;
use crate::options::TextModel;
use crate::outbox::{Sender, Usage};
use crate::schedule::{Company, Entry, Priority, RequestId, Stage};
use crate::snapshot::RequestView;
use cherenkov_engine::{Info, SampleParams, Sampler, SeqId};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedSemaphorePermit;

/// A request as handlers submit it.
pub(crate) struct Job {
    pub(crate) id: RequestId,
    pub(crate) response: Arc<str>,
    pub(crate) endpoint: &'static str,
    pub(crate) priority: Priority,
    pub(crate) prompt: Vec<u32>,
    /// Tokens of the prompt that a later prompt probably shares.
    pub(crate) boundary: usize,
    pub(crate) params: SampleParams,
    pub(crate) plan: Plan,
    pub(crate) drafts: usize,
    /// Tokens that close a think block.
    pub(crate) close: Vec<u32>,
    pub(crate) sender: Sender,
    /// Its place among the requests that may be in the server.
    pub(crate) permit: OwnedSemaphorePermit,
}

/// Whether a reader keeps up.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reader {
    Ready,
    Behind,
}

/// A request in the worker.
pub(crate) struct Running {
    pub(crate) id: RequestId,
    response: Arc<str>,
    endpoint: &'static str,
    priority: Priority,
    prompt_len: usize,
    pub(crate) boundary: usize,
    params: SampleParams,
    drafts: usize,
    pub(crate) close: Vec<u32>,
    pub(crate) sender: Sender,
    _permit: OwnedSemaphorePermit,
    pub(crate) context: Vec<u32>,
    pub(crate) fed: usize,
    pub(crate) seq: Option<SeqId>,
    pub(crate) cached: usize,
    pub(crate) begun: bool,
    pub(crate) sampler: Sampler,
    pub(crate) answer: Answer,
    pub(crate) reader: Reader,
    pub(crate) company: Company,
    pub(crate) passed: u32,
    pub(crate) arrived: Duration,
}

impl Running {
    /// Takes a job in. The job's sender comes back with an error.
    pub(crate) fn new(
        job: Job,
        text: &TextModel,
        info: &Info,
        now: Duration,
    ) -> Result<Self, (Sender, crate::error::Error)> {
        let made =
            Sampler::new(job.params.clone(), &job.prompt).map_err(Into::into).and_then(|s| {
                let answer = Answer::new(job.plan, &text.tokenizer, info.stop.clone())?;
                Ok((s, answer))
            });
        let (sampler, answer) = match made {
            Ok(made) => made,
            Err(error) => return Err((job.sender, error)),
        };
        Ok(Self {
            id: job.id,
            response: job.response,
            endpoint: job.endpoint,
            priority: job.priority,
            prompt_len: job.prompt.len(),
            boundary: job.boundary,
            params: job.params,
            drafts: job.drafts,
            close: job.close,
            sender: job.sender,
            _permit: job.permit,
            context: job.prompt,
            fed: 0,
            seq: None,
            cached: 0,
            begun: false,
            sampler,
            answer,
            reader: Reader::Ready,
            company: Company::Any,
            passed: 0,
            arrived: now,
        })
    }

    pub(crate) fn stage(&self) -> Stage {
        match (self.seq, self.reader) {
            (None, _) => Stage::Queued,
            (Some(_), Reader::Behind) => Stage::Paused,
            (Some(_), Reader::Ready) if self.fed < self.context.len() => Stage::Prefill,
            (Some(_), Reader::Ready) => Stage::Decode,
        }
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            id: self.id,
            priority: self.priority,
            stage: self.stage(),
            company: self.company,
            passed: self.passed,
            drafts: self.drafts.min(self.answer.left().saturating_sub(1)),
        }
    }

    pub(crate) fn prompt_len(&self) -> usize {
        self.prompt_len
    }

    pub(crate) fn usage(&self) -> Usage {
        Usage {
            prompt: self.prompt_len,
            cached: self.cached,
            answer: self.answer.tokens(),
            reasoning: self.answer.reasoning(),
        }
    }

    pub(crate) fn view(&self, now: Duration) -> RequestView {
        RequestView {
            id: self.id,
            response: Arc::clone(&self.response),
            endpoint: self.endpoint,
            stage: self.stage(),
            priority: self.priority,
            prompt_tokens: self.prompt_len,
            read_tokens: self.fed.min(self.prompt_len),
            cached_tokens: self.cached,
            answer_tokens: self.answer.tokens(),
            age_ms: now.saturating_sub(self.arrived).as_millis() as u64,
        }
    }

    /// Goes back to the beginning, without a sequence, keeping the answer so far. The sampler is
    /// made anew: a failed step may have left counts in it.
    pub(crate) fn start_again(&mut self) -> Result<Option<SeqId>> {
        let (prompt, answer) = self.context.split_at(self.prompt_len);
        let mut sampler = Sampler::new(self.params.clone(), prompt)?;
        answer.iter().for_each(|&token| sampler.accept(token));
        self.sampler = sampler;
        self.fed = 0;
        self.company = Company::None;
        Ok(self.seq.take())
    }
}
