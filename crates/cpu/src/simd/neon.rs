//! NEON with dot products, and with matrix products of bytes: four registers per vector.
//!
//! Owns: the NEON instructions. Never: algorithms, except the exact integer dot product of a group.
//! Invariant: a [`Neon`] exists only where the processor has every feature of [`Neon::call`]; the
//! methods rely on it.

use super::vector::{LANES, Line, Op, Simd, each_quad, word};
use super::{NoTiles, Onto, Panel, Tiles};
use crate::threads::Patch;
use std::arch::aarch64::*;
use std::arch::asm;

/// Proof that the processor has NEON and the signed dot product; `T` says whether it has tiles too.
#[derive(Clone, Copy, Debug)]
pub struct Neon<T>(T);

impl<T: Tiles> Neon<T> {
    /// The proof, if it holds.
    pub fn detect() -> Option<Self> {
        let found = std::arch::is_aarch64_feature_detected!("neon")
            && std::arch::is_aarch64_feature_detected!("dotprod");
        if found { T::detect().map(Self) } else { None }
    }

    /// The same without tiles.
    pub fn without_tiles(self) -> Neon<NoTiles> {
        Neon(NoTiles)
    }
}

/// The whole shell: compiles `op` with these features.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "neon,dotprod")]
unsafe fn shell<S: Simd, O: Op>(s: S, op: O) -> O::Output {
    op.run(s)
}

/// Sixteen f32, lanes 0..4 first.
type F = [float32x4_t; 4];
/// Sixteen i32, lanes 0..4 first.
type I = [int32x4_t; 4];

/// Applies `f` to the four quarters.
#[inline(always)]
fn each<T>(f: impl Fn(usize) -> T) -> [T; 4] {
    [f(0), f(1), f(2), f(3)]
}

/// `acc + ` the dot products of the signed byte quads.
///
/// # Safety
/// The processor has the signed dot product.
#[inline(always)]
unsafe fn sdot(acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: see above; registers only.
    unsafe {
        asm!(".arch_extension dotprod", "sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a,
            b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

// SAFETY (every block below): `self` proves that the instructions exist; loads and stores go through
// references to arrays of exactly the size of the access.
impl<T: Tiles> Simd for Neon<T> {
    type F = F;
    type I = I;

    const TOGETHER: usize = 4;

    #[inline(always)]
    fn call<O: Op>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { shell(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        // SAFETY: see above.
        unsafe { [vdupq_n_f32(x); 4] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vld1q_f32(x.as_ptr().add(4 * i)) })
    }

    #[inline(always)]
    fn store(self, v: F, out: &mut [f32; LANES]) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: see above.
            unsafe { vst1q_f32(out.as_mut_ptr().add(4 * i), v) }
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> F {
        // SAFETY: see above.
        each(|i| unsafe {
            let half = vld1_u16(x.as_ptr().add(8 * i).cast());
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(half)))
        })
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F {
        // SAFETY: see above; the conversion is part of NEON on aarch64.
        each(|i| unsafe {
            let half = vld1_u16(x.as_ptr().add(4 * i));
            let wide: float32x4_t;
            asm!("fcvtl {wide:v}.4s, {half:v}.4h", wide = out(vreg) wide, half = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
            wide
        })
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> F {
        // SAFETY: see above.
        unsafe {
            let v = vld1q_s8(x.as_ptr());
            let halves = [vmovl_s8(vget_low_s8(v)), vmovl_s8(vget_high_s8(v))];
            each(|i| {
                let half = halves[i / 2];
                let quarter = if i % 2 == 0 { vget_low_s16(half) } else { vget_high_s16(half) };
                vcvtq_f32_s32(vmovl_s16(quarter))
            })
        }
    }

    #[inline(always)]
    fn store_f16(self, v: F, out: &mut [u16; LANES]) {
        for (i, wide) in v.into_iter().enumerate() {
            // SAFETY: see above; rounds to nearest even, the mode that Rust programs run in.
            unsafe {
                let half: uint16x4_t;
                asm!("fcvtn {half:v}.4h, {wide:v}.4s", half = out(vreg) half, wide = in(vreg) wide,
                    options(pure, nomem, nostack, preserves_flags));
                vst1_u16(out.as_mut_ptr().add(4 * i), half);
            }
        }
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vaddq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vsubq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vmulq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vdivq_f32(a[i], b[i]) })
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vfmaq_f32(c[i], a[i], b[i]) })
    }

    #[inline(always)]
    fn gt(self, a: F, b: F) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vreinterpretq_s32_u32(vcgtq_f32(a[i], b[i])) })
    }

    #[inline(always)]
    fn select(self, mask: I, a: F, b: F) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vbslq_f32(vreinterpretq_u32_s32(mask[i]), a[i], b[i]) })
    }

    #[inline(always)]
    fn bits(self, v: F) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vreinterpretq_s32_f32(v[i]) })
    }

    #[inline(always)]
    fn of_bits(self, v: I) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vreinterpretq_f32_s32(v[i]) })
    }

    #[inline(always)]
    fn sum(self, v: F) -> f32 {
        // SAFETY: see above. Lanes i and i+8, then i+4, i+2, i+1.
        unsafe {
            let v = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
            let v = vadd_f32(vget_low_f32(v), vget_high_f32(v));
            vget_lane_f32::<0>(v) + vget_lane_f32::<1>(v)
        }
    }

    #[inline(always)]
    fn first(self, v: F) -> f32 {
        // SAFETY: see above.
        unsafe { vgetq_lane_f32::<0>(v[0]) }
    }

    #[inline(always)]
    fn isplat(self, x: i32) -> I {
        // SAFETY: see above.
        unsafe { [vdupq_n_s32(x); 4] }
    }

    #[inline(always)]
    fn iload(self, x: &Line) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vreinterpretq_s32_u8(vld1q_u8(x.as_ptr().add(16 * i))) })
    }

    #[inline(always)]
    fn istore(self, v: I, out: &mut Line) {
        for (i, v) in v.into_iter().enumerate() {
            // SAFETY: see above.
            unsafe { vst1q_u8(out.as_mut_ptr().add(16 * i), vreinterpretq_u8_s32(v)) }
        }
    }

    #[inline(always)]
    fn store_i8(self, v: I, out: &mut [i8; LANES]) {
        // SAFETY: see above. Narrowing keeps the low half of every lane.
        unsafe {
            let low = vcombine_s16(vmovn_s32(v[0]), vmovn_s32(v[1]));
            let high = vcombine_s16(vmovn_s32(v[2]), vmovn_s32(v[3]));
            vst1q_s8(out.as_mut_ptr(), vcombine_s8(vmovn_s16(low), vmovn_s16(high)));
        }
    }

    #[inline(always)]
    fn iadd(self, a: I, b: I) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vaddq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn isub(self, a: I, b: I) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vsubq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vandq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vorrq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn shl(self, v: I, n: u32) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vshlq_s32(v[i], vdupq_n_s32(n as i32)) })
    }

    #[inline(always)]
    fn shr(self, v: I, n: u32) -> I {
        // SAFETY: see above. A shift left by a negative number is one to the right.
        each(|i| unsafe {
            let shifted = vshlq_u32(vreinterpretq_u32_s32(v[i]), vdupq_n_s32(-(n as i32)));
            vreinterpretq_s32_u32(shifted)
        })
    }

    #[inline(always)]
    fn sar(self, v: I, n: u32) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vshlq_s32(v[i], vdupq_n_s32(-(n as i32))) })
    }

    #[inline(always)]
    fn imax(self, a: I, b: I) -> I {
        // SAFETY: see above.
        each(|i| unsafe { vmaxq_s32(a[i], b[i]) })
    }

    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        // SAFETY: see above.
        each(|i| unsafe { vcvtq_f32_s32(v[i]) })
    }

    #[inline(always)]
    fn dot4(self, acc: I, codes: I, x: [i8; 4]) -> I {
        // SAFETY: see above. Signed dot products of code - 128, and 128 times the sum of x.
        unsafe {
            let quad = vreinterpretq_s8_s32(vdupq_n_s32(word(x)));
            let lost = vdupq_n_s32(x.iter().map(|x| 128 * i32::from(*x)).sum());
            let top = vdupq_n_u8(128);
            each(|i| {
                let codes = veorq_u8(vreinterpretq_u8_s32(codes[i]), top);
                sdot(vaddq_s32(acc[i], lost), vreinterpretq_s8_u8(codes), quad)
            })
        }
    }

    #[inline(always)]
    fn prefetch(self, line: &Line, ahead: usize) {
        let address = line.as_ptr().wrapping_add(ahead);
        // SAFETY: a prefetch never faults.
        unsafe {
            asm!("prfm pldl2keep, [{}]", in(reg) address,
                options(nostack, preserves_flags, readonly));
        }
    }

    #[inline(always)]
    fn dots<
        const W: usize,
        const STORED: usize,
        const QUADS: usize,
        const R: usize,
        const AHEAD: usize,
    >(
        self,
        lines: &[Line],
        x: &[[i8; 4]],
    ) -> [I; R] {
        let x = &x[..R * QUADS];
        let mut acc = [self.isplat(0); R];
        each_quad::<Self, STORED, QUADS, AHEAD>(
            self,
            lines,
            #[inline(always)]
            |quad, codes| {
                for n in 0..R {
                    let x = word(x[n * QUADS + quad]);
                    // SAFETY: see above. Codes below 8 bits are positive as signed bytes too; those of
                    // 8 bits are taken as code - 128.
                    acc[n] = unsafe {
                        let x = vreinterpretq_s8_s32(vdupq_n_s32(x));
                        each(|i| {
                            let codes = vreinterpretq_u8_s32(codes[i]);
                            let codes =
                                if W == 8 { veorq_u8(codes, vdupq_n_u8(128)) } else { codes };
                            sdot(acc[n][i], vreinterpretq_s8_u8(codes), x)
                        })
                    };
                }
            },
        );
        if W == 8 {
            for n in 0..R {
                let x = x[n * QUADS..][..QUADS].as_flattened();
                let sum: i32 = x.iter().map(|x| i32::from(*x)).sum();
                acc[n] = self.iadd(acc[n], self.isplat(128 * sum));
            }
        }
        acc
    }

    #[inline(always)]
    fn open_tiles(self) {
        self.0.open();
    }

    #[inline(always)]
    fn close_tiles(self) {
        self.0.close();
    }

    #[inline(always)]
    fn panel(self, panel: &Panel<'_>, out: &mut Patch<'_>, onto: Onto) -> bool {
        self.0.panel(panel, out, onto)
    }
}
