//! Rows of a checkpoint turned into rows of a store.
//!
//! Owns: every conversion between source numbers and store encodings. Never: files, threads.
//! Invariant: affine codes that fit the target stay as they are, bit for bit; only their scales and
//! biases may be rounded, and that is counted.

use crate::affine::{GROUP_MAX, quantise, round_affine};
use crate::checkpoint::safetensors::Dtype;
use crate::checkpoint::source::{AffineRows, RowBlock};
use crate::encoding::{Bits, Encoding};
use crate::float::{bf16_to_f32, f32_to_bf16};
use crate::rows::{ROW_GROUP, RowEncoding};
use crate::tile16::{self, TILE_ROWS};

/// Sums over converted values.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Stats {
    /// Values.
    pub values: u64,
    /// Sum of squares.
    pub squares: f64,
    /// Sum of squared errors.
    pub error: f64,
    /// What scales from the plain range would have given.
    pub plain: f64,
    /// Groups whose scale or bias had to be rounded to bf16.
    pub rounded: u64,
}

impl Stats {
    /// Adds `other`.
    pub fn add(&mut self, other: &Self) {
        self.values += other.values;
        self.squares += other.squares;
        self.error += other.error;
        self.plain += other.plain;
        self.rounded += other.rounded;
    }

    fn count(&mut self, values: &[f32]) {
        self.values += values.len() as u64;
        self.squares += values.iter().map(|&v| f64::from(v) * f64::from(v)).sum::<f64>();
    }
}

/// Whether a bf16 holds `value` exactly.
pub fn fits_bf16(value: f32) -> bool {
    bf16_to_f32(f32_to_bf16(value)) == value
}

/// Encodes rows of `cols` values into `out`, which is one chunk of a matrix.
pub fn encode(block: &RowBlock, rows: usize, cols: usize, to: Encoding, out: &mut [u8]) -> Stats {
    debug_assert_eq!(Some(out.len()), to.byte_len(rows, cols));
    let mut stats = Stats::default();
    match to {
        Encoding::Tile16 { bits, group } => {
            out.fill(0);
            let size = tile16::block_bytes(bits, group);
            let groups = cols / group.get();
            each_group(block, rows, cols, bits, group.get(), &mut stats, |row, g, pair, codes| {
                let at = (row / TILE_ROWS * groups + g) * size;
                tile16::put_row(&mut out[at..][..size], bits, group, row % TILE_ROWS, pair, codes);
            });
        }
        Encoding::Bf16 => floats(block, rows, cols, RowEncoding::Bf16, out, &mut stats),
        Encoding::F32 => floats(block, rows, cols, RowEncoding::F32, out, &mut stats),
    }
    stats
}

/// Encodes rows of an n-gram table into `out`.
pub fn encode_rows(
    block: &RowBlock,
    rows: usize,
    cols: usize,
    to: RowEncoding,
    out: &mut [u8],
) -> Stats {
    let mut stats = Stats::default();
    let RowEncoding::Affine { bits } = to else {
        floats(block, rows, cols, to, out, &mut stats);
        return stats;
    };
    let row_bytes = to.row_bytes(cols).expect("planned");
    let mut codes = vec![0u8; cols];
    let mut pairs = vec![(0, 0); cols / ROW_GROUP];
    let last = pairs.len() - 1;
    each_group(block, rows, cols, bits, ROW_GROUP, &mut stats, |row, g, pair, group| {
        codes[g * ROW_GROUP..][..ROW_GROUP].copy_from_slice(group);
        pairs[g] = pair;
        if g == last {
            to.put_affine(&codes, &pairs, &mut out[row * row_bytes..][..row_bytes]);
        }
    });
    stats
}

fn floats(
    block: &RowBlock,
    rows: usize,
    cols: usize,
    to: RowEncoding,
    out: &mut [u8],
    stats: &mut Stats,
) {
    let row_bytes = to.row_bytes(cols).expect("planned");
    let mut values = vec![0f32; cols];
    for row in 0..rows {
        block.values(row, &mut values);
        stats.count(&values);
        let out = &mut out[row * row_bytes..][..row_bytes];
        to.put_float(&values, out);
    }
    if let (RowBlock::Float { dtype: Dtype::Bf16, bytes }, RowEncoding::Bf16) = (block, to) {
        debug_assert_eq!(bytes, out);
    }
}

/// Calls `put(row, group, (scale, bias), codes)` for every group of every row, in order.
fn each_group(
    block: &RowBlock,
    rows: usize,
    cols: usize,
    bits: Bits,
    group: usize,
    stats: &mut Stats,
    mut put: impl FnMut(usize, usize, (u16, u16), &[u8]),
) {
    if let RowBlock::Affine(a) = block
        && a.bits <= bits.get()
        && a.group.is_multiple_of(group)
    {
        kept(a, rows, cols, group, stats, put);
        return;
    }
    let mut values = vec![0f32; cols];
    for row in 0..rows {
        block.values(row, &mut values);
        stats.count(&values);
        for (g, values) in values.chunks_exact(group).enumerate() {
            let q = quantise(values, bits);
            stats.error += q.error;
            stats.plain += q.plain_error;
            put(row, g, (q.scale, q.bias), &q.codes[..group]);
        }
    }
}

/// The codes of the source as they are; a wider source group becomes several with the same pair.
fn kept(
    a: &AffineRows,
    rows: usize,
    cols: usize,
    group: usize,
    stats: &mut Stats,
    mut put: impl FnMut(usize, usize, (u16, u16), &[u8]),
) {
    let per_row = cols / a.group;
    let mut codes = [0u8; 2 * GROUP_MAX];
    for row in 0..rows {
        for source_group in 0..per_row {
            let codes = &mut codes[..a.group];
            a.codes(row, source_group, cols, codes);
            let at = row * per_row + source_group;
            let (pair, error) = round_affine(a.scales[at], a.biases[at], codes);
            stats.error += error;
            stats.plain += error;
            stats.rounded += u64::from(error > 0.0);
            let (scale, bias) = (f64::from(a.scales[at]), f64::from(a.biases[at]));
            stats.values += codes.len() as u64;
            stats.squares +=
                codes.iter().map(|&c| (f64::from(c) * scale + bias).powi(2)).sum::<f64>();
            for (part, codes) in codes.chunks_exact(group).enumerate() {
                put(row, source_group * (a.group / group) + part, pair, codes);
            }
        }
    }
}
