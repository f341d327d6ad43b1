//! Reading what the user types.
//!
//! Owns: line editing, its history file, the meaning of ctrl-c and ctrl-d at the prompt.

use crate::dirs;
use crate::terminal::note;
use anyhow::Context as _;
use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};
use std::fs;
use std::path::PathBuf;

const HISTORY_LINES_MAX: usize = 1000;
const PROMPT: &str = "> ";
const MORE: &str = ". ";

/// The line editor.
pub struct Editor {
    inner: DefaultEditor,
    history: Option<PathBuf>,
}

impl Editor {
    /// An editor with the history of earlier chats.
    ///
    /// # Errors
    /// When the terminal cannot be used.
    pub fn new() -> anyhow::Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_LINES_MAX)?.build();
        let mut inner = DefaultEditor::with_config(config).context("cannot use the terminal")?;
        let history = dirs::state().map(|dir| dir.join("chat-history"));
        if let Some(path) = &history {
            // None yet is fine, and a damaged one is not worth a failure.
            let _ = inner.load_history(path);
        }
        Ok(Self { inner, history })
    }

    /// What was typed, lines joined where they ended with a backslash; `None` at the end.
    ///
    /// # Errors
    /// When the terminal fails.
    pub fn read(&mut self) -> anyhow::Result<Option<String>> {
        let mut text = String::new();
        let mut warned = false;
        loop {
            let prompt = if text.is_empty() { PROMPT } else { MORE };
            match self.inner.readline(prompt) {
                Ok(line) => {
                    warned = false;
                    match line.strip_suffix('\\') {
                        Some(part) => text += &format!("{part}\n"),
                        None => {
                            text += &line;
                            self.remember(&text);
                            return Ok(Some(text));
                        }
                    }
                }
                Err(ReadlineError::Eof) => return Ok(None),
                Err(ReadlineError::Interrupted) if warned => return Ok(None),
                Err(ReadlineError::Interrupted) => {
                    text.clear();
                    warned = true;
                    note("(ctrl-c again, ctrl-d or /quit leaves)");
                }
                Err(error) => return Err(error).context("cannot read from the terminal"),
            }
        }
    }

    fn remember(&mut self, text: &str) {
        if text.trim().is_empty() {
            return;
        }
        let _ = self.inner.add_history_entry(text);
        if let Some(path) = &self.history {
            // A chat without history is better than no chat.
            let _ = path.parent().map(fs::create_dir_all);
            let _ = self.inner.save_history(path);
        }
    }
}
