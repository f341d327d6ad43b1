//! Errors as each dialect writes them.
//!
//! Owns: error bodies. Never: statuses (see `error`).
//! Invariant: the message of an error is the same in every dialect.

use crate::error::Error;
use axum::http::StatusCode;
use serde_json::{Value, json};

/// Whose shape an error body has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    OpenAi,
    Anthropic,
}

impl Dialect {
    /// The dialect that clients of a path speak.
    pub(crate) fn of(path: &str) -> Self {
        if path.contains("/v1/messages") { Self::Anthropic } else { Self::OpenAi }
    }

    /// The body of an error.
    pub(crate) fn body(self, error: &Error) -> Value {
        let (status, message) = (error.status(), error.to_string());
        match self {
            Self::OpenAi => json!({ "error": {
                "message": message,
                "type": openai_type(status),
                "param": error.param(),
                "code": error.code(),
            }}),
            Self::Anthropic => json!({
                "type": "error",
                "error": { "type": anthropic_type(status), "message": message },
            }),
        }
    }
}

fn openai_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        429 => "rate_limit_error",
        400..=499 | 501 => "invalid_request_error",
        _ => "server_error",
    }
}

fn anthropic_type(status: StatusCode) -> &'static str {
    match status.as_u16() {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        503 => "overloaded_error",
        400..=499 | 501 => "invalid_request_error",
        _ => "api_error",
    }
}
