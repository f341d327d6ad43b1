//! The fast device against the exact one, verb by verb.
//!
//! Owns: the names of the verbs, bounds, the comparison, pairs of weights and banks.
//! Never: equations.
//! Invariant: after every verb the exact device holds the fast one's result, so that a verb is
//! judged by itself and the first wrong one is named. Recurrent state and pages are the exception:
//! each device keeps its own, and a wrong `kv_append` or `keep` shows at the verb that reads it.

mod bounds;
pub mod compare;
mod device;
mod oracle;
mod pair;
mod verb;

pub use bounds::{Bounds, FLOOR};
pub use oracle::Oracle;
pub use pair::{Pair, PairBank, Split};
pub use verb::Verb;

use crate::device::{Act, Device, KvLane, Picks, Place, Routes, TopkNorm};
use crate::error::{Error, Result};
use cherenkov_experts::Wave;
use compare::Off;

/// Two devices that run every verb and must agree.
#[derive(Debug)]
pub struct Checked<F, R> {
    /// The device under test; its results are the ones that count.
    pub fast: F,
    /// The yardstick.
    pub oracle: R,
    bounds: Bounds,
    place: Place,
}

impl<F: Device, R: Oracle> Checked<F, R> {
    /// Checks `fast` against `oracle`.
    pub fn new(fast: F, oracle: R, bounds: Bounds) -> Self {
        Self { fast, oracle, bounds, place: Place::Embed }
    }

    fn judge(&self, verb: Verb, result: std::result::Result<(), Off>) -> Result<()> {
        result.map_err(|off| Error::Diverged {
            verb: verb.name(),
            place: self.place,
            row: off.row,
            worst: off.worst as f32,
            allowed: off.allowed as f32,
        })
    }

    /// Compares an activation; the exact device goes on with the fast one's.
    fn agree(&mut self, verb: Verb, act: Act) -> Result<()> {
        let found = self.fast.fetch(act)?;
        let expected = self.oracle.fetch(act)?;
        self.judge(verb, self.close(verb, act.width as usize, &found, &expected))?;
        self.oracle.put(act, &found)
    }

    /// As [`Self::agree`] for `out = W x`.
    fn agree_product(&mut self, verb: Verb, w: &R::Matrix, x: Act, out: Act) -> Result<()> {
        let found = self.fast.fetch(out)?;
        let expected = self.oracle.fetch(out)?;
        let all = 0..found.len() as u32 / out.width;
        self.close_product(verb, w, x, &all.collect::<Vec<_>>(), (&found, &expected))?;
        self.oracle.put(out, &found)
    }

    /// Compares products of some rows of `x`. Where every value of a row is small because sums
    /// cancel, the sums of |w * x| are the scale.
    fn close_product(
        &mut self,
        verb: Verb,
        w: &R::Matrix,
        x: Act,
        rows: &[u32],
        (found, expected): (&[f32], &[f32]),
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        let width = expected.len() / rows.len();
        if self.close(verb, width, found, expected).is_ok() {
            return Ok(());
        }
        // Streams of one row follow each other like rows.
        let scales = self.oracle.product_scale(w, x)?;
        let result = compare::values(width, found, expected, |row, i| {
            self.bounds.allowed(verb, scales[rows[row] as usize * width + i])
        });
        let named = result.map_err(|off| Off { row: rows[off.row] as usize, ..off });
        self.judge(verb, named)
    }

    /// Compares rows, each with its own largest magnitude as the scale.
    fn close(
        &self,
        verb: Verb,
        width: usize,
        found: &[f32],
        expected: &[f32],
    ) -> std::result::Result<(), Off> {
        let rows = expected.chunks_exact(width);
        let allowed: Vec<f64> =
            rows.map(|row| self.bounds.allowed(verb, compare::magnitude(row))).collect();
        compare::values(width, found, expected, |row, _| allowed[row])
    }

    /// Compares the parts of the experts of one wave.
    fn agree_wave(&mut self, wave: &Wave, routes: &Routes, parts: Act) -> Result<()> {
        let (found, expected) = (self.fast.fetch(parts)?, self.oracle.fetch(parts)?);
        let width = parts.width as usize / routes.k;
        for (i, id) in routes.ids.iter().enumerate() {
            if wave.experts.contains(id) {
                let part = i * width..(i + 1) * width;
                let result =
                    self.close(Verb::Experts, width, &found[part.clone()], &expected[part]);
                let named = result.map_err(|off| Off { row: i / routes.k, ..off });
                self.judge(Verb::Experts, named)?;
            }
        }
        self.oracle.put(parts, &found)
    }

    /// Compares selections; the exact device goes on with the fast one's.
    fn agree_picks(
        &mut self,
        lane: KvLane,
        w: &crate::device::AttentionWeights<R::Vector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        let (found, expected) = (self.fast.fetch_picks(picks)?, self.oracle.fetch_picks(picks)?);
        if found != expected {
            let scores = self.oracle.block_scores(lane, w, index)?;
            if found.len() != expected.len() {
                let off = Off { row: found.len(), worst: f64::INFINITY, allowed: 0.0 };
                return self.judge(Verb::Select, Err(off));
            }
            for (row, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let scale = scores[row].iter().fold(0.0, |max: f64, s| max.max(s.abs()));
                let allowed = self.bounds.allowed(Verb::Select, scale);
                let result = compare::choice(row, found, expected, &scores[row], allowed);
                self.judge(Verb::Select, result)?;
            }
            self.oracle.put_picks(picks, &found)?;
        }
        Ok(())
    }

    /// Compares routes. The weights that a row's experts should have follow from the exact logits.
    fn agree_routes(
        &mut self,
        w: &R::Matrix,
        norm: TopkNorm,
        x: Act,
        found: &Routes,
        expected: &Routes,
    ) -> Result<()> {
        let k = expected.k;
        let rows = expected.ids.len() / k;
        if found.k != k || found.ids.len() != rows * k || found.weights.len() != rows * k {
            let off = Off { row: 0, worst: f64::INFINITY, allowed: 0.0 };
            return self.judge(Verb::Route, Err(off));
        }
        let all: Vec<u32> = (0..rows as u32).collect();
        let logits = self.oracle.logits(w, x, &all)?;
        for (row, logits) in logits.chunks_exact(logits.len() / rows).enumerate() {
            let allowed = self.bounds.allowed(Verb::Route, compare::magnitude(logits));
            let logits: Vec<f64> = logits.iter().map(|&l| f64::from(l)).collect();
            let chosen = row * k..(row + 1) * k;
            let (ids, weights) = (&found.ids[chosen.clone()], &found.weights[chosen.clone()]);
            let result = compare::choice(row, ids, &expected.ids[chosen], &logits, allowed)
                .and_then(|()| compare::route_weights(row, ids, weights, norm, &logits, allowed));
            self.judge(Verb::Route, result)?;
        }
        Ok(())
    }
}
