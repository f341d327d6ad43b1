//! Owns: stop strings over a stream of text.
//! Never: tokens or markup.
//! Invariants: text is held back only while it is the real beginning of a stop string; every split of the text
//! gives the same output; the stop string whose end comes first wins, the longest of those.

use crate::error::{Error, Result};

/// What one more chunk of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopOutput {
    /// Text that may be passed on.
    pub text: String,
    /// The stop string that was met (its place in the list); all later text is ignored.
    pub stopped: Option<usize>,
}

/// A matcher of stop strings.
#[derive(Debug, Clone, Default)]
pub struct StopStrings {
    stops: Vec<String>,
    held: String,
    stopped: Option<usize>,
}

impl StopStrings {
    /// A matcher of these strings, none of them empty.
    pub fn new(stops: Vec<String>) -> Result<Self> {
        if let Some(index) = stops.iter().position(String::is_empty) {
            return Err(Error::EmptyStop { index });
        }
        Ok(Self { stops, held: String::new(), stopped: None })
    }

    /// Takes one chunk.
    pub fn push(&mut self, chunk: &str) -> StopOutput {
        if self.stopped.is_some() {
            return self.output(String::new());
        }
        self.held.push_str(chunk);
        if let Some((start, index)) = self.first_match() {
            self.stopped = Some(index);
            self.held.truncate(start);
            let text = std::mem::take(&mut self.held);
            return self.output(text);
        }
        let free = self.held.len() - self.begun_len();
        let rest = self.held.split_off(free);
        let text = std::mem::replace(&mut self.held, rest);
        self.output(text)
    }

    /// Ends the text: what was held back was no stop string after all.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    fn output(&self, text: String) -> StopOutput {
        StopOutput { text, stopped: self.stopped }
    }

    fn first_match(&self) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let start = self.held.find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (start, index))
    }

    /// Length of the longest end of the held text that begins a stop string.
    fn begun_len(&self) -> usize {
        let longest = self.stops.iter().filter_map(|stop| {
            let cuts = stop.char_indices().map(|(at, _)| at).skip(1);
            cuts.filter(|len| self.held.ends_with(&stop[..*len])).max()
        });
        longest.max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], chunks: &[&str]) -> (String, Option<usize>) {
        let mut matcher =
            StopStrings::new(stops.iter().map(|s| (*s).to_owned()).collect()).unwrap();
        let mut text = String::new();
        for chunk in chunks {
            text.push_str(&matcher.push(chunk).text);
        }
        text.push_str(&matcher.finish());
        (text, matcher.stopped)
    }

    #[test]
    fn stops_over_chunk_edges() {
        assert_eq!(run(&["END"], &["abE", "N", "Dxyz"]), ("ab".into(), Some(0)));
        assert_eq!(run(&["END"], &["abE", "N"]), ("abEN".into(), None));
        assert_eq!(run(&["aab"], &["aa", "ab"]), ("a".into(), Some(0)));
        assert_eq!(run(&["abcd", "bc"], &["abcd"]), ("a".into(), Some(1)));
        assert_eq!(run(&["bc", "abc"], &["abc"]), (String::new(), Some(1)));
        assert_eq!(run(&["né"], &["n", "é"]), (String::new(), Some(0)));
        assert_eq!(run(&[], &["a", "b"]), ("ab".into(), None));
        assert!(StopStrings::new(vec!["a".into(), String::new()]).is_err());
    }

    #[test]
    fn only_real_beginnings_are_held() {
        let mut matcher = StopStrings::new(vec!["<|stop|>".into()]).unwrap();
        assert_eq!(matcher.push("a <| b").text, "a <| b");
        assert_eq!(matcher.push("c <|st").text, "c ");
        assert_eq!(matcher.push("x").text, "<|stx");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_same(text in "[abé]{0,24}", stops in prop::collection::vec("[abé]{1,4}", 0..3),
            cut in prop::collection::vec(any::<bool>(), 80)) {
            let stops: Vec<&str> = stops.iter().map(String::as_str).collect();
            let chunks: Vec<&str> = crate::output::tests_support::split(&text, &cut);
            prop_assert_eq!(run(&stops, &[&text]), run(&stops, &chunks));
        }
    }
}
