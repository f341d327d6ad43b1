//! Residency meets the device: every routed expert is presented once, pinned, in waves.
//!
//! Owns: the life of a request: reads begin, what is in memory is presented, then what arrives.
//! Never: arithmetic, routing, I/O (see `readers`), which record goes (see `pool` and `policy`).
//! Invariants: an expert of a request is presented exactly once; a slot is reused only after the
//! ticket of the wave that read it; a failed read is an error and leaves no half-filled slot behind;
//! at most one request is open, and one that was not finished leaves no pins.

use crate::bank::{Bank, Slot};
use crate::error::{Error, Result};
use crate::grade::{Grade, Layouts};
use crate::late::{Late, STEP_ROWS};
use crate::lookahead::{Ahead, Lookahead, Origin, Outcome, Stops, Visit, Width};
use crate::policy::{Fading, Policy, Scans, Use};
use crate::pool::{Line, Pool, Press, Taker};
use crate::queue::Priority;
use crate::readers::{Clock, Done, Readers, Reads};
use crate::request::{Asked, Wave, count, ring};
use crate::source::{ExpertKey, Source};
use crate::stats::{Cause, Counters, Snapshot, Tally};
use cherenkov_format::{Bits, RecordLayout};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// How experts are streamed.
#[derive(Clone)]
pub struct Streaming {
    /// Directories with byte-identical copies of the store, on other drives.
    pub copies: Vec<PathBuf>,
    /// Reads at the same time.
    pub readers: usize,
    /// Whether to read ahead.
    pub lookahead: Lookahead,
    /// Code width of the records that misses of steps are read as; those of the run where not given.
    pub miss: Option<Bits>,
    /// Late experts whose share of every row's weights is below this are left out.
    pub cut_weak: f32,
    /// The time, for what reads and guesses cost.
    pub clock: Clock,
}

/// Reads at the same time where nothing else is asked for: large reads of so many threads keep the
/// drives we measured at their full rate.
pub const READERS_DEFAULT: usize = 4;

impl Default for Streaming {
    fn default() -> Self {
        Self {
            copies: Vec::new(),
            readers: READERS_DEFAULT,
            lookahead: Lookahead::default(),
            miss: None,
            cut_weak: 0.0,
            clock: Arc::new(|| Duration::ZERO),
        }
    }
}

/// A bank, its pool and the reads that fill it.
pub struct Experts<B: Bank> {
    pub(crate) bank: B,
    pub(crate) reads: Box<dyn Reads<B::Landing>>,
    pub(crate) source: Arc<dyn Source>,
    pub(crate) pool: Pool,
    policy: Box<dyn Policy>,
    pub(crate) asked: Asked,
    pub(crate) ahead: Ahead,
    pub(crate) width: Width,
    pub(crate) visit: Visit,
    pub(crate) stops: Stops,
    /// Lookahead records that landed before a scan wanted its next layer, at last count.
    pub(crate) window: usize,
    /// Layers that passes go through.
    pub(crate) layers: usize,
    pub(crate) tally: Tally,
    pub(crate) layouts: Layouts,
    pub(crate) late: Late,
    /// When the last request had been made.
    pub(crate) since: Duration,
}

impl<B: Bank> Experts<B> {
    /// Joins a bank and a source, with reader threads between them.
    ///
    /// # Errors
    /// [`Error::NoSlots`] when the bank is empty, [`Error::Threads`].
    pub fn new(bank: B, source: impl Source + 'static, streaming: Streaming) -> Result<Self> {
        let source: Arc<dyn Source> = Arc::new(source);
        let clock = Arc::clone(&streaming.clock);
        let reads = Readers::start(Arc::clone(&source), streaming.readers, clock)?;
        let policy = Box::new(Fading::default());
        let mut experts = Self::over(bank, source, Box::new(reads), policy, streaming.lookahead)?;
        experts.set_cut_weak(streaming.cut_weak);
        Ok(experts)
    }

    /// As [`Self::new`], with other ways to read and to choose.
    ///
    /// # Errors
    /// [`Error::NoSlots`] when the bank is empty.
    pub fn over(
        bank: B,
        source: Arc<dyn Source>,
        reads: Box<dyn Reads<B::Landing>>,
        policy: Box<dyn Policy>,
        lookahead: Lookahead,
    ) -> Result<Self> {
        if bank.slots() == 0 {
            return Err(Error::NoSlots { found: 0 });
        }
        let (_, per_layer) = source.shape();
        Ok(Self {
            pool: Pool::new(bank.slots()),
            asked: Asked::default(),
            ahead: Ahead::default(),
            width: Width::new(lookahead),
            visit: Visit::default(),
            stops: Stops::default(),
            window: per_layer,
            layers: source.shape().0,
            tally: Tally::new(source.shape()),
            layouts: Layouts::of_source(&*source),
            late: Late::default(),
            since: Duration::ZERO,
            bank,
            reads,
            source,
            policy,
        })
    }

    /// Says that passes go through the first `layers` layers only: a draft head may not be loaded.
    pub fn use_layers(&mut self, layers: usize) {
        self.layers = layers.min(self.source.shape().0);
    }

    /// Totals so far.
    pub fn counters(&self) -> Counters {
        let mut total = Counters::default();
        self.tally.layers().iter().for_each(|layer| total += *layer);
        total
    }

    /// Totals of one layer so far.
    pub(crate) fn layer_counters(&self, layer: u32) -> Counters {
        self.tally.layers()[layer as usize]
    }

    /// Everything counted so far.
    pub fn snapshot(&self) -> Snapshot {
        Snapshot {
            layers: self.tally.layers().to_vec(),
            experts: self.tally.experts().to_vec(),
            drives: self.source.drives(),
            slots: self.pool.slots(),
            readers: self.reads.width(),
            width: self.width.get(),
            policy: self.policy.name(),
            bits: self.source.layout().bits(),
            low_bits: self.source.low().map(RecordLayout::bits),
            record_bytes: self.layouts.full.bytes() as u64,
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.pool.slots()
    }

    /// Opens a request for the experts of some rows, `k` per row in `ids`: reads of those that are
    /// not in memory begin. [`Self::waves`] presents them; what does not need them can be done before.
    pub fn request(&mut self, layer: u32, k: usize, ids: &[u32]) {
        self.abandon();
        let wanted = count(k, ids);
        let visit = std::mem::take(&mut self.visit);
        if !self.asked.scan {
            self.width.learn(&visit);
        }
        if self.asked.layer.is_none_or(|last| layer <= last) {
            self.policy.pass();
        }
        let (_, per_layer) = self.source.shape();
        self.asked.layer = Some(layer);
        let large = wanted.len() * self.layers > self.pool.slots();
        self.asked.scan = large && self.policy.scans() == Scans::Ring;
        self.asked.step = ids.len() <= STEP_ROWS * k;
        self.asked.tails = wanted.iter().map(|(&expert, rows)| (expert, rows.tail)).collect();
        self.tally.layer(layer).selections += ids.len() as u64;
        self.settle_ahead(layer);
        for (&expert, rows) in &wanted {
            let key = ExpertKey { layer, expert };
            self.policy.used(Use { key, rows: rows.tail });
            self.tally.expert(key).selections += u64::from(rows.all);
            self.look_up(key);
        }
        if self.asked.scan && self.scan_on(layer, wanted.len()) {
            let next = (0..per_layer as u32).map(|expert| ExpertKey { layer: layer + 1, expert });
            self.ahead.begin(next, per_layer);
        }
        self.pump();
        self.since = self.reads.now();
    }

    /// Whether a guess at the next layer's experts would be used.
    pub fn wants_hint(&self) -> bool {
        !self.asked.scan && self.width.get() > 0
    }

    /// A guess at the experts that `layer`, the next one, will want; best first. Changes timing only.
    pub fn hint(&mut self, layer: u32, guess: &[u32]) {
        self.visit.guessing = self.reads.now().saturating_sub(self.since);
        let keys = guess.iter().map(|&expert| ExpertKey { layer, expert });
        self.ahead.begin(keys, self.width.get());
        self.pump();
    }

    /// Presents each expert of the open request to `run` exactly once: first those in memory, then the
    /// others as they arrive.
    ///
    /// # Errors
    /// A failed read, or the first error of `run`; the request is then closed.
    pub fn waves<E: From<Error>>(
        &mut self,
        mut run: impl FnMut(&B, &Wave) -> std::result::Result<B::Ticket, E>,
    ) -> std::result::Result<(), E> {
        let done = self.present_all(&mut run);
        if done.is_err() {
            self.abandon();
        }
        done
    }

    fn present_all<E: From<Error>>(
        &mut self,
        run: &mut impl FnMut(&B, &Wave) -> std::result::Result<B::Ticket, E>,
    ) -> std::result::Result<(), E> {
        loop {
            while let Some(done) = self.reads.poll()? {
                self.land(done)?;
                self.pump();
            }
            let wave = self.next_wave();
            if wave.is_none() {
                self.leave_out_late();
            }
            if let Some(wave) = wave {
                let ticket = run(&self.bank, &wave);
                if let Ok(ticket) = ticket {
                    self.bank.wait(ticket);
                }
                self.release(&wave);
                ticket?;
                self.pump();
            } else if self.asked.awaited.is_empty() && self.asked.rest.is_empty() {
                return Ok(());
            } else {
                self.stand_still()?;
                // What arrived may be nobody's any more, and its slot free.
                self.pump();
            }
        }
    }

    /// Pins an expert of the request, or gets it under way.
    fn look_up(&mut self, key: ExpertKey) {
        match self.pool.find(key) {
            Some((slot, Line::Loading)) if self.take_back(key, slot) => self.found(key, slot),
            Some((_, Line::Loading)) => {
                self.reads.promote(key);
                self.asked.awaited.push(key.expert);
                self.tally.expert(key).misses += 1;
                self.visit.misses += 1;
                self.tally.layer(key.layer).misses += 1;
            }
            Some((slot, _)) => self.found(key, slot),
            None => {
                self.asked.rest.push_back(key.expert);
                self.visit.misses += 1;
                self.tally.expert(key).misses += 1;
                self.tally.layer(key.layer).misses += 1;
            }
        }
    }

    fn taker(&self) -> Taker {
        if self.asked.scan {
            let (_, per_layer) = self.source.shape();
            Taker::Scan { ring: ring(self.pool.slots(), per_layer, self.reads.width()) }
        } else {
            Taker::Step
        }
    }

    /// Begins as many reads as there are slots for: demands first, then lookahead.
    pub(crate) fn pump(&mut self) {
        let Some(layer) = self.asked.layer else { return };
        let taker = self.taker();
        while let Some(&expert) = self.asked.rest.front() {
            let key = ExpertKey { layer, expert };
            let Some(slot) = self.pool.take(key, taker, Press::Demand) else { return };
            self.asked.rest.pop_front();
            self.asked.awaited.push(expert);
            self.submit(Priority::Demand, key, self.miss_grade(), slot);
        }
        while self.ahead.begun < self.ahead.limit {
            let Some(&key) = self.ahead.plan.front() else { return };
            match self.pool.find(key) {
                None => {
                    let Some(slot) = self.pool.take(key, taker, Press::Lookahead) else { return };
                    let outcome = Outcome { place: self.ahead.begun, ..Outcome::default() };
                    self.ahead.open.insert(key, Origin::Read(outcome));
                    self.ahead.begun += 1;
                    self.submit(Priority::Lookahead, key, Grade::Full, slot);
                }
                Some((slot, line @ (Line::Kept(_) | Line::Passed(_)))) => {
                    self.ahead.open.insert(key, Origin::There(line));
                    self.pool.put(slot, Line::Ahead);
                }
                Some(_) => {}
            }
            self.ahead.plan.pop_front();
        }
    }

    pub(crate) fn submit(&mut self, priority: Priority, key: ExpertKey, grade: Grade, slot: Slot) {
        self.tally.asked(key, Cause { priority, taker: self.taker() });
        self.tally.layer(key.layer).low_reads += u64::from(grade == Grade::Low);
        let landing = self.bank.land(slot);
        self.reads.submit(priority, key, grade, landing);
    }

    /// The pinned experts, as far as slots for the others are left to be filled meanwhile.
    fn next_wave(&mut self) -> Option<Wave> {
        let layer = self.asked.layer?;
        let most = match self.taker() {
            _ if self.asked.rest.is_empty() => self.asked.ready.len(),
            Taker::Scan { ring } => (ring / 2).max(1).min(self.asked.ready.len()),
            Taker::Step => (self.pool.slots() / 2).max(1).min(self.asked.ready.len()),
        };
        if most == 0 {
            return None;
        }
        self.tally.layer(layer).waves += 1;
        let (experts, slots): (Vec<u32>, Vec<Slot>) = self.asked.ready.drain(..most).unzip();
        let grades = slots.iter().map(|slot| self.pool.grade(*slot)).collect();
        Some(Wave { layer, experts, slots, grades })
    }

    /// Lets the slots of a presented wave be given away again.
    fn release(&mut self, wave: &Wave) {
        for (&expert, &slot) in wave.experts.iter().zip(&wave.slots) {
            if !self.upgrade(ExpertKey { layer: wave.layer, expert }, slot) {
                self.unpin(wave.layer, expert, slot);
            }
        }
    }

    fn unpin(&mut self, layer: u32, expert: u32, slot: Slot) {
        let rank = self.policy.rank(ExpertKey { layer, expert });
        let near = self.asked.tails.get(&expert).is_some_and(|&rows| rows > 0);
        let line = if self.asked.scan && !near { Line::Passed(rank) } else { Line::Kept(rank) };
        self.pool.put(slot, line);
    }

    /// Waits for one read.
    fn stand_still(&mut self) -> Result<()> {
        let began = self.reads.now();
        let done = self.reads.wait()?;
        let now = self.reads.now();
        self.stops.push(began, now);
        let time = now.saturating_sub(began);
        self.visit.waited += time;
        if let Some(layer) = self.asked.layer {
            let counters = self.tally.layer(layer);
            counters.waits += 1;
            counters.wait_time += time;
        }
        self.land(done)
    }

    /// Takes in a finished read.
    pub(crate) fn land(&mut self, done: Done<B::Landing>) -> Result<()> {
        let Done { key, grade, landing, result, started, ended, .. } = done;
        let (slot, _) = self.pool.find(key).expect("a record on its way has a slot");
        let waits = &mut self.asked.awaited;
        let place = waits.iter().position(|&expert| expert == key.expert);
        let place = place.filter(|_| self.asked.layer == Some(key.layer));
        let mine = place.map(|at| waits.swap_remove(at)).is_some();
        let keep = self.late.landed(key);
        let counters = self.tally.layer(key.layer);
        let time = ended.saturating_sub(started);
        counters.read_time += time;
        self.learn_read(key, started, ended);
        let bytes = if result.is_ok() { self.layouts.of(grade).bytes() as u64 } else { 0 };
        self.tally.read(key, bytes);
        self.tally.layer(key.layer).low_bytes += if grade == Grade::Low { bytes } else { 0 };
        if let Err(error) = result {
            self.tally.layer(key.layer).failed_reads += 1;
            self.bank.withdraw(slot, landing);
            self.pool.clear(slot);
            return if mine { Err(error) } else { Ok(()) };
        }
        self.pool.set_grade(slot, grade);
        self.bank.publish(slot, landing);
        self.tally.expert(key).reads += 1;
        if mine {
            self.arrived(key, slot);
        } else if self.ahead.open.contains_key(&key) {
            self.pool.put(slot, Line::Ahead);
        } else if keep {
            self.pool.put(slot, Line::Kept(self.policy.rank(key)));
        } else {
            self.pool.put(slot, Line::Spent);
        }
        Ok(())
    }

    /// Closes the open request, whatever state it is in.
    pub(crate) fn abandon(&mut self) {
        let Some(layer) = self.asked.layer else { return };
        for list in [&mut self.asked.again, &mut self.asked.weak, &mut self.asked.left_out] {
            list.clear();
        }
        self.asked.rest.clear();
        for (expert, slot) in std::mem::take(&mut self.asked.ready) {
            self.unpin(layer, expert, slot);
        }
        for expert in std::mem::take(&mut self.asked.awaited) {
            let key = ExpertKey { layer, expert };
            if let (Some(landing), Some((slot, _))) = (self.reads.cancel(key), self.pool.find(key))
            {
                self.bank.withdraw(slot, landing);
                self.pool.clear(slot);
            }
        }
    }
}
