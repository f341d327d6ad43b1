//! AMX int8 tiles: sixteen activation rows times one weight tile.
//!
//! Owns: tile configuration and the tile instructions. Never: small row counts.
//! Invariants: tiles are configured only between [`Tiles::open`] and [`Tiles::close`], one fixed way:
//! eight tiles of 16 rows of 64 bytes. The compiler never touches tile registers, so asm blocks may
//! pass values through them: 0 to 3 are sums, 4 and 5 activations, 6 and 7 weights.
//!
//! A group is one tile product. Products, stores and the float part of three consecutive
//! groups overlap: product of g, store of g-1, float part of g-2.

use super::vector::{LANES, Line};
use super::{Onto, Panel, SEGMENT, Tiles};
use crate::threads::Patch;
use std::arch::asm;
use std::arch::x86_64::*;

/// Proof that the processor has AMX int8 and that the operating system lets this process use it.
#[derive(Clone, Copy, Debug)]
pub struct AmxTiles(());

/// Panels with fewer rows are faster with dot products.
const ROWS_MIN: usize = 6;
/// Lines of a block with unpacked codes.
const BLOCK_LINES: usize = 17;
/// Stored sums that are in flight.
const STORED: usize = 4;

/// Palette 1; every tile has 16 rows of 64 bytes.
#[repr(C, align(64))]
struct Config([u8; 64]);

static CONFIG: Config = {
    let mut bytes = [0; 64];
    bytes[0] = 1;
    let mut tile = 0;
    while tile < 8 {
        bytes[16 + 2 * tile] = 64;
        bytes[48 + tile] = 16;
        tile += 1;
    }
    Config(bytes)
};

/// Whether cpuid and xcr0 say that there are int8 tiles.
fn has_tiles() -> bool {
    const OSXSAVE: u32 = 1 << 27;
    const TILE_AND_INT8: u32 = 3 << 24;
    const TILE_STATE: u32 = 3 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    let (low, _high): (u32, u32);
    // SAFETY: OSXSAVE says that the instruction exists; it only reads.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack));
    }
    __cpuid_count(7, 0).edx & TILE_AND_INT8 == TILE_AND_INT8 && low & TILE_STATE == TILE_STATE
}

/// Asks the operating system for the tile registers, for all threads started later too.
#[cfg(target_os = "linux")]
fn ask() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: i64 = 0x1023;
    const TILE_DATA: i64 = 18;
    let result: i64;
    // SAFETY: this system call touches no memory; the kernel clobbers rcx and r11.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") TILE_DATA,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result == 0
}

/// Other systems are not known to allow it.
#[cfg(not(target_os = "linux"))]
fn ask() -> bool {
    false
}

impl Tiles for AmxTiles {
    fn detect() -> Option<Self> {
        static ALLOWED: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        ALLOWED.get_or_init(|| has_tiles() && ask()).then_some(Self(()))
    }

    #[inline(always)]
    fn open(self) {
        // SAFETY: `self` proves that tiles may be used; the configuration is a valid one.
        unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const CONFIG, options(nostack, readonly)) }
    }

    #[inline(always)]
    fn close(self) {
        // SAFETY: as above.
        unsafe { asm!("tilerelease", options(nostack)) }
    }

    #[inline(always)]
    fn panel(self, panel: &Panel<'_>, out: &mut Patch<'_>, onto: Onto) -> bool {
        if panel.rows < ROWS_MIN {
            return false;
        }
        let groups = panel.blocks.len() / BLOCK_LINES;
        assert!(groups <= SEGMENT && panel.rows <= 16);
        assert_eq!(panel.rows, out.rows());
        // Sixteen rows are loaded for every group, whatever the panel has.
        let loaded = ((groups - 1) * panel.rows + 16) * 64;
        assert!(panel.x.len() >= loaded, "activations are padded");
        assert!(panel.scale.len().min(panel.sum.len()) >= groups * panel.rows);
        // SAFETY: tiles are open (the caller's duty is checked by the processor: it would trap), AVX-512
        // exists where AMX does and the shell enables it, and all accesses lie within the slices and
        // the patch.
        unsafe {
            if panel.rows == 16 {
                multiply::<true>(panel, groups, out, onto);
            } else {
                multiply::<false>(panel, groups, out, onto);
            }
        }
        true
    }
}

/// Sums of the groups in flight: `[group mod STORED][row][output]`.
#[repr(C, align(64))]
struct Sums([[[i32; LANES]; 16]; STORED]);

/// One panel on its way. Pointers instead of slices: asm blocks count as writing all memory, so fields
/// behind a reference would be read again after each.
struct Work {
    blocks: *const Line,
    x: *const i8,
    scales: *const f32,
    sums: *const f32,
    groups: usize,
    rows: usize,
    stored: *mut i32,
    acc: [__m512; 16],
}

/// # Safety
/// Tiles are open, the sizes are as [`AmxTiles::panel`] checks them.
#[inline(always)]
unsafe fn multiply<const FULL: bool>(
    panel: &Panel<'_>,
    groups: usize,
    out: &mut Patch<'_>,
    onto: Onto,
) {
    let mut stored = std::mem::MaybeUninit::<Sums>::uninit();
    let rows = if FULL { 16 } else { panel.rows };
    // SAFETY: see above.
    unsafe {
        let mut work = Work {
            blocks: panel.blocks.as_ptr(),
            x: panel.x.as_ptr(),
            scales: panel.scale.as_ptr(),
            sums: panel.sum.as_ptr(),
            groups,
            rows,
            stored: stored.as_mut_ptr().cast(),
            acc: [_mm512_setzero_ps(); 16],
        };
        for g in (0..groups + 2).step_by(4) {
            phase::<FULL, 0, 3>(&mut work, g);
            phase::<FULL, 1, 0>(&mut work, g + 1);
            phase::<FULL, 2, 1>(&mut work, g + 2);
            phase::<FULL, 3, 2>(&mut work, g + 3);
        }
        let (start, pitch) = (out.start(), out.pitch());
        for r in 0..rows {
            let y = start.add(r * pitch);
            let before = match onto {
                Onto::Zero => _mm512_setzero_ps(),
                Onto::Before => _mm512_loadu_ps(y),
            };
            _mm512_storeu_ps(y, _mm512_add_ps(before, work.acc[r]));
        }
    }
}

/// Product of `g`, store of `g - 1`, float part of `g - 2`; `C` is `g % 4`, `B` the one before.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn phase<const FULL: bool, const C: usize, const B: usize>(work: &mut Work, g: usize) {
    let rows = if FULL { 16 } else { work.rows };
    // SAFETY: see above.
    unsafe {
        if g < work.groups {
            let b = work.blocks.add(g * BLOCK_LINES + 1);
            product::<C>(work.x.add(g * rows * 64), b);
        }
        if g >= 1 && g - 1 < work.groups {
            store::<B>(work.stored.add(B * 256));
        }
        if g >= 2 && g - 2 < work.groups {
            let from = work.stored.add((C + 2) % STORED * 256);
            floats::<FULL>(work, g - 2, from);
        }
    }
}

/// Multiplies one group into tile `C`.
///
/// # Safety
/// Tiles are open; 16 rows of `a` and 16 lines of `b` can be read.
#[inline(always)]
unsafe fn product<const C: usize>(a: *const i8, b: *const Line) {
    // SAFETY: see above; even and odd groups use different input tiles.
    unsafe {
        match C {
            0 => {
                asm!("tileloadd tmm6, [{b}+{s}*1]", "tileloadd tmm4, [{a}+{s}*1]", "tilezero tmm0",
                "tdpbsud tmm0, tmm4, tmm6", a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, options(nostack))
            }
            1 => {
                asm!("tileloadd tmm7, [{b}+{s}*1]", "tileloadd tmm5, [{a}+{s}*1]", "tilezero tmm1",
                "tdpbsud tmm1, tmm5, tmm7", a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, options(nostack))
            }
            2 => {
                asm!("tileloadd tmm6, [{b}+{s}*1]", "tileloadd tmm4, [{a}+{s}*1]", "tilezero tmm2",
                "tdpbsud tmm2, tmm4, tmm6", a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, options(nostack))
            }
            _ => {
                asm!("tileloadd tmm7, [{b}+{s}*1]", "tileloadd tmm5, [{a}+{s}*1]", "tilezero tmm3",
                "tdpbsud tmm3, tmm5, tmm7", a = in(reg) a, b = in(reg) b, s = in(reg) 64usize, options(nostack))
            }
        }
    }
}

/// Stores the sums of the group in tile `C`.
///
/// # Safety
/// Tiles are open; `to` has room for 1 KiB.
#[inline(always)]
unsafe fn store<const C: usize>(to: *mut i32) {
    // SAFETY: see above.
    unsafe {
        match C {
            0 => {
                asm!("tilestored [{c}+{s}*1], tmm0", c = in(reg) to, s = in(reg) 64usize, options(nostack))
            }
            1 => {
                asm!("tilestored [{c}+{s}*1], tmm1", c = in(reg) to, s = in(reg) 64usize, options(nostack))
            }
            2 => {
                asm!("tilestored [{c}+{s}*1], tmm2", c = in(reg) to, s = in(reg) 64usize, options(nostack))
            }
            _ => {
                asm!("tilestored [{c}+{s}*1], tmm3", c = in(reg) to, s = in(reg) 64usize, options(nostack))
            }
        }
    }
}

/// The float part of one group.
///
/// # Safety
/// `from` holds the group's sums; see [`multiply`].
#[inline(always)]
unsafe fn floats<const FULL: bool>(work: &mut Work, g: usize, from: *const i32) {
    let rows = if FULL { 16 } else { work.rows };
    // SAFETY: see above.
    unsafe {
        let header: *const __m256i = work.blocks.add(g * BLOCK_LINES).cast();
        let widen = |half| _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
        let scale = widen(_mm256_loadu_si256(header));
        let bias = widen(_mm256_loadu_si256(header.add(1)));
        let (scales, sums) = (work.scales.add(g * rows), work.sums.add(g * rows));
        for r in 0..rows {
            let isum = _mm512_load_si512(from.add(r * LANES).cast());
            let bias = _mm512_mul_ps(bias, _mm512_set1_ps(*sums.add(r)));
            let t = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(isum), bias);
            work.acc[r] = _mm512_fmadd_ps(_mm512_set1_ps(*scales.add(r)), t, work.acc[r]);
        }
    }
}
