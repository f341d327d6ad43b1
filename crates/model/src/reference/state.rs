//! What the reference remembers of a sequence.
//!
//! Owns: rings, recurrent matrices, pages. Never: equations.

use crate::batch::{MAX_TENTATIVE, Run};
use crate::device::Limits;
use crate::error::{Error, Result};
use cherenkov_format::qwen4_exp::config::{Attention, Delta};

/// Rings of the last rows of one activation, one ring per slot.
#[derive(Debug)]
pub struct RowRing {
    width: usize,
    capacity: usize,
    /// Per slot `[capacity, width]`.
    slots: Vec<Vec<f32>>,
}

impl RowRing {
    /// Remembers `history` rows before any row that can still be reached.
    pub fn new(width: usize, history: usize) -> Self {
        Self { width, capacity: history + MAX_TENTATIVE, slots: Vec::new() }
    }

    /// The row at `index`; zeros before the start.
    pub fn row(&self, slot: usize, index: i64) -> Vec<f32> {
        if index < 0 {
            return vec![0.0; self.width];
        }
        let at = index as usize % self.capacity * self.width;
        self.slots[slot][at..at + self.width].to_vec()
    }

    /// Remembers the row at `index`.
    pub fn put(&mut self, slot: usize, index: u32, row: &[f32]) {
        let at = index as usize % self.capacity * self.width;
        self.slots[slot][at..at + self.width].copy_from_slice(row);
    }
}

/// Recurrent matrices of one DeltaNet layer.
#[derive(Debug)]
pub struct DeltaState {
    /// Values of one sequence's state: `[value_heads, key_dim, value_dim]`.
    pub size: usize,
    /// Per slot the settled state.
    pub settled: Vec<Vec<f32>>,
    /// Per slot the state after each tentative row.
    pub tentative: Vec<Vec<Vec<f32>>>,
}

impl DeltaState {
    /// State of a layer of this geometry.
    pub fn new(spec: &Delta) -> Self {
        let size = spec.value_heads * spec.key_dim * spec.value_dim;
        Self { size, settled: Vec::new(), tentative: Vec::new() }
    }
}

/// One page of one attention layer.
#[derive(Clone, Debug)]
pub struct Page {
    /// `[page_rows, kv_heads * head_dim]`, normed and rotated.
    pub k: Vec<f32>,
    /// `[page_rows, kv_heads * head_dim]`.
    pub v: Vec<f32>,
    /// `[page_rows / ratio, index_dim]`, pooled, normed, rotated.
    pub pooled: Vec<f32>,
}

/// Pages of one attention layer.
#[derive(Debug)]
pub struct KvState {
    /// Geometry.
    pub spec: Attention,
    /// Rows of a page.
    pub page_rows: usize,
    /// All pages.
    pub pages: Vec<Page>,
}

impl KvState {
    /// Pages of a layer of this geometry, none yet.
    pub fn new(spec: &Attention) -> Self {
        Self { spec: spec.clone(), page_rows: 0, pages: Vec::new() }
    }

    fn allocate(&mut self, limits: &Limits) {
        let width = self.spec.kv_heads * self.spec.head_dim;
        let blocks = limits.page_rows / self.spec.index_ratio;
        let page = Page {
            k: vec![0.0; limits.page_rows * width],
            v: vec![0.0; limits.page_rows * width],
            pooled: vec![0.0; blocks * self.spec.index_dim],
        };
        self.page_rows = limits.page_rows;
        self.pages = vec![page; limits.pages];
    }

    /// (page, row within it) of row `index` of a run's sequence.
    pub fn place(&self, run: &Run, index: usize) -> (usize, usize) {
        (run.pages[index / self.page_rows].0 as usize, index % self.page_rows)
    }

    /// The pooled key of a complete block.
    pub fn block(&self, run: &Run, block: usize) -> &[f32] {
        let per_page = self.page_rows / self.spec.index_ratio;
        let page = &self.pages[run.pages[block / per_page].0 as usize];
        let width = self.spec.index_dim;
        &page.pooled[block % per_page * width..][..width]
    }
}

/// Everything the reference remembers.
#[derive(Debug, Default)]
pub struct State {
    /// By [`crate::device::RowLane`].
    pub rings: Vec<RowRing>,
    /// By [`crate::device::DeltaLane`].
    pub deltas: Vec<DeltaState>,
    /// By [`crate::device::KvLane`].
    pub kvs: Vec<KvState>,
}

impl State {
    /// Makes room for slots and pages.
    pub fn allocate(&mut self, limits: &Limits) {
        for ring in &mut self.rings {
            ring.slots = vec![vec![0.0; ring.capacity * ring.width]; limits.slots];
        }
        for delta in &mut self.deltas {
            delta.settled = vec![vec![0.0; delta.size]; limits.slots];
            delta.tentative = vec![Vec::new(); limits.slots];
        }
        for kv in &mut self.kvs {
            kv.allocate(limits);
        }
    }

    /// The state of an empty sequence.
    pub fn reset(&mut self, slot: usize) {
        for lane in self.slot_parts(slot) {
            lane.fill(0.0);
        }
        for delta in &mut self.deltas {
            delta.tentative[slot].clear();
        }
    }

    /// Every array of one slot, in a fixed order.
    pub fn slot_parts(&mut self, slot: usize) -> impl Iterator<Item = &mut [f32]> {
        let rings = self.rings.iter_mut().map(move |r| &mut r.slots[slot][..]);
        rings.chain(self.deltas.iter_mut().map(move |d| &mut d.settled[slot][..]))
    }

    /// Every array of one page, in a fixed order.
    pub fn page_parts(&mut self, page: usize) -> impl Iterator<Item = &mut [f32]> {
        self.kvs.iter_mut().flat_map(move |kv| {
            let page = &mut kv.pages[page];
            [&mut page.k[..], &mut page.v[..], &mut page.pooled[..]]
        })
    }
}

/// Appends arrays as little-endian f32.
pub fn save<'a>(parts: impl Iterator<Item = &'a mut [f32]>, out: &mut Vec<u8>) {
    for part in parts {
        out.extend(part.iter().flat_map(|v| v.to_le_bytes()));
    }
}

/// Fills arrays from little-endian f32.
pub fn load<'a>(parts: impl Iterator<Item = &'a mut [f32]>, bytes: &[u8]) -> Result<()> {
    let mut values = bytes.chunks_exact(4);
    let mut wanted = 0;
    for part in parts {
        wanted += part.len() * 4;
        for value in part {
            let Some(b) = values.next() else { continue };
            *value = f32::from_le_bytes([b[0], b[1], b[2], b[3]]);
        }
    }
    if wanted == bytes.len() {
        return Ok(());
    }
    Err(Error::State {
        found: format!("{} bytes", bytes.len()),
        expected: format!("{wanted} bytes"),
    })
}
