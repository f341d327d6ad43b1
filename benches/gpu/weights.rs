//! Random weights that are cheap to make.

use cherenkov_format::{Bits, Encoding, Group, Matrix, tile16};

/// Codes of this width, by 64.
pub fn bits(bits: Bits) -> Encoding {
    Encoding::Tile16 { bits, group: Group::G64 }
}

/// Random bytes.
pub fn noise(bytes: &mut [u8], seed: u64) {
    let mut state = seed | 1;
    for chunk in bytes.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let word = state.to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

/// Random codes with small scales, written over `bytes`.
pub fn fill(bytes: &mut [u8], encoding: Encoding, seed: u64) {
    noise(bytes, seed);
    let Encoding::Tile16 { bits, group } = encoding else {
        // Small numbers: the high byte of each bf16 or f32 says so.
        let width = if encoding == Encoding::F32 { 4 } else { 2 };
        return bytes.chunks_exact_mut(width).for_each(|v| v[width - 1] = 0x3c | (v[0] & 0x80));
    };
    let scale = 0.02 / f32::from(bits.max_code());
    let (scale, bias) = ((scale.to_bits() >> 16) as u16, ((-0.01f32).to_bits() >> 16) as u16);
    for block in bytes.chunks_exact_mut(tile16::block_bytes(bits, group)) {
        block[..32].chunks_exact_mut(2).for_each(|v| v.copy_from_slice(&scale.to_le_bytes()));
        block[32..64].chunks_exact_mut(2).for_each(|v| v.copy_from_slice(&bias.to_le_bytes()));
    }
}

/// A random matrix.
pub fn matrix(rows: usize, cols: usize, encoding: Encoding, seed: u64) -> Matrix {
    let mut bytes = vec![0; encoding.byte_len(rows, cols).expect("the encoding fits")];
    fill(&mut bytes, encoding, seed);
    Matrix::new(rows, cols, encoding, bytes).expect("the encoding fits")
}
