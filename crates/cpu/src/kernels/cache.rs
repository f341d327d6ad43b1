//! Numbers as the pages of an attention layer keep them.
//!
//! Owns: the precisions of keys and values, their rounding, where a row lies. Never: what is computed
//! with them.
//!
//! Single and half precision are rounded to nearest, ties to even. Eight bits: a row has a scale
//! `absmax / 127` and numbers `round(x * (127 / absmax))`, ties to even; `absmax` is an integer maximum
//! over the bit patterns. A row below 1e-29 is all zeros; one with an infinity or NaN gets the scale
//! NaN, so that it is never silently finite.

use super::lanes::load_tail;
use super::math::round_to_int;
use crate::simd::{LANES, Op, Simd};
use cherenkov_model::PageId;

/// A number that keys and values are kept as.
pub trait Element: Copy + Default + Send + Sync + 'static {
    /// Whether a row is to be multiplied by a scale.
    const SCALED: bool;
    /// Bytes of a saved number.
    const BYTES: usize;
    /// What pooled index keys are kept as beside these: they decide what is attended to, and are few.
    type Pooled: Element;

    /// Widens sixteen, without the scale.
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F;
    /// Rounds a row; the rest of `out` becomes zeros. Returns the scale.
    fn store_row<S: Simd>(s: S, x: &[f32], out: &mut [[Self; LANES]]) -> f32;
    /// Appends the number, little-endian.
    fn put(self, out: &mut Vec<u8>);
    /// The number of [`Self::BYTES`] bytes.
    fn get(bytes: &[u8]) -> Self;
}

impl Element for f32 {
    const SCALED: bool = false;
    const BYTES: usize = 4;
    type Pooled = Self;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load(x)
    }

    #[inline(always)]
    fn store_row<S: Simd>(s: S, x: &[f32], out: &mut [[Self; LANES]]) -> f32 {
        let mut x = x.chunks(LANES);
        for out in out {
            s.store(load_tail(s, x.next().unwrap_or(&[])), out);
        }
        1.0
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("four bytes"))
    }
}

/// Half precision, as its bit pattern.
impl Element for u16 {
    const SCALED: bool = false;
    const BYTES: usize = 2;
    type Pooled = Self;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_f16(x)
    }

    #[inline(always)]
    fn store_row<S: Simd>(s: S, x: &[f32], out: &mut [[Self; LANES]]) -> f32 {
        let mut x = x.chunks(LANES);
        for out in out {
            s.store_f16(load_tail(s, x.next().unwrap_or(&[])), out);
        }
        1.0
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("two bytes"))
    }
}

/// Eight bits with a scale per row.
impl Element for i8 {
    const SCALED: bool = true;
    const BYTES: usize = 1;
    type Pooled = u16;

    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[Self; LANES]) -> S::F {
        s.load_i8(x)
    }

    #[inline(always)]
    fn store_row<S: Simd>(s: S, x: &[f32], out: &mut [[Self; LANES]]) -> f32 {
        const TINY: f32 = 1e-29;
        const TOP: f32 = 127.0;
        let mut most = s.isplat(0);
        for x in x.chunks(LANES) {
            most = s.imax(most, s.and(s.bits(load_tail(s, x)), s.isplat(i32::MAX)));
        }
        let absmax = f32::from_bits(s.max_lane(most) as u32);
        if !absmax.is_finite() || absmax < TINY {
            out.as_flattened_mut().fill(0);
            return if absmax.is_finite() { 0.0 } else { f32::NAN };
        }
        let inverse = s.splat(TOP / absmax);
        let mut x = x.chunks(LANES);
        for out in out {
            let x = load_tail(s, x.next().unwrap_or(&[]));
            s.store_i8(round_to_int(s, s.mul(x, inverse)), out);
        }
        absmax / TOP
    }

    fn put(self, out: &mut Vec<u8>) {
        out.extend(self.to_le_bytes());
    }

    fn get(bytes: &[u8]) -> Self {
        Self::from_le_bytes(bytes.try_into().expect("one byte"))
    }
}

/// Rounds a row into the cache; returns its scale.
pub struct Narrow<'a, E> {
    /// The floats.
    pub x: &'a [f32],
    /// A multiple of sixteen numbers, at least as many.
    pub out: &'a mut [E],
}

impl<E: Element> Op for Narrow<'_, E> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        E::store_row(s, self.x, self.out.as_chunks_mut().0)
    }
}

/// One row.
#[derive(Clone, Copy)]
pub struct Row<'a, E> {
    /// Its numbers.
    pub values: &'a [[E; LANES]],
    /// What they are to be multiplied by, if they are [`Element::SCALED`].
    pub scale: f32,
}

/// Where the rows of one kv head lie.
#[derive(Clone, Copy)]
pub struct Rows<'a, E> {
    /// All pages.
    pub data: &'a [E],
    /// A scale per row, if the numbers have one.
    pub scales: &'a [f32],
    /// Page numbers of the sequence.
    pub pages: &'a [PageId],
    /// Rows of a page, of all heads.
    pub stride: usize,
    /// The first row of this head within a page.
    pub first: usize,
    /// Rows of a page, of this head.
    pub page_rows: usize,
    /// Numbers of a row: a multiple of sixteen.
    pub width: usize,
}

impl<'a, E: Element> Rows<'a, E> {
    /// Row `index` of the sequence.
    #[inline(always)]
    pub fn row(&self, index: usize) -> Row<'a, E> {
        // Narrow division is several times faster on most processors.
        let (index, page_rows) = (index as u32, self.page_rows as u32);
        let page = self.pages[(index / page_rows) as usize].0 as usize;
        let row = page * self.stride + self.first + (index % page_rows) as usize;
        let values = self.data[row * self.width..][..self.width].as_chunks().0;
        Row { values, scale: if E::SCALED { self.scales[row] } else { 1.0 } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{Arch, Isa};

    fn bytes(x: &[f32], isa: Isa) -> (f32, Vec<i8>) {
        let mut out = vec![1; x.len().next_multiple_of(LANES)];
        let scale = Arch::new(isa).unwrap().run(Narrow { x, out: &mut out });
        (scale, out)
    }

    #[test]
    fn eight_bits_are_rounded_to_nearest_of_the_rows_range() {
        for isa in Isa::available() {
            let x: Vec<f32> = (0..40).map(|i| (i as f32 - 25.0) * 0.37).collect();
            let (scale, q) = bytes(&x, isa);
            assert_eq!(scale, 25.0 * 0.37 / 127.0);
            assert_eq!((q[0], q[25], &q[40..]), (-127, 0, &[0i8; 8][..]));
            for (x, q) in x.iter().zip(&q) {
                assert!((x - f32::from(*q) * scale).abs() <= scale * 0.5001, "{x} {q}");
            }
            assert_eq!(bytes(&[0.0; 20], isa), (0.0, vec![0; 32]));
            let (scale, q) = bytes(&[1.0, f32::INFINITY, 2.0], isa);
            assert!(scale.is_nan() && q == [0; 16]);
        }
    }
}
