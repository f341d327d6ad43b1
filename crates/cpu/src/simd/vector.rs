//! The vector every kernel is written in: sixteen lanes of f32 or i32.
//!
//! Owns: the operations kernels may use and the exact meaning of each.
//! Never: an algorithm of the model.
//! Invariant: every implementation gives the same bits (the payload and sign of a NaN excepted), so a
//! kernel's result does not depend on the instruction set that ran it.
//!
//! A value that implements [`Simd`] proves that its instructions exist on this processor: it can only
//! be made after detection. That makes the methods safe to call. They are inlined into the one
//! `#[target_feature]` function of each implementation, [`Simd::call`].

use super::{Onto, Panel};
use crate::threads::Patch;

/// Lanes of a vector; also the rows of a weight tile.
pub const LANES: usize = 16;

/// Sixteen rows of one 32-bit code word.
pub type Line = [u8; 64];

/// Work that runs with some instruction set. `run` must be `#[inline(always)]`.
pub trait Op {
    /// What it returns.
    type Output;

    /// Does the work.
    fn run<S: Simd>(self, s: S) -> Self::Output;
}

/// Operations on sixteen lanes.
pub trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen f32.
    type F: Copy;
    /// Sixteen i32, or sixteen quads of bytes.
    type I: Copy;

    /// Most rows that [`Self::dots`] should take at once: as many as registers hold, at most 8.
    const TOGETHER: usize;

    /// Runs `op` compiled for this instruction set.
    fn call<O: Op>(self, op: O) -> O::Output;

    /// The same number in every lane.
    fn splat(self, x: f32) -> Self::F;
    /// Lanes from memory.
    fn load(self, x: &[f32; LANES]) -> Self::F;
    /// Lanes to memory.
    fn store(self, v: Self::F, out: &mut [f32; LANES]);
    /// Widens sixteen little-endian bf16.
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// Widens sixteen half-precision floats.
    fn load_f16(self, x: &[u16; LANES]) -> Self::F;
    /// Widens sixteen bytes.
    fn load_i8(self, x: &[i8; LANES]) -> Self::F;
    /// Rounds to half precision, ties to even.
    fn store_f16(self, v: Self::F, out: &mut [u16; LANES]);
    /// `a + b`.
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a - b`.
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b`.
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a / b`.
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// All ones where `a > b`, else zeros; zeros where either is NaN.
    fn gt(self, a: Self::F, b: Self::F) -> Self::I;
    /// `a` where the mask is all ones, `b` where it is zero.
    fn select(self, mask: Self::I, a: Self::F, b: Self::F) -> Self::F;
    /// The bit patterns.
    fn bits(self, v: Self::F) -> Self::I;
    /// Floats of these bit patterns.
    fn of_bits(self, v: Self::I) -> Self::F;
    /// Sum by the fixed tree: lane i + lane i+8, then i+4, i+2, i+1.
    fn sum(self, v: Self::F) -> f32;
    /// The sums of sixteen vectors, each as [`Self::sum`], the first in lane 0.
    #[inline(always)]
    fn sums(self, v: [Self::F; LANES]) -> Self::F {
        self.load(&v.map(
            #[inline(always)]
            |v| self.sum(v),
        ))
    }
    /// Lane 0.
    fn first(self, v: Self::F) -> f32;

    /// The same number in every lane.
    fn isplat(self, x: i32) -> Self::I;
    /// Lanes from memory.
    fn iload(self, x: &Line) -> Self::I;
    /// Lanes to memory.
    fn istore(self, v: Self::I, out: &mut Line);
    /// The low bytes of the lanes to memory.
    fn store_i8(self, v: Self::I, out: &mut [i8; LANES]);
    /// Wrapping `a + b`.
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I;
    /// Wrapping `a - b`.
    fn isub(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bits in both.
    fn and(self, a: Self::I, b: Self::I) -> Self::I;
    /// Bits in either.
    fn or(self, a: Self::I, b: Self::I) -> Self::I;
    /// Shift left.
    fn shl(self, v: Self::I, n: u32) -> Self::I;
    /// Logical shift right.
    fn shr(self, v: Self::I, n: u32) -> Self::I;
    /// Arithmetic shift right.
    fn sar(self, v: Self::I, n: u32) -> Self::I;
    /// The larger, signed.
    fn imax(self, a: Self::I, b: Self::I) -> Self::I;
    /// The largest lane, signed.
    #[inline(always)]
    fn max_lane(self, v: Self::I) -> i32 {
        lanes(self, v).into_iter().fold(i32::MIN, i32::max)
    }
    /// The wrapping sum of the lanes.
    #[inline(always)]
    fn sum_lanes(self, v: Self::I) -> i32 {
        lanes(self, v).into_iter().fold(0, i32::wrapping_add)
    }
    /// Nearest f32, ties to even.
    fn to_f32(self, v: Self::I) -> Self::F;
    /// `acc + sum over the four bytes of code * x`, codes unsigned, `x` signed; exact.
    fn dot4(self, acc: Self::I, codes: Self::I, x: [i8; 4]) -> Self::I;
    /// Asks for the cache line `ahead` bytes after `line`; any address is allowed.
    fn prefetch(self, line: &Line, ahead: usize);
    /// Asks for `x[at]` to be in the nearest cache soon; `at` may lie beyond the end.
    #[inline(always)]
    fn ask(self, _x: &[f32], _at: usize) {}

    /// Exact integer dot products of the sixteen rows of one group with `R` activation rows.
    ///
    /// Values are `W` bits wide, stored at `STORED` bits (`W`, or 8 when unpacked). `x` holds `R`
    /// times `QUADS` quads. Lines `AHEAD` bytes further are prefetched (0: none).
    #[inline(always)]
    fn dots<
        const W: usize,
        const STORED: usize,
        const QUADS: usize,
        const R: usize,
        const AHEAD: usize,
    >(
        self,
        words: &[Line],
        x: &[[i8; 4]],
    ) -> [Self::I; R] {
        let mut acc = [self.isplat(0); R];
        let x = &x[..R * QUADS];
        each_quad::<Self, STORED, QUADS, AHEAD>(
            self,
            words,
            #[inline(always)]
            |quad, codes| {
                for n in 0..R {
                    acc[n] = self.dot4(acc[n], codes, x[n * QUADS + quad]);
                }
            },
        );
        acc
    }

    /// Prepares this thread for [`Self::panel`]; paired with [`Self::close_tiles`].
    #[inline(always)]
    fn open_tiles(self) {}

    /// Undoes [`Self::open_tiles`].
    #[inline(always)]
    fn close_tiles(self) {}

    /// Adds one segment of one tile times up to sixteen rows, with unpacked codes, to `out`, if this
    /// instruction set has a better way than [`Self::dots`] for that many rows; `false` if it does not.
    #[inline(always)]
    fn panel(self, _: &Panel<'_>, _: &mut Patch<'_>, _: Onto) -> bool {
        false
    }
}

/// Four bytes as one word. (Not by `map`, which is not always inlined.)
#[inline(always)]
pub fn word(x: [i8; 4]) -> i32 {
    i32::from_le_bytes([x[0] as u8, x[1] as u8, x[2] as u8, x[3] as u8])
}

/// The lanes as an array.
#[inline(always)]
fn lanes<S: Simd>(s: S, v: S::I) -> [i32; LANES] {
    let mut line = [0; 64];
    s.istore(v, &mut line);
    let mut out = [0; LANES];
    for (out, bytes) in out.iter_mut().zip(line.as_chunks::<4>().0) {
        *out = i32::from_ne_bytes(*bytes);
    }
    out
}

/// Words of a group at `stored` bits and `quads` quads.
pub const fn words(stored: usize, quads: usize) -> usize {
    quads * stored / 8
}

/// One word of a group, asking for a later one.
#[inline(always)]
fn load<S: Simd, const AHEAD: usize>(s: S, lines: &[Line], word: usize) -> S::I {
    if AHEAD > 0 {
        s.prefetch(&lines[word], AHEAD);
    }
    s.iload(&lines[word])
}

/// Calls `f(quad, byte codes)` for every quad of a group stored at `STORED` bits.
#[inline(always)]
pub fn each_quad<S: Simd, const STORED: usize, const QUADS: usize, const AHEAD: usize>(
    s: S,
    lines: &[Line],
    mut f: impl FnMut(usize, S::I),
) {
    let lines = &lines[..words(STORED, QUADS)];
    match STORED {
        8 => {
            for quad in 0..QUADS {
                f(quad, load::<S, AHEAD>(s, lines, quad));
            }
        }
        4 => {
            let mask = s.isplat(0x0f0f_0f0f);
            for word in 0..QUADS / 2 {
                let v = load::<S, AHEAD>(s, lines, word);
                f(2 * word, s.and(v, mask));
                f(2 * word + 1, s.and(s.shr(v, 4), mask));
            }
        }
        2 => {
            let mask = s.isplat(0x0303_0303);
            for word in 0..QUADS / 4 {
                let v = load::<S, AHEAD>(s, lines, word);
                for i in 0..4 {
                    f(4 * word + i, s.and(s.shr(v, 2 * i as u32), mask));
                }
            }
        }
        _ => {
            let (low, one) = (s.isplat(0x0303_0303), s.isplat(0x0101_0101));
            for pair in 0..QUADS / 8 {
                let high = load::<S, AHEAD>(s, lines, QUADS / 4 + pair);
                for half in 0..2 {
                    let v = load::<S, AHEAD>(s, lines, 2 * pair + half);
                    for i in 0..4 {
                        let bit = s.and(s.shr(high, (4 * half + i) as u32), one);
                        let codes = s.or(s.and(s.shr(v, 2 * i as u32), low), s.shl(bit, 2));
                        f(8 * pair + 4 * half + i, codes);
                    }
                }
            }
        }
    }
}
