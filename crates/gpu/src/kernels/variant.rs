//! How a product reads its weights.
//!
//! Owns: the pieces of WGSL for each encoding, lanes by the width of a row.
//! Invariant: everything here is a function of the matrix and the adapter, never of the batch.

use super::ROW_COUNTS;
use cherenkov_format::{Bits, Encoding};

/// How weights are read by a product.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Variant {
    /// Layout of the weights.
    pub encoding: Encoding,
    /// Whether rows are whole quads of values.
    pub quads: bool,
    /// Lanes of a workgroup; a function of the row's width, so every row has one order of sums.
    pub lanes: u32,
}

impl Variant {
    /// The way to read a matrix of `cols` inputs.
    ///
    /// `most_lanes` is the adapter's limit.
    pub fn of(encoding: Encoding, cols: usize, most_lanes: u32) -> Self {
        // How many lanes find work at once.
        let busy = match encoding {
            Encoding::Tile16 { bits, group } => {
                cols / group.get() * 4 * words(bits.get(), group.get())
            }
            Encoding::Bf16 | Encoding::F32 => cols.div_ceil(4) * 4,
        };
        // Long rows often belong to matrices of few outputs: more lanes each keep the GPU busy.
        let lanes = match busy {
            0..256 => 128,
            256..4096 => 256,
            _ => 512.min(most_lanes),
        };
        Self { encoding, quads: cols.is_multiple_of(4), lanes }
    }

    /// Rows per workgroup for a batch of `rows`: what fits the memory that a workgroup shares.
    pub fn rows_per_group(self, rows: u32) -> u32 {
        let most = if self.lanes > 256 { 4 } else { ROW_COUNTS[ROW_COUNTS.len() - 1] };
        ROW_COUNTS.into_iter().find(|&n| n >= rows).unwrap_or(most).min(most)
    }

    /// Outputs of a tile.
    pub fn tile(self) -> u32 {
        match self.encoding {
            Encoding::Tile16 { .. } => 16,
            Encoding::Bf16 | Encoding::F32 => 4,
        }
    }

    /// Bytes of one element of the weight binding; offsets are counted in it.
    pub fn unit_bytes(self) -> u32 {
        match (self.encoding, self.quads) {
            (Encoding::Tile16 { .. }, _) | (Encoding::F32, true) => 16,
            (Encoding::Bf16, true) => 8,
            (Encoding::Bf16 | Encoding::F32, false) => 4,
        }
    }

    pub(super) fn parts(self) -> [&'static str; 2] {
        let tile = include_str!("../shaders/product/tile.wgsl");
        let dense = include_str!("../shaders/product/dense.wgsl");
        match (self.encoding, self.quads) {
            (Encoding::Tile16 { bits, .. }, _) => match bits {
                Bits::B2 => [tile, include_str!("../shaders/product/bits2.wgsl")],
                Bits::B3 => [tile, include_str!("../shaders/product/bits3.wgsl")],
                Bits::B4 => [tile, include_str!("../shaders/product/bits4.wgsl")],
                Bits::B8 => [tile, include_str!("../shaders/product/bits8.wgsl")],
            },
            (Encoding::Bf16, true) => [include_str!("../shaders/product/bf16_quads.wgsl"), dense],
            (Encoding::Bf16, false) => [include_str!("../shaders/product/bf16_any.wgsl"), dense],
            (Encoding::F32, true) => [include_str!("../shaders/product/f32_quads.wgsl"), dense],
            (Encoding::F32, false) => [include_str!("../shaders/product/f32_any.wgsl"), dense],
        }
    }

    pub(super) fn consts(self) -> Vec<(&'static str, u32)> {
        let Encoding::Tile16 { bits, group } = self.encoding else { return Vec::new() };
        let words = words(bits.get(), group.get()) as u32;
        let (bits, group) = (bits.get() as u32, group.get() as u32);
        let code_words = group * bits / 32;
        vec![("BITS", bits), ("GROUP", group), ("WORDS", words), ("CODE_WORDS", code_words)]
    }
}

/// Words of a row in a block that lanes take one each: the low bits of 3-bit codes lie as 2-bit codes
/// do, their high bits come along.
const fn words(bits: usize, group: usize) -> usize {
    group * if bits == 3 { 2 } else { bits } / 32
}
