//! What flows from the worker to one reader.
//!
//! Owns: the bounded queue between a request and the handler that reads it.
//! Never: wire formats, the engine.
//! Invariants: the worker never waits for a reader; a reader that is behind is told of to the worker
//! (`Room::Full`), which pauses the request until `Event::Drained`; a reader that goes away before
//! the end cancels its request.

use crate::error::Error;
use crate::schedule::RequestId;
use crate::worker::Event;
use cherenkov_text::Event as TextEvent;
use std::collections::VecDeque;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// A token and how likely it was.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenLog {
    pub(crate) token: u32,
    pub(crate) logprob: f32,
    pub(crate) top: Vec<(u32, f32)>,
}

/// What one turn added to an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Delta {
    pub(crate) events: Vec<TextEvent>,
    pub(crate) logs: Vec<TokenLog>,
}

impl Delta {
    pub(crate) fn is_empty(&self) -> bool {
        self.events.is_empty() && self.logs.is_empty()
    }

    /// Adds events; neighbours of one kind become one.
    pub(crate) fn add(&mut self, events: impl IntoIterator<Item = TextEvent>) {
        use TextEvent::{Content, Reasoning, ToolArgument};
        for event in events {
            match (self.events.last_mut(), &event) {
                (_, Reasoning(text) | Content(text) | ToolArgument(text)) if text.is_empty() => {}
                (Some(Reasoning(last)), Reasoning(text))
                | (Some(Content(last)), Content(text))
                | (Some(ToolArgument(last)), ToolArgument(text)) => last.push_str(text),
                _ => self.events.push(event),
            }
        }
    }
}

/// Why an answer ended well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    /// The model ended its turn.
    Stop,
    /// A stop string of the request.
    StopString(String),
    /// The cap of tokens or the context.
    Length,
    /// The turn ends with tool calls.
    ToolCalls,
}

/// Tokens of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) prompt: usize,
    /// Part of the prompt that a checkpoint held.
    pub(crate) cached: usize,
    pub(crate) answer: usize,
    /// Part of the answer that was thinking.
    pub(crate) reasoning: usize,
}

/// The last item of every request.
#[derive(Debug)]
pub(crate) struct End {
    pub(crate) outcome: Result<Finish, Error>,
    pub(crate) usage: Usage,
}

/// What a reader gets.
#[derive(Debug)]
pub(crate) enum Item {
    Delta(Delta),
    End(End),
}

/// Whether the outbox takes more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Room {
    Free,
    Full,
}

#[derive(Default)]
struct Inner {
    items: VecDeque<Item>,
    waker: Option<Waker>,
    /// The worker waits for `Event::Drained`.
    paused: bool,
    ended: bool,
}

struct Shared {
    inner: Mutex<Inner>,
    limit: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The worker's end. Dropped without an end, it tells the reader that the server is stopping.
pub(crate) struct Sender(Arc<Shared>);

/// The handler's end.
pub(crate) struct Receiver {
    shared: Arc<Shared>,
    id: RequestId,
    events: mpsc::Sender<Event>,
}

/// The two ends of a request's outbox.
pub(crate) fn outbox(
    id: RequestId,
    limit: usize,
    events: mpsc::Sender<Event>,
) -> (Sender, Receiver) {
    let shared = Arc::new(Shared { inner: Mutex::default(), limit: limit.max(1) });
    (Sender(Arc::clone(&shared)), Receiver { shared, id, events })
}

impl Sender {
    /// Adds what a turn made. `Full` means: no more until `Event::Drained`.
    pub(crate) fn push(&self, delta: Delta) -> Room {
        let mut inner = self.0.lock();
        inner.items.push_back(Item::Delta(delta));
        inner.paused = inner.items.len() >= self.0.limit;
        let room = if inner.paused { Room::Full } else { Room::Free };
        wake(inner);
        room
    }

    /// Adds the last item.
    pub(crate) fn end(self, end: End) {
        self.close(end);
    }

    fn close(&self, end: End) {
        let mut inner = self.0.lock();
        if inner.ended {
            return;
        }
        inner.items.push_back(Item::End(end));
        inner.ended = true;
        wake(inner);
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.close(End { outcome: Err(Error::Stopping), usage: Usage::default() });
    }
}

/// Wakes the reader after the lock is free.
fn wake(mut inner: MutexGuard<'_, Inner>) {
    let waker = inner.waker.take();
    drop(inner);
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl Receiver {
    /// The next item. After `Item::End` nothing comes.
    pub(crate) fn poll(&self, context: &mut Context<'_>) -> Poll<Item> {
        let mut inner = self.shared.lock();
        let Some(item) = inner.items.pop_front() else {
            inner.waker = Some(context.waker().clone());
            return Poll::Pending;
        };
        let drained = inner.paused && inner.items.len() <= self.shared.limit / 2;
        if drained {
            inner.paused = false;
        }
        drop(inner);
        if drained {
            // Without a worker nobody waits for the news.
            let _ = self.events.send(Event::Drained(self.id));
        }
        Poll::Ready(item)
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if !self.shared.lock().ended {
            let _ = self.events.send(Event::Left(self.id));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Delta {
        Delta { events: vec![TextEvent::Content(text.into())], logs: Vec::new() }
    }

    fn poll(receiver: &Receiver) -> Poll<Item> {
        receiver.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_full_outbox_pauses_and_a_drained_one_resumes() {
        let (events, seen) = mpsc::channel();
        let (sender, receiver) = outbox(RequestId(7), 4, events);
        let rooms: Vec<Room> = (0..4).map(|i| sender.push(text(&i.to_string()))).collect();
        assert_eq!(rooms, [Room::Free, Room::Free, Room::Free, Room::Full]);
        assert!(matches!(poll(&receiver), Poll::Ready(Item::Delta(d)) if d == text("0")));
        assert!(seen.try_recv().is_err(), "half full is still full");
        assert!(poll(&receiver).is_ready());
        assert!(matches!(seen.try_recv(), Ok(Event::Drained(RequestId(7)))));
        assert!(poll(&receiver).is_ready() && poll(&receiver).is_ready());
        assert!(poll(&receiver).is_pending());
        assert!(seen.try_recv().is_err(), "told once");
    }

    #[test]
    fn a_reader_that_leaves_early_is_reported_and_a_late_one_not() {
        let (events, seen) = mpsc::channel();
        let (sender, receiver) = outbox(RequestId(1), 4, events.clone());
        drop(receiver);
        assert!(matches!(seen.try_recv(), Ok(Event::Left(RequestId(1)))));
        sender.push(text("nobody reads this"));
        let (sender, receiver) = outbox(RequestId(2), 4, events);
        sender.end(End { outcome: Ok(Finish::Stop), usage: Usage::default() });
        assert!(matches!(poll(&receiver), Poll::Ready(Item::End(_))));
        drop(receiver);
        assert!(seen.try_recv().is_err());
    }

    #[test]
    fn neighbours_of_one_kind_become_one_event() {
        use TextEvent::{Content, Reasoning};
        let mut delta = Delta::default();
        delta.add([Reasoning("a".into()), Reasoning("b".into())]);
        delta.add([Content(String::new()), Content("c".into())]);
        assert_eq!(delta.events, [Reasoning("ab".into()), Content("c".into())]);
    }
}
