//! Text: the way from messages to token ids and from token ids back to messages.
//!
//! Owns: the tokenizer, the chat template, the streaming detokeniser, stop strings, and the parser that splits
//! model output into reasoning, content and tool calls.
//! Never: engine state, HTTP, clocks, the environment. The only files read are the ones a caller names.
//! Invariants: text of a message never becomes a control token; a stream and a whole text give the same events,
//! however the stream is cut; tool arguments are valid JSON at the end, however the output is cut.

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod byte_level;
mod clock;
mod conversation;
mod error;
mod options;
pub mod output;
mod prompt;
mod python;
mod shield;
mod stops;
mod stream;
mod template;
mod template_env;
mod tokenizer;

pub use clock::LocalTime;
pub use conversation::{Conversation, Message, Role, ToolCall};
pub use error::{Error, Result};
pub use options::{Effort, GenerationPrompt, RenderOptions};
pub use output::{
    CallMode, Event, OutputParser, ParsedCall, ParsedOutput, ParserOptions, ToolSchemas,
};
pub use prompt::{Prompt, Start};
pub use stops::{StopOutput, StopStrings};
pub use stream::{Detokenizer, SpecialTokens};
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
