//! The one thread that owns the engine.
//!
//! Owns: the engine, the requests, the loop: drain events, ask the schedule, make one engine call,
//! publish a snapshot.
//! Never: sockets, wire formats, waiting for a reader.
//! Invariants: one engine call per turn (but for opening, forking and closing); a request that fails
//! ends alone; a panic of the engine ends what was running and nothing else, or the server says that
//! it is degraded.

pub(crate) mod answer;
mod prefix;
mod request;
mod turn;

pub(crate) use request::Job;

use crate::error::{Error, Result};
use crate::options::{ServeOptions, TextModel};
use crate::outbox::{Delta, End};
use crate::schedule::{self, Action, RequestId, Stage, State, Turn};
use crate::snapshot::{Counters, Health, Snapshot};
use cherenkov_engine::{Engine, Info, SampleParams, Sampler, Step};
use prefix::Checkpoints;
use request::{Reader, Running};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::watch;

/// How often a worker without work looks at who waits too long.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Everything that can happen to the worker.
pub(crate) enum Event {
    /// A new request.
    Submit(Box<Job>),
    /// The reader went away.
    Left(RequestId),
    /// Somebody wants the request to end.
    Cancel(RequestId),
    /// A reader that was behind has caught up.
    Drained(RequestId),
    /// The worker ends now.
    Stop,
}

/// What the worker and the handlers share.
#[derive(Clone)]
pub(crate) struct Desk {
    pub(crate) text: Arc<TextModel>,
    pub(crate) options: Arc<ServeOptions>,
    /// Set when the model is loaded.
    pub(crate) info: Arc<OnceLock<Info>>,
}

/// Whether the loop goes on.
#[derive(PartialEq, Eq)]
enum Flow {
    On,
    Over,
}

pub(crate) struct Worker {
    engine: Box<dyn Engine>,
    info: Info,
    desk: Desk,
    events: Receiver<Event>,
    publish: watch::Sender<Arc<Snapshot>>,
    requests: Vec<Running>,
    checkpoints: Checkpoints,
    /// Sequences that are open.
    open: usize,
    last: Turn,
    health: Health,
    counters: Counters,
}

/// Loads the engine, then works until told to stop.
pub(crate) fn run(
    load: impl FnOnce() -> Result<Box<dyn Engine>, String>,
    desk: Desk,
    events: Receiver<Event>,
    publish: watch::Sender<Arc<Snapshot>>,
) {
    match load() {
        Ok(engine) => {
            let info = engine.info().clone();
            // Set once: this thread is the only one that does.
            let _ = desk.info.set(info.clone());
            Worker::new(engine, info, desk, events, publish).work();
        }
        Err(reason) => {
            let health = Health::Degraded(reason);
            publish.send_replace(Arc::new(Snapshot { health, ..Snapshot::loading() }));
        }
    }
}

impl Worker {
    fn new(
        engine: Box<dyn Engine>,
        info: Info,
        desk: Desk,
        events: Receiver<Event>,
        publish: watch::Sender<Arc<Snapshot>>,
    ) -> Self {
        Self {
            engine,
            info,
            desk,
            events,
            publish,
            requests: Vec::new(),
            checkpoints: Checkpoints::default(),
            open: 0,
            last: Turn::Decode,
            health: Health::Ready,
            counters: Counters::default(),
        }
    }

    fn work(mut self) {
        self.show();
        while self.drain() == Flow::On {
            self.drop_late();
            let action = schedule::next(&self.state());
            if action == Action::Idle {
                self.show();
                if self.wait() == Flow::Over {
                    break;
                }
                continue;
            }
            let turn = catch_unwind(AssertUnwindSafe(|| self.turn(&action)));
            if let Err(panic) = turn {
                self.recover(&message(&*panic));
            }
            self.show();
        }
        for request in std::mem::take(&mut self.requests) {
            self.end(request, Error::Stopping);
        }
        self.show();
    }

    fn state(&self) -> State {
        let wanted = self.desk.options.running.unwrap_or(self.info.step_rows);
        State {
            entries: self.requests.iter().map(Running::entry).collect(),
            running_max: wanted.min(self.info.sequences).max(1),
            step_rows: self.info.step_rows,
            last: self.last,
        }
    }

    fn now(&self) -> Duration {
        self.desk.options.clock.now()
    }

    /// Handles what has happened.
    fn drain(&mut self) -> Flow {
        let mut news = false;
        loop {
            match self.events.try_recv() {
                Ok(event) => {
                    news = true;
                    if self.handle(event) == Flow::Over {
                        return Flow::Over;
                    }
                }
                Err(TryRecvError::Empty) => {
                    if news {
                        // The next turn may be long; others see now what it begins with.
                        self.show();
                    }
                    return Flow::On;
                }
                Err(TryRecvError::Disconnected) => return Flow::Over,
            }
        }
    }

    /// Waits for something to happen.
    fn wait(&mut self) -> Flow {
        let event = if self.requests.is_empty() {
            self.events.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else {
            self.events.recv_timeout(LOOK_EVERY)
        };
        match event {
            Ok(event) => self.handle(event),
            Err(RecvTimeoutError::Timeout) => Flow::On,
            Err(RecvTimeoutError::Disconnected) => Flow::Over,
        }
    }

    fn handle(&mut self, event: Event) -> Flow {
        match event {
            Event::Submit(job) => self.submit(*job),
            Event::Left(id) | Event::Cancel(id) => self.cancel(id),
            Event::Drained(id) => {
                if let Some(request) = self.requests.iter_mut().find(|r| r.id == id) {
                    request.reader = Reader::Ready;
                }
            }
            Event::Stop => return Flow::Over,
        }
        Flow::On
    }

    fn submit(&mut self, job: Job) {
        self.counters.submitted += 1;
        if let Health::Degraded(reason) = &self.health {
            let usage = crate::outbox::Usage::default();
            self.counters.failed += 1;
            job.sender.end(End { outcome: Err(Error::Degraded(reason.clone())), usage });
            return;
        }
        match Running::new(job, &self.desk.text, &self.info, self.now()) {
            Ok(running) => self.requests.push(running),
            Err((sender, error)) => {
                self.counters.failed += 1;
                sender.end(End { outcome: Err(error), usage: crate::outbox::Usage::default() });
            }
        }
    }

    /// Takes a request out.
    fn remove(&mut self, id: RequestId) -> Option<Running> {
        let at = self.requests.iter().position(|r| r.id == id)?;
        Some(self.requests.remove(at))
    }

    /// Ends a request that nobody waits for. What was read of its prompt stays, so that a client
    /// that tries again need not wait for it twice.
    fn cancel(&mut self, id: RequestId) {
        let Some(mut request) = self.remove(id) else { return };
        let reading = request.stage() == Stage::Prefill && request.answer.tokens() == 0;
        if reading && request.fed > 0 && self.desk.options.checkpoints > 0 {
            let tokens = request.context[..request.fed].to_vec();
            if !self.checkpoints.holds(&tokens)
                && let Some(seq) = request.seq.take()
            {
                self.checkpoints.put(seq, tokens);
                self.trim_checkpoints(self.desk.options.checkpoints);
            }
        }
        self.end(request, Error::Cancelled);
    }

    /// Ends a request with an error and closes its sequence.
    fn end(&mut self, mut request: Running, error: Error) {
        if let Some(seq) = request.seq.take() {
            self.close(seq);
        }
        match error {
            Error::Cancelled => self.counters.cancelled += 1,
            _ => self.counters.failed += 1,
        }
        self.counters.answer_tokens += request.answer.tokens() as u64;
        let mut delta = Delta::default();
        request.answer.finish(&mut delta);
        if !delta.is_empty() {
            request.sender.push(delta);
        }
        let usage = request.usage();
        request.sender.end(End { outcome: Err(error), usage });
    }

    /// Ends requests that waited too long for their first turn.
    fn drop_late(&mut self) {
        let (now, limit) = (self.now(), self.desk.options.queue_time);
        let late = |r: &Running| !r.begun && now.saturating_sub(r.arrived) > limit;
        while let Some(at) = self.requests.iter().position(late) {
            let request = self.requests.remove(at);
            let waited_s = now.saturating_sub(request.arrived).as_secs();
            self.end(request, Error::Waited { waited_s });
        }
    }

    /// After a panic: ends what was running, then finds out whether the engine still works.
    fn recover(&mut self, reason: &str) {
        self.counters.panics += 1;
        let (hit, waiting) =
            std::mem::take(&mut self.requests).into_iter().partition(|r| r.seq.is_some());
        self.requests = waiting;
        let mut seqs = self.checkpoints.clear();
        let mut hit: Vec<Running> = hit;
        seqs.extend(hit.iter_mut().filter_map(|r| r.seq.take()));
        for request in hit {
            self.end(request, Error::Panicked(reason.to_owned()));
        }
        self.open = 0;
        let engine = &mut self.engine;
        let probe = catch_unwind(AssertUnwindSafe(|| {
            seqs.into_iter().for_each(|seq| engine.close(seq));
            probe(&mut **engine)
        }));
        let broken = match probe {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error.to_string(),
            Err(panic) => message(&*panic),
        };
        self.health = Health::Degraded(broken.clone());
        for request in std::mem::take(&mut self.requests) {
            self.end(request, Error::Degraded(broken.clone()));
        }
    }

    fn show(&self) {
        let now = self.now();
        // A panic while the picture is taken must not end the worker.
        let engine = catch_unwind(AssertUnwindSafe(|| self.engine.snapshot()));
        self.publish.send_replace(Arc::new(Snapshot {
            health: self.health.clone(),
            requests: self.requests.iter().map(|r| r.view(now)).collect(),
            checkpoints: self.checkpoints.len(),
            counters: self.counters,
            engine: engine.unwrap_or_default(),
        }));
    }
}

/// A short run that shows whether an engine still works.
fn probe(engine: &mut dyn Engine) -> cherenkov_engine::Result<()> {
    let seq = engine.open()?;
    engine.prefill(seq, &[0, 0])?;
    let mut sampler = Sampler::new(SampleParams::default(), &[])?;
    let mut steps = [Step::new(seq, &mut sampler, 0, &[])];
    engine.decode(&mut steps)?;
    let [step] = steps;
    step.failure.map_or(Ok(()), Err)?;
    engine.close(seq);
    Ok(())
}

/// What a panic said.
fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "no reason".into())
}
