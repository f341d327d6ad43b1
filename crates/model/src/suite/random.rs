//! Seeded numbers, weights in every encoding.
//!
//! Owns: the generator. Invariant: the same seed and purpose give the same numbers everywhere.

use cherenkov_format::float::f32_to_bf16;
use cherenkov_format::{Encoding, Matrix, tile16};

/// A splitmix64 stream.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The stream for a purpose: different purposes give unrelated streams.
    pub fn new(seed: u64, purpose: &[u64]) -> Self {
        let mut random = Self(seed);
        for &word in purpose {
            random.0 = random.bits() ^ word.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        }
        random
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.bits() % n as u64) as usize
    }

    /// A number in -1..1.
    pub fn unit(&mut self) -> f32 {
        ((self.bits() >> 40) as f32).mul_add(2.0 / (1u32 << 24) as f32, -1.0)
    }

    /// Roughly normal with deviation 1.
    pub fn normal(&mut self) -> f32 {
        self.unit() + self.unit() + self.unit()
    }

    /// `count` roughly normal numbers of this deviation around `mean`.
    pub fn values(&mut self, count: usize, mean: f32, deviation: f32) -> Vec<f32> {
        (0..count).map(|_| self.normal().mul_add(deviation, mean)).collect()
    }

    /// Puts items in random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }

    /// `k` different ids below `n`, ascending.
    pub fn subset(&mut self, n: usize, k: usize) -> Vec<u32> {
        let mut ids: Vec<u32> = (0..n as u32).collect();
        self.shuffle(&mut ids);
        ids.truncate(k);
        ids.sort_unstable();
        ids
    }

    /// A weight matrix whose products are about as large as their inputs.
    pub fn matrix(&mut self, rows: usize, cols: usize, encoding: Encoding) -> Weights {
        let deviation = 1.0 / (cols as f32).sqrt();
        let values = self.values(rows * cols, 0.0, deviation);
        let bytes = match encoding {
            Encoding::F32 => values.iter().flat_map(|v| v.to_le_bytes()).collect(),
            Encoding::Bf16 => values.iter().flat_map(|v| f32_to_bf16(*v).to_le_bytes()).collect(),
            Encoding::Tile16 { .. } => self.tiles(rows, cols, encoding, deviation),
        };
        Weights::new(Matrix::new(rows, cols, encoding, bytes).expect("the encoding fits the shape"))
    }

    fn tiles(&mut self, rows: usize, cols: usize, encoding: Encoding, deviation: f32) -> Vec<u8> {
        let Encoding::Tile16 { bits, group } = encoding else { unreachable!("a tile encoding") };
        let size = tile16::block_bytes(bits, group);
        let groups = cols / group.get();
        let mut bytes = vec![0; rows.div_ceil(tile16::TILE_ROWS) * groups * size];
        let mut codes = vec![0; group.get()];
        for (block, bytes) in bytes.chunks_exact_mut(size).enumerate() {
            let first = block / groups * tile16::TILE_ROWS;
            for row in 0..tile16::TILE_ROWS.min(rows - first) {
                codes.fill_with(|| self.bits() as u8 & bits.max_code());
                let step = 3.5 * deviation / f32::from(bits.max_code());
                let scale = step * self.unit().mul_add(0.4, 0.8);
                let scale = if self.below(4) == 0 { -scale } else { scale };
                let middle = f32::from(bits.max_code()) / 2.0;
                let bias = self.unit().mul_add(0.2 * deviation, -scale * middle);
                let affine = (f32_to_bf16(scale), f32_to_bf16(bias));
                tile16::put_row(bytes, bits, group, row, affine, &codes);
            }
        }
        bytes
    }
}

/// A matrix and its exact values.
#[derive(Clone, Debug)]
pub struct Weights {
    /// What the device gets.
    pub matrix: Matrix,
    dense: Vec<f32>,
}

impl Weights {
    /// Keeps the values of a matrix at hand.
    pub fn new(matrix: Matrix) -> Self {
        Self { dense: matrix.view().to_f32(), matrix }
    }

    /// Rows of weights.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.dense.chunks_exact(self.matrix.view().cols())
    }

    /// `W x` in f64.
    pub fn times(&self, x: &[f64]) -> Vec<f64> {
        let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, x)| f64::from(w) * x).sum();
        self.rows().map(dot).collect()
    }

    /// `sum |w| |x|` per output: what an error of a product is measured by.
    pub fn scale(&self, x: &[f64]) -> Vec<f64> {
        let dot = |w: &[f32]| w.iter().zip(x).map(|(&w, x)| f64::from(w).abs() * x.abs()).sum();
        self.rows().map(dot).collect()
    }
}

/// A row in f64.
pub fn wide(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&x| f64::from(x)).collect()
}
