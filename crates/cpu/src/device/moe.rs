//! Router, routed experts and the shared expert on the device.
//!
//! Owns: the grouping of rows by expert. Never: which expert is where in memory.
//! Invariant: every (row, rank) has its own part, so the order of waves and experts changes no bit.

use super::engine::{Engine, FillQuant, Part, Stamp, Worker, product, shape};
use super::weights::CpuMatrix;
use crate::kernels::choose::{Softmax, largest};
use crate::kernels::norm::{Add, Axpy, Scale, SigmoidOf, SwiGlu};
use crate::kernels::quant::{PANEL, Quantised, Shape};
use crate::kernels::tile::Dest;
use crate::memory::Aligned;
use crate::simd::Arch;
use crate::threads::{Claims, Columns, Cut};
use cherenkov_experts::{Layouts, RamBank, Wave};
use cherenkov_format::MatrixRef;
use cherenkov_format::record::Projection;
use cherenkov_model::Routes;
use cherenkov_model::device::{Shared, TopkNorm};
use std::sync::atomic::{AtomicUsize, Ordering};

/// From this many experts per thread on, each is computed by one thread.
const EXPERTS_PER_THREAD: usize = 8;

/// Chooses the experts of every row from its logits, which become probabilities.
pub fn choose(
    engine: &mut Engine,
    logits: &mut [f32],
    experts: usize,
    k: usize,
    norm: TopkNorm,
) -> Routes {
    let rows = logits.len() / experts;
    let mut routes = Routes { k, ids: vec![0; rows * k], weights: vec![0.0; rows * k] };
    let parts = engine.parts(logits.len() * 4);
    let mut workers = std::mem::take(&mut engine.workers);
    let logits = Cut::slice(logits, experts, parts);
    let (ids, weights) =
        (Cut::slice(&mut routes.ids, k, parts), Cut::slice(&mut routes.weights, k, parts));
    let scratch = Cut::slice(&mut workers, 1, parts);
    let arch = engine.arch;
    engine.run(parts, &|i| {
        let (mut logits, mut ids, mut weights) = (logits.take(i), ids.take(i), weights.take(i));
        let mut scratch = scratch.take(i);
        let Worker { keys, chosen, .. } = &mut scratch.row(0)[0];
        let out = ids.row(0).chunks_exact_mut(k).zip(weights.row(0).chunks_exact_mut(k));
        for (row, (ids, weights)) in logits.row(0).chunks_exact_mut(experts).zip(out) {
            largest(row, k, keys, chosen);
            arch.run(Softmax { row });
            ids.copy_from_slice(chosen);
            let chosen = || chosen.iter().map(|e| row[*e as usize]);
            let sum = match norm {
                TopkNorm::Sum => chosen().fold(0.0, |a, b| a + b),
                TopkNorm::None => 1.0,
            };
            weights.iter_mut().zip(chosen()).for_each(|(w, p)| *w = p / sum);
        }
    });
    engine.workers = workers;
    routes
}

/// The (row, rank) pairs of each expert of a wave: expert i has `pairs[starts[i]..starts[i + 1]]`.
#[derive(Debug, Default)]
pub struct Grouped {
    starts: Vec<usize>,
    pairs: Vec<u32>,
    place: Vec<u32>,
}

impl Grouped {
    /// Groups the pairs of the wave's experts.
    fn fill(&mut self, wave: &Wave, routes: &Routes) {
        let last = routes.ids.iter().chain(&wave.experts).max().map_or(0, |e| *e as usize + 1);
        self.place.clear();
        self.place.resize(last, u32::MAX);
        for (i, expert) in wave.experts.iter().enumerate() {
            self.place[*expert as usize] = i as u32;
        }
        self.starts.clear();
        self.starts.resize(wave.experts.len() + 2, 0);
        let place = |id: &u32| self.place[*id as usize] as usize;
        let mine = |id: &&u32| self.place[**id as usize] != u32::MAX;
        // Counting sort: starts[i + 2] counts expert i, then starts[i + 1] is where i goes on.
        routes.ids.iter().filter(mine).for_each(|id| self.starts[place(id) + 2] += 1);
        for i in 2..self.starts.len() {
            self.starts[i] += self.starts[i - 1];
        }
        self.pairs.clear();
        self.pairs.resize(self.starts[self.starts.len() - 1], 0);
        for (pair, id) in routes.ids.iter().enumerate() {
            if self.place[*id as usize] != u32::MAX {
                let next = &mut self.starts[self.place[*id as usize] as usize + 1];
                self.pairs[*next] = pair as u32;
                *next += 1;
            }
        }
    }

    fn of(&self, expert: usize) -> &[u32] {
        &self.pairs[self.starts[expert]..self.starts[expert + 1]]
    }
}

/// The routed experts of a wave.
pub struct Experts<'a> {
    pub bank: &'a RamBank,
    pub layouts: &'a Layouts,
    pub wave: &'a Wave,
    pub routes: &'a Routes,
    pub x: &'a [f32],
}

impl Experts<'_> {
    /// `parts[row, rank] = down(silu(gate(x)) * up(x))`.
    pub fn run(
        &self,
        engine: &mut Engine,
        grouped: &mut Grouped,
        scratch: &mut [Aligned<f32>; 4],
        parts: &mut [f32],
    ) {
        grouped.fill(self.wave, self.routes);
        if self.wave.experts.len() >= EXPERTS_PER_THREAD * engine.pool.threads() {
            self.by_expert(engine, grouped, parts);
        } else {
            self.by_tile(engine, grouped, scratch, parts);
        }
    }

    fn matrix(&self, expert: usize, which: Projection) -> MatrixRef<'_> {
        let layout = self.layouts.of(self.wave.grades[expert]);
        layout.matrix(self.bank.record(self.wave.slots[expert]), which)
    }

    /// The input rows of some pairs, side by side.
    fn gather<'w>(&self, pairs: &[u32], memory: &'w mut Aligned<f32>) -> &'w [f32] {
        let h = self.layouts.full.hidden();
        let rows = memory.reserve(pairs.len() * h);
        for (pair, row) in pairs.iter().zip(rows.chunks_exact_mut(h)) {
            row.copy_from_slice(&self.x[*pair as usize / self.routes.k * h..][..h]);
        }
        rows
    }

    /// Many experts: each worker takes whole ones.
    fn by_expert(&self, engine: &mut Engine, grouped: &Grouped, parts: &mut [f32]) {
        let threads = engine.pool.threads();
        let (h, width) = (self.layouts.full.hidden(), self.layouts.full.width());
        let mut claimed = engine.take_claims(parts.len() / h);
        let claims = Claims::rows(parts, h, &mut claimed);
        let mut workers = std::mem::take(&mut engine.workers);
        let scratch = Cut::slice(&mut workers, 1, threads);
        let (next, times) = (AtomicUsize::new(0), Times(engine.arch));
        engine.run(threads, &|i| {
            let mut scratch = scratch.take(i);
            let Worker { quant, floats: [x, gate, up, down], .. } = &mut scratch.row(0)[0];
            loop {
                let expert = next.fetch_add(1, Ordering::Relaxed);
                if expert >= self.wave.experts.len() {
                    break;
                }
                let pairs = grouped.of(expert);
                if pairs.is_empty() {
                    continue;
                }
                let x = self.gather(pairs, x);
                let (gate, up) =
                    (gate.reserve(pairs.len() * width), up.reserve(pairs.len() * width));
                let down = down.reserve(pairs.len() * h);
                let first = self.matrix(expert, Projection::Gate);
                times.fill(quant, first, x);
                times.into(quant, first, x, Dest::From(0), &mut whole(gate, pairs.len()));
                let second = self.matrix(expert, Projection::Up);
                times.into(quant, second, x, Dest::From(0), &mut whole(up, pairs.len()));
                times.0.run(SwiGlu { gate, up });
                let third = self.matrix(expert, Projection::Down);
                times.fill(quant, third, up);
                times.into(quant, third, up, Dest::From(0), &mut whole(down, pairs.len()));
                for (pair, row) in pairs.iter().zip(down.chunks_exact(h)) {
                    claims.claim(*pair as usize).copy_from_slice(row);
                }
            }
        });
        engine.give_claims(claimed);
        engine.workers = workers;
    }

    /// Few experts: the outputs of each are shared out.
    fn by_tile(
        &self,
        engine: &mut Engine,
        grouped: &Grouped,
        [gate, up, ..]: &mut [Aligned<f32>; 4],
        out: &mut [f32],
    ) {
        let (h, width, pairs) =
            (self.layouts.full.hidden(), self.layouts.full.width(), grouped.pairs.len());
        if pairs == 0 {
            return;
        }
        let experts = self.wave.experts.len();
        let (gate, up) = (gate.reserve(pairs * width), up.reserve(pairs * width));
        let parts = engine.parts(self.layouts.full.bytes() / 16 * experts.max(pairs / 4));
        let times = Times(engine.arch);
        let mut workers = std::mem::take(&mut engine.workers);
        let scratch = Cut::slice(&mut workers, 1, parts);
        let (gates, ups) =
            (Cut::columns(gate, pairs, 16, parts), Cut::columns(up, pairs, 16, parts));
        engine.run(parts, &|i| {
            let (mut scratch, mut gates, mut ups) = (scratch.take(i), gates.take(i), ups.take(i));
            let Worker { quant, floats: [x, ..], .. } = &mut scratch.row(0)[0];
            let mut filled: (&[u32], Option<Shape>) = (&[], None);
            for expert in 0..experts {
                let mine = grouped.of(expert);
                if mine.is_empty() {
                    continue;
                }
                let (first, second) =
                    (self.matrix(expert, Projection::Gate), self.matrix(expert, Projection::Up));
                let len = mine.len() * h;
                // Records of another grade may take another copy of the same rows.
                let form = shape(first, mine.len());
                if !self.same_rows(filled.0, mine) || filled.1 != form {
                    times.fill(quant, first, self.gather(mine, x));
                    filled = (mine, form);
                }
                let (x, dest) = (&x[..len], Dest::From(grouped.starts[expert]));
                times.into(quant, first, x, dest, &mut gates);
                times.into(quant, second, x, dest, &mut ups);
            }
        });
        times.0.run(SwiGlu { gate, up });
        let (outs, scratch) =
            (Cut::columns(out, out.len() / h, 16, parts), Cut::slice(&mut workers, 1, parts));
        engine.run(parts, &|i| {
            let (mut scratch, mut out) = (scratch.take(i), outs.take(i));
            let quant = &mut scratch.row(0)[0].quant;
            for expert in 0..experts {
                let mine = grouped.of(expert);
                let x = &up[grouped.starts[expert] * width..][..mine.len() * width];
                if !mine.is_empty() {
                    let third = self.matrix(expert, Projection::Down);
                    times.fill(quant, third, x);
                    times.into(quant, third, x, Dest::Rows(mine), &mut out);
                }
            }
        });
        engine.workers = workers;
    }

    /// Whether two lists of pairs are of the same rows.
    fn same_rows(&self, a: &[u32], b: &[u32]) -> bool {
        let row = |pair: &u32| *pair as usize / self.routes.k;
        a.iter().map(row).eq(b.iter().map(row))
    }
}

/// Products in the calling thread.
#[derive(Clone, Copy)]
struct Times(Arch);

impl Times {
    /// Makes the quantised copy of `x` that products with matrices like `w` take.
    fn fill(self, quant: &mut Quantised, w: MatrixRef<'_>, x: &[f32]) {
        if let Some(shape) = shape(w, x.len() / w.cols()) {
            self.0.run(FillQuant { quant, shape, x });
        }
    }

    /// The columns of `W x` that `out` has, `quant` being the copy of `x`.
    fn into(
        self,
        quant: &Quantised,
        w: MatrixRef<'_>,
        x: &[f32],
        dest: Dest<'_>,
        out: &mut Columns<'_, f32>,
    ) {
        let rows = x.len() / w.cols();
        let quant = shape(w, rows).map(|shape| (quant, shape));
        let part = Part { panels: 0..rows.div_ceil(PANEL), x };
        product(self.0, w, quant, part, dest, out);
    }
}

/// All columns of a matrix.
fn whole(data: &mut [f32], rows: usize) -> Columns<'_, f32> {
    Cut::columns(data, rows, 16, 1).take(0)
}

/// `out = sigmoid(gate x) * down(silu(gate_proj x) * up_proj x)`.
pub fn shared(
    engine: &mut Engine,
    [inner, up, open, _]: &mut [Aligned<f32>; 4],
    w: &Shared<CpuMatrix>,
    (x, stamp): (&[f32], Stamp),
    out: &mut [f32],
) {
    let (gate_proj, up_proj, down) = (w.gate_proj.view(), w.up_proj.view(), w.down_proj.view());
    let rows = x.len() / gate_proj.cols();
    let width = gate_proj.rows();
    let (inner, up, open) =
        (inner.reserve(rows * width), up.reserve(rows * width), open.reserve(rows));
    engine.linear(gate_proj, x, Some(stamp), inner);
    engine.linear(up_proj, x, Some(stamp), up);
    engine.linear(w.gate.view(), x, Some(stamp), open);
    let arch = engine.arch;
    engine.rows(rows * width, (inner, width), (up, width), |_, gate, up| {
        arch.run(SwiGlu { gate, up });
    });
    engine.linear(down, up, None, out);
    arch.run(SigmoidOf { x: open, divisor: 1.0, factor: 1.0 });
    for (out, open) in out.chunks_exact_mut(down.rows()).zip(&*open) {
        arch.run(Scale { factor: *open, x: out });
    }
}

/// `out = sum over ranks of weight * part, in order, then + shared`; a weight of 0 has no part.
pub fn combine(
    engine: &mut Engine,
    routes: &Routes,
    parts: &[f32],
    shared: &[f32],
    (out, h): (&mut [f32], usize),
) {
    let (arch, k) = (engine.arch, routes.k);
    engine.rows(out.len() * k / 8, (out, h), (&mut [], 1), |first, out, _| {
        for (i, out) in out.chunks_exact_mut(h).enumerate() {
            let row = first + i;
            out.fill(0.0);
            for pair in row * k..(row + 1) * k {
                // Not even 0 times what an earlier layer left there, which may be infinite.
                if routes.weights[pair] != 0.0 {
                    let part = &parts[pair * h..][..h];
                    arch.run(Axpy { factor: routes.weights[pair], x: part, out });
                }
            }
            arch.run(Add { x: &shared[row * h..][..h], out });
        }
    });
}
