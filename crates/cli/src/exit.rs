//! How the program ends.
//!
//! Owns: exit codes and the form of the last message. Never: deciding what is an error.

use std::fmt;
use std::io;
use std::process::ExitCode;

/// Everything went well.
pub const OK: u8 = 0;
/// Something failed.
pub const FAILURE: u8 = 1;
/// The command line makes no sense.
pub const USAGE: u8 = 2;
/// The user interrupted.
pub const INTERRUPTED: u8 = 130;

/// A command line whose parts are fine one by one but not together.
#[derive(Debug)]
pub struct Usage(pub String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// A [`Usage`] error.
pub fn usage(message: impl Into<String>) -> anyhow::Error {
    Usage(message.into()).into()
}

/// The user asked to stop: nothing to explain.
#[derive(Debug)]
pub struct Interrupted;

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("interrupted")
    }
}

impl std::error::Error for Interrupted {}

/// Nobody reads our output any more: the end of the work, not a failure.
#[derive(Debug)]
pub struct ClosedPipe;

impl fmt::Display for ClosedPipe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the output was closed")
    }
}

impl std::error::Error for ClosedPipe {}

/// The error of a write to stdout.
pub fn output_error(error: io::Error) -> anyhow::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        ClosedPipe.into()
    } else {
        anyhow::Error::new(error).context("cannot write to stdout")
    }
}

/// Prints the error, if there is one to print, and chooses the exit code.
pub fn code(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::from(OK) };
    if error.is::<ClosedPipe>() {
        return ExitCode::from(OK);
    }
    if error.is::<Interrupted>() {
        return ExitCode::from(INTERRUPTED);
    }
    crate::terminal::note(&format!("error: {}", message(&error)));
    ExitCode::from(if error.is::<Usage>() { USAGE } else { FAILURE })
}

/// The error with its causes, each said once (transparent errors repeat their source).
pub fn message(error: &anyhow::Error) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in error.chain() {
        let text = cause.to_string();
        if !parts.iter().any(|said| said.contains(&text)) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context as _;

    #[test]
    fn causes_are_said_once() {
        let inner = io::Error::other("disk on fire");
        let error = Err::<(), _>(inner).context("a.bin: read failed: disk on fire");
        let error = error.context("loading").unwrap_err();
        assert_eq!(message(&error), "loading: a.bin: read failed: disk on fire");
    }

    #[test]
    fn only_a_broken_pipe_is_quiet() {
        let broken = output_error(io::Error::from(io::ErrorKind::BrokenPipe));
        assert!(broken.is::<ClosedPipe>());
        let full = output_error(io::Error::from(io::ErrorKind::StorageFull));
        assert!(!full.is::<ClosedPipe>());
    }
}
