//! The endpoints that generate.
//!
//! Owns: which parser and writer belong to which endpoint. Never: their JSON.
//! Invariant: a stream and a whole answer of one request differ in nothing but the writer.

use super::submit::{Endpoint, Submitted, submit};
use super::{Shared, json_response};
use crate::error::Result;
use crate::wire::anthropic::{request as claude, response as claude_response};
use crate::wire::ask::Mode;
use crate::wire::fault::Dialect;
use crate::wire::openai::{chat_request, chat_response, completions as text};
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderValue;
use axum::response::Response;

const CHAT: Endpoint = Endpoint { name: "chat", response: "chatcmpl", call: "call" };
const COMPLETIONS: Endpoint = Endpoint { name: "completions", response: "cmpl", call: "call" };
const MESSAGES: Endpoint = Endpoint { name: "messages", response: "msg", call: "toolu" };

pub(super) async fn chat(State(app): State<Shared>, body: Body) -> Response {
    finish(&app, Dialect::OpenAi, chat_answer(&app, body).await)
}

pub(super) async fn completions(State(app): State<Shared>, body: Body) -> Response {
    finish(&app, Dialect::OpenAi, completions_answer(&app, body).await)
}

pub(super) async fn messages(State(app): State<Shared>, body: Body) -> Response {
    finish(&app, Dialect::Anthropic, messages_answer(&app, body).await)
}

fn finish(app: &Shared, dialect: Dialect, answer: Result<Response>) -> Response {
    answer.unwrap_or_else(|error| app.failure(dialect, &error))
}

async fn chat_answer(app: &Shared, body: Body) -> Result<Response> {
    let body = app.body(body).await?;
    let ask = chat_request::parse(&body, app.desk.options.clock.civil())?;
    let sent = submit(app, ask, CHAT).await?;
    let effort = sent.effort;
    let mut response = match sent.mode {
        Mode::Whole => {
            json_response(&chat_response::whole(&sent.head, sent.answers.whole().await?))
        }
        Mode::Stream => {
            let writer = chat_response::Stream::new(sent.head, sent.answers.len());
            sent.answers.stream(Box::new(writer), app.desk.options.keep_alive)
        }
    };
    tell_effort(&mut response, effort);
    Ok(response)
}

async fn completions_answer(app: &Shared, body: Body) -> Result<Response> {
    let body = app.body(body).await?;
    let ask = text::parse(&body)?;
    let Submitted { head, answers, n, mode, .. } = submit(app, ask, COMPLETIONS).await?;
    Ok(match mode {
        Mode::Whole => json_response(&text::whole(&head, answers.whole().await?, n)),
        Mode::Stream => {
            let writer = text::Stream::new(head, answers.len(), n);
            answers.stream(Box::new(writer), app.desk.options.keep_alive)
        }
    })
}

async fn messages_answer(app: &Shared, body: Body) -> Result<Response> {
    let body = app.body(body).await?;
    let now = app.desk.options.clock.civil();
    let ask = claude::parse(&body, now, claude::Purpose::Answer)?;
    let sent = submit(app, ask, MESSAGES).await?;
    let effort = sent.effort;
    let mut response = match sent.mode {
        Mode::Whole => {
            let mut answers = sent.answers.whole().await?;
            json_response(&claude_response::whole(&sent.head, answers.remove(0)))
        }
        Mode::Stream => {
            let writer = claude_response::Stream::new(sent.head);
            sent.answers.stream(Box::new(writer), app.desk.options.keep_alive)
        }
    };
    tell_effort(&mut response, effort);
    Ok(response)
}

/// Clients send rungs that the template does not know; this says which one was used.
fn tell_effort(response: &mut Response, effort: Option<&'static str>) {
    if let Some(effort) = effort {
        let value = HeaderValue::from_static(effort);
        response.headers_mut().insert("x-reasoning-effort", value);
    }
}
