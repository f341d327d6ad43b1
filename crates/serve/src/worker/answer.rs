//! From a request's tokens to text, calls and an end.
//!
//! Owns: the order of the stages (tokens, characters, stop strings, parser) and every reason to end.
//! Never: the engine, wire formats.
//! Invariant: what a stream and a whole answer show comes from the same events; a decision depends
//! on the tokens so far only, never on how many of them one step drew.

use crate::outbox::{Delta, Finish, TokenLog};
use cherenkov_engine::Drawn;
use cherenkov_text::{
    Detokenizer, Event, OutputParser, ParserOptions, Result, Start, StopStrings, Tokenizer,
};

/// Smallest room for an answer that is worth closing the think block for.
const RESERVE_MIN: usize = 16;
/// Largest room that is kept for an answer.
const RESERVE_MAX: usize = 1024;

/// What becomes of the model's end-of-turn tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    /// They end the answer.
    Honour,
    /// They are tokens like others.
    Ignore,
}

/// What a request wants of its answer.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) stops: Vec<String>,
    /// How the output is split; `None`: all of it is text.
    pub(crate) parser: Option<ParserOptions>,
    pub(crate) max_tokens: usize,
    /// Tokens that closing the think block takes.
    pub(crate) close_len: usize,
    /// Most tokens of thinking.
    pub(crate) thinking_max: Option<usize>,
    /// Most tool calls of the turn.
    pub(crate) calls_max: Option<usize>,
    pub(crate) ends: Ends,
}

/// Room that is kept for the answer under a cap.
pub(crate) fn reserve(max_tokens: usize) -> Option<usize> {
    let room = (max_tokens * 15 / 100).min(RESERVE_MAX);
    (room >= RESERVE_MIN).then_some(room)
}

/// What follows from a token.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// The answer goes on.
    More,
    /// The think block has to be closed.
    Close,
    /// The answer ends.
    End(Finish),
}

/// The answer of one request as it comes.
pub(crate) struct Answer {
    plan: Plan,
    detokenizer: Detokenizer,
    stops: StopStrings,
    parser: Option<OutputParser>,
    /// Tokens that end a turn.
    ends: Vec<u32>,
    think_close: Option<u32>,
    thinking: bool,
    closed: bool,
    tokens: usize,
    reasoning: usize,
    calls: usize,
    finished_calls: usize,
}

impl Answer {
    pub(crate) fn new(plan: Plan, tokenizer: &Tokenizer, ends: Vec<u32>) -> Result<Self> {
        let thinking = plan.parser.as_ref().is_some_and(|p| p.start == Start::Reasoning);
        Ok(Self {
            detokenizer: Detokenizer::new(tokenizer),
            stops: StopStrings::new(plan.stops.clone())?,
            parser: plan.parser.clone().map(OutputParser::new),
            ends: if plan.ends == Ends::Honour { ends } else { Vec::new() },
            think_close: tokenizer.id_of("</think>"),
            thinking,
            closed: false,
            tokens: 0,
            reasoning: 0,
            calls: 0,
            finished_calls: 0,
            plan,
        })
    }

    /// Tokens after which the engine draws no more in the same step.
    pub(crate) fn ends(&self) -> &[u32] {
        &self.ends
    }

    /// Tokens so far.
    pub(crate) fn tokens(&self) -> usize {
        self.tokens
    }

    /// Tokens of thinking so far.
    pub(crate) fn reasoning(&self) -> usize {
        self.reasoning
    }

    /// Tokens that may still come.
    pub(crate) fn left(&self) -> usize {
        self.plan.max_tokens.saturating_sub(self.tokens)
    }

    /// Takes a drawn token.
    pub(crate) fn token(&mut self, drawn: &Drawn, out: &mut Delta) -> Verdict {
        self.tokens += 1;
        let text = if self.ends.contains(&drawn.token) {
            if !self.parser.as_mut().is_some_and(OutputParser::end_of_turn_is_text) {
                return Verdict::End(self.natural_end());
            }
            self.detokenizer.push_shown(drawn.token)
        } else {
            self.detokenizer.push(drawn.token)
        };
        if self.thinking {
            self.reasoning += 1;
        } else if let Some(log) = &drawn.logprobs {
            let log = TokenLog { token: drawn.token, logprob: log.chosen, top: log.top.clone() };
            out.logs.push(log);
        }
        let stopped = self.text(&text, out);
        if self.think_close == Some(drawn.token) {
            self.thinking = false;
        }
        self.verdict(stopped)
    }

    /// Takes tokens that close the think block, as if they had been drawn.
    pub(crate) fn close_thinking(&mut self, tokens: &[u32], out: &mut Delta) {
        self.closed = true;
        for &token in tokens {
            self.tokens += 1;
            self.reasoning += 1;
            let text = self.detokenizer.push_shown(token);
            self.text(&text, out);
        }
        self.thinking = false;
    }

    /// Ends the answer: what is held back is resolved, what is open is closed.
    pub(crate) fn finish(&mut self, out: &mut Delta) {
        self.detokenizer.finish();
        let held = self.stops.finish();
        self.parse(&held, out);
        if let Some(parser) = &mut self.parser {
            out.add(parser.finish());
        }
    }

    fn natural_end(&self) -> Finish {
        if self.calls > 0 { Finish::ToolCalls } else { Finish::Stop }
    }

    fn verdict(&self, stopped: Option<usize>) -> Verdict {
        if let Some(index) = stopped {
            return Verdict::End(Finish::StopString(self.plan.stops[index].clone()));
        }
        if self.plan.calls_max.is_some_and(|max| self.finished_calls >= max) {
            return Verdict::End(Finish::ToolCalls);
        }
        if self.left() == 0 {
            return Verdict::End(Finish::Length);
        }
        let full = self.plan.thinking_max.is_some_and(|max| self.reasoning >= max)
            && self.left() > self.plan.close_len;
        if self.thinking && !self.closed && full && self.detokenizer.pending().is_empty() {
            return Verdict::Close;
        }
        Verdict::More
    }

    /// Text through stop strings and parser; the stop string that was met.
    fn text(&mut self, text: &str, out: &mut Delta) -> Option<usize> {
        let passed = self.stops.push(text);
        self.parse(&passed.text, out);
        passed.stopped
    }

    fn parse(&mut self, text: &str, out: &mut Delta) {
        let Some(parser) = &mut self.parser else {
            out.add([Event::Content(text.to_owned())]);
            return;
        };
        let events = parser.push(text);
        for event in &events {
            match event {
                Event::Reasoning(_) => self.thinking = true,
                Event::Content(_) => self.thinking = false,
                Event::ToolCallStart { .. } => {
                    self.thinking = false;
                    self.calls += 1;
                }
                Event::ToolCallEnd => self.finished_calls += 1,
                Event::ToolArgument(_) => {}
            }
        }
        out.add(events);
    }
}
