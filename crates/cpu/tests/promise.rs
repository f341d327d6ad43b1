//! The determinism promise across instruction sets and threads: one set of bits.
//!
//! The suite holds one device against itself; here devices are held against each other.

mod common;

use cherenkov_cpu::{CpuDevice, CpuOptions, CpuVector, Isa, KvPrecision, Planes};
use cherenkov_experts::{Bank, Slot, Wave};
use cherenkov_format::qwen4_exp::config::{Attention, Delta, Gate};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::{Bits, Encoding, Group};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaWeights, Hyper, PleWeights, Shared, TopkNorm,
};
use cherenkov_model::{Act, Batch, Device, Keep, Limits, PageId, SlotId};
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

/// Runs `rows` rows of every verb; returns all results by row.
struct Machine {
    device: CpuDevice,
    random: Random,
    results: Vec<Vec<f32>>,
}

impl Machine {
    fn vector(&mut self, n: usize) -> CpuVector {
        let values: Vec<f32> = self.random.normals(n).iter().map(|v| 1.0 + 0.2 * v).collect();
        self.device.vector(&values).unwrap()
    }

    fn matrix(
        &mut self,
        rows: usize,
        cols: usize,
        encoding: Encoding,
    ) -> <CpuDevice as Device>::Matrix {
        let m = self.random.matrix(rows, cols, encoding);
        self.device.matrix(m).unwrap()
    }

    fn note(&mut self, act: Act, kept: usize) {
        let values = self.device.fetch(act).unwrap();
        let width = act.width as usize;
        self.results.extend(values.chunks(width).take(kept).map(<[f32]>::to_vec));
    }
}

fn input(seed: u64, rows: std::ops::Range<usize>, width: usize) -> Vec<f32> {
    rows.flat_map(|row| Random(seed * 7919 + row as u64 * 104_729 + 1).normals(width)).collect()
}

/// Everything a machine computes for a sequence of `rows` rows, row by row and verb by verb.
#[allow(clippy::too_many_lines)]
fn everything(options: CpuOptions, rows: usize, cutting: Cutting) -> Vec<Vec<Vec<f32>>> {
    let mut m = Machine {
        device: CpuDevice::new(options).unwrap(),
        random: Random(42),
        results: Vec::new(),
    };
    let (a, d, wide) = (attention(), delta(), C * H);
    let act = |m: &mut Machine, width| m.device.act(width);
    let (x, y, z, stream, gate) =
        (act(&mut m, H), act(&mut m, H), act(&mut m, H), act(&mut m, wide), act(&mut m, C));
    let (qkv_raw, qkv) = (act(&mut m, d.channels()), act(&mut m, d.channels()));
    let (dz, da, db) =
        (act(&mut m, d.value_width()), act(&mut m, d.value_heads), act(&mut m, d.value_heads));
    let dout = act(&mut m, d.value_width());
    let (q, k) = (act(&mut m, a.heads * a.head_dim * 2), act(&mut m, a.kv_heads * a.head_dim));
    let (v, index) = (act(&mut m, a.kv_heads * a.head_dim), act(&mut m, a.index_width()));
    let aout = act(&mut m, a.heads * a.head_dim);
    let (parts, key) = (act(&mut m, K * H), act(&mut m, wide));
    let picks = m.device.picks(a.budget_blocks());
    let (conv_lane, delta_lane) = (m.device.row_lane(d.channels(), 3), m.device.delta_lane(&d));
    let (kv_lane, raw_lane) = (m.device.kv_lane(&a), m.device.row_lane(a.index_dim, a.index_ratio));
    let ple_lane = m.device.row_lane(wide, 9);
    let products: Vec<_> = common::encodings().iter().map(|e| m.matrix(H, H, *e)).collect();
    let hyper = Hyper {
        count: C,
        norm: m.vector(wide),
        down: m.matrix(64, wide, Q8),
        up: m.matrix(wide, 64, Q8),
        inject: Some(m.matrix(C, wide, Q8)),
    };
    let (taps, ple_taps) = (m.vector(d.channels() * 4), m.vector(wide * 4));
    let delta_w = DeltaWeights {
        a_log: m.vector(d.value_heads),
        dt_bias: m.vector(d.value_heads),
        norm: m.vector(d.value_dim),
        spec: d.clone(),
    };
    let attention_w = AttentionWeights {
        q_norm: m.vector(a.head_dim),
        k_norm: m.vector(a.head_dim),
        index_q_norm: m.vector(a.index_dim),
        index_k_norm: m.vector(a.index_dim),
        spec: a.clone(),
    };
    let shared = Shared {
        gate_proj: m.matrix(WIDTH, H, Q8),
        up_proj: m.matrix(WIDTH, H, Q8),
        down_proj: m.matrix(H, WIDTH, Q8),
        gate: m.matrix(1, H, Encoding::Bf16),
    };
    let ple = PleWeights {
        count: C,
        norm_key: m.vector(wide),
        norm_query: m.vector(wide),
        norm_conv: m.vector(wide),
        taps: ple_taps,
        kernel: 4,
        dilation: 3,
    };
    let router = m.matrix(EXPERTS, H, Encoding::F32);
    let inner = tiles(Bits::B4, Group::G64);
    let layout = RecordLayout::new(H, WIDTH, inner, tiles(Bits::B3, Group::G32)).unwrap();
    let mut bank = m.device.bank(EXPERTS, &layout).unwrap();
    for slot in 0..EXPERTS {
        let mut landing = bank.land(Slot(slot as u32));
        for which in [Projection::Gate, Projection::Up, Projection::Down] {
            let (rows, cols, encoding) = layout.shape(which);
            let (at, len) = layout.span(which);
            let matrix = m.random.matrix(rows, cols, encoding);
            landing.as_mut()[at..at + len].copy_from_slice(matrix.view().bytes());
        }
        bank.publish(Slot(slot as u32), landing);
    }
    m.device.allocate(Limits { rows, slots: 2, pages: PAGES, page_rows: PAGE_ROWS }).unwrap();
    let slot = SlotId(1);
    m.device.reset_slot(slot).unwrap();
    let pages: Vec<_> = (0..PAGES as u32).rev().map(PageId).collect();
    let mut by_row: Vec<Vec<Vec<f32>>> = Vec::new();
    let mut start = 0;
    while start < rows {
        let (count, kept, keep) = match cutting {
            Cutting::Whole => (rows, rows, Keep::All),
            Cutting::Chunks(n) => (n.min(rows - start), n.min(rows - start), Keep::All),
            Cutting::Drafts(n) => (8.min(rows - start), n.min(rows - start), Keep::Tentative),
        };
        let here = start..start + count;
        let mut batch = Batch::default();
        batch.push(slot, start as u32, &vec![0; count], &pages, keep);
        let dev = &mut m.device;
        dev.begin(&batch).unwrap();
        for (seed, act) in [
            (1, x),
            (2, stream),
            (3, qkv_raw),
            (4, dz),
            (5, da),
            (6, db),
            (7, q),
            (8, k),
            (9, v),
            (10, index),
            (11, key),
        ] {
            dev.put(act, &input(seed, here.clone(), act.width as usize)).unwrap();
        }
        let first = m.results.len();
        for w in &products {
            m.device.linear(w, x, y).unwrap();
            m.note(y, kept);
        }
        let dev = &mut m.device;
        dev.conv_silu(conv_lane, &taps, 4, qkv_raw, qkv).unwrap();
        dev.delta(delta_lane, &delta_w, DeltaIo { qkv, z: dz, a: da, b: db, out: dout }).unwrap();
        dev.kv_append(kv_lane, raw_lane, &attention_w, k, v, index).unwrap();
        dev.select(kv_lane, &attention_w, index, picks).unwrap();
        dev.attend(kv_lane, &attention_w, q, picks, aout).unwrap();
        dev.ngram_add(ple_lane, &ple, key, x, stream).unwrap();
        dev.hyper_read(&hyper, stream, y, gate).unwrap();
        let routes = dev.route(&router, K, TopkNorm::Sum, y).unwrap();
        let mut waves = routes.distinct();
        waves.rotate_left(start % 3);
        for experts in waves.chunks(5 + start % 20) {
            let slots = experts.iter().map(|e| Slot(*e)).collect();
            let wave = Wave { layer: 0, experts: experts.to_vec(), slots };
            dev.experts(&bank, &wave, &routes, y, parts).unwrap();
        }
        dev.shared_expert(&shared, y, z).unwrap();
        dev.combine(&routes, parts, z, x).unwrap();
        dev.hyper_write(x, gate, stream).unwrap();
        for act in [qkv, dout, aout, y, gate, x, stream] {
            m.note(act, kept);
        }
        if keep == Keep::Tentative {
            m.device.settle(slot, kept).unwrap();
        }
        let pieces = m.results.split_off(first);
        for row in 0..kept {
            by_row.push(pieces.iter().skip(row).step_by(kept).cloned().collect());
        }
        start += kept;
    }
    by_row
}

fn options(isa: Isa, threads: usize, kv: KvPrecision) -> CpuOptions {
    CpuOptions { threads, isa, kv, planes_of_8_bits: Planes::Two, eps: 1e-6 }
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
    let (portable, kv) = (Isa::Portable, KvPrecision::F16);
    let expected = everything(options(portable, 1, kv), ROWS, Cutting::Chunks(1));
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let cuttings = [Cutting::Whole, Cutting::Chunks(37), Cutting::Drafts(threads + 1)];
            for cutting in cuttings {
                let what = format!("{}, {threads} threads, {cutting:?}", isa.name());
                equal(&everything(options(isa, threads, kv), ROWS, cutting), &expected, &what);
            }
        }
    }
}

#[test]
fn settling_any_number_of_rows_is_running_only_those() {
    for kv in [KvPrecision::F16, KvPrecision::F32] {
        let isa = Isa::detect();
        let expected = everything(options(isa, 1, kv), 40, Cutting::Whole);
        for n in 1..=8 {
            let found = everything(options(isa, 2, kv), 40, Cutting::Drafts(n));
            equal(&found, &expected, &format!("{n} of 8 rows, {kv:?}"));
        }
    }
}
