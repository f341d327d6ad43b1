//! QSA attention: stored keys and values, block scores, softmax over selected tokens.
//!
//! Owns: the order of the softmax: chunks of 64 tokens aligned to absolute positions, ascending; within
//! a chunk the selected tokens ascending. Per chunk, with m the largest score so far:
//!
//! ```text
//! f = exp(m_before - m); l = fma(l, f, sum of exp(score - m)); y = y * f, then fma(p_t, v_t, y) by t
//! ```
//!
//! then `y / l`, times the sigmoid of the gate. Sums of a chunk's weights and all dot products in the
//! order of [`super::lanes`]. Where rows have a scale, a dot product is multiplied by that of its key,
//! and p_t by that of its value before the last step. Never: which tokens are selected by whom, threads.
//! Invariant: the result depends on the row's query and the selected tokens alone.

use super::cache::{Element, Row, Rows};
use super::lanes::{load_tail, store_tail};
use super::math::{exp, larger, sigmoid};
use crate::simd::{LANES, Op, Simd};

/// Tokens of a chunk.
pub const CHUNK: usize = 64;
/// Tokens, and heads, whose scores are computed together.
const TOGETHER: usize = 4;

/// Dot products of `T` stored rows with `H` queries.
#[inline(always)]
fn scores<S: Simd, E: Element, const T: usize, const H: usize>(
    s: S,
    rows: [Row<'_, E>; T],
    queries: [&[[f32; LANES]]; H],
) -> [[f32; H]; T] {
    let mut acc = [[s.splat(0.0); H]; T];
    for i in 0..rows[0].values.len() {
        for t in 0..T {
            let k = E::load(s, &rows[t].values[i]);
            for h in 0..H {
                acc[t][h] = s.fma(k, s.load(&queries[h][i]), acc[t][h]);
            }
        }
    }
    let mut out = [[0.0; H]; T];
    if T * H == LANES {
        let mut all = [s.splat(0.0); LANES];
        // Number by number: a copy of the array would keep the sums in memory throughout.
        for t in 0..T {
            for h in 0..H {
                all[(t * H + h) % LANES] = acc[t][h];
            }
        }
        let mut sums = [0.0; LANES];
        s.store(s.sums(all), &mut sums);
        for t in 0..T {
            for h in 0..H {
                out[t][h] = sums[(t * H + h) % LANES];
            }
        }
    } else {
        for t in 0..T {
            for h in 0..H {
                out[t][h] = s.sum(acc[t][h]);
            }
        }
    }
    if E::SCALED {
        for t in 0..T {
            for h in 0..H {
                out[t][h] *= rows[t].scale;
            }
        }
    }
    out
}

/// Scores of consecutive blocks: `sum over heads, in order, of relu(q . key)`.
pub struct BlockScores<'a, E> {
    /// Pooled keys by block.
    pub keys: Rows<'a, E>,
    /// First block.
    pub first: usize,
    /// Queries `[heads, padded index_dim]`.
    pub queries: &'a [f32],
    /// One score per block.
    pub out: &'a mut [f32],
}

impl<E: Element> Op for BlockScores<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let heads = self.queries.len() / self.keys.width;
        let query = |h: usize| self.queries[h * self.keys.width..][..self.keys.width].as_chunks().0;
        let (fours, rest) = self.out.as_chunks_mut::<TOGETHER>();
        let left = self.first + fours.len() * TOGETHER;
        for (i, out) in fours.iter_mut().enumerate() {
            let (keys, at) = (self.keys, self.first + i * TOGETHER);
            // Spelled out: `from_fn` is a call per row.
            let rows = [keys.row(at), keys.row(at + 1), keys.row(at + 2), keys.row(at + 3)];
            block_scores(s, rows, heads, query, out);
        }
        for (i, out) in rest.iter_mut().enumerate() {
            let rows = [self.keys.row(left + i)];
            block_scores(s, rows, heads, query, std::array::from_mut(out));
        }
    }
}

#[inline(always)]
fn block_scores<'a, S: Simd, E: Element, const T: usize>(
    s: S,
    rows: [Row<'_, E>; T],
    heads: usize,
    query: impl Fn(usize) -> &'a [[f32; LANES]],
    out: &mut [f32; T],
) {
    *out = [0.0; T];
    let gain = |out: &mut f32, dot: f32| *out += if dot > 0.0 { dot } else { 0.0 };
    let mut h = 0;
    while h + TOGETHER <= heads {
        let queries = [query(h), query(h + 1), query(h + 2), query(h + 3)];
        for (out, dots) in out.iter_mut().zip(scores(s, rows, queries)) {
            dots.into_iter().for_each(|dot| gain(out, dot));
        }
        h += TOGETHER;
    }
    while h < heads {
        for (out, [dot]) in out.iter_mut().zip(scores(s, rows, [query(h)])) {
            gain(out, dot);
        }
        h += 1;
    }
}

/// The tokens that a row attends to: blocks ascending, then the tail.
#[derive(Clone, Copy)]
pub struct Selected<'a> {
    /// Complete blocks, ascending.
    pub blocks: &'a [u32],
    /// Tokens of a block.
    pub ratio: usize,
    /// Tokens up to and including the row itself.
    pub visible: usize,
}

impl Selected<'_> {
    /// Calls `f` with the tokens of every chunk that has any, in order.
    #[inline(always)]
    fn chunks(&self, mut f: impl FnMut(&[u32])) {
        let (mut tokens, mut n) = ([0u32; CHUNK], 0);
        let tail = self.visible / self.ratio * self.ratio..self.visible;
        let whole = self.blocks.iter().map(|b| *b as usize * self.ratio);
        for run in whole.map(|t| t..t + self.ratio).chain([tail]) {
            for token in run {
                if n > 0 && tokens[n - 1] as usize / CHUNK != token / CHUNK {
                    f(&tokens[..n]);
                    n = 0;
                }
                tokens[n] = token as u32;
                n += 1;
            }
        }
        if n > 0 {
            f(&tokens[..n]);
        }
    }
}

/// Attention of one row for some query heads that share a kv head.
pub struct Attend<'a, E> {
    /// Keys of the kv head.
    pub keys: Rows<'a, E>,
    /// Values of the kv head.
    pub values: Rows<'a, E>,
    /// The tokens.
    pub selected: Selected<'a>,
    /// Queries, normed, rotated and scaled `[heads, width]`.
    pub queries: &'a [f32],
    /// Memory `[heads, CHUNK]`.
    pub weights: &'a mut [f32],
    /// Out: sums `[heads, width]`, not yet divided.
    pub sums: &'a mut [f32],
    /// Memory, then out: `[heads]` of (largest score, sum of weights).
    pub softmax: &'a mut [(f32, f32)],
}

impl<E: Element> Op for Attend<'_, E> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        self.sums.fill(0.0);
        self.softmax.fill((f32::NEG_INFINITY, 0.0));
        let selected = self.selected;
        selected.chunks(
            #[inline(always)]
            |tokens| {
                self.score(s, tokens);
                self.weigh(s, tokens.len());
                self.scale(tokens);
                self.gather(s, tokens);
            },
        );
    }
}

impl<E: Element> Attend<'_, E> {
    #[inline(always)]
    fn heads(&self) -> usize {
        self.softmax.len()
    }

    /// `weights[h, i] = q_h . k_i`, minus infinity beyond the tokens.
    #[inline(always)]
    fn score<S: Simd>(&mut self, s: S, tokens: &[u32]) {
        self.weights.fill(f32::NEG_INFINITY);
        let (fours, rest) = tokens.as_chunks::<TOGETHER>();
        for (i, tokens) in fours.iter().enumerate() {
            let rows = tokens.map(
                #[inline(always)]
                |t| self.keys.row(t as usize),
            );
            self.score_rows(s, rows, i * TOGETHER);
        }
        for (i, token) in rest.iter().enumerate() {
            let row = self.keys.row(*token as usize);
            self.score_rows(s, [row], fours.len() * TOGETHER + i);
        }
    }

    #[inline(always)]
    fn score_rows<S: Simd, const T: usize>(&mut self, s: S, rows: [Row<'_, E>; T], at: usize) {
        let width = self.keys.width;
        let queries = self.queries;
        let query = |h: usize| queries[h * width..][..width].as_chunks().0;
        let mut h = 0;
        while h + TOGETHER <= self.heads() {
            let many = [query(h), query(h + 1), query(h + 2), query(h + 3)];
            for (t, dots) in scores(s, rows, many).iter().enumerate() {
                for (i, dot) in dots.iter().enumerate() {
                    self.weights[(h + i) * CHUNK + at + t] = *dot;
                }
            }
            h += TOGETHER;
        }
        while h < self.heads() {
            for (t, [dot]) in scores(s, rows, [query(h)]).into_iter().enumerate() {
                self.weights[h * CHUNK + at + t] = dot;
            }
            h += 1;
        }
    }

    /// Scores become weights; sums and normalisers so far are rescaled.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, s: S, count: usize) {
        let width = self.keys.width;
        let used = count.next_multiple_of(LANES);
        for (h, (m, l)) in self.softmax.iter_mut().enumerate() {
            let weights = &mut self.weights[h * CHUNK..][..used];
            let weights = weights.as_chunks_mut::<LANES>().0;
            let mut most = s.splat(*m);
            for w in weights.iter() {
                most = larger(s, most, s.load(w));
            }
            let mut lanes = [0.0; LANES];
            s.store(most, &mut lanes);
            let top = lanes.iter().fold(*m, |a, b| if *b > a { *b } else { a });
            let factor = exp(s, s.sub(s.splat(*m), s.splat(top)));
            let mut sum = s.splat(0.0);
            for w in weights {
                let p = exp(s, s.sub(s.load(w), s.splat(top)));
                sum = s.add(sum, p);
                s.store(p, w);
            }
            *m = top;
            *l = l.mul_add(s.first(factor), s.sum(sum));
            for y in self.sums[h * width..][..width].as_chunks_mut().0 {
                s.store(s.mul(s.load(y), factor), y);
            }
        }
    }

    /// Weights are multiplied by the scales of the values, if those have any.
    #[inline(always)]
    fn scale(&mut self, tokens: &[u32]) {
        if !E::SCALED {
            return;
        }
        for (t, token) in tokens.iter().enumerate() {
            let scale = self.values.row(*token as usize).scale;
            for h in 0..self.heads() {
                self.weights[h * CHUNK + t] *= scale;
            }
        }
    }

    /// `sums[h] += p_t * v_t`, tokens in order.
    #[inline(always)]
    fn gather<S: Simd>(&mut self, s: S, tokens: &[u32]) {
        let mut h = 0;
        while h < self.heads() {
            let many = self.heads() - h >= TOGETHER;
            for column in 0..self.keys.width / LANES {
                if many {
                    self.gather_heads::<S, TOGETHER>(s, tokens, h, column);
                } else {
                    self.gather_heads::<S, 1>(s, tokens, h, column);
                }
            }
            h += if many { TOGETHER } else { 1 };
        }
    }

    #[inline(always)]
    fn gather_heads<S: Simd, const H: usize>(&mut self, s: S, tokens: &[u32], h: usize, i: usize) {
        let width = self.keys.width;
        let at = |n: usize| (h + n) * width + i * LANES;
        let mut acc = [s.splat(0.0); H];
        for n in 0..H {
            acc[n] = s.load(self.sums[at(n)..].first_chunk().expect("whole vectors"));
        }
        for (t, token) in tokens.iter().enumerate() {
            let v = E::load(s, &self.values.row(*token as usize).values[i]);
            for n in 0..H {
                acc[n] = s.fma(s.splat(self.weights[(h + n) * CHUNK + t]), v, acc[n]);
            }
        }
        for n in 0..H {
            s.store(acc[n], self.sums[at(n)..].first_chunk_mut().expect("whole vectors"));
        }
    }
}

/// `out = (sums / l) * sigmoid(gate)`.
pub struct Gate<'a> {
    /// At least as many sums.
    pub sums: &'a [f32],
    /// The softmax's normaliser.
    pub normaliser: f32,
    /// As many gates.
    pub gate: &'a [f32],
    /// Out.
    pub out: &'a mut [f32],
}

impl Op for Gate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let l = s.splat(self.normaliser);
        let parts = self.sums.chunks(LANES).zip(self.gate.chunks(LANES));
        for (out, (sums, gate)) in self.out.chunks_mut(LANES).zip(parts) {
            let sums = load_tail(s, &sums[..out.len()]);
            let y = s.mul(s.div(sums, l), sigmoid(s, load_tail(s, gate)));
            store_tail(s, y, out);
        }
    }
}
