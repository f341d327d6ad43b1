//! Threads that read records into their places.
//!
//! Owns: the threads, and the seam [`Reads`] between what is wanted and how it is read.
//! Never: which record to read or to drop (see `waves`), files (see `source`).
//! Invariant: every job that was submitted comes back once: cancelled or done.

use crate::error::{Error, Result};
use crate::grade::Grade;
use crate::queue::{Job, Priority, Queue};
use crate::source::{ExpertKey, Source};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Tells the time since some start. Times steer how far lookahead goes, and never a number of a
/// model: a clock that stands still is a valid one.
pub type Clock = Arc<dyn Fn() -> Duration + Send + Sync>;

/// A read that came to its end.
pub struct Done<L> {
    /// Which expert.
    pub key: ExpertKey,
    /// Which of its records.
    pub grade: Grade,
    /// The memory given with the job; holds the record when `result` is good.
    pub landing: L,
    /// Whether the record is there.
    pub result: Result<()>,
    /// When it was asked for.
    pub queued: Duration,
    /// When a reader began.
    pub started: Duration,
    /// When the reader was done.
    pub ended: Duration,
}

/// Reads under way. The life of a job: submitted, perhaps promoted, then cancelled or done.
pub trait Reads<L>: Send {
    /// Asks for a record.
    fn submit(&mut self, priority: Priority, key: ExpertKey, grade: Grade, landing: L);

    /// Makes a lookahead that has not begun a demand.
    fn promote(&mut self, key: ExpertKey);

    /// Takes back a job that has not begun.
    fn cancel(&mut self, key: ExpertKey) -> Option<L>;

    /// A finished job, if there is one.
    ///
    /// # Errors
    /// [`Error::Readers`] when no job can be finished any more.
    fn poll(&mut self) -> Result<Option<Done<L>>>;

    /// Waits for a finished job.
    ///
    /// # Errors
    /// [`Error::Readers`] when nothing is under way or no job can be finished any more.
    fn wait(&mut self) -> Result<Done<L>>;

    /// The time.
    fn now(&self) -> Duration;

    /// Reads at the same time.
    fn width(&self) -> usize;
}

struct State<L> {
    queue: Queue<L>,
    done: VecDeque<Done<L>>,
    /// Jobs that readers are at.
    busy: usize,
    open: bool,
    /// A reader has panicked.
    broken: bool,
}

struct Shared<L> {
    state: Mutex<State<L>>,
    work: Condvar,
    done: Condvar,
    source: Arc<dyn Source>,
    clock: Clock,
}

impl<L> Shared<L> {
    fn lock(&self) -> MutexGuard<'_, State<L>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Reader threads over one source.
pub struct Readers<L> {
    shared: Arc<Shared<L>>,
    threads: Vec<JoinHandle<()>>,
}

impl<L> fmt::Debug for Readers<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

impl<L: AsMut<[u8]> + Send + 'static> Readers<L> {
    /// Starts `threads` threads.
    ///
    /// # Errors
    /// [`Error::Threads`] when the system refuses one.
    pub fn start(source: Arc<dyn Source>, threads: usize, clock: Clock) -> Result<Self> {
        let state = State {
            queue: Queue::default(),
            done: VecDeque::new(),
            busy: 0,
            open: true,
            broken: false,
        };
        let (work, done) = (Condvar::new(), Condvar::new());
        let shared = Arc::new(Shared { state: Mutex::new(state), work, done, source, clock });
        let mut readers = Self { shared, threads: Vec::new() };
        for index in 0..threads.max(1) {
            let shared = Arc::clone(&readers.shared);
            let thread = std::thread::Builder::new().name(format!("reader {index}"));
            let thread = thread.spawn(move || serve(&shared));
            readers.threads.push(thread.map_err(|source| Error::Threads { source })?);
        }
        Ok(readers)
    }
}

/// Marks the pool of readers broken when its thread unwinds in the middle of a job.
struct Alarm<'a, L>(&'a Shared<L>);

impl<L> Drop for Alarm<'_, L> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.done.notify_all();
        }
    }
}

fn serve<L: AsMut<[u8]>>(shared: &Shared<L>) {
    let _alarm = Alarm(shared);
    let mut state = shared.lock();
    while state.open {
        let Some((_, mut job)) = state.queue.take() else {
            state = shared.work.wait(state).unwrap_or_else(PoisonError::into_inner);
            continue;
        };
        state.busy += 1;
        drop(state);
        let started = (shared.clock)();
        let result = job.read(&*shared.source);
        let ended = (shared.clock)();
        let Job { key, grade, landing, queued } = job;
        state = shared.lock();
        state.busy -= 1;
        state.done.push_back(Done { key, grade, landing, result, queued, started, ended });
        shared.done.notify_one();
    }
}

impl<L: AsMut<[u8]> + Send + 'static> Reads<L> for Readers<L> {
    fn submit(&mut self, priority: Priority, key: ExpertKey, grade: Grade, landing: L) {
        let queued = self.now();
        self.shared.lock().queue.push(priority, Job { key, grade, landing, queued });
        self.shared.work.notify_one();
    }

    fn promote(&mut self, key: ExpertKey) {
        self.shared.lock().queue.promote(key);
    }

    fn cancel(&mut self, key: ExpertKey) -> Option<L> {
        self.shared.lock().queue.cancel(key)
    }

    fn poll(&mut self) -> Result<Option<Done<L>>> {
        let mut state = self.shared.lock();
        match state.done.pop_front() {
            None if state.broken => Err(Error::Readers),
            done => Ok(done),
        }
    }

    fn wait(&mut self) -> Result<Done<L>> {
        let mut state = self.shared.lock();
        loop {
            if let Some(done) = state.done.pop_front() {
                return Ok(done);
            }
            if state.broken || (state.busy == 0 && state.queue.is_empty()) {
                return Err(Error::Readers);
            }
            state = self.shared.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn now(&self) -> Duration {
        (self.shared.clock)()
    }

    fn width(&self) -> usize {
        self.threads.len()
    }
}

impl<L> Drop for Readers<L> {
    fn drop(&mut self) {
        self.shared.lock().open = false;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            // A panicked reader has been reported as an error already.
            let _ = thread.join();
        }
    }
}
