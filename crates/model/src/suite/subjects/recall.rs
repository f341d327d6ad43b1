//! `keep` and `recall`.

use super::super::rows::Rows;
use super::super::subject::{Piece, Subject, Tried, Trouble, same_bits};
use crate::checked::Verb;
use crate::device::{Act, Device, Recall, RowLane};
use crate::error::Result;

/// A lane of kept rows.
pub struct Kept {
    width: usize,
    history: usize,
}

/// One kept row (the draft head's) and more.
pub fn cases() -> Vec<Kept> {
    [(64, 1), (256, 1), (96, 3)].map(|(width, history)| Kept { width, history }).into()
}

/// On a device.
#[derive(Clone, Copy)]
pub struct Loaded {
    lane: RowLane,
    x: Act,
    out: Act,
}

impl Kept {
    /// Per row the row `back` before it in its sequence: a kept one where the run begins, otherwise
    /// of this pass; itself where there is none.
    fn before(rows: &Rows, back: u32) -> Vec<Recall> {
        let runs = rows.batch.runs.iter();
        let all = runs.flat_map(|run| {
            run.range().map(move |row| {
                let index = run.start + (row - run.first) as u32;
                match index.checked_sub(back) {
                    None => Recall::Row(row as u32),
                    Some(index) if index < run.start => Recall::Kept { slot: run.slot, index },
                    Some(_) => Recall::Row(row as u32 - back),
                }
            })
        });
        all.collect()
    }
}

impl Subject for Kept {
    type Loaded<D: Device> = Loaded;

    fn verbs(&self) -> &'static [Verb] {
        &[Verb::Recall, Verb::Keep]
    }

    fn name(&self) -> String {
        format!("width {}, {} kept", self.width, self.history)
    }

    fn load<D: Device>(&self, device: &mut D) -> Result<Loaded> {
        let lane = device.row_lane(self.width, self.history);
        Ok(Loaded { lane, x: device.act(self.width), out: device.act(self.width) })
    }

    fn run<D: Device>(&self, device: &mut D, on: &mut Loaded, rows: &Rows) -> Tried<Vec<Piece>> {
        let x = rows.input(1, self.width);
        device.put(on.x, &x)?;
        let mut pieces = Vec::new();
        for back in 1..=self.history as u32 {
            device.recall(on.lane, on.x, &Self::before(rows, back), on.out)?;
            pieces.push(Piece::values(Verb::Recall, device.fetch(on.out)?));
        }
        device.keep(on.lane, on.x)?;
        let mut own: Vec<Recall> = (0..rows.count() as u32).map(Recall::Row).collect();
        for run in &rows.batch.runs {
            let index = run.start + run.rows as u32 - 1;
            own[run.range().end - 1] = Recall::Kept { slot: run.slot, index };
        }
        device.recall(on.lane, on.x, &own, on.out)?;
        pieces.push(Piece::values(Verb::Recall, device.fetch(on.out)?));

        // The next pass may be smaller and still asks for rows of this one.
        let mut next = rows.batch.clone();
        next.runs.truncate(1);
        next.runs[0].rows = 1;
        next.tokens.truncate(1);
        next.positions.truncate(1);
        device.begin(&next)?;
        let last = rows.count() - 1;
        device.recall(on.lane, on.x, &[Recall::Row(last as u32)], on.out)?;
        if !same_bits(&device.fetch(on.out)?, &x[last * self.width..]) {
            let what = "a row of the pass before is another one".to_owned();
            return Err(Trouble::Wrong { verb: Verb::Recall, what });
        }
        Ok(pieces)
    }
}
