//! The rows of a pass and their inputs.
//!
//! Owns: what a row's inputs are. Invariant: an input depends on the row's sequence, index and take
//! only, so that the same row can be run again in other company.

use super::random::Random;
use crate::batch::Batch;

/// Whether a row is the sequence's own or a wrong draft in its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Take {
    /// The row that stays.
    Own,
    /// A row that will be taken back.
    Draft,
}

/// One row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowId {
    /// Which sequence.
    pub sequence: usize,
    /// Index within it.
    pub index: u32,
    /// Which version of it.
    pub take: Take,
}

impl RowId {
    /// A random stream of this row.
    pub fn random(&self, seed: u64, name: u64) -> Random {
        let purpose = [name, self.sequence as u64, u64::from(self.index), self.take as u64];
        Random::new(seed, &purpose)
    }

    /// The values of one input: rows differ in magnitude.
    pub fn input(&self, seed: u64, name: u64, width: usize) -> Vec<f32> {
        let mut random = self.random(seed, name);
        let deviation = [0.25, 0.5, 1.0, 2.0][random.below(4)];
        random.values(width, 0.0, deviation)
    }

    /// The row's token.
    pub fn token(&self, vocab: usize) -> u32 {
        self.random(0, 77).below(vocab) as u32
    }
}

/// A value that is no number, put into one row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Poison {
    /// Sequence of the row.
    pub sequence: usize,
    /// Its index.
    pub index: u32,
    /// NaN or an infinity.
    pub value: f32,
}

/// The rows of one pass.
#[derive(Clone, Debug)]
pub struct Rows {
    /// Seed of all inputs.
    pub seed: u64,
    /// Seed of everything that must not matter: the split into waves, which rows are asked for.
    pub salt: u64,
    /// The rows in the order of the batch.
    pub ids: Vec<RowId>,
    /// What the device was given.
    pub batch: Batch,
    /// Poison, if any.
    pub poison: Option<Poison>,
}

impl Rows {
    /// Number of rows.
    pub fn count(&self) -> usize {
        self.ids.len()
    }

    /// An input of all rows, `[rows, width]`.
    pub fn input(&self, name: u64, width: usize) -> Vec<f32> {
        self.ids.iter().flat_map(|row| row.input(self.seed, name, width)).collect()
    }

    /// An input that the poison goes into, within the first `span` values of its row.
    pub fn primary(&self, name: u64, width: usize, span: usize) -> Vec<f32> {
        let mut values = self.input(name, width);
        if let Some((row, poison)) = self.poisoned() {
            let column = if poison.value.is_nan() { 0 } else { span - 1 };
            values[row * width + column] = poison.value;
        }
        values
    }

    fn poisoned(&self) -> Option<(usize, Poison)> {
        let poison = self.poison?;
        let hit = |r: &RowId| (r.sequence, r.index) == (poison.sequence, poison.index);
        Some((self.ids.iter().position(hit)?, poison))
    }

    /// A stream for choices that must not matter.
    pub fn free(&self) -> Random {
        Random::new(self.salt, &[self.count() as u64, u64::from(self.ids[0].index)])
    }
}
