//! Float weights times f32 activations.
//!
//! Owns: the product with f32 and bf16 matrices, in the order of [`super::lanes`].
//! Never: threads, quantisation.

use super::lanes::SPAN;
use super::tile::Dest;
use crate::simd::{LANES, Op, Simd};
use crate::threads::Columns;
use cherenkov_format::{Encoding, MatrixRef};

/// Outputs that are computed together.
const OUTPUTS: usize = 4;
/// Rows that are computed together.
const ROWS: usize = 4;

/// Row-major float weights.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    bytes: &'a [u8],
    wide: bool,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl<'a> Weights<'a> {
    /// The matrix, if its numbers are floats.
    pub fn new(m: MatrixRef<'a>) -> Option<Self> {
        let wide = match m.encoding() {
            Encoding::F32 => true,
            Encoding::Bf16 => false,
            Encoding::Tile16 { .. } => return None,
        };
        Some(Self { bytes: m.bytes(), wide, rows: m.rows(), cols: m.cols() })
    }
}

/// One product: the outputs that `out` has, for all rows of `x`.
pub struct Product<'a, 'o, 'd> {
    /// The weights.
    pub w: Weights<'a>,
    /// `[rows, cols]`.
    pub x: &'a [f32],
    /// Where row 0 of `x` goes, and so on.
    pub dest: Dest<'a>,
    /// The columns to be computed.
    pub out: &'o mut Columns<'d, f32>,
}

impl Op for Product<'_, '_, '_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        if self.w.wide { s.call(Run::<4>(self)) } else { s.call(Run::<2>(self)) }
    }
}

/// A product with `BYTES` bytes per weight.
struct Run<'a, 'o, 'd, const BYTES: usize>(Product<'a, 'o, 'd>);

impl<const BYTES: usize> Op for Run<'_, '_, '_, BYTES> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let mut p = self.0;
        let rows = p.x.len().checked_div(p.w.cols).unwrap_or(0);
        let outputs = p.out.len();
        // Rows outside, so that they stay in the nearest cache while the weights stream past.
        let mut row = 0;
        while row < rows {
            let many = rows - row >= ROWS;
            let mut o = 0;
            while o < outputs {
                o += match (many, outputs - o >= OUTPUTS) {
                    (true, true) => block::<S, BYTES, ROWS, OUTPUTS>(s, &mut p, row, o),
                    (true, false) => block::<S, BYTES, ROWS, 1>(s, &mut p, row, o),
                    (false, true) => block::<S, BYTES, 1, OUTPUTS>(s, &mut p, row, o),
                    (false, false) => block::<S, BYTES, 1, 1>(s, &mut p, row, o),
                };
            }
            row += if many { ROWS } else { 1 };
        }
    }
}

/// `R` rows from `row` on times `O` outputs from `output` on; returns `O`.
#[inline(always)]
fn block<S: Simd, const BYTES: usize, const R: usize, const O: usize>(
    s: S,
    p: &mut Product<'_, '_, '_>,
    row: usize,
    output: usize,
) -> usize {
    let cols = p.w.cols;
    let first = p.out.start() + output;
    let mut total = [[0.0f32; O]; R];
    for start in (0..cols).step_by(SPAN) {
        let len = SPAN.min(cols - start);
        let w: [&[u8]; O] = std::array::from_fn(
            #[inline(always)]
            |o| &p.w.bytes[((first + o) * cols + start) * BYTES..][..len * BYTES],
        );
        let x: [&[f32]; R] = std::array::from_fn(
            #[inline(always)]
            |r| &p.x[(row + r) * cols + start..][..len],
        );
        let acc = lanes::<S, BYTES, R, O>(s, w, x);
        for r in 0..R {
            for o in 0..O {
                total[r][o] += s.sum(acc[r][o]);
            }
        }
    }
    for (r, total) in total.iter().enumerate() {
        p.out.row(p.dest.at(row + r))[output..output + O].copy_from_slice(total);
    }
    O
}

/// The sixteen sums of one segment.
#[inline(always)]
fn lanes<S: Simd, const BYTES: usize, const R: usize, const O: usize>(
    s: S,
    w: [&[u8]; O],
    x: [&[f32]; R],
) -> [[S::F; O]; R] {
    let mut acc = [[s.splat(0.0); O]; R];
    let len = x[0].len();
    let full = len / LANES;
    for i in 0..full {
        let mut now = [s.splat(0.0); O];
        for o in 0..O {
            now[o] = weights::<S, BYTES>(s, &w[o][i * LANES * BYTES..][..LANES * BYTES]);
        }
        for r in 0..R {
            let x = x[r][i * LANES..].first_chunk().expect("a full vector");
            let x = s.load(x);
            for o in 0..O {
                acc[r][o] = s.fma(now[o], x, acc[r][o]);
            }
        }
    }
    if full * LANES < len {
        let at = full * LANES;
        for r in 0..R {
            let x = super::lanes::load_tail(s, &x[r][at..]);
            for o in 0..O {
                let mut bytes = [0; 64];
                bytes[..(len - at) * BYTES].copy_from_slice(&w[o][at * BYTES..]);
                let w = weights::<S, BYTES>(s, &bytes[..LANES * BYTES]);
                acc[r][o] = s.fma(w, x, acc[r][o]);
            }
        }
    }
    acc
}

/// Sixteen weights of `BYTES` bytes each.
#[inline(always)]
fn weights<S: Simd, const BYTES: usize>(s: S, bytes: &[u8]) -> S::F {
    if BYTES == 2 {
        s.load_bf16(bytes.first_chunk().expect("sixteen bf16"))
    } else {
        s.of_bits(s.iload(bytes.first_chunk().expect("sixteen f32")))
    }
}
