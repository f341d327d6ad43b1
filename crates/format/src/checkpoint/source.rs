//! One matrix of a checkpoint, read by row ranges.
//!
//! Owns: the meaning of source bytes: floats of three widths and MLX affine codes.
//! Never: choosing an output encoding. Invariant: values handed out are finite and below
//! [`MAGNITUDE_MAX`].

use super::safetensors::Dtype;
use super::{Checkpoint, Located};
use crate::error::{Error, Result};
use crate::float::{bf16_to_f32, f16_to_f32};
use crate::pio;
use crate::rows::unpack_codes;

/// Weights at or above this are taken for damage: squares of them would overflow.
pub const MAGNITUDE_MAX: f32 = (1u64 << 60) as f32;

/// How the numbers of a source matrix are stored.
#[derive(Clone, Debug)]
pub enum Numbers {
    /// One float per value.
    Float(Located),
    /// MLX affine codes.
    Affine {
        /// Packed codes.
        weight: Located,
        /// Scales, one per group.
        scales: Located,
        /// Biases, one per group.
        biases: Located,
        /// Code width: 2, 3, 4, 5, 6 or 8.
        bits: usize,
        /// Inputs per scale: 32, 64 or 128.
        group: usize,
    },
}

/// A matrix `[rows, cols]` of a checkpoint; leading dimensions are folded into the rows.
#[derive(Clone, Debug)]
pub struct SourceMatrix {
    /// Canonical name, for messages.
    pub name: String,
    /// Rows, all leading dimensions together.
    pub rows: usize,
    /// Inputs per row.
    pub cols: usize,
    /// Where and how.
    pub numbers: Numbers,
}

/// The affine parts of some rows.
#[derive(Clone, Debug)]
pub struct AffineRows {
    /// Code width.
    pub bits: usize,
    /// Inputs per scale and bias.
    pub group: usize,
    /// Packed codes, row after row.
    pub packed: Vec<u8>,
    /// Scales, row after row.
    pub scales: Vec<f32>,
    /// Biases, row after row.
    pub biases: Vec<f32>,
}

/// Rows as they came from the file.
#[derive(Clone, Debug)]
pub enum RowBlock {
    /// Little-endian floats.
    Float {
        /// Their type.
        dtype: Dtype,
        /// Their bytes.
        bytes: Vec<u8>,
    },
    /// Affine codes.
    Affine(AffineRows),
}

fn widen(dtype: Dtype, bytes: &[u8], out: &mut [f32]) {
    let half = |b: &[u8]| u16::from_le_bytes([b[0], b[1]]);
    match dtype {
        Dtype::Bf16 => {
            out.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(o, b)| *o = bf16_to_f32(half(b)));
        }
        Dtype::F16 => {
            out.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(o, b)| *o = f16_to_f32(half(b)));
        }
        Dtype::F32 => out
            .iter_mut()
            .zip(bytes.chunks_exact(4))
            .for_each(|(o, b)| *o = f32::from_le_bytes([b[0], b[1], b[2], b[3]])),
        other => unreachable!("the catalogue refuses {other:?} as floats"),
    }
}

/// Whether every value is finite and of a size that weights have.
pub fn sane(values: &[f32]) -> bool {
    // NaN fails the comparison too.
    values.iter().all(|v| v.abs() < MAGNITUDE_MAX)
}

impl RowBlock {
    /// Writes the exact f32 values of row `row` (within the block).
    ///
    /// # Panics
    /// When the block does not hold that row of `out.len()` values.
    pub fn values(&self, row: usize, out: &mut [f32]) {
        match self {
            Self::Float { dtype, bytes } => {
                let size = out.len() * dtype.size() as usize;
                widen(*dtype, &bytes[row * size..][..size], out);
            }
            Self::Affine(a) => a.values(row, out),
        }
    }
}

impl AffineRows {
    /// Codes of group `g` of row `row`; `cols` is the matrix's width.
    pub fn codes(&self, row: usize, g: usize, cols: usize, codes: &mut [u8]) {
        let row_bytes = cols * self.bits / 8;
        let step = self.group * self.bits / 8;
        unpack_codes(&self.packed[row * row_bytes + g * step..][..step], self.bits, codes);
    }

    fn values(&self, row: usize, out: &mut [f32]) {
        let cols = out.len();
        let groups = cols / self.group;
        let mut codes = [0u8; 128];
        for (g, out) in out.chunks_exact_mut(self.group).enumerate() {
            let codes = &mut codes[..self.group];
            self.codes(row, g, cols, codes);
            let (scale, bias) = (self.scales[row * groups + g], self.biases[row * groups + g]);
            for (out, &code) in out.iter_mut().zip(&*codes) {
                *out = f32::from(code) * scale + bias;
            }
        }
    }
}

impl Checkpoint {
    fn read_span(&self, at: &Located, offset: u64, bytes: u64) -> Result<Vec<u8>> {
        let shard = &self.shards[at.shard];
        let mut buf = vec![0; bytes as usize];
        pio::read_exact_at(&shard.file, &shard.path, at.info.offset + offset, &mut buf)?;
        Ok(buf)
    }

    /// Reads some rows of a matrix; damaged values are an error.
    pub fn read_rows(&self, m: &SourceMatrix, first: usize, rows: usize) -> Result<RowBlock> {
        assert!(first + rows <= m.rows, "rows {first}+{rows} of {}", m.rows);
        match &m.numbers {
            Numbers::Float(at) => {
                let row_bytes = m.cols as u64 * at.info.dtype.size();
                let bytes =
                    self.read_span(at, first as u64 * row_bytes, rows as u64 * row_bytes)?;
                let block = RowBlock::Float { dtype: at.info.dtype, bytes };
                let mut values = vec![0.0; m.cols];
                for row in 0..rows {
                    block.values(row, &mut values);
                    if !sane(&values) {
                        return Err(self.insane(at, first + row, &values));
                    }
                }
                Ok(block)
            }
            Numbers::Affine { weight, scales, biases, bits, group } => {
                let row_bytes = (m.cols * bits / 8) as u64;
                let packed =
                    self.read_span(weight, first as u64 * row_bytes, rows as u64 * row_bytes)?;
                let groups = m.cols / group;
                let scales = self.read_affine(scales, groups, first, rows)?;
                let biases = self.read_affine(biases, groups, first, rows)?;
                let (bits, group) = (*bits, *group);
                Ok(RowBlock::Affine(AffineRows { bits, group, packed, scales, biases }))
            }
        }
    }

    fn read_affine(
        &self,
        at: &Located,
        groups: usize,
        first: usize,
        rows: usize,
    ) -> Result<Vec<f32>> {
        let size = groups as u64 * at.info.dtype.size();
        let bytes = self.read_span(at, first as u64 * size, rows as u64 * size)?;
        let mut values = vec![0.0; groups * rows];
        widen(at.info.dtype, &bytes, &mut values);
        for (row, values) in values.chunks(groups.max(1)).enumerate() {
            if !sane(values) {
                return Err(self.insane(at, first + row, values));
            }
        }
        Ok(values)
    }

    fn insane(&self, at: &Located, row: usize, values: &[f32]) -> Error {
        let place = values.iter().position(|v| v.abs() >= MAGNITUDE_MAX || v.is_nan()).unwrap_or(0);
        Error::invalid(
            self.path_of(at),
            format!("tensor {}, row {row}, column {place}", at.info.name),
            format!("{}", values[place]),
            "a finite number below 2^60",
            "the checkpoint is damaged: download it again",
        )
    }
}
