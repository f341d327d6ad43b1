//! The HTTP surface.
//!
//! Owns: routes, what handlers share. Never: the engine, waiting for the worker while holding a lock.
//! Invariant: handlers only submit, cancel, and read outboxes and snapshots.

pub(crate) mod answers;
mod guard;
mod info;
mod metrics;
mod serving;
pub(crate) mod submit;

use crate::error::{Error, Result};
use crate::snapshot::{Health, Snapshot};
use crate::wire::fault::Dialect;
use crate::worker::{Desk, Event};
use axum::Router;
use axum::body::{Body, Bytes, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, Uri, header};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use serde_json::Value;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use tokio::sync::{Semaphore, watch};

/// Endpoints of other servers that may be asked for here.
const NOT_BUILT: &[&str] = &[
    "/v1/responses",
    "/v1/embeddings",
    "/v1/rerank",
    "/v1/images",
    "/v1/audio",
    "/v1/batches",
    "/v1/files",
    "/v1/moderations",
    "/v1/fine_tuning",
    "/v1/assistants",
    "/v1/threads",
    "/v1/vector_stores",
    "/v1/realtime",
    "/v1/messages/batches",
    "/api",
];

/// What handlers share.
pub(crate) struct App {
    pub(crate) desk: Desk,
    pub(crate) events: mpsc::Sender<Event>,
    pub(crate) snapshot: watch::Receiver<Arc<Snapshot>>,
    /// One place per request that may be in the server.
    pub(crate) places: Arc<Semaphore>,
    pub(crate) capacity: usize,
    pub(crate) ids: AtomicU64,
    pub(crate) stopping: AtomicBool,
    /// Whether the server listens on a loopback address.
    pub(crate) loopback: bool,
}

pub(crate) type Shared = Arc<App>;

impl App {
    /// Whether requests are answered.
    pub(crate) fn health(&self) -> Health {
        let health = self.snapshot.borrow().health.clone();
        let stopping = self.stopping.load(Ordering::Relaxed);
        if stopping && health == Health::Ready { Health::Stopping } else { health }
    }

    /// The next number of a request.
    pub(crate) fn number(&self) -> u64 {
        self.ids.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// The body of a request, within the limit.
    pub(crate) async fn body(&self, body: Body) -> Result<Bytes> {
        let limit = self.desk.options.body_bytes_max;
        // A client that leaves while it writes gets this answer too, and does not read it.
        to_bytes(body, limit).await.map_err(|_| Error::TooLarge { limit })
    }

    /// The answer to a request that failed.
    pub(crate) fn failure(&self, dialect: Dialect, error: &Error) -> Response {
        let mut response = json_response(&dialect.body(error));
        *response.status_mut() = error.status();
        if matches!(response.status().as_u16(), 429 | 503) {
            let seconds = HeaderValue::from(self.desk.options.retry_after_s);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

/// A JSON body.
pub(crate) fn json_response(value: &Value) -> Response {
    let mut text = value.to_string();
    text.push('\n');
    ([(header::CONTENT_TYPE, "application/json")], text).into_response()
}

/// All routes.
pub(crate) fn router(app: &Shared) -> Router {
    let api = Router::new()
        .route("/chat/completions", post(serving::chat))
        .route("/completions", post(serving::completions))
        .route("/messages", post(serving::messages))
        .route("/messages/count_tokens", post(info::count_tokens))
        .route("/models", get(info::models))
        .route("/models/{*id}", get(info::model))
        .route("/requests", get(info::requests))
        .route("/requests/{id}", get(info::request).delete(info::cancel))
        .route("/requests/{id}/cancel", post(info::cancel));
    Router::new()
        // Some clients add a second /v1 to a base address that ends with one.
        .nest("/v1/v1", api.clone())
        .nest("/v1", api)
        .route("/health", get(info::health))
        .route("/metrics", get(metrics::metrics))
        .route("/tokenize", post(info::tokenize))
        .route("/detokenize", post(info::detokenize))
        .fallback(unknown)
        .method_not_allowed_fallback(wrong_method)
        .layer(middleware::from_fn_with_state(Arc::clone(app), guard::guard))
        .with_state(Arc::clone(app))
}

async fn unknown(axum::extract::State(app): axum::extract::State<Shared>, uri: Uri) -> Response {
    let path = uri.path();
    let what = format!("`{path}`");
    let under = |known: &&str| {
        path.strip_prefix(*known).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let error = if NOT_BUILT.iter().any(under) {
        Error::NotBuilt { what }
    } else {
        Error::NotFound { what }
    };
    app.failure(Dialect::of(path), &error)
}

async fn wrong_method(
    axum::extract::State(app): axum::extract::State<Shared>,
    request: Request,
) -> Response {
    let path = request.uri().path().to_owned();
    let error = Error::Method { method: request.method().to_string(), path: path.clone() };
    app.failure(Dialect::of(&path), &error)
}
