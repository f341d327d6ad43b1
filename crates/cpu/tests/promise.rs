//! The determinism promise across instruction sets and threads: one set of bits.
//!
//! The suite holds one device against itself; here devices are held against each other.

mod common;

use cherenkov_cpu::{CpuDevice, CpuOptions, CpuVector, Isa, KvPrecision};
use cherenkov_experts::{Bank, Grade, Layouts, RamBank, Slot, Wave};
use cherenkov_format::qwen4_exp::config::{Attention, Delta, Gate};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::{Bits, Encoding, Group};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Hyper, KvLane, PleWeights, RowLane, Shared,
    TopkNorm,
};
use cherenkov_model::{Act, Batch, Device, Keep, Limits, PageId, Picks, SlotId};
use common::{Random, same};

const H: usize = 192;
const C: usize = 3;
const EXPERTS: usize = 24;
const K: usize = 4;
const WIDTH: usize = 64;
const PAGE_ROWS: usize = 32;
const PAGES: usize = 8;

fn tiles(bits: Bits, group: Group) -> Encoding {
    Encoding::Tile16 { bits, group }
}

const Q8: Encoding = Encoding::Tile16 { bits: Bits::B8, group: Group::G64 };

fn attention() -> Attention {
    Attention {
        heads: 6,
        kv_heads: 2,
        head_dim: 48,
        rope_dims: 24,
        rope_theta: 1e4,
        mrope_section: [4, 4, 4],
        index_heads: 3,
        index_dim: 40,
        index_budget: 40,
        index_ratio: 4,
    }
}

fn delta() -> Delta {
    let (key_heads, value_heads) = (2, 4);
    let (key_dim, value_dim, conv_kernel) = (24, 40, 4);
    Delta { key_heads, value_heads, key_dim, value_dim, conv_kernel, gate: Gate::Silu }
}

/// How a sequence is cut into runs.
#[derive(Clone, Copy, Debug)]
enum Cutting {
    /// All rows at once.
    Whole,
    /// Runs of this many rows that stay.
    Chunks(usize),
    /// Tentative runs of eight rows, this many of which stay.
    Drafts(usize),
}

type M = <CpuDevice as Device>::Matrix;

/// Activations.
struct Acts {
    x: Act,
    y: Act,
    z: Act,
    stream: Act,
    gate: Act,
    qkv_raw: Act,
    delta: DeltaIo,
    q: Act,
    k: Act,
    v: Act,
    index: Act,
    out: Act,
    parts: Act,
    key: Act,
    picks: Picks,
}

impl Acts {
    fn new(device: &mut CpuDevice) -> Self {
        let (a, d, wide) = (attention(), delta(), C * H);
        let picks = device.picks(a.budget_blocks());
        let mut act = |width| device.act(width);
        let kv = a.kv_heads * a.head_dim;
        Self {
            x: act(H),
            y: act(H),
            z: act(H),
            stream: act(wide),
            gate: act(C),
            qkv_raw: act(d.channels()),
            delta: DeltaIo {
                qkv: act(d.channels()),
                z: act(d.value_width()),
                a: act(d.value_heads),
                b: act(d.value_heads),
                out: act(d.value_width()),
            },
            q: act(2 * a.heads * a.head_dim),
            k: act(kv),
            v: act(kv),
            index: act(a.index_width()),
            out: act(a.heads * a.head_dim),
            parts: act(K * H),
            key: act(wide),
            picks,
        }
    }

    /// Those that are given, each with the seed of its numbers.
    fn inputs(&self) -> Vec<(u64, Act)> {
        let d = self.delta;
        let all = [
            self.x,
            self.stream,
            self.qkv_raw,
            d.z,
            d.a,
            d.b,
            self.q,
            self.k,
            self.v,
            self.index,
            self.key,
        ];
        (1..).zip(all).collect()
    }
}

/// Lanes of state.
struct Lanes {
    conv: RowLane,
    delta: DeltaLane,
    kv: KvLane,
    raw: RowLane,
    ple: RowLane,
}

impl Lanes {
    fn new(device: &mut CpuDevice) -> Self {
        let (a, d) = (attention(), delta());
        Self {
            conv: device.row_lane(d.channels(), 3),
            delta: device.delta_lane(&d),
            kv: device.kv_lane(&a),
            raw: device.row_lane(a.index_dim, a.index_ratio),
            ple: device.row_lane(C * H, 9),
        }
    }
}

/// Makes weights.
struct Maker<'a> {
    device: &'a mut CpuDevice,
    random: Random,
}

impl Maker<'_> {
    fn vector(&mut self, n: usize) -> CpuVector {
        let values: Vec<f32> = self.random.normals(n).iter().map(|v| 1.0 + 0.2 * v).collect();
        self.device.vector(&values).unwrap()
    }

    fn matrix(&mut self, rows: usize, cols: usize, encoding: Encoding) -> M {
        let m = self.random.matrix(rows, cols, encoding);
        self.device.matrix(m).unwrap()
    }

    fn bank(&mut self, layouts: &Layouts) -> RamBank {
        let mut bank = self.device.bank(EXPERTS, layouts).unwrap();
        for slot in (0..EXPERTS as u32).map(Slot) {
            let mut landing = bank.land(slot);
            let layout = layouts.of(grade(slot.0));
            for which in [Projection::Gate, Projection::Up, Projection::Down] {
                let (rows, cols, encoding) = layout.shape(which);
                let (at, len) = layout.span(which);
                let matrix = self.random.matrix(rows, cols, encoding);
                landing.as_mut()[at..at + len].copy_from_slice(matrix.view().bytes());
            }
            bank.publish(slot, landing);
        }
        bank
    }
}

/// Every third expert is held as its small record.
fn grade(expert: u32) -> Grade {
    if expert.is_multiple_of(3) { Grade::Low } else { Grade::Full }
}

/// Weights of every verb.
struct Net {
    products: Vec<M>,
    hyper: Hyper<M, CpuVector>,
    taps: CpuVector,
    delta: DeltaWeights<CpuVector>,
    attention: AttentionWeights<CpuVector>,
    shared: Shared<M>,
    ple: PleWeights<CpuVector>,
    router: M,
    bank: RamBank,
}

impl Net {
    fn new(device: &mut CpuDevice) -> Self {
        let (a, d, wide) = (attention(), delta(), C * H);
        let m = &mut Maker { device, random: Random(42) };
        let inner = tiles(Bits::B4, Group::G64);
        let full = RecordLayout::new(H, WIDTH, inner, tiles(Bits::B3, Group::G32)).unwrap();
        let two = tiles(Bits::B2, Group::G32);
        let low = RecordLayout::new(H, WIDTH, two, two).unwrap();
        Self {
            products: common::encodings().iter().map(|e| m.matrix(H, H, *e)).collect(),
            hyper: Hyper {
                count: C,
                norm: m.vector(wide),
                down: m.matrix(64, wide, Q8),
                up: m.matrix(wide, 64, Q8),
                inject: Some(m.matrix(C, wide, Q8)),
            },
            taps: m.vector(d.channels() * 4),
            delta: DeltaWeights {
                a_log: m.vector(d.value_heads),
                dt_bias: m.vector(d.value_heads),
                norm: m.vector(d.value_dim),
                spec: d,
            },
            attention: AttentionWeights {
                q_norm: m.vector(a.head_dim),
                k_norm: m.vector(a.head_dim),
                index_q_norm: m.vector(a.index_dim),
                index_k_norm: m.vector(a.index_dim),
                spec: a,
            },
            shared: Shared {
                gate_proj: m.matrix(WIDTH, H, Q8),
                up_proj: m.matrix(WIDTH, H, Q8),
                down_proj: m.matrix(H, WIDTH, Q8),
                gate: m.matrix(1, H, Encoding::Bf16),
            },
            ple: PleWeights {
                count: C,
                norm_key: m.vector(wide),
                norm_query: m.vector(wide),
                norm_conv: m.vector(wide),
                taps: m.vector(wide * 4),
                kernel: 4,
                dilation: 3,
            },
            router: m.matrix(EXPERTS, H, Encoding::F32),
            bank: m.bank(&Layouts { full, low: Some(low) }),
        }
    }
}

fn input(seed: u64, rows: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    rows.flat_map(|row| Random(seed * 7919 + row as u64 * 104_729 + 1).normals(width)).collect()
}

/// A device with everything on it.
struct Machine {
    device: CpuDevice,
    acts: Acts,
    lanes: Lanes,
    net: Net,
}

impl Machine {
    fn new(options: CpuOptions, rows: usize) -> Self {
        let mut device = CpuDevice::new(options).unwrap();
        let (acts, lanes) = (Acts::new(&mut device), Lanes::new(&mut device));
        let net = Net::new(&mut device);
        device.allocate(Limits { rows, slots: 2, pages: PAGES, page_rows: PAGE_ROWS }).unwrap();
        device.reset_slot(SlotId(1)).unwrap();
        Self { device, acts, lanes, net }
    }

    /// Runs every verb on some rows; returns the results of the first `kept`, by row.
    fn pass(&mut self, here: std::ops::Range<usize>, kept: usize, keep: Keep) -> Vec<Pieces> {
        let Self { device, acts: a, lanes, net } = self;
        let pages: Vec<_> = (0..PAGES as u32).rev().map(PageId).collect();
        let mut batch = Batch::default();
        batch.push(SlotId(1), here.start as u32, &vec![0; here.len()], &pages, keep);
        device.begin(&batch).unwrap();
        for (seed, act) in a.inputs() {
            device.put(act, &input(seed, here.clone(), act.width as usize)).unwrap();
        }
        let mut rows: Vec<Pieces> = vec![Vec::new(); kept];
        let mut note = |device: &mut CpuDevice, act: Act| {
            let values = device.fetch(act).unwrap();
            for (row, values) in rows.iter_mut().zip(values.chunks(act.width as usize)) {
                row.push(values.to_vec());
            }
        };
        for w in &net.products {
            device.linear(w, a.x, a.y).unwrap();
            note(device, a.y);
        }
        let (d, w) = (a.delta, &net.attention);
        device.conv_silu(lanes.conv, &net.taps, 4, a.qkv_raw, d.qkv).unwrap();
        device.delta(lanes.delta, &net.delta, d).unwrap();
        device.kv_append(lanes.kv, lanes.raw, w, a.k, a.v, a.index).unwrap();
        device.select(lanes.kv, w, a.index, a.picks).unwrap();
        device.attend(lanes.kv, w, a.q, a.picks, a.out).unwrap();
        device.ngram_add(lanes.ple, &net.ple, a.key, a.x, a.stream).unwrap();
        device.hyper_read(&net.hyper, a.stream, a.y, a.gate).unwrap();
        let routes = device.route(&net.router, K, TopkNorm::Sum, a.y).unwrap();
        let mut experts = routes.distinct();
        experts.rotate_left(here.start % 3);
        for experts in experts.chunks(5 + here.start % 20) {
            let slots = experts.iter().map(|e| Slot(*e)).collect();
            let grades = experts.iter().map(|e| grade(*e)).collect();
            let wave = Wave { layer: 0, experts: experts.to_vec(), slots, grades };
            device.experts(&net.bank, &wave, &routes, a.y, a.parts).unwrap();
        }
        device.shared_expert(&net.shared, a.y, a.z).unwrap();
        device.combine(&routes, a.parts, a.z, a.x).unwrap();
        device.hyper_write(a.x, a.gate, a.stream).unwrap();
        for act in [d.qkv, d.out, a.out, a.y, a.gate, a.x, a.stream] {
            note(device, act);
        }
        rows
    }
}

/// Results of one row, verb by verb.
type Pieces = Vec<Vec<f32>>;

/// Everything a device computes for a sequence of `rows` rows.
fn everything(options: CpuOptions, rows: usize, cutting: Cutting) -> Vec<Pieces> {
    let mut machine = Machine::new(options, rows);
    let mut all = Vec::new();
    while all.len() < rows {
        let start = all.len();
        let left = rows - start;
        let (count, kept, keep) = match cutting {
            Cutting::Whole => (rows, rows, Keep::All),
            Cutting::Chunks(n) => (n.min(left), n.min(left), Keep::All),
            Cutting::Drafts(n) => (8.min(left), n.min(left), Keep::Tentative),
        };
        all.extend(machine.pass(start..start + count, kept, keep));
        if keep == Keep::Tentative {
            machine.device.settle(SlotId(1), kept).unwrap();
        }
    }
    all
}

fn options(isa: Isa, threads: usize, kv: KvPrecision) -> CpuOptions {
    CpuOptions { threads, isa, kv, eps: 1e-6 }
}

fn equal(a: &[Vec<Vec<f32>>], b: &[Vec<Vec<f32>>], what: &str) {
    assert_eq!(a.len(), b.len());
    for (row, (a, b)) in a.iter().zip(b).enumerate() {
        for (piece, (a, b)) in a.iter().zip(b).enumerate() {
            assert!(same(a, b), "{what}: row {row}, result {piece}");
            assert!(a.iter().all(|v| v.is_finite()), "{what}: row {row}, result {piece}");
        }
    }
}

const ROWS: usize = 150;

#[test]
fn instruction_sets_threads_and_cuttings_share_one_set_of_bits() {
    for kv in [KvPrecision::F16, KvPrecision::Q8] {
        let expected = everything(options(Isa::Portable, 1, kv), ROWS, Cutting::Chunks(1));
        for isa in Isa::available() {
            for threads in [1, 2, 3] {
                let cuttings = [Cutting::Whole, Cutting::Chunks(37), Cutting::Drafts(threads + 1)];
                for cutting in cuttings {
                    let what = format!("{}, {threads} threads, {cutting:?}, {kv:?}", isa.name());
                    equal(&everything(options(isa, threads, kv), ROWS, cutting), &expected, &what);
                }
            }
        }
    }
}

#[test]
fn settling_any_number_of_rows_is_running_only_those() {
    for kv in [KvPrecision::F16, KvPrecision::F32, KvPrecision::Q8] {
        let isa = Isa::detect();
        let expected = everything(options(isa, 1, kv), 40, Cutting::Whole);
        for n in 1..=8 {
            let found = everything(options(isa, 2, kv), 40, Cutting::Drafts(n));
            equal(&found, &expected, &format!("{n} of 8 rows, {kv:?}"));
        }
    }
}
