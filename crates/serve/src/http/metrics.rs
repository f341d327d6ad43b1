//! `/metrics` in the text format of Prometheus.
//!
//! Owns: names and kinds of the metrics. Never: counting.
//! Invariant: all numbers of one answer are of one snapshot.

use super::Shared;
use crate::schedule::Stage;
use crate::snapshot::{Health, Snapshot};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use std::fmt::Write;

pub(super) async fn metrics(State(app): State<Shared>) -> Response {
    let snapshot = app.snapshot.borrow().clone();
    let text = render(&snapshot, &app.health());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

struct Page(String);

impl Page {
    fn head(&mut self, name: &str, kind: &str, help: &str) {
        // Writing to a string cannot fail.
        let _ = write!(self.0, "# HELP cherenkov_{name} {help}\n# TYPE cherenkov_{name} {kind}\n");
    }

    fn value(&mut self, name: &str, labels: &str, value: impl std::fmt::Display) {
        let _ = writeln!(self.0, "cherenkov_{name}{labels} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: u64) {
        self.head(name, "counter", help);
        self.value(name, "", value);
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.head(name, "gauge", help);
        self.value(name, "", value);
    }
}

fn render(snapshot: &Snapshot, health: &Health) -> String {
    let mut page = Page(String::new());
    page.gauge("ready", "Whether requests are answered.", usize::from(*health == Health::Ready));
    page.head("requests", "gauge", "Requests in the server by stage.");
    let stages = [
        (Stage::Queued, "queued"),
        (Stage::Prefill, "prefill"),
        (Stage::Decode, "decode"),
        (Stage::Paused, "paused"),
    ];
    for (stage, name) in stages {
        let count = snapshot.requests.iter().filter(|r| r.stage == stage).count();
        page.value("requests", &format!("{{stage=\"{name}\"}}"), count);
    }
    let c = &snapshot.counters;
    page.head("requests_total", "counter", "Requests that ended, by outcome.");
    let outcomes = [("finished", c.finished), ("failed", c.failed), ("cancelled", c.cancelled)];
    for (name, count) in outcomes {
        page.value("requests_total", &format!("{{outcome=\"{name}\"}}"), count);
    }
    page.counter("submitted_total", "Requests that came to the worker.", c.submitted);
    page.counter("prompt_tokens_total", "Prompt tokens of requests that began.", c.prompt_tokens);
    page.counter("cached_tokens_total", "Prompt tokens that checkpoints held.", c.cached_tokens);
    page.counter("answer_tokens_total", "Answer tokens.", c.answer_tokens);
    page.counter("panics_total", "Panics of the engine.", c.panics);
    page.counter("retried_steps_total", "Steps made again one by one.", c.retried);
    page.head("first_token_seconds", "summary", "Time from arrival to the first token.");
    page.value("first_token_seconds_sum", "", c.first_token_ms as f64 / 1000.0);
    page.value("first_token_seconds_count", "", c.first_tokens);
    page.gauge("checkpoints", "Prefix checkpoints.", snapshot.checkpoints);
    engine(&mut page, &snapshot.engine);
    page.0
}

fn engine(page: &mut Page, e: &cherenkov_engine::Snapshot) {
    page.counter("engine_prefill_tokens_total", "Prompt tokens run.", e.prefill_tokens);
    page.counter("engine_decode_tokens_total", "Tokens drawn.", e.decode_tokens);
    page.counter("engine_steps_total", "Decode steps.", e.steps);
    for (name, help, counts) in [
        ("engine_drafted_total", "Drafts offered by depth.", &e.drafted),
        ("engine_accepted_total", "Drafts accepted by depth.", &e.accepted),
    ] {
        page.head(name, "counter", help);
        for (depth, count) in counts.iter().enumerate() {
            page.value(name, &format!("{{depth=\"{}\"}}", depth + 1), count);
        }
    }
    page.counter("engine_expert_hits_total", "Experts found in memory.", e.expert_hits);
    page.counter("engine_expert_misses_total", "Experts read.", e.expert_misses);
    page.counter("engine_read_bytes_total", "Bytes of experts read.", e.read_bytes);
    page.gauge("engine_pool_slots", "Expert records that memory holds.", e.pool_slots);
    page.head("engine_memory_bytes", "gauge", "Memory by purpose.");
    for (purpose, bytes) in &e.memory {
        page.value("engine_memory_bytes", &format!("{{purpose=\"{purpose}\"}}"), bytes);
    }
}
