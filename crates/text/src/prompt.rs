//! Owns: a rendered prompt that remembers which control-token text is content.
//! Never: rendering or tokens.
//! Invariant: marks are resolved in exactly one place, `put_back`.

use std::borrow::Cow;

use crate::tokenizer::{Form, Piece, Tokenizer};

/// Where the model's output begins, read from the end of a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Inside a think block that the prompt left open.
    Reasoning,
    /// Outside any think block.
    Content,
}

/// A rendered prompt. Encode it with `Tokenizer::encode_prompt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    marked: String,
    literals: Vec<(char, String)>,
    start: Start,
}

impl Prompt {
    /// A prompt of trusted text: control-token text in it becomes control tokens.
    pub fn trusted(text: impl Into<String>, tokenizer: &Tokenizer) -> Self {
        Self::new(text.into(), Vec::new(), tokenizer)
    }

    pub(crate) fn new(
        marked: String,
        literals: Vec<(char, String)>,
        tokenizer: &Tokenizer,
    ) -> Self {
        let start = start_of(&marked, tokenizer);
        Self { marked, literals, start }
    }

    /// The prompt as people read it.
    pub fn text(&self) -> Cow<'_, str> {
        self.put_back(&self.marked)
    }

    /// State in which the model's output begins (never taken from a request's flags).
    pub fn start(&self) -> Start {
        self.start
    }

    /// Number of different control-token texts that are content here.
    pub fn hidden_texts(&self) -> usize {
        self.literals.len()
    }

    pub(crate) fn marked(&self) -> &str {
        &self.marked
    }

    /// The part of the prompt with its marks resolved.
    pub(crate) fn put_back<'a>(&self, part: &'a str) -> Cow<'a, str> {
        let literal = |c: char| self.literals.iter().find(|(mark, _)| *mark == c);
        if self.literals.is_empty() || !part.chars().any(|c| literal(c).is_some()) {
            return Cow::Borrowed(part);
        }
        let mut out = String::with_capacity(part.len() + 16);
        for c in part.chars() {
            match literal(c) {
                Some((_, text)) => out.push_str(text),
                None => out.push(c),
            }
        }
        Cow::Owned(out)
    }
}

/// Looks at what follows the last turn marker: an open think tag there, or none.
fn start_of(marked: &str, tokenizer: &Tokenizer) -> Start {
    let mut open = false;
    for piece in tokenizer.pieces(marked, Form::Normal) {
        if let Piece::Control(token, id) = piece {
            match token.trim() {
                "<think>" => open = true,
                "</think>" => open = false,
                _ if tokenizer.is_special(id) => open = false,
                _ => {}
            }
        }
    }
    if open { Start::Reasoning } else { Start::Content }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_put_back() {
        let prompt = Prompt {
            marked: "a\u{F0000}b".into(),
            literals: vec![('\u{F0000}', "<x>".into())],
            start: Start::Content,
        };
        assert_eq!(prompt.text(), "a<x>b");
        assert_eq!(prompt.put_back("ab"), "ab");
    }
}
