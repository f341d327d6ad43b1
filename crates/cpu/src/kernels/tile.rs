//! tile16 weights times quantised activations.
//!
//! Owns: the float part of the product and its order. For one output and row, with `isum` and `xsum`
//! the exact integer sums of a group:
//!
//! ```text
//! y = 0; for each segment of 10 groups, in order:
//!     acc = 0; for each group, in order: acc = fma(sx, fma(s, isum, b * xsum), acc)
//!     y = y + acc
//! ```
//!
//! `isum` is rounded to f32 once.
//! Never: threads, the choice of precision.
//! Invariant: the direct kernel (few rows), the blocked one and tiles all follow this order.

use super::blocked::Blocked;
use super::lanes::{load_tail, store_tail};
use super::quant::{PanelRef, Quantised, Shape};
use crate::simd::{Arch, LANES, Line, Op, SEGMENT, Simd, words};
use crate::threads::{Columns, Patch};
use cherenkov_format::{Bits, Encoding, Group, MatrixRef};
use std::ops::Range;

/// Up to this many rows go through the direct kernel, which unpacks nothing.
pub const DIRECT_ROWS: usize = 8;

/// How far ahead the direct kernel asks for weights.
const AHEAD: usize = 8064;

/// Weights in tile16.
#[derive(Clone, Copy)]
pub struct Weights<'a> {
    lines: &'a [Line],
    bits: Bits,
    /// Inputs per scale.
    pub group: Group,
    /// Outputs.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
}

impl<'a> Weights<'a> {
    /// The matrix, if it is in tile16.
    pub fn new(m: MatrixRef<'a>) -> Option<Self> {
        let Encoding::Tile16 { bits, group } = m.encoding() else { return None };
        let (lines, rest) = m.bytes().as_chunks();
        assert!(rest.is_empty(), "blocks are whole lines");
        Some(Self { lines, bits, group, rows: m.rows(), cols: m.cols() })
    }

    /// The blocks.
    pub fn lines(&self) -> &'a [Line] {
        self.lines
    }

    /// Width of the codes.
    pub fn bits(&self) -> Bits {
        self.bits
    }
}

/// Which rows of the output the rows of the activations become.
#[derive(Clone, Copy)]
pub enum Dest<'a> {
    /// Consecutive ones from this on.
    From(usize),
    /// These.
    Rows(&'a [u32]),
}

impl Dest<'_> {
    /// The output row of an activation row.
    #[inline(always)]
    pub fn at(&self, row: usize) -> usize {
        match self {
            Self::From(first) => first + row,
            Self::Rows(rows) => rows[row] as usize,
        }
    }
}

/// One product: some tiles of the weights, all rows or some panels of the activations.
pub struct Product<'a, 'o, 'd> {
    /// The weights.
    pub w: Weights<'a>,
    /// The activations.
    pub x: &'a Quantised,
    /// Their shape.
    pub shape: Shape,
    /// Panels of them to be used.
    pub panels: Range<usize>,
    /// Where row 0 of the first panel goes, and so on.
    pub dest: Dest<'a>,
    /// The columns to be computed: whole tiles.
    pub out: &'o mut Columns<'d, f32>,
}

/// Computes the columns that `p.out` has.
pub fn multiply(arch: Arch, p: Product<'_, '_, '_>) {
    assert!(p.shape.group == p.w.group && p.shape.cols == p.w.cols && p.shape.rows > 0);
    assert!(p.out.start().is_multiple_of(LANES) && p.out.start() + p.out.len() <= p.w.rows);
    match (p.w.bits, p.w.group) {
        (Bits::B2, Group::G64) => run::<2, 16>(arch, p),
        (Bits::B2, Group::G32) => run::<2, 8>(arch, p),
        (Bits::B3, Group::G64) => run::<3, 16>(arch, p),
        (Bits::B3, Group::G32) => run::<3, 8>(arch, p),
        (Bits::B4, Group::G64) => run::<4, 16>(arch, p),
        (Bits::B4, Group::G32) => run::<4, 8>(arch, p),
        (Bits::B8, Group::G64) => run::<8, 16>(arch, p),
        (Bits::B8, Group::G32) => run::<8, 8>(arch, p),
    }
}

/// A product at `W` bits, groups of `QUADS` quads.
fn run<const W: usize, const QUADS: usize>(arch: Arch, p: Product<'_, '_, '_>) {
    if p.shape.rows <= DIRECT_ROWS {
        arch.run(Direct::<W, QUADS>(p));
    } else {
        arch.run_with_tiles(Blocked::<W, QUADS>(p));
    }
}

/// Few rows: every block is read once and multiplied as it is.
struct Direct<'a, 'o, 'd, const W: usize, const QUADS: usize>(Product<'a, 'o, 'd>);

impl<const W: usize, const QUADS: usize> Op for Direct<'_, '_, '_, W, QUADS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.0;
        let tile_lines = p.shape.groups() * (1 + words(W, QUADS));
        let panel = p.x.panel(p.shape, 0);
        let mut out = Target { out: p.out, dest: p.dest };
        for tile in 0..out.tiles() {
            let at = (out.first_tile() + tile) * tile_lines;
            let blocks = &p.w.lines[at..at + tile_lines];
            let t = Tile { blocks, panel, tile };
            let mut row = 0;
            while row < panel.rows {
                row += some_rows::<S, W, QUADS>(s, t, row, &mut out);
            }
        }
    }
}

/// As many rows from `row` on as registers hold; returns how many.
#[inline(always)]
fn some_rows<S: Simd, const W: usize, const QUADS: usize>(
    s: S,
    t: Tile<'_>,
    row: usize,
    out: &mut Target<'_, '_, '_>,
) -> usize {
    let left = t.panel.rows - row;
    // Groups of 32 are rare: fewer shapes are compiled for them.
    let common = QUADS == 16;
    if S::TOGETHER >= 8 && common && left >= 8 {
        direct::<S, W, QUADS, 8>(s, t, row, out)
    } else if S::TOGETHER >= 4 && left >= 4 {
        direct::<S, W, QUADS, 4>(s, t, row, out)
    } else if S::TOGETHER >= 4 && common && left == 3 {
        direct::<S, W, QUADS, 3>(s, t, row, out)
    } else if S::TOGETHER >= 4 && common && left == 2 {
        direct::<S, W, QUADS, 2>(s, t, row, out)
    } else {
        direct::<S, W, QUADS, 1>(s, t, row, out)
    }
}

/// The blocks of one tile and the activations they meet.
#[derive(Clone, Copy)]
struct Tile<'a> {
    blocks: &'a [Line],
    panel: PanelRef<'a>,
    /// Tile within the output columns.
    tile: usize,
}

/// `R` rows from `row` on; returns `R`.
#[inline(always)]
fn direct<S: Simd, const W: usize, const QUADS: usize, const R: usize>(
    s: S,
    t: Tile<'_>,
    row: usize,
    out: &mut Target<'_, '_, '_>,
) -> usize {
    let mut y = [s.splat(0.0); R];
    for (i, blocks) in t.blocks.chunks(SEGMENT * (1 + words(W, QUADS))).enumerate() {
        let acc = segment::<S, W, W, QUADS, R, AHEAD>(s, blocks, t.panel, row, i * SEGMENT);
        for r in 0..R {
            y[r] = s.add(y[r], acc[r]);
        }
    }
    for (r, y) in y.into_iter().enumerate() {
        out.set(s, row + r, t.tile, y);
    }
    R
}

/// The sum over the groups of one segment, from `first` on, for `R` rows from `row` on.
#[inline(always)]
pub fn segment<
    S: Simd,
    const W: usize,
    const STORED: usize,
    const QUADS: usize,
    const R: usize,
    const AHEAD: usize,
>(
    s: S,
    blocks: &[Line],
    panel: PanelRef<'_>,
    row: usize,
    first: usize,
) -> [S::F; R] {
    let mut acc = [s.splat(0.0); R];
    for (i, block) in blocks.chunks_exact(1 + words(STORED, QUADS)).enumerate() {
        let at = (first + i) * panel.rows + row;
        // All checks come before the loads: a branch after them would keep every activation in a
        // register until then, more than there are.
        let x = &panel.values[at * QUADS * 4..][..R * QUADS * 4];
        let (scales, sums) = (&panel.scales[at..at + R], &panel.sums[at..at + R]);
        if AHEAD > 0 {
            s.prefetch(&block[0], AHEAD);
        }
        let dots = s.dots::<W, STORED, QUADS, R, AHEAD>(&block[1..], x.as_chunks().0);
        let (scale, bias) = header(s, &block[0]);
        for r in 0..R {
            let t = s.fma(scale, s.to_f32(dots[r]), s.mul(bias, s.splat(sums[r])));
            acc[r] = s.fma(s.splat(scales[r]), t, acc[r]);
        }
    }
    acc
}

/// Scales and biases of a block.
#[inline(always)]
fn header<S: Simd>(s: S, line: &Line) -> (S::F, S::F) {
    let halves = line.as_chunks::<32>().0;
    (s.load_bf16(&halves[0]), s.load_bf16(&halves[1]))
}

/// The output, addressed by activation row and tile.
pub struct Target<'a, 'o, 'd> {
    /// The columns.
    pub out: &'o mut Columns<'d, f32>,
    /// Where rows go.
    pub dest: Dest<'a>,
}

impl Target<'_, '_, '_> {
    /// Number of tiles.
    #[inline(always)]
    pub fn tiles(&self) -> usize {
        self.out.len().div_ceil(LANES)
    }

    /// Tile of the weights that tile 0 is.
    #[inline(always)]
    pub fn first_tile(&self) -> usize {
        self.out.start() / LANES
    }

    #[inline(always)]
    fn place(&mut self, row: usize, tile: usize) -> &mut [f32] {
        let row = self.out.row(self.dest.at(row));
        let end = (tile * LANES + LANES).min(row.len());
        &mut row[tile * LANES..end]
    }

    /// A tile of consecutive rows, if it is whole and they are consecutive in the output too.
    #[inline(always)]
    pub fn patch(&mut self, row: usize, rows: usize, tile: usize) -> Option<Patch<'_>> {
        let Dest::From(first) = self.dest else { return None };
        let whole = (tile + 1) * LANES <= self.out.len();
        whole.then(|| self.out.patch(first + row, rows, tile * LANES))
    }

    /// `y[row, tile] = v`.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, s: S, row: usize, tile: usize, v: S::F) {
        let place = self.place(row, tile);
        match place.first_chunk_mut() {
            Some(full) => s.store(v, full),
            None => store_tail(s, v, place),
        }
    }

    /// `y[row, tiles from this one on] = values`, as many as there are columns.
    #[inline(always)]
    pub fn set_row(&mut self, row: usize, tile: usize, values: &[f32]) {
        let row = &mut self.out.row(self.dest.at(row))[tile * LANES..];
        let len = row.len().min(values.len());
        row[..len].copy_from_slice(&values[..len]);
    }

    /// `y[row, tile] += v`, from 0 for the first segment.
    #[inline(always)]
    pub fn gain<S: Simd>(&mut self, s: S, row: usize, tile: usize, segment: usize, v: S::F) {
        let place = self.place(row, tile);
        let before = match (segment, place.first_chunk()) {
            (0, _) => s.splat(0.0),
            (_, Some(place)) => s.load(place),
            (_, None) => load_tail(s, place),
        };
        self.set(s, row, tile, s.add(before, v));
    }
}
