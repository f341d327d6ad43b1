//! Prefixes that later prompts may share.
//!
//! Owns: which free sequences hold which tokens, and the one that goes first.
//! Never: the engine; the worker opens and closes sequences.
//! Invariant: a checkpoint serves a prompt only if all its tokens are the prompt's first tokens.

use cherenkov_engine::SeqId;

struct Checkpoint {
    seq: SeqId,
    tokens: Vec<u32>,
    used: u64,
}

/// Sequences that no request owns, with their tokens.
#[derive(Default)]
pub(crate) struct Checkpoints {
    held: Vec<Checkpoint>,
    uses: u64,
}

impl Checkpoints {
    pub(crate) fn len(&self) -> usize {
        self.held.len()
    }

    /// The checkpoint with the longest prefix of `tokens`, and its length. It counts as used.
    pub(crate) fn longest(&mut self, tokens: &[u32]) -> Option<(SeqId, usize)> {
        self.uses += 1;
        let fitting = self.held.iter_mut().filter(|c| tokens.starts_with(&c.tokens));
        let best = fitting.max_by_key(|c| c.tokens.len())?;
        best.used = self.uses;
        Some((best.seq, best.tokens.len()))
    }

    /// Whether these tokens are held. If so they count as used.
    pub(crate) fn holds(&mut self, tokens: &[u32]) -> bool {
        self.uses += 1;
        let found = self.held.iter_mut().find(|c| c.tokens == tokens);
        if let Some(found) = found {
            found.used = self.uses;
            return true;
        }
        false
    }

    /// Takes over a sequence.
    pub(crate) fn put(&mut self, seq: SeqId, tokens: Vec<u32>) {
        self.uses += 1;
        self.held.push(Checkpoint { seq, tokens, used: self.uses });
    }

    /// Gives up the sequence that was used longest ago, but not `spared`.
    pub(crate) fn evict(&mut self, spared: Option<SeqId>) -> Option<SeqId> {
        let candidates = self.held.iter().enumerate().filter(|(_, c)| Some(c.seq) != spared);
        let (at, _) = candidates.min_by_key(|(_, c)| c.used)?;
        Some(self.held.remove(at).seq)
    }

    /// Gives up this sequence.
    pub(crate) fn take(&mut self, seq: SeqId) {
        self.held.retain(|c| c.seq != seq);
    }

    /// Gives up everything.
    pub(crate) fn clear(&mut self) -> Vec<SeqId> {
        self.held.drain(..).map(|c| c.seq).collect()
    }
}
