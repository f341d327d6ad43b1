//! QSA attention on the device.
//!
//! Owns: where keys, values and pooled keys lie, the cutting of attention into items. Never: kernels.

use super::engine::{Engine, Worker};
use super::pages::{Arena, KvState, Pages, stored, with_arena};
use super::state::RowRing;
use super::weights::CpuVector;
use crate::kernels::attention::{Attend, BlockScores, CHUNK, Gate, Selected};
use crate::kernels::cache::{Element, Narrow};
use crate::kernels::choose::largest;
use crate::kernels::heads::{Mean, Queries, StoreKey};
use crate::kernels::norm::Add;
use crate::kernels::rope::RopeTable;
use crate::simd::Arch;
use crate::threads::{Claims, Cut};
use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::device::AttentionWeights;
use cherenkov_model::{Batch, Position, Run};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Rotations of a batch, for all attention layers.
#[derive(Debug, Default)]
pub struct Ropes {
    spec: Option<Attention>,
    rows: RopeTable,
    /// Of the first tokens of the blocks that the batch completes, in order.
    blocks: RopeTable,
}

impl Ropes {
    /// Forgets the batch before.
    pub fn clear(&mut self) {
        self.spec = None;
    }

    /// Makes the tables of this batch, once.
    pub fn prepare(&mut self, spec: &Attention, batch: &Batch) {
        if self.spec.as_ref() == Some(spec) {
            return;
        }
        self.rows.fill(spec, &batch.positions);
        let first = |at: usize| Position::text((at + 1 - spec.index_ratio) as u32);
        let completed = batch.runs.iter().flat_map(|run| {
            let start = run.start as usize;
            (start..start + run.rows).filter(|at| (at + 1).is_multiple_of(spec.index_ratio))
        });
        self.blocks.fill(spec, &completed.map(first).collect::<Vec<_>>());
        self.spec = Some(spec.clone());
    }
}

/// What a layer's verbs share.
pub struct Layer<'a> {
    pub w: &'a AttentionWeights<CpuVector>,
    pub batch: &'a Batch,
    pub ropes: &'a Ropes,
    pub eps: f32,
}

/// Stores keys, values and pooled keys of all rows.
pub fn append(
    engine: &mut Engine,
    kv: &mut KvState,
    ring: &mut RowRing,
    layer: &Layer<'_>,
    inputs: [&[f32]; 3],
) {
    let (arch, page_rows) = (engine.arch, kv.page_rows);
    let worker = &mut engine.workers[0];
    with_arena!(&mut kv.pages, arena => {
        Append { arch, arena, page_rows, layer, worker }.all(ring, inputs);
    });
}

struct Append<'a, E: Element> {
    arch: Arch,
    arena: &'a mut Arena<E>,
    page_rows: usize,
    layer: &'a Layer<'a>,
    worker: &'a mut Worker,
}

impl<E: Element> Append<'_, E> {
    fn all(&mut self, ring: &mut RowRing, [k, v, index]: [&[f32]; 3]) {
        let spec = &self.layer.w.spec;
        let width = spec.kv_heads * spec.head_dim;
        let raw = |row: usize| {
            &index[(row + 1) * spec.index_width() - spec.index_dim..][..spec.index_dim]
        };
        let mut block = 0;
        for run in &self.layer.batch.runs {
            for row in run.range() {
                let at = run.start as usize + row - run.first;
                let values = row * width..(row + 1) * width;
                self.row(run, at, row, [&k[values.clone()], &v[values]]);
                ring.row(run.slot.0 as usize, at).copy_from_slice(raw(row));
                if (at + 1).is_multiple_of(spec.index_ratio) {
                    self.pool(run, at + 1 - spec.index_ratio, block, ring);
                    block += 1;
                }
            }
        }
    }

    fn row(&mut self, run: &Run, at: usize, row: usize, [k, v]: [&[f32]; 2]) {
        let (layer, arch) = (self.layer, self.arch);
        let dim = layer.w.spec.head_dim;
        let page = run.pages[at / self.page_rows].0 as usize;
        for head in 0..layer.w.spec.kv_heads {
            let place = head * self.page_rows + at % self.page_rows;
            let memory = self.worker.floats[0].reserve(dim);
            self.arena.k.put(page, place, |out| {
                arch.run(StoreKey {
                    x: &k[head * dim..][..dim],
                    w: &layer.w.k_norm,
                    eps: layer.eps,
                    rope: layer.ropes.rows.row(row),
                    memory,
                    out,
                })
            });
            let x = &v[head * dim..][..dim];
            self.arena.v.put(page, place, |out| arch.run(Narrow { x, out }));
        }
    }

    /// The key of the block that starts at row `first`: mean of raw keys, norm, rotation.
    fn pool(&mut self, run: &Run, first: usize, block: usize, ring: &mut RowRing) {
        let (layer, arch) = (self.layer, self.arch);
        let spec = &layer.w.spec;
        let [sum, memory, ..] = &mut self.worker.floats;
        let sum = sum.reserve(spec.index_dim);
        sum.fill(0.0);
        for at in first..first + spec.index_ratio {
            arch.run(Add { x: ring.row(run.slot.0 as usize, at), out: sum });
        }
        arch.run(Mean { sum, count: spec.index_ratio });
        let (page, in_page) =
            (run.pages[first / self.page_rows].0 as usize, first % self.page_rows);
        self.arena.pooled.put(page, in_page / spec.index_ratio, |out| {
            arch.run(StoreKey {
                x: sum,
                w: &layer.w.index_k_norm,
                eps: layer.eps,
                rope: layer.ropes.blocks.row(block),
                memory: memory.reserve(spec.index_dim),
                out,
            })
        });
    }
}

/// Rows of a batch with what they see.
fn visible(batch: &Batch) -> impl Iterator<Item = (&Run, usize, usize)> {
    let row = |run: &Run, row: usize| run.start as usize + row - run.first + 1;
    batch.runs.iter().flat_map(move |run| run.range().map(move |r| (run, r, row(run, r))))
}

/// Chooses the blocks of every row.
pub fn select(
    engine: &mut Engine,
    kv: &KvState,
    layer: &Layer<'_>,
    index: &[f32],
    picks: &mut [Vec<u32>],
) {
    with_arena!(&kv.pages, arena => Select { kv, arena, layer, index }.all(engine, picks));
}

struct Select<'a, E: Element> {
    kv: &'a KvState,
    arena: &'a Arena<E>,
    layer: &'a Layer<'a>,
    index: &'a [f32],
}

impl<E: Element> Select<'_, E> {
    fn all(&self, engine: &mut Engine, picks: &mut [Vec<u32>]) {
        let spec = &self.layer.w.spec;
        let rows = self.layer.batch.rows();
        let budget = spec.budget_blocks();
        let mut scored = 0;
        for (_, row, visible) in visible(self.layer.batch) {
            let blocks = visible / spec.index_ratio;
            if blocks <= budget {
                picks[row].clear();
                picks[row].extend(0..blocks as u32);
            } else {
                scored += blocks;
            }
        }
        if scored == 0 {
            return;
        }
        if rows >= engine.pool.threads() {
            self.by_row(engine, picks, scored);
        } else {
            self.by_block(engine, picks);
        }
    }

    /// The score of a block takes this many nanoseconds or so.
    fn work(&self, blocks: usize) -> usize {
        blocks * self.layer.w.spec.index_heads * self.layer.w.spec.index_dim / 32
    }

    fn queries(&self, arch: Arch, row: usize, out: &mut [f32]) {
        let w = self.layer.w;
        arch.run(Queries {
            x: &self.index[row * w.spec.index_width()..],
            stride: w.spec.index_dim,
            w: &w.index_q_norm,
            eps: self.layer.eps,
            rope: self.layer.ropes.rows.row(row),
            scale: 1.0,
            out,
            width: stored(w.spec.index_dim),
        });
    }

    fn scores(&self, arch: Arch, run: &Run, first: usize, queries: &[f32], out: &mut [f32]) {
        let spec = &self.layer.w.spec;
        let page_blocks = self.kv.page_rows / spec.index_ratio;
        let keys = self.arena.pooled.rows(&run.pages, 0, page_blocks);
        arch.run(BlockScores { keys, first, queries, out });
    }

    /// Many rows: each worker takes some.
    fn by_row(&self, engine: &mut Engine, picks: &mut [Vec<u32>], scored: usize) {
        let spec = &self.layer.w.spec;
        let (arch, budget) = (engine.arch, spec.budget_blocks());
        let parts = engine.parts(self.work(scored));
        let mut workers = std::mem::take(&mut engine.workers);
        let rows: Vec<_> = visible(self.layer.batch).collect();
        let (cut, scratch) = (Cut::slice(picks, 1, parts), Cut::slice(&mut workers, 1, parts));
        engine.run(parts, &|i| {
            let (mut mine, mut scratch) = (cut.take(i), scratch.take(i));
            let Worker { floats: [queries, scores, ..], keys, .. } = &mut scratch.row(0)[0];
            let first = mine.start();
            for (n, picks) in mine.row(0).iter_mut().enumerate() {
                let (run, row, visible) = rows[first + n];
                let blocks = visible / spec.index_ratio;
                if blocks > budget {
                    let queries = queries.reserve(spec.index_heads * stored(spec.index_dim));
                    let scores = scores.reserve(blocks);
                    self.queries(arch, row, queries);
                    self.scores(arch, run, 0, queries, scores);
                    largest(scores, budget, keys, picks);
                }
            }
        });
        engine.workers = workers;
    }

    /// Few rows: the blocks of each are shared out.
    fn by_block(&self, engine: &mut Engine, picks: &mut [Vec<u32>]) {
        let spec = &self.layer.w.spec;
        let (arch, budget) = (engine.arch, spec.budget_blocks());
        let mut worker = std::mem::take(&mut engine.workers[0]);
        for (run, row, visible) in visible(self.layer.batch) {
            let blocks = visible / spec.index_ratio;
            if blocks <= budget {
                continue;
            }
            let [queries, scores, ..] = &mut worker.floats;
            let queries = queries.reserve(spec.index_heads * stored(spec.index_dim));
            let scores = scores.reserve(blocks);
            self.queries(arch, row, queries);
            let parts = engine.parts(self.work(blocks));
            let cut = Cut::slice(&mut *scores, 1, parts);
            engine.run(parts, &|i| {
                let mut mine = cut.take(i);
                self.scores(arch, run, mine.start(), queries, mine.row(0));
            });
            largest(scores, budget, &mut worker.keys, &mut picks[row]);
        }
        engine.workers[0] = worker;
    }
}

/// Attention of every row.
pub fn attend(
    engine: &mut Engine,
    kv: &KvState,
    layer: &Layer<'_>,
    q: &[f32],
    picks: &[Vec<u32>],
    out: &mut [f32],
) {
    with_arena!(&kv.pages, arena => Attending { kv, arena, layer, q, picks }.all(engine, out));
}

struct Attending<'a, E: Element> {
    kv: &'a KvState,
    arena: &'a Arena<E>,
    layer: &'a Layer<'a>,
    q: &'a [f32],
    picks: &'a [Vec<u32>],
}

impl<E: Element> Attending<'_, E> {
    /// Heads of an item: those of a kv head, or fewer when there would be fewer items than threads.
    fn heads_per_item(&self, threads: usize) -> usize {
        let spec = &self.layer.w.spec;
        let group = spec.heads / spec.kv_heads;
        let enough = |n: &usize| self.layer.batch.rows() * (spec.heads / n) >= threads;
        (1..=group).rev().filter(|n| group.is_multiple_of(*n)).find(enough).unwrap_or(1)
    }

    fn all(&self, engine: &mut Engine, out: &mut [f32]) {
        let spec = &self.layer.w.spec;
        let heads = self.heads_per_item(engine.pool.threads());
        let rows: Vec<_> = visible(self.layer.batch).collect();
        let items_per_row = spec.heads / heads;
        let items = rows.len() * items_per_row;
        let tokens: usize =
            self.picks.iter().map(|p| (p.len() + 1) * spec.index_ratio).take(rows.len()).sum();
        let parts = engine.parts(tokens * spec.heads * spec.head_dim / 16).min(items.max(1));
        let parts = if parts < engine.pool.threads() { 1 } else { parts };
        let mut claimed = engine.take_claims(items);
        let claims = Claims::rows(out, heads * spec.head_dim, &mut claimed);
        let mut workers = std::mem::take(&mut engine.workers);
        let scratch = Cut::slice(&mut workers, 1, parts);
        let (next, arch) = (AtomicUsize::new(0), engine.arch);
        engine.run(parts, &|i| {
            let mut scratch = scratch.take(i);
            let worker = &mut scratch.row(0)[0];
            loop {
                // Late rows see more tokens, so items are taken one by one; each has its own output.
                let item = next.fetch_add(1, Ordering::Relaxed);
                if item >= items {
                    break;
                }
                let (run, row, visible) = rows[item / items_per_row];
                let first = item % items_per_row * heads;
                self.item(arch, worker, run, (row, visible, first), claims.claim(item));
            }
        });
        engine.give_claims(claimed);
        engine.workers = workers;
    }

    fn item(
        &self,
        arch: Arch,
        worker: &mut Worker,
        run: &Run,
        (row, visible, first): (usize, usize, usize),
        out: &mut [f32],
    ) {
        let (w, spec) = (self.layer.w, &self.layer.w.spec);
        let (dim, width) = (spec.head_dim, stored(spec.head_dim));
        let heads = out.len() / dim;
        let q = &self.q[(row * spec.heads + first) * 2 * dim..][..heads * 2 * dim];
        let [queries, weights, sums, _] = &mut worker.floats;
        let queries = queries.reserve(heads * width);
        arch.run(Queries {
            x: q,
            stride: 2 * dim,
            w: &w.q_norm,
            eps: self.layer.eps,
            rope: self.layer.ropes.rows.row(row),
            scale: 1.0 / (dim as f32).sqrt(),
            out: queries,
            width,
        });
        let kv_head = first / (spec.heads / spec.kv_heads);
        let (page_rows, pages) = (self.kv.page_rows, &run.pages[..]);
        let first_row = kv_head * page_rows;
        worker.softmax.resize(heads, (0.0, 0.0));
        let sums = sums.reserve(heads * width);
        arch.run(Attend {
            keys: self.arena.k.rows(pages, first_row, page_rows),
            values: self.arena.v.rows(pages, first_row, page_rows),
            selected: Selected { blocks: &self.picks[row], ratio: spec.index_ratio, visible },
            queries,
            weights: weights.reserve(heads * CHUNK),
            sums,
            softmax: &mut worker.softmax,
        });
        for (h, out) in out.chunks_exact_mut(dim).enumerate() {
            let (sums, gate) = (&sums[h * width..][..width], &q[(2 * h + 1) * dim..][..dim]);
            arch.run(Gate { sums, normaliser: worker.softmax[h].1, gate, out });
        }
    }
}
