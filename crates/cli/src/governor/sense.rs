//! Where readings come from.
//!
//! Owns: the files and calls of the system. Never: decisions.

use super::Reading;
use crate::memory;

/// Somebody who knows how the machine is.
pub trait Sense: Send {
    /// A reading, if it is time for one.
    fn look(&mut self) -> Option<Reading>;
}

/// The machine itself, looked at now and then.
#[derive(Debug)]
pub struct System {
    last: std::time::Instant,
}

/// Time between two readings: a reading takes a fraction of a millisecond.
const EVERY: std::time::Duration = std::time::Duration::from_millis(500);

impl System {
    /// Begins to watch.
    pub fn watch() -> Self {
        Self { last: std::time::Instant::now() }
    }
}

impl Sense for System {
    fn look(&mut self) -> Option<Reading> {
        if self.last.elapsed() < EVERY {
            return None;
        }
        self.last = std::time::Instant::now();
        Some(Reading { available: memory::available(), pressure: pressure() })
    }
}

/// The system's measure of pressure (Linux).
fn pressure() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/pressure/memory").ok()?;
    some_avg10(&text)
}

/// `some avg10=0.00 avg60=...`: the share of time in which at least one program waited.
fn some_avg10(text: &str) -> Option<f64> {
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split_whitespace().find_map(|part| part.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pressure_is_read() {
        let text =
            "some avg10=12.50 avg60=1.00 avg300=0.10 total=9\nfull avg10=3.00 avg60=0 total=1\n";
        assert_eq!(some_avg10(text), Some(12.5));
        assert_eq!(some_avg10("full avg10=3.00\n"), None);
        assert_eq!(some_avg10(""), None);
    }
}
