//! The blocked kernel: many rows.
//!
//! Owns: which activations and weights are near when. Never: the order of sums (see `tile`).
//!
//! A segment of a tile is unpacked to a byte per code once and meets a block of panels; results of
//! segments are added to the output in order.

use super::quant::{PANEL, PanelRef, Quantised, Shape};
use super::tile::{Dest, Product, Target, Weights, segment};
use crate::simd::{LANES, Line, Onto, Op, Panel, SEGMENT, Simd, each_quad, words};
use crate::threads::Cut;
use std::ops::Range;

/// Panels that pass over a tile before the next tile is unpacked.
const BLOCK_PANELS: usize = 32;

/// Lines of an unpacked block: the header, then one per quad.
const fn unpacked_lines(quads: usize) -> usize {
    1 + quads
}

/// Many rows: a segment of a tile is unpacked once and meets a block of panels.
pub struct Blocked<'a, 'o, 'd, const W: usize, const QUADS: usize>(pub Product<'a, 'o, 'd>);

/// Tiles that a panel meets one after the other, while its activations are near.
const TILES: usize = 2;
/// Up to this many panels are near as a whole.
const NEAR_PANELS: usize = 8;
/// Tiles whose outputs are near while the segments pass: with 512 rows 256 KiB.
const NEAR_TILES: usize = 8;
/// Lines of an unpacked segment.
const SEGMENT_LINES: usize = SEGMENT * unpacked_lines(16);

/// Unpacked segments.
#[repr(align(64))]
struct Unpacked([[Line; SEGMENT_LINES]; TILES]);

impl<const W: usize, const QUADS: usize> Op for Blocked<'_, '_, '_, W, QUADS> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Product { w, x, shape, panels, dest, out } = self.0;
        let mut scratch = Unpacked([[[0; 64]; SEGMENT_LINES]; TILES]);
        let mut out = Target { out, dest };
        let segments = shape.groups().div_ceil(SEGMENT);
        s.open_tiles();
        if panels.len() <= NEAR_PANELS {
            // All these activations stay in the second cache; weights are read as they lie.
            let (first_tile, first_panel) = (out.first_tile(), panels.start);
            let b = Block { w, x, shape, first_tile, first_panel };
            for (tile, segment) in (0..out.tiles()).flat_map(|t| (0..segments).map(move |s| (t, s)))
            {
                let at = (tile, segment);
                b.tiles::<S, W, QUADS, 1>(s, at, panels.clone(), &mut scratch, &mut out);
            }
        } else {
            let mut near = Near([[0.0; NEAR_TILES * LANES]; BLOCK_PANELS * PANEL]);
            for start in panels.clone().step_by(BLOCK_PANELS) {
                let some = start..(start + BLOCK_PANELS).min(panels.end);
                let rows = (some.end * PANEL).min(shape.rows) - start * PANEL;
                // One segment of the activations is near, and the outputs of a few tiles.
                for from in (0..out.tiles()).step_by(NEAR_TILES) {
                    let (tiles, first_tile) =
                        (NEAR_TILES.min(out.tiles() - from), out.first_tile() + from);
                    let b = Block { w, x, shape, first_tile, first_panel: start };
                    let width = tiles * LANES;
                    let near = &mut near.0.as_flattened_mut()[..BLOCK_PANELS * PANEL * width];
                    let whole = Cut::columns(near, BLOCK_PANELS * PANEL, LANES, 1);
                    let mut whole = whole.take(0);
                    let mut here = Target { out: &mut whole, dest: Dest::From(0) };
                    for (segment, tile) in (0..segments)
                        .flat_map(|s| (0..tiles).step_by(TILES).map(move |tile| (s, tile)))
                    {
                        let (at, some) = ((tile, segment), some.clone());
                        b.tiles::<S, W, QUADS, TILES>(s, at, some, &mut scratch, &mut here);
                    }
                    let first = (start - panels.start) * PANEL;
                    for (r, row) in near.chunks_exact(width).enumerate().take(rows) {
                        out.set_row(first + r, from, row);
                    }
                }
            }
        }
        s.close_tiles();
    }
}

/// Outputs of a block of rows for a few tiles, side by side: rows of the output itself lie a power of
/// two apart, sixteen of them in the same set of the nearest cache.
#[repr(align(64))]
struct Near([[f32; NEAR_TILES * LANES]; BLOCK_PANELS * PANEL]);

/// What all tiles of a blocked product share.
struct Block<'a> {
    w: Weights<'a>,
    x: &'a Quantised,
    shape: Shape,
    /// Tile of the weights that tile 0 of the target is.
    first_tile: usize,
    /// Panel whose first row is row 0 of the target.
    first_panel: usize,
}

impl Block<'_> {
    /// A segment of a few tiles times some panels.
    #[inline(always)]
    fn tiles<S: Simd, const W: usize, const QUADS: usize, const COUNT: usize>(
        &self,
        s: S,
        (tile, segment): (usize, usize),
        panels: Range<usize>,
        scratch: &mut Unpacked,
        out: &mut Target<'_, '_, '_>,
    ) {
        let block_lines = 1 + words(W, QUADS);
        let groups = self.shape.groups();
        let start = segment * SEGMENT;
        let used = SEGMENT.min(groups - start);
        let count = COUNT.min(out.tiles() - tile);
        let ahead = if COUNT == 1 { SEGMENT } else { COUNT * groups } * block_lines * 64;
        let mut blocks: [&[Line]; COUNT] = [&[]; COUNT];
        for ((i, blocks), scratch) in blocks.iter_mut().enumerate().take(count).zip(&mut scratch.0)
        {
            let first = (self.first_tile + tile + i) * groups + start;
            let packed = &self.w.lines()[first * block_lines..][..used * block_lines];
            *blocks = unpack::<S, W, QUADS>(s, packed, ahead, scratch);
        }
        for n in panels {
            let panel = self.x.panel(self.shape, n);
            for (i, blocks) in blocks.iter().enumerate().take(count) {
                let row = (n - self.first_panel) * PANEL;
                let place = Place { tile: tile + i, row, segment };
                s.call(PanelRun::<W, QUADS> { blocks, panel, place, out });
            }
        }
    }
}

/// Spreads the codes of a segment to a byte each, keeping the headers; asks for the weights `ahead`
/// bytes further.
#[inline(always)]
fn unpack<'a, S: Simd, const W: usize, const QUADS: usize>(
    s: S,
    packed: &'a [Line],
    ahead: usize,
    scratch: &'a mut [Line],
) -> &'a [Line] {
    if W == 8 {
        for line in packed {
            s.prefetch(line, ahead);
        }
        return packed;
    }
    let lines = 1 + words(W, QUADS);
    let used = packed.len() / lines * unpacked_lines(QUADS);
    let to = scratch.chunks_exact_mut(unpacked_lines(QUADS));
    for (from, to) in packed.chunks_exact(lines).zip(to) {
        for line in from {
            s.prefetch(line, ahead);
        }
        to[0] = from[0];
        let codes = &mut to[1..];
        each_quad::<S, W, QUADS, 0>(
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
struct PanelRun<'a, 't, 'x, 'o, 'd, const W: usize, const QUADS: usize> {
    blocks: &'a [Line],
    panel: PanelRef<'a>,
    place: Place,
    out: &'t mut Target<'x, 'o, 'd>,
}

impl<const W: usize, const QUADS: usize> Op for PanelRun<'_, '_, '_, '_, '_, W, QUADS> {
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
            row += if S::TOGETHER >= 8 && QUADS == 16 && left >= 8 {
                self.some::<S, 8>(s, row)
            } else if S::TOGETHER >= 4 && left >= 4 {
                self.some::<S, 4>(s, row)
            } else {
                self.some::<S, 1>(s, row)
            };
        }
    }
}

impl<const W: usize, const QUADS: usize> PanelRun<'_, '_, '_, '_, '_, W, QUADS> {
    /// `R` rows with dot products; returns `R`.
    #[inline(always)]
    fn some<S: Simd, const R: usize>(&mut self, s: S, row: usize) -> usize {
        let Place { tile, row: first, segment: i } = self.place;
        let acc = segment::<S, W, 8, QUADS, R, 0>(s, self.blocks, self.panel, row, i * SEGMENT);
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
        let panel = Panel {
            blocks: self.blocks,
            x: &panel.values[at * QUADS * 4..],
            scale: &panel.scales[at..],
            sum: &panel.sums[at..],
            rows: panel.rows,
        };
        let onto = if i == 0 { Onto::Zero } else { Onto::Before };
        if let Some(mut patch) = self.out.patch(first, panel.rows, tile) {
            return s.panel(&panel, &mut patch, onto);
        }
        // Scattered rows, or the end of the columns: by way of a whole tile.
        let mut whole = [[0.0; LANES]; PANEL];
        let cut = Cut::columns(whole.as_flattened_mut(), PANEL, LANES, 1);
        let done = s.panel(&panel, &mut cut.take(0).patch(0, panel.rows, 0), Onto::Zero);
        if done {
            for (r, y) in whole.iter().take(panel.rows).enumerate() {
                self.out.gain(s, first + r, tile, i, s.load(y));
            }
        }
        done
    }
}
