//! Requests with real threads and real files: what is read, what is kept, what an error says.

mod common;

use cherenkov_experts::{
    Access, Error, ExpertKey, Experts, FileSource, Lookahead, RamBank, Result, Source, Streaming,
};
use cherenkov_format::{RecordLayout, Store};
use common::{check_wave, layout, record};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

const LAYERS: u32 = 3;
const EXPERTS: u32 = 12;

/// Records out of nothing, with a list of what was read.
struct Made {
    layout: RecordLayout,
    reads: Mutex<Vec<ExpertKey>>,
    panics: AtomicBool,
}

impl Source for Made {
    fn layout(&self) -> &RecordLayout {
        &self.layout
    }

    fn shape(&self) -> (usize, usize) {
        (LAYERS as usize, EXPERTS as usize)
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> Result<()> {
        assert!(!self.panics.load(Ordering::Relaxed), "a fault of the source");
        self.reads.lock().unwrap().push(key);
        out.copy_from_slice(&record(key));
        Ok(())
    }
}

fn made() -> Arc<Made> {
    let reads = Mutex::new(Vec::new());
    Arc::new(Made { layout: layout(), reads, panics: AtomicBool::new(false) })
}

fn experts(source: &Arc<Made>, slots: usize, lookahead: Lookahead) -> Experts<RamBank> {
    let bank = RamBank::new(slots, layout().bytes());
    let streaming = Streaming { lookahead, ..Streaming::default() };
    Experts::new(bank, Arc::clone(source), streaming).unwrap()
}

fn run(experts: &mut Experts<RamBank>, layer: u32, ids: &[u32]) {
    experts.request(layer, 1, ids);
    let mut seen = Vec::new();
    let checked = experts.waves::<Error>(|bank, wave| {
        check_wave(bank, wave, &mut seen);
        Ok(())
    });
    checked.unwrap();
    seen.sort_unstable();
    let mut want = ids.to_vec();
    want.sort_unstable();
    want.dedup();
    assert_eq!(seen, want);
}

#[test]
fn residents_are_not_read_again() {
    let source = made();
    let mut experts = experts(&source, 12, Lookahead::Off);
    for _ in 0..3 {
        run(&mut experts, 1, &[2, 5, 7, 5]);
    }
    assert_eq!(source.reads.lock().unwrap().len(), 3);
    let counters = experts.counters();
    assert_eq!((counters.hits, counters.misses, counters.selections), (6, 3, 12));
    assert_eq!(counters.read_bytes, 3 * layout().bytes() as u64);
    experts.request(0, 1, &[1]);
    let failed = experts.waves(|_, _| Err(Error::NoSlots { found: 9 }));
    assert!(matches!(failed, Err(Error::NoSlots { found: 9 })), "what the closure says comes out");
    run(&mut experts, 0, &(0..EXPERTS).collect::<Vec<_>>());
    let snapshot = experts.snapshot();
    assert_eq!(snapshot.experts[EXPERTS as usize + 5].selections, 6);
    assert_eq!(snapshot.experts[EXPERTS as usize + 5].reads, 1);
}

#[test]
fn a_right_guess_is_a_hit_and_a_wrong_one_harms_nobody() {
    let source = made();
    let mut experts = experts(&source, 36, Lookahead::Fixed(4));
    run(&mut experts, 0, &[0, 1]);
    assert!(experts.wants_hint());
    experts.hint(1, &[3, 4, 5]);
    while source.reads.lock().unwrap().len() < 5 {
        std::thread::yield_now();
    }
    // The last read may not have been handed over yet: then it is late, which is a miss.
    run(&mut experts, 1, &[3, 4, 6]);
    let total = experts.counters();
    assert_eq!(total.ahead_right + total.ahead_late, 2);
    assert_eq!(total.demand_reads, 3, "{total:?}");
    run(&mut experts, 1, &[5]);
    assert_eq!(source.reads.lock().unwrap().len(), 6, "what was read in vain is still there");
}

#[test]
fn requests_in_random_order_with_threads() {
    let source = made();
    for slots in [1, 2, 3, 7, 36] {
        let mut experts = experts(&source, slots, Lookahead::Auto);
        let mut dice = common::Dice(slots as u64);
        for step in 0..300 {
            let layer = step % LAYERS;
            let ids: Vec<u32> = (0..1 + dice.below(9)).map(|_| dice.below(12) as u32).collect();
            if experts.wants_hint() && layer + 1 < LAYERS {
                experts.request(layer, 1, &ids);
                experts.hint(layer + 1, &[dice.below(12) as u32, dice.below(12) as u32]);
            }
            run(&mut experts, layer, &ids);
        }
    }
}

#[test]
fn a_pool_without_slots_is_refused() {
    let bank = RamBank::new(0, layout().bytes());
    let refused = Experts::new(bank, made(), Streaming::default());
    assert!(matches!(refused, Err(Error::NoSlots { found: 0 })));
}

#[test]
fn a_reader_that_dies_is_an_error_and_no_hang() {
    let source = made();
    let mut experts = experts(&source, 4, Lookahead::Off);
    run(&mut experts, 0, &[1]);
    source.panics.store(true, Ordering::Relaxed);
    experts.request(0, 1, &[2]);
    let done = experts.waves::<Error>(|_, _| Ok(()));
    assert!(matches!(done, Err(Error::Readers)), "{done:?}");
}

fn pocket() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket")
}

fn copy_of_pocket(names: &[&str]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(pocket()).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if names.is_empty() || names.contains(&name.as_str()) {
            std::fs::copy(&path, dir.path().join(name)).unwrap();
        }
    }
    dir
}

fn flip(store: &Store, layer: usize, expert: usize) {
    let path = store.experts().path();
    let mut bytes = std::fs::read(path).unwrap();
    bytes[store.experts().offset(layer, expert) as usize + 100] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

/// A flipped byte in the experts file is an error that names file and expert; the others can be read.
#[test]
fn a_damaged_record_is_an_error() {
    let dir = copy_of_pocket(&[]);
    let store = Store::open(dir.path()).unwrap();
    flip(&store, 2, 7);
    let source = FileSource::open(&store, &[]).unwrap();
    let mut out = cherenkov_experts::PageBuf::new(source.layout().bytes());
    let error = source.read(ExpertKey { layer: 2, expert: 7 }, out.as_mut()).unwrap_err();
    for word in ["expert 2/7", "checksum", "experts.bin", "pack again"] {
        assert!(error.to_string().contains(word), "no {word} in: {error}");
    }
    // Once verified a record is not verified again.
    for _ in 0..2 {
        source.read(ExpertKey { layer: 2, expert: 8 }, out.as_mut()).unwrap();
    }
    let mut again = vec![0; source.layout().bytes()];
    store.experts().read(2, 8, &mut again).unwrap();
    assert_eq!(out.as_ref(), again);
}

/// Two copies share the reads, a record damaged in one comes from the other, and a directory with
/// another store is refused.
#[test]
fn copies_share_reads_and_stand_in_for_each_other() {
    let (first, second) = (copy_of_pocket(&[]), copy_of_pocket(&["manifest.json", "experts.bin"]));
    let store = Store::open(first.path()).unwrap();
    flip(&store, 1, 3);
    let source = FileSource::open(&store, &[second.path().to_owned()]).unwrap();
    let mut out = cherenkov_experts::PageBuf::new(source.layout().bytes());
    for expert in 0..20 {
        source.read(ExpertKey { layer: 1, expert }, out.as_mut()).unwrap();
    }
    source.read(ExpertKey { layer: 1, expert: 3 }, out.as_mut()).unwrap();
    let drives = source.drives();
    assert!(drives.iter().all(|d| d.read_bytes >= 9 * out.as_ref().len() as u64), "{drives:?}");
    assert!(drives.iter().any(|d| d.retries > 0), "{drives:?}");
    assert!(drives.iter().all(|d| matches!(d.access, Access::Direct | Access::Buffered { .. })));
    let text = std::fs::read_to_string(second.path().join("manifest.json")).unwrap();
    std::fs::write(second.path().join("manifest.json"), text.replacen('0', "1", 3)).unwrap();
    assert!(FileSource::open(&store, &[second.path().to_owned()]).is_err());
    assert!(FileSource::open(&store, &[first.path().join("absent")]).is_err());
}
