//! Progress of long work on bytes.
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

/// Shows where an operation stands, and stops it on Ctrl-C.
pub struct Meter {
    interrupt: Interrupt,
    stage: Option<Stage>,
    began: Instant,
    shown: Option<Instant>,
    /// On a terminal.
    bar: Option<ProgressBar>,
}

fn name(stage: Stage) -> &'static str {
    match stage {
        Stage::Inspect => "inspect",
        Stage::Resume => "resume",
        Stage::Convert => "convert",
        Stage::Sync => "sync",
        Stage::Publish => "publish",
        Stage::Verify => "verify",
    }
}

fn counts_bytes(stage: Stage) -> bool {
    matches!(stage, Stage::Resume | Stage::Convert | Stage::Verify)
}

impl Meter {
    /// A meter on stderr.
    pub fn new(interrupt: &Interrupt) -> Self {
        let bar = terminal::stderr_is_terminal()
            .then(|| ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10)));
        let interrupt = interrupt.clone();
        Self { interrupt, stage: None, began: Instant::now(), shown: None, bar }
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

    fn enter(&mut self, status: Status) {
        self.stage = Some(status.stage);
        self.shown = Some(Instant::now());
        let Some(bar) = &self.bar else { return };
        let template = if counts_bytes(status.stage) { TEMPLATE } else { STEPS_TEMPLATE };
        let style = ProgressStyle::with_template(template).expect("the template is a constant");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(name(status.stage));
        bar.set_length(status.total);
        // What was there before says nothing about speed.
        bar.set_position(status.skipped);
        bar.reset_eta();
        bar.reset_elapsed();
    }

    fn line(&mut self, status: Status) {
        let due = self.shown.is_none_or(|at| at.elapsed() >= LINE_EVERY);
        if !due || !counts_bytes(status.stage) {
            return;
        }
        self.shown = Some(Instant::now());
        let (done, total) = (terminal::bytes(status.done), terminal::bytes(status.total));
        note(&format!("{}: {done} of {total}", name(status.stage)));
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
        if self.stage != Some(status.stage) {
            self.enter(status);
        }
        match &self.bar {
            Some(bar) => bar.set_position(status.done),
            None => self.line(status),
        }
        if self.interrupt.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}
