//! From a prompt in the engine to an answer.
//!
//! Owns: the loop over decode steps and what ends it. Never: printing, the prompt.
//! Invariant: an answer's text is the same whatever the number of tokens per step.

use crate::interrupt::Interrupt;
use crate::pace::Pace;
use cherenkov_engine::{Engine, SampleParams, Sampler, SeqId, Step};
use cherenkov_text::{
    CallMode, Detokenizer, Event, OutputParser, ParsedOutput, ParserOptions, SpecialTokens, Start,
    StopStrings, Tokenizer,
};

/// How the text of an answer is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reading {
    /// Thinking and content apart.
    Parsed(Start),
    /// All of it is content.
    Raw(SpecialTokens),
}

/// What to generate, in a sequence that holds its prompt.
#[derive(Clone, Debug)]
pub struct Ask<'a> {
    /// The sequence.
    pub seq: SeqId,
    /// How the text is read.
    pub reading: Reading,
    /// How tokens are drawn, with the seed.
    pub params: SampleParams,
    /// Longest answer in tokens.
    pub output: usize,
    /// Drafts per step.
    pub pace: Pace,
    /// Tokens that end the answer.
    pub stop_ids: &'a [u32],
    /// Texts that end the answer.
    pub stop_texts: &'a [String],
}

/// What ended an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// One of the stop tokens.
    Stop,
    /// One of the stop texts.
    StopText,
    /// It has as many tokens as it may have.
    Length,
    /// The user.
    Interrupted,
}

impl Finish {
    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop token",
            Self::StopText => "stop text",
            Self::Length => "length",
            Self::Interrupted => "interrupted",
        }
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Its text, read.
    pub text: ParsedOutput,
    /// Why it ended.
    pub finish: Finish,
    /// Its tokens, the stop token included.
    pub tokens: Vec<u32>,
    /// End-of-turn tokens within the thinking that were taken as text.
    pub ends_kept: u32,
}

/// Turns tokens into events.
struct Reader {
    detokenizer: Detokenizer,
    stops: StopStrings,
    parser: Option<OutputParser>,
}

impl Reader {
    fn new(tokenizer: &Tokenizer, ask: &Ask<'_>) -> anyhow::Result<Self> {
        let (specials, parser) = match ask.reading {
            Reading::Raw(specials) => (specials, None),
            Reading::Parsed(start) => {
                // No tools are offered here, so their markup is content.
                let options = ParserOptions { calls: CallMode::Text, ..ParserOptions::new(start) };
                (SpecialTokens::Hide, Some(OutputParser::new(options)))
            }
        };
        Ok(Self {
            detokenizer: Detokenizer::with_specials(tokenizer, specials),
            stops: StopStrings::new(ask.stop_texts.to_vec())?,
            parser,
        })
    }

    fn events(&mut self, text: &str) -> Vec<Event> {
        match &mut self.parser {
            _ if text.is_empty() => Vec::new(),
            Some(parser) => parser.push(text),
            None => vec![Event::Content(text.to_owned())],
        }
    }

    /// Takes a token; also says what it ended, if anything.
    fn push(&mut self, token: u32, stop_ids: &[u32]) -> (Vec<Event>, Option<Finish>) {
        let text = if stop_ids.contains(&token) {
            // A model that quotes an end of turn while it thinks has not ended its turn.
            let kept = self.parser.as_mut().is_some_and(OutputParser::end_of_turn_is_text);
            if !kept {
                return (Vec::new(), Some(Finish::Stop));
            }
            self.detokenizer.push_shown(token)
        } else {
            self.detokenizer.push(token)
        };
        let out = self.stops.push(&text);
        (self.events(&out.text), out.stopped.map(|_| Finish::StopText))
    }

    /// What was held back.
    fn finish(&mut self) -> Vec<Event> {
        self.detokenizer.finish();
        let rest = self.stops.finish();
        let mut events = self.events(&rest);
        events.extend(self.parser.as_mut().map(OutputParser::finish).unwrap_or_default());
        events
    }
}

/// Generates; every event goes to `sink` as it comes.
///
/// # Errors
/// When the engine or the sink fails.
pub fn answer(
    engine: &mut dyn Engine,
    tokenizer: &Tokenizer,
    ask: &Ask<'_>,
    interrupt: &Interrupt,
    sink: &mut dyn FnMut(&Event) -> anyhow::Result<()>,
) -> anyhow::Result<Answer> {
    let mut reader = Reader::new(tokenizer, ask)?;
    let mut sampler = Sampler::new(ask.params.clone(), &engine.tokens(ask.seq)?)?;
    let (mut text, mut tokens) = (ParsedOutput::default(), Vec::new());
    let mut emit = |events: Vec<Event>| {
        for event in events {
            sink(&event)?;
            text.add(event);
        }
        anyhow::Ok(())
    };
    let mut pace = ask.pace.clone();
    let mut finish = None;
    while finish.is_none() {
        if interrupt.is_set() {
            finish = Some(Finish::Interrupted);
            break;
        }
        let left = ask.output - tokens.len();
        let drafts = pace.next().min(left - 1);
        let mut step = Step::new(ask.seq, &mut sampler, drafts, ask.stop_ids);
        pace.decode(engine, &mut step)?;
        if let Some(failure) = step.failure {
            return Err(failure.into());
        }
        let drawn = step.out;
        let mut taken = 0;
        for one in &drawn {
            taken += 1;
            tokens.push(one.token);
            let (events, end) = reader.push(one.token, ask.stop_ids);
            emit(events)?;
            finish = end.or((tokens.len() == ask.output).then_some(Finish::Length));
            if finish.is_some() {
                break;
            }
        }
        if taken < drawn.len() {
            engine.commit(ask.seq, taken)?;
        }
    }
    emit(reader.finish())?;
    let finish = finish.expect("the loop ends with a reason");
    let ends_kept = reader.parser.as_ref().map_or(0, OutputParser::end_of_turns_kept);
    Ok(Answer { text, finish, tokens, ends_kept })
}
