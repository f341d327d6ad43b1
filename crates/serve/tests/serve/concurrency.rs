//! Many requests at a time, drafts, shared prefixes.

use crate::support::client::finish;
use crate::support::script::Scripted;
use crate::support::{Running, options, scripted};
use cherenkov_serve::ServeOptions;
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn engine() -> Scripted {
    let replies: Vec<(String, String)> = (0..8)
        .map(|i| {
            (
                format!("topic {i}."),
                format!("Thought {i}.\n</think>\n\n{}", "text ".repeat(5 + 3 * i)),
            )
        })
        .collect();
    let replies: Vec<(&str, &str)> = replies.iter().map(|(a, b)| (&a[..], &b[..])).collect();
    Scripted::replies(&replies)
}

fn ask(i: usize, temperature: f64) -> Value {
    let text = format!("{}topic {i}.", "filler ".repeat(10 * i));
    json!({ "messages": [{ "role": "user", "content": text }], "seed": 11 + i,
        "temperature": temperature, "max_tokens": 60, "logprobs": true })
}

async fn choices(s: &Running, temperature: f64) -> Vec<Value> {
    let mut open = Vec::new();
    for i in 0..8 {
        open.push(s.client().start(CHAT, &ask(i, temperature)).await);
    }
    let mut out = Vec::new();
    for stream in open {
        let reply = finish(stream).await;
        assert_eq!(reply.status, 200, "{}", reply.body);
        out.push(reply.json()["choices"][0].clone());
    }
    out
}

#[tokio::test(flavor = "multi_thread")]
async fn eight_clients_get_what_each_gets_alone() {
    let small = || ServeOptions { quantum: 32, ..options() };
    for temperature in [0.0, 1.2] {
        let mut alone = Vec::new();
        for i in 0..8 {
            let s = scripted(engine(), options()).await;
            let reply = s.client().post(CHAT, &ask(i, temperature)).await.json();
            alone.push(reply["choices"][0].clone());
            s.stop().await.unwrap();
        }
        for drafts in [0, 3] {
            let engine = engine().with(|info| info.drafts = drafts);
            let s = scripted(engine, small()).await;
            // All arrive before the first turn, so that steps are wide.
            s.control.hold_after(0);
            let release = s.control.clone();
            tokio::spawn(async move {
                tokio::time::sleep(std::time::Duration::from_millis(300)).await;
                release.release();
            });
            assert_eq!(choices(&s, temperature).await, alone, "{drafts} drafts");
            assert!(s.control.widest() >= if drafts == 0 { 4 } else { 2 }, "steps are shared");
            let again = choices(&s, temperature).await;
            assert_eq!(again, alone, "from checkpoints");
            s.stop().await.unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_turn_reads_only_what_is_new() {
    let replies = [("first", "One.\n</think>\n\nHello."), ("second", "Two.\n</think>\n\nAgain.")];
    let s = scripted(Scripted::replies(&replies), options()).await;
    let mut messages = json!([{ "role": "system", "content": "Be brief." },
        { "role": "user", "content": "the first question" }]);
    let cached = |v: &Value| v["usage"]["prompt_tokens_details"]["cached_tokens"].as_u64().unwrap();
    let first = s.client().post(CHAT, &json!({ "messages": messages })).await.json();
    assert_eq!(cached(&first), 0);
    let read = s.control.read();
    let same = s.client().post(CHAT, &json!({ "messages": messages })).await.json();
    assert_eq!(same["choices"], first["choices"]);
    let turn = s.control.read() - read;
    assert!(turn < 8, "only the assistant's head is read again, found {turn}");
    let answer = first["choices"][0]["message"].clone();
    messages.as_array_mut().unwrap().push(answer);
    let next = json!({ "role": "user", "content": "the second question" });
    messages.as_array_mut().unwrap().push(next);
    let second = s.client().post(CHAT, &json!({ "messages": messages })).await.json();
    assert_eq!(second["choices"][0]["message"]["content"], "Again.");
    assert!(cached(&second) > 20, "found {}", cached(&second));
    let other = json!({ "messages": [{ "role": "system", "content": "Be brie" },
        { "role": "user", "content": "the first question" }] });
    let other = s.client().post(CHAT, &other).await.json();
    assert_eq!(cached(&other), 0, "a prefix counts only whole");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn checkpoints_give_way_to_requests() {
    for sequences in [1, 2, 3] {
        let engine = engine().with(|info| info.sequences = sequences);
        let s = scripted(engine, options()).await;
        let first = choices(&s, 0.0).await;
        assert_eq!(choices(&s, 0.0).await, first);
        assert!(s.control.open() <= sequences);
        s.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_read_their_prompt_once() {
    let s = scripted(engine(), options()).await;
    let mut body = ask(7, 0.8);
    body["n"] = json!(4);
    let reply = s.client().post(CHAT, &body).await.json();
    assert_eq!(reply["choices"].as_array().unwrap().len(), 4);
    let prompt = reply["usage"]["prompt_tokens"].as_u64().unwrap() as usize;
    assert!(s.control.read() < prompt + 30, "found {} of {prompt}", s.control.read());
    s.stop().await.unwrap();
}

/// Tokens that a step drew too many of were never drawn: penalties do not count them.
#[tokio::test(flavor = "multi_thread")]
async fn drafts_change_no_answer_that_is_cut() {
    let replies = [("topic", "cut short cut short cut short cut short\n</think>\n\nNever said.")];
    let mut answers = Vec::new();
    for drafts in [0, 3] {
        let engine = Scripted::replies(&replies).with(|info| info.drafts = drafts);
        let s = scripted(engine, options()).await;
        for budget in 1..8 {
            let mut body = ask(1, 0.0);
            body["thinking_budget"] = json!(budget);
            body["frequency_penalty"] = json!(0.75);
            let reply = s.client().post(CHAT, &body).await.json();
            answers.push((reply["choices"].clone(), reply["usage"]["completion_tokens"].clone()));
        }
        s.stop().await.unwrap();
    }
    assert_eq!(answers[..7], answers[7..]);
}
