//! Products and row-wise work over plain slices, in parallel.
//!
//! Owns: the threads, the instruction set, quantised copies of activations, scratch memory of workers.
//! Never: handles, states of sequences.
//! Invariant: how work is cut depends on sizes only and changes no bit of any result.

use crate::kernels::quant::{PANEL, Quantise, Quantised, Shape};
use crate::kernels::tile::Dest;
use crate::kernels::{dense, tile};
use crate::memory::Aligned;
use crate::simd::{Arch, Op, Simd};
use crate::threads::{Columns, Cut, Pool, share};
use cherenkov_format::{Encoding, MatrixRef};
use std::ops::Range;
use std::sync::atomic::AtomicU64;

/// Work below this many units (about a nanosecond each) is not worth waking threads for.
const SMALL_WORK: usize = 4000;

/// Memory of one worker, reused from job to job.
#[derive(Debug, Default)]
pub struct Worker {
    /// Quantised rows.
    pub quant: Quantised,
    /// Floats for whatever the job needs.
    pub floats: [Aligned<f32>; 4],
    /// Softmax state per head.
    pub softmax: Vec<(f32, f32)>,
    /// Sort keys.
    pub keys: Vec<u64>,
    /// Chosen indices.
    pub chosen: Vec<u32>,
}

impl Worker {
    fn bytes(&self) -> usize {
        self.quant.bytes() + self.floats.iter().map(Aligned::bytes).sum::<usize>()
    }
}

/// Which contents of which activation a quantised copy was made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    /// Number of the activation.
    pub act: u16,
    /// Changes whenever it is written.
    pub version: u64,
}

/// The quantised copy of the activation that was multiplied last.
#[derive(Debug, Default)]
struct Held {
    quant: Quantised,
    of: Option<(Stamp, Shape)>,
}

/// Threads and everything that runs on them.
pub struct Engine {
    pub pool: Pool,
    pub arch: Arch,
    pub workers: Vec<Worker>,
    held: Held,
    stamps: u64,
    /// A bit for every row of outputs that workers claim.
    claimed: Vec<AtomicU64>,
}

impl Engine {
    /// An engine over a pool.
    pub fn new(pool: Pool, arch: Arch) -> Self {
        let workers = (0..pool.threads()).map(|_| Worker::default()).collect();
        Self { pool, arch, workers, held: Held::default(), stamps: 0, claimed: Vec::new() }
    }

    /// Bytes of scratch memory.
    pub fn bytes(&self) -> usize {
        self.held.quant.bytes() + self.workers.iter().map(Worker::bytes).sum::<usize>()
    }

    /// Memory for the claims of `rows` rows; give it back with [`Self::give_claims`].
    pub fn take_claims(&mut self, rows: usize) -> Vec<AtomicU64> {
        let mut claimed = std::mem::take(&mut self.claimed);
        if claimed.len() * 64 < rows {
            claimed.resize_with(rows.div_ceil(64), AtomicU64::default);
        }
        claimed
    }

    /// Keeps the memory for the next time.
    pub fn give_claims(&mut self, claimed: Vec<AtomicU64>) {
        self.claimed = claimed;
    }

    /// Into how many parts work of this size is cut.
    pub fn parts(&self, work: usize) -> usize {
        if work < SMALL_WORK { 1 } else { self.pool.threads() }
    }

    /// Calls `job` for every part.
    pub fn run(&mut self, parts: usize, job: &(dyn Fn(usize) + Sync)) {
        if parts == 1 { job(0) } else { self.pool.run(job) }
    }

    /// A stamp that no activation has.
    pub fn fresh_stamp(&mut self) -> Stamp {
        self.stamps += 1;
        Stamp { act: u16::MAX, version: self.stamps }
    }

    /// `out = W x` for every row of `x`.
    pub fn linear(&mut self, w: MatrixRef<'_>, x: &[f32], stamp: Option<Stamp>, out: &mut [f32]) {
        assert!(x.len().is_multiple_of(w.cols()), "rows of {} inputs", w.cols());
        let rows = x.len() / w.cols();
        assert_eq!(out.len(), rows * w.rows(), "[{rows}, {}]", w.rows());
        if rows == 0 || w.rows() == 0 {
            return;
        }
        let shape = shape(w, rows);
        if let Some(shape) = shape {
            self.quantise(shape, x, stamp);
        }
        let held = std::mem::take(&mut self.held);
        let quant = shape.map(|shape| (&held.quant, shape));
        self.product(w, x, quant, out);
        self.held = held;
    }

    /// Makes the quantised copy of `x`, unless it is at hand.
    fn quantise(&mut self, shape: Shape, x: &[f32], stamp: Option<Stamp>) {
        let of = stamp.map(|stamp| (stamp, shape));
        if of.is_some() && self.held.of == of {
            return;
        }
        self.held.of = of;
        let mut quant = std::mem::take(&mut self.held.quant);
        let (values, scales, sums) = quant.reserve(shape);
        let parts = if shape.rows <= PANEL { 1 } else { self.parts(shape.rows * shape.cols / 4) };
        let panel = PANEL * shape.cols;
        let values = Cut::slice(values, panel, parts);
        let scales = Cut::slice(scales, PANEL * shape.groups(), parts);
        let sums = Cut::slice(sums, PANEL * shape.groups(), parts);
        let arch = self.arch;
        self.run(parts, &|i| {
            let units = values.units(i);
            let x = &x[(units.start * panel).min(x.len())..(units.end * panel).min(x.len())];
            let (mut values, mut scales, mut sums) = (values.take(i), scales.take(i), sums.take(i));
            let (values, scales, sums) = (values.row(0), scales.row(0), sums.row(0));
            arch.run(Quantise { shape, x, values, scales, sums });
        });
        self.held.quant = quant;
    }

    /// Cuts a product by output tiles, or by rows where there are few tiles.
    fn product(
        &mut self,
        w: MatrixRef<'_>,
        x: &[f32],
        quant: Option<(&Quantised, Shape)>,
        out: &mut [f32],
    ) {
        let (arch, threads) = (self.arch, self.pool.threads());
        let rows = x.len() / w.cols();
        let parts = self.parts(w.bytes().len() / 16 * rows.div_ceil(4));
        let (tiles, panels) = (w.rows().div_ceil(16), rows.div_ceil(PANEL));
        if tiles >= 2 * threads || panels < 2 {
            let cut = Cut::columns(out, rows, 16, parts);
            self.run(parts, &|i| {
                let part = Part { panels: 0..panels, x };
                product(arch, w, quant, part, Dest::From(0), &mut cut.take(i));
            });
            return;
        }
        let cut = Cut::slice(out, PANEL * w.rows(), parts);
        self.run(parts, &|i| {
            let panels = share(panels, parts, i);
            let some = panels.start * PANEL..(panels.end * PANEL).min(rows);
            if !some.is_empty() {
                let mut mine = cut.take(i);
                let columns = Cut::columns(mine.row(0), some.len(), 16, 1);
                let x = &x[some.start * w.cols()..some.end * w.cols()];
                let part = Part { panels, x };
                product(arch, w, quant, part, Dest::From(0), &mut columns.take(0));
            }
        });
    }

    /// Calls `f(first row, rows of a, rows of b)` for parts of matrices of the same number of rows.
    pub fn rows(
        &mut self,
        work: usize,
        (a, a_width): (&mut [f32], usize),
        (b, b_width): (&mut [f32], usize),
        f: impl Fn(usize, &mut [f32], &mut [f32]) + Sync,
    ) {
        let parts = self.parts(work);
        let (a, b) = (Cut::slice(a, a_width, parts), Cut::slice(b, b_width, parts));
        self.run(parts, &|i| {
            let first = a.units(i).start;
            f(first, a.take(i).row(0), b.take(i).row(0));
        });
    }
}

/// The quantised form that products with `w` take, if they take any.
pub fn shape(w: MatrixRef<'_>, rows: usize) -> Option<Shape> {
    let Encoding::Tile16 { group, .. } = w.encoding() else { return None };
    Some(Shape { rows, cols: w.cols(), group })
}

/// Some rows of a product: as panels of the quantised copy, and as floats.
pub struct Part<'a> {
    pub panels: Range<usize>,
    pub x: &'a [f32],
}

/// The columns of `W x` that `out` has.
pub fn product(
    arch: Arch,
    w: MatrixRef<'_>,
    quant: Option<(&Quantised, Shape)>,
    part: Part<'_>,
    dest: Dest<'_>,
    out: &mut Columns<'_, f32>,
) {
    if out.is_empty() {
        return;
    }
    match (tile::Weights::new(w), quant) {
        (Some(w), Some((x, shape))) => {
            tile::multiply(arch, tile::Product { w, x, shape, panels: part.panels, dest, out });
        }
        _ => {
            let w = dense::Weights::new(w).expect("a tile matrix takes quantised activations");
            arch.run(dense::Product { w, x: part.x, dest, out });
        }
    }
}

/// Quantises rows in the calling thread.
pub struct FillQuant<'a> {
    pub quant: &'a mut Quantised,
    pub shape: Shape,
    pub x: &'a [f32],
}

impl Op for FillQuant<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.quant.fill(s, self.shape, self.x);
    }
}
