//! One turn: a part of a prompt, or a step.
//!
//! Owns: what an action of the schedule means for the engine and the requests.
//! Never: choosing whom to serve.
//! Invariant: after a turn every sequence that is open belongs to a request or a checkpoint.

use super::Worker;
use super::answer::Verdict;
use super::request::{Reader, Running};
use crate::error::{Error, Result};
use crate::outbox::{Delta, End, Finish, Room};
use crate::schedule::{Action, Pick, RequestId, Stage, Turn, passed_after};
use cherenkov_engine::{Drawn, SeqId, Step};

/// What a step gave one request.
struct Made {
    id: RequestId,
    out: Vec<Drawn>,
    failure: Option<cherenkov_engine::Error>,
}

impl Worker {
    /// Does what the schedule said.
    pub(super) fn turn(&mut self, action: &Action) {
        for request in &mut self.requests {
            request.passed = passed_after(&request.entry(), action);
        }
        match action {
            Action::Prefill(id) => {
                self.last = Turn::Prefill;
                if let Err(error) = self.read(*id) {
                    self.fail(*id, error);
                }
            }
            Action::Decode(picks) => {
                self.last = Turn::Decode;
                self.step(picks);
            }
            Action::Idle => {}
        }
    }

    fn fail(&mut self, id: RequestId, error: Error) {
        if let Some(request) = self.remove(id) {
            self.end(request, error);
        }
    }

    fn at(&self, id: RequestId) -> usize {
        let found = self.requests.iter().position(|r| r.id == id);
        found.expect("the schedule names requests it was shown")
    }

    pub(super) fn close(&mut self, seq: SeqId) {
        self.engine.close(seq);
        self.open = self.open.saturating_sub(1);
    }

    /// Reads the next part of a request's prompt.
    fn read(&mut self, id: RequestId) -> Result<()> {
        let at = self.at(id);
        let seq = match self.requests[at].seq {
            Some(seq) => seq,
            None => self.begin(at)?,
        };
        let decoding = self.requests.iter().any(|r| r.stage() == Stage::Decode);
        let quantum = self.desk.options.quantum.max(1);
        let most = if decoding { quantum } else { quantum.max(self.info.chunk) };
        let request = &mut self.requests[at];
        let (fed, boundary) = (request.fed, request.boundary);
        let target = if fed < boundary { boundary } else { request.context.len() };
        let until = target.min(fed + most);
        if until > fed {
            self.engine.prefill(seq, &request.context[fed..until])?;
            request.fed = until;
        }
        if request.fed == boundary && fed < boundary {
            self.checkpoint(at, seq);
        }
        Ok(())
    }

    /// Opens a request's sequence: from the longest checkpoint of its tokens, or empty.
    fn begin(&mut self, at: usize) -> Result<SeqId> {
        let request = &mut self.requests[at];
        let found = self.checkpoints.longest(&request.context);
        let mut own = None;
        if self.open >= self.info.sequences {
            match self.checkpoints.evict(found.map(|f| f.0)) {
                Some(evicted) => {
                    self.engine.close(evicted);
                    self.open -= 1;
                }
                // The only sequence left is the checkpoint itself: the request takes it over.
                None => own = found.map(|f| f.0),
            }
        }
        let seq = match (own, found) {
            (Some(seq), _) => {
                self.checkpoints.take(seq);
                seq
            }
            (None, Some((seq, _))) => {
                let copy = self.engine.fork(seq)?;
                self.open += 1;
                copy
            }
            (None, None) => {
                let fresh = self.engine.open()?;
                self.open += 1;
                fresh
            }
        };
        request.seq = Some(seq);
        request.fed = found.map_or(0, |f| f.1);
        if !request.begun {
            request.begun = true;
            request.cached = request.fed;
            self.counters.prompt_tokens += request.prompt_len() as u64;
            self.counters.cached_tokens += request.cached as u64;
        }
        Ok(seq)
    }

    /// Keeps a copy of a sequence that stands at its request's boundary. Without room there is none.
    fn checkpoint(&mut self, at: usize, seq: SeqId) {
        let request = &self.requests[at];
        let tokens = request.context[..request.boundary].to_vec();
        let most = self.desk.options.checkpoints;
        if most == 0 || self.checkpoints.holds(&tokens) {
            return;
        }
        self.trim_checkpoints(most - 1);
        if self.open >= self.info.sequences {
            match self.checkpoints.evict(None) {
                Some(evicted) => self.close(evicted),
                None => return,
            }
        }
        // A checkpoint is a convenience: a request does not fail for want of one.
        if let Ok(copy) = self.engine.fork(seq) {
            self.open += 1;
            self.checkpoints.put(copy, tokens);
        }
    }

    pub(super) fn trim_checkpoints(&mut self, most: usize) {
        while self.checkpoints.len() > most {
            match self.checkpoints.evict(None) {
                Some(evicted) => self.close(evicted),
                None => break,
            }
        }
    }

    /// One step of several requests.
    fn step(&mut self, picks: &[Pick]) {
        let mut ids = Vec::new();
        let mut steps = Vec::new();
        for request in &mut self.requests {
            let pick = picks.iter().find(|p| p.id == request.id);
            if let (Some(pick), Some(seq)) = (pick, request.seq) {
                ids.push(request.id);
                let ends = request.answer.ends();
                steps.push(Step::new(seq, &mut request.sampler, pick.drafts, ends));
            }
        }
        let result = self.engine.decode(&mut steps);
        let outs = steps.into_iter().map(|s| (s.out, s.failure));
        let made: Vec<Made> =
            ids.iter().zip(outs).map(|(&id, (out, failure))| Made { id, out, failure }).collect();
        match result {
            Ok(()) => made.into_iter().for_each(|made| self.settle(made)),
            Err(error) => self.step_failed(&ids, error),
        }
    }

    /// A step that failed for one request is that request's error. Of several nobody knows whose it
    /// was: each starts again and goes on alone, so that the guilty one fails alone.
    fn step_failed(&mut self, ids: &[RequestId], error: cherenkov_engine::Error) {
        if let [only] = ids {
            self.fail(*only, error.into());
            return;
        }
        self.counters.retried += 1;
        for &id in ids {
            let at = self.at(id);
            match self.requests[at].start_again() {
                Ok(seq) => seq.into_iter().for_each(|seq| self.close(seq)),
                Err(error) => self.fail(id, error),
            }
        }
    }

    /// Takes in what a step gave one request.
    fn settle(&mut self, made: Made) {
        let id = made.id;
        if let Some(error) = made.failure {
            self.fail(id, error.into());
            return;
        }
        let at = self.at(id);
        let first = self.requests[at].answer.tokens() == 0;
        let mut delta = Delta::default();
        match self.absorb(at, &made.out, &mut delta) {
            Ok(Some(finish)) => self.finish(id, finish, delta),
            Ok(None) => self.deliver(at, delta),
            Err(error) => self.fail(id, error),
        }
        if first && let Some(request) = self.requests.iter().find(|r| r.id == id) {
            let waited = self.now().saturating_sub(request.arrived);
            self.counters.first_tokens += 1;
            self.counters.first_token_ms += waited.as_millis() as u64;
        }
    }

    /// Tokens of a step through the answer, as far as it goes; the rest was never drawn.
    fn absorb(&mut self, at: usize, out: &[Drawn], delta: &mut Delta) -> Result<Option<Finish>> {
        let request = &mut self.requests[at];
        let mut verdict = Verdict::More;
        let mut kept = 0;
        while kept < out.len() && verdict == Verdict::More {
            verdict = request.answer.token(&out[kept], delta);
            request.context.push(out[kept].token);
            kept += 1;
        }
        out[kept..].iter().for_each(|drawn| request.sampler.retract(drawn.token));
        request.fed = request.context.len();
        if kept < out.len()
            && let Some(seq) = request.seq
        {
            self.engine.commit(seq, kept)?;
        }
        match verdict {
            Verdict::More => Ok(None),
            Verdict::End(finish) => Ok(Some(finish)),
            Verdict::Close => {
                close_thinking(request, delta);
                Ok(None)
            }
        }
    }

    fn deliver(&mut self, at: usize, delta: Delta) {
        if delta.is_empty() {
            return;
        }
        let request = &mut self.requests[at];
        if request.sender.push(delta) == Room::Full {
            request.reader = Reader::Behind;
        }
    }

    /// Ends an answer well.
    fn finish(&mut self, id: RequestId, finish: Finish, mut delta: Delta) {
        let Some(mut request) = self.remove(id) else { return };
        if let Some(seq) = request.seq.take() {
            self.close(seq);
        }
        request.answer.finish(&mut delta);
        if !delta.is_empty() {
            request.sender.push(delta);
        }
        self.counters.finished += 1;
        self.counters.answer_tokens += request.answer.tokens() as u64;
        let usage = request.usage();
        request.sender.end(End { outcome: Ok(finish), usage });
    }
}

/// Puts the end of the think block into the answer; the engine reads it like a part of a prompt.
fn close_thinking(request: &mut Running, delta: &mut Delta) {
    let close = std::mem::take(&mut request.close);
    request.answer.close_thinking(&close, delta);
    close.iter().for_each(|&token| request.sampler.accept(token));
    request.context.extend_from_slice(&close);
}
