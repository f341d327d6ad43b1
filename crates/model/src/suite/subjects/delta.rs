//! `delta`: the gated delta rule.

use super::super::random::Random;
use super::super::rows::Rows;
use super::super::subject::{Piece, Subject, Tried};
use crate::checked::Verb;
use crate::device::{DeltaIo, DeltaLane, DeltaWeights, Device};
use crate::error::Result;
use cherenkov_format::qwen4_exp::config::{Delta, Gate};

/// A DeltaNet layer between its projections.
pub struct Rule {
    spec: Delta,
    a_log: Vec<f32>,
    dt_bias: Vec<f32>,
    norm: Vec<f32>,
}

/// Head sizes 32, 64 and 128, one to three value heads per key head, both gates.
pub fn cases(random: &mut Random) -> Vec<Rule> {
    let shapes = [
        (2, 4, 64, 64, Gate::Sigmoid),
        (1, 3, 128, 128, Gate::Silu),
        (2, 2, 32, 64, Gate::Sigmoid),
        (1, 2, 64, 32, Gate::Silu),
    ];
    let case = |(key_heads, value_heads, key_dim, value_dim, gate)| Rule {
        spec: Delta { key_heads, value_heads, key_dim, value_dim, conv_kernel: 4, gate },
        a_log: random.values(value_heads, -1.0, 0.8),
        dt_bias: random.values(value_heads, 0.0, 1.0),
        norm: random.values(value_dim, 1.0, 0.3),
    };
    shapes.map(case).into()
}

/// On a device.
pub struct Loaded<D: Device> {
    lane: DeltaLane,
    w: DeltaWeights<D::Vector>,
    io: DeltaIo,
}

fn widths(spec: &Delta) -> [usize; 4] {
    [spec.channels(), spec.value_width(), spec.value_heads, spec.value_heads]
}

impl Subject for Rule {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Delta]
    }

    fn name(&self) -> String {
        let s = &self.spec;
        let (keys, values) = (s.key_heads, s.value_heads);
        format!("{keys} x {} keys, {values} x {} values, {:?}", s.key_dim, s.value_dim, s.gate)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        let [qkv, z, a, b] = widths(&self.spec).map(|width| device.act(width));
        Ok(Loaded {
            lane: device.delta_lane(&self.spec),
            w: DeltaWeights {
                spec: self.spec.clone(),
                a_log: device.vector(&self.a_log)?,
                dt_bias: device.vector(&self.dt_bias)?,
                norm: device.vector(&self.norm)?,
            },
            io: DeltaIo { qkv, z, a, b, out: device.act(self.spec.value_width()) },
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        let [qkv, z, a, b] = widths(&self.spec);
        device.put(on.io.qkv, &rows.primary(1, qkv, qkv))?;
        device.put(on.io.z, &rows.input(2, z))?;
        device.put(on.io.a, &rows.input(3, a))?;
        device.put(on.io.b, &rows.input(4, b))?;
        device.delta(on.lane, &on.w, on.io)?;
        Ok(vec![Piece::values(Verb::Delta, device.fetch(on.io.out)?)])
    }
}
