//! Where keys, values and pooled keys lie.
//!
//! Owns: the precisions, the layout of pages, pages as bytes. Never: what is stored (see `attention`),
//! rounding (see `kernels::cache`).
//! Invariant: a row's bytes depend on that row alone.

use super::state::{load_f32, save_f32};
use crate::kernels::cache::{Element, Rows};
use crate::memory::Aligned;
use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::{Limits, PageId};

/// Rows of numbers in pages, with a scale per row if the numbers have one.
#[derive(Debug, Default)]
pub struct Paged<E> {
    /// `[page, row of all heads, width]`.
    data: Aligned<E>,
    /// `[page, row of all heads]`.
    scales: Aligned<f32>,
    /// Rows of a page, of all heads.
    stride: usize,
    /// Numbers of a row: whole vectors.
    width: usize,
}

impl<E: Element> Paged<E> {
    fn new(pages: usize, stride: usize, width: usize) -> Self {
        let scales = if E::SCALED { pages * stride } else { 0 };
        let (data, scales) = (Aligned::new(pages * stride * width), Aligned::new(scales));
        Self { data, scales, stride, width }
    }

    /// Rows of one head, of which a page has `page_rows` from `first` on.
    pub fn rows<'a>(&'a self, pages: &'a [PageId], first: usize, page_rows: usize) -> Rows<'a, E> {
        let Self { data, scales, stride, width } = self;
        Rows { data, scales, pages, stride: *stride, first, page_rows, width: *width }
    }

    /// Has `fill` write the row at `row` of a page and return its scale.
    pub fn put(&mut self, page: usize, row: usize, fill: impl FnOnce(&mut [E]) -> f32) {
        let at = page * self.stride + row;
        let scale = fill(&mut self.data[at * self.width..][..self.width]);
        if E::SCALED {
            self.scales[at] = scale;
        }
    }

    /// Numbers and scales of a page.
    fn page(&mut self, page: usize) -> (&mut [E], &mut [f32]) {
        let (len, scales) = (self.stride * self.width, if E::SCALED { self.stride } else { 0 });
        (&mut self.data[page * len..][..len], &mut self.scales[page * scales..][..scales])
    }

    fn page_bytes(&self) -> usize {
        let scale = if E::SCALED { size_of::<f32>() } else { 0 };
        self.stride * (self.width * E::BYTES + scale)
    }

    fn bytes(&self) -> usize {
        self.data.bytes() + self.scales.bytes()
    }

    fn copy(&mut self, from: usize, to: usize) {
        let (len, stride) = (self.stride * self.width, self.stride);
        self.data.copy_within(from * len..(from + 1) * len, to * len);
        if E::SCALED {
            self.scales.copy_within(from * stride..(from + 1) * stride, to * stride);
        }
    }

    fn save(&mut self, page: usize, out: &mut Vec<u8>) {
        let (data, scales) = self.page(page);
        data.iter().for_each(|v| v.put(out));
        save_f32(scales, out);
    }

    fn load(&mut self, page: usize, rest: &mut &[u8]) {
        let (data, scales) = self.page(page);
        let (mine, others) = rest.split_at(data.len() * E::BYTES);
        *rest = others;
        for (v, bytes) in data.iter_mut().zip(mine.chunks_exact(E::BYTES)) {
            *v = E::get(bytes);
        }
        load_f32(scales, rest);
    }
}

/// Pages of one attention layer, stored as `E`.
#[derive(Debug)]
pub struct Arena<E: Element> {
    /// `[page, kv_head, row, padded head_dim]`.
    pub k: Paged<E>,
    /// As `k`.
    pub v: Paged<E>,
    /// `[page, block, padded index_dim]`.
    pub pooled: Paged<E::Pooled>,
}

impl<E: Element> Arena<E> {
    fn new(spec: &Attention, limits: &Limits) -> Self {
        let (pages, rows) = (limits.pages, limits.page_rows);
        let kv = || Paged::new(pages, spec.kv_heads * rows, stored(spec.head_dim));
        let pooled = Paged::new(pages, rows / spec.index_ratio, stored(spec.index_dim));
        Self { k: kv(), v: kv(), pooled }
    }

    fn page_bytes(&self) -> usize {
        self.k.page_bytes() + self.v.page_bytes() + self.pooled.page_bytes()
    }

    fn bytes(&self) -> usize {
        self.k.bytes() + self.v.bytes() + self.pooled.bytes()
    }

    fn copy(&mut self, from: usize, to: usize) {
        self.k.copy(from, to);
        self.v.copy(from, to);
        self.pooled.copy(from, to);
    }

    fn save(&mut self, page: usize, out: &mut Vec<u8>) {
        out.reserve(self.page_bytes());
        self.k.save(page, out);
        self.v.save(page, out);
        self.pooled.save(page, out);
    }

    fn load(&mut self, page: usize, rest: &mut &[u8]) {
        self.k.load(page, rest);
        self.v.load(page, rest);
        self.pooled.load(page, rest);
    }
}

/// Pages in the precision that was asked for.
#[derive(Debug)]
pub enum Pages {
    Half(Arena<u16>),
    Full(Arena<f32>),
    Eight(Arena<i8>),
}

/// The same expression for whichever arena there is.
macro_rules! with_arena {
    ($pages:expr, $arena:ident => $do:expr) => {
        match $pages {
            Pages::Half($arena) => $do,
            Pages::Full($arena) => $do,
            Pages::Eight($arena) => $do,
        }
    };
}
pub(crate) use with_arena;

/// Pages of one attention layer.
#[derive(Debug)]
pub struct KvState {
    pub page_rows: usize,
    pub pages: Pages,
    spec: Attention,
    precision: KvPrecision,
}

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum KvPrecision {
    /// Half precision.
    #[default]
    F16,
    /// Single precision.
    F32,
    /// Eight bits with a scale per row and head; pooled keys in half precision.
    Q8,
}

impl KvPrecision {
    /// Name, as on command lines.
    pub fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::F32 => "f32",
            Self::Q8 => "q8",
        }
    }

    /// Bytes of one token in one attention layer; a block's pooled key is shared out over its tokens.
    pub fn token_bytes(self, spec: &Attention) -> f64 {
        self.page_bytes(spec, spec.index_ratio) as f64 / spec.index_ratio as f64
    }

    /// Bytes of a page of `rows` tokens in one attention layer.
    pub fn page_bytes(self, spec: &Attention, rows: usize) -> usize {
        let row = |number: usize, scale: usize| stored(spec.head_dim) * number + scale;
        let (row, pooled) = match self {
            Self::F16 => (row(2, 0), 2),
            Self::F32 => (row(4, 0), 4),
            Self::Q8 => (row(1, size_of::<f32>()), 2),
        };
        2 * spec.kv_heads * rows * row + rows / spec.index_ratio * stored(spec.index_dim) * pooled
    }

    fn pages(self, spec: &Attention, limits: &Limits) -> Pages {
        match self {
            Self::F16 => Pages::Half(Arena::new(spec, limits)),
            Self::F32 => Pages::Full(Arena::new(spec, limits)),
            Self::Q8 => Pages::Eight(Arena::new(spec, limits)),
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
        let none = Limits { rows: 0, slots: 0, pages: 0, page_rows: 0 };
        let pages = precision.pages(spec, &none);
        Self { page_rows: 0, pages, spec: spec.clone(), precision }
    }

    /// Makes room.
    pub fn allocate(&mut self, limits: &Limits) {
        self.page_rows = limits.page_rows;
        self.pages = self.precision.pages(&self.spec, limits);
    }

    /// Bytes of a saved page.
    pub fn page_bytes(&self) -> usize {
        with_arena!(&self.pages, arena => arena.page_bytes())
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        with_arena!(&self.pages, arena => arena.bytes())
    }

    /// Copies a page.
    pub fn copy(&mut self, from: usize, to: usize) {
        with_arena!(&mut self.pages, arena => arena.copy(from, to));
    }

    /// Appends a page.
    pub fn save(&mut self, page: usize, out: &mut Vec<u8>) {
        with_arena!(&mut self.pages, arena => arena.save(page, out));
    }

    /// Takes a page off the front; there must be enough bytes.
    pub fn load(&mut self, page: usize, rest: &mut &[u8]) {
        with_arena!(&mut self.pages, arena => arena.load(page, rest));
    }
}
