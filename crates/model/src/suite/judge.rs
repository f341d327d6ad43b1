//! Comparison of two runs of the same rows.
//!
//! Owns: which difference is reported: of the first result in the subject's order, then the first
//! row, so that the verb that went wrong first is named.

use super::play::{Record, RowRecord};
use super::rows::{Poison, RowId, Take};
use super::subject::{RowPiece, Scale, Subject, same_bits};
use crate::checked::{Bounds, FLOOR, Verb, compare};

/// A difference.
#[derive(Clone, Debug, PartialEq)]
pub struct Difference {
    /// Verb whose result differs.
    pub verb: Verb,
    /// Row, in words.
    pub row: String,
    /// How.
    pub what: String,
}

fn difference(verb: Verb, (sequence, index): (usize, u32), what: String) -> Difference {
    Difference { verb, row: format!("sequence {sequence}, row {index}"), what }
}

fn pieces(record: &Record) -> usize {
    record.values().next().map_or(0, |row| row.pieces.len())
}

/// Two runs must have the same bits.
pub fn bits(found: &Record, expected: &Record) -> Result<(), Difference> {
    for piece in 0..pieces(expected) {
        for (&row, expected) in expected {
            let expected = &expected.pieces[piece];
            let found = found.get(&row).map(|found| &found.pieces[piece]);
            let found = found
                .ok_or_else(|| difference(expected.verb, row, "the row was not run".to_owned()))?;
            if found.ids != expected.ids {
                let what = format!("chose {:?}, before {:?}", found.ids, expected.ids);
                return Err(difference(expected.verb, row, what));
            }
            if !same_bits(&found.values, &expected.values) {
                let pairs = found.values.iter().zip(&expected.values).enumerate();
                let other = pairs.clone().filter(|(_, (a, b))| a.to_bits() != b.to_bits()).count();
                let first = pairs.clone().find(|(_, (a, b))| a.to_bits() != b.to_bits());
                let what = format!("{other} values have other bits, the first is {first:?}");
                return Err(difference(expected.verb, row, what));
            }
        }
    }
    Ok(())
}

/// A poisoned row shows it, and no other row does.
pub fn poison(found: &Record, expected: &Record, poison: Poison) -> Result<(), Difference> {
    let at = (poison.sequence, poison.index);
    let healthy = |record: &Record| {
        let rows = record.iter().filter(|(row, _)| **row != at);
        rows.map(|(row, record)| (*row, record.clone())).collect::<Record>()
    };
    bits(&healthy(found), &healthy(expected))?;
    for piece in &found[&at].pieces {
        if !piece.values.is_empty() && piece.values.iter().all(|v| v.is_finite()) {
            let what = format!("{} went in, only finite values came out", poison.value);
            return Err(difference(piece.verb, at, what));
        }
    }
    Ok(())
}

/// A run must be close to the reference's.
pub fn close<S: Subject>(
    subject: &S,
    seed: u64,
    bounds: &Bounds,
    found: &Record,
    expected: &Record,
) -> Result<(), Difference> {
    for piece in 0..pieces(expected) {
        for (&row, expected) in expected {
            let id = RowId { sequence: row.0, index: row.1, take: Take::Own };
            let found = &found[&row];
            // Another choice among equals leads to other numbers, rightly.
            let chosen = |record: &RowRecord| {
                record.pieces[..piece].iter().flat_map(|p| p.ids.clone()).collect::<Vec<_>>()
            };
            if chosen(found) != chosen(expected) {
                continue;
            }
            let scale = subject.score_scale(seed, id, &expected.scores);
            if let Some(twin) = subject.twin(piece)
                && !same_bits(&found.pieces[piece].values, &found.pieces[twin].values)
            {
                let (verb, twin) = (found.pieces[piece].verb, found.pieces[twin].verb);
                return Err(difference(verb, row, format!("other bits than {twin} by itself")));
            }
            let (found, scores) = (&found.pieces[piece], &expected.scores);
            let expected = &expected.pieces[piece];
            let allowed = bounds.allowed(expected.verb, scale);
            choice(found, expected, scores, allowed)
                .and_then(|()| {
                    values(subject.scale(seed, id, piece, expected), bounds, found, expected)
                })
                .map_err(|what| difference(expected.verb, row, what))?;
        }
    }
    Ok(())
}

fn choice(
    found: &RowPiece,
    expected: &RowPiece,
    scores: &[f64],
    allowed: f64,
) -> Result<(), String> {
    let message =
        |what: String| format!("chose {:?}, the reference {:?}: {what}", found.ids, expected.ids);
    compare::choice(0, &found.ids, &expected.ids, scores, allowed).map_err(|off| {
        message(format!("scores differ by {:.3e}, allowed are {:.3e}", off.worst, off.allowed))
    })?;
    // Among equals the lowest come first.
    for &id in &found.ids {
        let equal = |&lower: &u32| scores.get(lower as usize) == scores.get(id as usize);
        let passed = (0..id).filter(equal).find(|lower| !found.ids.contains(lower));
        if let (Some(lower), false) = (passed, scores.is_empty()) {
            return Err(message(format!("{lower} has the same score as {id} and comes first")));
        }
    }
    Ok(())
}

fn values(
    scale: Scale,
    bounds: &Bounds,
    found: &RowPiece,
    expected: &RowPiece,
) -> Result<(), String> {
    let width = expected.values.len();
    if width == 0 || found.ids != expected.ids {
        return Ok(());
    }
    let row = compare::magnitude(&expected.values);
    let product = bounds.of(Verb::Linear);
    let result = compare::values(width, &found.values, &expected.values, |_, i| match &scale {
        Scale::Row(verb) => bounds.allowed(*verb, row),
        Scale::Product(scales) => product.mul_add(scales[i], FLOOR),
    });
    result.map_err(|off| format!("off by {:.3e}, allowed are {:.3e}", off.worst, off.allowed))
}
