//! The rows of one forward pass.
//!
//! Owns: which rows there are, whose they are, where they lie in their sequence.
//! Invariant: the rows of one sequence are contiguous and consecutive (a `Run`), and a sequence has
//! at most one run per batch, so a row sees exactly the rows before it.

use crate::device::{PageId, SlotId};

/// Position of a row on the three rotary axes; equal for text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Hash)]
pub struct Position {
    /// Time.
    pub t: u32,
    /// Height.
    pub h: u32,
    /// Width.
    pub w: u32,
}

impl Position {
    /// The position of a text token.
    pub const fn text(index: u32) -> Self {
        Self { t: index, h: index, w: index }
    }
}

/// Whether a run's rows may be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Keep {
    /// They stay.
    All,
    /// They are drafts: `Device::settle` says afterwards how many stay. At most
    /// [`MAX_TENTATIVE`] rows.
    Tentative,
}

/// Most rows of a tentative run.
pub const MAX_TENTATIVE: usize = 8;

/// Consecutive rows of one sequence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The sequence's recurrent state.
    pub slot: SlotId,
    /// Index within the sequence of the first row.
    pub start: u32,
    /// First row within the batch.
    pub first: usize,
    /// Number of rows.
    pub rows: usize,
    /// The sequence's pages, from its start, enough for all rows.
    pub pages: Vec<PageId>,
    /// Whether the rows may be taken back.
    pub keep: Keep,
}

impl Run {
    /// The batch rows of this run.
    pub fn range(&self) -> std::ops::Range<usize> {
        self.first..self.first + self.rows
    }
}

/// The rows of one forward pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// One run per sequence.
    pub runs: Vec<Run>,
    /// Token of each row.
    pub tokens: Vec<u32>,
    /// Position of each row.
    pub positions: Vec<Position>,
}

impl Batch {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Adds the rows of one sequence; positions are those of text.
    pub fn push(&mut self, slot: SlotId, start: u32, tokens: &[u32], pages: &[PageId], keep: Keep) {
        debug_assert!(!tokens.is_empty());
        debug_assert!(self.runs.iter().all(|r| r.slot != slot), "one run per sequence");
        debug_assert!(keep == Keep::All || tokens.len() <= MAX_TENTATIVE);
        let (first, rows) = (self.rows(), tokens.len());
        self.runs.push(Run { slot, start, first, rows, pages: pages.to_vec(), keep });
        self.tokens.extend_from_slice(tokens);
        self.positions.extend((start..).take(rows).map(Position::text));
    }
}
