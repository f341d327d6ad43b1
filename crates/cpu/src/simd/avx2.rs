//! AVX2 with FMA: two registers per vector.
//!
//! Owns: the AVX2 instructions. Never: algorithms, except the exact integer dot product of a group.
//! Invariant: an [`Avx2`] exists only where the processor has every feature of [`Avx2::call`]; the
//! methods rely on it.

use super::vector::{LANES, Line, Op, Simd, each_quad, word};
use std::arch::x86_64::*;

/// Proof that the processor has AVX2, FMA and F16C.
#[derive(Clone, Copy, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// The proof, if it holds.
    pub fn detect() -> Option<Self> {
        let found = is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        found.then_some(Self(()))
    }
}

/// The whole shell: compiles `op` with these features.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn shell<S: Simd, O: Op>(s: S, op: O) -> O::Output {
    op.run(s)
}

/// Sixteen f32, lanes 0..8 first.
type F = [__m256; 2];
/// Sixteen i32, lanes 0..8 first.
type I = [__m256i; 2];

// SAFETY (every block below): `self` proves that the instructions exist; loads and stores go through
// references to arrays of exactly the size of the access.
impl Simd for Avx2 {
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
        unsafe { [_mm256_set1_ps(x); 2] }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x.as_ptr().add(8))] }
    }

    #[inline(always)]
    fn store(self, v: F, out: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe {
            _mm256_storeu_ps(out.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(out.as_mut_ptr().add(8), v[1]);
        }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> F {
        // SAFETY: see above.
        unsafe {
            let widen =
                |half| _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
            let p: *const __m128i = x.as_ptr().cast();
            [widen(_mm_loadu_si128(p)), widen(_mm_loadu_si128(p.add(1)))]
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> F {
        // SAFETY: see above.
        unsafe {
            let p: *const __m128i = x.as_ptr().cast();
            [_mm256_cvtph_ps(_mm_loadu_si128(p)), _mm256_cvtph_ps(_mm_loadu_si128(p.add(1)))]
        }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> F {
        // SAFETY: see above.
        unsafe {
            let widen = |low| _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(low));
            let v = _mm_loadu_si128(x.as_ptr().cast());
            [widen(v), widen(_mm_srli_si128::<8>(v))]
        }
    }

    #[inline(always)]
    fn store_f16(self, v: F, out: &mut [u16; LANES]) {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT;
        // SAFETY: see above.
        unsafe {
            let p: *mut __m128i = out.as_mut_ptr().cast();
            _mm_storeu_si128(p, _mm256_cvtps_ph::<NEAREST>(v[0]));
            _mm_storeu_si128(p.add(1), _mm256_cvtps_ph::<NEAREST>(v[1]));
        }
    }

    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_add_ps(a[0], b[0]), _mm256_add_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_sub_ps(a[0], b[0]), _mm256_sub_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_mul_ps(a[0], b[0]), _mm256_mul_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_div_ps(a[0], b[0]), _mm256_div_ps(a[1], b[1])] }
    }

    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])] }
    }

    #[inline(always)]
    fn gt(self, a: F, b: F) -> I {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(a[0], b[0])),
                _mm256_castps_si256(_mm256_cmp_ps::<_CMP_GT_OQ>(a[1], b[1])),
            ]
        }
    }

    #[inline(always)]
    fn select(self, mask: I, a: F, b: F) -> F {
        // SAFETY: see above.
        unsafe {
            [
                _mm256_blendv_ps(b[0], a[0], _mm256_castsi256_ps(mask[0])),
                _mm256_blendv_ps(b[1], a[1], _mm256_castsi256_ps(mask[1])),
            ]
        }
    }

    #[inline(always)]
    fn bits(self, v: F) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_castps_si256(v[0]), _mm256_castps_si256(v[1])] }
    }

    #[inline(always)]
    fn of_bits(self, v: I) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_castsi256_ps(v[0]), _mm256_castsi256_ps(v[1])] }
    }

    #[inline(always)]
    fn sum(self, v: F) -> f32 {
        // SAFETY: see above.
        unsafe {
            let v = _mm256_add_ps(v[0], v[1]);
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }

    #[inline(always)]
    fn sums(self, v: [F; 16]) -> F {
        // As in the wider shell, eight vectors at a time, after their own halves have been added.
        // SAFETY: see above.
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 2];
            for (half, out) in halves.iter_mut().enumerate() {
                let mut pairs = [_mm256_setzero_ps(); 4];
                for (i, out) in pairs.iter_mut().enumerate() {
                    let (a, b) = (v[8 * half + i], v[8 * half + 4 + i]);
                    let (a, b) = (_mm256_add_ps(a[0], a[1]), _mm256_add_ps(b[0], b[1]));
                    *out = _mm256_add_ps(
                        _mm256_permute2f128_ps::<0x20>(a, b),
                        _mm256_permute2f128_ps::<0x31>(a, b),
                    );
                }
                let mut fours = [_mm256_setzero_ps(); 2];
                for (i, out) in fours.iter_mut().enumerate() {
                    let a = _mm256_castps_pd(pairs[2 * i]);
                    let b = _mm256_castps_pd(pairs[2 * i + 1]);
                    *out = _mm256_add_ps(
                        _mm256_castpd_ps(_mm256_unpacklo_pd(a, b)),
                        _mm256_castpd_ps(_mm256_unpackhi_pd(a, b)),
                    );
                }
                let [a, b] = fours;
                *out =
                    _mm256_add_ps(_mm256_shuffle_ps::<0x88>(a, b), _mm256_shuffle_ps::<0xdd>(a, b));
            }
            halves
        }
    }

    #[inline(always)]
    fn first(self, v: F) -> f32 {
        // SAFETY: see above.
        unsafe { _mm256_cvtss_f32(v[0]) }
    }

    #[inline(always)]
    fn isplat(self, x: i32) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_set1_epi32(x); 2] }
    }

    #[inline(always)]
    fn iload(self, x: &Line) -> I {
        // SAFETY: see above.
        unsafe {
            let p: *const __m256i = x.as_ptr().cast();
            [_mm256_loadu_si256(p), _mm256_loadu_si256(p.add(1))]
        }
    }

    #[inline(always)]
    fn istore(self, v: I, out: &mut Line) {
        // SAFETY: see above.
        unsafe {
            let p: *mut __m256i = out.as_mut_ptr().cast();
            _mm256_storeu_si256(p, v[0]);
            _mm256_storeu_si256(p.add(1), v[1]);
        }
    }

    #[inline(always)]
    fn store_i8(self, v: I, out: &mut [i8; LANES]) {
        // SAFETY: see above. The byte shuffle takes the low byte of every lane, so nothing saturates.
        unsafe {
            let pick = _mm256_setr_epi8(
                0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12, -1, -1,
                -1, -1, -1, -1, -1, -1, -1, -1, -1, -1,
            );
            let eight = |v| {
                let v = _mm256_shuffle_epi8(v, pick);
                _mm_unpacklo_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256::<1>(v))
            };
            let all = _mm_unpacklo_epi64(eight(v[0]), eight(v[1]));
            _mm_storeu_si128(out.as_mut_ptr().cast(), all);
        }
    }

    #[inline(always)]
    fn iadd(self, a: I, b: I) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn isub(self, a: I, b: I) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_sub_epi32(a[0], b[0]), _mm256_sub_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn and(self, a: I, b: I) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_and_si256(a[0], b[0]), _mm256_and_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn or(self, a: I, b: I) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_or_si256(a[0], b[0]), _mm256_or_si256(a[1], b[1])] }
    }

    #[inline(always)]
    fn shl(self, v: I, n: u32) -> I {
        // SAFETY: see above.
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            [_mm256_sllv_epi32(v[0], n), _mm256_sllv_epi32(v[1], n)]
        }
    }

    #[inline(always)]
    fn shr(self, v: I, n: u32) -> I {
        // SAFETY: see above.
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            [_mm256_srlv_epi32(v[0], n), _mm256_srlv_epi32(v[1], n)]
        }
    }

    #[inline(always)]
    fn sar(self, v: I, n: u32) -> I {
        // SAFETY: see above.
        unsafe {
            let n = _mm256_set1_epi32(n as i32);
            [_mm256_srav_epi32(v[0], n), _mm256_srav_epi32(v[1], n)]
        }
    }

    #[inline(always)]
    fn imax(self, a: I, b: I) -> I {
        // SAFETY: see above.
        unsafe { [_mm256_max_epi32(a[0], b[0]), _mm256_max_epi32(a[1], b[1])] }
    }

    #[inline(always)]
    fn to_f32(self, v: I) -> F {
        // SAFETY: see above.
        unsafe { [_mm256_cvtepi32_ps(v[0]), _mm256_cvtepi32_ps(v[1])] }
    }

    #[inline(always)]
    fn dot4(self, acc: I, codes: I, x: [i8; 4]) -> I {
        let x = word(x);
        // SAFETY: see above. Widened to i16 nothing saturates: 2 * 255 * 128 fits i32.
        unsafe {
            let even = _mm256_set1_epi16(0x00ff);
            let x = _mm256_set1_epi32(x);
            let (xl, xh) = (_mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8), _mm256_srai_epi16(x, 8));
            let one = |acc, c| {
                let low = _mm256_madd_epi16(_mm256_and_si256(c, even), xl);
                let high = _mm256_madd_epi16(_mm256_srli_epi16(c, 8), xh);
                _mm256_add_epi32(acc, _mm256_add_epi32(low, high))
            };
            [one(acc[0], codes[0]), one(acc[1], codes[1])]
        }
    }

    #[inline(always)]
    fn ask(self, x: &[f32], at: usize) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(x.as_ptr().wrapping_add(at).cast()) }
    }

    #[inline(always)]
    fn prefetch(self, line: &Line, ahead: usize) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(line.as_ptr().wrapping_add(ahead).cast()) }
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
        // Sums of pairs of products in i16: at most 2 * 15 * 127 per quad of 4 bits, so eight quads fit;
        // at most 2 * 7 * 127 below, so sixteen do; at most 2 * 128 * 127 of 8 bits, so one does.
        let mut pairs = [self.isplat(0); R];
        each_quad::<Self, STORED, QUADS, AHEAD>(
            self,
            lines,
            #[inline(always)]
            |quad, codes| {
                // SAFETY: see above.
                unsafe {
                    let top = _mm256_set1_epi8(-128);
                    let signed = [_mm256_xor_si256(codes[0], top), _mm256_xor_si256(codes[1], top)];
                    for n in 0..R {
                        let x = word(x[n * QUADS + quad]);
                        let x = _mm256_set1_epi32(x);
                        for half in 0..2 {
                            if W == 8 {
                                let c = signed[half];
                                let p = _mm256_maddubs_epi16(
                                    _mm256_abs_epi8(c),
                                    _mm256_sign_epi8(x, c),
                                );
                                acc[n][half] = gain(acc[n][half], p);
                            } else {
                                let p = _mm256_maddubs_epi16(codes[half], x);
                                pairs[n][half] = _mm256_add_epi16(pairs[n][half], p);
                                if W == 4 && quad == 7 {
                                    acc[n][half] = gain(acc[n][half], pairs[n][half]);
                                    pairs[n][half] = _mm256_setzero_si256();
                                }
                            }
                        }
                    }
                }
            },
        );
        for n in 0..R {
            if W == 8 {
                // The codes were taken as code - 128.
                let sum: i32 =
                    x[n * QUADS..][..QUADS].as_flattened().iter().map(|x| i32::from(*x)).sum();
                acc[n] = self.iadd(acc[n], self.isplat(128 * sum));
            } else {
                // SAFETY: see above.
                acc[n] = unsafe { [gain(acc[n][0], pairs[n][0]), gain(acc[n][1], pairs[n][1])] };
            }
        }
        acc
    }
}

/// `acc + ` sums of neighbouring i16.
///
/// # Safety
/// The processor has AVX2.
#[inline(always)]
unsafe fn gain(acc: __m256i, pairs: __m256i) -> __m256i {
    // SAFETY: see above.
    unsafe { _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))) }
}
