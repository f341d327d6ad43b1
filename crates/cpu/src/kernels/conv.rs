//! Causal depthwise convolution over the rows of a sequence.
//!
//! Owns: the order of its sum: taps in order, the oldest first, with fused multiply-add from 0; a tap
//! before the start of the sequence adds nothing. Never: where rows are remembered.

use super::lanes::update;
use super::math::silu;
use crate::simd::{Op, Simd};
use crate::threads::Columns;

/// Geometry of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvSpec {
    /// Taps.
    pub kernel: usize,
    /// Rows between taps.
    pub dilation: usize,
    /// Rows that the ring holds; row i lies at `i % capacity`.
    pub capacity: usize,
}

/// Some channels of one run: `out = silu(conv(x))`; the ring gains the last rows.
pub struct ConvSilu<'a, 'r, 'o> {
    /// Geometry.
    pub spec: ConvSpec,
    /// Index within the sequence of row 0 of `x`.
    pub start: usize,
    /// Taps `[kernel, width]`.
    pub taps: &'a [f32],
    /// Inputs `[rows, width]`.
    pub x: &'a [f32],
    /// Channels of all rows.
    pub width: usize,
    /// The sequence's ring, these channels.
    pub ring: &'a mut Columns<'r, f32>,
    /// The output, these channels; rows of the whole batch.
    pub out: &'a mut Columns<'o, f32>,
    /// Batch row of row 0.
    pub first: usize,
}

impl Op for ConvSilu<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (width, from, len) = (self.width, self.out.start(), self.out.len());
        let x = |row: usize| &self.x[row * width + from..][..len];
        let rows = self.x.len() / width;
        for row in 0..rows {
            let out = self.out.row(self.first + row);
            out.fill(0.0);
            for j in 0..self.spec.kernel {
                let back = (self.spec.kernel - 1 - j) * self.spec.dilation;
                let taps = &self.taps[j * width + from..][..len];
                let index = self.start + row;
                if back > index {
                    continue;
                }
                let past = if back <= row {
                    x(row - back)
                } else {
                    self.ring.row((index - back) % self.spec.capacity)
                };
                tap(s, taps, past, out);
            }
            update(
                s,
                out,
                #[inline(always)]
                |v| silu(s, v),
            );
        }
        for row in rows.saturating_sub(self.spec.capacity)..rows {
            self.ring.row((self.start + row) % self.spec.capacity).copy_from_slice(x(row));
        }
    }
}

/// `out = fma(taps, x, out)`.
#[inline(always)]
fn tap<S: Simd>(s: S, taps: &[f32], x: &[f32], out: &mut [f32]) {
    super::norm::weave(
        s,
        taps,
        x,
        out,
        #[inline(always)]
        |w, x, out| s.fma(w, x, out),
    );
}
