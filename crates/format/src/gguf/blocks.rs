//! Numbers as GGUF stores them.
//!
//! Owns: the block layouts and what each costs in precision. Never: tensors, files.
//! Invariant: codes stay as they are wherever the target can say the same weights; whatever it cannot
//! say is quantised anew by the plain rule of its format, and counted.
//!
//! A block of 32 values of a row is `d (f16) | 16 bytes` (`q4_0`, value `d * (q - 8)`),
//! `d | m | 16 bytes` (`q4_1`, value `d * q + m`) or `d | 32 signed bytes` (`q8_0`, value `d * q`).
//! Byte j of the 16 holds value j in its low and value j + 16 in its high nibble.

use crate::float::{bf16_to_f32, f16_to_f32, f32_to_bf16, f32_to_f16};

/// Values of a block.
pub const BLOCK: usize = 32;

/// How a tensor's numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Type {
    /// f32.
    F32,
    /// IEEE half precision.
    F16,
    /// bf16.
    Bf16,
    /// Signed bytes times a scale.
    Q8_0,
    /// Four bits minus 8, times a scale.
    Q4_0,
    /// Four bits times a scale, plus a minimum.
    Q4_1,
}

impl Type {
    /// Every type.
    pub const ALL: [Self; 6] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Q4_1];

    /// The name in options and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4_1 => "q4_1",
        }
    }

    /// The number of the type in a tensor's entry.
    pub const fn id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 8,
            Self::Bf16 => 30,
        }
    }

    /// The number of a file whose weights are mostly of this type.
    pub const fn file_id(self) -> u32 {
        match self {
            Self::F32 => 0,
            Self::F16 => 1,
            Self::Q4_0 => 2,
            Self::Q4_1 => 3,
            Self::Q8_0 => 7,
            Self::Bf16 => 32,
        }
    }

    /// Bytes of a row; `None` when the width is no multiple of a block.
    pub fn row_bytes(self, cols: usize) -> Option<usize> {
        let block = match self {
            Self::F32 => return Some(cols * 4),
            Self::F16 | Self::Bf16 => return Some(cols * 2),
            Self::Q8_0 => 34,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
        };
        cols.is_multiple_of(BLOCK).then_some(cols / BLOCK * block)
    }
}

/// How closely the target says the source's weights.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Values.
    pub values: u64,
    /// Sum of their squares.
    pub squares: f64,
    /// Sum of squared errors.
    pub error: f64,
    /// Blocks whose codes were kept.
    pub kept: u64,
    /// Blocks that were quantised anew.
    pub requantised: u64,
}

impl Tally {
    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.values += other.values;
        self.squares += other.squares;
        self.error += other.error;
        self.kept += other.kept;
        self.requantised += other.requantised;
    }

    /// Root of (squared error over squares); 0 when exact.
    pub fn relative_rms(&self) -> f64 {
        if self.squares > 0.0 { (self.error / self.squares).sqrt() } else { 0.0 }
    }

    fn count(&mut self, value: f32, found: f32) {
        self.values += 1;
        self.squares += f64::from(value) * f64::from(value);
        self.error += (f64::from(value) - f64::from(found)).powi(2);
    }
}

/// A row to be written.
#[derive(Clone, Copy, Debug)]
pub struct Row<'a> {
    /// Its exact values.
    pub values: &'a [f32],
    /// The codes that they are made of, if they are.
    pub codes: Option<Codes<'a>>,
}

/// Affine codes of a row.
#[derive(Clone, Copy, Debug)]
pub struct Codes<'a> {
    /// One per value.
    pub codes: &'a [u8],
    /// Scale and bias of each group.
    pub pairs: &'a [(f32, f32)],
    /// Values of a group; a multiple of [`BLOCK`].
    pub group: usize,
}

/// One block of codes.
#[derive(Clone, Copy)]
struct Block<'a> {
    codes: &'a [u8],
    scale: f32,
    bias: f32,
}

impl Block<'_> {
    /// How far the codes must be shifted to be numbers of scales without a bias, if they can be.
    fn shift(self) -> Option<i32> {
        let steps = self.bias / self.scale;
        let whole = steps.is_finite() && steps.fract() == 0.0 && steps.abs() < 1024.0;
        // The product is what the source's weights are made with.
        (whole && steps * self.scale == self.bias).then_some(steps as i32)
    }
}

fn fits_f16(value: f32) -> bool {
    f16_to_f32(f32_to_f16(value)) == value
}

/// Writes one row. `Err` is a value that the type cannot hold at all.
///
/// # Panics
/// When `out` is not [`Type::row_bytes`] long.
pub fn put_row(row: Row<'_>, to: Type, out: &mut [u8], tally: &mut Tally) -> Result<(), f32> {
    assert_eq!(Some(out.len()), to.row_bytes(row.values.len()));
    let size = match to {
        Type::F32 => {
            return floats::<4>(row.values, out, tally, |v| (v.to_le_bytes(), v));
        }
        Type::F16 => {
            let half = |v: f32| (f32_to_f16(v).to_le_bytes(), f16_to_f32(f32_to_f16(v)));
            return floats::<2>(row.values, out, tally, half);
        }
        Type::Bf16 => {
            let half = |v: f32| (f32_to_bf16(v).to_le_bytes(), bf16_to_f32(f32_to_bf16(v)));
            return floats::<2>(row.values, out, tally, half);
        }
        _ => out.len() / (row.values.len() / BLOCK),
    };
    for (number, out) in out.chunks_exact_mut(size).enumerate() {
        let values = &row.values[number * BLOCK..][..BLOCK];
        let block = row.codes.map(|c| {
            let (scale, bias) = c.pairs[number * BLOCK / c.group];
            Block { codes: &c.codes[number * BLOCK..][..BLOCK], scale, bias }
        });
        let kept = match to {
            Type::Q4_0 => block.and_then(|b| keep_q4_0(b, out)),
            Type::Q4_1 => block.and_then(|b| keep_q4_1(b, out)),
            _ => block.and_then(|b| keep_q8_0(b, out)),
        };
        if kept.is_some() {
            tally.kept += 1;
        } else {
            tally.requantised += 1;
            match to {
                Type::Q4_0 => quantise_q4_0(values, out),
                Type::Q4_1 => quantise_q4_1(values, out),
                _ => quantise_q8_0(values, out),
            }
        }
        let mut found = [0f32; BLOCK];
        decode(to, out, &mut found);
        for (&value, found) in values.iter().zip(found) {
            if !found.is_finite() {
                return Err(value);
            }
            tally.count(value, found);
        }
    }
    Ok(())
}

fn floats<const N: usize>(
    values: &[f32],
    out: &mut [u8],
    tally: &mut Tally,
    convert: impl Fn(f32) -> ([u8; N], f32),
) -> Result<(), f32> {
    for (&value, out) in values.iter().zip(out.chunks_exact_mut(N)) {
        let (bytes, found) = convert(value);
        out.copy_from_slice(&bytes);
        if !found.is_finite() {
            return Err(value);
        }
        tally.count(value, found);
    }
    Ok(())
}

fn put_half(value: f32, out: &mut [u8]) {
    out[..2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
}

fn half(bytes: &[u8]) -> f32 {
    f16_to_f32(u16::from_le_bytes([bytes[0], bytes[1]]))
}

/// Value j low, value j + 16 high.
fn put_nibbles(out: &mut [u8], code: impl Fn(usize) -> u8) {
    for (j, out) in out.iter_mut().enumerate() {
        *out = code(j) | code(j + BLOCK / 2) << 4;
    }
}

fn keep_q4_0(b: Block<'_>, out: &mut [u8]) -> Option<()> {
    let shift = b.shift().filter(|_| fits_f16(b.scale))?;
    let code = |c: u8| i32::from(c) + shift + 8;
    if !b.codes.iter().all(|&c| (0..16).contains(&code(c))) {
        return None;
    }
    put_half(b.scale, out);
    put_nibbles(&mut out[2..], |j| code(b.codes[j]) as u8);
    Some(())
}

/// Codes of up to four bits are kept whatever their scale: what f16 cannot hold of scale and bias is
/// less than quantising anew would lose.
fn keep_q4_1(b: Block<'_>, out: &mut [u8]) -> Option<()> {
    if !b.codes.iter().all(|&c| c < 16) {
        return None;
    }
    put_half(b.scale, out);
    put_half(b.bias, &mut out[2..]);
    put_nibbles(&mut out[4..], |j| b.codes[j]);
    Some(())
}

fn keep_q8_0(b: Block<'_>, out: &mut [u8]) -> Option<()> {
    let shift = b.shift().filter(|_| fits_f16(b.scale))?;
    let code = |c: u8| i32::from(c) + shift;
    if !b.codes.iter().all(|&c| (-128..128).contains(&code(c))) {
        return None;
    }
    put_half(b.scale, out);
    for (out, &c) in out[2..].iter_mut().zip(b.codes) {
        *out = code(c) as i8 as u8;
    }
    Some(())
}

fn inverse(d: f32) -> f32 {
    if d == 0.0 { 0.0 } else { 1.0 / d }
}

/// The value of the largest magnitude becomes -8 steps.
fn quantise_q4_0(values: &[f32], out: &mut [u8]) {
    let most = values.iter().copied().fold(0f32, |a, v| if v.abs() > a.abs() { v } else { a });
    put_half(most / -8.0, out);
    let id = inverse(half(out));
    let code = |v: f32| (v * id + 8.0).round().clamp(0.0, 15.0) as u8;
    put_nibbles(&mut out[2..], |j| code(values[j]));
}

fn quantise_q4_1(values: &[f32], out: &mut [u8]) {
    let low = values.iter().copied().fold(f32::INFINITY, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    put_half((high - low) / 15.0, out);
    put_half(low, &mut out[2..]);
    let (id, m) = (inverse(half(out)), half(&out[2..]));
    let code = |v: f32| ((v - m) * id).round().clamp(0.0, 15.0) as u8;
    put_nibbles(&mut out[4..], |j| code(values[j]));
}

fn quantise_q8_0(values: &[f32], out: &mut [u8]) {
    let most = values.iter().fold(0f32, |a, v| a.max(v.abs()));
    put_half(most / 127.0, out);
    let id = inverse(half(out));
    for (out, v) in out[2..].iter_mut().zip(values) {
        *out = (v * id).round().clamp(-127.0, 127.0) as i8 as u8;
    }
}

/// The values of one block.
fn decode(to: Type, block: &[u8], out: &mut [f32; BLOCK]) {
    let d = half(block);
    let nibble = |bytes: &[u8], j: usize| {
        f32::from(if j < BLOCK / 2 { bytes[j] & 15 } else { bytes[j - BLOCK / 2] >> 4 })
    };
    for (j, out) in out.iter_mut().enumerate() {
        *out = match to {
            Type::Q4_0 => d * (nibble(&block[2..], j) - 8.0),
            Type::Q4_1 => d * nibble(&block[4..], j) + half(&block[2..]),
            _ => d * f32::from(block[2 + j] as i8),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn values(codes: &[u8], (scale, bias): (f32, f32)) -> Vec<f32> {
        codes.iter().map(|&c| f32::from(c) * scale + bias).collect()
    }

    fn put(codes: &[u8], pair: (f32, f32), to: Type) -> (Vec<u8>, Tally) {
        let values = values(codes, pair);
        let codes = Some(Codes { codes, pairs: &[pair], group: codes.len() });
        let mut out = vec![0; to.row_bytes(values.len()).unwrap()];
        let mut tally = Tally::default();
        put_row(Row { values: &values, codes }, to, &mut out, &mut tally).unwrap();
        (out, tally)
    }

    fn codes(bits: u32) -> impl Strategy<Value = Vec<u8>> {
        prop::collection::vec(0u8..=((1u16 << bits) - 1) as u8, 64)
    }

    proptest! {
        #[test]
        fn centred_codes_are_exact_without_a_minimum(codes in codes(4), e in -12i32..4) {
            let scale = 1.25 * 2f32.powi(e);
            for to in [Type::Q4_0, Type::Q8_0, Type::Q4_1] {
                let (_, tally) = put(&codes, (scale, -8.0 * scale), to);
                prop_assert_eq!((tally.error, tally.kept, tally.values), (0.0, 2, 64));
            }
        }

        #[test]
        fn eight_centred_bits_are_signed_bytes(codes in codes(8), e in -12i32..4) {
            let scale = 1.0625 * 2f32.powi(e);
            let (out, tally) = put(&codes, (scale, -128.0 * scale), Type::Q8_0);
            prop_assert_eq!((tally.error, tally.requantised), (0.0, 0));
            for (block, codes) in out.chunks(34).zip(codes.chunks(32)) {
                prop_assert_eq!(half(block), scale);
                let signed: Vec<u8> = codes.iter().map(|c| c.wrapping_sub(128)).collect();
                prop_assert_eq!(&block[2..], &signed);
            }
        }

        #[test]
        fn other_weights_come_within_half_a_step(codes in codes(8), bias in -3f32..3.0) {
            let values = values(&codes, (0.01, bias));
            let most = values.iter().fold(0f32, |a, v| a.max(v.abs()));
            // Half of a step, and what f16 takes from scale and minimum.
            for (to, steps) in [(Type::Q8_0, 254.0), (Type::Q4_1, 30.0), (Type::Q4_0, 14.0)] {
                let (out, tally) = put(&codes, (0.01, bias), to);
                prop_assert_eq!(tally.requantised, 2);
                let mut found = [0f32; 32];
                for (block, values) in out.chunks(out.len() / 2).zip(values.chunks(32)) {
                    decode(to, block, &mut found);
                    for (v, f) in values.iter().zip(found) {
                        prop_assert!((v - f).abs() <= 2.0 * most / steps + most / 500.0, "{to:?} {v} {f}");
                    }
                }
            }
        }

        #[test]
        fn floats_are_rounded_to_nearest(values in prop::collection::vec(-100f32..100.0, 7)) {
            let row = Row { values: &values, codes: None };
            for to in [Type::F32, Type::F16, Type::Bf16] {
                let mut out = vec![0; to.row_bytes(7).unwrap()];
                let mut tally = Tally::default();
                put_row(row, to, &mut out, &mut tally).unwrap();
                let limit = match to { Type::F32 => 0.0, Type::F16 => 5e-4, _ => 4e-3 };
                prop_assert!(tally.relative_rms() <= limit);
            }
        }
    }

    #[test]
    fn nibbles_lie_half_a_block_apart() {
        let codes: Vec<u8> = (0..32).map(|i| i % 16).collect();
        let (out, _) = put(&codes, (1.0, -8.0), Type::Q4_0);
        assert_eq!(out[2 + 3], 3 | 3 << 4);
        let (out, tally) = put(&codes, (0.5, 0.25), Type::Q4_1);
        assert_eq!((half(&out), half(&out[2..]), out[4 + 5]), (0.5, 0.25, 5 | 5 << 4));
        assert_eq!((tally.error, tally.kept), (0.0, 1));
    }

    #[test]
    fn codes_are_kept_only_where_they_mean_the_same() {
        // A bias between two steps; a scale that f16 cannot hold; codes out of range.
        let codes: Vec<u8> = (0..32).map(|i| i % 16).collect();
        for pair in [(1.0, -7.5), (1.0 + 2f32.powi(-12), -8.0 - 2f32.powi(-9)), (1.0, -3.0)] {
            assert_eq!(put(&codes, pair, Type::Q4_0).1.requantised, 1, "{pair:?}");
        }
        // A minimum that needs more bits than f16 has: kept, and the error is counted.
        let (_, tally) = put(&codes, (1.0, 300.125), Type::Q4_1);
        assert!(tally.kept == 1 && tally.error > 0.0);
        // Too large for f16 in any form.
        let wide = values(&codes, (1e5, 0.0));
        let mut out = [0; 18];
        let row = Row { values: &wide, codes: None };
        assert!(put_row(row, Type::Q4_0, &mut out, &mut Tally::default()).is_err());
        let mut out = [0; 64];
        assert_eq!(put_row(row, Type::F16, &mut out, &mut Tally::default()), Err(1e5));
    }

    #[test]
    fn zeros_stay_zeros() {
        for to in Type::ALL {
            let mut out = vec![0; to.row_bytes(32).unwrap()];
            let mut tally = Tally::default();
            let row = Row { values: &[0.0; 32], codes: None };
            put_row(row, to, &mut out, &mut tally).unwrap();
            assert_eq!(tally.error, 0.0, "{to:?}");
        }
    }
}
