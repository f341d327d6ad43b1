//! Which of its records an expert is held as.
//!
//! Owns: the names of the two precisions that a run may mix, and their layouts.
//! Never: when which one is read (see `late`).

use crate::source::Source;
use cherenkov_format::RecordLayout;

/// One of an expert's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Grade {
    /// At the precision of the run.
    #[default]
    Full,
    /// At the lower precision for misses.
    Low,
}

/// The layouts of records at each grade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layouts {
    /// Of [`Grade::Full`]; slots have this size.
    pub full: RecordLayout,
    /// Of [`Grade::Low`], if such records are ever read; not larger.
    pub low: Option<RecordLayout>,
}

impl Layouts {
    /// Those of a source.
    pub fn of_source(source: &(impl Source + ?Sized)) -> Self {
        Self { full: *source.layout(), low: source.low().copied() }
    }

    /// The layout at one grade.
    ///
    /// # Panics
    /// For [`Grade::Low`] when there is none.
    pub fn of(&self, grade: Grade) -> &RecordLayout {
        match grade {
            Grade::Full => &self.full,
            Grade::Low => self.low.as_ref().expect("records of a low grade have a layout"),
        }
    }
}

impl From<RecordLayout> for Layouts {
    fn from(full: RecordLayout) -> Self {
        Self { full, low: None }
    }
}
