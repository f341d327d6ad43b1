//! A seeded simulation of pools of every size against a plain map, with failing reads, and records
//! of a damaged store.

use cherenkov_experts::{Error, ExpertKey, Experts, RamBank, Result, Source, Wave};
use cherenkov_format::{Encoding, RecordLayout};
use proptest::prelude::*;
use std::sync::Mutex;

const LAYERS: u32 = 3;
const EXPERTS: u32 = 12;

/// Records whose bytes follow from the key; some reads fail.
struct Made {
    layout: RecordLayout,
    /// Whether the n-th read fails.
    failures: Vec<bool>,
    reads: Mutex<Vec<ExpertKey>>,
}

fn byte(key: ExpertKey, at: usize) -> u8 {
    (key.layer as usize * 131 + key.expert as usize * 17 + at * 7) as u8
}

impl Source for &Made {
    fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        let mut reads = self.reads.lock().unwrap();
        let fails = self.failures.get(reads.len()).copied().unwrap_or(false);
        reads.push(key);
        if fails {
            // A failed read leaves garbage behind.
            out.fill(0xee);
            let source = cherenkov_format::Error::invalid("x".as_ref(), "s", "f", "e", "r");
            return Err(Error::Read { layer: key.layer, expert: key.expert, source });
        }
        out.iter_mut().enumerate().for_each(|(at, b)| *b = byte(key, at));
        Ok(())
    }
}

fn made(failures: Vec<bool>) -> Made {
    let layout = RecordLayout::new(32, 32, Encoding::F32, Encoding::F32).unwrap();
    Made { layout, failures, reads: Mutex::new(Vec::new()) }
}

/// A wave holds each expert's own bytes, in distinct slots.
fn check_wave(bank: &RamBank, wave: &Wave, seen: &mut Vec<u32>) {
    assert_eq!(wave.experts.len(), wave.slots.len());
    let mut slots = wave.slots.clone();
    slots.sort_unstable();
    slots.dedup();
    assert_eq!(slots.len(), wave.slots.len(), "two experts in one slot");
    for (&expert, &slot) in wave.experts.iter().zip(&wave.slots) {
        let key = ExpertKey { layer: wave.layer, expert };
        let record = bank.record(slot);
        assert!(record.iter().enumerate().all(|(at, &b)| b == byte(key, at)), "{key:?}");
        seen.push(expert);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_expert_once_with_its_own_bytes(
        slots in 1usize..40,
        steps in prop::collection::vec(
            (0..LAYERS, prop::collection::btree_set(0..EXPERTS, 0..9)), 1..30),
        failures in prop::collection::vec(prop::bool::weighted(0.1), 0..120),
    ) {
        let source = made(failures);
        let bank = RamBank::new(slots, source.layout.bytes());
        let mut experts = Experts::new(bank, &source).unwrap();
        for (layer, wanted) in steps {
            let wanted: Vec<u32> = wanted.into_iter().collect();
            let mut seen = Vec::new();
            let done = experts.waves::<Error>(layer, &wanted, |bank, wave| {
                assert_eq!(wave.layer, layer);
                check_wave(bank, wave, &mut seen);
                Ok(())
            });
            seen.sort_unstable();
            match done {
                Ok(()) => prop_assert_eq!(seen, wanted),
                Err(Error::Read { layer: l, expert, .. }) => {
                    prop_assert!(l == layer && wanted.contains(&expert) && !seen.contains(&expert));
                }
                Err(other) => prop_assert!(false, "{}", other),
            }
        }
    }
}

/// What is resident is not read again, and what the closure fails with comes out.
#[test]
fn residents_are_not_read_again() {
    let source = made(Vec::new());
    let mut experts = Experts::new(RamBank::new(8, source.layout.bytes()), &source).unwrap();
    for _ in 0..3 {
        experts.waves::<Error>(1, &[2, 5, 7], |_, _| Ok(())).unwrap();
    }
    assert_eq!(source.reads.lock().unwrap().len(), 3);
    let counters = experts.counters();
    assert_eq!((counters.hits, counters.misses), (6, 3));
    assert_eq!(counters.read_bytes, 3 * source.layout.bytes() as u64);
    let failed = experts.waves(0, &[1], |_, _| Err(Error::NoSlots { found: 9 }));
    assert!(matches!(failed, Err(Error::NoSlots { found: 9 })));
    experts.waves::<Error>(0, &(0..EXPERTS).collect::<Vec<_>>(), |_, _| Ok(())).unwrap();
}

#[test]
fn a_pool_without_slots_is_refused() {
    let source = made(Vec::new());
    let bank = RamBank::new(0, source.layout.bytes());
    assert!(matches!(Experts::new(bank, &source), Err(Error::NoSlots { found: 0 })));
}

/// A flipped byte in the experts file is an error that names the expert; the others can be read.
#[test]
fn a_damaged_record_is_an_error() {
    use cherenkov_experts::FileSource;
    use cherenkov_format::Store;
    use std::sync::Arc;
    let dir = tempfile::tempdir().unwrap();
    let bundled = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket");
    for entry in std::fs::read_dir(bundled).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    let store = Store::open(dir.path()).unwrap();
    let at = store.experts().offset(2, 7) as usize + 100;
    let path = store.experts().path().to_owned();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[at] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let source = FileSource::new(Arc::new(Store::open(dir.path()).unwrap()));
    let mut out = vec![0; source.layout().bytes()];
    let error = source.read(ExpertKey { layer: 2, expert: 7 }, &mut out).unwrap_err();
    assert!(error.to_string().contains("expert 2/7"), "{error}");
    assert!(error.to_string().contains("checksum"), "{error}");
    source.read(ExpertKey { layer: 2, expert: 8 }, &mut out).unwrap();
    // Once verified a record is not verified again.
    source.read(ExpertKey { layer: 2, expert: 8 }, &mut out).unwrap();
}
