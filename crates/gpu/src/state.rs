//! What the device remembers of sequences.
//!
//! Owns: rings, delta states with their logs, pages, selections. Never: equations.
//! Invariant: a delta state plus the replay of its log is what the rows that stayed leave behind.

use crate::arena::{Arena, Buf};
use crate::error::{Error, Result};
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_model::{Limits, MAX_TENTATIVE};

/// Values of the largest attention head: each lane of a segment sums four of them.
const HEAD_MAX: usize = 4 * crate::kernels::SEGMENT as usize;

fn allocated(buf: &Option<Buf>) -> Result<Buf> {
    buf.clone().ok_or_else(|| Error::Misuse { what: "allocate first".into() })
}

/// The last rows of one activation, `[slots, capacity, width]`.
#[derive(Debug)]
pub(crate) struct Ring {
    pub width: u32,
    pub capacity: u32,
    buf: Option<Buf>,
}

impl Ring {
    pub fn new(width: usize, history: usize) -> Self {
        let capacity = (history + MAX_TENTATIVE) as u32;
        Self { width: width as u32, capacity, buf: None }
    }

    pub fn buf(&self) -> Result<Buf> {
        allocated(&self.buf)
    }

    /// Bytes of one sequence.
    pub fn slot_bytes(&self) -> u64 {
        u64::from(self.width) * u64::from(self.capacity) * 4
    }
}

/// The tentative rows of one sequence in one delta lane.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    /// Rows logged by a run that nobody has settled.
    pub open: u32,
    /// Rows that stayed and wait for their replay.
    pub replay: u32,
    /// Which of the two logs holds them.
    pub side: u32,
}

/// Recurrent matrices of one DeltaNet layer.
#[derive(Debug)]
pub(crate) struct DeltaState {
    pub spec: Delta,
    state: Option<Buf>,
    log: Option<Buf>,
    pub logs: Vec<Log>,
}

impl DeltaState {
    pub fn new(spec: &Delta) -> Self {
        Self { spec: spec.clone(), state: None, log: None, logs: Vec::new() }
    }

    /// `[slots, value_heads, key_dim, value_dim]`.
    pub fn state(&self) -> Result<Buf> {
        allocated(&self.state)
    }

    /// `[slots, 2, MAX_TENTATIVE, log_stride]`.
    pub fn log(&self) -> Result<Buf> {
        allocated(&self.log)
    }

    /// Values of a logged row: keys per key head, d per value, decay per value head.
    pub fn log_stride(&self) -> u32 {
        let s = &self.spec;
        (s.key_heads * s.key_dim + s.value_width() + s.value_heads) as u32
    }

    /// Bytes of one sequence's state.
    pub fn slot_bytes(&self) -> u64 {
        let s = &self.spec;
        s.value_heads as u64 * s.key_dim as u64 * s.value_dim as u64 * 4
    }
}

/// Pages of one attention layer.
#[derive(Debug)]
pub(crate) struct KvState {
    pub spec: Attention,
    /// Which rotation table serves it.
    pub rope: usize,
    page_rows: usize,
    bufs: Option<[Buf; 3]>,
}

impl KvState {
    pub fn new(spec: &Attention, rope: usize) -> Self {
        Self { spec: spec.clone(), rope, page_rows: 0, bufs: None }
    }

    /// Keys and values `[pages, page_rows, kv_heads, head_dim]`, pooled index keys
    /// `[pages, page_rows / ratio, index_dim]`.
    pub fn bufs(&self) -> Result<[Buf; 3]> {
        self.bufs.clone().ok_or_else(|| Error::Misuse { what: "allocate first".into() })
    }

    /// Bytes of one page in each of the three buffers.
    pub fn page_bytes(&self) -> [u64; 3] {
        let s = &self.spec;
        let kv = (self.page_rows * s.kv_heads * s.head_dim) as u64 * 4;
        [kv, kv, (self.page_rows / s.index_ratio * s.index_dim) as u64 * 4]
    }
}

/// Everything the device remembers.
#[derive(Debug, Default)]
pub(crate) struct State {
    pub rings: Vec<Ring>,
    pub deltas: Vec<DeltaState>,
    pub kvs: Vec<KvState>,
}

/// Part of a buffer: the buffer, byte offset, bytes.
pub(crate) type Span = (Buf, u64, u64);

impl State {
    pub fn allocate(&mut self, arena: &mut Arena, limits: &Limits) -> Result<()> {
        let slots = limits.slots as u64;
        for ring in &mut self.rings {
            ring.buf = Some(arena.storage("sequences", slots * ring.slot_bytes())?);
        }
        for delta in &mut self.deltas {
            let log = u64::from(delta.log_stride()) * 2 * MAX_TENTATIVE as u64 * 4;
            delta.state = Some(arena.storage("sequences", slots * delta.slot_bytes())?);
            delta.log = Some(arena.storage("sequences", slots * log)?);
            delta.logs = vec![Log::default(); limits.slots];
        }
        for kv in &mut self.kvs {
            if !limits.page_rows.is_multiple_of(kv.spec.index_ratio) {
                let (rows, ratio) = (limits.page_rows, kv.spec.index_ratio);
                let what = format!("pages of {rows} rows, expected whole blocks of {ratio}");
                return Err(Error::Misuse { what });
            }
            let s = &kv.spec;
            let quads = s.head_dim.is_multiple_of(4) && s.index_dim.is_multiple_of(4);
            if !quads || s.head_dim > HEAD_MAX {
                let what = format!(
                    "heads of {} and index heads of {} values, expected multiples of 4 up to {HEAD_MAX}",
                    s.head_dim, s.index_dim
                );
                return Err(Error::Misuse { what });
            }
            kv.page_rows = limits.page_rows;
            let mut make = |bytes: u64| arena.storage("pages", bytes * limits.pages as u64);
            let [k, v, pooled] = kv.page_bytes();
            kv.bufs = Some([make(k)?, make(v)?, make(pooled)?]);
        }
        Ok(())
    }

    /// Every part of one sequence's recurrent state, in a fixed order.
    pub fn slot_spans(&self, slot: usize) -> Result<Vec<Span>> {
        let rings = self.rings.iter().map(|r| Ok((r.buf()?, r.slot_bytes())));
        let deltas = self.deltas.iter().map(|d| Ok((d.state()?, d.slot_bytes())));
        let span =
            |part: Result<(Buf, u64)>| part.map(|(buf, bytes)| (buf, slot as u64 * bytes, bytes));
        rings.chain(deltas).map(span).collect()
    }

    /// Every part of one page, in a fixed order.
    pub fn page_spans(&self, page: usize) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        for kv in &self.kvs {
            for (buf, bytes) in kv.bufs()?.into_iter().zip(kv.page_bytes()) {
                spans.push((buf, page as u64 * bytes, bytes));
            }
        }
        Ok(spans)
    }
}
