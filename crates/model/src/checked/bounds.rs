//! How far a device may be off, verb by verb.
//!
//! Owns: the tables. Never: the scale that a bound is relative to (that is the caller's: the sum of
//! |a * b| for products, otherwise a row's largest magnitude).

use super::Verb;

/// Added to every allowed difference, so that rows of zeros can be compared.
pub const FLOOR: f64 = 1e-6;

/// Allowed difference per verb, relative to the scale of the value.
///
/// `Select` and `Route` bound how far apart two scores may be and still count as equal.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    relative: [f64; Verb::ALL.len()],
}

impl Bounds {
    /// For a device that multiplies in f32 with f32 activations.
    pub const fn f32() -> Self {
        Self::table(2e-5, 1e-4)
    }

    /// For a device that quantises the activations of products to int8 per group.
    pub const fn int8() -> Self {
        Self::table(1.5e-2, 5e-2)
    }

    /// For the reference against itself.
    pub const fn exact() -> Self {
        let mut bounds = Self { relative: [0.0; Verb::ALL.len()] };
        bounds.relative[Verb::Linear as usize] = 1e-7;
        bounds
    }

    const fn table(product: f64, chained: f64) -> Self {
        Self { relative: [0.0; Verb::ALL.len()] }
            .with(Verb::AddRepeat, 1e-6)
            .with(Verb::Norm, 2e-5)
            .with(Verb::Linear, product)
            .with(Verb::LinearStreams, product)
            .with(Verb::HyperRead, chained)
            .with(Verb::HyperWrite, 1e-6)
            .with(Verb::HyperTurn, chained)
            .with(Verb::ConvSilu, 2e-5)
            .with(Verb::Delta, 5e-4)
            .with(Verb::Select, 1e-4)
            .with(Verb::Attend, 1e-3)
            .with(Verb::Route, product)
            .with(Verb::Experts, chained)
            .with(Verb::SharedExpert, chained)
            .with(Verb::Combine, 5e-6)
            .with(Verb::NgramAdd, 1e-3)
            .with(Verb::Logits, product)
    }

    /// The same table with another bound for one verb.
    #[must_use]
    pub const fn with(mut self, verb: Verb, relative: f64) -> Self {
        self.relative[verb as usize] = relative;
        self
    }

    /// The bound of a verb.
    pub const fn of(&self, verb: Verb) -> f64 {
        self.relative[verb as usize]
    }

    /// The allowed difference of a value of this scale.
    pub fn allowed(&self, verb: Verb, scale: f64) -> f64 {
        self.of(verb).mul_add(scale, FLOOR)
    }
}

impl Default for Bounds {
    fn default() -> Self {
        Self::int8()
    }
}
