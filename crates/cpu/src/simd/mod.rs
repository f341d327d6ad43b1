//! Instruction sets: what the processor has, and the vectors made of it.
//!
//! Owns: detection, the choice of shell, every intrinsic. Never: the algorithms (see `kernels`), except
//! where one integer dot product is exact in any order and an instruction set has its own best way.
//! Invariant: all instruction sets give the same bits.

// Indices run over several arrays in step; iterators would hide that.
#![allow(clippy::needless_range_loop)]

mod vector;

#[cfg(target_arch = "x86_64")]
mod amx;
#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod i8mm;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use crate::threads::Patch;
#[cfg(target_arch = "x86_64")]
use amx::AmxTiles;
#[cfg(target_arch = "x86_64")]
use avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use i8mm::ByteTiles;
#[cfg(target_arch = "aarch64")]
use neon::Neon;
use portable::Portable;
pub use vector::{LANES, Line, Op, Simd, each_quad, words};

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Isa {
    /// Whatever every processor of this architecture has. For tests and rare machines.
    Portable,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// x86-64 with AVX-512 and VNNI.
    Avx512,
    /// AVX-512 with VNNI, and AMX int8 tiles for many rows.
    Amx,
    /// aarch64 with dot products.
    Neon,
    /// aarch64 with dot products, and with matrix products of bytes for many rows.
    I8mm,
}

impl Isa {
    /// All of them, slowest first.
    pub const ALL: [Self; 6] =
        [Self::Portable, Self::Avx2, Self::Avx512, Self::Amx, Self::Neon, Self::I8mm];

    /// Those that this processor has, slowest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| Arch::new(*isa).is_some()).collect()
    }

    /// The fastest that this processor has.
    pub fn detect() -> Self {
        Self::ALL.into_iter().rfind(|isa| Arch::new(*isa).is_some()).unwrap_or(Self::Portable)
    }

    /// Short name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Amx => "amx",
            Self::Neon => "neon",
            Self::I8mm => "i8mm",
        }
    }
}

/// An instruction set that is known to exist here.
#[derive(Clone, Copy, Debug)]
pub enum Arch {
    /// See [`Isa::Portable`].
    Portable(Portable),
    /// See [`Isa::Avx2`].
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// See [`Isa::Avx512`].
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512<NoTiles>),
    /// See [`Isa::Amx`].
    #[cfg(target_arch = "x86_64")]
    Amx(Avx512<AmxTiles>),
    /// See [`Isa::Neon`].
    #[cfg(target_arch = "aarch64")]
    Neon(Neon<NoTiles>),
    /// See [`Isa::I8mm`].
    #[cfg(target_arch = "aarch64")]
    I8mm(Neon<ByteTiles>),
}

impl Arch {
    /// The instruction set, if this processor has it. Asks the operating system for AMX, so call it
    /// before threads start.
    pub fn new(isa: Isa) -> Option<Self> {
        match isa {
            Isa::Portable => Some(Self::Portable(Portable)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Avx2::detect().map(Self::Avx2),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Avx512::detect().map(Self::Avx512),
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Avx512::detect().map(Self::Amx),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Neon::detect().map(Self::Neon),
            #[cfg(target_arch = "aarch64")]
            Isa::I8mm => Neon::detect().map(Self::I8mm),
            _ => None,
        }
    }

    /// Runs `op` with this instruction set, but for matrix tiles.
    #[inline]
    pub fn run<O: Op>(self, op: O) -> O::Output {
        match self {
            Self::Portable(s) => s.call(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(s) => s.call(op),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(s) => s.call(op),
            #[cfg(target_arch = "x86_64")]
            Self::Amx(s) => s.without_tiles().call(op),
            #[cfg(target_arch = "aarch64")]
            Self::Neon(s) => s.call(op),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm(s) => s.without_tiles().call(op),
        }
    }

    /// Runs `op` with this instruction set, matrix tiles too.
    #[inline]
    pub fn run_with_tiles<O: Op>(self, op: O) -> O::Output {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Amx(s) => s.call(op),
            #[cfg(target_arch = "aarch64")]
            Self::I8mm(s) => s.call(op),
            other => other.run(op),
        }
    }
}

/// Most groups of one segment.
pub const SEGMENT: usize = 10;

/// One segment of one tile against up to sixteen activation rows, for [`Simd::panel`].
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    /// Blocks with unpacked codes and groups of 64: per group one header line, then sixteen of codes.
    pub blocks: &'a [Line],
    /// Activations `[group][row][64]`; at least [`PANEL_PAD`] more follow the last ones.
    pub x: &'a [i8],
    /// Scales `[group][row]`.
    pub scale: &'a [f32],
    /// Sums of the quantised values `[group][row]`.
    pub sum: &'a [f32],
    /// Rows, 1 to 16.
    pub rows: usize,
}

/// What the sum of a segment is added to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Onto {
    /// Zero: it is the first segment.
    Zero,
    /// What the output holds.
    Before,
}

/// Activations that must lie behind the last ones of a [`Panel`]: sixteen rows of 64.
pub const PANEL_PAD: usize = 1024;

/// Whether a processor has matrix tiles, and their use.
pub trait Tiles: Copy + Send + Sync + 'static {
    /// The proof, if it holds.
    fn detect() -> Option<Self>;
    /// See [`Simd::open_tiles`].
    fn open(self);
    /// See [`Simd::close_tiles`].
    fn close(self);
    /// See [`Simd::panel`].
    fn panel(self, panel: &Panel<'_>, out: &mut Patch<'_>, onto: Onto) -> bool;
}

/// No tiles are used.
#[derive(Clone, Copy, Debug)]
pub struct NoTiles;

impl Tiles for NoTiles {
    #[inline(always)]
    fn detect() -> Option<Self> {
        Some(Self)
    }

    #[inline(always)]
    fn open(self) {}

    #[inline(always)]
    fn close(self) {}

    #[inline(always)]
    fn panel(self, _: &Panel<'_>, _: &mut Patch<'_>, _: Onto) -> bool {
        false
    }
}
