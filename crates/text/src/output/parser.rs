//! Owns: the state machine over model output: reasoning, then content, then calls.
//! Never: the inside of a call (see `arguments`).
//! Invariants: stages are ordered, so a call tag inside reasoning is reasoning; text waits only while it may be
//! the beginning of a tag; the end goes through the same steps as the rest.

use super::arguments::{
    CALL_CLOSE, CALL_OPEN, Call, FUNCTION_CLOSE, FUNCTION_OPEN, Input, Step, read_name,
};
use super::event::{Event, ParsedOutput};
use super::schema::ToolSchemas;
use crate::prompt::Start;

const THINK_OPEN: &str = "<think>";
const THINK_CLOSE: &str = "</think>";
/// Newlines that the format writes between the end of reasoning and the content.
const NEWLINES_AFTER_THINKING: u8 = 2;
/// Text that is taken in at once.
const CHUNK_BYTES: usize = 4096;

/// Whether tool-call markup is read or left in the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum CallMode {
    /// Calls are reported as calls, also of functions that were not offered.
    #[default]
    Parse,
    /// Markup stays text.
    Text,
}

/// What the parser needs to know about the request.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// Where the output begins: `Prompt::start`.
    pub start: Start,
    /// Argument types of the offered tools.
    pub schemas: ToolSchemas,
    /// What becomes of tool calls.
    pub calls: CallMode,
    /// Ids of calls are this text and their index.
    pub id_prefix: String,
    /// How often an end-of-turn token inside reasoning or a call is kept as text.
    pub end_of_turn_max: u32,
}

impl ParserOptions {
    /// Options for output that begins there, without schemas.
    pub fn new(start: Start) -> Self {
        Self {
            start,
            schemas: ToolSchemas::default(),
            calls: CallMode::Parse,
            id_prefix: "call_".into(),
            end_of_turn_max: 4,
        }
    }
}

#[derive(Debug, Clone)]
enum State {
    Reasoning,
    Content,
    /// After the tag that opens a call.
    Opening,
    Call(Call),
    /// After the end of a function, before the end of its call.
    Closing,
    Finished,
}

/// Splits model output into events.
#[derive(Debug, Clone)]
pub struct OutputParser {
    options: ParserOptions,
    state: State,
    /// Text that may be the beginning of a tag.
    waiting: String,
    /// White space that is content only if content follows it.
    space: String,
    /// A newline that is reasoning only if reasoning follows it.
    newline: bool,
    /// Newlines to drop before whatever comes next.
    drop_newlines: u8,
    /// Nothing but white space came since the last reasoning, and no call.
    fresh: bool,
    /// The last thing reported was content.
    in_content: bool,
    calls: usize,
    ends_kept: u32,
    cut_call: bool,
    out: Vec<Event>,
}

impl OutputParser {
    /// A parser at the beginning of an output.
    pub fn new(options: ParserOptions) -> Self {
        let (state, drop_newlines) = match options.start {
            Start::Reasoning => (State::Reasoning, 1),
            Start::Content => (State::Content, 0),
        };
        Self {
            options,
            state,
            waiting: String::new(),
            space: String::new(),
            newline: false,
            drop_newlines,
            fresh: true,
            in_content: false,
            calls: 0,
            ends_kept: 0,
            cut_call: false,
            out: Vec::new(),
        }
    }

    /// Parses a whole output.
    pub fn parse(options: ParserOptions, text: &str) -> ParsedOutput {
        let mut parser = Self::new(options);
        let mut events = parser.push(text);
        events.extend(parser.finish());
        events.into_iter().collect()
    }

    /// Takes more text.
    pub fn push(&mut self, text: &str) -> Vec<Event> {
        let mut rest = text;
        while !rest.is_empty() {
            // Short pieces keep the waiting text short, and its use linear in time.
            let mut len = rest.len().min(CHUNK_BYTES);
            while !rest.is_char_boundary(len) {
                len -= 1;
            }
            self.waiting.push_str(&rest[..len]);
            rest = &rest[len..];
            while self.step(Input::More) == Step::Again {}
        }
        std::mem::take(&mut self.out)
    }

    /// Ends the output: what waits is resolved, what is open is closed.
    pub fn finish(&mut self) -> Vec<Event> {
        while self.step(Input::Ended) == Step::Again {}
        if matches!(self.state, State::Opening) {
            self.content(CALL_OPEN);
            self.state = State::Content;
        }
        match std::mem::replace(&mut self.state, State::Finished) {
            State::Reasoning if self.newline => {
                self.newline = false;
                self.emit(Event::Reasoning("\n".into()));
            }
            State::Content if self.in_content => {
                let space = std::mem::take(&mut self.space);
                self.emit(Event::Content(space));
            }
            State::Call(mut call) => {
                self.cut_call = true;
                self.end_call(&mut call);
            }
            _ => {}
        }
        self.waiting.clear();
        std::mem::take(&mut self.out)
    }

    /// Whether an end-of-turn token that was just drawn is text, as it stands inside reasoning or a call. Each
    /// yes counts, and after `end_of_turn_max` of them the answer is no.
    pub fn end_of_turn_is_text(&mut self) -> bool {
        let inside = matches!(self.state, State::Reasoning | State::Opening | State::Call(_));
        if !inside || self.ends_kept >= self.options.end_of_turn_max {
            return false;
        }
        self.ends_kept += 1;
        true
    }

    /// How many end-of-turn tokens were kept as text.
    pub fn end_of_turns_kept(&self) -> u32 {
        self.ends_kept
    }

    /// Whether the output ended inside a call, whose arguments were then closed.
    pub fn call_was_cut(&self) -> bool {
        self.cut_call
    }

    fn step(&mut self, input: Input) -> Step {
        if !self.drop_newlines_now() {
            return Step::Wait;
        }
        match &mut self.state {
            State::Reasoning => self.step_reasoning(input),
            State::Content => self.step_content(input),
            State::Opening => self.step_opening(input),
            State::Closing => self.step_closing(input),
            State::Call(call) => {
                let mut json = String::new();
                let step = call.step(&mut self.waiting, input, &self.options.schemas, &mut json);
                self.emit(Event::ToolArgument(json));
                if step == Step::Done {
                    if let State::Call(mut call) =
                        std::mem::replace(&mut self.state, State::Closing)
                    {
                        self.end_call(&mut call);
                    }
                    return Step::Again;
                }
                step
            }
            State::Finished => {
                self.waiting.clear();
                Step::Wait
            }
        }
    }

    /// Drops newlines that the format adds; false while more of them may come.
    fn drop_newlines_now(&mut self) -> bool {
        while self.drop_newlines > 0 && self.waiting.starts_with('\n') {
            self.waiting.remove(0);
            self.drop_newlines -= 1;
        }
        if self.waiting.is_empty() {
            return false;
        }
        self.drop_newlines = 0;
        true
    }

    fn step_reasoning(&mut self, input: Input) -> Step {
        let Some(at) = self.waiting.find(THINK_CLOSE) else {
            let free = self.waiting.len() - held(&self.waiting, &[THINK_CLOSE], input);
            let text: String = self.waiting.drain(..free).collect();
            self.reasoning(&text);
            return Step::Wait;
        };
        let text: String = self.waiting.drain(..at).collect();
        self.reasoning(&text);
        self.waiting.drain(..THINK_CLOSE.len());
        self.newline = false;
        self.drop_newlines = NEWLINES_AFTER_THINKING;
        self.state = State::Content;
        Step::Again
    }

    fn reasoning(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        let mut shown = String::with_capacity(text.len() + 1);
        if std::mem::take(&mut self.newline) {
            shown.push('\n');
        }
        shown.push_str(text);
        if shown.ends_with('\n') {
            shown.pop();
            self.newline = true;
        }
        self.emit(Event::Reasoning(shown));
    }

    fn step_content(&mut self, input: Input) -> Step {
        if self.fresh {
            let body = self.waiting.trim_start();
            if body.starts_with(THINK_OPEN) {
                let used = self.waiting.len() - body.len() + THINK_OPEN.len();
                self.waiting.drain(..used);
                self.space.clear();
                self.drop_newlines = 1;
                self.state = State::Reasoning;
                return Step::Again;
            }
            if input == Input::More && THINK_OPEN.starts_with(body) {
                return Step::Wait;
            }
        }
        let tags: &[&str] = match self.options.calls {
            CallMode::Parse => &[CALL_OPEN],
            CallMode::Text => &[],
        };
        let found = tags.first().and_then(|tag| self.waiting.find(tag));
        let free = found.unwrap_or_else(|| self.waiting.len() - held(&self.waiting, tags, input));
        let text: String = self.waiting.drain(..free).collect();
        self.content(&text);
        if found.is_none() {
            return Step::Wait;
        }
        self.waiting.drain(..CALL_OPEN.len());
        self.state = State::Opening;
        Step::Again
    }

    fn content(&mut self, text: &str) {
        let body = text.trim_end();
        if body.is_empty() {
            self.space.push_str(text);
            return;
        }
        let mut shown = std::mem::replace(&mut self.space, text[body.len()..].to_owned());
        shown.push_str(body);
        self.fresh = false;
        self.in_content = true;
        self.emit(Event::Content(shown));
    }

    fn step_opening(&mut self, input: Input) -> Step {
        let body = self.waiting.trim_start();
        if let Some(rest) = body.strip_prefix(FUNCTION_OPEN) {
            match read_name(rest, input) {
                Ok(None) => return Step::Wait,
                Ok(Some((name, len))) => {
                    let name = name.to_owned();
                    let used = self.waiting.len() - rest.len() + len;
                    self.waiting.drain(..used);
                    self.start_call(name);
                    return Step::Again;
                }
                Err(()) => {}
            }
        } else if input == Input::More && FUNCTION_OPEN.starts_with(body) {
            return Step::Wait;
        }
        // Not a call after all: its tag is content, and the rest is read as content.
        self.content(CALL_OPEN);
        self.state = State::Content;
        Step::Again
    }

    fn start_call(&mut self, name: String) {
        self.space.clear();
        self.fresh = false;
        self.in_content = false;
        let index = self.calls;
        self.calls += 1;
        let id = format!("{}{index}", self.options.id_prefix);
        let mut json = String::new();
        let call = Call::new(&name, &mut json);
        self.emit(Event::ToolCallStart { index, id, name });
        self.emit(Event::ToolArgument(json));
        self.state = State::Call(call);
    }

    fn end_call(&mut self, call: &mut Call) {
        let mut json = String::new();
        call.close(&mut json);
        self.emit(Event::ToolArgument(json));
        self.emit(Event::ToolCallEnd);
    }

    fn step_closing(&mut self, input: Input) -> Step {
        let blank = self.waiting.len() - self.waiting.trim_start().len();
        let body = &self.waiting[blank..];
        if body.starts_with(FUNCTION_CLOSE) {
            self.waiting.drain(..blank + FUNCTION_CLOSE.len());
            return Step::Again;
        }
        if body.starts_with(CALL_CLOSE) {
            self.waiting.drain(..blank + CALL_CLOSE.len());
            self.state = State::Content;
            return Step::Again;
        }
        if body.starts_with(FUNCTION_OPEN) {
            self.state = State::Opening;
            return Step::Again;
        }
        let tags = [FUNCTION_CLOSE, CALL_CLOSE, FUNCTION_OPEN];
        if input == Input::More && tags.iter().any(|tag| tag.starts_with(body)) {
            return Step::Wait;
        }
        self.state = State::Content;
        Step::Again
    }

    fn emit(&mut self, event: Event) {
        use Event::{Content, Reasoning, ToolArgument};
        match (self.out.last_mut(), &event) {
            (_, Reasoning(text) | Content(text) | ToolArgument(text)) if text.is_empty() => {}
            (Some(Reasoning(last)), Reasoning(text))
            | (Some(Content(last)), Content(text))
            | (Some(ToolArgument(last)), ToolArgument(text)) => last.push_str(text),
            _ => self.out.push(event),
        }
    }
}

/// Length of the longest end of the text that begins one of the tags; none once the text has ended.
fn held(text: &str, tags: &[&str], input: Input) -> usize {
    if input == Input::Ended {
        return 0;
    }
    let longest =
        tags.iter().filter_map(|tag| (1..tag.len()).rev().find(|len| text.ends_with(&tag[..*len])));
    longest.max().unwrap_or(0)
}
