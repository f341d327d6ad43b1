//! The tokens that are scored.
//!
//! Owns: reading texts and token ids, the cut into windows. Never: engines.
//! Invariant: a window has at least two tokens, of which the first is only context.

use crate::args::eval::EvalArgs;
use crate::exit::usage;
use crate::prompt::Words;
use crate::settings::Mode;
use anyhow::Context as _;
use cherenkov_format::Store;
use cherenkov_text::SpecialTokens;
use std::path::Path;

/// Texts as tokens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Texts(Vec<Vec<u32>>);

impl Texts {
    /// As the arguments say.
    ///
    /// # Errors
    /// When the file cannot be read, an id is none of the vocabulary, or there is nothing to predict.
    pub fn open(args: &EvalArgs, store: &Store) -> anyhow::Result<Self> {
        let mut texts = match (&args.text, &args.tokens) {
            (Some(path), _) => vec![tokenized(&read(path)?, args.special, store)?],
            (None, Some(path)) => ids(&read(path)?, store.config().vocab)
                .with_context(|| path.display().to_string())?,
            (None, None) => return Err(usage("nothing to score; expected --text or --tokens")),
        };
        limit(&mut texts, args.limit.unwrap_or(usize::MAX));
        let longest = texts.iter().map(Vec::len).max().unwrap_or(0);
        if longest < 2 {
            let path =
                args.text.as_ref().or(args.tokens.as_ref()).expect("checked above").display();
            return Err(usage(format!(
                "{path}: found a text of {longest} tokens, expected at least 2: the first is only context"
            )));
        }
        Ok(Self(texts))
    }

    /// What each engine sees at a time.
    pub fn windows(&self, tokens: usize) -> Vec<&[u32]> {
        // A single token predicts nothing.
        self.0.iter().flat_map(|text| text.chunks(tokens)).filter(|w| w.len() > 1).collect()
    }

    /// Checks that another store's tokenizer, if it has one, makes the same of the text.
    ///
    /// # Errors
    /// When it does not.
    pub fn check(&self, args: &EvalArgs, other: &Store) -> anyhow::Result<()> {
        let dir = other.dir().display();
        let Some(path) = args.text.as_ref().filter(|_| other.dir().join("tokenizer.json").exists())
        else {
            return Ok(());
        };
        let theirs = tokenized(&read(path)?, args.special, other)?;
        let ours = &self.0[0];
        if let Some(at) = (0..ours.len()).find(|&at| theirs.get(at) != Some(&ours[at])) {
            let theirs = theirs.get(at).map_or_else(|| "none".to_owned(), u32::to_string);
            return Err(usage(format!(
                "--against {dir}: token {at} of the text: found {theirs}, expected the model's {}; \
                 the vocabularies differ",
                ours[at]
            )));
        }
        Ok(())
    }
}

fn read(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

fn tokenized(text: &str, special: bool, store: &Store) -> anyhow::Result<Vec<u32>> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let specials = if special { SpecialTokens::Show } else { SpecialTokens::Hide };
    Ok(Words::open(store, &Mode::Raw(specials))?.raw(text, specials)?.ids)
}

/// Lines of ids.
fn ids(text: &str, vocab: usize) -> anyhow::Result<Vec<Vec<u32>>> {
    let mut texts = Vec::new();
    for (line, words) in text.lines().enumerate() {
        let id = |word: &str| {
            let id = word.parse().ok().filter(|&id: &u32| (id as usize) < vocab);
            id.ok_or_else(|| {
                usage(format!(
                    "line {}: found `{word}`, expected a token id below {vocab}",
                    line + 1
                ))
            })
        };
        texts.push(words.split_whitespace().map(id).collect::<anyhow::Result<Vec<_>>>()?);
    }
    Ok(texts)
}

/// Keeps the first `most` tokens of all texts together.
fn limit(texts: &mut Vec<Vec<u32>>, most: usize) {
    let mut left = most;
    for text in texts.iter_mut() {
        text.truncate(left);
        left -= text.len();
    }
    texts.retain(|text| !text.is_empty());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_ids_are_parsed_or_refused() {
        assert_eq!(ids("1 2\n\n  3\t9\n", 10).unwrap(), [vec![1, 2], vec![], vec![3, 9]]);
        for (bad, words) in [("1 2\n3 10", "line 2: found `10`"), ("-1", "`-1`"), ("a", "below 10")]
        {
            let error = ids(bad, 10).unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
        }
    }

    #[test]
    fn windows_predict_something() {
        let texts = Texts(vec![vec![1, 2, 3, 4, 5], vec![6], vec![7, 8]]);
        let windows = texts.windows(2);
        assert_eq!(windows, [&[1, 2][..], &[3, 4], &[7, 8]]);
        assert_eq!(texts.windows(9), [&[1, 2, 3, 4, 5][..], &[7, 8]]);
    }

    #[test]
    fn the_limit_is_for_all_texts_together() {
        let texts = vec![vec![1, 2, 3], vec![4, 5], vec![6]];
        let limited = |most| {
            let mut texts = texts.clone();
            limit(&mut texts, most);
            texts
        };
        assert_eq!(limited(4), [vec![1, 2, 3], vec![4]]);
        assert_eq!(limited(3), [vec![1, 2, 3]]);
        assert_eq!(limited(usize::MAX), texts);
    }
}
