//! The orders in which the same rows are run.
//!
//! Owns: the scripts. Invariant: every script runs every row of every sequence exactly once for good.

use super::random::Random;
use crate::batch::MAX_TENTATIVE;

/// Rows of the three sequences: together more than 64, the second far beyond every index budget.
pub const LENGTHS: [usize; 3] = [23, 41, 9];

/// Rows of one sequence in a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg {
    /// Which sequence.
    pub sequence: usize,
    /// How many rows.
    pub rows: usize,
    /// How many of them stay.
    pub stay: Stay,
}

/// How many rows of a leg stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stay {
    /// All, as said before the pass.
    All,
    /// So many, as said after it.
    First(usize),
}

impl Leg {
    /// Rows that stay.
    pub fn kept(&self) -> usize {
        match self.stay {
            Stay::All => self.rows,
            Stay::First(rows) => rows,
        }
    }
}

/// How a sequence comes into another slot and other pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// `copy_slot`, `copy_page`.
    Copy,
    /// `save_slot`, `load_slot` and the same for pages.
    Saved,
}

/// One step of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A pass.
    Pass(Vec<Leg>),
    /// A move of a sequence; the slot it leaves then runs something else.
    Move(usize, Way),
}

/// An order of running all rows.
#[derive(Clone, Debug)]
pub struct Script {
    /// What it shows.
    pub name: &'static str,
    /// Seed of everything that must not matter.
    pub salt: u64,
    /// The order.
    pub steps: Vec<Step>,
}

/// The rows still to run of each sequence.
struct Left([usize; 3]);

impl Left {
    /// A leg of at most `rows` rows, if any are left.
    fn leg(&mut self, sequence: usize, rows: usize) -> Option<Leg> {
        let rows = rows.min(self.0[sequence]);
        self.0[sequence] -= rows;
        (rows > 0).then_some(Leg { sequence, rows, stay: Stay::All })
    }

    /// A leg of drafts of which at most `stay` stay.
    fn drafts(&mut self, sequence: usize, stay: usize) -> Option<Leg> {
        if self.0[sequence] == 0 {
            return None;
        }
        let stay = stay.min(self.0[sequence]);
        self.0[sequence] -= stay;
        Some(Leg { sequence, rows: MAX_TENTATIVE, stay: Stay::First(stay) })
    }

    fn any(&self) -> bool {
        self.0.iter().any(|&rows| rows > 0)
    }
}

/// Row after row: what all others are compared with.
pub fn single() -> Script {
    let mut left = Left(LENGTHS);
    let mut steps = Vec::new();
    while left.any() {
        steps.extend((0..3).filter_map(|s| left.leg(s, 1)).map(|leg| Step::Pass(vec![leg])));
    }
    Script { name: "one row at a time", salt: 1, steps }
}

/// All rows of all sequences in one pass.
pub fn together(name: &'static str, salt: u64) -> Script {
    let mut left = Left(LENGTHS);
    let legs = (0..3).filter_map(|s| left.leg(s, usize::MAX)).collect();
    Script { name, salt, steps: vec![Step::Pass(legs)] }
}

/// Chunks of 1 to 8 rows and longer ones, in changing company and order.
fn chunks() -> Script {
    let mut left = Left(LENGTHS);
    let mut random = Random::new(3, &[]);
    let mut steps = Vec::new();
    let mut round = 0;
    while left.any() {
        let mut order = [0, 1, 2];
        random.shuffle(&mut order);
        let present = order.into_iter().take(1 + random.below(3));
        let size = if round < 8 { round + 1 } else { 1 + random.below(20) };
        let legs: Vec<Leg> = present.filter_map(|s| left.leg(s, size)).collect();
        if !legs.is_empty() {
            steps.push(Step::Pass(legs));
            round += 1;
        }
    }
    Script { name: "in chunks, in changing company", salt: 2, steps }
}

/// Drafts of which 0 to 8 stay, beside rows that all stay.
fn drafts() -> Script {
    let mut left = Left(LENGTHS);
    let mut random = Random::new(5, &[]);
    // None stay after 2, 10, 11, 20, 26 and 38 rows: at every place within a block of four.
    let accepted = [0, 8, 0, 1, 0, 7, 2, 0, 6, 0, 3, 5, 4];
    let mut steps = vec![Step::Pass((0..2).filter_map(|s| left.leg(s, 2)).collect())];
    let mut round = 0;
    while left.any() {
        let main = left.drafts(1, accepted[round % accepted.len()]);
        let other = match random.below(3) {
            0 => left.leg(0, 1 + random.below(3)),
            _ => left.drafts(0, random.below(4)),
        };
        let third = if round % 2 == 0 { left.drafts(2, random.below(3)) } else { left.leg(2, 1) };
        let legs: Vec<Leg> = [other, main, third].into_iter().flatten().collect();
        steps.push(Step::Pass(legs));
        round += 1;
    }
    Script { name: "drafts of which some are taken back", salt: 4, steps }
}

/// Chunks, between which the sequences move to other slots and pages.
fn moves(name: &'static str, way: Way, salt: u64) -> Script {
    let mut left = Left(LENGTHS);
    let mut random = Random::new(salt, &[]);
    let mut steps = Vec::new();
    while left.any() {
        let legs = (0..3).filter_map(|s| left.leg(s, 3 + random.below(7))).collect();
        steps.push(Step::Pass(legs));
        if left.any() {
            steps.push(Step::Move(random.below(3), way));
        }
    }
    Script { name, salt, steps }
}

/// Every order but the first one.
pub fn others() -> Vec<Script> {
    vec![
        together("all rows at once", 6),
        chunks(),
        drafts(),
        moves("moved by copy_slot and copy_page", Way::Copy, 8),
        moves("moved by save and load", Way::Saved, 10),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_script_keeps_every_row_once() {
        for script in others().into_iter().chain([single()]) {
            let mut kept = [0; 3];
            for step in &script.steps {
                if let Step::Pass(legs) = step {
                    assert!(!legs.is_empty() && legs.iter().map(|l| l.rows).sum::<usize>() <= 96);
                    legs.iter().for_each(|leg| kept[leg.sequence] += leg.kept());
                }
            }
            assert_eq!(kept, LENGTHS, "{}", script.name);
        }
    }

    #[test]
    fn drafts_stay_in_every_number() {
        let mut seen = [false; MAX_TENTATIVE + 1];
        for step in drafts().steps {
            let Step::Pass(legs) = step else { continue };
            for leg in legs.iter().filter(|l| l.sequence == 1) {
                if let Stay::First(rows) = leg.stay {
                    seen[rows] = true;
                }
            }
        }
        assert_eq!(seen, [true; MAX_TENTATIVE + 1]);
    }
}
