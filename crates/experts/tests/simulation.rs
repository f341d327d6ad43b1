//! A seeded simulation of readers, pool and waves: short reads, failing and lying drives, stalls,
//! cancelled lookahead, pools of every size. No hang, no wrong byte, no lost slot.

mod common;

use cherenkov_experts::{
    Bank as _, Error, Experts, Fading, FileSource, Grade, Index, Lookahead, Lru, Policy, RamBank,
    RecordFile, STEP_ROWS, Source,
};
use common::{
    Dice, Faults, SimFile, SimReads, check_wave, contents, contents_of, index, index_of, layout,
    low_layout,
};
use std::cell::Cell;
use std::sync::Arc;

const SEEDS: u64 = 20_000;
const LAYERS: u32 = 3;
const PER_LAYER: u32 = 12;

/// What a family of seeds has been through, so that a simulation of nothing is noticed.
#[derive(Debug, Default)]
struct Seen {
    failed: Cell<u64>,
    hits: Cell<u64>,
    misses: Cell<u64>,
    right: Cell<u64>,
    late: Cell<u64>,
    wasted: Cell<u64>,
    cancelled: Cell<u64>,
    retries: Cell<u64>,
    resized: Cell<u64>,
    low: Cell<u64>,
    upgrades: Cell<u64>,
    left_out: Cell<u64>,
}

fn add(cell: &Cell<u64>, n: u64) {
    cell.set(cell.get() + n);
}

struct World {
    experts: Experts<RamBank>,
    dice: Dice,
    source: Arc<dyn Source>,
    /// Slots at the start.
    most: usize,
}

/// The records of one grade.
struct Data {
    bytes: Arc<Vec<u8>>,
    index: Index,
}

fn data(grade: Grade) -> Data {
    let bytes = contents_of(LAYERS, PER_LAYER, grade);
    Data { bytes, index: index_of(LAYERS, PER_LAYER, grade) }
}

fn world(seed: u64, full: &Data, low: &Data) -> World {
    let mut dice = Dice(seed);
    let rarely = |dice: &mut Dice, n: u64| if dice.once_in(2) { 0 } else { n + dice.below(4 * n) };
    let copies = 1 + dice.below(2);
    let mut file = |data: &Data, grade: Grade| {
        let faults = Faults {
            error: rarely(&mut dice, 8),
            short: rarely(&mut dice, 4),
            wrong: rarely(&mut dice, 20),
            interrupted: rarely(&mut dice, 4),
        };
        let bytes = Arc::clone(&data.bytes);
        Box::new(SimFile::of(bytes, grade, faults, dice.next())) as Box<dyn RecordFile>
    };
    let files = (0..copies).map(|_| file(full, Grade::Full)).collect();
    let mut source = FileSource::over(full.index.clone(), files);
    if seed.is_multiple_of(2) {
        let files = (0..copies).map(|_| file(low, Grade::Low)).collect();
        source = source.over_low(low.index.clone(), files);
    }
    let source: Arc<dyn Source> = Arc::new(source);
    let most = if dice.once_in(3) { 4 } else { 40 };
    let slots = 1 + dice.below(most) as usize;
    let bank = RamBank::new(slots, layout().bytes());
    let (width, stall) = (1 + dice.below(5) as usize, rarely(&mut dice, 5));
    let reads = SimReads::new(Arc::clone(&source), width, stall, dice.next());
    let policy: Box<dyn Policy> =
        if dice.once_in(2) { Box::new(Lru::default()) } else { Box::new(Fading::default()) };
    let lookahead = match dice.below(4) {
        0 => Lookahead::Off,
        1 => Lookahead::Fixed(1 + dice.below(20) as usize),
        _ => Lookahead::Auto,
    };
    let reads = Box::new(reads);
    let mut experts =
        Experts::over(bank, Arc::clone(&source), reads, policy, lookahead).expect("has slots");
    if dice.once_in(4) {
        experts.use_layers(LAYERS as usize - 1);
    }
    World { experts, dice, source, most: slots }
}

/// One pass over some layers; what one asks of the bank depends on the dice only.
fn pass(world: &mut World, seen: &Seen) {
    let World { experts, dice, .. } = world;
    if dice.once_in(6) {
        let slots = 1 + dice.below(40) as usize;
        let held = experts.resize(slots).expect("readers stand");
        assert_eq!(held, slots.min(world.most));
        assert_eq!(experts.slots(), held);
        add(&seen.resized, 1);
    }
    let rows = if dice.once_in(3) { 1 + dice.below(60) } else { 1 + dice.below(4) };
    for layer in 0..LAYERS {
        if dice.once_in(12) {
            continue;
        }
        let ids: Vec<u32> =
            (0..rows * 2).map(|_| dice.below(u64::from(PER_LAYER)) as u32).collect();
        experts.request(layer, 2, &ids);
        if layer + 1 < LAYERS && (experts.wants_hint() || dice.once_in(20)) {
            let guess: Vec<u32> = (0..dice.below(8)).map(|_| dice.below(12) as u32).collect();
            experts.hint(layer + 1, &guess);
        }
        let spared: Vec<u32> = if dice.once_in(4) {
            ids.iter().copied().filter(|_| dice.once_in(2)).collect()
        } else {
            Vec::new()
        };
        experts.spare(&spared);
        if dice.once_in(30) {
            // A verb failed in between: the request is left open.
            return;
        }
        let mut wanted = ids.clone();
        wanted.sort_unstable();
        wanted.dedup();
        let mut got = Vec::new();
        let fails_at = if dice.once_in(25) { dice.below(3) } else { u64::MAX };
        let mut waves = 0;
        let done = experts.waves::<Error>(|bank, wave| {
            assert_eq!(wave.layer, layer);
            check_wave(bank, wave, &mut got);
            let whole = wave.grades.iter().all(|grade| *grade == Grade::Full);
            assert!(whole || rows as usize <= STEP_ROWS, "a long pass with small records");
            waves += 1;
            if waves > fails_at { Err(Error::NoSlots { found: 77 }) } else { Ok(()) }
        });
        let left_out: Vec<u32> = experts.left_out().collect();
        assert!(left_out.iter().all(|e| spared.contains(e) && !got.contains(e)));
        assert!(left_out.is_empty() || rows as usize <= STEP_ROWS);
        got.extend(left_out);
        got.sort_unstable();
        match done {
            Ok(()) => assert_eq!(got, wanted),
            Err(Error::NoSlots { found: 77 }) => assert!(waves > fails_at),
            Err(Error::Read { layer: l, expert, .. }) => {
                assert!(l == layer && wanted.contains(&expert) && !got.contains(&expert));
                add(&seen.failed, 1);
                return;
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn no_hang_and_no_wrong_byte() {
    let (full, low) = (data(Grade::Full), data(Grade::Low));
    let seen = Seen::default();
    for seed in 0..SEEDS {
        let mut world = world(seed, &full, &low);
        for _ in 0..2 + seed % 5 {
            pass(&mut world, &seen);
        }
        let total = world.experts.counters();
        add(&seen.hits, total.hits);
        add(&seen.misses, total.misses);
        add(&seen.right, total.ahead_right);
        add(&seen.late, total.ahead_late);
        add(&seen.wasted, total.ahead_wasted);
        add(&seen.cancelled, total.ahead_cancelled);
        add(&seen.retries, world.source.drives().iter().map(|d| d.retries).sum());
        let snapshot = world.experts.snapshot();
        assert_eq!(snapshot.total(), total);
        let reads: u64 = snapshot.experts.iter().map(|e| e.reads).sum();
        add(&seen.low, total.low_reads);
        add(&seen.upgrades, total.upgrades);
        add(&seen.left_out, total.left_out);
        let small = total.low_bytes / low_layout().bytes() as u64;
        let whole = (total.read_bytes - total.low_bytes) / layout().bytes() as u64;
        assert_eq!(small + whole, reads, "seed {seed}");
        let by_cause = total.demand_bytes + total.ahead_bytes + total.scan_bytes;
        assert_eq!(total.read_bytes, by_cause, "seed {seed}");
    }
    for (what, cell) in [
        ("failed", &seen.failed),
        ("hits", &seen.hits),
        ("misses", &seen.misses),
        ("right", &seen.right),
        ("late", &seen.late),
        ("wasted", &seen.wasted),
        ("cancelled", &seen.cancelled),
        ("retries", &seen.retries),
        ("resized", &seen.resized),
        ("small records", &seen.low),
        ("upgrades", &seen.upgrades),
        ("left out", &seen.left_out),
    ] {
        assert!(cell.get() > SEEDS / 20, "hardly any {what}: {seen:?}");
    }
}

/// Each record is read at most once per scan, however small the pool, and the next layer's reads begin
/// during this one's.
#[test]
fn a_scan_reads_each_record_once_and_ahead() {
    let (bytes, index) = (contents(LAYERS, PER_LAYER), index(LAYERS, PER_LAYER));
    for slots in [1, 2, 3, 5, 9, 17, 30] {
        let file = SimFile::new(Arc::clone(&bytes), Faults::default(), 1);
        let source: Arc<dyn Source> =
            Arc::new(FileSource::over(index.clone(), vec![Box::new(file)]));
        let reads = Box::new(SimReads::new(Arc::clone(&source), 2, 0, 7));
        let bank = RamBank::new(slots, layout().bytes());
        assert_eq!(bank.slots(), slots);
        let policy = Box::new(Fading::default());
        let mut experts =
            Experts::over(bank, source, reads, policy, Lookahead::Auto).expect("has slots");
        for layer in 0..LAYERS {
            let ids: Vec<u32> = (0..480).map(|i| i % PER_LAYER).collect();
            experts.request(layer, 2, &ids);
            experts.waves::<Error>(|_, _| Ok(())).unwrap();
        }
        let total = experts.counters();
        let records = u64::from(LAYERS * PER_LAYER);
        assert_eq!(total.read_bytes / layout().bytes() as u64, records, "{slots} slots: {total:?}");
        assert_eq!(total.ahead_wasted, 0);
        assert!(slots < 5 || total.scan_ahead_reads > 4, "{slots} slots: {total:?}");
        assert_eq!((total.scan_reads, total.demand_reads, total.ahead_reads), (records, 0, 0));
    }
}
