//! Owns: the one error type of this crate.
//! Never: text of a conversation; messages name what was found, what was expected and what helps.
//! Invariant: every variant is an operating error; a programmer error is an assertion.

use std::path::PathBuf;

/// What can go wrong between messages and tokens.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}; expected a readable file of a checkpoint", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The tokenizer file is damaged or of a kind this crate does not run.
    #[error("tokenizer: {0}")]
    Tokenizer(String),
    /// A text could not be turned into tokens.
    #[error("tokenizer failed on a text of {bytes} bytes: {reason}")]
    Encode {
        /// Length of the text.
        bytes: usize,
        /// What the tokenizer said.
        reason: String,
    },
    /// The folder holds no chat template.
    #[error(
        "{}: no chat template found; expected chat_template.jinja or a `chat_template` key in tokenizer_config.json",
        dir.display()
    )]
    NoTemplate {
        /// The folder.
        dir: PathBuf,
    },
    /// tokenizer_config.json is damaged.
    #[error("{}: {reason}", path.display())]
    Config {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        reason: String,
    },
    /// The template does not parse.
    #[error("chat template does not parse: {0}")]
    TemplateSyntax(String),
    /// The template refused the conversation with `raise_exception`.
    #[error("chat template refused the conversation: {0}")]
    TemplateRaised(String),
    /// The template failed while rendering.
    #[error("chat template failed: {0}")]
    TemplateFailed(String),
    /// The template ran longer than any honest one.
    #[error(
        "chat template stopped after {fuel} steps; expected a template that ends, remove its endless or nested loops"
    )]
    TemplateFuel {
        /// Steps that were allowed.
        fuel: u64,
    },
    /// The rendered prompt is larger than any honest one.
    #[error(
        "chat template wrote more than {limit} bytes; expected a prompt near the size of its messages"
    )]
    TemplateOutput {
        /// Bytes that were allowed.
        limit: usize,
    },
    /// No message of the user.
    #[error(
        "conversation of {messages} messages has no user message; expected at least one with role `user`"
    )]
    NoUserTurn {
        /// Messages found.
        messages: usize,
    },
    /// A role that does not exist.
    #[error("unknown role `{found}`; expected system, developer, user, assistant or tool")]
    UnknownRole {
        /// The role found.
        found: String,
    },
    /// An effort that does not exist.
    #[error(
        "unknown reasoning effort `{found}`; expected none, minimal, low, medium, high, xhigh or max"
    )]
    UnknownEffort {
        /// The effort found.
        found: String,
    },
    /// Two places of one request ask for different things.
    #[error(
        "`{name}` is given twice: {first} and {second}; expected one value, remove one of them"
    )]
    Contradiction {
        /// The setting.
        name: &'static str,
        /// The first value.
        first: String,
        /// The other value.
        second: String,
    },
    /// A template argument of the wrong type.
    #[error("template argument `{name}` is {found}; expected {expected}")]
    BadArgument {
        /// The argument.
        name: &'static str,
        /// What was given.
        found: String,
        /// What may be given.
        expected: &'static str,
    },
    /// The conversation uses every private code point, so none is left to mark content with.
    #[error(
        "conversation uses every private-use code point; expected at least one free, remove such characters"
    )]
    NoPrivateCodePoint,
    /// An empty stop string.
    #[error("stop string {index} is empty; expected at least one character, remove it")]
    EmptyStop {
        /// Its place in the list.
        index: usize,
    },
}

/// Result with this crate's error.
pub type Result<T, E = Error> = std::result::Result<T, E>;
