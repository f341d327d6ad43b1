//! Matrix products of bytes on aarch64: `usmmla`, two outputs times two rows over eight inputs.
//!
//! Owns: panels with these instructions. Never: detection of anything else, other kernels.
//! Invariant: the bits are those of the written definition (see `kernels::tile`).
//!
//! ```text
//! per group:  codes of sixteen outputs, interleaved once so that a register holds 2 outputs x 8 codes
//!   per four rows:  8 x 2 sums of 2 outputs x 2 rows; 16 products per 8 inputs
//!                   sums are sorted by row and meet scales and biases, group by group
//! ```

use super::vector::{LANES, Line};
use super::{Onto, Panel, SEGMENT, Tiles};
use crate::threads::Patch;
use std::arch::aarch64::*;
use std::arch::asm;

/// Proof that the processor multiplies matrices of bytes.
#[derive(Clone, Copy, Debug)]
pub struct ByteTiles(());

/// Panels with fewer rows have half of the products for nothing.
const ROWS_MIN: usize = 3;
/// Lines of a block with unpacked codes.
const BLOCK_LINES: usize = 17;
/// Rows multiplied together.
const BLOCK_ROWS: usize = 4;

impl Tiles for ByteTiles {
    fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("i8mm").then_some(Self(()))
    }

    #[inline(always)]
    fn open(self) {}

    #[inline(always)]
    fn close(self) {}

    #[inline(always)]
    fn panel(self, panel: &Panel<'_>, out: &mut Patch<'_>, onto: Onto) -> bool {
        let rows = panel.rows;
        if rows < ROWS_MIN {
            return false;
        }
        let groups = panel.blocks.len() / BLOCK_LINES;
        assert!(groups <= SEGMENT && rows <= 16 && rows == out.rows());
        // Whole blocks of rows are loaded for every group, whatever the panel has.
        let loaded = ((groups - 1) * rows + rows.next_multiple_of(BLOCK_ROWS)) * 64;
        assert!(panel.x.len() >= loaded, "activations are padded");
        assert!(panel.scale.len().min(panel.sum.len()) >= groups * rows);
        // SAFETY: `self` proves the instructions, and the sizes were checked.
        unsafe { multiply(panel, groups, out, onto) }
        true
    }
}

/// Sixteen f32.
type F = [float32x4_t; 4];
/// Sixteen codes per register: `[eight inputs][pair of outputs]`.
type Codes = [[uint8x16_t; 8]; 8];

/// `acc + ` the products of two rows of unsigned and two of signed bytes, eight each.
///
/// # Safety
/// The processor has the instruction.
#[inline(always)]
unsafe fn usmmla(acc: int32x4_t, codes: uint8x16_t, x: int8x16_t) -> int32x4_t {
    let mut acc = acc;
    // SAFETY: see above; registers only.
    unsafe {
        asm!(".arch_extension i8mm", "usmmla {acc:v}.4s, {codes:v}.16b, {x:v}.16b",
            acc = inout(vreg) acc, codes = in(vreg) codes, x = in(vreg) x,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// # Safety
/// The processor has the instructions; the sizes are as [`ByteTiles::panel`] checks them.
#[inline(always)]
unsafe fn multiply(panel: &Panel<'_>, groups: usize, out: &mut Patch<'_>, onto: Onto) {
    let rows = panel.rows;
    // SAFETY: see above.
    unsafe {
        let mut acc = [[vdupq_n_f32(0.0); 4]; 16];
        for g in 0..groups {
            let block = &panel.blocks[g * BLOCK_LINES..][..BLOCK_LINES];
            let (codes, (scale, bias)) = (interleave(&block[1..]), header(&block[0]));
            for first in (0..rows).step_by(BLOCK_ROWS) {
                let x = panel.x.as_ptr().add((g * rows + first) * 64);
                let sums = products(&codes, x);
                for (r, sums) in (first..rows).zip(&sums) {
                    let at = g * rows + r;
                    gain(&mut acc[r], sums, (&scale, &bias), (panel.scale[at], panel.sum[at]));
                }
            }
        }
        let (start, pitch) = (out.start(), out.pitch());
        for (r, acc) in acc.iter().enumerate().take(rows) {
            for (i, acc) in acc.iter().enumerate() {
                let y = start.add(r * pitch + 4 * i);
                let before = match onto {
                    Onto::Zero => vdupq_n_f32(0.0),
                    Onto::Before => vld1q_f32(y),
                };
                vst1q_f32(y, vaddq_f32(before, *acc));
            }
        }
    }
}

/// Puts the eight codes of each output side by side, for two quads at a time.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn interleave(lines: &[Line]) -> Codes {
    // SAFETY: see above; loads stay within the lines.
    unsafe {
        let mut codes = [[vdupq_n_u8(0); 8]; 8];
        for (pair, codes) in lines.as_chunks::<2>().0.iter().zip(&mut codes) {
            for i in 0..LANES / 4 {
                let quad = |line: &Line| vreinterpretq_u32_u8(vld1q_u8(line.as_ptr().add(16 * i)));
                let (even, odd) = (quad(&pair[0]), quad(&pair[1]));
                codes[2 * i] = vreinterpretq_u8_u32(vzip1q_u32(even, odd));
                codes[2 * i + 1] = vreinterpretq_u8_u32(vzip2q_u32(even, odd));
            }
        }
        codes
    }
}

/// Scales and biases of a block.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn header(line: &Line) -> (F, F) {
    // SAFETY: see above; loads stay within the line.
    unsafe {
        let half = |at: usize| {
            let wide = vmovl_u16(vld1_u16(line.as_ptr().add(at).cast()));
            vreinterpretq_f32_u32(vshlq_n_u32::<16>(wide))
        };
        let four = |at: usize| [half(at), half(at + 8), half(at + 16), half(at + 24)];
        (four(0), four(32))
    }
}

/// Exact sums of four rows with sixteen outputs, by row.
///
/// # Safety
/// The processor has the instructions; four rows of 64 can be read at `x`.
#[inline(always)]
unsafe fn products(codes: &Codes, x: *const i8) -> [[int32x4_t; 4]; 4] {
    // SAFETY: see above.
    unsafe {
        let mut acc = [[vdupq_n_s32(0); 8]; 2];
        for (step, codes) in codes.iter().enumerate() {
            for (pair, acc) in acc.iter_mut().enumerate() {
                let row = |r: usize| vld1_s8(x.add((2 * pair + r) * 64 + 8 * step));
                let rows = vcombine_s8(row(0), row(1));
                for (acc, codes) in acc.iter_mut().zip(codes) {
                    *acc = usmmla(*acc, *codes, rows);
                }
            }
        }
        // A register holds output 0 for rows 0 and 1, then output 1.
        let mut sums = [[vdupq_n_s32(0); 4]; 4];
        for (pair, acc) in acc.iter().enumerate() {
            for (i, [a, b]) in acc.as_chunks::<2>().0.iter().enumerate() {
                sums[2 * pair][i] = vuzp1q_s32(*a, *b);
                sums[2 * pair + 1][i] = vuzp2q_s32(*a, *b);
            }
        }
        sums
    }
}

/// The float part of one group for one row.
///
/// # Safety
/// The processor has NEON.
#[inline(always)]
unsafe fn gain(acc: &mut F, sums: &[int32x4_t; 4], (scale, bias): (&F, &F), (sx, sum): (f32, f32)) {
    // SAFETY: see above.
    unsafe {
        for i in 0..4 {
            let bias = vmulq_f32(bias[i], vdupq_n_f32(sum));
            let t = vfmaq_f32(bias, scale[i], vcvtq_f32_s32(sums[i]));
            acc[i] = vfmaq_f32(acc[i], vdupq_n_f32(sx), t);
        }
    }
}
