//! Slices of any length as vectors, and the one order of float sums.
//!
//! Owns: the tail of a slice that is no multiple of sixteen, and the dot product's order: lane i sums
//! the products at indices i, i+16, ... with fused multiply-add, within segments of [`SPAN`] values;
//! the lanes of a segment are added by the fixed tree; segments are added in order, from 0.
//! Never: threads.

use crate::simd::{LANES, Simd};

/// Values of a segment of a float sum.
pub const SPAN: usize = 640;

/// Up to sixteen values; the missing ones are 0.
#[inline(always)]
pub fn load_tail<S: Simd>(s: S, x: &[f32]) -> S::F {
    let mut full = [0.0; LANES];
    full[..x.len()].copy_from_slice(x);
    s.load(&full)
}

/// The first `out.len()` lanes.
#[inline(always)]
pub fn store_tail<S: Simd>(s: S, v: S::F, out: &mut [f32]) {
    let mut full = [0.0; LANES];
    s.store(v, &mut full);
    let len = out.len();
    out.copy_from_slice(&full[..len]);
}

/// `out = f(out)`.
#[inline(always)]
pub fn update<S: Simd>(s: S, out: &mut [f32], f: impl Fn(S::F) -> S::F) {
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    for out in chunks {
        s.store(f(s.load(out)), out);
    }
    if !tail.is_empty() {
        store_tail(s, f(load_tail(s, tail)), tail);
    }
}

/// `out = f(x)`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn map<S: Simd>(s: S, x: &[f32], out: &mut [f32], f: impl Fn(S::F) -> S::F) {
    assert_eq!(x.len(), out.len());
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    let (xs, x_tail) = x.as_chunks::<LANES>();
    for (out, x) in chunks.iter_mut().zip(xs) {
        s.store(f(s.load(x)), out);
    }
    if !tail.is_empty() {
        store_tail(s, f(load_tail(s, x_tail)), tail);
    }
}

/// `out = f(x, out)`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn merge<S: Simd>(s: S, x: &[f32], out: &mut [f32], f: impl Fn(S::F, S::F) -> S::F) {
    assert_eq!(x.len(), out.len());
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    let (xs, x_tail) = x.as_chunks::<LANES>();
    for (out, x) in chunks.iter_mut().zip(xs) {
        s.store(f(s.load(x), s.load(out)), out);
    }
    if !tail.is_empty() {
        store_tail(s, f(load_tail(s, x_tail), load_tail(s, tail)), tail);
    }
}

/// `out = f(x, y)`.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn zip<S: Simd>(s: S, x: &[f32], y: &[f32], out: &mut [f32], f: impl Fn(S::F, S::F) -> S::F) {
    assert!(x.len() == out.len() && y.len() == out.len());
    let (chunks, tail) = out.as_chunks_mut::<LANES>();
    let ((xs, x_tail), (ys, y_tail)) = (x.as_chunks::<LANES>(), y.as_chunks::<LANES>());
    for ((out, x), y) in chunks.iter_mut().zip(xs).zip(ys) {
        s.store(f(s.load(x), s.load(y)), out);
    }
    if !tail.is_empty() {
        store_tail(s, f(load_tail(s, x_tail), load_tail(s, y_tail)), tail);
    }
}

/// The dot product in the order of the module header.
///
/// # Panics
/// When the lengths differ.
#[inline(always)]
pub fn dot<S: Simd>(s: S, a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut total = 0.0;
    for (a, b) in a.chunks(SPAN).zip(b.chunks(SPAN)) {
        let mut acc = s.splat(0.0);
        let ((a, a_tail), (b, b_tail)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
        for (a, b) in a.iter().zip(b) {
            acc = s.fma(s.load(a), s.load(b), acc);
        }
        if !a_tail.is_empty() {
            acc = s.fma(load_tail(s, a_tail), load_tail(s, b_tail), acc);
        }
        total += s.sum(acc);
    }
    total
}
