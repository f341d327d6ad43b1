//! Random numbers and matrices for the tests.
#![allow(dead_code)]

use cherenkov_format::float::f32_to_bf16;
use cherenkov_format::{Bits, Encoding, Group, Matrix, tile16};

/// A small generator; the tests are the same on every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 20) as usize % n
    }

    /// Uniform within -1..1.
    pub fn unit(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    /// Roughly normal.
    pub fn normal(&mut self) -> f32 {
        (self.unit() + self.unit() + self.unit()) * 1.0
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }

    /// A matrix whose codes, scales and biases are random.
    pub fn matrix(&mut self, rows: usize, cols: usize, encoding: Encoding) -> Matrix {
        let mut bytes = vec![0; encoding.byte_len(rows, cols).unwrap()];
        match encoding {
            Encoding::F32 => {
                for b in bytes.chunks_exact_mut(4) {
                    b.copy_from_slice(&self.normal().to_le_bytes());
                }
            }
            Encoding::Bf16 => {
                for b in bytes.chunks_exact_mut(2) {
                    b.copy_from_slice(&f32_to_bf16(self.normal()).to_le_bytes());
                }
            }
            Encoding::Tile16 { bits, group } => self.tiles(rows, cols, bits, group, &mut bytes),
        }
        Matrix::new(rows, cols, encoding, bytes).unwrap()
    }

    fn tiles(&mut self, rows: usize, cols: usize, bits: Bits, group: Group, bytes: &mut [u8]) {
        let (size, groups) = (tile16::block_bytes(bits, group), cols / group.get());
        let extreme = self.below(5) == 0;
        for row in 0..rows {
            for g in 0..groups {
                let block = &mut bytes[(row / 16 * groups + g) * size..][..size];
                let codes: Vec<u8> = (0..group.get())
                    .map(|_| {
                        if extreme { bits.max_code() } else { self.next() as u8 & bits.max_code() }
                    })
                    .collect();
                let scale = self.normal() * 2.0 / f32::from(bits.max_code());
                let affine = (f32_to_bf16(scale), f32_to_bf16(self.normal() - scale));
                tile16::put_row(block, bits, group, row % 16, affine, &codes);
            }
        }
    }
}

/// Whether two results are the same bit for bit, all NaN counting as one.
pub fn same(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len()
        && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan())
}

/// Every encoding of a matrix of 64-multiples.
pub fn encodings() -> Vec<Encoding> {
    let mut all = vec![Encoding::F32, Encoding::Bf16];
    for bits in Bits::ALL {
        for group in [Group::G64, Group::G32] {
            all.push(Encoding::Tile16 { bits, group });
        }
    }
    all
}
