//! What the suite runs: one verb, or a few that belong together, at one geometry.
//!
//! Owns: the shape of a test subject and of its results. Never: when it is run (see `play`).

use super::random::Weights;
use super::rows::{RowId, Rows};
use crate::batch::Position;
use crate::checked::Verb;
use crate::device::{Device, Limits};
use crate::error::{Error, Result};
use crate::reference::Reference;

/// Rows of a page in every case.
pub const PAGE_ROWS: usize = 16;

/// The device's limits in every case.
pub const LIMITS: Limits = Limits { rows: 96, slots: 6, pages: 24, page_rows: PAGE_ROWS };

/// A result of all rows of a pass.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The verb that made it.
    pub verb: Verb,
    /// `[rows, width]`, or nothing.
    pub values: Vec<f32>,
    /// Per row chosen ids, or nothing.
    pub ids: Vec<Vec<u32>>,
}

impl Piece {
    /// A result of numbers.
    pub fn values(verb: Verb, values: Vec<f32>) -> Self {
        Self { verb, values, ids: Vec::new() }
    }

    /// A result of choices.
    pub fn ids(verb: Verb, ids: Vec<Vec<u32>>) -> Self {
        Self { verb, values: Vec::new(), ids }
    }
}

/// A result of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct RowPiece {
    /// The verb that made it.
    pub verb: Verb,
    /// Numbers.
    pub values: Vec<f32>,
    /// Chosen ids.
    pub ids: Vec<u32>,
}

/// What a difference of a result is measured by.
pub enum Scale {
    /// The largest magnitude of the row, with this verb's bound.
    Row(Verb),
    /// One scale per value (the sum of |a * b|), with the bound of `linear`.
    Product(Vec<f64>),
}

/// Why a run ended early.
#[derive(Debug)]
pub enum Trouble {
    /// The device failed.
    Device(Error),
    /// A promise that needs no yardstick was broken.
    Wrong {
        /// The verb.
        verb: Verb,
        /// How.
        what: String,
    },
}

/// A result that may be [`Trouble`].
pub type Tried<T> = std::result::Result<T, Trouble>;

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Device(error)
    }
}

/// A test subject.
pub trait Subject {
    /// Its weights, activations and lanes on a device.
    type Loaded<D: Device>;

    /// The verbs that it runs.
    fn verbs(&self) -> &'static [Verb];

    /// Its geometry, for messages.
    fn name(&self) -> String;

    /// Creates weights, activations and lanes.
    fn load<D: Device>(&self, device: &mut D) -> Result<Self::Loaded<D>>;

    /// Runs the verbs on the rows of the batch that was begun.
    fn run<D: Device>(
        &self,
        device: &mut D,
        on: &mut Self::Loaded<D>,
        rows: &Rows,
    ) -> Tried<Vec<Piece>>;

    /// What result number `piece` of a row is measured by.
    fn scale(&self, _seed: u64, _row: RowId, _piece: usize, expected: &RowPiece) -> Scale {
        Scale::Row(expected.verb)
    }

    /// The result that number `piece` must have the same bits as, if any.
    fn twin(&self, _piece: usize) -> Option<usize> {
        None
    }

    /// The scores behind the choices of the rows just run; no scores where nothing is chosen.
    fn scores(
        &self,
        _reference: &mut Reference,
        _on: &Self::Loaded<Reference>,
        rows: &Rows,
    ) -> Result<Vec<Vec<f64>>> {
        Ok(vec![Vec::new(); rows.count()])
    }

    /// By how much a score may be off in this row, as a multiple of the verb's bound.
    fn score_scale(&self, _seed: u64, _row: RowId, scores: &[f64]) -> f64 {
        scores.iter().fold(0.0, |max: f64, s| max.max(s.abs()))
    }

    /// The position of a row on the rotary axes.
    fn position(&self, index: u32) -> Position {
        Position::text(index)
    }
}

/// A weight on a device.
pub fn upload<D: Device>(device: &mut D, w: &Weights) -> Result<D::Matrix> {
    device.matrix(w.matrix.clone())
}

/// Whether two results have the same bits.
pub fn same_bits(a: &[f32], b: &[f32]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits())
}
