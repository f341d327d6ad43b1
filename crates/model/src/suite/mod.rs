//! The conformance suite that every device passes.
//!
//! Owns: which promises are checked, on which shapes. Never: the meaning of a verb (the reference's).
//! Invariant: a failure names the verb, the case and the seed, and happens again with them.
//!
//! Every case is one verb, or a few that belong together, at one geometry. Its rows (three sequences
//! of different lengths) are run one by one, and compared with the reference. Then they are run
//! in other orders: all at once, in chunks, in other company, on other slots and pages, with drafts
//! taken back, moved, copied, saved and loaded. The bits must not change.

mod judge;
mod play;
mod random;
mod rows;
mod script;
mod subject;
mod subjects;

use crate::checked::{Bounds, Verb};
use crate::device::Device;
use crate::reference::Reference;
use judge::Difference;
use play::{Player, Record};
use rows::Poison;
use script::{LENGTHS, Script};
use subject::{LIMITS, Subject, Tried, Trouble};

/// Epsilon of every norm in the suite.
pub const EPS: f64 = 1e-6;

/// Which cases are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All.
    All,
    /// Those that run this verb.
    Verb(Verb),
}

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Seed of all weights and inputs.
    pub seed: u64,
    /// Which cases.
    pub scope: Scope,
}

/// What has been run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Verbs at a geometry.
    pub cases: usize,
    /// Orders of running a case's rows.
    pub runs: usize,
    /// Results of a row, compared in bits or with the reference.
    pub results: usize,
}

/// The first promise that was not kept.
#[derive(Debug, thiserror::Error)]
#[error("{verb} ({case}, seed {seed}), {scenario}, {row}: {what}")]
pub struct Failure {
    /// Verb.
    pub verb: Verb,
    /// Geometry.
    pub case: String,
    /// Seed of the plan.
    pub seed: u64,
    /// How the rows were run.
    pub scenario: &'static str,
    /// Row, in words.
    pub row: String,
    /// What was found and expected.
    pub what: String,
}

/// Runs the suite on devices that `make` makes for a norm epsilon, one per case.
///
/// Products are allowed the bound of [`Verb::Linear`] times the sum of |a * b| (carried through
/// chains of products); other verbs their own bound times the row's largest magnitude.
///
/// # Errors
/// The first promise that was not kept.
pub fn run<D: Device>(
    make: &mut dyn FnMut(f64) -> D,
    plan: &Plan,
    bounds: &Bounds,
) -> Result<Report, Failure> {
    let mut suite = Suite { make, plan, bounds, report: Report::default() };
    subjects::all(&mut suite)?;
    Ok(suite.report)
}

/// A suite that runs.
struct Suite<'a, D> {
    make: &'a mut dyn FnMut(f64) -> D,
    plan: &'a Plan,
    bounds: &'a Bounds,
    report: Report,
}

impl<D: Device> Suite<'_, D> {
    /// Runs one case, if it is in scope.
    fn case<S: Subject>(&mut self, subject: &S) -> Result<(), Failure> {
        if let Scope::Verb(verb) = self.plan.scope
            && !subject.verbs().contains(&verb)
        {
            return Ok(());
        }
        let expected = self.reference(subject)?;
        let mut device = (self.make)(EPS);
        let name = "loading";
        let mut on = self.named(subject, name, prepare(subject, &mut device))?;
        let first = script::single();
        let play = |device: &mut D, on: &mut S::Loaded<D>, script: &Script, poison| {
            let scores: play::Scores<'_, D, S::Loaded<D>> = &mut |_, _, _| Ok(Vec::new());
            let seed = self.plan.seed;
            Player { subject, device, on, seed, poison, scores }.play(script)
        };
        let plain = play(&mut device, &mut on, &first, None);
        let plain = self.named(subject, first.name, plain)?;
        let close = judge::close(subject, self.plan.seed, self.bounds, &plain, &expected);
        self.noted(subject, "against the reference", &plain, close)?;
        for poison in poisons(subject) {
            let script = script::together("with a value that is no number", 12);
            let found = play(&mut device, &mut on, &script, Some(poison));
            let found = self.named(subject, script.name, found)?;
            self.noted(subject, script.name, &found, judge::poison(&found, &plain, poison))?;
        }
        for script in script::others() {
            let found = play(&mut device, &mut on, &script, None);
            let found = self.named(subject, script.name, found)?;
            self.noted(subject, script.name, &found, judge::bits(&found, &plain))?;
        }
        self.report.cases += 1;
        Ok(())
    }

    /// What the reference makes of a case.
    fn reference<S: Subject>(&self, subject: &S) -> Result<Record, Failure> {
        let script = script::together("the reference itself", 0);
        let mut device = Reference::new(EPS);
        let mut on = self.named(subject, script.name, prepare(subject, &mut device))?;
        let scores: play::Scores<'_, Reference, S::Loaded<Reference>> =
            &mut |device, on, rows| subject.scores(device, on, rows);
        let (device, on, seed) = (&mut device, &mut on, self.plan.seed);
        let record = Player { subject, device, on, seed, poison: None, scores }.play(&script);
        self.named(subject, script.name, record)
    }

    /// Gives trouble its case.
    fn named<S: Subject, T>(
        &self,
        subject: &S,
        scenario: &'static str,
        result: Tried<T>,
    ) -> Result<T, Failure> {
        result.map_err(|trouble| {
            let (verb, what) = match trouble {
                Trouble::Device(error) => (subject.verbs()[0], error.to_string()),
                Trouble::Wrong { verb, what } => (verb, what),
            };
            let (case, seed) = (subject.name(), self.plan.seed);
            Failure { verb, case, seed, scenario, row: "the pass".to_owned(), what }
        })
    }

    /// Counts a comparison, and gives a difference its case.
    fn noted<S: Subject>(
        &mut self,
        subject: &S,
        scenario: &'static str,
        record: &Record,
        result: Result<(), Difference>,
    ) -> Result<(), Failure> {
        self.report.runs += 1;
        self.report.results += record.values().map(|row| row.pieces.len()).sum::<usize>();
        let (case, seed) = (subject.name(), self.plan.seed);
        result.map_err(|Difference { verb, row, what }| Failure {
            verb,
            case,
            seed,
            scenario,
            row,
            what,
        })
    }
}

/// Loads a subject and makes room.
fn prepare<S: Subject, D: Device>(subject: &S, device: &mut D) -> Tried<S::Loaded<D>> {
    let on = subject.load(device)?;
    device.allocate(LIMITS)?;
    Ok(on)
}

/// Poison for the last row of a sequence; none where values are only moved.
fn poisons<S: Subject>(subject: &S) -> Vec<Poison> {
    let moved = [Verb::Embed, Verb::Recall];
    if subject.verbs().iter().any(|verb| moved.contains(verb)) {
        return Vec::new();
    }
    let at = |value| Poison { sequence: 0, index: LENGTHS[0] as u32 - 1, value };
    vec![at(f32::NAN), at(f32::INFINITY)]
}
