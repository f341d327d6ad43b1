//! `cherenkov run`.
//!
//! Owns: the order of a run: arguments, store, prompt, plan, load, answers. Never: the parts.

use crate::args::{ModelArgs, RunArgs};
use crate::device::{self, Choice};
use crate::exit::{self, usage};
use crate::generate::{self, Answer, Ask, Finish, Reading};
use crate::interrupt::Interrupt;
use crate::memory::Machine;
use crate::pace::Pace;
use crate::plan::{Asked, Copies, Lengths, Plan, Wanted};
use crate::prompt::{Tokens, Words};
use crate::settings::{Mode, Settings, Thinking};
use crate::stats::{Numbers, Reporter};
use crate::terminal::{Printer, Style, note};
use crate::{chat, governor, locate};
use anyhow::Context as _;
use cherenkov_engine::{Engine, SeqId};
use cherenkov_format::Store;
use cherenkov_text::{Event, Tokenizer};
use std::io::{self, IsTerminal as _, Read as _, Write};
use std::sync::Arc;
use std::time::Instant;

/// Answers one prompt, or chats.
///
/// # Errors
/// Whatever went wrong, [`exit::Interrupted`] after Ctrl-C.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let device = Choice::of(args.model.device, &args.compute)?;
    let prompt = prompt_text(args.prompt.as_deref())?;
    if prompt.is_none() {
        check_chat(args)?;
    }
    let interrupt = Interrupt::install()?;
    let store = locate::store(&args.model, &interrupt)?;
    device::warn_of_circumstances(&args.model);
    let settings = Settings::resolve(args, &store)?;
    let words = Words::open(&store, &settings.mode)?;
    let reporter = Reporter::new(&settings.reports)?;
    let copies = if args.check { Copies::Checked } else { Copies::Single };
    let interrupt = &interrupt;
    let load = Load { store: &store, args: &args.model, device, copies, engines: 1, interrupt };
    match prompt {
        Some(prompt) => one_shot(&load, &settings, &words, &prompt, reporter),
        None => chat::run(&load, settings, words, reporter),
    }
}

fn check_chat(args: &RunArgs) -> anyhow::Result<()> {
    if args.raw {
        return Err(usage("--raw needs a prompt; a chat always uses the model's template"));
    }
    if args.repeat > 1 {
        return Err(usage("--repeat needs a prompt; a chat has no single one to repeat"));
    }
    Ok(())
}

/// The argument, else a pipe's contents, else nothing.
fn prompt_text(argument: Option<&str>) -> anyhow::Result<Option<String>> {
    match argument {
        Some("-") => {}
        Some(text) => return Ok(Some(text.to_owned())),
        None if io::stdin().is_terminal() => return Ok(None),
        None => {}
    }
    let mut bytes = Vec::new();
    io::stdin().read_to_end(&mut bytes).context("cannot read the prompt from stdin")?;
    let mut text = String::from_utf8(bytes).context("the prompt on stdin is not UTF-8")?;
    // The newline that ends a piped line is not part of the prompt.
    if text.ends_with('\n') {
        text.pop();
        if text.ends_with('\r') {
            text.pop();
        }
    }
    if text.trim().is_empty() {
        return Err(usage("the prompt on stdin is empty; expected some text"));
    }
    Ok(Some(text))
}

/// What it takes to load an engine.
pub struct Load<'a> {
    /// The store.
    pub store: &'a Arc<Store>,
    /// The machine.
    pub args: &'a ModelArgs,
    /// What computes.
    pub device: Choice,
    /// Whether the reference runs along.
    pub copies: Copies,
    /// Engines that this process loads, which share its memory.
    pub engines: u64,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
}

impl Load<'_> {
    /// Plans, then loads.
    ///
    /// # Errors
    /// When the plan does not fit or loading fails.
    pub fn engine(
        &self,
        context: usize,
        sequences: usize,
        drafts: usize,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let (device, copies, engines) = (self.device, self.copies, self.engines);
        let wanted = Wanted { device, context, sequences, drafts, copies, engines };
        let machine = Machine::look();
        let plan = Plan::make(self.args, self.store, wanted, machine)?;
        let streaming = device::streaming(self.args);
        let engine = self.device.engine(self.store, plan.options, streaming, self.copies);
        let engine =
            engine.with_context(|| format!("cannot load {}", self.store.dir().display()))?;
        self.interrupt.check()?;
        Ok(governor::watched(engine, self.args, &plan, machine))
    }
}

fn one_shot(
    load: &Load<'_>,
    settings: &Settings,
    words: &Words,
    prompt: &str,
    mut reporter: Reporter,
) -> anyhow::Result<()> {
    let prompt = words.prompt(prompt, &settings.mode)?;
    let asked = Asked {
        prompt: prompt.ids.len(),
        output: settings.max_tokens,
        drafts: settings.most_drafts,
        context: settings.max_ctx,
    };
    let lengths = Lengths::plan(asked, load.store.config())?;
    let mut engine = load.engine(lengths.context, 1, settings.most_drafts)?;
    for index in 0..settings.repeat {
        let seed = settings.seeds.of(index as u64);
        let mut turn = Turn {
            engine: &mut *engine,
            settings,
            tokenizer: &words.tokenizer,
            interrupt: load.interrupt,
            record_bytes: load.store.experts().record_bytes(),
        };
        let (answer, numbers) = turn.cold(&prompt, lengths.output, seed)?;
        reporter.report(&numbers)?;
        remark(&answer);
        if answer.finish == Finish::Length && settings.max_tokens.is_none() {
            note("note: the answer has reached its longest length; --max-tokens allows more");
        }
        if answer.finish == Finish::Interrupted {
            return Err(exit::Interrupted.into());
        }
    }
    if load.copies == Copies::Checked {
        note("checked: every verb agreed with the reference");
    }
    Ok(())
}

/// Says what the user could not see otherwise.
pub fn remark(answer: &Answer) {
    if answer.ends_kept > 0 {
        note(&format!(
            "note: {} end-of-turn tokens within the thinking were taken as text",
            answer.ends_kept
        ));
    }
}

/// Runs prompts into the engine in pieces, so that Ctrl-C is heard.
///
/// # Errors
/// When the engine fails, or [`exit::Interrupted`].
pub fn prefill(
    engine: &mut dyn Engine,
    seq: SeqId,
    tokens: &[u32],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let piece = engine.info().pass_tokens(tokens.len());
    for piece in tokens.chunks(piece) {
        interrupt.check()?;
        engine.prefill(seq, piece)?;
    }
    interrupt.check()
}

/// One answer, printed as it comes.
pub struct Turn<'a> {
    /// The engine.
    pub engine: &'a mut dyn Engine,
    /// How to answer.
    pub settings: &'a Settings,
    /// For the text.
    pub tokenizer: &'a Tokenizer,
    /// Ctrl-C.
    pub interrupt: &'a Interrupt,
    /// Bytes of an expert record, for the statistics.
    pub record_bytes: u64,
}

impl Turn<'_> {
    /// Answers in a sequence of its own.
    fn cold(
        &mut self,
        prompt: &Tokens,
        output: usize,
        seed: u64,
    ) -> anyhow::Result<(Answer, Numbers)> {
        let mut numbers = Numbers::begin(self.engine, self.record_bytes);
        let began = Instant::now();
        let seq = self.engine.open()?;
        prefill(self.engine, seq, &prompt.ids, self.interrupt)?;
        numbers.prefilled(self.engine, prompt.ids.len(), 0, began.elapsed());
        let answer = self.answer(seq, prompt, output, seed, &mut numbers)?;
        self.engine.close(seq);
        Ok((answer, numbers))
    }

    /// Answers in a sequence that holds the prompt, prints, and completes the numbers.
    ///
    /// # Errors
    /// When the engine or stdout fails.
    pub fn answer(
        &mut self,
        seq: SeqId,
        prompt: &Tokens,
        output: usize,
        seed: u64,
        numbers: &mut Numbers,
    ) -> anyhow::Result<Answer> {
        let settings = self.settings;
        let reading = match settings.mode {
            Mode::Raw(specials) => Reading::Raw(specials),
            Mode::Chat { .. } => Reading::Parsed(prompt.start),
        };
        let ask = Ask {
            seq,
            reading,
            params: cherenkov_engine::SampleParams { seed, ..settings.params.clone() },
            output,
            pace: Pace::new(settings.drafts, settings.most_drafts),
            stop_ids: &settings.stop_ids,
            stop_texts: &settings.stop_texts,
        };
        let began = Instant::now();
        let mut view = View::new(Printer::stdout(), settings.thinking);
        let answer =
            generate::answer(self.engine, self.tokenizer, &ask, self.interrupt, &mut |event| {
                view.show(event)
            });
        let ended = view.end();
        let answer = answer?;
        ended?;
        numbers.answered(self.engine, &answer, began.elapsed());
        numbers.seed = (settings.params.temperature > 0.0).then_some(seed);
        Ok(answer)
    }
}

/// Shows an answer: thinking between markers, then content.
pub struct View<W> {
    printer: Printer<W>,
    thinking: Thinking,
    in_thinking: bool,
}

impl<W: Write> View<W> {
    /// A view of one answer.
    pub fn new(printer: Printer<W>, thinking: Thinking) -> Self {
        Self { printer, thinking, in_thinking: false }
    }

    /// Shows one event.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn show(&mut self, event: &Event) -> anyhow::Result<()> {
        match event {
            Event::Reasoning(_) if self.thinking == Thinking::Hidden => Ok(()),
            Event::Reasoning(text) => {
                if !std::mem::replace(&mut self.in_thinking, true) {
                    self.printer.text(Style::Dim, "<think>\n")?;
                }
                self.printer.text(Style::Dim, text)
            }
            Event::Content(text) => {
                self.close_thinking("\n")?;
                self.printer.text(Style::Plain, text)
            }
            // Calls are not parsed where no tools are offered.
            Event::ToolCallStart { .. } | Event::ToolArgument(_) | Event::ToolCallEnd => Ok(()),
        }
    }

    fn close_thinking(&mut self, gap: &str) -> anyhow::Result<()> {
        if std::mem::replace(&mut self.in_thinking, false) {
            self.printer.end_line()?;
            self.printer.text(Style::Dim, "</think>\n")?;
            self.printer.text(Style::Plain, gap)?;
        }
        Ok(())
    }

    /// Ends the answer.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn end(&mut self) -> anyhow::Result<()> {
        // Thinking that was cut off stays open.
        self.printer.end_line()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::terminal::Styles;

    fn shown(thinking: Thinking, events: &[Event]) -> String {
        let mut out = Vec::new();
        let mut view = View::new(Printer::new(&mut out, Styles::Left), thinking);
        events.iter().for_each(|e| view.show(e).unwrap());
        view.end().unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn thinking_stands_between_markers_or_is_left_out() {
        let events = [
            Event::Reasoning("a".into()),
            Event::Reasoning("b".into()),
            Event::Content("c".into()),
            Event::Content("d".into()),
        ];
        assert_eq!(shown(Thinking::Shown, &events), "<think>\nab\n</think>\n\ncd\n");
        assert_eq!(shown(Thinking::Hidden, &events), "cd\n");
        assert_eq!(shown(Thinking::Shown, &events[..2]), "<think>\nab\n");
        assert_eq!(shown(Thinking::Shown, &[]), "");
    }
}
