//! Gated DeltaNet and the causal convolutions in the reference.

use super::math;
use super::state::{DeltaState, RowRing};
use crate::batch::{Batch, Keep};
use crate::device::DeltaWeights;
use cherenkov_format::qwen4_exp::config::Delta;

/// `sum_j taps[j] * x[row - (kernel-1-j) * dilation]` per channel, over the sequence's rows.
/// The ring gains the rows of `x`.
pub fn conv(
    ring: &mut RowRing,
    batch: &Batch,
    (taps, kernel, dilation): (&[f32], usize, usize),
    x: &[f32],
) -> Vec<f64> {
    let width = taps.len() / kernel;
    let mut out = vec![0f64; x.len()];
    for run in &batch.runs {
        for row in run.range() {
            let at = i64::from(run.start) + (row - run.first) as i64;
            ring.put(run.slot.0 as usize, at as u32, &x[row * width..][..width]);
            for j in 0..kernel {
                let past = ring.row(run.slot.0 as usize, at - ((kernel - 1 - j) * dilation) as i64);
                for (channel, value) in past.iter().enumerate() {
                    out[row * width + channel] +=
                        f64::from(taps[channel * kernel + j]) * f64::from(*value);
                }
            }
        }
    }
    out
}

/// Inputs of the delta rule, whole batch.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// `[q | k | v]` after the convolution.
    pub qkv: &'a [f32],
    /// Output gate.
    pub z: &'a [f32],
    /// Decay.
    pub a: &'a [f32],
    /// Beta.
    pub b: &'a [f32],
}

/// Runs the rule over every row; returns `[rows, value_heads * value_dim]`.
pub fn run(
    state: &mut DeltaState,
    w: &DeltaWeights<Vec<f32>>,
    batch: &Batch,
    eps: f64,
    io: Inputs<'_>,
) -> Vec<f32> {
    let spec = &w.spec;
    let mut out = Vec::with_capacity(batch.rows() * spec.value_width());
    for run in &batch.runs {
        let slot = run.slot.0 as usize;
        assert!(state.tentative[slot].is_empty(), "settle before the next run");
        let mut s = state.settled[slot].clone();
        for row in run.range() {
            for head in 0..spec.value_heads {
                let size = spec.key_dim * spec.value_dim;
                out.extend(step(&mut s[head * size..][..size], w, eps, io, row, head));
            }
            if run.keep == Keep::Tentative {
                state.tentative[slot].push(s.clone());
            }
        }
        if run.keep == Keep::All {
            state.settled[slot] = s;
        }
    }
    out
}

/// (q, k, v) of one value head in a row of `qkv`.
fn heads<'a>(spec: &Delta, row: &'a [f32], head: usize) -> (&'a [f32], &'a [f32], &'a [f32]) {
    let key_head = head / (spec.value_heads / spec.key_heads);
    let keys = spec.key_heads * spec.key_dim;
    let at = key_head * spec.key_dim;
    let v = 2 * keys + head * spec.value_dim;
    (&row[at..at + spec.key_dim], &row[keys + at..][..spec.key_dim], &row[v..v + spec.value_dim])
}

fn step(
    s: &mut [f32],
    w: &DeltaWeights<Vec<f32>>,
    eps: f64,
    io: Inputs<'_>,
    row: usize,
    head: usize,
) -> Vec<f32> {
    let spec = &w.spec;
    let dv = spec.value_dim;
    let (q, k, v) = heads(spec, &io.qkv[row * spec.channels()..][..spec.channels()], head);
    let q_scale = 1.0 / (spec.key_dim as f64).sqrt();
    let q: Vec<f64> = math::l2_norm(q).iter().map(|q| q * q_scale).collect();
    let k = math::l2_norm(k);
    let at = row * spec.value_heads + head;
    let beta = math::sigmoid(f64::from(io.b[at]));
    let dt = math::softplus(f64::from(io.a[at]) + f64::from(w.dt_bias[head]));
    let decay = libm::exp(-libm::exp(f64::from(w.a_log[head])) * dt);
    let mut state: Vec<f64> = s.iter().map(|&s| f64::from(s) * decay).collect();
    let mut y = vec![0f64; dv];
    for j in 0..dv {
        let seen: f64 = (0..spec.key_dim).map(|i| state[i * dv + j] * k[i]).sum();
        let d = beta * (f64::from(v[j]) - seen);
        for i in 0..spec.key_dim {
            state[i * dv + j] += k[i] * d;
            y[j] += state[i * dv + j] * q[i];
        }
    }
    for (s, state) in s.iter_mut().zip(&state) {
        *s = *state as f32;
    }
    let mean = y.iter().map(|y| y * y).sum::<f64>() / dv as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    let z = &io.z[(row * spec.value_heads + head) * dv..][..dv];
    let gated = |(j, y): (usize, &f64)| {
        (y * scale * f64::from(w.norm[j]) * math::gate(spec.gate, f64::from(z[j]))) as f32
    };
    y.iter().enumerate().map(gated).collect()
}
