//! `repeat`, `add_repeat`, `norm`.

use super::super::random::Random;
use super::super::rows::Rows;
use super::super::subject::{Piece, Subject, Tried};
use crate::checked::Verb;
use crate::device::{Act, Device};
use crate::error::Result;

/// Streams of a width, and the norm over them in groups.
pub struct Streams {
    h: usize,
    count: usize,
    groups: usize,
    norm: Vec<f32>,
}

/// Streams, and norms per stream and over all of them.
pub fn cases(random: &mut Random) -> Vec<Streams> {
    let shapes = [(64, 2, 1), (64, 4, 4), (96, 2, 2), (320, 4, 1), (160, 4, 4)];
    let case = |(h, count, groups)| {
        let norm = random.values(h * count, 1.0, 0.3);
        Streams { h, count, groups, norm }
    };
    shapes.map(case).into()
}

/// On a device.
pub struct Loaded<D: Device> {
    x: Act,
    stream: Act,
    normed: Act,
    norm: D::Vector,
}

impl Subject for Streams {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Repeat, Verb::AddRepeat, Verb::Norm]
    }

    fn name(&self) -> String {
        format!("{} streams of {}, {} norm groups", self.count, self.h, self.groups)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        let wide = self.h * self.count;
        let (x, stream, normed) = (device.act(self.h), device.act(wide), device.act(wide));
        Ok(Loaded { x, stream, normed, norm: device.vector(&self.norm)? })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        let wide = self.h * self.count;
        device.put(on.x, &rows.primary(1, self.h, self.h))?;
        device.repeat(on.x, on.stream)?;
        let repeated = device.fetch(on.stream)?;
        device.put(on.stream, &rows.input(2, wide))?;
        device.add_repeat(on.x, on.stream)?;
        let added = device.fetch(on.stream)?;
        device.put(on.stream, &rows.primary(3, wide, wide))?;
        device.norm(&on.norm, self.groups, on.stream, on.normed)?;
        Ok(vec![
            Piece::values(Verb::Repeat, repeated),
            Piece::values(Verb::AddRepeat, added),
            Piece::values(Verb::Norm, device.fetch(on.normed)?),
        ])
    }
}
