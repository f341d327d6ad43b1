//! Threads for thousands of jobs of a few microseconds a second.
//!
//! Owns: the worker threads, when they spin and when they sleep; how outputs are cut (see `cut`).
//! Never: what a job computes; how much of it each worker gets is a pure function of sizes.
//! Invariants: [`Pool::run`] returns only when no worker touches the job any more, also when a job
//! panics; nobody spins for long, whoever waits and for whatever.

mod cut;

pub use cut::{Claims, Columns, Cut, Patch, share};

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{JoinHandle, Thread};

/// Most threads of a pool.
pub const THREADS_MAX: usize = 256;

/// Turns of a waiting loop before a thread sleeps: 60 to 300 microseconds, as the processor takes its
/// pauses. Waking a thread takes about as long, and the serial work between two jobs of a step is
/// mostly shorter: a quarter of it cost the pocket model a fifth of its tokens per second.
const SPINS: u32 = 6000;

/// The owner of a job spins this many times as long: a worker that it had to wake is on its way, and
/// if it slept too, each would find the other asleep again and again.
const OWNER_WAITS: u32 = 4;

/// [`SPINS`] where there are more threads than processors: what is waited for may need this one.
const SPINS_CROWDED: u32 = 20;

/// After this many sleeps in a row a thread spins only a little: a processor must be missing.
const PATIENCE: u32 = 4;
/// Part of the turns that are left then.
const IMPATIENT: u32 = 16;
/// Every so many sleeps it tries again whether spinning has become worth it.
const PROBE: u32 = 16;

/// Set in the number of busy workers while the owner sleeps.
const OWNER_SLEEPS: usize = 1 << 32;

/// What every worker runs: called with the worker's number.
type Job<'a> = dyn Fn(usize) + Sync + 'a;

/// Keeps what different threads write on different cache lines.
#[repr(align(128))]
struct Apart<T>(T);

/// How long a thread spins, learnt from whether it was in vain.
#[derive(Default)]
struct Patience {
    /// Sleeps since the last time that spinning was enough.
    sleeps: u32,
}

impl Patience {
    /// Spins until `done`, up to `most` turns; `None` if that did not come.
    #[inline]
    fn spin<T>(&mut self, most: u32, done: impl Fn() -> Option<T>) -> Option<T> {
        let patient = self.sleeps < PATIENCE || self.sleeps.is_multiple_of(PROBE);
        for _ in 0..if patient { most } else { most / IMPATIENT } {
            if let Some(done) = done() {
                self.sleeps = 0;
                return Some(done);
            }
            std::hint::spin_loop();
        }
        self.sleeps = self.sleeps.wrapping_add(1);
        None
    }
}

struct Shared {
    /// Number of jobs handed out; a change wakes spinning workers.
    round: Apart<AtomicU64>,
    /// Workers that have not finished the current job, and [`OWNER_SLEEPS`].
    busy: Apart<AtomicUsize>,
    /// The current job; written by the owner of the pool while no worker is busy.
    job: UnsafeCell<Option<*const Job<'static>>>,
    /// Who sleeps until the job is done.
    owner: Mutex<Option<Thread>>,
    /// Turns of a waiting loop before a thread sleeps.
    spins: u32,
    stop: AtomicBool,
    panicked: AtomicBool,
}

// SAFETY: `job` is written only while every worker waits for `round` to change, and read only after
// that change (release, acquire); what it points to is Sync.
unsafe impl Sync for Shared {}
// SAFETY: as above; nothing in it belongs to a thread.
unsafe impl Send for Shared {}

struct Worker {
    handle: Option<JoinHandle<()>>,
    asleep: Arc<Apart<AtomicBool>>,
}

/// A fixed set of threads. The calling thread is worker 0.
pub struct Pool {
    shared: Arc<Shared>,
    patience: Patience,
    workers: Vec<Worker>,
}

impl Pool {
    /// A pool of `threads` workers, the caller included.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(threads: usize) -> std::io::Result<Self> {
        let threads = threads.clamp(1, THREADS_MAX);
        let crowded = std::thread::available_parallelism().is_ok_and(|n| n.get() < threads);
        let shared = Arc::new(Shared {
            round: Apart(AtomicU64::new(0)),
            busy: Apart(AtomicUsize::new(0)),
            job: UnsafeCell::new(None),
            owner: Mutex::new(None),
            spins: if crowded { SPINS_CROWDED } else { SPINS },
            stop: AtomicBool::new(false),
            panicked: AtomicBool::new(false),
        });
        let mut pool = Self { shared, patience: Patience::default(), workers: Vec::new() };
        for index in 1..threads {
            let (shared, asleep) = (pool.shared.clone(), Arc::new(Apart(AtomicBool::new(false))));
            let flag = asleep.clone();
            let handle = std::thread::Builder::new()
                .name(format!("cpu-{index}"))
                .spawn(move || work(&shared, &flag, index))?;
            pool.workers.push(Worker { handle: Some(handle), asleep });
        }
        Ok(pool)
    }

    /// Number of workers.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Calls `job(i)` once for every worker number `i`, in parallel.
    ///
    /// # Panics
    /// When the job panics in any worker, after all have finished.
    pub fn run(&mut self, job: &Job<'_>) {
        if self.workers.is_empty() {
            job(0);
            return;
        }
        let shared = &*self.shared;
        // SAFETY: only the lifetime changes. Workers use the job between the change of `round` and
        // their decrement of `busy`, and this function does not return before `busy` is 0.
        let job_ptr = unsafe { std::mem::transmute::<*const Job<'_>, *const Job<'static>>(job) };
        // SAFETY: no worker reads `job` now: all wait for the next round, and `&mut self` keeps other
        // callers out.
        unsafe { *shared.job.get() = Some(job_ptr) };
        shared.busy.0.store(self.workers.len(), Ordering::Relaxed);
        // SeqCst here and in `sleep`: either the worker sees the new round, or we see it asleep.
        shared.round.0.fetch_add(1, Ordering::SeqCst);
        for worker in &self.workers {
            if worker.asleep.0.load(Ordering::SeqCst)
                && let Some(handle) = &worker.handle
            {
                handle.thread().unpark();
            }
        }
        let own = catch_unwind(AssertUnwindSafe(|| job(0)));
        shared.wait_for_workers(&mut self.patience);
        self.rethrow(own);
    }

    fn rethrow(&self, own: Result<(), Box<dyn Any + Send>>) {
        let panicked = self.shared.panicked.swap(false, Ordering::Relaxed);
        if let Err(panic) = own {
            resume_unwind(panic);
        }
        assert!(!panicked, "a worker thread panicked");
    }
}

impl Shared {
    /// Waits until no worker is busy: spinning first, then asleep, which leaves this processor to a
    /// worker that has lost its own.
    fn wait_for_workers(&self, patience: &mut Patience) {
        let idle = || (self.busy.0.load(Ordering::Acquire) == 0).then_some(());
        if patience.spin(self.spins * OWNER_WAITS, idle).is_some() {
            return;
        }
        *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(std::thread::current());
        // The worker that leaves nobody but us behind sees the mark, or we see that it has left.
        let mut busy = self.busy.0.fetch_or(OWNER_SLEEPS, Ordering::AcqRel) & !OWNER_SLEEPS;
        while busy != 0 {
            std::thread::park();
            busy = self.busy.0.load(Ordering::Acquire) & !OWNER_SLEEPS;
        }
    }

    /// Counts this worker as done; it must not touch the job any more.
    fn finish(&self) {
        if self.busy.0.fetch_sub(1, Ordering::AcqRel) == OWNER_SLEEPS + 1
            && let Some(owner) = &*self.owner.lock().unwrap_or_else(PoisonError::into_inner)
        {
            // If the owner has gone on meanwhile, its next sleep ends early, which it expects.
            owner.unpark();
        }
    }

    /// Waits until the round is another than `seen`: spinning first, then asleep.
    fn next_round(&self, patience: &mut Patience, asleep: &Apart<AtomicBool>, seen: u64) -> u64 {
        let changed = || Some(self.round.0.load(Ordering::Acquire)).filter(|round| *round != seen);
        if let Some(round) = patience.spin(self.spins, changed) {
            return round;
        }
        loop {
            asleep.0.store(true, Ordering::SeqCst);
            let round = self.round.0.load(Ordering::SeqCst);
            if round == seen {
                std::thread::park();
            }
            asleep.0.store(false, Ordering::SeqCst);
            if round != seen {
                return round;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.round.0.fetch_add(1, Ordering::SeqCst);
        for worker in &mut self.workers {
            if let Some(handle) = worker.handle.take() {
                handle.thread().unpark();
                // A worker catches the panics of jobs, so joining cannot fail.
                let _ = handle.join();
            }
        }
    }
}

/// The life of a worker thread.
fn work(shared: &Shared, asleep: &Apart<AtomicBool>, index: usize) {
    let (mut seen, mut patience) = (0, Patience::default());
    loop {
        seen = shared.next_round(&mut patience, asleep, seen);
        if shared.stop.load(Ordering::Acquire) {
            return;
        }
        // SAFETY: the round has changed, so the job is set and stays until `busy` is decremented.
        let job = unsafe { (*shared.job.get()).map(|job| &*job) };
        let done = catch_unwind(AssertUnwindSafe(|| job.map(|job| job(index))));
        if done.is_err() {
            shared.panicked.store(true, Ordering::Relaxed);
        }
        shared.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_worker_runs_every_job_once() {
        for threads in [1, 2, 3, 7] {
            let mut pool = Pool::new(threads).unwrap();
            let mut counts = vec![0u32; threads];
            for round in 0..200 {
                if round % 50 == 49 {
                    // Long enough for the workers to fall asleep.
                    std::thread::sleep(std::time::Duration::from_millis(2));
                }
                let cut = Cut::slice(&mut counts, 1, threads);
                pool.run(&|i| cut.take(i).row(0)[0] += 1);
            }
            assert_eq!(counts, vec![200; threads]);
        }
    }

    /// The owner sleeps while a worker takes its time, and whoever sleeps is woken.
    #[test]
    fn slow_workers_are_waited_for() {
        let mut pool = Pool::new(3).unwrap();
        let mut done = [0u32; 3];
        for round in 0..60 {
            let cut = Cut::slice(&mut done, 1, 3);
            pool.run(&|i| {
                if round % 3 == i {
                    std::thread::sleep(std::time::Duration::from_millis(3));
                }
                cut.take(i).row(0)[0] += 1;
            });
        }
        assert_eq!(done, [60; 3]);
    }

    #[test]
    fn spinning_in_vain_is_given_up_and_tried_again() {
        use std::cell::Cell;
        let (mut patience, turns) = (Patience::default(), Cell::new(0));
        let mut wait = |found: Option<()>| {
            turns.set(0);
            patience.spin(3200, || {
                turns.set(turns.get() + 1);
                found
            });
            turns.get()
        };
        let counts: Vec<u32> = (0..18).map(|_| wait(None)).collect();
        assert_eq!(counts[..4], [3200; 4]);
        assert_eq!(counts[4..16], [200; 12]);
        assert_eq!(counts[16..], [3200, 200]);
        assert_eq!((wait(Some(())), wait(None)), (1, 3200));
    }

    #[test]
    fn a_panic_in_any_worker_reaches_the_caller_and_the_pool_lives_on() {
        let mut pool = Pool::new(3).unwrap();
        for culprit in 0..3 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|i| assert!(i != culprit, "on purpose"));
            }));
            assert!(caught.is_err());
        }
        pool.run(&|_| ());
    }
}
