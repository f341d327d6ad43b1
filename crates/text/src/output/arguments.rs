//! Owns: the inside of one tool call, from `<function=NAME>` to its end.
//! Never: reasoning and content around it.
//! Invariants: what a tag means depends on the text alone, never on how it was cut; a broken parameter element is
//! skipped whole, so partial and final arguments have the same keys; the JSON is closed exactly once.

use super::schema::ToolSchemas;
use super::value::ValueWriter;
use crate::python::push_json_char;

pub(super) const CALL_OPEN: &str = "<tool_call>";
pub(super) const CALL_CLOSE: &str = "</tool_call>";
pub(super) const FUNCTION_OPEN: &str = "<function=";
pub(super) const FUNCTION_CLOSE: &str = "</function>";
const PARAMETER_OPEN: &str = "<parameter=";
const PARAMETER_CLOSE: &str = "</parameter>";

/// Close tags that end a value, each with the tags that must follow it: text of a value may quote the first alone.
const VALUE_ENDS: [(&str, &[&str]); 3] = [
    (PARAMETER_CLOSE, &["<parameter", FUNCTION_CLOSE, CALL_CLOSE, CALL_OPEN]),
    (FUNCTION_CLOSE, &[CALL_CLOSE, FUNCTION_OPEN, CALL_OPEN]),
    (CALL_CLOSE, &[CALL_OPEN]),
];

/// Whether more text may still come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Input {
    More,
    Ended,
}

/// What one step over the waiting text came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// Some text was used up: step again.
    Again,
    /// More text is needed.
    Wait,
    /// The call ended; its last tag, if any, is still waiting.
    Done,
}

/// A call whose function is known.
#[derive(Debug, Clone)]
pub(super) struct Call {
    function: String,
    keys: Vec<String>,
    value: Option<Value>,
}

#[derive(Debug, Clone)]
enum Value {
    Written(ValueWriter),
    /// The value of a key that was given before: only the first counts.
    Repeated,
}

/// Reads a name up to `>`: `Ok(None)` while it may go on, `Err` when it can be none.
pub(super) fn read_name(text: &str, input: Input) -> Result<Option<(&str, usize)>, ()> {
    match text.find(|c: char| c == '>' || c == '<' || c.is_whitespace()) {
        Some(at) if text[at..].starts_with('>') => {
            // A stray equals sign belongs to the tag, not to the name.
            let name = text[..at].trim_matches('=');
            if name.is_empty() { Err(()) } else { Ok(Some((name, at + 1))) }
        }
        None if input == Input::More => Ok(None),
        _ => Err(()),
    }
}

impl Call {
    /// The call of a function; its arguments' opening brace is written at once.
    pub(super) fn new(function: &str, json: &mut String) -> Self {
        json.push('{');
        Self { function: function.to_owned(), keys: Vec::new(), value: None }
    }

    /// Uses up some of the waiting text.
    pub(super) fn step(
        &mut self,
        waiting: &mut String,
        input: Input,
        schemas: &ToolSchemas,
        json: &mut String,
    ) -> Step {
        match self.value {
            Some(_) => self.step_value(waiting, input, json),
            None => self.step_between(waiting, input, schemas, json),
        }
    }

    /// Closes whatever is open.
    pub(super) fn close(&mut self, json: &mut String) {
        self.end_value(json);
        json.push('}');
    }

    fn end_value(&mut self, json: &mut String) {
        if let Some(Value::Written(writer)) = self.value.take() {
            writer.finish(json);
        }
    }

    fn step_between(
        &mut self,
        waiting: &mut String,
        input: Input,
        schemas: &ToolSchemas,
        json: &mut String,
    ) -> Step {
        let blank = waiting.len() - waiting.trim_start().len();
        waiting.drain(..blank);
        if waiting.is_empty() {
            return Step::Wait;
        }
        if [FUNCTION_CLOSE, CALL_CLOSE, CALL_OPEN].iter().any(|tag| waiting.starts_with(tag)) {
            return Step::Done;
        }
        if let Some(rest) = waiting.strip_prefix(PARAMETER_OPEN) {
            match read_name(rest, input) {
                Ok(None) => return Step::Wait,
                Ok(Some((name, len))) => {
                    let name = name.to_owned();
                    waiting.drain(..PARAMETER_OPEN.len() + len);
                    self.open_value(name, schemas, json);
                    return Step::Again;
                }
                Err(()) => {}
            }
        } else if input == Input::More {
            let tags = [FUNCTION_CLOSE, CALL_CLOSE, CALL_OPEN, PARAMETER_OPEN];
            if tags.iter().any(|tag| tag.starts_with(waiting.as_str())) {
                return Step::Wait;
            }
        }
        skip_junk(waiting);
        Step::Again
    }

    fn open_value(&mut self, key: String, schemas: &ToolSchemas, json: &mut String) {
        if self.keys.contains(&key) {
            self.value = Some(Value::Repeated);
            return;
        }
        if !self.keys.is_empty() {
            json.push_str(", ");
        }
        json.push('"');
        key.chars().for_each(|c| push_json_char(c, json));
        json.push_str("\": ");
        let types = schemas.types(&self.function, &key);
        self.value = Some(Value::Written(ValueWriter::new(types, json)));
        self.keys.push(key);
    }

    fn step_value(&mut self, waiting: &mut String, input: Input, json: &mut String) -> Step {
        let found = find_end(waiting, input);
        let (text_len, used) = match found {
            Found::End { at, resume } => (at, resume),
            Found::Open { safe } => (safe, safe),
        };
        if let Some(Value::Written(writer)) = &mut self.value {
            writer.push(&waiting[..text_len], json);
        }
        waiting.drain(..used);
        match found {
            Found::End { .. } => {
                self.end_value(json);
                Step::Again
            }
            Found::Open { .. } => Step::Wait,
        }
    }
}

/// Drops one character and everything up to the next tag.
fn skip_junk(waiting: &mut String) {
    let first = waiting.chars().next().map_or(0, char::len_utf8);
    let next = waiting[first..].find('<').map_or(waiting.len(), |at| first + at);
    waiting.drain(..next);
}

enum Found {
    /// The value ends at `at`; reading goes on at `resume`.
    End { at: usize, resume: usize },
    /// The value goes on; text up to `safe` surely belongs to it.
    Open { safe: usize },
}

enum Verdict {
    End,
    Undecided,
    Text,
}

fn find_end(text: &str, input: Input) -> Found {
    for (at, _) in text.match_indices('<') {
        for (tag, followers) in VALUE_ENDS {
            match judge(&text[at..], tag, followers, input) {
                Verdict::Text => {}
                Verdict::Undecided => return Found::Open { safe: at },
                Verdict::End if tag == PARAMETER_CLOSE => {
                    return Found::End { at, resume: at + tag.len() };
                }
                Verdict::End => return Found::End { at, resume: at },
            }
        }
    }
    Found::Open { safe: text.len() }
}

fn judge(text: &str, tag: &str, followers: &[&str], input: Input) -> Verdict {
    let Some(rest) = text.strip_prefix(tag) else {
        let begun = input == Input::More && tag.starts_with(text);
        return if begun { Verdict::Undecided } else { Verdict::Text };
    };
    let rest = rest.trim_start();
    if followers.iter().any(|follower| rest.starts_with(follower)) {
        return Verdict::End;
    }
    // An empty rest begins every follower.
    if !followers.iter().any(|follower| follower.starts_with(rest)) {
        return Verdict::Text;
    }
    match input {
        Input::More => Verdict::Undecided,
        Input::Ended => Verdict::End,
    }
}
