//! The interactive chat.
//!
//! Owns: the conversation and its turns. Never: the terminal (see `editor`), decode steps.
//! Invariant: a turn that fails or is stopped before its first word leaves the conversation as it was.

mod checkpoints;
mod command;
mod editor;
mod file;

use crate::exit::{self, Interrupted};
use crate::generate::{Answer, Finish};
use crate::plan::{self, Asked, Copies, Lengths};
use crate::prompt::Words;
use crate::run::{Load, Turn, remark};
use crate::settings::{Mode, Settings};
use crate::stats::{Numbers, Reporter};
use crate::terminal::note;
use checkpoints::{Checkpoints, Ready, SEQUENCES};
use cherenkov_engine::Engine;
use cherenkov_text::{GenerationPrompt, Message, Role};
use command::Line;
use editor::Editor;
use std::time::Instant;

/// A conversation and what it takes to go on with it.
struct Chat<'a> {
    load: &'a Load<'a>,
    engine: Box<dyn Engine>,
    settings: Settings,
    words: Words,
    reporter: Reporter,
    system: Option<String>,
    thinking: Option<bool>,
    messages: Vec<Message>,
    checkpoints: Checkpoints,
    /// Answers given, so that each gets a seed.
    answers: u64,
    last: Option<Numbers>,
}

/// Chats until the user leaves.
///
/// # Errors
/// When loading or the terminal fails; a failed turn is reported and the chat goes on.
pub fn run(
    load: &Load<'_>,
    settings: Settings,
    words: Words,
    reporter: Reporter,
) -> anyhow::Result<()> {
    let config = load.store.config();
    let limit = plan::context_limit(settings.max_ctx, config)?;
    let context = settings.max_ctx.unwrap_or(limit.min(plan::CHAT_CONTEXT_DEFAULT));
    // An answer that could never fit is refused now, not in the first turn.
    Lengths::plan(asked(&settings, 1, context), config)?;
    let mut editor = Editor::new()?;
    let engine = load.engine(context, SEQUENCES, settings.most_drafts)?;
    load.interrupt.be_patient();
    let Mode::Chat { system, thinking } = settings.mode.clone() else {
        unreachable!("a chat without prompt is never raw")
    };
    note(&format!(
        "cherenkov {}, {}, context {context}; /help for commands",
        env!("CARGO_PKG_VERSION"),
        load.device.describe()
    ));
    let mut chat = Chat {
        load,
        engine,
        settings,
        words,
        reporter,
        system,
        thinking,
        messages: Vec::new(),
        checkpoints: Checkpoints::default(),
        answers: 0,
        last: None,
    };
    while let Some(line) = editor.read()? {
        let line = Line::parse(&line);
        if line == Line::Quit {
            break;
        }
        match chat.obey(line) {
            Err(error) if error.is::<exit::ClosedPipe>() => return Err(error),
            Err(error) => note(&format!("error: {}", exit::message(&error))),
            Ok(()) => {}
        }
    }
    Ok(())
}

fn asked(settings: &Settings, prompt: usize, context: usize) -> Asked {
    let (output, drafts) = (settings.max_tokens, settings.most_drafts);
    Asked { prompt, output, drafts, context: Some(context) }
}

impl Chat<'_> {
    fn obey(&mut self, line: Line) -> anyhow::Result<()> {
        match line {
            Line::Empty | Line::Quit => {}
            Line::Help => note(command::HELP),
            Line::Reset => {
                self.messages.clear();
                self.checkpoints.clear(&mut *self.engine);
                note("(forgotten)");
            }
            Line::System(text) => {
                self.system = text;
                note(if self.system.is_some() { "(set)" } else { "(removed)" });
            }
            Line::Think(on) => {
                self.thinking = Some(on);
                note(if on { "(thinking)" } else { "(not thinking)" });
            }
            Line::Stats => match &self.last {
                Some(numbers) => note(&numbers.table()),
                None => note("(no answer yet)"),
            },
            Line::Save(path) => {
                file::save(&path, &self.conversation())?;
                note(&format!("(saved to {})", path.display()));
            }
            Line::Load(path) => self.replace(file::load(&path)?),
            Line::Regen => return self.regenerate(),
            Line::Message(text) => return self.say(text),
            Line::Unknown(text) => note(&format!("unknown command: {text}; /help lists them")),
        }
        Ok(())
    }

    /// The messages with the system message.
    fn conversation(&self) -> Vec<Message> {
        let system = self.system.iter().map(|s| Message::new(Role::System, s.as_str()));
        system.chain(self.messages.iter().cloned()).collect()
    }

    fn replace(&mut self, messages: Vec<Message>) {
        let (system, rest): (Vec<_>, Vec<_>) =
            messages.into_iter().partition(|m| matches!(m.role, Role::System | Role::Developer));
        let system: Vec<String> = system.into_iter().map(|m| m.content).collect();
        self.system = (!system.is_empty()).then(|| system.join("\n\n"));
        self.messages = rest;
        note(&format!("({} messages)", self.messages.len()));
    }

    fn say(&mut self, text: String) -> anyhow::Result<()> {
        let length = self.messages.len();
        self.messages.push(Message::new(Role::User, text));
        let done = self.turn();
        if done.is_err() {
            self.messages.truncate(length);
        }
        done.or_else(quiet)
    }

    fn regenerate(&mut self) -> anyhow::Result<()> {
        let Some(question) = self.messages.iter().rposition(|m| m.role == Role::User) else {
            note("(nothing to answer yet)");
            return Ok(());
        };
        let rest = self.messages.split_off(question + 1);
        let done = self.turn();
        if done.is_err() {
            self.messages.extend(rest);
        }
        done.or_else(quiet)
    }

    /// Answers the last message.
    fn turn(&mut self) -> anyhow::Result<()> {
        self.load.interrupt.clear();
        let talk = self.conversation();
        let prompt = self.words.chat(&talk, self.thinking, GenerationPrompt::Add)?;
        let boundary = self.words.chat(&talk, self.thinking, GenerationPrompt::Omit)?;
        let output = self.output(prompt.ids.len())?;
        let engine = &mut *self.engine;
        let record_bytes = self.load.store.experts().record_bytes();
        let mut numbers = Numbers::begin(engine, record_bytes);
        let began = Instant::now();
        let interrupt = self.load.interrupt;
        let Ready { seq, reused } =
            self.checkpoints.prepare(engine, &boundary.ids, &prompt.ids, interrupt)?;
        numbers.prefilled(engine, prompt.ids.len(), reused, began.elapsed());
        let seed = self.settings.seeds.of(self.answers);
        self.answers += 1;
        let (settings, tokenizer) = (&self.settings, &self.words.tokenizer);
        let mut turn = Turn { engine, settings, tokenizer, interrupt, record_bytes };
        let answer = turn.answer(seq, &prompt, output, seed, &mut numbers);
        match answer {
            Ok(answer) => {
                self.checkpoints.keep(&mut *self.engine, seq);
                self.ended(answer, numbers)
            }
            Err(error) => {
                self.engine.close(seq);
                Err(error)
            }
        }
    }

    /// Longest answer to a prompt of this many tokens.
    fn output(&self, prompt: usize) -> anyhow::Result<usize> {
        let context = self.engine.info().context;
        let left = context.saturating_sub(prompt + self.settings.most_drafts);
        if left == 0 {
            anyhow::bail!(
                "the conversation has {prompt} tokens, the context holds {context}; /reset, or start \
                 with a larger --max-ctx"
            );
        }
        Ok(self.settings.max_tokens.unwrap_or(plan::OUTPUT_DEFAULT).min(left))
    }

    fn ended(&mut self, answer: Answer, numbers: Numbers) -> anyhow::Result<()> {
        remark(&answer);
        if answer.finish == Finish::Interrupted {
            note("(stopped)");
        }
        if answer.finish == Finish::Length {
            note("(the answer has reached its longest length)");
        }
        self.reporter.report(&numbers)?;
        self.last = Some(numbers);
        if self.load.copies == Copies::Checked {
            note("checked: every verb agreed with the reference");
        }
        let text = answer.text;
        if answer.finish == Finish::Interrupted
            && text.content.is_none()
            && text.reasoning.is_none()
        {
            return Err(Interrupted.into());
        }
        let mut message = Message::new(Role::Assistant, text.content.unwrap_or_default());
        message.reasoning = text.reasoning;
        self.messages.push(message);
        Ok(())
    }
}

/// An interrupted turn has been dealt with.
fn quiet(error: anyhow::Error) -> anyhow::Result<()> {
    if error.is::<Interrupted>() { Ok(()) } else { Err(error) }
}
