//! What the device remembers of sequences.
//!
//! Owns: rings of rows, recurrent matrices with the log of a tentative run, pages.
//! Never: equations. Memory of a slot comes with its first use.
//! Invariants: a ring's row i lies at `i % capacity`, so taking rows back needs no copy; a recurrent
//! matrix with its pending log means exactly the state after the settled rows.

use crate::kernels::attention::Element;
use crate::kernels::delta::padded;
use crate::memory::Aligned;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_model::{Error, Limits, MAX_TENTATIVE, Result};

/// The last rows of one activation, per slot.
#[derive(Debug)]
pub struct RowRing {
    pub width: usize,
    pub capacity: usize,
    slots: Vec<Aligned<f32>>,
}

impl RowRing {
    /// Remembers `history` rows before any row that can still be reached.
    pub fn new(width: usize, history: usize) -> Self {
        Self { width, capacity: history + MAX_TENTATIVE, slots: Vec::new() }
    }

    /// `[capacity, width]`.
    pub fn slot(&mut self, slot: usize) -> &mut [f32] {
        touch(&mut self.slots[slot], self.capacity * self.width)
    }

    /// The row at `index`.
    pub fn row(&mut self, slot: usize, index: usize) -> &mut [f32] {
        let (at, width) = (index % self.capacity * self.width, self.width);
        &mut self.slot(slot)[at..at + width]
    }
}

/// Zeroed memory at first use.
fn touch(slot: &mut Aligned<f32>, len: usize) -> &mut [f32] {
    if slot.is_empty() && len > 0 {
        *slot = Aligned::new(len);
    }
    slot
}

/// The rows of a tentative run, enough to run them again.
#[derive(Debug, Default)]
pub struct Log {
    /// `[row, 2 * value_heads]`.
    pub gates: Aligned<f32>,
    /// `[row, key_heads, 2 * key_dim]`.
    pub keys: Aligned<f32>,
    /// `[value_heads, row, padded value_dim]`.
    pub d: Aligned<f32>,
    /// Rows logged and not settled.
    pub open: usize,
    /// Settled rows that the state lacks.
    pub pending: usize,
}

/// One slot's state of one DeltaNet layer.
#[derive(Debug, Default)]
pub struct DeltaSlot {
    /// `[value_heads, key_dim, padded value_dim]`.
    pub state: Aligned<f32>,
    pub log: Log,
}

/// The recurrent matrices of one DeltaNet layer.
#[derive(Debug)]
pub struct DeltaState {
    pub spec: Delta,
    pub slots: Vec<DeltaSlot>,
}

impl DeltaState {
    /// State of a layer of this geometry.
    pub fn new(spec: &Delta) -> Self {
        Self { spec: spec.clone(), slots: Vec::new() }
    }

    /// Numbers of one head's state.
    pub fn head_len(&self) -> usize {
        self.spec.key_dim * padded(self.spec.value_dim)
    }

    /// A slot with its memory.
    pub fn slot(&mut self, slot: usize) -> &mut DeltaSlot {
        let len = self.spec.value_heads * self.head_len();
        let slot = &mut self.slots[slot];
        touch(&mut slot.state, len);
        slot
    }

    /// Memory for the log of a tentative run.
    pub fn log(&mut self, slot: usize) -> &mut Log {
        let spec = &self.spec;
        let log = &mut self.slots[slot].log;
        touch(&mut log.gates, MAX_TENTATIVE * 2 * spec.value_heads);
        touch(&mut log.keys, MAX_TENTATIVE * 2 * spec.key_heads * spec.key_dim);
        touch(&mut log.d, MAX_TENTATIVE * spec.value_heads * padded(spec.value_dim));
        log
    }
}

/// Pages of one attention layer, stored as `E`.
#[derive(Debug)]
pub struct Arena<E> {
    /// `[page, kv_head, row, padded head_dim]`.
    pub k: Aligned<E>,
    /// As `k`.
    pub v: Aligned<E>,
    /// `[page, block, padded index_dim]`.
    pub pooled: Aligned<E>,
}

/// Numbers per page of each part.
#[derive(Clone, Copy, Debug, Default)]
pub struct PageSize {
    pub kv: usize,
    pub pooled: usize,
}

impl<E: Element> Arena<E> {
    fn new(size: PageSize, pages: usize) -> Self {
        let kv = || Aligned::new(size.kv * pages);
        Self { k: kv(), v: kv(), pooled: Aligned::new(size.pooled * pages) }
    }

    fn parts(&mut self, size: PageSize) -> [(&mut Aligned<E>, usize); 3] {
        [(&mut self.k, size.kv), (&mut self.v, size.kv), (&mut self.pooled, size.pooled)]
    }

    fn copy(&mut self, size: PageSize, from: usize, to: usize) {
        for (data, len) in self.parts(size) {
            data.copy_within(from * len..(from + 1) * len, to * len);
        }
    }
}

/// Pages in the precision that was asked for.
#[derive(Debug)]
pub enum Pages {
    Half(Arena<u16>),
    Full(Arena<f32>),
}

/// Pages of one attention layer.
#[derive(Debug)]
pub struct KvState {
    pub spec: Attention,
    pub size: PageSize,
    pub page_rows: usize,
    pub pages: Pages,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvPrecision {
    /// Half precision.
    #[default]
    F16,
    /// Single precision.
    F32,
}

impl KvPrecision {
    /// Name, as on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
        }
    }

    /// Bytes of a number.
    pub fn bytes(self) -> usize {
        match self {
            Self::F16 => 2,
            Self::F32 => 4,
        }
    }
}

/// Numbers of a stored row: whole vectors.
pub fn stored(width: usize) -> usize {
    width.next_multiple_of(crate::simd::LANES)
}

impl KvState {
    /// Pages of a layer of this geometry, none yet.
    pub fn new(spec: &Attention, precision: KvPrecision) -> Self {
        let none = PageSize::default();
        let pages = match precision {
            KvPrecision::F16 => Pages::Half(Arena::new(none, 0)),
            KvPrecision::F32 => Pages::Full(Arena::new(none, 0)),
        };
        Self { spec: spec.clone(), size: none, page_rows: 0, pages }
    }

    fn allocate(&mut self, limits: &Limits) {
        let spec = &self.spec;
        self.page_rows = limits.page_rows;
        self.size = PageSize {
            kv: spec.kv_heads * limits.page_rows * stored(spec.head_dim),
            pooled: limits.page_rows / spec.index_ratio * stored(spec.index_dim),
        };
        match &mut self.pages {
            Pages::Half(arena) => *arena = Arena::new(self.size, limits.pages),
            Pages::Full(arena) => *arena = Arena::new(self.size, limits.pages),
        }
    }

    fn page_bytes(&self) -> usize {
        let numbers = 2 * self.size.kv + self.size.pooled;
        match self.pages {
            Pages::Half(_) => numbers * 2,
            Pages::Full(_) => numbers * 4,
        }
    }

    fn bytes(&self) -> usize {
        match &self.pages {
            Pages::Half(a) => a.k.bytes() + a.v.bytes() + a.pooled.bytes(),
            Pages::Full(a) => a.k.bytes() + a.v.bytes() + a.pooled.bytes(),
        }
    }
}

/// Everything the device remembers.
#[derive(Debug, Default)]
pub struct State {
    pub rings: Vec<RowRing>,
    pub deltas: Vec<DeltaState>,
    pub kvs: Vec<KvState>,
}

impl State {
    /// Makes room: pages at once, slots as they are used.
    pub fn allocate(&mut self, limits: &Limits) {
        for ring in &mut self.rings {
            ring.slots = (0..limits.slots).map(|_| Aligned::default()).collect();
        }
        for delta in &mut self.deltas {
            delta.slots = (0..limits.slots).map(|_| DeltaSlot::default()).collect();
        }
        for kv in &mut self.kvs {
            kv.allocate(limits);
        }
    }

    /// The state of an empty sequence.
    pub fn reset(&mut self, slot: usize) {
        for ring in &mut self.rings {
            ring.slots[slot].fill(0.0);
        }
        for delta in &mut self.deltas {
            let slot = &mut delta.slots[slot];
            slot.state.fill(0.0);
            (slot.log.open, slot.log.pending) = (0, 0);
        }
    }

    /// Bytes of a saved slot.
    pub fn slot_bytes(&self) -> usize {
        let rings = self.rings.iter().map(|r| r.capacity * r.width).sum::<usize>();
        let deltas = self.deltas.iter().map(|d| d.spec.value_heads * d.head_len()).sum::<usize>();
        (rings + deltas) * 4
    }

    /// Appends a slot without pending rows.
    pub fn save_slot(&mut self, slot: usize, out: &mut Vec<u8>) {
        out.reserve(self.slot_bytes());
        for ring in &mut self.rings {
            save_f32(ring.slot(slot), out);
        }
        for delta in &mut self.deltas {
            let slot = delta.slot(slot);
            assert!(slot.log.pending == 0 && slot.log.open == 0, "the slot is settled");
            save_f32(&slot.state, out);
        }
    }

    /// Sets a slot from saved bytes.
    pub fn load_slot(&mut self, slot: usize, bytes: &[u8]) -> Result<()> {
        check_len(bytes, self.slot_bytes())?;
        self.reset(slot);
        let mut rest = bytes;
        for ring in &mut self.rings {
            load_f32(ring.slot(slot), &mut rest);
        }
        for delta in &mut self.deltas {
            load_f32(&mut delta.slot(slot).state, &mut rest);
        }
        Ok(())
    }

    /// Copies a slot without pending rows.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        if from == to {
            return;
        }
        self.reset(to);
        for ring in &mut self.rings {
            if !ring.slots[from].is_empty() {
                ring.slot(to);
                let [from, to] = ring.slots.get_disjoint_mut([from, to]).expect("two slots");
                to.copy_from_slice(from);
            }
        }
        for delta in &mut self.deltas {
            if !delta.slots[from].state.is_empty() {
                delta.slot(to);
                let [from, to] = delta.slots.get_disjoint_mut([from, to]).expect("two slots");
                to.state.copy_from_slice(&from.state);
            }
        }
    }

    /// Copies a page of every attention layer.
    pub fn copy_page(&mut self, from: usize, to: usize) {
        for kv in &mut self.kvs {
            match &mut kv.pages {
                Pages::Half(arena) => arena.copy(kv.size, from, to),
                Pages::Full(arena) => arena.copy(kv.size, from, to),
            }
        }
    }

    /// Appends a page of every attention layer.
    pub fn save_page(&mut self, page: usize, out: &mut Vec<u8>) {
        for kv in &mut self.kvs {
            out.reserve(kv.page_bytes());
            match &mut kv.pages {
                Pages::Half(arena) => {
                    for (data, len) in arena.parts(kv.size) {
                        out.extend(data[page * len..][..len].iter().flat_map(|v| v.to_le_bytes()));
                    }
                }
                Pages::Full(arena) => {
                    for (data, len) in arena.parts(kv.size) {
                        save_f32(&data[page * len..][..len], out);
                    }
                }
            }
        }
    }

    /// Sets a page from saved bytes.
    pub fn load_page(&mut self, page: usize, bytes: &[u8]) -> Result<()> {
        check_len(bytes, self.kvs.iter().map(KvState::page_bytes).sum())?;
        let mut rest = bytes;
        for kv in &mut self.kvs {
            match &mut kv.pages {
                Pages::Half(arena) => {
                    for (data, len) in arena.parts(kv.size) {
                        let (mine, others) = rest.split_at(len * 2);
                        rest = others;
                        for (v, b) in data[page * len..][..len].iter_mut().zip(mine.as_chunks().0) {
                            *v = u16::from_le_bytes(*b);
                        }
                    }
                }
                Pages::Full(arena) => {
                    for (data, len) in arena.parts(kv.size) {
                        load_f32(&mut data[page * len..][..len], &mut rest);
                    }
                }
            }
        }
        Ok(())
    }

    /// Bytes held: of recurrent state, of pages.
    pub fn bytes(&self) -> (usize, usize) {
        let rings = self.rings.iter().flat_map(|r| &r.slots).map(Aligned::bytes).sum::<usize>();
        let slot = |s: &DeltaSlot| {
            s.state.bytes() + s.log.gates.bytes() + s.log.keys.bytes() + s.log.d.bytes()
        };
        let deltas = self.deltas.iter().flat_map(|d| &d.slots).map(slot).sum::<usize>();
        (rings + deltas, self.kvs.iter().map(KvState::bytes).sum())
    }
}

fn check_len(bytes: &[u8], expected: usize) -> Result<()> {
    if bytes.len() == expected {
        return Ok(());
    }
    Err(Error::State {
        found: format!("{} bytes", bytes.len()),
        expected: format!("{expected} bytes"),
    })
}

fn save_f32(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

fn load_f32(values: &mut [f32], rest: &mut &[u8]) {
    let (mine, others) = rest.split_at(values.len() * 4);
    *rest = others;
    for (v, b) in values.iter_mut().zip(mine.as_chunks().0) {
        *v = f32::from_le_bytes(*b);
    }
}
