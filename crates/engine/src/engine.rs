//! The seam that servers and command lines see: coarse and object-safe.
//!
//! Owns: the vocabulary of sequences and steps. Never: HTTP, strings.

use crate::error::{Error, Result};
use crate::sample::{Drawn, Sampler};
use cherenkov_experts::Snapshot as Streamed;

/// An open sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub(crate) u32);

/// What an engine can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// Name of the device.
    pub device: &'static str,
    /// Token ids are below this.
    pub vocab: usize,
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences open at a time.
    pub sequences: usize,
    /// Rows of one step, all sequences together.
    pub step_rows: usize,
    /// Tokens of one prefill pass.
    pub chunk: usize,
    /// Most drafts per step; 0 without a draft head.
    pub drafts: usize,
    /// Tokens that end an answer.
    pub stop: Vec<u32>,
}

impl Info {
    /// Tokens per pass that cut a prompt of `tokens` into passes of equal length: every pass reads the
    /// experts of a layer once, so a short last one would cost nearly as much as the others.
    pub fn pass_tokens(&self, tokens: usize) -> usize {
        tokens.div_ceil(tokens.div_ceil(self.chunk).max(1)).max(1)
    }
}

/// One sequence's part in a decode step.
pub struct Step<'a> {
    /// Whose.
    pub seq: SeqId,
    /// Draws its tokens; counts those that were emitted.
    pub sampler: &'a mut Sampler,
    /// Drafts to verify in this step.
    pub drafts: usize,
    /// No token after one of these is emitted.
    pub stop: &'a [u32],
    /// The tokens of this step: at least one, unless it failed. Filled by [`Engine::decode`].
    pub out: Vec<Drawn>,
    /// Why this sequence got no token although the pass went well. The sequence must be closed.
    pub failure: Option<Error>,
}

impl<'a> Step<'a> {
    /// A step of `seq` that verifies up to `drafts` drafts.
    pub fn new(seq: SeqId, sampler: &'a mut Sampler, drafts: usize, stop: &'a [u32]) -> Self {
        Self { seq, sampler, drafts, stop, out: Vec::new(), failure: None }
    }
}

/// Counters since the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Prompt tokens run.
    pub prefill_tokens: u64,
    /// Tokens emitted.
    pub decode_tokens: u64,
    /// Decode steps.
    pub steps: u64,
    /// Drafts offered by depth (index 0: the first draft of a step).
    pub drafted: Vec<u64>,
    /// Drafts accepted by depth.
    pub accepted: Vec<u64>,
    /// Routed experts found in memory.
    pub expert_hits: u64,
    /// Routed experts read.
    pub expert_misses: u64,
    /// Bytes of experts read.
    pub read_bytes: u64,
    /// Misses read as small records.
    pub low_reads: u64,
    /// Small records for which the whole ones were read.
    pub upgrades: u64,
    /// Weak experts that came late and were left out.
    pub left_out: u64,
    /// Records the pool holds.
    pub pool_slots: usize,
    /// Memory by purpose, in bytes.
    pub memory: Vec<(&'static str, usize)>,
}

/// A model that generates.
///
/// A sequence always has one pending token, its last one, which has not been run: prefill leaves it,
/// decode runs it (with drafts) and leaves a new one.
pub trait Engine: Send {
    /// What it can do.
    fn info(&self) -> &Info;

    /// Opens an empty sequence.
    ///
    /// # Errors
    /// When all are in use.
    fn open(&mut self) -> Result<SeqId>;

    /// Opens a copy of a sequence.
    ///
    /// # Errors
    /// When all are in use.
    fn fork(&mut self, seq: SeqId) -> Result<SeqId>;

    /// Closes a sequence.
    fn close(&mut self, seq: SeqId);

    /// All tokens of a sequence, the pending one included.
    ///
    /// # Errors
    /// When it is not open.
    fn tokens(&self, seq: SeqId) -> Result<Vec<u32>>;

    /// Appends tokens and runs all but the last. Calls with parts of a prompt leave the same bits as
    /// one call with all of it.
    ///
    /// # Errors
    /// When the context is too small, an id is unknown or the device fails. After a device failure
    /// the sequence must be closed.
    fn prefill(&mut self, seq: SeqId, tokens: &[u32]) -> Result<()>;

    /// As [`Self::prefill`]; `see` gets the logits after each token that is run, in order.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    fn score(&mut self, seq: SeqId, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()>;

    /// One step of one or several sequences.
    ///
    /// # Errors
    /// As [`Self::prefill`].
    fn decode(&mut self, steps: &mut [Step<'_>]) -> Result<()>;

    /// Keeps the first `count` tokens that the last step of the sequence emitted, as if the others
    /// had never been drawn. Without this call all are kept.
    ///
    /// # Errors
    /// When the last step emitted fewer, or `count` is 0.
    fn commit(&mut self, seq: SeqId, count: usize) -> Result<()>;

    /// The whole state of a sequence as bytes.
    ///
    /// # Errors
    /// When it is not open.
    fn save(&mut self, seq: SeqId) -> Result<Vec<u8>>;

    /// Opens a sequence from bytes of [`Self::save`].
    ///
    /// # Errors
    /// When the bytes belong to another model or are damaged.
    fn restore(&mut self, bytes: &[u8]) -> Result<SeqId>;

    /// Changes how many expert records are held in memory, from the next call on: memory goes back to
    /// the system, or is taken again, at most as much as at the start. Changes speed and no bit.
    /// Returns how many records there is room for now: a device that cannot part with single ones
    /// keeps all.
    ///
    /// # Errors
    /// When a reader of experts has failed.
    fn resize_pool(&mut self, slots: usize) -> Result<usize>;

    /// Counters.
    fn snapshot(&self) -> Snapshot;

    /// How experts were streamed, per layer and per expert. Larger than [`Self::snapshot`]: not for
    /// every step.
    fn streamed(&self) -> Streamed;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prompt_is_cut_into_equal_passes() {
        let info = Info {
            device: "none",
            vocab: 1,
            context: 9000,
            sequences: 1,
            step_rows: 1,
            chunk: 256,
            drafts: 0,
            stop: Vec::new(),
        };
        for (tokens, want) in [(0, 1), (1, 1), (256, 256), (257, 129), (512, 256), (513, 171)] {
            assert_eq!(info.pass_tokens(tokens), want, "{tokens} tokens");
        }
    }
}
