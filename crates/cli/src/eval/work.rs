//! One or two models on the same windows.
//!
//! Owns: who scores which window, and when logits meet. Never: formulas, printing.
//! Invariants: the logits held at a time do not grow with the text; the sums do not depend on how
//! many workers there are, since those of windows are added in the order of the text.

use super::score::{Broken, Tally};
use crate::interrupt::Interrupt;
use crate::progress::Meter;
use anyhow::bail;
use cherenkov_engine::{Engine, SeqId};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};

/// Most bytes of logits of the base that wait for the model's.
const WAITING_BYTES_MAX: usize = 32 << 20;
/// Most tokens between two looks at Ctrl-C: the reference takes a while for each.
const PIECE_TOKENS_MAX: usize = 64;

/// Everything that takes part.
pub struct Work<'a> {
    /// The model under test; with a base its turns are short, so that workers take them one by one.
    pub model: Mutex<Box<dyn Engine>>,
    /// What is scored.
    pub windows: Vec<&'a [u32]>,
    /// Positions of a bucket.
    pub bucket: usize,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

/// The number of the next window, and whether a worker has failed.
#[derive(Default)]
struct Queue {
    next: AtomicUsize,
    failed: AtomicBool,
}

/// Buckets of a window.
type Buckets = Vec<Tally>;

impl Work<'_> {
    /// Scores all windows with one worker per engine of the base, or one where there is no base;
    /// returns the sums by position.
    ///
    /// # Errors
    /// When an engine fails, or the user stopped it.
    pub fn run(&self, bases: Vec<Box<dyn Engine>>) -> anyhow::Result<Buckets> {
        let workers: Vec<Option<Box<dyn Engine>>> =
            if bases.is_empty() { vec![None] } else { bases.into_iter().map(Some).collect() };
        let queue = Queue::default();
        let (tell, told) = mpsc::channel();
        let parts = std::thread::scope(|scope| {
            let work = |base| {
                let (tell, queue) = (tell.clone(), &queue);
                scope.spawn(move || self.worker(base, queue, &tell))
            };
            let handles: Vec<_> = workers.into_iter().map(work).collect();
            drop(tell);
            self.show(&told);
            let join = |h: std::thread::ScopedJoinHandle<'_, _>| h.join().expect("no panics");
            handles.into_iter().map(join).collect::<anyhow::Result<Vec<_>>>()
        })?;
        let mut parts: Vec<(usize, Buckets)> = parts.into_iter().flatten().collect();
        parts.sort_by_key(|(number, _)| *number);
        let mut sums = Buckets::new();
        for (_, part) in parts {
            sums.resize(sums.len().max(part.len()), Tally::default());
            sums.iter_mut().zip(&part).for_each(|(sum, part)| sum.merge(part));
        }
        Ok(sums)
    }

    /// Shows progress until all workers are done.
    fn show(&self, told: &mpsc::Receiver<usize>) {
        let total: usize = self.windows.iter().map(|w| w.len()).sum();
        let (mut meter, mut done) = (Meter::new(self.interrupt), 0);
        for tokens in told {
            done += tokens;
            meter.tokens("score", done as u64, total as u64);
        }
        meter.clear();
    }

    /// Scores windows until none is left.
    fn worker(
        &self,
        mut base: Option<Box<dyn Engine>>,
        queue: &Queue,
        tell: &mpsc::Sender<usize>,
    ) -> anyhow::Result<Vec<(usize, Buckets)>> {
        let mut done = Vec::new();
        loop {
            let number = queue.next.fetch_add(1, Ordering::Relaxed);
            let Some(window) = self.windows.get(number) else { return Ok(done) };
            let mut turn = Turn { work: self, base: base.as_deref_mut(), queue, tell };
            match turn.window(window) {
                Ok(Some(buckets)) => done.push((number, buckets)),
                // The worker that failed says why.
                Ok(None) => return Ok(done),
                Err(error) => {
                    queue.failed.store(true, Ordering::Relaxed);
                    return Err(error);
                }
            }
        }
    }

    /// The model, for one call at a time.
    fn model<R>(&self, call: impl FnOnce(&mut dyn Engine) -> R) -> R {
        let mut model = self.model.lock().unwrap_or_else(PoisonError::into_inner);
        call(&mut **model)
    }
}

/// A worker at a window.
struct Turn<'a> {
    work: &'a Work<'a>,
    base: Option<&'a mut (dyn Engine + 'static)>,
    queue: &'a Queue,
    tell: &'a mpsc::Sender<usize>,
}

impl Turn<'_> {
    /// Sums of one window by position, unless another worker has failed.
    fn window(&mut self, tokens: &[u32]) -> anyhow::Result<Option<Buckets>> {
        let seq = self.work.model(|model| model.open())?;
        let base_seq = self.base.as_mut().map(|base| base.open()).transpose()?;
        let mut buckets = vec![Tally::default(); (tokens.len() - 1).div_ceil(self.work.bucket)];
        let row_bytes = self.work.model(|model| model.info().vocab) * size_of::<f32>();
        let piece = (WAITING_BYTES_MAX / row_bytes).clamp(1, PIECE_TOKENS_MAX);
        let mut seen = 0;
        for piece in tokens.chunks(piece) {
            self.work.interrupt.check()?;
            if self.queue.failed.load(Ordering::Relaxed) {
                return Ok(None);
            }
            seen = self.piece((seq, base_seq), (seen, piece), tokens, &mut buckets)?;
            // Nobody listens any more once the work is lost.
            let _ = self.tell.send(piece.len());
        }
        self.work.model(|model| model.close(seq));
        if let (Some(base), Some(seq)) = (&mut self.base, base_seq) {
            base.close(seq);
        }
        Ok(Some(buckets))
    }

    /// Runs a piece in both engines; returns how many predictions of the window have been counted.
    fn piece(
        &mut self,
        (seq, base_seq): (SeqId, Option<SeqId>),
        (mut seen, piece): (usize, &[u32]),
        tokens: &[u32],
        buckets: &mut Buckets,
    ) -> anyhow::Result<usize> {
        let mut waiting: Vec<Vec<f32>> = Vec::new();
        if let (Some(base), Some(seq)) = (&mut self.base, base_seq) {
            base.score(seq, piece, &mut |row| waiting.push(row.to_vec()))?;
        }
        let mut rows = waiting.iter().map(Vec::as_slice);
        let mut broken = None;
        self.work.model(|model| {
            model.score(seq, piece, &mut |row| {
                let tally = &mut buckets[seen / self.work.bucket];
                seen += 1;
                if let Err(whose) = tally.add(row, rows.next(), tokens[seen]) {
                    broken.get_or_insert((whose, seen));
                }
            })
        })?;
        match broken {
            None => Ok(seen),
            Some((Broken::Model, seen)) => {
                bail!("the model's logits after {seen} tokens of a window are no numbers")
            }
            Some((Broken::Base, seen)) => {
                bail!("the base's logits after {seen} tokens of a window are no numbers")
            }
        }
    }
}
