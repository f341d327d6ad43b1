//! Hyper-connections, convolutions and n-gram embeddings on the device.
//!
//! Owns: the blocks of rows that wide intermediate results are computed in. Never: kernels.
//! Invariant: a block of rows gives the same bits as all rows at once.

use super::engine::Engine;
use super::state::RowRing;
use super::weights::{CpuMatrix, CpuVector};
use crate::kernels::conv::{ConvSilu, ConvSpec};
use crate::kernels::lanes::dot;
use crate::kernels::math::sigmoid;
use crate::kernels::norm::{Add, Axpy, GatedMean, Norm, Scale, SigmoidOf, SiluOf, rms};
use crate::memory::Aligned;
use crate::simd::{Op, Simd};
use crate::threads::Cut;
use cherenkov_model::device::{Hyper, PleWeights};
use cherenkov_model::{Batch, Run};

/// Rows of a block.
pub(crate) const BLOCK_ROWS: usize = 512;

/// Hyper-connection read of all rows; `gate` is left alone without injection weights.
pub fn hyper_read(
    engine: &mut Engine,
    scratch: &mut [Aligned<f32>; 4],
    (w, eps): (&Hyper<CpuMatrix, CpuVector>, f32),
    stream: &[f32],
    out: &mut [f32],
    gate: &mut [f32],
) {
    let (c, wide) = (w.count, w.norm.len());
    let h = wide / c;
    for (i, out) in out.chunks_mut(BLOCK_ROWS * h).enumerate() {
        let rows = out.len() / h;
        let stream = &stream[i * BLOCK_ROWS * wide..][..rows * wide];
        let gate =
            if w.inject.is_some() { &mut gate[i * BLOCK_ROWS * c..][..rows * c] } else { &mut [] };
        hyper_block(engine, scratch, (w, eps), stream, out, gate);
    }
}

fn hyper_block(
    engine: &mut Engine,
    [normed, low, up, _]: &mut [Aligned<f32>; 4],
    (w, eps): (&Hyper<CpuMatrix, CpuVector>, f32),
    stream: &[f32],
    out: &mut [f32],
    gate: &mut [f32],
) {
    let (c, wide, rank) = (w.count, w.norm.len(), w.down.view().rows());
    let (h, rows, arch) = (wide / c, stream.len() / wide, engine.arch);
    let (normed, low, up) =
        (normed.reserve(rows * wide), low.reserve(rows * rank), up.reserve(rows * wide));
    norm(engine, (&w.norm, h, eps), stream, normed);
    // The stamp lets the second product use the first one's quantised copy.
    let stamp = engine.fresh_stamp();
    engine.linear(w.down.view(), normed, Some(stamp), low);
    if let Some(inject) = &w.inject {
        engine.linear(inject.view(), normed, Some(stamp), gate);
        arch.run(SigmoidOf { x: gate, divisor: c as f32, factor: 2.0 });
    }
    arch.run(SiluOf { x: low, divisor: c as f32 });
    engine.linear(w.up.view(), low, None, up);
    if rows == 1 {
        let parts = engine.parts(wide / 2);
        let cut = Cut::slice(out, 16, parts);
        let (gates, normed) = (&*up, &*normed);
        engine.run(parts, &|i| {
            let mut mine = cut.take(i);
            let start = mine.start();
            arch.run(GatedMean { gates, normed, width: h, start, out: mine.row(0) });
        });
        return;
    }
    engine.rows(rows * wide / 2, (out, h), (&mut [], 1), |first, out, _| {
        for (r, out) in out.chunks_exact_mut(h).enumerate() {
            let at = (first + r) * wide;
            let (gates, normed) = (&up[at..at + wide], &normed[at..at + wide]);
            arch.run(GatedMean { gates, normed, width: h, start: 0, out });
        }
    });
}

/// RMS norm of slices of `width` values.
pub fn norm(
    engine: &mut Engine,
    (w, width, eps): (&[f32], usize, f32),
    x: &[f32],
    out: &mut [f32],
) {
    let arch = engine.arch;
    engine.rows(out.len() / 8, (out, width), (&mut [], 1), |first, out, _| {
        let x = &x[first * width..][..out.len()];
        arch.run(Norm { x, w, width, first, eps, out });
    });
}

/// `stream_c += gate_c * y` for all rows.
pub fn hyper_write(engine: &mut Engine, y: &[f32], gate: &[f32], (stream, h): (&mut [f32], usize)) {
    let arch = engine.arch;
    let streams = stream.len() / h;
    let count = streams * h / y.len().max(1);
    engine.rows(stream.len() / 8, (stream, h), (&mut [], 1), |first, stream, _| {
        for (i, out) in stream.chunks_exact_mut(h).enumerate() {
            let slice = first + i;
            let x = &y[slice / count * h..][..h];
            arch.run(Axpy { factor: gate[slice], x, out });
        }
    });
}

/// `stream_c += x` for all rows.
pub fn add_repeat(engine: &mut Engine, (x, h): (&[f32], usize), stream: &mut [f32]) {
    let arch = engine.arch;
    let count = stream.len() / x.len().max(1);
    engine.rows(stream.len() / 8, (stream, h), (&mut [], 1), |first, stream, _| {
        for (i, out) in stream.chunks_exact_mut(h).enumerate() {
            arch.run(Add { x: &x[(first + i) / count * h..][..h], out });
        }
    });
}

/// One convolution: where its rows are remembered and its taps `[kernel, width]`.
pub struct Conv<'a> {
    pub ring: &'a mut RowRing,
    pub taps: &'a [f32],
    pub kernel: usize,
    pub dilation: usize,
}

impl Conv<'_> {
    /// `out = silu(conv(x))` for consecutive rows of one sequence, the first at `start`.
    pub fn run(
        &mut self,
        engine: &mut Engine,
        (slot, start): (usize, usize),
        x: &[f32],
        out: &mut [f32],
    ) {
        let (width, capacity) = (self.ring.width, self.ring.capacity);
        let rows = x.len() / width;
        let spec = ConvSpec { kernel: self.kernel, dilation: self.dilation, capacity };
        let parts = engine.parts(rows * width * self.kernel / 8);
        let ring = Cut::columns(self.ring.slot(slot), capacity, 16, parts);
        let out = Cut::columns(out, rows, 16, parts);
        let (arch, taps) = (engine.arch, self.taps);
        engine.run(parts, &|i| {
            let (mut ring, mut out) = (ring.take(i), out.take(i));
            let (ring, out) = (&mut ring, &mut out);
            arch.run(ConvSilu { spec, start, taps, x, width, ring, out, first: 0 });
        });
    }
}

/// Convolution of every run of the batch.
pub fn conv_silu(
    engine: &mut Engine,
    conv: &mut Conv<'_>,
    batch: &Batch,
    x: &[f32],
    out: &mut [f32],
) {
    let width = conv.ring.width;
    for run in &batch.runs {
        let rows = run.first * width..(run.first + run.rows) * width;
        let at = (run.slot.0 as usize, run.start as usize);
        conv.run(engine, at, &x[rows.clone()], &mut out[rows]);
    }
}

/// What the n-gram verb reads.
#[derive(Clone, Copy)]
pub struct Ngram<'a> {
    pub w: &'a PleWeights<CpuVector>,
    pub eps: f32,
    pub key: &'a [f32],
    pub val: &'a [f32],
}

/// `stream += G + silu(conv(norm(G)))` for every run, in blocks of rows.
pub fn ngram_add(
    engine: &mut Engine,
    scratch: &mut [Aligned<f32>; 4],
    conv: &mut Conv<'_>,
    batch: &Batch,
    ngram: Ngram<'_>,
    stream: &mut [f32],
) {
    let wide = ngram.w.norm_key.len();
    for run in &batch.runs {
        for first in (0..run.rows).step_by(BLOCK_ROWS) {
            let rows = BLOCK_ROWS.min(run.rows - first);
            let at = run.first + first;
            let stream = &mut stream[at * wide..][..rows * wide];
            ngram_block(engine, scratch, conv, (run, first), ngram, stream);
        }
    }
}

fn ngram_block(
    engine: &mut Engine,
    [gated, normed, conved, _]: &mut [Aligned<f32>; 4],
    conv: &mut Conv<'_>,
    (run, first): (&Run, usize),
    ngram: Ngram<'_>,
    stream: &mut [f32],
) {
    let (w, eps) = (ngram.w, ngram.eps);
    let wide = w.norm_key.len();
    let (h, arch) = (wide / w.count, engine.arch);
    let (gated, normed, conved) =
        (gated.reserve(stream.len()), normed.reserve(stream.len()), conved.reserve(stream.len()));
    let at = run.first + first;
    let read = &*stream;
    engine.rows(gated.len() / 2, (gated, wide), (conved, wide), |row, gated, memory| {
        for (i, gated) in gated.chunks_exact_mut(wide).enumerate() {
            let (key, val) =
                (&ngram.key[(at + row + i) * wide..], &ngram.val[(at + row + i) * h..]);
            let (key, val) = (&key[..wide], &val[..h]);
            let stream = &read[(row + i) * wide..][..wide];
            arch.run(GateRow { w, eps, key, val, stream, memory, gated });
        }
    });
    norm(engine, (&w.norm_conv, h, eps), gated, normed);
    let place = (run.slot.0 as usize, run.start as usize + first);
    conv.run(engine, place, normed, conved);
    let gated = &*gated;
    engine.rows(stream.len() / 8, (stream, wide), (conved, wide), |row, stream, conved| {
        arch.run(Add { x: &gated[row * wide..][..conved.len()], out: conved });
        arch.run(Add { x: conved, out: stream });
    });
}

/// `G` of one row: per stream the value times the gate.
struct GateRow<'a> {
    w: &'a PleWeights<CpuVector>,
    eps: f32,
    key: &'a [f32],
    val: &'a [f32],
    stream: &'a [f32],
    /// At least two streams long.
    memory: &'a mut [f32],
    gated: &'a mut [f32],
}

impl Op for GateRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let h = self.val.len();
        for (c, gated) in self.gated.chunks_exact_mut(h).enumerate() {
            let stream = c * h..(c + 1) * h;
            // The output is the memory of the normed key until it is written.
            rms(s, &self.key[stream.clone()], &self.w.norm_key[stream.clone()], self.eps, gated);
            let query = &mut self.memory[..h];
            rms(s, &self.stream[stream.clone()], &self.w.norm_query[stream], self.eps, query);
            let a = dot(s, gated, query) / (h as f32).sqrt();
            let root = a.abs().max(1e-6).sqrt();
            let signed = if a > 0.0 {
                root
            } else if a < 0.0 {
                -root
            } else {
                a
            };
            gated.copy_from_slice(self.val);
            let factor = s.first(sigmoid(s, s.splat(signed)));
            Scale { factor, x: gated }.run(s);
        }
    }
}
