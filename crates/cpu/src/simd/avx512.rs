//! AVX-512 with VNNI: one register per vector.
//!
//! Owns: the AVX-512 instructions. Never: algorithms, except the exact integer dot product of a group.
//! Invariant: an [`Avx512`] exists only where the processor has every feature of [`Avx512::call`]; the
//! methods rely on it.

use super::vector::{LANES, Line, Op, Simd, each_quad, word, words};
use super::{NoTiles, Onto, Panel, Tiles};
use crate::threads::Patch;
use std::arch::x86_64::*;

/// Proof that the processor has AVX-512 F, BW, VL, DQ and VNNI; `T` says whether it has tiles too.
#[derive(Clone, Copy, Debug)]
pub struct Avx512<T>(T);

impl<T: Tiles> Avx512<T> {
    /// The proof, if it holds.
    pub fn detect() -> Option<Self> {
        let vectors = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c");
        if vectors { T::detect().map(Self) } else { None }
    }

    /// The same without tiles.
    pub fn without_tiles(self) -> Avx512<NoTiles> {
        Avx512(NoTiles)
    }
}

/// The whole shell: compiles `op` with these features.
///
/// # Safety
/// The processor has the features.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
unsafe fn shell<S: Simd, O: Op>(s: S, op: O) -> O::Output {
    op.run(s)
}

// SAFETY (every block below): `self` proves that the instructions exist; loads and stores go through
// references to arrays of exactly the size of the access.
impl<T: Tiles> Simd for Avx512<T> {
    type F = __m512;
    type I = __m512i;

    const TOGETHER: usize = 8;

    #[inline(always)]
    fn call<O: Op>(self, op: O) -> O::Output {
        // SAFETY: `self` proves the features.
        unsafe { shell(self, op) }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_set1_ps(x) }
    }

    #[inline(always)]
    fn load(self, x: &[f32; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_loadu_ps(x.as_ptr()) }
    }

    #[inline(always)]
    fn store(self, v: __m512, out: &mut [f32; LANES]) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_ps(out.as_mut_ptr(), v) }
    }

    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> __m512 {
        // SAFETY: see above.
        unsafe {
            let half = _mm256_loadu_si256(x.as_ptr().cast());
            _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))
        }
    }

    #[inline(always)]
    fn load_f16(self, x: &[u16; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())) }
    }

    #[inline(always)]
    fn load_i8(self, x: &[i8; LANES]) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast()))) }
    }

    #[inline(always)]
    fn store_f16(self, v: __m512, out: &mut [u16; LANES]) {
        // SAFETY: see above.
        unsafe {
            let half = _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v);
            _mm256_storeu_si256(out.as_mut_ptr().cast(), half);
        }
    }

    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_div_ps(a, b) }
    }

    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    fn gt(self, a: __m512, b: __m512) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_movm_epi32(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(a, b)) }
    }

    #[inline(always)]
    fn select(self, mask: __m512i, a: __m512, b: __m512) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_mask_blend_ps(_mm512_movepi32_mask(mask), b, a) }
    }

    #[inline(always)]
    fn bits(self, v: __m512) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_castps_si512(v) }
    }

    #[inline(always)]
    fn of_bits(self, v: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_castsi512_ps(v) }
    }

    #[inline(always)]
    fn sum(self, v: __m512) -> f32 {
        // SAFETY: see above.
        unsafe {
            let v = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps::<1>(v));
            let v = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let v = _mm_add_ps(v, _mm_movehl_ps(v, v));
            _mm_cvtss_f32(_mm_add_ss(v, _mm_shuffle_ps::<1>(v, v)))
        }
    }

    #[inline(always)]
    fn sums(self, v: [__m512; 16]) -> __m512 {
        // A transposition that adds as it goes: halves, quarters, pairs, neighbours. Lane 4 k + j of the
        // result comes from the vector that went in as 4 j + k.
        // SAFETY: see above.
        unsafe {
            let mut pairs = [_mm512_setzero_ps(); 8];
            for i in 0..8 {
                let (a, b) = (2 * i, 2 * i + 1);
                let (a, b) = (v[a % 4 * 4 + a / 4], v[b % 4 * 4 + b / 4]);
                pairs[i] = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x44>(a, b),
                    _mm512_shuffle_f32x4::<0xee>(a, b),
                );
            }
            let mut fours = [_mm512_setzero_ps(); 4];
            for i in 0..4 {
                let (a, b) = (pairs[2 * i], pairs[2 * i + 1]);
                fours[i] = _mm512_add_ps(
                    _mm512_shuffle_f32x4::<0x88>(a, b),
                    _mm512_shuffle_f32x4::<0xdd>(a, b),
                );
            }
            let mut eights = [_mm512_setzero_ps(); 2];
            for i in 0..2 {
                let a = _mm512_castps_pd(fours[2 * i]);
                let b = _mm512_castps_pd(fours[2 * i + 1]);
                eights[i] = _mm512_add_ps(
                    _mm512_castpd_ps(_mm512_unpacklo_pd(a, b)),
                    _mm512_castpd_ps(_mm512_unpackhi_pd(a, b)),
                );
            }
            let [a, b] = eights;
            _mm512_add_ps(_mm512_shuffle_ps::<0x88>(a, b), _mm512_shuffle_ps::<0xdd>(a, b))
        }
    }

    #[inline(always)]
    fn first(self, v: __m512) -> f32 {
        // SAFETY: see above.
        unsafe { _mm512_cvtss_f32(v) }
    }

    #[inline(always)]
    fn isplat(self, x: i32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_set1_epi32(x) }
    }

    #[inline(always)]
    fn iload(self, x: &Line) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_loadu_si512(x.as_ptr().cast()) }
    }

    #[inline(always)]
    fn istore(self, v: __m512i, out: &mut Line) {
        // SAFETY: see above.
        unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), v) }
    }

    #[inline(always)]
    fn store_i8(self, v: __m512i, out: &mut [i8; LANES]) {
        // SAFETY: see above.
        unsafe { _mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtepi32_epi8(v)) }
    }

    #[inline(always)]
    fn iadd(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_add_epi32(a, b) }
    }

    #[inline(always)]
    fn isub(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sub_epi32(a, b) }
    }

    #[inline(always)]
    fn and(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_and_si512(a, b) }
    }

    #[inline(always)]
    fn or(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_or_si512(a, b) }
    }

    #[inline(always)]
    fn shl(self, v: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_sllv_epi32(v, _mm512_set1_epi32(n as i32)) }
    }

    #[inline(always)]
    fn shr(self, v: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srlv_epi32(v, _mm512_set1_epi32(n as i32)) }
    }

    #[inline(always)]
    fn sar(self, v: __m512i, n: u32) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_srav_epi32(v, _mm512_set1_epi32(n as i32)) }
    }

    #[inline(always)]
    fn imax(self, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: see above.
        unsafe { _mm512_max_epi32(a, b) }
    }

    #[inline(always)]
    fn max_lane(self, v: __m512i) -> i32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_max_epi32(v) }
    }

    #[inline(always)]
    fn sum_lanes(self, v: __m512i) -> i32 {
        // SAFETY: see above.
        unsafe { _mm512_reduce_add_epi32(v) }
    }

    #[inline(always)]
    fn to_f32(self, v: __m512i) -> __m512 {
        // SAFETY: see above.
        unsafe { _mm512_cvtepi32_ps(v) }
    }

    #[inline(always)]
    fn dot4(self, acc: __m512i, codes: __m512i, x: [i8; 4]) -> __m512i {
        let x = word(x);
        // SAFETY: see above.
        unsafe { _mm512_dpbusd_epi32(acc, codes, _mm512_set1_epi32(x)) }
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
    ) -> [__m512i; R] {
        let x = &x[..R * QUADS];
        // Two sums per row hide the latency of the dot product; many rows hide it by themselves.
        let mut even = [self.isplat(0); R];
        let mut odd = [self.isplat(0); R];
        if STORED == 4 && R < 8 {
            // The high nibbles stay where they are: their sum is 16 times too large, exactly.
            let (low, high) = (self.isplat(0x0f0f_0f0f), self.isplat(0xf0f0_f0f0_u32 as i32));
            let lines = &lines[..words(STORED, QUADS)];
            for word in 0..QUADS / 2 {
                if AHEAD > 0 {
                    self.prefetch(&lines[word], AHEAD);
                }
                let v = self.iload(&lines[word]);
                for n in 0..R {
                    let at = n * QUADS + 2 * word;
                    even[n] = self.dot4(even[n], self.and(v, low), x[at]);
                    odd[n] = self.dot4(odd[n], self.and(v, high), x[at + 1]);
                }
            }
            for n in 0..R {
                even[n] = self.iadd(even[n], self.sar(odd[n], 4));
            }
            return even;
        }
        if STORED == 8 && R < 8 {
            // Quads in pairs: choosing the sum by the parity of a counter would keep it in memory.
            let lines = &lines[..QUADS];
            for pair in 0..QUADS / 2 {
                if AHEAD > 0 {
                    self.prefetch(&lines[2 * pair], AHEAD);
                    self.prefetch(&lines[2 * pair + 1], AHEAD);
                }
                let (a, b) = (self.iload(&lines[2 * pair]), self.iload(&lines[2 * pair + 1]));
                for n in 0..R {
                    let at = n * QUADS + 2 * pair;
                    even[n] = self.dot4(even[n], a, x[at]);
                    odd[n] = self.dot4(odd[n], b, x[at + 1]);
                }
            }
            for n in 0..R {
                even[n] = self.iadd(even[n], odd[n]);
            }
            return even;
        }
        each_quad::<Self, STORED, QUADS, AHEAD>(
            self,
            lines,
            #[inline(always)]
            |quad, codes| {
                for n in 0..R {
                    even[n] = self.dot4(even[n], codes, x[n * QUADS + quad]);
                }
            },
        );
        even
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
