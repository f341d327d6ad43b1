//! `route`.

use super::super::random::{Random, Weights, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried, Trouble, upload};
use super::{EIGHT, short};
use crate::checked::Verb;
use crate::device::{Act, Device, TopkNorm};
use crate::error::Result;
use crate::reference::Reference;
use cherenkov_format::{Encoding, Matrix};

/// A router.
pub struct Router {
    h: usize,
    k: usize,
    norm: TopkNorm,
    w: Weights,
    kind: &'static str,
}

/// Several encodings, both norms, and routers in which experts are equal.
pub fn cases(random: &mut Random) -> Vec<Router> {
    let shapes = [
        (64, 24, 4, TopkNorm::Sum, Encoding::F32),
        (128, 40, 8, TopkNorm::None, Encoding::Bf16),
        (192, 33, 10, TopkNorm::Sum, EIGHT),
        (64, 5, 5, TopkNorm::Sum, Encoding::F32),
        (64, 8, 1, TopkNorm::None, Encoding::Bf16),
    ];
    let mut cases: Vec<Router> = shapes
        .iter()
        .map(|&(h, experts, k, norm, encoding)| {
            let w = random.matrix(experts, h, encoding);
            Router { h, k, norm, w, kind: "random" }
        })
        .collect();
    for k in [2, 5, 7] {
        let few = random.values(3 * 64, 0.0, 0.3);
        let equal = (0..18).flat_map(|e| few[e * 7 % 3 * 64..][..64].to_vec());
        let w = Weights::new(Matrix::from_f32(18, 64, &equal.collect::<Vec<_>>()));
        cases.push(Router { h: 64, k, norm: TopkNorm::Sum, w, kind: "ties" });
    }
    cases
}

/// On a device.
pub struct Loaded<D: Device> {
    w: D::Matrix,
    x: Act,
}

impl Subject for Router {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Route]
    }

    fn name(&self) -> String {
        let (w, kind, norm) = (self.w.matrix.view(), self.kind, self.norm);
        format!(
            "{} of {} from {}, {}, {norm:?}, {kind}",
            self.k,
            w.rows(),
            self.h,
            short(w.encoding())
        )
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        Ok(Loaded { w: upload(device, &self.w)?, x: device.act(self.h) })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        device.put(on.x, &rows.primary(1, self.h, self.h))?;
        let routes = device.route(&on.w, self.k, self.norm, on.x)?;
        let count = rows.count() * self.k;
        if (routes.k, routes.ids.len(), routes.weights.len()) != (self.k, count, count) {
            let what = format!("found {} ids, expected {count}", routes.ids.len());
            return Err(Trouble::Wrong { verb: Verb::Route, what });
        }
        let ids = routes.ids.chunks_exact(self.k).map(<[u32]>::to_vec).collect();
        Ok(vec![Piece { verb: Verb::Route, values: routes.weights, ids }])
    }

    fn scores(
        &self,
        reference: &mut Reference,
        on: &Loaded<Reference>,
        rows: &Rows,
    ) -> Result<Vec<Vec<f64>>> {
        let all: Vec<u32> = (0..rows.count() as u32).collect();
        let logits = reference.logits(&on.w, on.x, &all)?;
        Ok(logits.chunks_exact(logits.len() / rows.count()).map(wide).collect())
    }

    fn score_scale(&self, seed: u64, row: RowId, _scores: &[f64]) -> f64 {
        let scales = self.w.scale(&wide(&row.input(seed, 1, self.h)));
        2.0 * scales.into_iter().fold(0.0, f64::max)
    }

    fn scale(&self, seed: u64, row: RowId, _piece: usize, expected: &RowPiece) -> Scale {
        // d ln(weight) is at most twice the error of a logit.
        let scale = self.score_scale(seed, row, &[]);
        Scale::Product(expected.values.iter().map(|&w| f64::from(w) * scale).collect())
    }
}
