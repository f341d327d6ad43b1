//! Heads on their way into the cache and against it.
//!
//! Owns: norm, rotation and scale of query and key heads; what a row leaves in the pages.
//! Never: selection, softmax.

use super::cache::{Element, Narrow};
use super::lanes::update;
use super::norm::rms;
use super::rope::rotate;
use crate::simd::{Op, Simd};

/// Norms, rotates and scales some heads of one row.
pub struct Queries<'a> {
    /// The first head; head h starts at `h * stride`.
    pub x: &'a [f32],
    /// See above.
    pub stride: usize,
    /// Norm weight, as long as a head.
    pub w: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// Cosines and sines of the row's position.
    pub rope: (&'a [f32], &'a [f32]),
    /// Factor.
    pub scale: f32,
    /// Out `[heads, width]`, width at least that of a head.
    pub out: &'a mut [f32],
    /// See above.
    pub width: usize,
}

impl Op for Queries<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let scale = s.splat(self.scale);
        for (h, out) in self.out.chunks_exact_mut(self.width).enumerate() {
            let (head, rest) = out.split_at_mut(self.w.len());
            rms(s, &self.x[h * self.stride..][..self.w.len()], self.w, self.eps, head);
            rotate(self.rope, head);
            update(
                s,
                head,
                #[inline(always)]
                |x| s.mul(x, scale),
            );
            rest.fill(0.0);
        }
    }
}

/// Norms, rotates and stores one key head; returns the scale of the stored row.
pub struct StoreKey<'a, E> {
    /// The head.
    pub x: &'a [f32],
    /// Norm weight.
    pub w: &'a [f32],
    /// Added to the mean square.
    pub eps: f32,
    /// Cosines and sines of the position.
    pub rope: (&'a [f32], &'a [f32]),
    /// Memory, at least as long as the head.
    pub memory: &'a mut [f32],
    /// Out, whole vectors.
    pub out: &'a mut [E],
}

impl<E: Element> Op for StoreKey<'_, E> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let head = &mut self.memory[..self.x.len()];
        rms(s, self.x, self.w, self.eps, head);
        rotate(self.rope, head);
        Narrow { x: head, out: self.out }.run(s)
    }
}

/// The mean of raw keys: summed in order, then divided.
pub struct Mean<'a> {
    /// Sums of the rows so far.
    pub sum: &'a mut [f32],
    /// How many rows.
    pub count: usize,
}

impl Op for Mean<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let count = s.splat(self.count as f32);
        update(
            s,
            self.sum,
            #[inline(always)]
            |x| s.div(x, count),
        );
    }
}
