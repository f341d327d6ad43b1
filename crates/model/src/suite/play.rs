//! Running a script on a device.
//!
//! Owns: slots, pages and batches of a run; the record of its results.

use super::random::Random;
use super::rows::{Poison, RowId, Rows, Take};
use super::script::{LENGTHS, Leg, Script, Stay, Step, Way};
use super::subject::{LIMITS, PAGE_ROWS, Piece, RowPiece, Subject, Tried, Trouble};
use crate::batch::{Batch, Keep, MAX_TENTATIVE};
use crate::checked::Verb;
use crate::device::{Device, PageId, SlotId};
use crate::error::Result;
use std::collections::BTreeMap;

/// Tokens of every case.
pub const VOCAB: usize = 97;

/// The results of one row.
#[derive(Clone, Debug, Default)]
pub struct RowRecord {
    /// In the order of the subject.
    pub pieces: Vec<RowPiece>,
    /// The scores behind choices, if the device tells.
    pub scores: Vec<f64>,
}

/// The results of every row that stayed, by (sequence, index).
pub type Record = BTreeMap<(usize, u32), RowRecord>;

/// Where a sequence lies.
#[derive(Clone, Debug)]
struct Seat {
    slot: SlotId,
    pages: Vec<PageId>,
}

/// Tells the scores behind the choices of the rows just run.
pub type Scores<'a, D, L> = &'a mut dyn FnMut(&mut D, &L, &Rows) -> Result<Vec<Vec<f64>>>;

/// A run in progress.
pub struct Player<'a, S: Subject, D: Device> {
    /// What runs.
    pub subject: &'a S,
    /// Where.
    pub device: &'a mut D,
    /// Its weights there.
    pub on: &'a mut S::Loaded<D>,
    /// Seed of all inputs.
    pub seed: u64,
    /// Poison, if any.
    pub poison: Option<Poison>,
    /// Source of scores.
    pub scores: Scores<'a, D, S::Loaded<D>>,
}

/// What changes while a script runs.
struct State {
    seats: Vec<Seat>,
    spare: Vec<Seat>,
    done: [u32; 3],
    salt: u64,
    record: Record,
}

impl<S: Subject, D: Device> Player<'_, S, D> {
    /// Runs a script.
    pub fn play(&mut self, script: &Script) -> Tried<Record> {
        let mut seats = deal(script.salt);
        let spare = seats.split_off(LENGTHS.len());
        for seat in &seats {
            self.device.reset_slot(seat.slot)?;
        }
        let salt = script.salt;
        let mut state = State { seats, spare, done: [0; 3], salt, record: Record::new() };
        for (number, step) in script.steps.iter().enumerate() {
            state.salt = script.salt.wrapping_mul(1000) + number as u64;
            match step {
                Step::Pass(legs) => self.pass(&mut state, legs)?,
                Step::Move(sequence, way) => self.relocate(&mut state, *sequence, *way)?,
            }
        }
        Ok(state.record)
    }

    fn pass(&mut self, state: &mut State, legs: &[Leg]) -> Tried<()> {
        let mut ids = Vec::new();
        let mut batch = Batch::default();
        for leg in legs {
            let start = state.done[leg.sequence];
            let first = ids.len();
            ids.extend((0..leg.rows as u32).map(|i| RowId {
                sequence: leg.sequence,
                index: start + i,
                take: if (i as usize) < leg.kept() { Take::Own } else { Take::Draft },
            }));
            let keep = if leg.stay == Stay::All { Keep::All } else { Keep::Tentative };
            self.push(&mut batch, &state.seats[leg.sequence], start, &ids[first..], keep);
        }
        let rows = Rows { seed: self.seed, salt: state.salt, ids, batch, poison: self.poison };
        let records = self.run(&rows)?;
        for leg in legs {
            if let Stay::First(stay) = leg.stay {
                self.device.settle(state.seats[leg.sequence].slot, stay)?;
            }
            state.done[leg.sequence] += leg.kept() as u32;
        }
        let kept = rows.ids.iter().zip(records).filter(|(id, _)| id.take == Take::Own);
        state.record.extend(kept.map(|(id, record)| ((id.sequence, id.index), record)));
        Ok(())
    }

    fn push(&self, batch: &mut Batch, seat: &Seat, start: u32, ids: &[RowId], keep: Keep) {
        let tokens: Vec<u32> = ids.iter().map(|id| id.token(VOCAB)).collect();
        let pages = (start as usize + ids.len()).div_ceil(PAGE_ROWS);
        let from = batch.positions.len();
        batch.push(seat.slot, start, &tokens, &seat.pages[..pages], keep);
        for (position, id) in batch.positions[from..].iter_mut().zip(ids) {
            *position = self.subject.position(id.index);
        }
    }

    fn run(&mut self, rows: &Rows) -> Tried<Vec<RowRecord>> {
        self.device.begin(&rows.batch)?;
        let pieces = self.subject.run(self.device, self.on, rows)?;
        let scores = (self.scores)(self.device, self.on, rows)?;
        let mut records = vec![RowRecord::default(); rows.count()];
        for piece in pieces {
            split(piece, rows.count(), &mut records)?;
        }
        for (record, scores) in records.iter_mut().zip(scores) {
            record.scores = scores;
        }
        Ok(records)
    }

    /// Moves a sequence to a spare seat, then spoils the seat it left.
    fn relocate(&mut self, state: &mut State, sequence: usize, way: Way) -> Tried<()> {
        let old = state.seats[sequence].clone();
        let new = state.spare.remove(0);
        match way {
            Way::Copy => {
                self.device.copy_slot(old.slot, new.slot)?;
                for (&from, &to) in old.pages.iter().zip(&new.pages) {
                    self.device.copy_page(from, to)?;
                }
            }
            Way::Saved => self.reload(&old, &new)?,
        }
        state.seats[sequence] = new;
        let index = state.done[sequence];
        let rows = (0..5).map(|i| RowId { sequence, index: index + i, take: Take::Draft });
        let ids: Vec<RowId> = rows.collect();
        let mut batch = Batch::default();
        self.push(&mut batch, &old, index, &ids, Keep::All);
        let rows = Rows { seed: self.seed, salt: state.salt, ids, batch, poison: None };
        self.run(&rows)?;
        state.spare.push(old);
        Ok(())
    }

    fn reload(&mut self, old: &Seat, new: &Seat) -> Tried<()> {
        let (mut saved, mut again) = (Vec::new(), Vec::new());
        self.device.save_slot(old.slot, &mut saved)?;
        self.device.load_slot(new.slot, &saved)?;
        self.device.save_slot(new.slot, &mut again)?;
        let mut same = saved == again;
        for (&from, &to) in old.pages.iter().zip(&new.pages) {
            saved.clear();
            again.clear();
            self.device.save_page(from, &mut saved)?;
            self.device.load_page(to, &saved)?;
            self.device.save_page(to, &mut again)?;
            same &= saved == again;
        }
        if same {
            return Ok(());
        }
        let what = "state saved after a load has other bytes than what was loaded".to_owned();
        Err(Trouble::Wrong { verb: self.subject.verbs()[0], what })
    }
}

/// Hands out slots and pages in random order, one seat per slot.
fn deal(salt: u64) -> Vec<Seat> {
    let mut random = Random::new(salt, &[9]);
    let mut slots: Vec<SlotId> = (0..LIMITS.slots as u32).map(SlotId).collect();
    let mut pages: Vec<PageId> = (0..LIMITS.pages as u32).map(PageId).collect();
    random.shuffle(&mut slots);
    random.shuffle(&mut pages);
    let each = LIMITS.pages / LIMITS.slots;
    let longest = LENGTHS.iter().max().expect("there are sequences") + MAX_TENTATIVE;
    assert!(each * PAGE_ROWS >= longest);
    let pages = pages.chunks_exact(each).map(<[PageId]>::to_vec);
    slots.into_iter().zip(pages).map(|(slot, pages)| Seat { slot, pages }).collect()
}

fn split(piece: Piece, rows: usize, records: &mut [RowRecord]) -> Tried<()> {
    let Piece { verb, values, ids } = piece;
    if !values.len().is_multiple_of(rows) || (!ids.is_empty() && ids.len() != rows) {
        return Err(wrong(
            verb,
            format!("{} values and {} choices", values.len(), ids.len()),
            rows,
        ));
    }
    let width = values.len() / rows;
    let mut ids = ids.into_iter();
    for (row, record) in records.iter_mut().enumerate() {
        let values = values[row * width..(row + 1) * width].to_vec();
        let ids = ids.next().unwrap_or_default();
        record.pieces.push(RowPiece { verb, values, ids });
    }
    Ok(())
}

fn wrong(verb: Verb, found: String, rows: usize) -> Trouble {
    Trouble::Wrong { verb, what: format!("found {found}, expected whole rows, {rows} of them") }
}
