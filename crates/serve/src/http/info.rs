//! The endpoints that tell and count.
//!
//! Owns: health, models, tokens, the list of requests. Never: generation.
//! Invariant: all but the work on tokens renders the last snapshot.

use super::submit::prepare;
use super::{Shared, json_response};
use crate::error::{Error, Result};
use crate::schedule::{Priority, RequestId, Stage};
use crate::snapshot::{Health, RequestView};
use crate::wire::anthropic::request as claude;
use crate::wire::ask::{Calls, Input};
use crate::wire::fault::Dialect;
use crate::wire::fields::Fields;
use crate::wire::openai::{chat_request, completions};
use crate::worker::Event;
use axum::body::Body;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::Response;
use cherenkov_text::{Detokenizer, SpecialTokens};
use serde_json::{Value, json};

pub(super) async fn health(State(app): State<Shared>) -> Response {
    let (status, state, reason) = match app.health() {
        Health::Ready => (StatusCode::OK, "ready", None),
        Health::Loading => (StatusCode::SERVICE_UNAVAILABLE, "loading", None),
        Health::Stopping => (StatusCode::SERVICE_UNAVAILABLE, "stopping", None),
        Health::Degraded(reason) => (StatusCode::SERVICE_UNAVAILABLE, "degraded", Some(reason)),
    };
    let snapshot = app.snapshot.borrow().clone();
    let queued = snapshot.queued();
    let mut value = json!({
        "status": state,
        "running": snapshot.requests.len() - queued,
        "queued": queued,
    });
    if let Some(reason) = reason {
        value["reason"] = Value::String(reason);
    }
    let mut response = json_response(&value);
    *response.status_mut() = status;
    response
}

fn model_value(app: &Shared, name: &str) -> Value {
    let context = app.desk.info.get().map(|info| info.context);
    json!({
        "id": name,
        "object": "model",
        "type": "model",
        "display_name": app.desk.text.name,
        "created": 0,
        "created_at": "1970-01-01T00:00:00Z",
        "owned_by": "cherenkov",
        "max_model_len": context,
    })
}

pub(super) async fn models(State(app): State<Shared>) -> Response {
    let text = &app.desk.text;
    let names = std::iter::once(&text.name).chain(&text.aliases);
    let data: Vec<Value> = names.map(|name| model_value(&app, name)).collect();
    json_response(&json!({ "object": "list", "data": data, "has_more": false }))
}

pub(super) async fn model(State(app): State<Shared>, Path(id): Path<String>) -> Response {
    match app.check_model(Some(&id)) {
        Ok(()) => json_response(&model_value(&app, &id)),
        Err(error) => app.failure(Dialect::OpenAi, &error),
    }
}

fn request_value(view: &RequestView) -> Value {
    let stage = match view.stage {
        Stage::Queued => "queued",
        Stage::Prefill => "prefill",
        Stage::Decode => "decode",
        Stage::Paused => "paused",
    };
    let priority = match view.priority {
        Priority::Interactive => "interactive",
        Priority::Background => "background",
    };
    json!({
        "id": view.id.0,
        "response": &*view.response,
        "endpoint": view.endpoint,
        "stage": stage,
        "priority": priority,
        "prompt_tokens": view.prompt_tokens,
        "read_tokens": view.read_tokens,
        "cached_tokens": view.cached_tokens,
        "answer_tokens": view.answer_tokens,
        "age_ms": view.age_ms,
    })
}

/// The requests with this number or response id.
fn find(app: &Shared, id: &str) -> Result<Vec<RequestView>> {
    let snapshot = app.snapshot.borrow().clone();
    let is = |view: &&RequestView| *view.response == *id || view.id.0.to_string() == id;
    let found: Vec<RequestView> = snapshot.requests.iter().filter(is).cloned().collect();
    if found.is_empty() {
        return Err(Error::NotFound { what: format!("request `{id}`") });
    }
    Ok(found)
}

pub(super) async fn requests(State(app): State<Shared>) -> Response {
    let snapshot = app.snapshot.borrow().clone();
    let data: Vec<Value> = snapshot.requests.iter().map(request_value).collect();
    json_response(&json!({ "object": "list", "data": data }))
}

pub(super) async fn request(State(app): State<Shared>, Path(id): Path<String>) -> Response {
    match find(&app, &id) {
        Ok(found) => {
            let data: Vec<Value> = found.iter().map(request_value).collect();
            json_response(&json!({ "object": "list", "data": data }))
        }
        Err(error) => app.failure(Dialect::OpenAi, &error),
    }
}

pub(super) async fn cancel(State(app): State<Shared>, Path(id): Path<String>) -> Response {
    match find(&app, &id) {
        Ok(found) => {
            let ids: Vec<RequestId> = found.iter().map(|view| view.id).collect();
            for id in &ids {
                // A worker that has ended has no requests.
                let _ = app.events.send(Event::Cancel(*id));
            }
            let ids: Vec<u64> = ids.iter().map(|id| id.0).collect();
            json_response(&json!({ "cancelled": ids }))
        }
        Err(error) => app.failure(Dialect::OpenAi, &error),
    }
}

pub(super) async fn count_tokens(State(app): State<Shared>, body: Body) -> Response {
    match count(&app, body).await {
        Ok(count) => json_response(&json!({ "input_tokens": count })),
        Err(error) => app.failure(Dialect::Anthropic, &error),
    }
}

async fn count(app: &Shared, body: Body) -> Result<usize> {
    let body = app.body(body).await?;
    let ask = claude::parse(&body, app.desk.options.clock.civil(), claude::Purpose::Count)?;
    app.check_model(ask.model.as_deref())?;
    let prepared = prepare(app, ask.inputs, ask.calls).await?;
    Ok(prepared.iter().map(|p| p.tokens.len()).sum())
}

pub(super) async fn tokenize(State(app): State<Shared>, body: Body) -> Response {
    match tokens_of(&app, body).await {
        Ok(tokens) => json_response(&json!({
            "tokens": tokens,
            "count": tokens.len(),
            "max_model_len": app.desk.info.get().map(|info| info.context),
        })),
        Err(error) => app.failure(Dialect::OpenAi, &error),
    }
}

async fn tokens_of(app: &Shared, body: Body) -> Result<Vec<u32>> {
    let body = app.body(body).await?;
    let mut fields = Fields::body(&body)?;
    if fields.take("messages").is_some() {
        // The fields of a chat request say how the messages are rendered.
        let ask = chat_request::parse(&body, app.desk.options.clock.civil())?;
        app.check_model(ask.model.as_deref())?;
        let mut prepared = prepare(app, ask.inputs, ask.calls).await?;
        return Ok(prepared.remove(0).tokens);
    }
    let content = fields.string("content")?;
    let text = match content.or(fields.string("prompt")?) {
        Some(text) => text,
        None => {
            let reason = "found nothing, expected `content`, `prompt` or `messages`";
            return Err(Error::invalid("content", reason));
        }
    };
    app.check_model(fields.string("model")?.as_deref())?;
    let special = fields.flag("parse_special")?.unwrap_or(true);
    fields.finish(&["add_special", "add_special_tokens"], &[])?;
    if !special {
        return Ok(app.desk.text.tokenizer.encode_plain(&text)?);
    }
    let mut prepared = prepare(app, vec![Input::Text(text)], Calls::Off).await?;
    Ok(prepared.remove(0).tokens)
}

pub(super) async fn detokenize(State(app): State<Shared>, body: Body) -> Response {
    match text_of(&app, body).await {
        Ok(text) => json_response(&json!({ "content": text, "prompt": text })),
        Err(error) => app.failure(Dialect::OpenAi, &error),
    }
}

async fn text_of(app: &Shared, body: Body) -> Result<String> {
    let body = app.body(body).await?;
    let mut fields = Fields::body(&body)?;
    let items = fields.list("tokens")?;
    let items = items.ok_or_else(|| Error::invalid("tokens", "found nothing, expected a list"))?;
    app.check_model(fields.string("model")?.as_deref())?;
    fields.finish(&[], &[])?;
    let tokenizer = &app.desk.text.tokenizer;
    let tokens = completions::tokens("tokens", &items)?;
    if let Some(token) = tokens.iter().find(|&&t| tokenizer.token_bytes(t).is_none()) {
        return Err(Error::invalid("tokens", format!("found {token}, which no token has")));
    }
    Ok(Detokenizer::decode(tokenizer, &tokens, SpecialTokens::Show))
}
