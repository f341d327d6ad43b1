//! Activations as int8, per row and group.
//!
//! Owns: the quantised form and its layout. Never: weights.
//!
//! Of each group of a row: `absmax` by integer maximum over the bit patterns, `scale = absmax / 127`,
//! `q = round(x * (127 / absmax))`, ties to even, and the sum of q. A group below 1e-29 is all zeros. A
//! group that holds an infinity or NaN gets scale NaN, so that the result is NaN: never silently finite.
//!
//! Layout: panels of 16 rows (the last one shorter), each `[group][row][value]`, scales and sums
//! `[group][row]`.

use super::math::round_to_int;
use crate::memory::Aligned;
use crate::simd::{LANES, Op, PANEL_PAD, Simd};
use cherenkov_format::Group;

/// Rows of a panel.
pub const PANEL: usize = 16;

/// Shape of quantised activations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub rows: usize,
    /// Values per row, a multiple of the group.
    pub cols: usize,
    /// Values that share a scale.
    pub group: Group,
}

impl Shape {
    /// Groups of a row.
    pub fn groups(self) -> usize {
        self.cols / self.group.get()
    }
}

/// Quantised activations; memory is kept from use to use.
#[derive(Debug, Default)]
pub struct Quantised {
    values: Aligned<i8>,
    scales: Aligned<f32>,
    sums: Aligned<f32>,
}

/// One panel, read-only.
#[derive(Clone, Copy)]
pub struct PanelRef<'a> {
    /// `[group][row][value]`, then [`PANEL_PAD`] more.
    pub values: &'a [i8],
    /// `[group][row]`.
    pub scales: &'a [f32],
    /// `[group][row]`.
    pub sums: &'a [f32],
    /// Rows of the panel.
    pub rows: usize,
}

/// One panel, to be filled.
pub struct PanelMut<'a> {
    values: &'a mut [i8],
    scales: &'a mut [f32],
    sums: &'a mut [f32],
}

impl Quantised {
    /// Makes room; returns values, scales and sums, whose panels start at multiples of
    /// `16 * cols`, `16 * groups` and `16 * groups`.
    pub fn reserve(&mut self, shape: Shape) -> (&mut [i8], &mut [f32], &mut [f32]) {
        let values = shape.rows * shape.cols;
        let scales = shape.rows * shape.groups();
        let all = self.values.reserve(values + PANEL_PAD);
        (&mut all[..values], self.scales.reserve(scales), self.sums.reserve(scales))
    }

    /// Quantises all rows in this thread.
    #[inline(always)]
    pub fn fill<S: Simd>(&mut self, s: S, shape: Shape, x: &[f32]) {
        let (values, scales, sums) = self.reserve(shape);
        if shape.rows > 0 {
            fill_panels(s, shape, x, values, scales, sums);
        }
    }

    /// One panel of activations of this shape.
    pub fn panel(&self, shape: Shape, panel: usize) -> PanelRef<'_> {
        let (first, groups) = (panel * PANEL, shape.groups());
        let rows = (shape.rows - first).min(PANEL);
        let (start, len) = (first * shape.cols, rows * shape.cols);
        PanelRef {
            values: &self.values[start..][..len + PANEL_PAD],
            scales: &self.scales[first * groups..][..rows * groups],
            sums: &self.sums[first * groups..][..rows * groups],
            rows,
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.values.bytes() + self.scales.bytes() + self.sums.bytes()
    }
}

/// Quantises consecutive panels; for [`crate::simd::Arch::run`].
pub struct Quantise<'a> {
    /// Of all rows of `x`.
    pub shape: Shape,
    /// `[rows, cols]`.
    pub x: &'a [f32],
    /// See [`Quantised::reserve`].
    pub values: &'a mut [i8],
    /// See [`Quantised::reserve`].
    pub scales: &'a mut [f32],
    /// See [`Quantised::reserve`].
    pub sums: &'a mut [f32],
}

impl Op for Quantise<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        fill_panels(s, self.shape, self.x, self.values, self.scales, self.sums);
    }
}

/// Quantises the rows of `x`, whose number the length gives.
#[inline(always)]
fn fill_panels<S: Simd>(
    s: S,
    shape: Shape,
    x: &[f32],
    values: &mut [i8],
    scales: &mut [f32],
    sums: &mut [f32],
) {
    let (cols, groups) = (shape.cols, shape.groups());
    let parts = values
        .chunks_mut(PANEL * cols)
        .zip(scales.chunks_mut(PANEL * groups).zip(sums.chunks_mut(PANEL * groups)));
    for (x, (values, (scales, sums))) in x.chunks(PANEL * cols).zip(parts) {
        let panel = PanelMut { values, scales, sums };
        match shape.group {
            Group::G64 => fill_panel::<S, 64>(s, x, cols, panel),
            Group::G32 => fill_panel::<S, 32>(s, x, cols, panel),
        }
    }
}

#[inline(always)]
fn fill_panel<S: Simd, const G: usize>(s: S, x: &[f32], cols: usize, out: PanelMut<'_>) {
    let rows = x.len() / cols;
    for (r, x) in x.chunks_exact(cols).enumerate() {
        for (g, x) in x.as_chunks::<G>().0.iter().enumerate() {
            let at = g * rows + r;
            let values = &mut out.values[at * G..][..G];
            (out.scales[at], out.sums[at]) = fill_group::<S, G>(s, x, values);
        }
    }
}

/// Quantises one group; returns its scale and its sum.
#[inline(always)]
fn fill_group<S: Simd, const G: usize>(s: S, x: &[f32; G], out: &mut [i8]) -> (f32, f32) {
    const TINY: f32 = 1e-29;
    const TOP: f32 = 127.0;
    let (x, out) = (x.as_chunks::<LANES>().0, out.as_chunks_mut::<LANES>().0);
    let mut most = s.isplat(0);
    for x in x {
        most = s.imax(most, s.and(s.bits(s.load(x)), s.isplat(i32::MAX)));
    }
    let absmax = f32::from_bits(s.max_lane(most) as u32);
    if !absmax.is_finite() || absmax < TINY {
        out.as_flattened_mut().fill(0);
        return (if absmax.is_finite() { 0.0 } else { f32::NAN }, 0.0);
    }
    let inverse = s.splat(TOP / absmax);
    let mut sum = s.isplat(0);
    for (x, out) in x.iter().zip(out) {
        let q = round_to_int(s, s.mul(s.load(x), inverse));
        sum = s.iadd(sum, q);
        s.store_i8(q, out);
    }
    (absmax / TOP, s.sum_lanes(sum) as f32)
}
