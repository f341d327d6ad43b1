//! Owns: messages as the rest of the program knows them, and their normal form.
//! Never: wire types.
//! Invariant: a normal conversation has at most one system turn, at its head, and at least one user turn.

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Role {
    /// Standing instructions.
    System,
    /// Standing instructions, under the name newer clients use.
    Developer,
    /// The person.
    User,
    /// The model.
    Assistant,
    /// The result of a tool.
    Tool,
}

impl Role {
    /// The role of this name.
    pub fn parse(name: &str) -> Result<Self> {
        match name {
            "system" => Ok(Self::System),
            "developer" => Ok(Self::Developer),
            "user" => Ok(Self::User),
            "assistant" => Ok(Self::Assistant),
            "tool" => Ok(Self::Tool),
            other => Err(Error::UnknownRole { found: other.to_owned() }),
        }
    }

    /// The name of the role.
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }

    fn instructs(self) -> bool {
        matches!(self, Self::System | Self::Developer)
    }
}

/// A call of a tool by the model.
#[derive(Debug, Clone, PartialEq)]
pub struct ToolCall {
    /// Id that the result refers to.
    pub id: Option<String>,
    /// Name of the function.
    pub name: String,
    /// Arguments, normally an object; the order of its keys is kept.
    pub arguments: Value,
}

impl ToolCall {
    /// A call without an id.
    pub fn new(name: impl Into<String>, arguments: Map<String, Value>) -> Self {
        Self { id: None, name: name.into(), arguments: Value::Object(arguments) }
    }
}

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// Its text; empty when there is none.
    pub content: String,
    /// Reasoning of an assistant's message, when it is known apart from the content.
    pub reasoning: Option<String>,
    /// Calls of an assistant's message.
    pub tool_calls: Vec<ToolCall>,
    /// Name of the author or of the tool.
    pub name: Option<String>,
    /// Call that a tool's message answers.
    pub tool_call_id: Option<String>,
}

impl Message {
    /// A message of text alone.
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self {
            role,
            content: content.into(),
            reasoning: None,
            tool_calls: Vec::new(),
            name: None,
            tool_call_id: None,
        }
    }

    /// The same message with reasoning.
    #[must_use]
    pub fn with_reasoning(mut self, reasoning: impl Into<String>) -> Self {
        self.reasoning = Some(reasoning.into());
        self
    }

    /// The same message with one more tool call.
    #[must_use]
    pub fn with_call(mut self, call: ToolCall) -> Self {
        self.tool_calls.push(call);
        self
    }
}

/// Messages and the tools offered with them.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conversation {
    /// The messages in order.
    pub messages: Vec<Message>,
    /// Definitions of tools as JSON, in the form the model was trained on.
    pub tools: Vec<Value>,
}

impl Conversation {
    /// A conversation without tools.
    pub fn new(messages: Vec<Message>) -> Self {
        Self { messages, tools: Vec::new() }
    }

    /// The same conversation with one system turn at its head, which holds all system and developer messages in
    /// order. Templates raise on late or repeated ones and on a conversation without a user; clients send both.
    pub fn normalise(mut self) -> Result<Self> {
        if !self.messages.iter().any(|m| m.role == Role::User) {
            return Err(Error::NoUserTurn { messages: self.messages.len() });
        }
        let (system, mut rest): (Vec<_>, Vec<_>) =
            self.messages.into_iter().partition(|m| m.role.instructs());
        let head = match <[Message; 1]>::try_from(system) {
            Ok([only]) => Some(only),
            Err(many) if many.is_empty() => None,
            Err(many) => {
                let texts = many.iter().map(|m| m.content.trim());
                let texts: Vec<_> = texts.filter(|text| !text.is_empty()).collect();
                Some(Message::new(Role::System, texts.join("\n\n")))
            }
        };
        if let Some(mut head) = head {
            head.role = Role::System;
            rest.insert(0, head);
        }
        self.messages = rest;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn roles(conversation: &Conversation) -> Vec<Role> {
        conversation.messages.iter().map(|m| m.role).collect()
    }

    #[test]
    fn all_instructions_become_one_leading_turn() {
        let talk = Conversation::new(vec![
            Message::new(Role::System, "one "),
            Message::new(Role::Developer, "two"),
            Message::new(Role::User, "hi"),
            Message::new(Role::Assistant, "yes"),
            Message::new(Role::System, ""),
            Message::new(Role::System, "three"),
            Message::new(Role::User, "go"),
        ]);
        let talk = talk.normalise().unwrap();
        assert_eq!(roles(&talk), [Role::System, Role::User, Role::Assistant, Role::User]);
        assert_eq!(talk.messages[0].content, "one\n\ntwo\n\nthree");
        assert_eq!(talk.clone().normalise().unwrap(), talk);
    }

    #[test]
    fn a_lone_developer_message_is_the_system_turn_unchanged() {
        let talk = Conversation::new(vec![
            Message::new(Role::User, "hi"),
            Message::new(Role::Developer, " keep \n"),
        ]);
        let talk = talk.normalise().unwrap();
        assert_eq!(roles(&talk), [Role::System, Role::User]);
        assert_eq!(talk.messages[0].content, " keep \n");
    }

    #[test]
    fn no_user_is_a_clear_error() {
        let talk = Conversation::new(vec![Message::new(Role::System, "x")]);
        let error = talk.normalise().unwrap_err().to_string();
        assert_eq!(
            error,
            "conversation of 1 messages has no user message; expected at least one with role `user`"
        );
    }

    #[test]
    fn role_names_round_trip() {
        for role in [Role::System, Role::Developer, Role::User, Role::Assistant, Role::Tool] {
            assert_eq!(Role::parse(role.name()).unwrap(), role);
        }
        assert!(Role::parse("function").is_err());
    }
}
