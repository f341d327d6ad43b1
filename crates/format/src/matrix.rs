//! A matrix in any encoding, borrowed or owned.
//!
//! Owns: shape + encoding + bytes as one value, and its exact meaning in f32.
//! Invariant: the byte length always matches shape and encoding.

use crate::encoding::Encoding;
use crate::float::bf16_to_f32;
use crate::tile16;

/// A borrowed matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    bytes: &'a [u8],
}

impl<'a> MatrixRef<'a> {
    /// Joins shape, encoding and bytes; `None` when the length does not fit.
    pub fn new(rows: usize, cols: usize, encoding: Encoding, bytes: &'a [u8]) -> Option<Self> {
        (encoding.byte_len(rows, cols)? == bytes.len()).then_some(Self {
            rows,
            cols,
            encoding,
            bytes,
        })
    }

    /// Output rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Inputs per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The layout of [`Self::bytes`].
    pub fn encoding(&self) -> Encoding {
        self.encoding
    }

    /// The encoded numbers.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Writes the exact f32 values of one row.
    ///
    /// # Panics
    /// When `row` is out of range or `out` is not `cols` long.
    pub fn read_row(&self, row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.cols);
        match self.encoding {
            Encoding::F32 => {
                let bytes = &self.bytes[row * self.cols * 4..][..self.cols * 4];
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(4)) {
                    *out = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
                }
            }
            Encoding::Bf16 => {
                let bytes = &self.bytes[row * self.cols * 2..][..self.cols * 2];
                for (out, b) in out.iter_mut().zip(bytes.chunks_exact(2)) {
                    *out = bf16_to_f32(u16::from_le_bytes([b[0], b[1]]));
                }
            }
            Encoding::Tile16 { bits, group } => {
                tile16::dequantise_row(self.bytes, bits, group, row, self.cols, out);
            }
        }
    }

    /// All values, row-major.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.rows * self.cols];
        if self.cols > 0 {
            for (row, out) in out.chunks_exact_mut(self.cols).enumerate() {
                self.read_row(row, out);
            }
        }
        out
    }
}

/// An owned matrix `[rows, cols]`.
#[derive(Clone, Debug)]
pub struct Matrix {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    bytes: Vec<u8>,
}

impl Matrix {
    /// Joins shape, encoding and bytes; `None` when the length does not fit.
    pub fn new(rows: usize, cols: usize, encoding: Encoding, bytes: Vec<u8>) -> Option<Self> {
        (encoding.byte_len(rows, cols)? == bytes.len()).then_some(Self {
            rows,
            cols,
            encoding,
            bytes,
        })
    }

    /// A row-major f32 matrix.
    ///
    /// # Panics
    /// When `values` does not hold `rows * cols` numbers.
    pub fn from_f32(rows: usize, cols: usize, values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols);
        let bytes = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        Self { rows, cols, encoding: Encoding::F32, bytes }
    }

    /// The borrowed view.
    pub fn view(&self) -> MatrixRef<'_> {
        MatrixRef { rows: self.rows, cols: self.cols, encoding: self.encoding, bytes: &self.bytes }
    }

    /// Gives the encoded bytes away.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
