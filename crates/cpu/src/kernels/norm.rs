//! Norms and the residual streams.
//!
//! Owns: RMS norm, L2 norm, mixing of streams. Never: threads.

use super::lanes::{dot, map, merge, zip};
use super::math::{sigmoid, silu};
use crate::simd::{Op, Simd};

/// `out = (x * inv) * w`, `inv = 1 / sqrt(sum x^2 / n + eps)`.
#[inline(always)]
pub fn rms<S: Simd>(s: S, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let inv = s.splat(inverse_rms(s, x, eps));
    zip(
        s,
        x,
        w,
        out,
        #[inline(always)]
        |x, w| s.mul(s.mul(x, inv), w),
    );
}

/// `1 / sqrt(sum x^2 / n + eps)`.
#[inline(always)]
pub fn inverse_rms<S: Simd>(s: S, x: &[f32], eps: f32) -> f32 {
    1.0 / (dot(s, x, x) / x.len() as f32 + eps).sqrt()
}

/// `out = (x / sqrt(sum x^2 + 1e-6)) * scale`.
#[inline(always)]
pub fn l2<S: Simd>(s: S, x: &[f32], scale: f32, out: &mut [f32]) {
    let inv = s.splat(1.0 / (dot(s, x, x) + 1e-6).sqrt());
    let scale = s.splat(scale);
    map(
        s,
        x,
        out,
        #[inline(always)]
        |x| s.mul(s.mul(x, inv), scale),
    );
}

/// RMS norm of consecutive slices of `width` values, slice i with slice `i % groups` of the weights.
pub struct Norm<'a> {
    /// Whole slices.
    pub x: &'a [f32],
    /// `[groups, width]`.
    pub w: &'a [f32],
    /// Values of a slice.
    pub width: usize,
    /// Index of the first slice.
    pub first: usize,
    /// Added to the mean square.
    pub eps: f32,
    /// As long as `x`.
    pub out: &'a mut [f32],
}

impl Op for Norm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let groups = self.w.len() / self.width;
        let slices = self.x.chunks_exact(self.width).zip(self.out.chunks_exact_mut(self.width));
        for (i, (x, out)) in slices.enumerate() {
            let w = &self.w[(self.first + i) % groups * self.width..][..self.width];
            rms(s, x, w, self.eps, out);
        }
    }
}

/// `x = silu(x / divisor)`.
pub struct SiluOf<'a> {
    /// The values.
    pub x: &'a mut [f32],
    /// See the equation.
    pub divisor: f32,
}

impl Op for SiluOf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let divisor = s.splat(self.divisor);
        super::lanes::update(
            s,
            self.x,
            #[inline(always)]
            |x| silu(s, s.div(x, divisor)),
        );
    }
}

/// `x = factor * sigmoid(x / divisor)`.
pub struct SigmoidOf<'a> {
    /// The values.
    pub x: &'a mut [f32],
    /// See the equation.
    pub divisor: f32,
    /// See the equation.
    pub factor: f32,
}

impl Op for SigmoidOf<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (divisor, factor) = (s.splat(self.divisor), s.splat(self.factor));
        super::lanes::update(
            s,
            self.x,
            #[inline(always)]
            |x| s.mul(factor, sigmoid(s, s.div(x, divisor))),
        );
    }
}

/// `up = silu(gate) * up`.
pub struct SwiGlu<'a> {
    /// As long as `up`.
    pub gate: &'a [f32],
    /// In and out.
    pub up: &'a mut [f32],
}

impl Op for SwiGlu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        merge(
            s,
            self.gate,
            self.up,
            #[inline(always)]
            |gate, up| s.mul(silu(s, gate), up),
        );
    }
}

/// `out = (sum over streams, in order, of sigmoid(g_c) * n_c) / streams`, for columns of rows.
pub struct GatedMean<'a> {
    /// The mixing gates before the sigmoid, `[streams, width]`.
    pub gates: &'a [f32],
    /// The normed streams, `[streams, width]`.
    pub normed: &'a [f32],
    /// Values of a stream.
    pub width: usize,
    /// First column.
    pub start: usize,
    /// The columns from there on.
    pub out: &'a mut [f32],
}

impl Op for GatedMean<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let streams = self.gates.len() / self.width;
        self.out.fill(0.0);
        for c in 0..streams {
            let at = c * self.width + self.start;
            let (gates, normed) =
                (&self.gates[at..][..self.out.len()], &self.normed[at..][..self.out.len()]);
            weave(
                s,
                gates,
                normed,
                self.out,
                #[inline(always)]
                |g, n, out| s.fma(sigmoid(s, g), n, out),
            );
        }
        let divisor = s.splat(streams as f32);
        super::lanes::update(
            s,
            self.out,
            #[inline(always)]
            |x| s.div(x, divisor),
        );
    }
}

/// `out = f(x, y, out)`.
#[inline(always)]
pub fn weave<S: Simd>(
    s: S,
    x: &[f32],
    y: &[f32],
    out: &mut [f32],
    f: impl Fn(S::F, S::F, S::F) -> S::F,
) {
    use super::lanes::{load_tail, store_tail};
    assert!(x.len() == out.len() && y.len() == out.len());
    let (chunks, tail) = out.as_chunks_mut();
    let ((xs, x_tail), (ys, y_tail)) = (x.as_chunks(), y.as_chunks());
    for ((out, x), y) in chunks.iter_mut().zip(xs).zip(ys) {
        s.store(f(s.load(x), s.load(y), s.load(out)), out);
    }
    if !tail.is_empty() {
        let v = f(load_tail(s, x_tail), load_tail(s, y_tail), load_tail(s, tail));
        store_tail(s, v, tail);
    }
}

/// `out = fma(factor, x, out)`.
pub struct Axpy<'a> {
    /// The factor.
    pub factor: f32,
    /// As long as `out`.
    pub x: &'a [f32],
    /// In and out.
    pub out: &'a mut [f32],
}

impl Op for Axpy<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        merge(
            s,
            self.x,
            self.out,
            #[inline(always)]
            |x, out| s.fma(factor, x, out),
        );
    }
}

/// `out = out + x`.
pub struct Add<'a> {
    /// As long as `out`.
    pub x: &'a [f32],
    /// In and out.
    pub out: &'a mut [f32],
}

impl Op for Add<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        merge(
            s,
            self.x,
            self.out,
            #[inline(always)]
            |x, out| s.add(out, x),
        );
    }
}

/// `x = factor * x`.
pub struct Scale<'a> {
    /// The factor.
    pub factor: f32,
    /// In and out.
    pub x: &'a mut [f32],
}

impl Op for Scale<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let factor = s.splat(self.factor);
        super::lanes::update(
            s,
            self.x,
            #[inline(always)]
            |x| s.mul(factor, x),
        );
    }
}
