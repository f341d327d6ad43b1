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
//! With two planes `isum = 128 * isum_high + isum_low`, exact in i32, then rounded to f32 once.
//! Never: threads, the choice of precision.
//! Invariant: the direct kernel (few rows), the blocked one and tiles all follow this order.

use super::lanes::{load_tail, store_tail};
use super::quant::{PANEL, PanelRef, Planes, Quantised, Shape};
use crate::simd::{Arch, LANES, Line, Op, Panel, SEGMENT, Simd, each_quad, words};
use crate::threads::Columns;
use cherenkov_format::{Bits, Encoding, Group, MatrixRef};
use std::ops::Range;

/// Up to this many rows go through the direct kernel, which unpacks nothing.
pub const DIRECT_ROWS: usize = 8;

/// How far ahead the direct kernel asks for weights.
const AHEAD: usize = 8064;

/// How far ahead the blocked kernel asks for weights.
const AHEAD_BLOCKED: usize = 4096;

/// Panels that pass over a tile before the next tile is unpacked.
const BLOCK_PANELS: usize = 32;

/// Lines of an unpacked block: the header, then one per quad.
const fn unpacked_lines(quads: usize) -> usize {
    1 + quads
}

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
    assert!(p.shape.planes == Planes::One || p.w.bits == Bits::B8, "two planes are for 8 bits");
    match (p.w.bits, p.w.group, p.shape.planes) {
        (Bits::B2, Group::G64, _) => run::<2, 16, 1>(arch, p),
        (Bits::B2, Group::G32, _) => run::<2, 8, 1>(arch, p),
        (Bits::B3, Group::G64, _) => run::<3, 16, 1>(arch, p),
        (Bits::B3, Group::G32, _) => run::<3, 8, 1>(arch, p),
        (Bits::B4, Group::G64, _) => run::<4, 16, 1>(arch, p),
        (Bits::B4, Group::G32, _) => run::<4, 8, 1>(arch, p),
        (Bits::B8, Group::G64, Planes::One) => run::<8, 16, 1>(arch, p),
        (Bits::B8, Group::G32, Planes::One) => run::<8, 8, 1>(arch, p),
        (Bits::B8, Group::G64, Planes::Two) => run::<8, 16, 2>(arch, p),
        (Bits::B8, Group::G32, Planes::Two) => run::<8, 8, 2>(arch, p),
    }
}

/// A product at `W` bits, groups of `QUADS` quads, activations of `PLANES` planes.
fn run<const W: usize, const QUADS: usize, const PLANES: usize>(
    arch: Arch,
    p: Product<'_, '_, '_>,
) {
    if p.shape.rows <= DIRECT_ROWS {
        arch.run(Direct::<W, QUADS, PLANES>(p));
    } else {
        arch.run_with_tiles(Blocked::<W, QUADS, PLANES>(p));
    }
}

/// Few rows: every block is read once and multiplied as it is.
struct Direct<'a, 'o, 'd, const W: usize, const QUADS: usize, const PLANES: usize>(
    Product<'a, 'o, 'd>,
);

impl<const W: usize, const QUADS: usize, const PLANES: usize> Op
    for Direct<'_, '_, '_, W, QUADS, PLANES>
{
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
                row += some_rows::<S, W, QUADS, PLANES>(s, t, row, &mut out);
            }
        }
    }
}

/// As many rows from `row` on as registers hold; returns how many.
#[inline(always)]
fn some_rows<S: Simd, const W: usize, const QUADS: usize, const PLANES: usize>(
    s: S,
    t: Tile<'_>,
    row: usize,
    out: &mut Target<'_, '_, '_>,
) -> usize {
    let left = t.panel.rows - row;
    // Groups of 32 are rare: fewer shapes are compiled for them.
    let common = QUADS == 16;
    if PLANES == 1 {
        if S::TOGETHER >= 8 && common && left >= 8 {
            direct::<S, W, QUADS, 8, 8>(s, t, row, out)
        } else if S::TOGETHER >= 4 && left >= 4 {
            direct::<S, W, QUADS, 4, 4>(s, t, row, out)
        } else if S::TOGETHER >= 4 && common && left == 3 {
            direct::<S, W, QUADS, 3, 3>(s, t, row, out)
        } else if S::TOGETHER >= 4 && common && left == 2 {
            direct::<S, W, QUADS, 2, 2>(s, t, row, out)
        } else {
            direct::<S, W, QUADS, 1, 1>(s, t, row, out)
        }
    } else if S::TOGETHER >= 16 && common && left >= 8 {
        direct::<S, W, QUADS, 8, 16>(s, t, row, out)
    } else if S::TOGETHER >= 8 && left >= 4 {
        direct::<S, W, QUADS, 4, 8>(s, t, row, out)
    } else if S::TOGETHER >= 8 && common && left == 3 {
        direct::<S, W, QUADS, 3, 6>(s, t, row, out)
    } else if S::TOGETHER >= 4 && common && left >= 2 {
        direct::<S, W, QUADS, 2, 4>(s, t, row, out)
    } else {
        direct::<S, W, QUADS, 1, 2>(s, t, row, out)
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

/// `R` rows from `row` on, `N` integer rows (`R` times the planes); returns `R`.
#[inline(always)]
fn direct<S: Simd, const W: usize, const QUADS: usize, const R: usize, const N: usize>(
    s: S,
    t: Tile<'_>,
    row: usize,
    out: &mut Target<'_, '_, '_>,
) -> usize {
    let mut y = [s.splat(0.0); R];
    for (i, blocks) in t.blocks.chunks(SEGMENT * (1 + words(W, QUADS))).enumerate() {
        let acc = segment::<S, W, W, QUADS, R, N, AHEAD>(s, blocks, t.panel, row, i * SEGMENT);
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
fn segment<
    S: Simd,
    const W: usize,
    const STORED: usize,
    const QUADS: usize,
    const R: usize,
    const N: usize,
    const AHEAD: usize,
>(
    s: S,
    blocks: &[Line],
    panel: PanelRef<'_>,
    row: usize,
    first: usize,
) -> [S::F; R] {
    let mut acc = [s.splat(0.0); R];
    let planes = N / R;
    for (i, block) in blocks.chunks_exact(1 + words(STORED, QUADS)).enumerate() {
        let at = (first + i) * panel.rows + row;
        let x = &panel.values[at * planes * QUADS * 4..][..N * QUADS * 4];
        if AHEAD > 0 {
            s.prefetch(&block[0], AHEAD);
        }
        let dots = s.dots::<W, STORED, QUADS, N, AHEAD>(&block[1..], x.as_chunks().0);
        let (scale, bias) = header(s, &block[0]);
        let (scales, sums) = (&panel.scales[at..at + R], &panel.sums[at..at + R]);
        for r in 0..R {
            let isum =
                if planes == 1 { dots[r] } else { s.iadd(s.shl(dots[2 * r], 7), dots[2 * r + 1]) };
            let t = s.fma(scale, s.to_f32(isum), s.mul(bias, s.splat(sums[r])));
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
struct Target<'a, 'o, 'd> {
    out: &'o mut Columns<'d, f32>,
    dest: Dest<'a>,
}

impl Target<'_, '_, '_> {
    #[inline(always)]
    fn tiles(&self) -> usize {
        self.out.len().div_ceil(LANES)
    }

    #[inline(always)]
    fn first_tile(&self) -> usize {
        self.out.start() / LANES
    }

    #[inline(always)]
    fn place(&mut self, row: usize, tile: usize) -> &mut [f32] {
        let row = self.out.row(self.dest.at(row));
        let end = (tile * LANES + LANES).min(row.len());
        &mut row[tile * LANES..end]
    }

    /// `y[row, tile] = v`.
    #[inline(always)]
    fn set<S: Simd>(&mut self, s: S, row: usize, tile: usize, v: S::F) {
        let place = self.place(row, tile);
        match place.first_chunk_mut() {
            Some(full) => s.store(v, full),
            None => store_tail(s, v, place),
        }
    }

    /// `y[row, tile] += v`, from 0 for the first segment.
    #[inline(always)]
    fn gain<S: Simd>(&mut self, s: S, row: usize, tile: usize, segment: usize, v: S::F) {
        let place = self.place(row, tile);
        let before = match (segment, place.first_chunk()) {
            (0, _) => s.splat(0.0),
            (_, Some(place)) => s.load(place),
            (_, None) => load_tail(s, place),
        };
        self.set(s, row, tile, s.add(before, v));
    }
}

/// Many rows: a segment of a tile is unpacked once and meets a block of panels.
struct Blocked<'a, 'o, 'd, const W: usize, const QUADS: usize, const PLANES: usize>(
    Product<'a, 'o, 'd>,
);

/// Tiles that a panel meets one after the other, while its activations are near.
const TILES: usize = 2;
/// Up to this many panels are near as a whole.
const NEAR_PANELS: usize = 8;
/// Lines of an unpacked segment.
const SEGMENT_LINES: usize = SEGMENT * unpacked_lines(16);

/// Unpacked segments.
#[repr(align(64))]
struct Unpacked([[Line; SEGMENT_LINES]; TILES]);

impl<const W: usize, const QUADS: usize, const PLANES: usize> Op
    for Blocked<'_, '_, '_, W, QUADS, PLANES>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let p = self.0;
        let mut scratch = Unpacked([[[0; 64]; SEGMENT_LINES]; TILES]);
        let mut out = Target { out: p.out, dest: p.dest };
        let b = Block { w: p.w, x: p.x, shape: p.shape, first_panel: p.panels.start };
        s.open_tiles();
        for start in p.panels.clone().step_by(BLOCK_PANELS) {
            let panels = start..(start + BLOCK_PANELS).min(p.panels.end);
            let (tiles, segments) = (out.tiles(), p.shape.groups().div_ceil(SEGMENT));
            if panels.len() <= NEAR_PANELS {
                // All these activations stay in the second cache; weights are read as they lie.
                for (tile, segment) in (0..tiles).flat_map(|t| (0..segments).map(move |s| (t, s))) {
                    let at = Place { tile, row: 0, segment };
                    b.tiles::<S, W, QUADS, PLANES, 1>(
                        s,
                        at,
                        panels.clone(),
                        &mut scratch,
                        &mut out,
                    );
                }
            } else {
                // One segment of them does.
                for segment in 0..segments {
                    for tile in (0..tiles).step_by(TILES) {
                        let at = Place { tile, row: 0, segment };
                        b.tiles::<S, W, QUADS, PLANES, TILES>(
                            s,
                            at,
                            panels.clone(),
                            &mut scratch,
                            &mut out,
                        );
                    }
                }
            }
        }
        s.close_tiles();
    }
}

/// What all tiles of a blocked product share.
struct Block<'a> {
    w: Weights<'a>,
    x: &'a Quantised,
    shape: Shape,
    first_panel: usize,
}

impl Block<'_> {
    /// A segment of a few tiles times some panels.
    #[inline(always)]
    fn tiles<
        S: Simd,
        const W: usize,
        const QUADS: usize,
        const PLANES: usize,
        const COUNT: usize,
    >(
        &self,
        s: S,
        at: Place,
        panels: Range<usize>,
        scratch: &mut Unpacked,
        out: &mut Target<'_, '_, '_>,
    ) {
        let block_lines = 1 + words(W, QUADS);
        let groups = self.shape.groups();
        let start = at.segment * SEGMENT;
        let used = SEGMENT.min(groups - start);
        let count = COUNT.min(out.tiles() - at.tile);
        let mut blocks: [&[Line]; COUNT] = [&[]; COUNT];
        for ((i, blocks), scratch) in blocks.iter_mut().enumerate().take(count).zip(&mut scratch.0)
        {
            let first = (out.first_tile() + at.tile + i) * groups + start;
            let packed = &self.w.lines[first * block_lines..][..used * block_lines];
            *blocks = unpack::<S, W, QUADS>(s, packed, scratch);
        }
        for n in panels {
            let panel = self.x.panel(self.shape, n);
            for (i, blocks) in blocks.iter().enumerate().take(count) {
                let row = (n - self.first_panel) * PANEL;
                let place = Place { tile: at.tile + i, row, segment: at.segment };
                s.call(PanelRun::<W, QUADS, PLANES> { blocks, panel, place, out });
            }
        }
    }
}

/// Spreads the codes of a segment to a byte each, keeping the headers.
#[inline(always)]
fn unpack<'a, S: Simd, const W: usize, const QUADS: usize>(
    s: S,
    packed: &'a [Line],
    scratch: &'a mut [Line],
) -> &'a [Line] {
    if W == 8 {
        return packed;
    }
    let lines = 1 + words(W, QUADS);
    let used = packed.len() / lines * unpacked_lines(QUADS);
    let to = scratch.chunks_exact_mut(unpacked_lines(QUADS));
    for (from, to) in packed.chunks_exact(lines).zip(to) {
        s.prefetch(&from[0], AHEAD_BLOCKED);
        to[0] = from[0];
        let codes = &mut to[1..];
        each_quad::<S, W, QUADS, AHEAD_BLOCKED>(
            s,
            &from[1..],
            #[inline(always)]
            |quad, v| s.istore(v, &mut codes[quad]),
        );
    }
    &scratch[..used]
}

/// Where a panel's results go.
#[derive(Clone, Copy)]
struct Place {
    tile: usize,
    row: usize,
    segment: usize,
}

/// One segment of one tile times one panel.
struct PanelRun<'a, 't, 'x, 'o, 'd, const W: usize, const QUADS: usize, const PLANES: usize> {
    blocks: &'a [Line],
    panel: PanelRef<'a>,
    place: Place,
    out: &'t mut Target<'x, 'o, 'd>,
}

impl<const W: usize, const QUADS: usize, const PLANES: usize> Op
    for PanelRun<'_, '_, '_, '_, '_, W, QUADS, PLANES>
{
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        if QUADS == 16 && self.tiles::<S>(s) {
            return;
        }
        let rows = self.panel.rows;
        let mut row = 0;
        while row < rows {
            let left = rows - row;
            row += if PLANES == 1 {
                if S::TOGETHER >= 8 && QUADS == 16 && left >= 8 {
                    self.some::<S, 8, 8>(s, row)
                } else if S::TOGETHER >= 4 && left >= 4 {
                    self.some::<S, 4, 4>(s, row)
                } else {
                    self.some::<S, 1, 1>(s, row)
                }
            } else if S::TOGETHER >= 8 && left >= 4 {
                self.some::<S, 4, 8>(s, row)
            } else if S::TOGETHER >= 4 && left >= 2 {
                self.some::<S, 2, 4>(s, row)
            } else {
                self.some::<S, 1, 2>(s, row)
            };
        }
    }
}

impl<const W: usize, const QUADS: usize, const PLANES: usize>
    PanelRun<'_, '_, '_, '_, '_, W, QUADS, PLANES>
{
    /// `R` rows, `N` integer rows, with dot products; returns `R`.
    #[inline(always)]
    fn some<S: Simd, const R: usize, const N: usize>(&mut self, s: S, row: usize) -> usize {
        let Place { tile, row: first, segment: i } = self.place;
        let acc = segment::<S, W, 8, QUADS, R, N, 0>(s, self.blocks, self.panel, row, i * SEGMENT);
        for (r, acc) in acc.into_iter().enumerate() {
            self.out.gain(s, first + row + r, tile, i, acc);
        }
        R
    }

    /// All rows with matrix tiles, where the instruction set has them and they pay.
    #[inline(always)]
    fn tiles<S: Simd>(&mut self, s: S) -> bool {
        let Place { tile, row: first, segment: i } = self.place;
        let (panel, at) = (self.panel, i * SEGMENT * self.panel.rows);
        let mut acc = [[0.0; LANES]; PANEL];
        let done = s.panel::<PLANES>(
            &Panel {
                blocks: self.blocks,
                x: &panel.values[at * PLANES * QUADS * 4..],
                scale: &panel.scales[at..],
                sum: &panel.sums[at..],
                rows: panel.rows,
            },
            &mut acc,
        );
        if done {
            for (r, acc) in acc.iter().take(panel.rows).enumerate() {
                self.out.gain(s, first + r, tile, i, s.load(acc));
            }
        }
        done
    }
}
