//! `hyper_read`, `hyper_write`, `hyper_turn`.

use super::super::random::{Random, Weights, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried, upload};
use super::{EIGHT, FOUR, short};
use crate::checked::Verb;
use crate::device::{Act, Device, Hyper};
use crate::error::Result;
use crate::suite::EPS;
use cherenkov_format::Encoding;

/// A hyper-connection, with and without injection.
pub struct Connection {
    h: usize,
    count: usize,
    norm: Vec<f32>,
    down: Weights,
    up: Weights,
    inject: Weights,
}

/// 2 and 4 streams.
pub fn cases(random: &mut Random) -> Vec<Connection> {
    let shapes = [
        (64, 2, 64, Encoding::F32),
        (64, 4, 64, EIGHT),
        (96, 4, 128, Encoding::Bf16),
        (160, 2, 64, FOUR),
    ];
    let case = |(h, count, rank, encoding)| {
        let wide = h * count;
        Connection {
            h,
            count,
            norm: random.values(wide, 1.0, 0.3),
            down: random.matrix(rank, wide, encoding),
            up: random.matrix(wide, rank, encoding),
            inject: random.matrix(count, wide, encoding),
        }
    };
    shapes.map(case).into()
}

/// On a device.
pub struct Loaded<D: Device> {
    w: Hyper<D::Matrix, D::Vector>,
    last: Hyper<D::Matrix, D::Vector>,
    stream: Act,
    out: Act,
    gate: Act,
    y: Act,
}

impl Connection {
    fn hyper<D: Device>(&self, device: &mut D) -> Result<Hyper<D::Matrix, D::Vector>> {
        Ok(Hyper {
            count: self.count,
            norm: device.vector(&self.norm)?,
            down: upload(device, &self.down)?,
            up: upload(device, &self.up)?,
            inject: None,
        })
    }

    /// The stream after the write.
    fn written(&self, seed: u64, row: RowId) -> Vec<f32> {
        let mut stream = row.input(seed, 2, self.h * self.count);
        let (y, gate) = (row.input(seed, 3, self.h), row.input(seed, 4, self.count));
        for (stream, gate) in stream.chunks_exact_mut(self.h).zip(gate) {
            stream.iter_mut().zip(&y).for_each(|(s, y)| *s += gate * y);
        }
        stream
    }

    /// What errors of the products in a read do to output and gate.
    fn read_scale(&self, stream: &[f32]) -> (Vec<f64>, Vec<f64>) {
        let (h, c) = (self.h, self.count as f64);
        let mut normed = Vec::new();
        for (x, w) in stream.chunks_exact(h).zip(self.norm.chunks_exact(h)) {
            let x = wide(x);
            let mean = x.iter().map(|x| x * x).sum::<f64>() / h as f64;
            let scale = 1.0 / (mean + EPS).sqrt();
            normed.extend(x.iter().zip(w).map(|(x, &w)| x * scale * f64::from(w)));
        }
        let down = self.down.times(&normed).into_iter().zip(self.down.scale(&normed));
        // |silu'| stays below 1.1, |silu(x)| below |x|; |sigmoid'| below 1/4.
        let inner: Vec<f64> = down.map(|(value, s)| (value.abs() + 1.1 * s) / c).collect();
        let up = self.up.scale(&inner);
        let part = |i: usize| (0.25 * up[i] + 1.0) * normed[i].abs();
        let out = (0..h).map(|i| (0..self.count).map(|s| part(s * h + i)).sum::<f64>() / c);
        let gate = self.inject.scale(&normed).iter().map(|s| 0.5 * s / c + 1.0).collect();
        (out.collect(), gate)
    }
}

impl Subject for Connection {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::HyperRead, Verb::HyperWrite, Verb::HyperTurn]
    }

    fn name(&self) -> String {
        let encoding = short(self.down.matrix.view().encoding());
        let rank = self.down.matrix.view().rows();
        format!("{} streams of {}, rank {rank}, {encoding}", self.count, self.h)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        let inject = Some(upload(device, &self.inject)?);
        Ok(Loaded {
            w: Hyper { inject, ..self.hyper(device)? },
            last: self.hyper(device)?,
            stream: device.act(self.h * self.count),
            out: device.act(self.h),
            gate: device.act(self.count),
            y: device.act(self.h),
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        let all = self.h * self.count;
        device.put(on.stream, &rows.primary(1, all, self.h))?;
        device.hyper_read(&on.w, on.stream, on.out, on.gate)?;
        let mut pieces = vec![
            Piece::values(Verb::HyperRead, device.fetch(on.out)?),
            Piece::values(Verb::HyperRead, device.fetch(on.gate)?),
        ];
        device.hyper_read(&on.last, on.stream, on.out, on.gate)?;
        pieces.push(Piece::values(Verb::HyperRead, device.fetch(on.out)?));

        let write = |device: &mut D| -> Result<()> {
            device.put(on.stream, &rows.input(2, all))?;
            device.put(on.y, &rows.primary(3, self.h, self.h))?;
            device.put(on.gate, &rows.input(4, self.count))
        };
        let results = |device: &mut D| -> Result<[Vec<f32>; 3]> {
            Ok([device.fetch(on.stream)?, device.fetch(on.out)?, device.fetch(on.gate)?])
        };
        write(device)?;
        device.hyper_write(on.y, on.gate, on.stream)?;
        device.hyper_read(&on.w, on.stream, on.out, on.gate)?;
        let verbs = [Verb::HyperWrite, Verb::HyperRead, Verb::HyperRead];
        let plain = verbs.into_iter().zip(results(device)?);
        pieces.extend(plain.map(|(verb, values)| Piece::values(verb, values)));
        write(device)?;
        device.hyper_turn(on.y, &on.w, on.stream, on.out, on.gate)?;
        pieces.extend(results(device)?.map(|values| Piece::values(Verb::HyperTurn, values)));
        Ok(pieces)
    }

    fn twin(&self, piece: usize) -> Option<usize> {
        (piece >= 6).then(|| piece - 3)
    }

    fn scale(&self, seed: u64, row: RowId, piece: usize, _expected: &RowPiece) -> Scale {
        let all = self.h * self.count;
        match piece {
            0 | 2 => Scale::Product(self.read_scale(&row.input(seed, 1, all)).0),
            1 => Scale::Product(self.read_scale(&row.input(seed, 1, all)).1),
            3 | 6 => Scale::Row(Verb::HyperWrite),
            4 | 7 => Scale::Product(self.read_scale(&self.written(seed, row)).0),
            _ => Scale::Product(self.read_scale(&self.written(seed, row)).1),
        }
    }
}
