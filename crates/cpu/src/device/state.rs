//! What the device remembers of sequences.
//!
//! Owns: rings of rows, recurrent matrices with the log of a tentative run.
//! Never: equations, how keys and values are stored (see `pages`). Memory of a slot comes with its first use.
//! Invariants: a ring's row i lies at `i % capacity`, so taking rows back needs no copy; a recurrent
//! matrix with its pending log means exactly the state after the settled rows.

use super::pages::KvState;
use crate::kernels::delta::padded;
use crate::memory::Aligned;
use cherenkov_format::qwen4_exp::config::Delta;
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
            kv.copy(from, to);
        }
    }

    /// Appends a page of every attention layer.
    pub fn save_page(&mut self, page: usize, out: &mut Vec<u8>) {
        for kv in &mut self.kvs {
            kv.save(page, out);
        }
    }

    /// Sets a page from saved bytes.
    pub fn load_page(&mut self, page: usize, bytes: &[u8]) -> Result<()> {
        check_len(bytes, self.kvs.iter().map(KvState::page_bytes).sum())?;
        let mut rest = bytes;
        for kv in &mut self.kvs {
            kv.load(page, &mut rest);
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

/// Appends floats, little-endian.
pub fn save_f32(values: &[f32], out: &mut Vec<u8>) {
    out.extend(values.iter().flat_map(|v| v.to_le_bytes()));
}

/// Takes floats off the front.
pub fn load_f32(values: &mut [f32], rest: &mut &[u8]) {
    let (mine, others) = rest.split_at(values.len() * 4);
    *rest = others;
    for (v, b) in values.iter_mut().zip(mine.as_chunks().0) {
        *v = f32::from_le_bytes(*b);
    }
}
