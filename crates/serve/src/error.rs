//! Owns: the one error type of this crate and what each error means to a client.
//! Never: the shape of an error body (see `wire::fault`).
//! Invariant: every variant has exactly one status.

use axum::http::StatusCode;

/// Result with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a request, or the server, failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A field has a value that cannot be used.
    #[error("{param}: {reason}")]
    Invalid {
        /// The field.
        param: String,
        /// What was found and what was expected.
        reason: String,
    },
    /// A field asks for something this server does not do.
    #[error("{param}: {reason}; this server does not support it")]
    Unsupported {
        /// The field.
        param: String,
        /// What it asks for.
        reason: String,
    },
    /// An endpoint that exists elsewhere and not yet here.
    #[error("{what} is not built into this server")]
    NotBuilt {
        /// The endpoint.
        what: String,
    },
    /// Nothing has this name.
    #[error("{what} not found")]
    NotFound {
        /// What was asked for.
        what: String,
    },
    /// Another model was asked for.
    #[error("model `{found}` is not served here; expected {expected}")]
    Model {
        /// The name in the request.
        found: String,
        /// The names that work.
        expected: String,
    },
    /// The endpoint has no such method.
    #[error("method {method} is not allowed for {path}")]
    Method {
        /// The method.
        method: String,
        /// The path.
        path: String,
    },
    /// No valid key.
    #[error("no valid api key; expected one in `authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorised,
    /// A request that a page of another site may have made.
    #[error(
        "host `{found}` is not served; expected a loopback name, or add it to the allowed hosts"
    )]
    Host {
        /// The header.
        found: String,
    },
    /// A page of another site.
    #[error("pages of `{found}` may not call this server; add the origin to the allowed ones")]
    Origin {
        /// The header.
        found: String,
    },
    /// A body larger than allowed.
    #[error("the body has more than {limit} bytes; shorten it or raise the body limit")]
    TooLarge {
        /// Bytes that are allowed.
        limit: usize,
    },
    /// A prompt that leaves no room for an answer.
    #[error(
        "the prompt has {needed} tokens, the context holds {limit} with the answer; shorten the prompt"
    )]
    Context {
        /// Tokens of the prompt.
        needed: usize,
        /// Tokens of the context.
        limit: usize,
    },
    /// The queue is full.
    #[error("{limit} requests are running or waiting, which is the limit; try again later")]
    Busy {
        /// Requests that may be in the server.
        limit: usize,
    },
    /// Messages, template or tokenizer.
    #[error(transparent)]
    Text(#[from] cherenkov_text::Error),
    /// The engine failed this request.
    #[error(transparent)]
    Engine(#[from] cherenkov_engine::Error),
    /// The engine panicked while it worked on this request.
    #[error("the engine panicked while it worked on this request: {0}")]
    Panicked(String),
    /// The engine does not work any more.
    #[error("the engine does not work any more: {0}; restart the server")]
    Degraded(String),
    /// The model is still being loaded.
    #[error("the model is being loaded; try again later")]
    Loading,
    /// The server is shutting down.
    #[error("the server is shutting down")]
    Stopping,
    /// Somebody cancelled the request.
    #[error("the request was cancelled")]
    Cancelled,
    /// The request waited too long for its turn.
    #[error(
        "the request waited {waited_s} seconds for its turn, which is the limit; try again later"
    )]
    Waited {
        /// Seconds.
        waited_s: u64,
    },
    /// A socket or a thread failed.
    #[error("{what}: {source}")]
    Io {
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: std::io::Error,
    },
}

impl Error {
    /// A field with a useless value.
    pub(crate) fn invalid(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Invalid { param: param.into(), reason: reason.into() }
    }

    /// A field that asks for too much.
    pub(crate) fn unsupported(param: impl Into<String>, reason: impl Into<String>) -> Self {
        Self::Unsupported { param: param.into(), reason: reason.into() }
    }

    /// The status a client gets.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } | Self::Unsupported { .. } | Self::Context { .. } => {
                StatusCode::BAD_REQUEST
            }
            Self::NotBuilt { .. } => StatusCode::NOT_IMPLEMENTED,
            Self::NotFound { .. } | Self::Model { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::Unauthorised => StatusCode::UNAUTHORIZED,
            Self::Host { .. } | Self::Origin { .. } => StatusCode::FORBIDDEN,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::Busy { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Text(error) => text_status(error),
            Self::Engine(error) => engine_status(error),
            Self::Panicked(_) | Self::Io { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Degraded(_) | Self::Loading | Self::Stopping | Self::Waited { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::Cancelled => StatusCode::CONFLICT,
        }
    }

    /// A short name for programs.
    pub fn code(&self) -> &'static str {
        match self {
            Self::Invalid { .. } => "invalid_value",
            Self::Unsupported { .. } => "unsupported_parameter",
            Self::NotBuilt { .. } => "not_implemented",
            Self::NotFound { .. } => "not_found",
            Self::Model { .. } => "model_not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Unauthorised => "invalid_api_key",
            Self::Host { .. } => "host_not_allowed",
            Self::Origin { .. } => "origin_not_allowed",
            Self::TooLarge { .. } => "request_too_large",
            Self::Context { .. } => "context_length_exceeded",
            Self::Busy { .. } => "queue_full",
            Self::Text(_) => "invalid_prompt",
            Self::Engine(cherenkov_engine::Error::Context { .. }) => "context_length_exceeded",
            Self::Engine(_) => "engine_failed",
            Self::Panicked(_) => "engine_panicked",
            Self::Degraded(_) => "engine_degraded",
            Self::Loading => "model_loading",
            Self::Stopping => "server_stopping",
            Self::Cancelled => "request_cancelled",
            Self::Waited { .. } => "queue_timeout",
            Self::Io { .. } => "server_error",
        }
    }

    /// The field that is at fault, if one is.
    pub fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } | Self::Unsupported { param, .. } => Some(param),
            Self::Model { .. } => Some("model"),
            Self::Engine(cherenkov_engine::Error::Setting { name, .. }) => Some(name),
            _ => None,
        }
    }
}

fn text_status(error: &cherenkov_text::Error) -> StatusCode {
    use cherenkov_text::Error as Text;
    match error {
        Text::Encode { .. }
        | Text::TemplateRaised(_)
        | Text::TemplateOutput { .. }
        | Text::NoUserTurn { .. }
        | Text::UnknownRole { .. }
        | Text::UnknownEffort { .. }
        | Text::Contradiction { .. }
        | Text::BadArgument { .. }
        | Text::NoPrivateCodePoint
        | Text::EmptyStop { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}

fn engine_status(error: &cherenkov_engine::Error) -> StatusCode {
    use cherenkov_engine::Error as Engine;
    match error {
        Engine::Context { .. }
        | Engine::Token { .. }
        | Engine::Setting { .. }
        | Engine::NoCandidate { .. } => StatusCode::BAD_REQUEST,
        _ => StatusCode::INTERNAL_SERVER_ERROR,
    }
}
