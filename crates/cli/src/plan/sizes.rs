//! What a store needs on a device, in bytes by purpose.
//!
//! Owns: how geometry, context and rows become sizes. Never: how much there is (see `budget`), files
//! beyond the manifest.
//! Invariant: sizes are bounds from above for what the process will hold.

use super::budget::Sizes;
use super::{Copies, Wanted};
use crate::device::Choice;
use cherenkov_cpu::Footprint;
use cherenkov_engine::{LoadDraft, Options};
use cherenkov_format::qwen4_exp::config::{Config, Mixer};
use cherenkov_format::{NGRAM_RESIDENT_BYTES, Store};
use cherenkov_model::qwen4_exp::act_widths;
use cherenkov_model::{Limits, MAX_TENTATIVE};

/// Bytes of a number of state or activation.
const FLOAT: usize = 4;
/// What the program comes to hold of itself while it runs: code, libraries, tables, small things.
const PROGRAM_GROWTH: u64 = 6 << 20;
/// Stack and queue of a thread, as far as they are touched.
const THREAD: u64 = 96 << 10;
/// Bookkeeping of one record beside its bytes.
const SLOT: u64 = 160;
/// A tensor's memory is larger than the tensor by the alignment and what the allocator adds.
const TENSOR: u64 = 128;
/// Logits of a row, and the copies that drawing a token makes of them.
const LOGIT: usize = 4 + 4 + 16 + 8;

/// What one device of the process holds.
struct Held {
    dense: u64,
    loading: u64,
    state: usize,
    page: usize,
    scratch: usize,
    record: u64,
}

/// Sizes for a device (or for both that are compared) and a store.
pub fn sizes(store: &Store, wanted: Wanted, options: &Options, readers: usize) -> Sizes {
    let device = wanted.device;
    let config = store.config();
    let limits = limits(config, options);
    let mut held = held(store, device, options, &limits);
    if wanted.copies == Copies::Checked {
        let exact = self::held(store, Choice::Reference, options, &limits);
        held.dense += exact.dense;
        held.loading += exact.loading;
        held.state += exact.state;
        held.page += exact.page;
        held.scratch += exact.scratch;
        held.record += exact.record;
    }
    let threads = match device {
        Choice::Cpu { threads, .. } => threads as u64,
        Choice::Reference => 1,
    };
    let ple = config.ple.as_ref();
    // Ids and values of the rows of a pass.
    let gathered =
        ple.map_or(0, |p| (p.embed_dim * FLOAT + 16 * p.heads_per_ngram * p.ngram) * limits.rows);
    let logits = (options.step_rows + options.sequences) * config.vocab * LOGIT;
    let tables = store.manifest().ngram.iter();
    let experts = store.experts();
    let drafts = usize::from(options.draft == LoadDraft::Yes && config.mtp.is_some());
    let layers = experts.layers().min(config.layers.len() + drafts);
    Sizes {
        program: PROGRAM_GROWTH + threads * THREAD,
        dense: held.dense,
        loading: held.loading,
        state: held.state as u64,
        page: held.page as u64,
        page_tokens: limits.page_rows,
        sequences: options.sequences,
        scratch: (held.scratch + gathered + logits) as u64,
        prefix: 0,
        readers: readers as u64 * THREAD,
        ngram: tables.map(|t| t.bytes.min(NGRAM_RESIDENT_BYTES)).sum(),
        record: held.record + SLOT,
        records: layers * experts.per_layer(),
        least: config.moe.top_k,
    }
}

/// What the engine makes room for, as it works it out itself.
fn limits(config: &Config, options: &Options) -> Limits {
    let page_rows = 64usize.next_multiple_of(config.attention.index_ratio);
    let per_sequence = (options.context + MAX_TENTATIVE).div_ceil(page_rows);
    Limits {
        rows: options.chunk.max(options.step_rows).max(2 * MAX_TENTATIVE),
        slots: options.sequences,
        pages: per_sequence * options.sequences,
        page_rows,
    }
}

fn held(store: &Store, device: Choice, options: &Options, limits: &Limits) -> Held {
    let (config, draft) = (store.config(), options.draft);
    let tensors = store.manifest().dense.tensors.iter();
    let tensors = tensors.filter(|t| draft == LoadDraft::Yes || !t.name.starts_with("mtp."));
    // Taps are kept a second time, turned.
    let bytes = |t: &cherenkov_format::manifest::TensorEntry| {
        let bytes = t.byte_len().unwrap_or(0);
        if t.name.ends_with("conv1d") { 2 * bytes } else { bytes }
    };
    let largest = tensors.clone().map(bytes).max().unwrap_or(0);
    let dense = tensors.map(|t| bytes(t) + TENSOR).sum();
    let record = store.experts().record_bytes();
    match device {
        Choice::Cpu { threads, kv, .. } => {
            let need = Footprint { config, draft, kv, threads };
            let (state, page) = (need.slot(), need.page(limits.page_rows));
            let scratch = need.scratch(limits);
            Held { dense, loading: largest, state, page, scratch, record }
        }
        Choice::Reference => {
            let (a, d) = (&config.attention, &config.delta);
            let deltas = config.layers.iter().filter(|m| **m == Mixer::Delta).count();
            let attentions = config.layers.len() - deltas + usize::from(config.mtp.is_some());
            let token = attentions * (2 * a.kv_heads * a.head_dim + a.index_dim);
            // Each tentative row keeps the state after it.
            let state = deltas * d.value_heads * d.key_dim * d.value_dim * (1 + MAX_TENTATIVE);
            let rings =
                (deltas * d.channels() + 3 * config.wide() + a.index_dim) * 3 * MAX_TENTATIVE;
            let row: usize = act_widths(config).iter().sum();
            let page = token * limits.page_rows * FLOAT;
            // Verbs work on copies of their rows.
            let scratch = 3 * row * limits.rows * FLOAT;
            Held { dense, loading: largest, state: (state + rings) * FLOAT, page, scratch, record }
        }
    }
}
