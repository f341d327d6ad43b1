//! Owns: what the parser reports, and its sum as a whole output.
//! Never: the state machine.
//! Invariant: a whole output is nothing but its events put together.

/// One step of the output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// More reasoning.
    Reasoning(String),
    /// More content.
    Content(String),
    /// A tool call begins.
    ToolCallStart {
        /// Its place among the calls of this output, from 0.
        index: usize,
        /// Its id.
        id: String,
        /// Name of the function, known to the request or not.
        name: String,
    },
    /// More JSON text of the arguments of the call that began last.
    ToolArgument(String),
    /// The call is complete: its arguments are valid JSON.
    ToolCallEnd,
}

/// A tool call of a whole output.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParsedCall {
    /// Its id.
    pub id: String,
    /// Name of the function.
    pub name: String,
    /// JSON text of the arguments: an object.
    pub arguments: String,
}

/// A whole output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParsedOutput {
    /// Reasoning, if there was any.
    pub reasoning: Option<String>,
    /// Content, if there was any.
    pub content: Option<String>,
    /// Tool calls in order.
    pub tool_calls: Vec<ParsedCall>,
}

impl ParsedOutput {
    /// Adds one event.
    pub fn add(&mut self, event: Event) {
        match event {
            Event::Reasoning(text) => self.reasoning.get_or_insert_default().push_str(&text),
            Event::Content(text) => self.content.get_or_insert_default().push_str(&text),
            Event::ToolCallStart { id, name, .. } => {
                self.tool_calls.push(ParsedCall { id, name, arguments: String::new() })
            }
            Event::ToolArgument(text) => {
                if let Some(call) = self.tool_calls.last_mut() {
                    call.arguments.push_str(&text);
                }
            }
            Event::ToolCallEnd => {}
        }
    }
}

impl FromIterator<Event> for ParsedOutput {
    fn from_iter<I: IntoIterator<Item = Event>>(events: I) -> Self {
        let mut whole = Self::default();
        events.into_iter().for_each(|event| whole.add(event));
        whole
    }
}
