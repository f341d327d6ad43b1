//! Progress of long work.
//!
//! Owns: the bar on a terminal, the line now and then elsewhere. Never: the work.

use crate::exit;
use crate::interrupt::Interrupt;
use crate::terminal::{self, note};
use anyhow::Context as _;
use cherenkov_format::Error;
use cherenkov_format::progress::{Progress, Stage, Status};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

/// How often a line is written where there is no terminal.
const LINE_EVERY: Duration = Duration::from_secs(10);
const TEMPLATE: &str = "{msg:9} [{bar:32}] {percent:>3}% {bytes:>10} of {total_bytes:<10} \
                        {bytes_per_sec:>12}, {eta} left";
const STEPS_TEMPLATE: &str = "{msg:9} [{bar:32}] {pos} of {len}";
const TOKENS_TEMPLATE: &str = "{msg:9} [{bar:32}] {percent:>3}% {pos} of {len} tokens, {eta} left";

/// What a stretch of work counts.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Counted {
    Bytes,
    Steps,
    Tokens,
}

impl Counted {
    fn template(self) -> &'static str {
        match self {
            Self::Bytes => TEMPLATE,
            Self::Steps => STEPS_TEMPLATE,
            Self::Tokens => TOKENS_TEMPLATE,
        }
    }

    fn spelled(self, count: u64) -> String {
        match self {
            Self::Bytes => terminal::bytes(count),
            Self::Steps => count.to_string(),
            Self::Tokens => format!("{count} tokens"),
        }
    }
}

/// Work under one name.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Stretch {
    name: &'static str,
    counted: Counted,
}

impl From<Stage> for Stretch {
    fn from(stage: Stage) -> Self {
        let (name, counted) = match stage {
            Stage::Inspect => ("inspect", Counted::Steps),
            Stage::Resume => ("resume", Counted::Bytes),
            Stage::Convert => ("convert", Counted::Bytes),
            Stage::Sync => ("sync", Counted::Steps),
            Stage::Publish => ("publish", Counted::Steps),
            Stage::Verify => ("verify", Counted::Bytes),
        };
        Self { name, counted }
    }
}

/// How far a stretch has come.
#[derive(Clone, Copy)]
struct Count {
    done: u64,
    total: u64,
    /// Part of `done` that was there when the stretch began.
    skipped: u64,
}

/// Shows where an operation stands, and stops it on Ctrl-C.
pub struct Meter {
    interrupt: Interrupt,
    stretch: Option<Stretch>,
    began: Instant,
    shown: Option<Instant>,
    /// On a terminal.
    bar: Option<ProgressBar>,
}

impl Meter {
    /// A meter on stderr.
    pub fn new(interrupt: &Interrupt) -> Self {
        let bar = terminal::stderr_is_terminal()
            .then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)));
        let interrupt = interrupt.clone();
        Self { interrupt, stretch: None, began: Instant::now(), shown: None, bar }
    }

    /// Seconds since the meter was made.
    pub fn seconds(&self) -> f64 {
        self.began.elapsed().as_secs_f64()
    }

    /// Takes the bar off the screen.
    pub fn clear(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }

    /// Shows how many tokens of a text have been dealt with.
    pub fn tokens(&mut self, name: &'static str, done: u64, total: u64) {
        self.show(Stretch { name, counted: Counted::Tokens }, Count { done, total, skipped: 0 });
    }

    fn show(&mut self, stretch: Stretch, count: Count) {
        if self.stretch != Some(stretch) {
            self.enter(stretch, count);
        }
        match &self.bar {
            Some(bar) => bar.set_position(count.done),
            None => self.line(stretch, count),
        }
    }

    fn enter(&mut self, stretch: Stretch, count: Count) {
        self.stretch = Some(stretch);
        self.shown = Some(Instant::now());
        let Some(bar) = &self.bar else { return };
        let style = ProgressStyle::with_template(stretch.counted.template());
        bar.set_style(style.expect("the template is a constant").progress_chars("=> "));
        bar.set_message(stretch.name);
        bar.set_length(count.total);
        // What was there before says nothing about speed.
        bar.set_position(count.skipped);
        bar.reset_eta();
        bar.reset_elapsed();
    }

    fn line(&mut self, Stretch { name, counted }: Stretch, count: Count) {
        let due = self.shown.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if !due || counted == Counted::Steps {
            return;
        }
        self.shown = Some(Instant::now());
        let (done, total) = (counted.spelled(count.done), counted.spelled(count.total));
        note(&format!("{name}: {done} of {total}"));
    }
}

/// Runs long work under a meter and reports on stderr; `failed` says what could not be done.
///
/// # Errors
/// Those of the work, or that the user stopped it.
pub fn run<R>(
    interrupt: &Interrupt,
    work: impl FnOnce(&mut Meter) -> Result<R, Error>,
    summary: impl FnOnce(&R, f64) -> String,
    failed: impl FnOnce() -> String,
) -> anyhow::Result<()> {
    let mut meter = Meter::new(interrupt);
    let made = work(&mut meter);
    meter.clear();
    match made {
        Ok(report) => {
            note(&summary(&report, meter.seconds()));
            Ok(())
        }
        Err(error @ Error::Cancelled { .. }) => {
            note(&error.to_string());
            Err(exit::Interrupted.into())
        }
        Err(error) => Err(error).with_context(failed),
    }
}

impl Progress for Meter {
    fn update(&mut self, status: Status) -> ControlFlow<()> {
        let Status { stage, done, total, skipped } = status;
        self.show(stage.into(), Count { done, total, skipped });
        if self.interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
