//! From words to the tokens of a prompt.
//!
//! Owns: a store's tokenizer and template, side by side. Never: the engine.

use crate::settings::Mode;
use anyhow::{Context as _, bail};
use cherenkov_format::Store;
use cherenkov_text::{
    ChatTemplate, Conversation, GenerationPrompt, Message, RenderOptions, Role, SpecialTokens,
    Start, Tokenizer,
};

/// A prompt that the engine can run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The tokens.
    pub ids: Vec<u32>,
    /// Where the answer begins.
    pub start: Start,
}

/// A store's tokenizer, and its template if it has one.
#[derive(Debug)]
pub struct Words {
    /// The tokenizer.
    pub tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
}

impl Words {
    /// Of a store.
    ///
    /// # Errors
    /// When a file is damaged, the tokenizer is missing, or the template is missing and needed.
    pub fn open(store: &Store, mode: &Mode) -> anyhow::Result<Self> {
        let path = store.dir().join("tokenizer.json");
        if !path.exists() {
            bail!("{}: no tokenizer.json; pack a checkpoint that has one", store.dir().display());
        }
        let context = || format!("{}: the tokenizer does not load", path.display());
        let tokenizer = Tokenizer::from_file(&path).with_context(context)?;
        let vocab = store.config().vocab;
        if tokenizer.vocab_size() > vocab {
            bail!(
                "{}: found {} tokens, expected at most the model's {vocab}; it belongs to another model",
                path.display(),
                tokenizer.vocab_size()
            );
        }
        let template = match mode {
            Mode::Raw(_) => None,
            Mode::Chat { .. } => Some(
                ChatTemplate::from_dir(store.dir(), &tokenizer)
                    .context("--raw continues a prompt without a template")?,
            ),
        };
        Ok(Self { tokenizer, template })
    }

    /// A text to continue.
    ///
    /// # Errors
    /// When it has no tokens.
    pub fn raw(&self, text: &str, specials: SpecialTokens) -> anyhow::Result<Tokens> {
        let ids = match specials {
            SpecialTokens::Show => self.tokenizer.encode(text)?,
            SpecialTokens::Hide => self.tokenizer.encode_plain(text)?,
        };
        if ids.is_empty() {
            return Err(crate::exit::usage("the prompt is empty; expected at least one token"));
        }
        Ok(Tokens { ids, start: Start::Content })
    }

    /// A conversation up to the answer that is to come, or (without that) just itself.
    ///
    /// # Errors
    /// When the template refuses it.
    pub fn chat(
        &self,
        messages: &[Message],
        thinking: Option<bool>,
        generation_prompt: GenerationPrompt,
    ) -> anyhow::Result<Tokens> {
        let template = self.template.as_ref().context("the store has no chat template")?;
        let options = RenderOptions { thinking, generation_prompt, ..RenderOptions::default() };
        let prompt = template.render(&Conversation::new(messages.to_vec()), &options)?;
        let ids = self.tokenizer.encode_prompt(&prompt)?;
        Ok(Tokens { ids, start: prompt.start() })
    }

    /// One prompt in the mode that was asked for.
    ///
    /// # Errors
    /// As [`Self::raw`] and [`Self::chat`].
    pub fn prompt(&self, text: &str, mode: &Mode) -> anyhow::Result<Tokens> {
        match mode {
            Mode::Raw(specials) => self.raw(text, *specials),
            Mode::Chat { system, thinking } => {
                let messages = opening(system.as_deref(), text);
                self.chat(&messages, *thinking, GenerationPrompt::Add)
            }
        }
    }
}

/// A conversation of one question.
pub fn opening(system: Option<&str>, text: &str) -> Vec<Message> {
    let system = system.map(|s| Message::new(Role::System, s));
    system.into_iter().chain([Message::new(Role::User, text)]).collect()
}
