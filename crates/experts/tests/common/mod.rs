//! Records whose bytes follow from their key, files that misbehave, and reads in virtual time.

#![allow(dead_code, reason = "each test binary uses its own part")]

use cherenkov_experts::{
    Access, Done, ExpertKey, Grade, Index, Job, PageBuf, Priority, Queue, RamBank, Reads,
    RecordFile, Result, Source, Wave,
};
use cherenkov_format::{Encoding, RecordLayout, checksum};
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A small generator of numbers from a seed (splitmix64).
#[derive(Clone, Debug)]
pub struct Dice(pub u64);

impl Dice {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// True once in `n` throws; never for 0.
    pub fn once_in(&mut self, n: u64) -> bool {
        n > 0 && self.below(n) == 0
    }
}

/// Three 32 x 32 matrices in f32: three pages, so that a short read can end within a record.
pub fn layout() -> RecordLayout {
    RecordLayout::new(32, 32, Encoding::F32, Encoding::F32).unwrap()
}

/// The same in bf16: two pages.
pub fn low_layout() -> RecordLayout {
    RecordLayout::new(32, 32, Encoding::Bf16, Encoding::Bf16).unwrap()
}

pub fn layout_of(grade: Grade) -> RecordLayout {
    match grade {
        Grade::Full => layout(),
        Grade::Low => low_layout(),
    }
}

/// The bytes of a record: each word tells the record and its place in it.
pub fn record(key: ExpertKey) -> Vec<u8> {
    record_of(key, Grade::Full)
}

pub fn record_of(key: ExpertKey, grade: Grade) -> Vec<u8> {
    let low = u32::from(grade == Grade::Low) << 31;
    let name = u64::from(low | (key.layer * 4096 + key.expert)) << 32;
    (0..layout_of(grade).bytes() as u64 / 8).flat_map(|at| (name | at).to_le_bytes()).collect()
}

pub fn keys(layers: u32, per_layer: u32) -> impl Iterator<Item = ExpertKey> {
    let key = move |layer| (0..per_layer).map(move |expert| ExpertKey { layer, expert });
    (0..layers).flat_map(key)
}

pub fn index(layers: u32, per_layer: u32) -> Index {
    index_of(layers, per_layer, Grade::Full)
}

pub fn index_of(layers: u32, per_layer: u32, grade: Grade) -> Index {
    Index {
        layout: layout_of(grade),
        per_layer: per_layer as usize,
        checksums: keys(layers, per_layer).map(|key| checksum(&record_of(key, grade))).collect(),
    }
}

/// How often a file misbehaves: once in so many reads, 0 for never.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub error: u64,
    pub short: u64,
    pub wrong: u64,
    pub interrupted: u64,
}

/// A file in memory that misbehaves now and then.
pub struct SimFile {
    bytes: Arc<Vec<u8>>,
    /// Bytes of a record.
    record: usize,
    faults: Faults,
    dice: Mutex<Dice>,
    /// Reads of each record that still come out wrong. A record that was right once stays right: that
    /// is what checksums at the first use rest on.
    lies: Mutex<HashMap<u64, u64>>,
}

impl SimFile {
    pub fn new(bytes: Arc<Vec<u8>>, faults: Faults, seed: u64) -> Self {
        Self::of(bytes, Grade::Full, faults, seed)
    }

    /// Of records of one grade.
    pub fn of(bytes: Arc<Vec<u8>>, grade: Grade, faults: Faults, seed: u64) -> Self {
        let (dice, lies) = (Mutex::new(Dice(seed)), Mutex::default());
        Self { bytes, record: layout_of(grade).bytes(), faults, dice, lies }
    }
}

/// All records, one after the other.
pub fn contents(layers: u32, per_layer: u32) -> Arc<Vec<u8>> {
    contents_of(layers, per_layer, Grade::Full)
}

pub fn contents_of(layers: u32, per_layer: u32, grade: Grade) -> Arc<Vec<u8>> {
    Arc::new(keys(layers, per_layer).flat_map(|key| record_of(key, grade)).collect())
}

impl RecordFile for SimFile {
    fn path(&self) -> &Path {
        Path::new("simulated")
    }

    fn access(&self) -> Access {
        Access::Direct
    }

    fn read_at(&self, offset: u64, out: &mut [u8]) -> io::Result<usize> {
        let mut dice = self.dice.lock().unwrap();
        // A failing drive leaves anything behind.
        out.fill(0xee);
        if dice.once_in(self.faults.interrupted) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if dice.once_in(self.faults.error) {
            return Err(io::Error::other("simulated EIO"));
        }
        let left = &self.bytes[(offset as usize).min(self.bytes.len())..];
        let mut count = out.len().min(left.len());
        if dice.once_in(self.faults.short) {
            count = dice.below(count as u64 + 1) as usize;
        }
        out[..count].copy_from_slice(&left[..count]);
        let mut lies = self.lies.lock().unwrap();
        let first =
            |dice: &mut Dice| if dice.once_in(self.faults.wrong) { 1 + dice.below(4) } else { 0 };
        let left = lies.entry(offset / self.record as u64).or_insert_with(|| first(&mut dice));
        if count > 0 && *left > 0 {
            *left -= 1;
            out[dice.below(count as u64) as usize] ^= 4;
        }
        Ok(count)
    }
}

/// Readers in virtual time: the queue is the real one, the threads are not.
pub struct SimReads {
    pub source: Arc<dyn Source>,
    queue: Queue<PageBuf>,
    active: Vec<Done<PageBuf>>,
    width: usize,
    now: Duration,
    dice: Dice,
    /// One read in so many takes a thousand times as long.
    stall: u64,
}

impl SimReads {
    pub fn new(source: Arc<dyn Source>, width: usize, stall: u64, seed: u64) -> Self {
        let (queue, active) = (Queue::default(), Vec::new());
        Self { source, queue, active, width, now: Duration::ZERO, dice: Dice(seed), stall }
    }

    /// Lets idle readers begin.
    fn begin(&mut self) {
        while self.active.len() < self.width {
            let Some((_, mut job)) = self.queue.take() else { return };
            let result = job.read(&*self.source);
            let mut time = Duration::from_micros(50 + self.dice.below(100));
            if self.dice.once_in(self.stall) {
                time *= 1000;
            }
            let Job { key, grade, landing, queued } = job;
            let (started, ended) = (self.now, self.now + time);
            self.active.push(Done { key, grade, landing, result, queued, started, ended });
        }
    }

    /// The read that ends first.
    fn first(&mut self) -> Option<Done<PageBuf>> {
        self.begin();
        let at = (0..self.active.len()).min_by_key(|&i| self.active[i].ended)?;
        let done = self.active.swap_remove(at);
        self.now = self.now.max(done.ended);
        self.begin();
        Some(done)
    }
}

impl Reads<PageBuf> for SimReads {
    fn submit(&mut self, priority: Priority, key: ExpertKey, grade: Grade, landing: PageBuf) {
        self.queue.push(priority, Job { key, grade, landing, queued: self.now });
        if self.dice.once_in(2) {
            self.begin();
        }
    }

    fn promote(&mut self, key: ExpertKey) {
        self.queue.promote(key);
    }

    fn cancel(&mut self, key: ExpertKey) -> Option<PageBuf> {
        self.queue.cancel(key)
    }

    fn poll(&mut self) -> Result<Option<Done<PageBuf>>> {
        // The device computes for a while between two looks.
        self.begin();
        self.now += Duration::from_micros(self.dice.below(200));
        let ended = self.active.iter().any(|done| done.ended <= self.now);
        Ok(if ended { self.first() } else { None })
    }

    fn wait(&mut self) -> Result<Done<PageBuf>> {
        Ok(self.first().expect("nothing is under way: the request hangs"))
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn width(&self) -> usize {
        self.width
    }
}

/// A wave holds each expert's own bytes, in distinct slots.
pub fn check_wave(bank: &RamBank, wave: &Wave, seen: &mut Vec<u32>) {
    assert_eq!(wave.experts.len(), wave.slots.len());
    assert_eq!(wave.experts.len(), wave.grades.len());
    assert!(!wave.experts.is_empty(), "an empty wave");
    let mut slots = wave.slots.clone();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), wave.slots.len(), "two experts in one slot");
    for (i, (&expert, &slot)) in wave.experts.iter().zip(&wave.slots).enumerate() {
        let key = ExpertKey { layer: wave.layer, expert };
        let want = record_of(key, wave.grades[i]);
        assert!(bank.record(slot)[..want.len()] == want, "wrong bytes for {key:?}");
        seen.push(expert);
    }
}
