//! The tokens that a benchmark runs.
//!
//! Owns: random tokens, and a text of any length that ends where an answer begins.

use crate::args::bench::{BenchArgs, TokensName};
use crate::check::PROMPTS;
use crate::exit::usage;
use crate::prompt::Words;
use crate::settings::Mode;
use anyhow::Context as _;
use cherenkov_format::{Store, checksum};

/// Tokens to run.
#[derive(Clone, Debug)]
pub enum Tokens {
    /// Uniform over the vocabulary.
    Random {
        /// Tokens of the model.
        vocab: usize,
        /// Another seed gives other tokens.
        seed: u64,
    },
    /// A conversation; repeated to any length.
    Text(Vec<u32>),
}

impl Tokens {
    /// As the arguments say.
    ///
    /// # Errors
    /// When the text cannot be read or has no tokens.
    pub fn open(args: &BenchArgs, store: &Store) -> anyhow::Result<Self> {
        let wordless = !store.dir().join("tokenizer.json").exists();
        let noise = wordless || store.manifest().source.format == "synthetic";
        let usual = if noise { TokensName::Random } else { TokensName::Text };
        let named = args.text.as_ref().map_or(usual, |_| TokensName::Text);
        if args.text.is_some() && args.tokens == Some(TokensName::Random) {
            return Err(usage("--text FILE is not --tokens random"));
        }
        match args.tokens.unwrap_or(named) {
            TokensName::Random => Ok(Self::Random { vocab: store.config().vocab, seed: args.seed }),
            TokensName::Text => {
                let mode = Mode::Chat { system: None, thinking: None };
                let words = Words::open(store, &mode)?;
                let text = match &args.text {
                    None => PROMPTS[0].to_owned(),
                    Some(path) => std::fs::read_to_string(path)
                        .with_context(|| format!("cannot read {}", path.display()))?,
                };
                Ok(Self::Text(words.prompt(&text, &mode)?.ids))
            }
        }
    }

    /// The prompts of several conversations.
    ///
    /// # Errors
    /// When the store has no words.
    pub fn conversations(store: &Store) -> anyhow::Result<Vec<Vec<u32>>> {
        let mode = Mode::Chat { system: None, thinking: None };
        let words = Words::open(store, &mode)?;
        PROMPTS.iter().map(|text| Ok(words.prompt(text, &mode)?.ids)).collect()
    }

    /// What is run, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Random { .. } => "random",
            Self::Text(_) => "text",
        }
    }

    /// The depth that stands for the one asked for: a text is never cut at its end.
    pub fn depth(&self, asked: usize) -> usize {
        match self {
            Self::Random { .. } => asked,
            Self::Text(text) => asked.max(text.len() - 1),
        }
    }

    /// `count` tokens that end where an answer begins.
    pub fn before(&self, count: usize) -> Vec<u32> {
        match self {
            Self::Random { .. } => self.random(0, count),
            Self::Text(text) => {
                let skip = (text.len() - count % text.len()) % text.len();
                text.iter().copied().cycle().skip(skip).take(count).collect()
            }
        }
    }

    /// `count` tokens that call on as many experts as can be, for warming up.
    pub fn spread(count: usize, vocab: usize) -> Vec<u32> {
        Self::Random { vocab, seed: 0 }.random(2, count)
    }

    /// `count` tokens of a prompt that follows.
    pub fn prompt(&self, count: usize) -> Vec<u32> {
        match self {
            Self::Random { .. } => self.random(1, count),
            Self::Text(text) => text.iter().copied().cycle().take(count).collect(),
        }
    }

    fn random(&self, stream: u64, count: usize) -> Vec<u32> {
        let Self::Random { vocab, seed } = self else { return Vec::new() };
        let token = |i: usize| {
            let key = [*seed, stream, i as u64].map(u64::to_le_bytes).concat();
            (checksum(&key) % *vocab as u64) as u32
        };
        (0..count).map(token).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_end_where_an_answer_begins() {
        let text = Tokens::Text(vec![1, 2, 3]);
        assert_eq!(text.before(3), [1, 2, 3]);
        assert_eq!(text.before(7), [3, 1, 2, 3, 1, 2, 3]);
        assert_eq!(text.prompt(4), [1, 2, 3, 1]);
        assert_eq!((text.depth(0), text.depth(9)), (2, 9));
    }

    #[test]
    fn random_tokens_repeat_and_are_known_to_the_model() {
        let random = Tokens::Random { vocab: 10, seed: 1 };
        let tokens = random.before(1000);
        assert_eq!(tokens, random.before(1000));
        assert_eq!(tokens.iter().copied().max(), Some(9));
        assert_ne!(tokens, random.prompt(1000));
        assert_eq!(random.depth(0), 0);
    }
}
