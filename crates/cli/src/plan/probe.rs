//! How fast this machine reads.
//!
//! Owns: the measurements: large reads of the store through its own readers, plain reads of memory.
//! Never: what follows from them (see `speed`).

use crate::args::ModelArgs;
use crate::device::{self, Choice};
use crate::memory;
use anyhow::Context as _;
use cherenkov_cpu::PlainRead;
use cherenkov_experts::{
    Access, ExpertKey, FileSource, Grade, PageBuf, Priority, Readers, Reads as _, Source,
};
use cherenkov_format::Store;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the drive is read.
const DRIVE_TIME: Duration = Duration::from_secs(1);
/// Stretches of memory that the plain read goes through.
const STRETCHES: usize = 4;
/// Most bytes of one of them.
const STRETCH_BYTES_MAX: u64 = 256 << 20;
/// Passes of the plain read of which the fastest counts: a thread that has just woken may share a core
/// for a while.
const PASSES: usize = 4;

/// What was measured of the drive (or drives).
#[derive(Clone, Debug, PartialEq)]
pub struct DriveRate {
    /// Bytes per second.
    pub rate: f64,
    /// Bytes read for that.
    pub bytes: u64,
    /// Why the page cache may have helped, where the system refused to read past it.
    pub buffered: Option<String>,
}

/// Reads records all over the store, each at most once, with as many readers as a run would have.
///
/// # Errors
/// When a record cannot be read.
pub fn drive(store: &Store, args: &ModelArgs) -> anyhow::Result<DriveRate> {
    let source = FileSource::open(store, &args.store_copy)?;
    let (layers, per_layer) = source.shape();
    let (records, length) = (layers * per_layer, source.layout().bytes());
    let source: Arc<dyn Source> = Arc::new(source);
    let clock = device::streaming(args).clock;
    let mut readers = Readers::<PageBuf>::start(Arc::clone(&source), args.readers, clock)?;
    let mut keys = spread(records).map(|record| ExpertKey {
        layer: (record / per_layer) as u32,
        expert: (record % per_layer) as u32,
    });
    let began = Instant::now();
    let mut open = 0;
    for key in keys.by_ref().take(2 * args.readers) {
        readers.submit(Priority::Demand, key, Grade::Full, PageBuf::new(length));
        open += 1;
    }
    let mut bytes = 0;
    while open > 0 {
        let done = readers.wait()?;
        done.result?;
        (open, bytes) = (open - 1, bytes + length as u64);
        let next = if began.elapsed() < DRIVE_TIME { keys.next() } else { None };
        if let Some(key) = next {
            readers.submit(Priority::Demand, key, Grade::Full, done.landing);
            open += 1;
        }
    }
    let rate = bytes as f64 / began.elapsed().as_secs_f64();
    let buffered = source.drives().into_iter().find_map(|drive| match drive.access {
        Access::Direct => None,
        Access::Buffered { reason } => Some(reason),
    });
    Ok(DriveRate { rate, bytes, buffered })
}

/// Every number below `count` once, far from each other.
fn spread(count: usize) -> impl Iterator<Item = usize> {
    let gcd = |mut a: usize, mut b: usize| {
        while b > 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    // Near the golden section, and without a divisor in common.
    let step = (count * 5 / 8..).find(|&step| step > 0 && gcd(count, step) == 1).unwrap_or(1);
    (0..count).map(move |i| i * step % count)
}

/// The read that decode is compared with; only the cpu device has one.
///
/// # Errors
/// When threads cannot be started.
pub fn plain_read(device: Choice) -> anyhow::Result<Option<PlainRead>> {
    let Choice::Cpu { threads, isa, .. } = device else { return Ok(None) };
    let stretch = (memory::available() / 32).min(STRETCH_BYTES_MAX) as usize;
    PlainRead::new(threads, isa, STRETCHES, stretch).context("cannot start threads")
}

/// Bytes per second of memory.
pub fn memory_rate(read: &mut PlainRead) -> f64 {
    let passes = (0..PASSES).map(|_| {
        let began = Instant::now();
        let bytes = read.pass();
        bytes as f64 / began.elapsed().as_secs_f64()
    });
    passes.fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn spread_numbers_come_once_each_and_not_in_order() {
        for count in [1, 2, 3, 8, 432, 25_088] {
            let all: Vec<usize> = spread(count).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), count);
            assert!(all.iter().all(|&i| i < count));
            let near = all.windows(2).filter(|w| w[1] == w[0] + 1).count();
            assert!(count < 8 || near == 0, "{count}: {near} neighbours");
        }
        assert_eq!(spread(0).count(), 0);
    }
}
