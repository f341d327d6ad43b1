//! The instruction set every processor has: plain loops over arrays.
//!
//! Owns: the definition of each operation. Never: speed; fused multiply-add is a library call where
//! the processor has none.

use super::vector::{LANES, Line, Op, Simd};
use cherenkov_format::float::{bf16_to_f32, f16_to_f32, f32_to_f16};

/// Plain loops.
#[derive(Clone, Copy, Debug)]
pub struct Portable;

#[inline(always)]
fn zip<A: Copy, B: Copy, C: Default + Copy>(
    a: [A; LANES],
    b: [B; LANES],
    f: impl Fn(A, B) -> C,
) -> [C; LANES] {
    let mut out = [C::default(); LANES];
    for i in 0..LANES {
        out[i] = f(a[i], b[i]);
    }
    out
}

impl Simd for Portable {
    type F = [f32; LANES];
    type I = [i32; LANES];

    const TOGETHER: usize = 1;

    #[inline(always)]
    fn call<O: Op>(self, op: O) -> O::Output {
        op.run(self)
    }

    #[inline(always)]
    fn splat(self, x: f32) -> Self::F {
        [x; LANES]
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> Self::F {
        *x
    }

    #[inline(always)]
    fn store(self, v: Self::F, out: &mut [f32; LANES]) {
        *out = v;
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> Self::F {
        let mut out = [0.0; LANES];
        for (out, b) in out.iter_mut().zip(x.as_chunks::<2>().0) {
            *out = bf16_to_f32(u16::from_le_bytes(*b));
        }
        out
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> Self::F {
        x.map(f16_to_f32)
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> Self::F {
        x.map(f32::from)
    }

    #[inline(always)]
    fn store_f16(self, v: Self::F, out: &mut [u16; LANES]) {
        *out = v.map(f32_to_f16);
    }

    #[inline(always)]
    fn add(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a + b)
    }

    #[inline(always)]
    fn sub(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a - b)
    }

    #[inline(always)]
    fn mul(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a * b)
    }

    #[inline(always)]
    fn div(self, a: Self::F, b: Self::F) -> Self::F {
        zip(a, b, |a, b| a / b)
    }

    #[inline(always)]
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F {
        let mut out = c;
        for i in 0..LANES {
            out[i] = a[i].mul_add(b[i], c[i]);
        }
        out
    }

    #[inline(always)]
    fn gt(self, a: Self::F, b: Self::F) -> Self::I {
        zip(a, b, |a, b| if a > b { -1 } else { 0 })
    }

    #[inline(always)]
    fn select(self, mask: Self::I, a: Self::F, b: Self::F) -> Self::F {
        let mut out = b;
        for i in 0..LANES {
            out[i] = if mask[i] != 0 { a[i] } else { b[i] };
        }
        out
    }

    #[inline(always)]
    fn bits(self, v: Self::F) -> Self::I {
        v.map(|x| x.to_bits() as i32)
    }

    #[inline(always)]
    fn of_bits(self, v: Self::I) -> Self::F {
        v.map(|x| f32::from_bits(x as u32))
    }

    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let mut v = v;
        for half in [8, 4, 2, 1] {
            for i in 0..half {
                v[i] += v[i + half];
            }
        }
        v[0]
    }

    #[inline(always)]
    fn first(self, v: Self::F) -> f32 {
        v[0]
    }

    #[inline(always)]
    fn isplat(self, x: i32) -> Self::I {
        [x; LANES]
    }

    #[inline(always)]
    fn iload(self, x: &Line) -> Self::I {
        let mut out = [0; LANES];
        for (out, b) in out.iter_mut().zip(x.as_chunks::<4>().0) {
            *out = i32::from_le_bytes(*b);
        }
        out
    }

    #[inline(always)]
    fn istore(self, v: Self::I, out: &mut Line) {
        for (out, v) in out.as_chunks_mut::<4>().0.iter_mut().zip(v) {
            *out = v.to_le_bytes();
        }
    }

    #[inline(always)]
    fn store_i8(self, v: Self::I, out: &mut [i8; LANES]) {
        *out = v.map(|x| x as i8);
    }

    #[inline(always)]
    fn iadd(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_add)
    }

    #[inline(always)]
    fn isub(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::wrapping_sub)
    }

    #[inline(always)]
    fn and(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a & b)
    }

    #[inline(always)]
    fn or(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, |a, b| a | b)
    }

    #[inline(always)]
    fn shl(self, v: Self::I, n: u32) -> Self::I {
        v.map(|x| x << n)
    }

    #[inline(always)]
    fn shr(self, v: Self::I, n: u32) -> Self::I {
        v.map(|x| (x as u32 >> n) as i32)
    }

    #[inline(always)]
    fn sar(self, v: Self::I, n: u32) -> Self::I {
        v.map(|x| x >> n)
    }

    #[inline(always)]
    fn imax(self, a: Self::I, b: Self::I) -> Self::I {
        zip(a, b, i32::max)
    }

    #[inline(always)]
    fn to_f32(self, v: Self::I) -> Self::F {
        v.map(|x| x as f32)
    }

    #[inline(always)]
    fn dot4(self, acc: Self::I, codes: Self::I, x: [i8; 4]) -> Self::I {
        let mut out = acc;
        for i in 0..LANES {
            for (j, x) in x.iter().enumerate() {
                out[i] += ((codes[i] >> (8 * j)) & 255) * i32::from(*x);
            }
        }
        out
    }

    #[inline(always)]
    fn prefetch(self, _line: &Line, _ahead: usize) {}
}
