//! Recorded routes: which experts each row of each pass was routed to.
//!
//! Owns: the text form of traces. Never: recording (a decorator of the device does), replaying.
//!
//! The file is text, so that other tools can write and read it:
//!
//! ```text
//! cherenkov-routes 1
//! layers 9 experts 48
//! 0 4 1 7 22 40 3 7 9 11
//! ```
//!
//! After the two lines of the header each line is one visit of one layer by one pass: the layer, the
//! experts per row, then the experts of the first row, of the second row, and so on.

use std::fmt::Write as _;

/// Name and version in the first line.
const HEAD: &str = "cherenkov-routes 1";

/// One visit of one layer by one pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routed {
    /// The layer; the draft head's comes after the trunk's.
    pub layer: u32,
    /// Experts per row.
    pub k: usize,
    /// Their ids, row by row.
    pub ids: Vec<u32>,
}

/// The visits of some passes, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Layers with experts.
    pub layers: usize,
    /// Experts of a layer.
    pub per_layer: usize,
    /// What happened.
    pub visits: Vec<Routed>,
}

/// A trace that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: found `{found}`, expected {expected}; record the trace again")]
pub struct BadTrace {
    /// Counted from 1.
    pub line: usize,
    /// The line, or the part of it that is wrong.
    pub found: String,
    /// What would be right.
    pub expected: &'static str,
}

impl Trace {
    /// An empty trace of a model of this shape.
    pub fn new((layers, per_layer): (usize, usize)) -> Self {
        Self { layers, per_layer, visits: Vec::new() }
    }

    /// Rows of the visits of one layer.
    pub fn rows(&self, layer: u32) -> usize {
        let of_layer = self.visits.iter().filter(|v| v.layer == layer && v.k > 0);
        of_layer.map(|v| v.ids.len() / v.k).sum()
    }

    /// The text form.
    pub fn to_text(&self) -> String {
        let mut text = format!("{HEAD}\nlayers {} experts {}\n", self.layers, self.per_layer);
        for visit in &self.visits {
            let _ = write!(text, "{} {}", visit.layer, visit.k);
            for id in &visit.ids {
                let _ = write!(text, " {id}");
            }
            text.push('\n');
        }
        text
    }

    /// Reads the text form.
    ///
    /// # Errors
    /// With the first line that is wrong.
    pub fn parse(text: &str) -> Result<Self, BadTrace> {
        let bad =
            |line, found: &str, expected| BadTrace { line, found: found.to_owned(), expected };
        let mut lines = text.lines();
        let head = lines.next().unwrap_or_default();
        if head != HEAD {
            return Err(bad(1, head, "cherenkov-routes 1"));
        }
        let shape = lines.next().unwrap_or_default();
        let words: Vec<&str> = shape.split(' ').collect();
        let sizes = match words[..] {
            ["layers", layers, "experts", experts] => layers.parse().ok().zip(experts.parse().ok()),
            _ => None,
        };
        let sizes: Option<(usize, usize)> = sizes.filter(|(l, e)| *l > 0 && *e > 0);
        let Some(sizes) = sizes else { return Err(bad(2, shape, "layers N experts N")) };
        let mut trace = Self::new(sizes);
        for (at, line) in lines.enumerate() {
            let visit = visit(line, sizes);
            let expected =
                "a layer, experts per row, and as many ids per row, all within the model";
            trace.visits.push(visit.ok_or_else(|| bad(at + 3, line, expected))?);
        }
        Ok(trace)
    }
}

fn visit(line: &str, (layers, per_layer): (usize, usize)) -> Option<Routed> {
    let mut words = line.split(' ').map(str::parse::<u32>);
    let layer = words.next()?.ok().filter(|&l| (l as usize) < layers)?;
    let k = words.next()?.ok()? as usize;
    let ids: Vec<u32> = words.collect::<Result<_, _>>().ok()?;
    let whole = k > 0 && ids.len().is_multiple_of(k) && !ids.is_empty();
    (whole && ids.iter().all(|&id| (id as usize) < per_layer)).then_some(Routed { layer, k, ids })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_form_holds_everything() {
        let visits = vec![
            Routed { layer: 0, k: 2, ids: vec![1, 4, 0, 3] },
            Routed { layer: 1, k: 1, ids: vec![4] },
        ];
        let trace = Trace { layers: 2, per_layer: 5, visits };
        let text = trace.to_text();
        assert_eq!(text, "cherenkov-routes 1\nlayers 2 experts 5\n0 2 1 4 0 3\n1 1 4\n");
        assert_eq!(Trace::parse(&text), Ok(trace.clone()));
        assert_eq!((trace.rows(0), trace.rows(1)), (2, 1));
    }

    #[test]
    fn a_wrong_line_is_named() {
        let good = "cherenkov-routes 1\nlayers 2 experts 5\n";
        for (text, line) in [
            ("", 1),
            ("cherenkov-routes 2\n", 1),
            ("cherenkov-routes 1\nlayers 0 experts 5\n", 2),
            ("cherenkov-routes 1\nlayers 2\n", 2),
            (&format!("{good}0 1 1\n2 1 0\n"), 4),
            (&format!("{good}0 1 5\n"), 3),
            (&format!("{good}0 2 1\n"), 3),
            (&format!("{good}0 0\n"), 3),
            (&format!("{good}0 1 x\n"), 3),
            (&format!("{good}\n"), 3),
        ] {
            assert_eq!(Trace::parse(text).unwrap_err().line, line, "{text}");
        }
    }
}
