//! Weights in the device's memory.
//!
//! Owns: their alignment, and taps turned the way the convolution wants them. Never: arithmetic.

use crate::memory::Aligned;
use cherenkov_format::{Encoding, Matrix, MatrixRef};
use std::sync::{Arc, OnceLock};

/// A projection, on a cache line boundary. Copies share it.
#[derive(Clone, Debug)]
pub struct CpuMatrix {
    rows: usize,
    cols: usize,
    encoding: Encoding,
    bytes: Arc<Aligned<u8>>,
}

impl CpuMatrix {
    /// Takes over a matrix.
    pub fn new(m: Matrix) -> Self {
        let (rows, cols, encoding) = (m.view().rows(), m.view().cols(), m.view().encoding());
        let bytes = Arc::new(Aligned::from_slice(m.view().bytes()));
        Self { rows, cols, encoding, bytes }
    }

    /// The borrowed view.
    pub fn view(&self) -> MatrixRef<'_> {
        MatrixRef::new(self.rows, self.cols, self.encoding, &self.bytes)
            .expect("length is that of the matrix it was made from")
    }
}

/// A small vector, or taps. Copies share it.
#[derive(Clone, Debug)]
pub struct CpuVector {
    values: Arc<Aligned<f32>>,
    by_tap: Arc<OnceLock<Aligned<f32>>>,
}

impl CpuVector {
    /// A copy of the values.
    pub fn new(values: &[f32]) -> Self {
        Self { values: Arc::new(Aligned::from_slice(values)), by_tap: Arc::default() }
    }

    /// Taps `[channels, kernel]` as `[kernel, channels]`; turned at the first use.
    pub fn by_tap(&self, kernel: usize) -> &[f32] {
        let channels = self.values.len() / kernel;
        self.by_tap.get_or_init(|| {
            let mut turned = Aligned::new(self.values.len());
            for (c, taps) in self.values.chunks_exact(kernel).enumerate() {
                for (j, tap) in taps.iter().enumerate() {
                    turned[j * channels + c] = *tap;
                }
            }
            turned
        })
    }
}

impl std::ops::Deref for CpuVector {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.values
    }
}
