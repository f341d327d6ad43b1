//! What kernels need to know of a batch.
//!
//! Owns: the row, run and page tables of the batch being run; rotations. Never: state of sequences.

use crate::arena::{Arena, Buf};
use crate::error::Result;
use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::{Batch, Keep, Limits, Position};

/// Words of a row's entry: token, run, index within the sequence, index within the run.
pub(crate) const ROW_WORDS: u32 = 4;
/// Words of a run's entry: slot, start, first row, rows, 1 when tentative, where its pages begin.
pub(crate) const RUN_WORDS: u32 = 8;

/// The tables on the device: rows, runs, pages in one buffer.
#[derive(Debug)]
pub(crate) struct Tables {
    pub buf: Buf,
    /// Word at which the runs begin.
    pub runs_at: u32,
    /// Word at which the pages begin.
    pub pages_at: u32,
}

impl Tables {
    pub fn new(arena: &mut Arena, limits: &Limits) -> Result<Self> {
        let runs_at = limits.rows as u32 * ROW_WORDS;
        let pages_at = runs_at + limits.slots as u32 * RUN_WORDS;
        let words = u64::from(pages_at) + limits.slots as u64 * limits.pages as u64;
        Ok(Self { buf: arena.storage("tables", words * 4)?, runs_at, pages_at })
    }

    /// What to write for a batch: word offsets and words.
    pub fn words(&self, batch: &Batch) -> [(u32, Vec<u32>); 3] {
        let (mut rows, mut runs, mut pages) = (Vec::new(), Vec::new(), Vec::new());
        for (i, run) in batch.runs.iter().enumerate() {
            let tentative = u32::from(run.keep == Keep::Tentative);
            let head = [run.slot.0, run.start, run.first as u32, run.rows as u32, tentative];
            runs.extend(head.into_iter().chain([pages.len() as u32, 0, 0]));
            pages.extend(run.pages.iter().map(|p| p.0));
            for (at, row) in run.range().enumerate() {
                let at = at as u32;
                rows.extend([batch.tokens[row], i as u32, run.start + at, at]);
            }
        }
        [(0, rows), (self.runs_at, runs), (self.pages_at, pages)]
    }
}

/// Cosines and sines of one rotary geometry for the rows of a batch. The angles are computed in f64:
/// at long positions the product of position and frequency leaves f32 no digits.
#[derive(Debug)]
pub(crate) struct Rope {
    theta: f64,
    dims: usize,
    section: [usize; 3],
    ratio: usize,
    frequencies: Vec<f64>,
    pub buf: Option<Buf>,
}

impl Rope {
    pub fn new(spec: &Attention) -> Self {
        let frequency =
            |i: usize| libm::pow(spec.rope_theta, -((2 * i) as f64) / spec.rope_dims as f64);
        Self {
            theta: spec.rope_theta,
            dims: spec.rope_dims,
            section: spec.mrope_section,
            ratio: spec.index_ratio,
            frequencies: (0..spec.rope_dims / 2).map(frequency).collect(),
            buf: None,
        }
    }

    /// Whether this table serves such layers, too.
    pub fn serves(&self, spec: &Attention) -> bool {
        self.theta.to_bits() == spec.rope_theta.to_bits()
            && self.dims == spec.rope_dims
            && self.section == spec.mrope_section
            && self.ratio == spec.index_ratio
    }

    pub fn allocate(&mut self, arena: &mut Arena, rows: usize) -> Result<()> {
        let bytes = rows as u64 * self.frequencies.len() as u64 * 16;
        self.buf = Some(arena.storage("tables", bytes)?);
        Ok(())
    }

    fn axis(&self, i: usize, position: Position) -> u32 {
        let [_, height, width] = self.section;
        match i % 3 {
            1 if i < 3 * height => position.h,
            2 if i < 3 * width => position.w,
            _ => position.t,
        }
    }

    fn push(&self, position: Position, out: &mut Vec<f32>) {
        for (i, frequency) in self.frequencies.iter().enumerate() {
            let angle = f64::from(self.axis(i, position)) * frequency;
            out.extend([libm::cos(angle) as f32, libm::sin(angle) as f32]);
        }
    }

    /// Per row: the rotation at its position, then the one at the first row of the block that it
    /// completes (zeros where it completes none).
    pub fn values(&self, batch: &Batch) -> Vec<f32> {
        let mut out = Vec::with_capacity(batch.rows() * self.frequencies.len() * 4);
        for run in &batch.runs {
            for (at, row) in run.range().enumerate() {
                self.push(batch.positions[row], &mut out);
                let next = run.start as usize + at + 1;
                if next.is_multiple_of(self.ratio) {
                    self.push(Position::text((next - self.ratio) as u32), &mut out);
                } else {
                    out.resize(out.len() + 2 * self.frequencies.len(), 0.0);
                }
            }
        }
        out
    }
}
