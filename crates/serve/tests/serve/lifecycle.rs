//! Requests that end early: cancelled, left, refused, failed, drained.

use crate::support::client::{finish, read_until};
use crate::support::script::{Fault, Scripted};
use crate::support::{Running, options, scripted, start, text};
use cherenkov_serve::schedule::Stage;
use cherenkov_serve::{Health, ServeOptions, Server};
use serde_json::{Value, json};
use std::time::Duration;

const PATH: &str = "/v1/completions";

fn engine() -> Scripted {
    let long = "word ".repeat(300);
    Scripted::replies(&[("long=>", &long), ("bad=>", "never said"), ("good=>", "fine")])
}

async fn server(options: ServeOptions) -> Running {
    scripted(engine(), options).await
}

fn ask(prompt: &str) -> Value {
    json!({ "prompt": prompt })
}

fn streamed(prompt: &str) -> Value {
    json!({ "prompt": prompt, "stream": true })
}

/// The server is empty again and still answers.
async fn works(s: &Running) {
    s.until("no requests", |s| s.requests.is_empty()).await;
    let reply = s.client().post(PATH, &ask("good=>")).await;
    assert_eq!(reply.json()["choices"][0]["text"], "fine", "{}", reply.body);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_leaves_cancels_at_every_stage() {
    let small = ServeOptions { running: Some(1), quantum: 16, checkpoints: 4, ..options() };
    let s = scripted(engine().with(|info| info.chunk = 16), small).await;
    let prompt = format!("{}long=>", "many words ".repeat(100));
    for body in [ask(&prompt), streamed(&prompt)] {
        // While the prompt is read.
        s.control.hold_after(2);
        let reading = s.client().start(PATH, &body).await;
        s.until("prefill", |s| s.requests.iter().any(|r| r.stage == Stage::Prefill)).await;
        // While it waits.
        let waiting = s.client().start(PATH, &streamed("good=>")).await;
        tokio::time::sleep(Duration::from_millis(100)).await;
        s.control.hold_after(1);
        s.until("queued", |s| s.queued() == 1).await;
        drop(waiting);
        drop(reading);
        tokio::time::sleep(Duration::from_millis(50)).await;
        s.control.release();
        works(&s).await;
    }
    assert!(s.control.read() < 400, "the rest of the prompts was not read");
    // While the answer comes.
    for body in [ask("long=>"), streamed("long=>")] {
        s.control.hold_after(8);
        let decoding = s.client().start(PATH, &body).await;
        s.until("tokens", |s| s.requests.iter().any(|r| r.answer_tokens > 2)).await;
        drop(decoding);
        tokio::time::sleep(Duration::from_millis(50)).await;
        s.control.release();
        works(&s).await;
    }
    let seen = s.snapshots.borrow().clone();
    assert_eq!(seen.counters.cancelled, 6);
    assert_eq!(s.control.open(), seen.checkpoints, "no sequence is lost");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_retry_goes_on_where_the_cancelled_prefill_stopped() {
    let small = ServeOptions { quantum: 16, ..options() };
    let s = scripted(engine().with(|info| info.chunk = 16), small).await;
    let prompt = format!("{}good=>", "many words ".repeat(50));
    s.control.hold_after(3);
    let first = s.client().start(PATH, &ask(&prompt)).await;
    s.until("prefill", |s| s.requests.iter().any(|r| r.read_tokens >= 32)).await;
    drop(first);
    tokio::time::sleep(Duration::from_millis(50)).await;
    s.control.release();
    s.until("empty", |s| s.requests.is_empty()).await;
    let reply = s.client().post(PATH, &ask(&prompt)).await.json();
    assert_eq!(reply["choices"][0]["text"], "fine");
    let cached = reply["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    assert!(cached >= 32 && cached % 16 == 0, "found {cached}");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_are_listed_and_cancelled_by_id() {
    let s = server(options()).await;
    s.control.hold_after(4);
    let open = s.client().start(PATH, &ask("long=>")).await;
    s.until("tokens", |s| s.requests.iter().any(|r| r.answer_tokens > 0)).await;
    let listed = s.client().get("/v1/requests").await.json();
    let id = listed["data"][0]["response"].as_str().unwrap().to_owned();
    assert_eq!(listed["data"][0]["stage"], "decode");
    assert_eq!(s.client().send("DELETE", "/v1/requests/none", "").await.status, 404);
    let gone = s.client().send("POST", &format!("/v1/requests/{id}/cancel"), "").await;
    assert_eq!(gone.status, 200);
    s.control.release();
    let reply = finish(open).await;
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str()),
        (409, Some("request_cancelled"))
    );
    works(&s).await;
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_queue_says_when_to_come_back() {
    let small = ServeOptions { running: Some(1), queue: 1, ..options() };
    let s = server(small).await;
    s.control.hold_after(3);
    let first = s.client().start(PATH, &ask("good=>")).await;
    s.until("one", |s| s.requests.len() == 1).await;
    let second = s.client().start(PATH, &ask("good=>")).await;
    tokio::time::sleep(Duration::from_millis(100)).await;
    let third = s.client().post(PATH, &ask("good=>")).await;
    assert_eq!((third.status, third.header("retry-after").as_deref()), (429, Some("5")));
    assert_eq!(third.json()["error"]["type"], "rate_limit_error");
    s.control.release();
    for open in [first, second] {
        assert_eq!(finish(open).await.json()["choices"][0]["text"], "fine");
    }
    works(&s).await;
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slow_reader_pauses_itself_only() {
    let tight = ServeOptions { outbox: 4, ..options() };
    // Large events fill the socket's buffers soon.
    let reply = "verbose ".repeat(4000);
    let engine = Scripted::replies(&[("long=>", &reply), ("good=>", "fine")]);
    let s = scripted(engine.with(|info| info.context = 40_000), tight).await;
    let body = json!({ "prompt": "long=>", "stream": true, "logprobs": 20 });
    let slow = s.client().start(PATH, &body).await;
    let paused = s.until("paused", |s| s.requests.iter().any(|r| r.stage == Stage::Paused)).await;
    let at = paused.requests[0].answer_tokens;
    for _ in 0..3 {
        let reply = s.client().post(PATH, &ask("good=>")).await;
        assert_eq!(reply.json()["choices"][0]["text"], "fine");
    }
    assert!(at < 4000, "the worker did not run ahead without bound");
    let reply = finish(slow).await;
    assert!(reply.body.ends_with("[DONE]\n\n"), "a reader that comes back gets everything");
    let texts = reply.events().into_iter().map(|e| e["choices"][0]["text"].clone());
    let text: String = texts.map(|t| t.as_str().unwrap().to_owned()).collect();
    assert_eq!(text, "verbose ".repeat(4000));
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_request_fails_alone() {
    for fault in [Fault::Step, Fault::Draw] {
        let s = server(options()).await;
        s.control.poison("bad", fault);
        s.control.hold_after(0);
        let mut open = Vec::new();
        for prompt in ["good=>", "bad=>", "so good=>"] {
            open.push(s.client().start(PATH, &ask(prompt)).await);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        s.control.release();
        let mut replies = Vec::new();
        for stream in open {
            replies.push(finish(stream).await);
        }
        assert_eq!(replies[0].json()["choices"][0]["text"], "fine", "{fault:?}");
        assert_eq!(replies[2].json()["choices"][0]["text"], "fine", "{fault:?}");
        assert_eq!(replies[1].status, 500, "{fault:?}: {}", replies[1].body);
        assert_eq!(replies[1].json()["error"]["code"], "engine_failed");
        works(&s).await;
        s.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_ends_what_was_running_and_nothing_else() {
    let s = server(options()).await;
    s.control.poison("bad", Fault::Panic);
    let reply = s.client().post(PATH, &ask("bad=>")).await;
    assert_eq!(
        (reply.status, reply.json()["error"]["code"].as_str()),
        (500, Some("engine_panicked"))
    );
    works(&s).await;
    assert_eq!(s.snapshots.borrow().counters.panics, 1);
    let streamed = json!({ "prompt": "bad=>", "stream": true });
    s.control.poison("bad", Fault::PanicForEver);
    let reply = s.client().post(PATH, &streamed).await;
    assert_eq!(reply.events()[0]["error"]["code"], "engine_panicked");
    s.until("degraded", |s| matches!(s.health, Health::Degraded(_))).await;
    let health = s.client().get("/health").await;
    assert_eq!((health.status, health.json()["status"].as_str()), (503, Some("degraded")));
    assert_eq!(s.client().post(PATH, &ask("good=>")).await.status, 503);
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn silence_is_filled_with_events() {
    let quick = ServeOptions { keep_alive: Duration::from_millis(20), ..options() };
    let s = server(quick).await;
    s.control.hold_after(0);
    let mut openai = s.client().start(PATH, &streamed("good=>")).await;
    let seen = read_until(&mut openai, "\"text\":\"\"").await;
    assert!(seen.contains("\"finish_reason\":null"));
    let body = json!({ "max_tokens": 9, "stream": true,
        "messages": [{ "role": "user", "content": "good=>" }] });
    let mut claude = s.client().start("/v1/messages", &body).await;
    read_until(&mut claude, "event: ping").await;
    s.control.release();
    drop((openai, claude));
    works(&s).await;
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_lets_answers_end_but_not_for_ever() {
    let s = server(options()).await;
    s.control.hold_after(2);
    let mut open = s.client().start(PATH, &streamed("good=>")).await;
    s.until("one", |s| s.requests.len() == 1).await;
    let control = s.control.clone();
    let stopping = tokio::spawn(s.stop());
    tokio::time::sleep(Duration::from_millis(100)).await;
    control.release();
    read_until(&mut open, "[DONE]").await;
    stopping.await.unwrap().unwrap();

    let short = ServeOptions { drain: Duration::from_millis(50), ..options() };
    let s = server(short).await;
    s.control.hold_after(4);
    let mut open = s.client().start(PATH, &streamed("long=>")).await;
    s.until("tokens", |s| s.requests.iter().any(|r| r.answer_tokens > 0)).await;
    let control = s.control.clone();
    let stopping = tokio::spawn(s.stop());
    tokio::time::sleep(Duration::from_millis(150)).await;
    control.release();
    read_until(&mut open, "server_stopping").await;
    stopping.await.unwrap().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_is_asked_while_it_loads() {
    let engine = engine();
    let control = engine.control();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let load = move || {
        wait.recv().unwrap();
        Ok(Box::new(engine) as Box<dyn cherenkov_engine::Engine>)
    };
    let s = start(Server::loading(load, text(), options()), control).await;
    assert_eq!(s.client().get("/health").await.json()["status"], "loading");
    let early = s.client().post(PATH, &ask("good=>")).await;
    assert_eq!((early.status, early.header("retry-after").is_some()), (503, true));
    go.send(()).unwrap();
    s.until("ready", |s| s.health == Health::Ready).await;
    works(&s).await;
    s.stop().await.unwrap();
    let broken = Server::loading(|| Err("no such file".into()), text(), options());
    let mut s = start(broken, engine_control()).await;
    let ended = s.task.take().unwrap().await.unwrap().unwrap_err().to_string();
    assert!(ended.contains("no such file"), "found {ended}");
}

fn engine_control() -> crate::support::script::Control {
    crate::support::script::Control::default()
}
