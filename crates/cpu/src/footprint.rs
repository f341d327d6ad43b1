//! How much memory the device will need, before it is made.
//!
//! Owns: the sizes of what `device` allocates, as bounds from above. Never: allocation.
//! Invariant: nothing that the device holds grows beyond what is said here (a test runs models and
//! compares).

use crate::device::{BLOCK_ROWS, KvPrecision, stored};
use crate::kernels::attention::CHUNK;
use crate::kernels::delta::{padded, slab_values};
use crate::kernels::quant::PANEL;
use crate::memory::LINE_BYTES;
use cherenkov_format::qwen4_exp::config::{Config, Mixer};
use cherenkov_model::qwen4_exp::{LoadDraft, act_widths};
use cherenkov_model::{Limits, MAX_TENTATIVE};

/// Bytes of a number of state or activation.
const FLOAT: usize = size_of::<f32>();

/// What a device is made for.
#[derive(Clone, Copy, Debug)]
pub struct Footprint<'a> {
    /// Geometry of the model.
    pub config: &'a Config,
    /// Whether the draft head is loaded.
    pub draft: LoadDraft,
    /// Precision of keys and values.
    pub kv: KvPrecision,
    /// Threads, the caller included.
    pub threads: usize,
}

impl Footprint<'_> {
    fn drafts(&self) -> usize {
        usize::from(self.draft == LoadDraft::Yes && self.config.mtp.is_some())
    }

    fn deltas(&self) -> usize {
        self.config.layers.iter().filter(|m| **m == Mixer::Delta).count()
    }

    fn attentions(&self) -> usize {
        self.config.layers.len() - self.deltas() + self.drafts()
    }

    /// Bytes of one page, all attention layers of it.
    pub fn page(&self, page_rows: usize) -> usize {
        self.attentions() * self.kv.page_bytes(&self.config.attention, page_rows)
    }

    /// Bytes of the recurrent state of one sequence.
    pub fn slot(&self) -> usize {
        let (c, a, d) = (self.config, &self.config.attention, &self.config.delta);
        let ring = |width: usize, history: usize| (history + MAX_TENTATIVE) * width;
        let state = d.value_heads * d.key_dim * padded(d.value_dim);
        // Only drafts are tentative.
        let log = MAX_TENTATIVE
            * self.drafts()
            * (2 * d.value_heads
                + 2 * d.key_heads * d.key_dim
                + d.value_heads * padded(d.value_dim));
        let delta = state + log + ring(d.channels(), d.conv_kernel - 1);
        let ngram = c.ple.as_ref().map_or(0, |p| p.layers.len() * ring(c.wide(), p.history()));
        let numbers = self.deltas() * delta
            + self.attentions() * ring(a.index_dim, a.index_ratio)
            + ngram
            + self.drafts() * ring(c.wide(), 1);
        let buffers = 6 * (self.deltas() + self.attentions() + 1);
        numbers * FLOAT + buffers * LINE_BYTES
    }

    /// Bytes of activations and of scratch memory.
    pub fn scratch(&self, limits: &Limits) -> usize {
        let widths = act_widths(self.config);
        let acts: usize = widths.iter().map(|w| limits.rows * w * FLOAT + LINE_BYTES).sum();
        let picks = limits.rows * (self.config.attention.budget_blocks() * 4 + 24);
        acts + picks + self.shared_scratch(limits) + self.threads * self.worker(limits)
    }

    /// The four buffers that verbs share, and the quantised copy of the last input.
    fn shared_scratch(&self, limits: &Limits) -> usize {
        let (c, d, rows) = (self.config, &self.config.delta, limits.rows);
        let wide = rows.min(BLOCK_ROWS) * c.wide();
        // Inner rows of the experts, per (row, rank), and of the shared one.
        let inner = (c.moe.top_k * c.moe.width).max(c.moe.shared_width);
        let first = inner.max(2 * d.key_heads * d.key_dim).max(c.moe.experts).max(c.hidden);
        let second = inner.max(2 * d.value_heads).max(c.hyper.rank);
        let numbers = wide.max(rows * first) + wide.max(rows * second) + wide.max(rows);
        numbers * FLOAT + 4 * LINE_BYTES + quantised(rows, self.widest())
    }

    /// The most inputs that a projection has.
    fn widest(&self) -> usize {
        let c = self.config;
        let ple = c.ple.as_ref().map_or(0, |p| p.embed_dim);
        let a = c.attention.heads * c.attention.head_dim;
        c.wide().max(ple).max(a).max(c.delta.value_width())
    }

    /// Memory of one worker.
    fn worker(&self, limits: &Limits) -> usize {
        let (c, a, rows) = (self.config, &self.config.attention, limits.rows);
        let blocks = limits.pages * limits.page_rows / a.index_ratio;
        let heads = a.heads * stored(a.head_dim).max(CHUNK);
        let first = (rows * c.hidden).max(heads).max(slab_values(&c.delta));
        let second = (rows * c.moe.width).max(blocks).max(heads);
        let third = (rows * c.moe.width).max(heads);
        let floats = first + second + third + rows * c.hidden;
        // Sort keys, one per block or expert.
        let keys = 2 * blocks.max(c.moe.experts) * size_of::<u64>();
        floats * FLOAT + keys + 4 * LINE_BYTES + quantised(rows, c.hidden.max(c.moe.width))
    }
}

/// Bytes of rows as int8, with a scale and a sum per group of at least 32.
fn quantised(rows: usize, cols: usize) -> usize {
    let rows = rows.next_multiple_of(PANEL);
    rows * cols + rows * cols / 32 * 2 * FLOAT + 4 * LINE_BYTES + crate::simd::PANEL_PAD
}
