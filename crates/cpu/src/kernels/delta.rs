//! The gated delta rule.
//!
//! Owns: the order of its sums. Per value head and column of the state, with t = S * decay (rounded):
//!
//! ```text
//! seen = sum over keys i of t_i * k_i;   d = beta * (v - seen)
//! S_i = fma(k_i, d, t_i);                y = sum over keys i of S_i * q_i
//! ```
//!
//! A sum over keys has four parts, part p over i = p, p+4, ... with fused multiply-add from 0, added as
//! (0 + 2) + (1 + 3). A row can be replayed on another state from its gates, its keys and d alone.
//! Never: where states are kept, which rows stay.

use super::math::{exp, neg, sigmoid, silu, softplus};
use super::norm::{inverse_rms, l2};
use crate::simd::{LANES, Op, Simd};
use crate::threads::Columns;
use cherenkov_format::qwen4_exp::config::{Delta, Gate};

/// Columns of the state that pass through the nearest cache together, in vectors.
const SLAB: usize = 2;
/// Values of a slab.
pub const SLAB_VALUES: usize = SLAB * LANES;
/// How many rows ahead scattered values are asked for.
const ASK_ROWS: usize = 4;
/// Parts of a sum over keys.
const PARTS: usize = 4;

/// Values of a padded value head: a multiple of a slab.
pub fn padded(value_dim: usize) -> usize {
    value_dim.next_multiple_of(SLAB_VALUES)
}

/// Normalises q and k and computes decay and beta for some rows.
pub struct Prepare<'a> {
    /// Geometry.
    pub spec: &'a Delta,
    /// `[rows, channels]`.
    pub qkv: &'a [f32],
    /// `[rows, value_heads]`.
    pub a: &'a [f32],
    /// `[rows, value_heads]`.
    pub b: &'a [f32],
    /// `[value_heads]`.
    pub a_log: &'a [f32],
    /// `[value_heads]`.
    pub dt_bias: &'a [f32],
    /// Out: `[rows, key_heads, k then q]`.
    pub keys: &'a mut [f32],
    /// Out: `[rows, decay of all value heads then beta]`.
    pub gates: &'a mut [f32],
}

impl Op for Prepare<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (heads, dim, values) = (self.spec.key_heads, self.spec.key_dim, self.spec.value_heads);
        let q_scale = 1.0 / (dim as f32).sqrt();
        let channels = self.spec.channels();
        for (row, keys) in self.keys.chunks_exact_mut(2 * heads * dim).enumerate() {
            let x = &self.qkv[row * channels..];
            for (h, out) in keys.chunks_exact_mut(2 * dim).enumerate() {
                let (k, q) = out.split_at_mut(dim);
                l2(s, &x[(heads + h) * dim..][..dim], 1.0, k);
                l2(s, &x[h * dim..][..dim], q_scale, q);
            }
        }
        for (row, gates) in self.gates.chunks_exact_mut(2 * values).enumerate() {
            let (decay, beta) = gates.split_at_mut(values);
            let (a, b) = (&self.a[row * values..][..values], &self.b[row * values..][..values]);
            super::lanes::zip(
                s,
                a,
                self.dt_bias,
                decay,
                #[inline(always)]
                |a, bias| softplus(s, s.add(a, bias)),
            );
            super::lanes::merge(
                s,
                self.a_log,
                decay,
                #[inline(always)]
                |a_log, dt| exp(s, s.mul(neg(s, exp(s, a_log)), dt)),
            );
            super::lanes::map(
                s,
                b,
                beta,
                #[inline(always)]
                |b| sigmoid(s, b),
            );
        }
    }
}

/// Rows as gates and keys, and d in [`Head::d`]: enough to run them again on the state before them.
#[derive(Clone, Copy)]
pub struct Logged<'a> {
    /// Rows to be replayed.
    pub rows: usize,
    /// See [`Prepare::gates`].
    pub gates: &'a [f32],
    /// See [`Prepare::keys`].
    pub keys: &'a [f32],
}

/// What becomes of the state and of the rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The rows stay: the state moves on.
    Stay,
    /// The rows may be taken back: the state is left before them, and they are logged.
    Log,
}

/// One value head of one run.
pub struct Head<'a, 'o> {
    /// Geometry.
    pub spec: &'a Delta,
    /// The head.
    pub head: usize,
    /// Its state `[key_dim, padded value_dim]`.
    pub state: &'a mut [f32],
    /// Settled rows that the state lacks.
    pub replay: Logged<'a>,
    /// `[row, padded value_dim]` of this head: read for the replay, then written for the log.
    pub d: &'a mut [f32],
    /// See [`Prepare::keys`], this run's rows.
    pub keys: &'a [f32],
    /// See [`Prepare::gates`], this run's rows.
    pub gates: &'a [f32],
    /// See [`Prepare::qkv`], this run's rows.
    pub qkv: &'a [f32],
    /// Output gates `[rows, value_width]`, this run's rows.
    pub z: &'a [f32],
    /// Norm weight `[value_dim]`.
    pub norm: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// What becomes of it all.
    pub outcome: Outcome,
    /// The output; columns of some heads, rows of the batch.
    pub out: &'a mut Columns<'o, f32>,
    /// Batch row of the run's first.
    pub first: usize,
    /// Memory for [`slab_values`] numbers.
    pub slab: &'a mut [f32],
}

/// Numbers of a slab of a state.
pub fn slab_values(spec: &Delta) -> usize {
    spec.key_dim * SLAB_VALUES
}

/// Columns of a state in the nearest cache: a slab per key.
type Slab = [[[f32; LANES]; SLAB]];

impl Op for Head<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let pitch = padded(self.spec.value_dim);
        let memory = std::mem::take(&mut self.slab);
        let slab = memory.as_chunks_mut().0.as_chunks_mut().0;
        for column in (0..pitch).step_by(SLAB_VALUES) {
            for (slab, state) in slab.iter_mut().zip(self.state.chunks_exact(pitch)) {
                slab.as_flattened_mut().copy_from_slice(&state[column..][..SLAB_VALUES]);
            }
            self.catch_up(s, slab, column);
            if self.replay.rows > 0 && self.outcome == Outcome::Log {
                self.write_back(slab, column);
            }
            self.rows(s, slab, column);
            if self.outcome == Outcome::Stay {
                self.write_back(slab, column);
            }
        }
        self.finish(s);
    }
}

impl Head<'_, '_> {
    #[inline(always)]
    fn key_head(&self) -> usize {
        self.head / (self.spec.value_heads / self.spec.key_heads)
    }

    #[inline(always)]
    fn write_back(&mut self, slab: &Slab, column: usize) {
        let pitch = padded(self.spec.value_dim);
        for (slab, state) in slab.iter().zip(self.state.chunks_exact_mut(pitch)) {
            state[column..][..SLAB_VALUES].copy_from_slice(slab.as_flattened());
        }
    }

    /// Applies the rows that the state lacks.
    #[inline(always)]
    fn catch_up<S: Simd>(&self, s: S, slab: &mut Slab, column: usize) {
        let (dim, pitch) = (self.spec.key_dim, padded(self.spec.value_dim));
        for row in 0..self.replay.rows {
            let decay = s.splat(self.replay.gates[row * 2 * self.spec.value_heads + self.head]);
            let at = (row * self.spec.key_heads + self.key_head()) * 2 * dim;
            let k = &self.replay.keys[at..][..dim];
            let d = load_slab(s, &self.d[row * pitch + column..]);
            for (state, k) in slab.iter_mut().zip(k) {
                let k = s.splat(*k);
                for c in 0..SLAB {
                    let t = s.mul(s.load(&state[c]), decay);
                    s.store(s.fma(k, d[c], t), &mut state[c]);
                }
            }
        }
    }

    /// Runs the rows over one slab; `out` gets y before its norm.
    #[inline(always)]
    fn rows<S: Simd>(&mut self, s: S, slab: &mut Slab, column: usize) {
        let spec = self.spec;
        let (dim, pitch) = (spec.key_dim, padded(spec.value_dim));
        let live = spec.value_dim.saturating_sub(column).min(SLAB_VALUES);
        let key_head = self.key_head();
        let v_at = 2 * spec.key_heads * dim + self.head * spec.value_dim + column;
        for row in 0..self.gates.len() / (2 * spec.value_heads) {
            let keys = &self.keys[(row * spec.key_heads + key_head) * 2 * dim..][..2 * dim];
            let (k, q) = keys.split_at(dim);
            let gates = &self.gates[row * 2 * spec.value_heads..][..2 * spec.value_heads];
            let decay = s.splat(gates[self.head]);
            let beta = s.splat(gates[spec.value_heads + self.head]);
            // Rows of v lie far apart: without asking, each would be waited for.
            for c in 0..SLAB {
                s.ask(self.qkv, (row + ASK_ROWS) * spec.channels() + v_at + c * LANES);
            }
            let v = some_slab(s, &self.qkv[row * spec.channels() + v_at..][..live]);
            let seen = recall(s, slab, k, decay);
            let mut d = v;
            for c in 0..SLAB {
                d[c] = s.mul(beta, s.sub(v[c], seen[c]));
            }
            let y = learn(s, slab, (k, q), decay, d);
            if self.outcome == Outcome::Log {
                store_slab(s, d, &mut self.d[row * pitch + column..][..SLAB_VALUES]);
            }
            let from = self.head * spec.value_dim + column - self.out.start();
            let out = &mut self.out.row(self.first + row)[from..from + live];
            if live == SLAB_VALUES {
                store_slab(s, y, out);
            } else {
                let mut full = [0.0; SLAB_VALUES];
                store_slab(s, y, &mut full);
                out.copy_from_slice(&full[..live]);
            }
        }
    }

    /// `out = (y * inverse rms) * w * act(z)`.
    #[inline(always)]
    fn finish<S: Simd>(&mut self, s: S) {
        let spec = self.spec;
        let (dim, from) = (spec.value_dim, self.head * spec.value_dim);
        for row in 0..self.gates.len() / (2 * spec.value_heads) {
            let z = &self.z[row * spec.value_width() + from..][..dim];
            for line in 0..dim.div_ceil(LANES) {
                s.ask(self.z, (row + ASK_ROWS) * spec.value_width() + from + line * LANES);
            }
            let at = from - self.out.start();
            let y = &mut self.out.row(self.first + row)[at..at + dim];
            let inv = s.splat(inverse_rms(s, y, self.eps));
            super::norm::weave(
                s,
                z,
                self.norm,
                y,
                #[inline(always)]
                |z, w, y| {
                    let gate = match spec.gate {
                        Gate::Sigmoid => sigmoid(s, z),
                        Gate::Silu => silu(s, z),
                    };
                    s.mul(s.mul(s.mul(y, inv), w), gate)
                },
            );
        }
    }
}

#[inline(always)]
fn load_slab<S: Simd>(s: S, x: &[f32]) -> [S::F; SLAB] {
    let x = x[..SLAB_VALUES].as_chunks().0;
    let mut out = [s.splat(0.0); SLAB];
    for c in 0..SLAB {
        out[c] = s.load(&x[c]);
    }
    out
}

/// A slab that may lack some columns at the end of a head; zeros there.
#[inline(always)]
fn some_slab<S: Simd>(s: S, x: &[f32]) -> [S::F; SLAB] {
    if x.len() == SLAB_VALUES {
        return load_slab(s, x);
    }
    let mut full = [0.0; SLAB_VALUES];
    full[..x.len()].copy_from_slice(x);
    load_slab(s, &full)
}

#[inline(always)]
fn store_slab<S: Simd>(s: S, v: [S::F; SLAB], out: &mut [f32]) {
    for (v, out) in v.into_iter().zip(out.as_chunks_mut().0) {
        s.store(v, out);
    }
}

/// (0 + 2) + (1 + 3).
#[inline(always)]
fn total<S: Simd>(s: S, parts: [[S::F; SLAB]; PARTS]) -> [S::F; SLAB] {
    let mut out = [s.splat(0.0); SLAB];
    for c in 0..SLAB {
        out[c] = s.add(s.add(parts[0][c], parts[2][c]), s.add(parts[1][c], parts[3][c]));
    }
    out
}

/// One part of a sum over keys.
type Part<S> = [<S as Simd>::F; SLAB];

/// `sum over keys of (S * decay) * k`.
#[inline(always)]
fn recall<S: Simd>(s: S, slab: &Slab, k: &[f32], decay: S::F) -> Part<S> {
    let mut parts = [[s.splat(0.0); SLAB]; PARTS];
    let ((slabs, rest), (ks, k_rest)) = (slab.as_chunks::<PARTS>(), k.as_chunks::<PARTS>());
    for (states, k) in slabs.iter().zip(ks) {
        for p in 0..PARTS {
            recall_key(s, &states[p], k[p], decay, &mut parts[p]);
        }
    }
    for (p, (state, k)) in rest.iter().zip(k_rest).enumerate() {
        recall_key(s, state, *k, decay, &mut parts[p]);
    }
    total(s, parts)
}

#[inline(always)]
fn recall_key<S: Simd>(
    s: S,
    state: &[[f32; LANES]; SLAB],
    k: f32,
    decay: S::F,
    part: &mut Part<S>,
) {
    for c in 0..SLAB {
        part[c] = s.fma(s.mul(s.load(&state[c]), decay), s.splat(k), part[c]);
    }
}

/// `S = fma(k, d, S * decay)`; returns `sum over keys of S * q`.
#[inline(always)]
fn learn<S: Simd>(
    s: S,
    slab: &mut Slab,
    (k, q): (&[f32], &[f32]),
    decay: S::F,
    d: Part<S>,
) -> Part<S> {
    let mut parts = [[s.splat(0.0); SLAB]; PARTS];
    let (slabs, rest) = slab.as_chunks_mut::<PARTS>();
    let ((ks, k_rest), (qs, q_rest)) = (k.as_chunks::<PARTS>(), q.as_chunks::<PARTS>());
    for ((states, k), q) in slabs.iter_mut().zip(ks).zip(qs) {
        for p in 0..PARTS {
            learn_key(s, &mut states[p], (k[p], q[p]), (decay, d), &mut parts[p]);
        }
    }
    for (p, ((state, k), q)) in rest.iter_mut().zip(k_rest).zip(q_rest).enumerate() {
        learn_key(s, state, (*k, *q), (decay, d), &mut parts[p]);
    }
    total(s, parts)
}

#[inline(always)]
fn learn_key<S: Simd>(
    s: S,
    state: &mut [[f32; LANES]; SLAB],
    (k, q): (f32, f32),
    (decay, d): (S::F, Part<S>),
    part: &mut Part<S>,
) {
    for c in 0..SLAB {
        let t = s.fma(s.splat(k), d[c], s.mul(s.load(&state[c]), decay));
        s.store(t, &mut state[c]);
        part[c] = s.fma(t, s.splat(q), part[c]);
    }
}
