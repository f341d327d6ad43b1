//! Reading the outboxes of one request.
//!
//! Owns: their merging, whole answers, streams with signs of life.
//! Never: dialects. Invariant: dropping the answers, or a body made of them, cancels what has not
//! ended.

use crate::error::{Error, Result};
use crate::outbox::{Item, Receiver};
use crate::wire::writer::{Collector, StreamWriter, Whole};
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use futures_util::stream;
use std::convert::Infallible;
use std::future::poll_fn;
use std::task::{Context, Poll};
use std::time::Duration;

/// The answers of one request.
pub(crate) struct Answers {
    /// `None` once the answer has ended.
    receivers: Vec<Option<Receiver>>,
    /// Whom to ask first, so that no answer waits behind another.
    turn: usize,
}

impl Answers {
    pub(crate) fn new(receivers: Vec<Receiver>) -> Self {
        Self { receivers: receivers.into_iter().map(Some).collect(), turn: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.receivers.len()
    }

    /// The first answer that has not ended.
    fn first_open(&self) -> Option<usize> {
        self.receivers.iter().position(Option::is_some)
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Option<(usize, Item)>> {
        let count = self.receivers.len();
        let mut open = false;
        for step in 0..count {
            let index = (self.turn + step) % count;
            let Some(receiver) = &self.receivers[index] else { continue };
            open = true;
            if let Poll::Ready(item) = receiver.poll(context) {
                self.turn = index + 1;
                if matches!(item, Item::End(_)) {
                    self.receivers[index] = None;
                }
                return Poll::Ready(Some((index, item)));
            }
        }
        if open { Poll::Pending } else { Poll::Ready(None) }
    }

    /// The next item of any answer; `None` when all have ended.
    async fn next(&mut self) -> Option<(usize, Item)> {
        poll_fn(|context| self.poll(context)).await
    }

    /// All answers as wholes; the first error ends them all.
    pub(crate) async fn whole(mut self) -> Result<Vec<Whole>> {
        let mut open: Vec<Collector> = (0..self.len()).map(|_| Collector::default()).collect();
        let mut done: Vec<Option<Whole>> = (0..self.len()).map(|_| None).collect();
        while let Some((index, item)) = self.next().await {
            match item {
                Item::Delta(delta) => open[index].add(delta),
                Item::End(end) => {
                    done[index] = Some(std::mem::take(&mut open[index]).end(end)?);
                }
            }
        }
        Ok(done.into_iter().flatten().collect())
    }

    /// A body that is written while the answers come.
    pub(crate) fn stream(self, writer: Box<dyn StreamWriter>, keep_alive: Duration) -> Response {
        let state = Streaming { answers: self, writer, keep_alive, phase: Phase::Begin };
        let chunks = stream::unfold(state, |mut state| async move {
            let chunk = state.chunk().await?;
            Some((Ok::<_, Infallible>(chunk), state))
        });
        let mut response = Response::new(Body::from_stream(chunks));
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies would collect the events.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Begin,
    Items,
    Over,
}

struct Streaming {
    answers: Answers,
    writer: Box<dyn StreamWriter>,
    keep_alive: Duration,
    phase: Phase,
}

impl Streaming {
    /// The next piece of the body; `None` at its end.
    async fn chunk(&mut self) -> Option<String> {
        loop {
            let text = match self.phase {
                Phase::Over => return None,
                Phase::Begin => {
                    self.phase = Phase::Items;
                    self.writer.begin()
                }
                Phase::Items => self.item().await,
            };
            if !text.is_empty() {
                return Some(text);
            }
        }
    }

    async fn item(&mut self) -> String {
        let next = tokio::time::timeout(self.keep_alive, self.answers.next()).await;
        match next {
            Err(_) => self.answers.first_open().map_or(String::new(), |at| self.writer.ping(at)),
            Ok(None) => {
                self.phase = Phase::Over;
                self.writer.done()
            }
            Ok(Some((index, Item::Delta(delta)))) => self.writer.delta(index, delta),
            Ok(Some((index, Item::End(end)))) => match end.outcome {
                Ok(finish) => self.writer.end(index, finish, end.usage),
                Err(error) => self.fail(&error),
            },
        }
    }

    fn fail(&mut self, error: &Error) -> String {
        self.phase = Phase::Over;
        self.writer.fail(error)
    }
}
