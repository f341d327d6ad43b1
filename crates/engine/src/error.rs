//! The one error type of this crate.

/// Result with this crate's [`Error`].
pub type Result<T> = std::result::Result<T, Error>;

/// Why a request to the engine failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The model or its device failed.
    #[error(transparent)]
    Model(#[from] cherenkov_model::Error),
    /// No such sequence.
    #[error("sequence {0} is not open")]
    Closed(u32),
    /// More tokens than the context holds.
    #[error(
        "the sequence would hold {needed} tokens, the context holds {limit}; shorten the prompt or raise --max-ctx"
    )]
    Context {
        /// Tokens needed.
        needed: usize,
        /// Tokens there is room for.
        limit: usize,
    },
    /// A token id the model does not have.
    #[error(
        "found token {token}, expected ids below {vocab}; the tokenizer belongs to another model"
    )]
    Token {
        /// The id.
        token: u32,
        /// Size of the vocabulary.
        vocab: usize,
    },
    /// A saved sequence whose keys and values are other numbers than this engine's.
    #[error(
        "saved sequence: found keys and values in {found}, expected {expected}; start with --kv {found} or run the prompt again"
    )]
    Kv {
        /// What the bytes hold.
        found: String,
        /// What this engine keeps.
        expected: &'static str,
    },
    /// A call that the sequence's state does not allow.
    #[error("{0}")]
    Order(&'static str),
    /// The model produced logits that are not numbers.
    #[error(
        "the logits of position {position} are not finite; the model or the device is broken, `cherenkov run --check` finds where"
    )]
    NonFinite {
        /// Position of the token that was to be drawn.
        position: usize,
    },
    /// A sampling setting out of range.
    #[error("{name}: found {found}, expected {expected}")]
    Setting {
        /// Name of the setting.
        name: &'static str,
        /// Its value.
        found: String,
        /// What is allowed.
        expected: &'static str,
    },
    /// Every sampling candidate was excluded.
    #[error(
        "no token is left to draw at position {position}; loosen the logit bias or the constraint"
    )]
    NoCandidate {
        /// Position of the token that was to be drawn.
        position: usize,
    },
}
