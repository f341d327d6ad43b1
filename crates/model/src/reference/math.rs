//! Scalar pieces of the reference: f64 sums, one row at a time.
//!
//! Owns: the plain meaning of norm, dot, rotation and the activations. Never: state.

use cherenkov_format::MatrixRef;
use cherenkov_format::qwen4_exp::config::{Attention, Gate};

use crate::batch::Position;

/// Logistic sigmoid.
pub fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + libm::exp(-x))
}

/// `x * sigmoid(x)`.
pub fn silu(x: f64) -> f64 {
    x * sigmoid(x)
}

/// `ln(1 + e^x)` without overflow.
pub fn softplus(x: f64) -> f64 {
    if x > 0.0 { x + libm::log1p(libm::exp(-x)) } else { libm::log1p(libm::exp(x)) }
}

/// The output gate of DeltaNet.
pub fn gate(act: Gate, x: f64) -> f64 {
    match act {
        Gate::Sigmoid => sigmoid(x),
        Gate::Silu => silu(x),
    }
}

/// `sum a_i b_i`.
pub fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum()
}

/// RMS norm of each of `groups` slices of `x` with the slice's own weights.
pub fn norm(x: &[f32], w: &[f32], groups: usize, eps: f64) -> Vec<f32> {
    assert_eq!(x.len(), w.len());
    let width = x.len() / groups;
    let mut out = Vec::with_capacity(x.len());
    for (x, w) in x.chunks_exact(width).zip(w.chunks_exact(width)) {
        let scale = 1.0 / (dot(x, x) / width as f64 + eps).sqrt();
        out.extend(x.iter().zip(w).map(|(&x, &w)| (f64::from(x) * scale * f64::from(w)) as f32));
    }
    out
}

/// `x * rsqrt(sum x^2 + 1e-6)`.
pub fn l2_norm(x: &[f32]) -> Vec<f64> {
    let scale = 1.0 / (dot(x, x) + 1e-6).sqrt();
    x.iter().map(|&x| f64::from(x) * scale).collect()
}

/// `W x` for every row of `x` (`[rows, cols]`), row-major.
pub fn linear(w: MatrixRef<'_>, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / w.cols();
    let mut out = vec![0.0; rows * w.rows()];
    let mut weights = vec![0.0; w.cols()];
    for o in 0..w.rows() {
        w.read_row(o, &mut weights);
        for (r, x) in x.chunks_exact(w.cols()).enumerate() {
            out[r * w.rows() + o] = dot(&weights, x) as f32;
        }
    }
    out
}

/// The coordinate that frequency `i` turns by (MODEL "Images": interleaved axes).
fn axis(spec: &Attention, i: usize, position: Position) -> u32 {
    let [_, height, width] = spec.mrope_section;
    match i % 3 {
        1 if i < 3 * height => position.h,
        2 if i < 3 * width => position.w,
        _ => position.t,
    }
}

/// Rotates the first `rope_dims` values of a head in place: value i pairs with i + rope_dims/2.
pub fn rotate(spec: &Attention, position: Position, head: &mut [f32]) {
    let half = spec.rope_dims / 2;
    for i in 0..half {
        let exponent = -((2 * i) as f64) / spec.rope_dims as f64;
        let angle = f64::from(axis(spec, i, position)) * libm::pow(spec.rope_theta, exponent);
        let (sin, cos) = (libm::sin(angle), libm::cos(angle));
        let (a, b) = (f64::from(head[i]), f64::from(head[i + half]));
        head[i] = (a * cos - b * sin) as f32;
        head[i + half] = (b * cos + a * sin) as f32;
    }
}

/// Indices of the `k` largest values, lowest index first among equals, ascending.
pub fn top_k(values: &[f64], k: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    order.sort_by(|&a, &b| values[b as usize].total_cmp(&values[a as usize]).then(a.cmp(&b)));
    order.truncate(k);
    order.sort_unstable();
    order
}

/// Softmax.
pub fn softmax(values: &[f64]) -> Vec<f64> {
    let max = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exp: Vec<f64> = values.iter().map(|v| libm::exp(v - max)).collect();
    let sum: f64 = exp.iter().sum();
    exp.iter().map(|e| e / sum).collect()
}
