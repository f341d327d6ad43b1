//! Layers of the official geometry, verb by verb and as a whole token.

use crate::weights::{self, bits, matrix};
use crate::{report, time};
use cherenkov_experts::{Bank, Grade, Slot, Wave};
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_format::record::{Projection, RecordLayout};
use cherenkov_format::synth::Preset;
use cherenkov_format::{Bits, Encoding};
use cherenkov_gpu::{GpuBank, GpuDevice, GpuMatrix, GpuVector, MoeActs, MoeWeights, Residency};
use cherenkov_model::device::{
    AttentionWeights, DeltaIo, DeltaLane, DeltaWeights, Device, Hyper, KvLane, RowLane, Shared,
    TopkNorm,
};
use cherenkov_model::{Act, Batch, Keep, Limits, PageId, Picks, SlotId};

/// Sizes of a model.
pub struct Shape {
    h: usize,
    streams: usize,
    rank: usize,
    vocab: usize,
    experts: usize,
    top_k: usize,
    width: usize,
    layers: usize,
    /// Rows already in the sequence.
    context: usize,
    attention: Attention,
    delta: Delta,
}

impl Shape {
    /// Qwen3.8-Flash-Next.
    pub fn official() -> Self {
        let config = Preset::FlashNext.config();
        Self {
            h: config.hidden,
            streams: config.hyper.count,
            rank: config.hyper.rank,
            vocab: config.vocab,
            experts: config.moe.experts,
            top_k: config.moe.top_k,
            width: config.moe.width,
            layers: config.layers.len(),
            context: 16_384,
            attention: config.attention,
            delta: config.delta,
        }
    }

    /// Small enough for a software adapter.
    pub fn small() -> Self {
        let mut s =
            Self { h: 256, rank: 64, vocab: 2048, experts: 16, top_k: 4, ..Self::official() };
        (s.width, s.layers, s.context) = (64, 4, 256);
        (s.attention.heads, s.attention.head_dim, s.attention.index_budget) = (4, 64, 64);
        (s.attention.index_dim, s.delta.key_heads, s.delta.value_heads) = (64, 2, 4);
        s
    }
}

/// A mixture of experts and the hyper-connections of a layer.
struct Moe {
    hyper: [Hyper<GpuMatrix, GpuVector>; 2],
    router: GpuMatrix,
    shared: Shared<GpuMatrix>,
}

struct DeltaLayer {
    /// qkv, z, a, b, out.
    w: [GpuMatrix; 5],
    taps: GpuVector,
    weights: DeltaWeights<GpuVector>,
    lane: DeltaLane,
    history: RowLane,
}

struct AttentionLayer {
    /// q, k, v, index, o.
    w: [GpuMatrix; 5],
    weights: AttentionWeights<GpuVector>,
    lane: KvLane,
    raw: RowLane,
}

/// Activations by name.
struct Acts {
    stream: Act,
    x: Act,
    y: Act,
    gate: Act,
    /// raw qkv, qkv, z, a, b, out.
    delta: [Act; 6],
    /// q, k, v, index, out.
    attention: [Act; 5],
    picks: Picks,
    parts: Act,
    shared: Act,
}

/// Everything that is measured.
pub struct Layer {
    shape: Sizes,
    moe: Vec<Moe>,
    deltas: Vec<DeltaLayer>,
    attention: AttentionLayer,
    head: GpuMatrix,
    bank: GpuBank,
    acts: Acts,
}

/// Sizes kept for the runs.
struct Sizes {
    layers: usize,
    top_k: usize,
    context: usize,
    h: usize,
    streams: usize,
    rank: usize,
}

fn bytes(w: &[usize], encoding: Encoding) -> usize {
    encoding.byte_len(w[0], w[1]).unwrap_or(0)
}

const EIGHT: Bits = Bits::B8;
const PAGE_ROWS: usize = 64;

fn load(d: &mut GpuDevice, rows: usize, cols: usize, seed: u64) -> GpuMatrix {
    d.matrix(matrix(rows, cols, bits(EIGHT), seed)).expect("room")
}

fn ones(d: &mut GpuDevice, n: usize) -> GpuVector {
    d.vector(&vec![1.0; n]).expect("room")
}

fn hyper(d: &mut GpuDevice, s: &Shape, seed: u64) -> Hyper<GpuMatrix, GpuVector> {
    let wide = s.h * s.streams;
    Hyper {
        count: s.streams,
        norm: ones(d, wide),
        down: load(d, s.rank, wide, seed),
        up: load(d, wide, s.rank, seed + 1),
        inject: Some(load(d, s.streams, wide, seed + 2)),
    }
}

fn moe(d: &mut GpuDevice, s: &Shape, seed: u64) -> Moe {
    Moe {
        hyper: [hyper(d, s, seed), hyper(d, s, seed + 10)],
        router: d.matrix(matrix(s.experts, s.h, Encoding::Bf16, seed + 20)).expect("room"),
        shared: Shared {
            gate_proj: load(d, s.width, s.h, seed + 21),
            up_proj: load(d, s.width, s.h, seed + 22),
            down_proj: load(d, s.h, s.width, seed + 23),
            gate: load(d, 1, s.h, seed + 24),
        },
    }
}

fn delta(d: &mut GpuDevice, s: &Shape, seed: u64) -> DeltaLayer {
    let spec = s.delta.clone();
    let (channels, values, heads) = (spec.channels(), spec.value_width(), spec.value_heads);
    DeltaLayer {
        w: [
            load(d, channels, s.h, seed),
            load(d, values, s.h, seed + 1),
            load(d, heads, s.h, seed + 2),
            load(d, heads, s.h, seed + 3),
            load(d, s.h, values, seed + 4),
        ],
        taps: d.vector(&vec![0.25; channels * spec.conv_kernel]).expect("room"),
        lane: d.delta_lane(&spec),
        history: d.row_lane(channels, spec.conv_kernel - 1),
        weights: DeltaWeights {
            a_log: ones(d, heads),
            dt_bias: ones(d, heads),
            norm: ones(d, spec.value_dim),
            spec,
        },
    }
}

fn attention(d: &mut GpuDevice, s: &Shape, seed: u64) -> AttentionLayer {
    let spec = s.attention.clone();
    let kv = spec.kv_heads * spec.head_dim;
    AttentionLayer {
        w: [
            load(d, 2 * spec.heads * spec.head_dim, s.h, seed),
            load(d, kv, s.h, seed + 1),
            load(d, kv, s.h, seed + 2),
            load(d, spec.index_width(), s.h, seed + 3),
            load(d, s.h, spec.heads * spec.head_dim, seed + 4),
        ],
        lane: d.kv_lane(&spec),
        raw: d.row_lane(spec.index_dim, spec.index_ratio),
        weights: AttentionWeights {
            q_norm: ones(d, spec.head_dim),
            k_norm: ones(d, spec.head_dim),
            index_q_norm: ones(d, spec.index_dim),
            index_k_norm: ones(d, spec.index_dim),
            spec,
        },
    }
}

fn acts(d: &mut GpuDevice, s: &Shape) -> Acts {
    let (a, kv) = (&s.attention, s.attention.kv_heads * s.attention.head_dim);
    let (channels, values, heads) =
        (s.delta.channels(), s.delta.value_width(), s.delta.value_heads);
    Acts {
        stream: d.act(s.h * s.streams),
        x: d.act(s.h),
        y: d.act(s.h),
        gate: d.act(s.streams),
        delta: [channels, channels, values, heads, heads, values].map(|w| d.act(w)),
        attention: [2 * a.heads * a.head_dim, kv, kv, a.index_width(), a.heads * a.head_dim]
            .map(|w| d.act(w)),
        picks: d.picks(a.budget_blocks()),
        parts: d.act(s.top_k * s.h),
        shared: d.act(s.h),
    }
}

fn bank(d: &mut GpuDevice, s: &Shape) -> GpuBank {
    let four = bits(Bits::B4);
    let layout = RecordLayout::new(s.h, s.width, four, four).expect("the widths fit");
    let mut bank = d.bank(s.experts, &layout.into()).expect("room");
    for slot in 0..s.experts {
        let mut landing = bank.land(Slot(slot as u32));
        for which in [Projection::Gate, Projection::Up, Projection::Down] {
            let (at, len) = layout.span(which);
            weights::fill(&mut landing.as_mut()[at..at + len], four, slot as u64 + 1);
        }
        bank.publish(Slot(slot as u32), landing);
    }
    bank
}

impl Layer {
    /// Loads four layers' worth of weights (the token goes round them) and one of experts.
    pub fn load(d: &mut GpuDevice, s: &Shape, rows: usize) -> Self {
        let layer = Self {
            shape: Sizes {
                layers: s.layers,
                top_k: s.top_k,
                context: s.context,
                h: s.h,
                streams: s.streams,
                rank: s.rank,
            },
            moe: (0..4).map(|i| moe(d, s, 100 * i + 1)).collect(),
            deltas: (0..3).map(|i| delta(d, s, 1000 + 100 * i)).collect(),
            attention: attention(d, s, 2000),
            head: load(d, s.vocab, s.h, 3000),
            bank: bank(d, s),
            acts: acts(d, s),
        };
        let pages = (s.context + rows).div_ceil(PAGE_ROWS) + 1;
        d.allocate(Limits { rows, slots: 1, pages, page_rows: PAGE_ROWS }).expect("room");
        layer
    }

    fn begin(&self, d: &mut GpuDevice, rows: usize) {
        let pages = (self.shape.context + rows).div_ceil(PAGE_ROWS);
        let pages: Vec<PageId> = (0..pages as u32).map(PageId).collect();
        let mut batch = Batch::default();
        batch.push(SlotId(0), self.shape.context as u32, &vec![1; rows], &pages, Keep::All);
        d.begin(&batch).expect("begins");
        let wide = self.shape.h * self.shape.streams;
        let values = |n: usize| (0..n).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect();
        let stream: Vec<f32> = values(rows * wide);
        d.put(self.acts.stream, &stream).expect("puts");
        let x: Vec<f32> = values(rows * self.shape.h);
        d.put(self.acts.x, &x).expect("puts");
    }

    fn mix_delta(&self, d: &mut GpuDevice, i: usize) {
        let (l, a) = (&self.deltas[i], &self.acts);
        let [raw, qkv, z, decay, beta, out] = a.delta;
        for (w, to) in l.w.iter().zip([raw, z, decay, beta]) {
            d.linear(w, a.x, to).expect("linear");
        }
        let kernel = l.weights.spec.conv_kernel;
        d.conv_silu(l.history, &l.taps, kernel, raw, qkv).expect("conv");
        d.delta(l.lane, &l.weights, DeltaIo { qkv, z, a: decay, b: beta, out }).expect("delta");
        d.linear(&l.w[4], out, a.y).expect("linear");
    }

    fn mix_attention(&self, d: &mut GpuDevice) {
        let (l, a) = (&self.attention, &self.acts);
        let [q, k, v, index, out] = a.attention;
        for (w, to) in l.w.iter().zip([q, k, v, index]) {
            d.linear(w, a.x, to).expect("linear");
        }
        d.kv_append(l.lane, l.raw, &l.weights, k, v, index).expect("append");
        d.select(l.lane, &l.weights, index, a.picks).expect("select");
        d.attend(l.lane, &l.weights, q, a.picks, out).expect("attend");
        d.linear(&l.w[4], out, a.y).expect("linear");
    }

    fn moe(&self, d: &mut GpuDevice, i: usize) {
        let (m, a) = (&self.moe[i], &self.acts);
        let routes = d.route(&m.router, self.shape.top_k, TopkNorm::Sum, a.x).expect("route");
        let experts = routes.distinct();
        let slots = experts.iter().map(|&e| Slot(e)).collect();
        let grades = vec![Grade::Full; experts.len()];
        let wave = Wave { layer: 0, experts, slots, grades };
        d.experts(&self.bank, &wave, &routes, a.x, a.parts).expect("experts");
        d.shared_expert(&m.shared, a.x, a.shared).expect("shared");
        d.combine(&routes, a.parts, a.shared, a.y).expect("combine");
    }

    fn resident(&self, d: &mut GpuDevice, i: usize, residency: &Residency) {
        let (m, a) = (&self.moe[i], &self.acts);
        let (router, shared) = (&m.router, &m.shared);
        let w = MoeWeights { router, k: self.shape.top_k, norm: TopkNorm::Sum, shared };
        let acts = MoeActs { x: a.x, parts: a.parts, shared: a.shared, out: a.y };
        d.resident_moe(&self.bank, residency, w, acts).expect("experts");
    }

    /// One pass through all layers and the head: with a host stop per layer, and without.
    pub fn token(&mut self, d: &mut GpuDevice, rows: usize, calls: usize) {
        let slots: Vec<Slot> = (0..self.bank.slots() as u32).map(Slot).collect();
        let residency = d.residency(&self.bank, &slots).expect("room");
        self.pass(d, rows, calls, None);
        self.pass(d, rows, calls, Some(&residency));
    }

    fn pass(&self, d: &mut GpuDevice, rows: usize, calls: usize, residency: Option<&Residency>) {
        self.begin(d, rows);
        let (a, last) = (&self.acts, [rows as u32 - 1]);
        let micros = time(
            d,
            calls,
            |_| {},
            |d| {
                for layer in 0..self.shape.layers {
                    let i = layer % 4;
                    let m = &self.moe[i];
                    d.hyper_read(&m.hyper[0], a.stream, a.x, a.gate).expect("read");
                    if i == 3 {
                        self.mix_attention(d)
                    } else {
                        self.mix_delta(d, i)
                    }
                    d.hyper_turn(a.y, &m.hyper[1], a.stream, a.x, a.gate).expect("turn");
                    match residency {
                        None => self.moe(d, i),
                        Some(residency) => self.resident(d, i, residency),
                    }
                    d.hyper_write(a.y, a.gate, a.stream).expect("write");
                }
                d.hyper_read(&self.moe[0].hyper[0], a.stream, a.x, a.gate).expect("read");
                d.logits(&self.head, a.x, &last).expect("logits");
            },
        );
        let what = if residency.is_some() { "whole pass, resident" } else { "whole pass" };
        report(what, rows, micros, 0);
    }

    /// Verb by verb.
    pub fn verbs(&mut self, d: &mut GpuDevice, rows: usize, calls: usize) {
        self.begin(d, rows);
        let (a, m) = (&self.acts, &self.moe[0]);
        let wait = |d: &mut GpuDevice| drop(d.fetch(a.gate).expect("fetch"));
        let eight = bits(EIGHT);
        let mut show = |what: &str, bytes: usize, call: &mut dyn FnMut(&mut GpuDevice)| {
            let micros = time(d, calls, wait, call);
            report(what, rows, micros, bytes);
        };
        let (h, wide) = (self.shape.h, self.shape.h * self.shape.streams);
        let l = &self.deltas[0];
        let channels = l.weights.spec.channels();
        let values = l.weights.spec.value_width();
        show(&format!("linear {channels} x {h}, 8 bits"), bytes(&[channels, h], eight), &mut |d| {
            d.linear(&l.w[0], a.x, a.delta[0]).expect("linear");
        });
        show(&format!("linear {h} x {values}, 8 bits"), bytes(&[h, values], eight), &mut |d| {
            d.linear(&l.w[4], a.delta[5], a.y).expect("linear");
        });
        let hyper = 2 * bytes(&[self.shape.rank, wide], eight);
        show("hyper_read", hyper, &mut |d| {
            d.hyper_read(&m.hyper[0], a.stream, a.x, a.gate).expect("read");
        });
        show("hyper_turn", hyper, &mut |d| {
            d.hyper_turn(a.y, &m.hyper[1], a.stream, a.x, a.gate).expect("turn");
        });
        show("DeltaNet", 0, &mut |d| self.mix_delta(d, 0));
        show("attention", 0, &mut |d| self.mix_attention(d));
        show("route (waits)", 0, &mut |d| {
            d.route(&m.router, self.shape.top_k, TopkNorm::Sum, a.x).expect("route");
        });
        show("route, experts, shared, combine (waits)", 0, &mut |d| self.moe(d, 0));
        show("shared_expert", 0, &mut |d| {
            d.shared_expert(&m.shared, a.x, a.shared).expect("shared");
        });
    }
}
