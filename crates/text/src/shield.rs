//! Owns: the marks that keep control-token text inside content from becoming control tokens.
//! Never: the template; what a mark stands for is decided here and undone in `prompt`.
//! Invariants: a mark is a private-use character found nowhere in the conversation or the template; each mark
//! stands for one literal; text between marks holds no whole control token, nor one begun at its end.

use std::collections::{HashMap, HashSet};

use serde_json::Value as Json;

use crate::error::{Error, Result};
use crate::tokenizer::{Form, Piece, Tokenizer};

/// The supplementary private-use planes, without their noncharacters.
const PRIVATE: [std::ops::RangeInclusive<u32>; 2] = [0xF_0000..=0xF_FFFD, 0x10_0000..=0x10_FFFD];

/// Which control-token text is hidden.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Hide {
    /// All of it.
    All,
    /// All but the think tags, which templates look for in old answers.
    AllButThinking,
}

/// Marks handed out for one rendering.
pub(crate) struct Shield<'t> {
    tokenizer: &'t Tokenizer,
    taken: HashSet<u32>,
    next: u32,
    marks: HashMap<String, char>,
    exhausted: bool,
}

fn is_private(c: char) -> bool {
    PRIVATE.iter().any(|range| range.contains(&u32::from(c)))
}

impl<'t> Shield<'t> {
    pub(crate) fn new(tokenizer: &'t Tokenizer) -> Self {
        Self {
            tokenizer,
            taken: HashSet::new(),
            next: *PRIVATE[0].start(),
            marks: HashMap::new(),
            exhausted: false,
        }
    }

    /// Notes the private characters of a text, so that none of them becomes a mark.
    pub(crate) fn reserve(&mut self, text: &str) {
        let private = text.chars().filter(|c| is_private(*c));
        self.taken.extend(private.map(u32::from));
    }

    /// Notes the private characters of every string of a value.
    pub(crate) fn reserve_json(&mut self, value: &Json) {
        match value {
            Json::String(text) => self.reserve(text),
            Json::Array(items) => items.iter().for_each(|item| self.reserve_json(item)),
            Json::Object(map) => {
                for (key, item) in map {
                    self.reserve(key);
                    self.reserve_json(item);
                }
            }
            _ => {}
        }
    }

    /// The text with a mark in place of every control token in it.
    pub(crate) fn hide(&mut self, text: &str, hide: Hide) -> String {
        let mut out = String::with_capacity(text.len());
        for piece in self.tokenizer.pieces(text, Form::Raw) {
            match piece {
                Piece::Control(token, _) => self.hide_token(&token, hide, &mut out),
                Piece::Text(part) => {
                    // Some tokens come about only when the text is normalised; it is then kept in that form.
                    let normal = self.tokenizer.pieces(&part, Form::Normal);
                    if !normal.iter().any(|piece| matches!(piece, Piece::Control(..))) {
                        out.push_str(&part);
                        continue;
                    }
                    for piece in normal {
                        match piece {
                            Piece::Control(token, _) => self.hide_token(&token, hide, &mut out),
                            Piece::Text(part) => out.push_str(&part),
                        }
                    }
                }
            }
        }
        self.hide_begun(&mut out);
        out
    }

    fn hide_token(&mut self, token: &str, hide: Hide, out: &mut String) {
        // A token may claim the white space around it: leave that to the template's trim.
        let literal = token.trim();
        let at = token.find(literal).unwrap_or(0);
        out.push_str(&token[..at]);
        if hide == Hide::AllButThinking && is_think_tag(literal) {
            out.push_str(literal);
        } else {
            out.push(self.mark(literal));
        }
        out.push_str(&token[at + literal.len()..]);
    }

    /// Hides the first character of a control token that the text begins but does not finish: the template may
    /// write the missing end right after it.
    fn hide_begun(&mut self, text: &mut String) {
        let trimmed = text.trim_end().len();
        for end in [text.len(), trimmed] {
            let head = &text[..end];
            let begun =
                self.tokenizer.control_texts().filter_map(|token| begun_len(head, token)).max();
            let Some(len) = begun else { continue };
            let start = end - len;
            let Some(first) = text[start..].chars().next() else {
                continue;
            };
            let mark = self.mark(first.encode_utf8(&mut [0; 4]));
            text.replace_range(start..start + first.len_utf8(), mark.encode_utf8(&mut [0; 4]));
            return;
        }
    }

    /// The value with every string and key hidden.
    pub(crate) fn hide_json(&mut self, value: &Json) -> Json {
        match value {
            Json::String(text) => Json::String(self.hide(text, Hide::All)),
            Json::Array(items) => items.iter().map(|item| self.hide_json(item)).collect(),
            Json::Object(map) => map
                .iter()
                .map(|(key, item)| (self.hide(key, Hide::All), self.hide_json(item)))
                .collect(),
            other => other.clone(),
        }
    }

    fn mark(&mut self, literal: &str) -> char {
        if let Some(mark) = self.marks.get(literal) {
            return *mark;
        }
        while self.taken.contains(&self.next) {
            self.next += 1;
        }
        match char::from_u32(self.next).filter(|c| is_private(*c)) {
            Some(mark) => {
                self.taken.insert(self.next);
                self.marks.insert(literal.to_owned(), mark);
                mark
            }
            // U+FFFFE and U+FFFFF stand between the two planes.
            None if self.next < *PRIVATE[1].start() => {
                self.next = *PRIVATE[1].start();
                self.mark(literal)
            }
            None => {
                self.exhausted = true;
                '\u{FFFD}'
            }
        }
    }

    /// What each mark stands for.
    pub(crate) fn literals(self) -> Result<Vec<(char, String)>> {
        if self.exhausted {
            return Err(Error::NoPrivateCodePoint);
        }
        Ok(self.marks.into_iter().map(|(text, c)| (c, text)).collect())
    }
}

fn is_think_tag(literal: &str) -> bool {
    matches!(literal, "<think>" | "</think>")
}

/// Length of the longest proper beginning of `token` that ends `text`.
fn begun_len(text: &str, token: &str) -> Option<usize> {
    let cuts = token.char_indices().map(|(at, _)| at).skip(1);
    cuts.filter(|len| text.ends_with(&token[..*len])).max()
}
