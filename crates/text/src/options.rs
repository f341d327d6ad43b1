//! Owns: what a request may ask of a template, folded to what templates know.
//! Never: messages.
//! Invariant: both spellings of a control (its own field, or a template argument) render the same bytes; two
//! different values are an error.

use serde_json::{Map, Value};

use crate::clock::LocalTime;
use crate::error::{Error, Result};

/// How much the model should think: the rungs that templates know, and none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Effort {
    /// Thinking off.
    None,
    /// Little.
    Low,
    /// Some.
    Medium,
    /// Much.
    Xhigh,
}

impl Effort {
    /// Folds the names that clients use to a rung.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "none" => Ok(Self::None),
            "minimal" | "low" => Ok(Self::Low),
            "medium" => Ok(Self::Medium),
            "high" | "xhigh" | "max" => Ok(Self::Xhigh),
            other => Err(Error::UnknownEffort { found: other.to_owned() }),
        }
    }

    /// The rung's name, as templates spell it.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::Xhigh => "xhigh",
        }
    }
}

/// Whether the prompt ends by opening the assistant's turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum GenerationPrompt {
    /// It does: the model answers.
    #[default]
    Add,
    /// It does not: the conversation stands for itself.
    Omit,
}

/// What a request asks of the template.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RenderOptions {
    /// Thinking on or off; absent: as the template likes.
    pub thinking: Option<bool>,
    /// Effort; absent: as the template likes.
    pub effort: Option<Effort>,
    /// Whether old reasoning stays in the prompt; absent: as the template likes.
    pub preserve_thinking: Option<bool>,
    /// Whether the prompt opens the assistant's turn.
    pub generation_prompt: GenerationPrompt,
    /// Further template arguments; those that have a field above are folded into it.
    pub extra: Map<String, Value>,
    /// Time for templates that print the date.
    pub now: Option<LocalTime>,
}

impl RenderOptions {
    /// Moves template arguments that have a field into that field, and settles effort against thinking.
    pub fn fold(mut self) -> Result<Self> {
        if let Some(value) = self.extra.shift_remove("enable_thinking") {
            self.thinking =
                merge("enable_thinking", self.thinking, flag("enable_thinking", &value)?)?;
        }
        if let Some(value) = self.extra.shift_remove("preserve_thinking") {
            let given = flag("preserve_thinking", &value)?;
            self.preserve_thinking = merge("preserve_thinking", self.preserve_thinking, given)?;
        }
        if let Some(value) = self.extra.shift_remove("reasoning_effort") {
            let given = match &value {
                Value::Null => None,
                Value::String(name) => Some(Effort::parse(name)?),
                other => {
                    return Err(Error::BadArgument {
                        name: "reasoning_effort",
                        found: other.to_string(),
                        expected: "a string",
                    });
                }
            };
            self.effort = merge("reasoning_effort", self.effort, given)?;
        }
        if self.effort == Some(Effort::None) {
            if self.thinking == Some(true) {
                return Err(Error::Contradiction {
                    name: "thinking",
                    first: "enable_thinking true".into(),
                    second: "reasoning_effort none".into(),
                });
            }
            self.thinking = Some(false);
        }
        Ok(self)
    }
}

fn flag(name: &'static str, value: &Value) -> Result<Option<bool>> {
    match value {
        Value::Null => Ok(None),
        Value::Bool(given) => Ok(Some(*given)),
        other => {
            Err(Error::BadArgument { name, found: other.to_string(), expected: "true or false" })
        }
    }
}

fn merge<T: PartialEq + std::fmt::Debug>(
    name: &'static str,
    field: Option<T>,
    given: Option<T>,
) -> Result<Option<T>> {
    match (field, given) {
        (Some(first), Some(second)) if first != second => Err(Error::Contradiction {
            name,
            first: format!("{first:?}").to_lowercase(),
            second: format!("{second:?}").to_lowercase(),
        }),
        (first, second) => Ok(first.or(second)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn options(extra: Value) -> RenderOptions {
        let Value::Object(extra) = extra else { unreachable!("tests pass objects") };
        RenderOptions { extra, ..Default::default() }
    }

    #[test]
    fn efforts_fold_to_known_rungs() {
        let cases = [
            ("none", Effort::None),
            ("minimal", Effort::Low),
            ("low", Effort::Low),
            ("medium", Effort::Medium),
            ("high", Effort::Xhigh),
            ("xhigh", Effort::Xhigh),
            ("max", Effort::Xhigh),
        ];
        for (name, rung) in cases {
            assert_eq!(Effort::parse(name).unwrap(), rung);
        }
        let error = Effort::parse("huge").unwrap_err().to_string();
        assert_eq!(
            error,
            "unknown reasoning effort `huge`; expected none, minimal, low, medium, high, xhigh or max"
        );
    }

    #[test]
    fn arguments_move_into_their_fields() {
        let folded = options(json!({
            "enable_thinking": true, "reasoning_effort": "high", "preserve_thinking": false, "mood": "calm"
        }));
        let folded = folded.fold().unwrap();
        assert_eq!(folded.thinking, Some(true));
        assert_eq!(folded.effort, Some(Effort::Xhigh));
        assert_eq!(folded.preserve_thinking, Some(false));
        assert_eq!(Value::Object(folded.extra), json!({"mood": "calm"}));
    }

    #[test]
    fn effort_none_is_thinking_off() {
        let folded = options(json!({"reasoning_effort": "none"})).fold().unwrap();
        assert_eq!(folded.thinking, Some(false));
    }

    #[test]
    fn contradictions_are_refused_and_repetitions_are_not() {
        let mut twice = options(json!({"enable_thinking": false}));
        twice.thinking = Some(false);
        assert_eq!(twice.clone().fold().unwrap().thinking, Some(false));
        twice.thinking = Some(true);
        assert!(matches!(twice.fold(), Err(Error::Contradiction { .. })));
        let mut effort = options(json!({"reasoning_effort": "low"}));
        effort.effort = Some(Effort::Xhigh);
        assert!(matches!(effort.fold(), Err(Error::Contradiction { .. })));
        let none = options(json!({"reasoning_effort": "none", "enable_thinking": true}));
        assert!(matches!(none.fold(), Err(Error::Contradiction { .. })));
        assert!(options(json!({"enable_thinking": "yes"})).fold().is_err());
        assert!(options(json!({"reasoning_effort": 3})).fold().is_err());
    }
}
