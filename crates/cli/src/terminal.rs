//! Writing to people.
//!
//! Owns: stdout and stderr, styles, how bytes and times are spelled. Never: what is written.
//! Invariant: nothing here panics; a closed stdout is [`crate::exit::ClosedPipe`], a closed stderr
//! is ignored.

use crate::exit::output_error;
use std::io::{self, IsTerminal as _, Write};

const DIM: &str = "\x1b[2m";
const PLAIN: &str = "\x1b[0m";

/// One line on stderr.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Whether a person sees stderr.
pub fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Asks on the terminal; `None` when there is nobody to ask.
pub fn ask(question: &str) -> Option<bool> {
    if !io::stdin().is_terminal() || !stderr_is_terminal() {
        return None;
    }
    let _ = write!(io::stderr().lock(), "{question} [Y/n] ");
    let mut answer = String::new();
    let read = io::stdin().read_line(&mut answer).ok()?;
    let answer = answer.trim().to_lowercase();
    Some(read > 0 && matches!(answer.as_str(), "" | "y" | "yes"))
}

/// How text looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// As it comes.
    Plain,
    /// Less bright.
    Dim,
}

/// Whether styles are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Styles {
    /// To a terminal.
    Shown,
    /// To a pipe or a file.
    Left,
}

impl Styles {
    /// For stdout: shown on a terminal, unless NO_COLOR is set.
    pub fn of_stdout() -> Self {
        let wanted = std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty());
        if wanted && io::stdout().is_terminal() { Self::Shown } else { Self::Left }
    }
}

/// Text that appears as it is made.
#[derive(Debug)]
pub struct Printer<W> {
    out: W,
    styles: Styles,
    style: Style,
    /// The last byte written, if any, since the last line began.
    open_line: bool,
}

impl Printer<io::Stdout> {
    /// On stdout.
    pub fn stdout() -> Self {
        Self::new(io::stdout(), Styles::of_stdout())
    }
}

impl<W: Write> Printer<W> {
    /// On `out`.
    pub fn new(out: W, styles: Styles) -> Self {
        Self { out, styles, style: Style::Plain, open_line: false }
    }

    /// Writes text and lets it be seen.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn text(&mut self, style: Style, text: &str) -> anyhow::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        self.open_line = !text.ends_with('\n');
        let change = self.change(style);
        let bytes = [change.as_bytes(), text.as_bytes()].concat();
        self.out.write_all(&bytes).and_then(|()| self.out.flush()).map_err(output_error)
    }

    /// Ends the line, if one was begun, and every style.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end_line(&mut self) -> anyhow::Result<()> {
        let change = self.change(Style::Plain);
        let end = if self.open_line { "\n" } else { "" };
        self.open_line = false;
        let bytes = [change, end].concat();
        self.out.write_all(bytes.as_bytes()).and_then(|()| self.out.flush()).map_err(output_error)
    }

    fn change(&mut self, style: Style) -> &'static str {
        if std::mem::replace(&mut self.style, style) == style || self.styles == Styles::Left {
            return "";
        }
        match style {
            Style::Plain => PLAIN,
            Style::Dim => DIM,
        }
    }
}

/// Bytes as people read them: `21.3 MB`.
pub fn bytes(count: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if count < 1000 {
        return format!("{count} B");
    }
    let mut value = count as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_spelled_with_one_digit() {
        for (count, text) in [
            (0, "0 B"),
            (999, "999 B"),
            (1000, "1.0 kB"),
            (999_949, "999.9 kB"),
            (999_950, "1.0 MB"),
            (21_300_000, "21.3 MB"),
            (68_000_000_000, "68.0 GB"),
            (5_000_000_000_000_000, "5000.0 TB"),
        ] {
            assert_eq!(bytes(count), text);
        }
    }

    fn written(styles: Styles) -> String {
        let mut out = Vec::new();
        let mut printer = Printer::new(&mut out, styles);
        printer.text(Style::Dim, "hm").unwrap();
        printer.text(Style::Dim, "m\n").unwrap();
        printer.text(Style::Plain, "").unwrap();
        printer.text(Style::Plain, "yes").unwrap();
        printer.end_line().unwrap();
        printer.end_line().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn styles_are_for_terminals_only() {
        assert_eq!(written(Styles::Left), "hmm\nyes\n");
        assert_eq!(written(Styles::Shown), "\x1b[2mhmm\n\x1b[0myes\n");
    }
}
