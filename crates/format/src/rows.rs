//! Row layouts of n-gram tables: everything of one row side by side, so that a row is one read.
//!
//! Owns: bytes of a table row and their meaning in f32. Never: files, hashing.
//!
//! An affine row of `width` values at `bits` bits is
//!
//! ```text
//! codes, width * bits / 8 bytes | width / 32 scales (bf16) | width / 32 biases (bf16)
//! ```
//!
//! with the codes as one little-endian bit string, the first code in the lowest bits.

use crate::encoding::Bits;
use crate::float::{bf16_to_f32, f32_to_bf16};
use serde::{Deserialize, Serialize};

/// Values of a row that share a scale and a bias.
pub const ROW_GROUP: usize = 32;

/// How the rows of a table are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum RowEncoding {
    /// Little-endian f32.
    F32,
    /// bf16.
    Bf16,
    /// Affine codes, group 32.
    Affine {
        /// Code width.
        bits: Bits,
    },
}

impl RowEncoding {
    /// Bytes of one row; `None` when the width does not fit or overflows.
    pub fn row_bytes(self, width: usize) -> Option<usize> {
        match self {
            Self::F32 => width.checked_mul(4),
            Self::Bf16 => width.checked_mul(2),
            Self::Affine { bits } => {
                if !width.is_multiple_of(ROW_GROUP) {
                    return None;
                }
                (width / ROW_GROUP).checked_mul(ROW_GROUP * bits.get() / 8 + 4)
            }
        }
    }

    /// Writes the exact values of `row` to `out`.
    ///
    /// # Panics
    /// When `row` is not [`Self::row_bytes`] of `out.len()` long.
    pub fn decode(self, row: &[u8], out: &mut [f32]) {
        assert_eq!(Some(row.len()), self.row_bytes(out.len()));
        match self {
            Self::F32 => {
                for (out, b) in out.iter_mut().zip(row.chunks_exact(4)) {
                    *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            Self::Bf16 => {
                for (out, b) in out.iter_mut().zip(row.chunks_exact(2)) {
                    *out = half(b);
                }
            }
            Self::Affine { bits } => decode_affine(row, bits, out),
        }
    }

    /// The codes of an affine row and the (scale, bias) of each of its groups; returns the values of a
    /// group, or `None` for other rows.
    ///
    /// # Panics
    /// When `row` is not [`Self::row_bytes`] of `codes.len()` long.
    pub fn codes(self, row: &[u8], codes: &mut [u8], pairs: &mut Vec<(f32, f32)>) -> Option<usize> {
        let Self::Affine { bits } = self else { return None };
        assert_eq!(Some(row.len()), self.row_bytes(codes.len()));
        let (packed, tail) = row.split_at(codes.len() * bits.get() / 8);
        unpack_codes(packed, bits.get(), codes);
        let (scales, biases) = tail.split_at(tail.len() / 2);
        pairs.clear();
        pairs.extend(scales.chunks(2).zip(biases.chunks(2)).map(|(s, b)| (half(s), half(b))));
        Some(ROW_GROUP)
    }

    /// Writes one affine row from its codes and its (scale, bias) pairs, one per group.
    ///
    /// # Panics
    /// When the lengths do not agree or the encoding is not affine.
    pub fn put_affine(self, codes: &[u8], affine: &[(u16, u16)], row: &mut [u8]) {
        let Self::Affine { bits } = self else { panic!("not an affine row") };
        assert_eq!(Some(row.len()), self.row_bytes(codes.len()));
        assert_eq!(codes.len(), affine.len() * ROW_GROUP);
        let (packed, tail) = row.split_at_mut(codes.len() * bits.get() / 8);
        packed.fill(0);
        pack_codes(codes, bits.get(), packed);
        let (scales, biases) = tail.split_at_mut(affine.len() * 2);
        for (i, (scale, bias)) in affine.iter().enumerate() {
            scales[2 * i..][..2].copy_from_slice(&scale.to_le_bytes());
            biases[2 * i..][..2].copy_from_slice(&bias.to_le_bytes());
        }
    }

    /// Writes one 16- or 32-bit row.
    ///
    /// # Panics
    /// When the lengths do not agree or the encoding is affine.
    pub fn put_float(self, values: &[f32], row: &mut [u8]) {
        assert_eq!(Some(row.len()), self.row_bytes(values.len()));
        match self {
            Self::F32 => {
                for (value, out) in values.iter().zip(row.chunks_exact_mut(4)) {
                    out.copy_from_slice(&value.to_le_bytes());
                }
            }
            Self::Bf16 => {
                for (value, out) in values.iter().zip(row.chunks_exact_mut(2)) {
                    out.copy_from_slice(&f32_to_bf16(*value).to_le_bytes());
                }
            }
            Self::Affine { .. } => panic!("an affine row takes codes"),
        }
    }
}

fn half(b: &[u8]) -> f32 {
    bf16_to_f32(u16::from_le_bytes([b[0], b[1]]))
}

fn decode_affine(row: &[u8], bits: Bits, out: &mut [f32]) {
    let groups = out.len() / ROW_GROUP;
    let (packed, tail) = row.split_at(out.len() * bits.get() / 8);
    let (scales, biases) = tail.split_at(groups * 2);
    let step = ROW_GROUP * bits.get() / 8;
    let mut codes = [0u8; ROW_GROUP];
    for (g, out) in out.chunks_exact_mut(ROW_GROUP).enumerate() {
        unpack_codes(&packed[g * step..][..step], bits.get(), &mut codes);
        let (scale, bias) = (half(&scales[2 * g..]), half(&biases[2 * g..]));
        for (out, &code) in out.iter_mut().zip(&codes) {
            *out = f32::from(code) * scale + bias;
        }
    }
}

/// Writes codes of `bits` bits as a little-endian bit string into zeroed bytes.
///
/// # Panics
/// When `packed` is too short or `bits` is not within 1..=8.
pub fn pack_codes(codes: &[u8], bits: usize, packed: &mut [u8]) {
    assert!((1..=8).contains(&bits));
    for (i, &code) in codes.iter().enumerate() {
        let at = i * bits;
        let wide = u16::from(code) << (at % 8);
        packed[at / 8] |= wide as u8;
        if at % 8 + bits > 8 {
            packed[at / 8 + 1] |= (wide >> 8) as u8;
        }
    }
}

/// Reads codes of `bits` bits from a little-endian bit string.
///
/// # Panics
/// When `packed` is too short or `bits` is not within 1..=8.
pub fn unpack_codes(packed: &[u8], bits: usize, codes: &mut [u8]) {
    assert!((1..=8).contains(&bits));
    let mask = ((1u16 << bits) - 1) as u8;
    match bits {
        8 => codes.copy_from_slice(&packed[..codes.len()]),
        4 if codes.len().is_multiple_of(2) => {
            for (pair, &b) in codes.chunks_exact_mut(2).zip(packed) {
                pair[0] = b & 15;
                pair[1] = b >> 4;
            }
        }
        _ => {
            for (i, code) in codes.iter_mut().enumerate() {
                let at = i * bits;
                let mut wide = u16::from(packed[at / 8]);
                if at % 8 + bits > 8 {
                    wide |= u16::from(packed[at / 8 + 1]) << 8;
                }
                *code = (wide >> (at % 8)) as u8 & mask;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn codes_survive_packing(bits in 1usize..=8, raw in prop::collection::vec(any::<u8>(), 0..100)) {
            let mask = ((1u16 << bits) - 1) as u8;
            let codes: Vec<u8> = raw.iter().map(|c| c & mask).collect();
            let mut packed = vec![0; (codes.len() * bits).div_ceil(8)];
            pack_codes(&codes, bits, &mut packed);
            let mut back = vec![0; codes.len()];
            unpack_codes(&packed, bits, &mut back);
            prop_assert_eq!(back, codes);
        }
    }

    #[test]
    fn an_official_row_takes_100_bytes() {
        assert_eq!(RowEncoding::Affine { bits: Bits::B4 }.row_bytes(160), Some(100));
        assert_eq!(RowEncoding::Affine { bits: Bits::B4 }.row_bytes(48), None);
    }

    #[test]
    fn affine_rows_mean_code_times_scale_plus_bias() {
        let encoding = RowEncoding::Affine { bits: Bits::B3 };
        let codes: Vec<u8> = (0..64).map(|i| (i % 8) as u8).collect();
        let affine = [(f32_to_bf16(0.5), f32_to_bf16(-1.0)), (f32_to_bf16(2.0), f32_to_bf16(3.0))];
        let mut row = vec![0xff; encoding.row_bytes(64).unwrap()];
        encoding.put_affine(&codes, &affine, &mut row);
        let mut out = vec![0.0; 64];
        encoding.decode(&row, &mut out);
        assert_eq!(out[5], 1.5);
        assert_eq!(out[32 + 7], 17.0);
    }
}
