//! `shared_expert`.

use super::super::random::{Random, Weights, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried, upload};
use super::{EIGHT, FOUR, encodings, short};
use crate::checked::Verb;
use crate::device::{Act, Device, Shared};
use crate::error::Result;
use cherenkov_format::Encoding;

/// Gate, up and down projections.
pub struct Swiglu {
    /// `[width, hidden]`.
    pub gate: Weights,
    /// `[width, hidden]`.
    pub up: Weights,
    /// `[hidden, width]`.
    pub down: Weights,
}

impl Swiglu {
    /// Random projections.
    pub fn new(
        random: &mut Random,
        (h, width): (usize, usize),
        [inner, outer]: [Encoding; 2],
    ) -> Self {
        Self {
            gate: random.matrix(width, h, inner),
            up: random.matrix(width, h, inner),
            down: random.matrix(h, width, outer),
        }
    }

    /// What errors of the products do to each output.
    pub fn scale(&self, x: &[f32]) -> Vec<f64> {
        let x = wide(x);
        let (gate, up) = (self.gate.times(&x), self.up.times(&x));
        let (gate_scale, up_scale) = (self.gate.scale(&x), self.up.scale(&x));
        // |silu'| stays below 1.1 and |silu(g)| below |g|.
        let inner = (0..gate.len()).map(|i| {
            1.1 * gate_scale[i] * up[i].abs() + gate[i].abs() * (up_scale[i] + up[i].abs())
        });
        self.down.scale(&inner.collect::<Vec<_>>())
    }
}

/// A shared expert with its gate.
pub struct Expert {
    h: usize,
    w: Swiglu,
    open: Weights,
}

/// Every encoding.
pub fn cases(random: &mut Random) -> Vec<Expert> {
    let mut cases = Vec::new();
    for (i, encoding) in encodings().into_iter().enumerate() {
        let h = if i % 2 == 0 { 64 } else { 192 };
        let width = if i % 3 == 0 { 64 } else { 128 };
        let w = Swiglu::new(random, (h, width), [encoding; 2]);
        cases.push(Expert { h, w, open: random.matrix(1, h, encoding) });
    }
    let w = Swiglu::new(random, (320, 192), [FOUR, EIGHT]);
    cases.push(Expert { h: 320, w, open: random.matrix(1, 320, Encoding::Bf16) });
    cases
}

/// On a device.
pub struct Loaded<D: Device> {
    w: Shared<D::Matrix>,
    x: Act,
    out: Act,
}

impl Subject for Expert {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::SharedExpert]
    }

    fn name(&self) -> String {
        let up = self.w.up.matrix.view();
        format!("hidden {}, width {}, {}", self.h, up.rows(), short(up.encoding()))
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        Ok(Loaded {
            w: Shared {
                gate_proj: upload(device, &self.w.gate)?,
                up_proj: upload(device, &self.w.up)?,
                down_proj: upload(device, &self.w.down)?,
                gate: upload(device, &self.open)?,
            },
            x: device.act(self.h),
            out: device.act(self.h),
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        device.put(on.x, &rows.primary(1, self.h, self.h))?;
        device.shared_expert(&on.w, on.x, on.out)?;
        Ok(vec![Piece::values(Verb::SharedExpert, device.fetch(on.out)?)])
    }

    fn scale(&self, seed: u64, row: RowId, _piece: usize, expected: &RowPiece) -> Scale {
        let x = row.input(seed, 1, self.h);
        let open = 0.25 * self.open.scale(&wide(&x))[0];
        let scales = self.w.scale(&x).into_iter().zip(&expected.values);
        // The gate's own error, relative to its value, comes on top.
        Scale::Product(
            scales.map(|(s, &y)| s * (1.0 + open) + f64::from(y).abs() * 4.0 * open).collect(),
        )
    }
}
