//! Ctrl-C.
//!
//! Owns: the signal handler and its flag. Never: what to stop (the loops ask).
//! Invariant: the first Ctrl-C asks, and a second one while the first is unanswered ends the program
//! (never in a chat, which has a conversation to lose).

use crate::exit;
use anyhow::Context as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

#[derive(Debug, Default)]
struct Flags {
    pressed: AtomicBool,
    patient: AtomicBool,
}

/// Tells loops that the user wants them to stop.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<Flags>);

impl Interrupt {
    /// Installs the handler; once per process.
    ///
    /// # Errors
    /// When the system refuses.
    pub fn install() -> anyhow::Result<Self> {
        let flag = Self::default();
        let handler = flag.clone();
        ctrlc::set_handler(move || {
            if handler.press() && !handler.0.patient.load(Ordering::Relaxed) {
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        })
        .context("cannot catch ctrl-c")?;
        Ok(flag)
    }

    /// What Ctrl-C does; returns whether an earlier one was still unanswered.
    pub fn press(&self) -> bool {
        self.0.pressed.swap(true, Ordering::Relaxed)
    }

    /// Whether Ctrl-C was pressed since the last [`Self::clear`].
    pub fn is_set(&self) -> bool {
        self.0.pressed.load(Ordering::Relaxed)
    }

    /// Forgets it.
    pub fn clear(&self) {
        self.0.pressed.store(false, Ordering::Relaxed);
    }

    /// From now on a second Ctrl-C ends nothing.
    pub fn be_patient(&self) {
        self.0.patient.store(true, Ordering::Relaxed);
    }

    /// Ends a command that cannot be stopped half way.
    ///
    /// # Errors
    /// [`exit::Interrupted`] when Ctrl-C was pressed.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_set() { Err(exit::Interrupted.into()) } else { Ok(()) }
    }
}
