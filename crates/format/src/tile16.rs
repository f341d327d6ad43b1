//! The tile16 layout: affine codes as every kernel wants them.
//!
//! Owns: the byte order of a block. Never: choosing scales and codes (see `affine`).
//!
//! A matrix `[rows, cols]` is cut into tiles of 16 output rows (the last one padded with zeros) and
//! each row into groups of 64 or 32 inputs. One block holds one (tile, group):
//!
//! ```text
//! 16 scales (bf16) | 16 biases (bf16) | code words, 32 bits each, [word][row 0..16]
//! ```
//!
//! Blocks follow each other by tile, then by group. A group's codes are taken in quads: quad q is
//! codes 4q..4q+4, one code per byte of a word. The words of one row are:
//!
//! * 8 bits: word q is quad q;
//! * 4 bits: word w holds quad 2w in the low nibbles of its bytes and quad 2w+1 in the high ones;
//! * 2 bits: word w holds quads 4w..4w+4, quad 4w+i at bits 2i of each byte;
//! * 3 bits: the low two bits as above, then words in which quad 8w+i has its high bit at bit i.
//!
//! A 64-byte load is then 16 rows of the same word; shifts and masks give byte quads for integer
//! dot products without a shuffle. The weight is `code * scale + bias`; the product is exact in f32.

use crate::encoding::{Bits, Group};
use crate::float::bf16_to_f32;

/// Output rows of a tile.
pub const TILE_ROWS: usize = 16;
/// Bytes of a block before its code words: 16 scales and 16 biases.
pub const HEADER_BYTES: usize = 64;

/// Bytes of one block.
pub const fn block_bytes(bits: Bits, group: Group) -> usize {
    HEADER_BYTES + TILE_ROWS * group.get() * bits.get() / 8
}

/// Where a code lies in its row's words: (byte offset within the block's codes, bit shift) of its
/// low bits, and of its high bit for 3-bit codes.
struct Place {
    byte: usize,
    shift: usize,
    high: Option<(usize, usize)>,
}

fn place(bits: Bits, group: Group, row: usize, code: usize) -> Place {
    let (quad, lane) = (code / 4, code % 4);
    let byte = |word: usize| (word * TILE_ROWS + row) * 4 + lane;
    match bits {
        Bits::B8 => Place { byte: byte(quad), shift: 0, high: None },
        Bits::B4 => Place { byte: byte(quad / 2), shift: 4 * (quad % 2), high: None },
        Bits::B2 => Place { byte: byte(quad / 4), shift: 2 * (quad % 4), high: None },
        Bits::B3 => {
            let low_words = group.get() / 16;
            let high = (byte(low_words + quad / 8), quad % 8);
            Place { byte: byte(quad / 4), shift: 2 * (quad % 4), high: Some(high) }
        }
    }
}

/// Writes one row of one block: its scale and bias (bf16 bits) and its `group` codes.
///
/// `block` must be zeroed in the bits of this row; `row` is the row within the tile.
///
/// # Panics
/// When a slice does not have the block's size or `row` is not below 16.
pub fn put_row(
    block: &mut [u8],
    bits: Bits,
    group: Group,
    row: usize,
    (scale, bias): (u16, u16),
    codes: &[u8],
) {
    assert_eq!(block.len(), block_bytes(bits, group));
    assert_eq!(codes.len(), group.get());
    assert!(row < TILE_ROWS);
    block[row * 2..][..2].copy_from_slice(&scale.to_le_bytes());
    block[32 + row * 2..][..2].copy_from_slice(&bias.to_le_bytes());
    let words = &mut block[HEADER_BYTES..];
    for (i, &code) in codes.iter().enumerate() {
        debug_assert!(code <= bits.max_code());
        let at = place(bits, group, row, i);
        match at.high {
            None => words[at.byte] |= code << at.shift,
            Some((byte, shift)) => {
                words[at.byte] |= (code & 3) << at.shift;
                words[byte] |= (code >> 2) << shift;
            }
        }
    }
}

/// Reads one row of one block: returns (scale, bias) as bf16 bits and fills `codes`.
///
/// # Panics
/// As [`put_row`].
pub fn get_row(block: &[u8], bits: Bits, group: Group, row: usize, codes: &mut [u8]) -> (u16, u16) {
    assert_eq!(block.len(), block_bytes(bits, group));
    assert_eq!(codes.len(), group.get());
    assert!(row < TILE_ROWS);
    let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
    let words = &block[HEADER_BYTES..];
    let word = |w: usize| &words[(w * TILE_ROWS + row) * 4..][..4];
    match bits {
        // The two common widths, four codes at a time.
        Bits::B8 => {
            for (w, quad) in codes.chunks_exact_mut(4).enumerate() {
                quad.copy_from_slice(word(w));
            }
        }
        Bits::B4 => {
            for (w, eight) in codes.chunks_exact_mut(8).enumerate() {
                let (low, high) = eight.split_at_mut(4);
                for ((low, high), &both) in low.iter_mut().zip(high).zip(word(w)) {
                    (*low, *high) = (both & 15, both >> 4);
                }
            }
        }
        Bits::B2 | Bits::B3 => {
            for (i, code) in codes.iter_mut().enumerate() {
                let at = place(bits, group, row, i);
                let high = at.high.map_or(0, |(byte, shift)| (words[byte] >> shift) & 1);
                *code = ((words[at.byte] >> at.shift) & 3) | high << 2;
            }
        }
    }
    (half(row * 2), half(32 + row * 2))
}

/// Dequantises one row of a whole matrix of `cols` inputs: `out[i] = code * scale + bias`.
///
/// # Panics
/// When `bytes` does not hold that row or `out` is not `cols` long.
pub fn dequantise_row(
    bytes: &[u8],
    bits: Bits,
    group: Group,
    row: usize,
    cols: usize,
    out: &mut [f32],
) {
    assert_eq!(out.len(), cols);
    let size = block_bytes(bits, group);
    let groups = cols / group.get();
    let mut codes = [0u8; 64];
    let codes = &mut codes[..group.get()];
    for (g, out) in out.chunks_exact_mut(group.get()).enumerate() {
        let block = &bytes[(row / TILE_ROWS * groups + g) * size..][..size];
        let (scale, bias) = get_row(block, bits, group, row % TILE_ROWS, codes);
        let (scale, bias) = (bf16_to_f32(scale), bf16_to_f32(bias));
        for (out, &code) in out.iter_mut().zip(&*codes) {
            *out = f32::from(code) * scale + bias;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec() -> impl Strategy<Value = (Bits, Group)> {
        (prop::sample::select(&Bits::ALL[..]), prop::sample::select(&[Group::G32, Group::G64][..]))
    }

    proptest! {
        #[test]
        fn rows_come_back_as_they_were_put((bits, group) in spec(), seed in any::<u64>()) {
            let mut state = seed;
            let mut next = || { state = state.wrapping_mul(6364136223846793005).wrapping_add(1); (state >> 33) as u32 };
            let mut block = vec![0u8; block_bytes(bits, group)];
            let rows: Vec<_> = (0..16).map(|_| {
                let codes: Vec<u8> = (0..group.get()).map(|_| next() as u8 & bits.max_code()).collect();
                ((next() as u16, next() as u16), codes)
            }).collect();
            for (r, (affine, codes)) in rows.iter().enumerate() {
                put_row(&mut block, bits, group, r, *affine, codes);
            }
            for (r, (affine, codes)) in rows.iter().enumerate() {
                let mut back = vec![0u8; group.get()];
                prop_assert_eq!(get_row(&block, bits, group, r, &mut back), *affine);
                prop_assert_eq!(&back, codes);
            }
        }
    }

    #[test]
    fn the_nibble_order_is_the_documented_one() {
        let mut block = vec![0u8; block_bytes(Bits::B4, Group::G64)];
        let codes: Vec<u8> = (0..64).map(|i| (i % 16) as u8).collect();
        put_row(&mut block, Bits::B4, Group::G64, 3, (0, 0), &codes);
        // Word 1, row 3, byte 2: low nibble code 8+2, high nibble code 8+4+2.
        assert_eq!(block[64 + (16 + 3) * 4 + 2], 10 | (14 << 4));
    }
}
