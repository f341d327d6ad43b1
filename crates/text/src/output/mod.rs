//! Owns: the parser that splits model output into reasoning, content and tool calls.
//! Never: tokens, wire formats, stop strings (they come before: detokeniser, stop strings, parser).
//! Invariants: one state machine serves streams and whole texts, so both agree for every split; the arguments of
//! every call end as valid JSON; no byte of reasoning or content is lost but the white space the format adds.

mod arguments;
mod event;
mod parser;
mod schema;
mod value;

pub use event::{Event, ParsedCall, ParsedOutput};
pub use parser::{CallMode, OutputParser, ParserOptions};
pub use schema::ToolSchemas;

#[cfg(test)]
pub(crate) mod tests_support {
    /// Cuts a text before the characters whose place is marked.
    pub(crate) fn split<'a>(text: &'a str, cut: &[bool]) -> Vec<&'a str> {
        let mut chunks = Vec::new();
        let mut from = 0;
        for (nth, (at, _)) in text.char_indices().enumerate() {
            if cut.get(nth).copied().unwrap_or(false) {
                chunks.push(&text[from..at]);
                from = at;
            }
        }
        chunks.push(&text[from..]);
        chunks
    }
}
