//! `linear`, `linear_streams`, `logits`, `embed`: one matrix in every encoding.

use super::super::play::VOCAB;
use super::super::random::{Random, Weights, wide};
use super::super::rows::{RowId, Rows};
use super::super::subject::{Piece, RowPiece, Scale, Subject, Tried, Trouble, same_bits, upload};
use super::{encodings, short};
use crate::checked::Verb;
use crate::device::{Act, Device};
use crate::error::Result;

/// A projection.
pub struct Linear {
    rows: usize,
    cols: usize,
    w: Weights,
}

const STREAMS: usize = 2;

/// Every encoding, on widths that fill tiles and segments and on widths that do not.
pub fn cases(random: &mut Random) -> Vec<Linear> {
    let mut cases = Vec::new();
    for (i, encoding) in encodings().into_iter().enumerate() {
        let odd = [(3, 64), (17, 192), (40, 320), (1, 128), (33, 704)][i % 5];
        for (rows, cols) in [(48, 128), odd] {
            cases.push(Linear { rows, cols, w: random.matrix(rows, cols, encoding) });
        }
    }
    cases
}

/// On a device.
pub struct Loaded<D: Device> {
    w: D::Matrix,
    x: Act,
    out: Act,
    wide_x: Act,
    wide_out: Act,
}

impl Subject for Linear {
    type Loaded<D: Device> = Loaded<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Linear, Verb::LinearStreams, Verb::Logits]
    }

    fn name(&self) -> String {
        format!("{} x {}, {}", self.rows, self.cols, short(self.w.matrix.view().encoding()))
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded<D>> {
        Ok(Loaded {
            w: upload(device, &self.w)?,
            x: device.act(self.cols),
            out: device.act(self.rows),
            wide_x: device.act(STREAMS * self.cols),
            wide_out: device.act(STREAMS * self.rows),
        })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded<D>, rows: &Rows) -> Tried<Vec<Piece>> {
        device.put(on.x, &rows.primary(1, self.cols, self.cols))?;
        device.linear(&on.w, on.x, on.out)?;
        let out = device.fetch(on.out)?;
        device.put(on.wide_x, &rows.primary(2, STREAMS * self.cols, self.cols))?;
        device.linear_streams(&on.w, on.wide_x, on.wide_out)?;
        let streams = device.fetch(on.wide_out)?;
        let all: Vec<u32> = (0..rows.count() as u32).collect();
        let logits = device.logits(&on.w, on.x, &all)?;
        let mut some = all;
        rows.free().shuffle(&mut some);
        some.truncate(rows.count().div_ceil(3));
        let again = device.logits(&on.w, on.x, &some)?;
        let row = |&r: &u32| &logits[r as usize * self.rows..][..self.rows];
        let expected: Vec<f32> = some.iter().flat_map(row).copied().collect();
        let poisoned = again.iter().any(|v| v.is_nan());
        if !poisoned && !same_bits(&again, &expected) {
            let what = format!("logits of rows {some:?} differ from those of all rows");
            return Err(Trouble::Wrong { verb: Verb::Logits, what });
        }
        Ok(vec![
            Piece::values(Verb::Linear, out),
            Piece::values(Verb::LinearStreams, streams),
            Piece::values(Verb::Logits, logits),
        ])
    }

    fn scale(&self, seed: u64, row: RowId, piece: usize, _expected: &RowPiece) -> Scale {
        let scale = |x: &[f32]| self.w.scale(&wide(x));
        if piece != 1 {
            return Scale::Product(scale(&row.input(seed, 1, self.cols)));
        }
        let x = row.input(seed, 2, STREAMS * self.cols);
        Scale::Product(x.chunks_exact(self.cols).flat_map(scale).collect())
    }
}

/// An embedding table.
pub struct Embed {
    width: usize,
    w: Weights,
}

/// Every encoding.
pub fn embeds(random: &mut Random) -> Vec<Embed> {
    let mut case = |(i, encoding)| {
        let width = if i % 2 == 0 { 64 } else { 192 };
        Embed { width, w: random.matrix(VOCAB, width, encoding) }
    };
    encodings().into_iter().enumerate().map(&mut case).collect()
}

/// On a device.
pub struct LoadedEmbed<D: Device> {
    table: D::Matrix,
    out: Act,
}

impl Subject for Embed {
    type Loaded<D: Device> = LoadedEmbed<D>;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Embed]
    }

    fn name(&self) -> String {
        format!("{VOCAB} x {}, {}", self.width, short(self.w.matrix.view().encoding()))
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<LoadedEmbed<D>> {
        Ok(LoadedEmbed { table: upload(device, &self.w)?, out: device.act(self.width) })
    }

    fn run<D: Device>(
        &self,
        device: &mut D,
        on: &mut LoadedEmbed<D>,
        _rows: &Rows,
    ) -> Tried<Vec<Piece>> {
        device.embed(&on.table, on.out)?;
        Ok(vec![Piece::values(Verb::Embed, device.fetch(on.out)?)])
    }
}
