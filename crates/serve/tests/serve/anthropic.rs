//! The Anthropic endpoints, and those that tell and count.

use crate::support::script::Scripted;
use crate::support::{Running, options, scripted, tokenizer, transcript};
use cherenkov_serve::ServeOptions;
use serde_json::{Value, json};

const MESSAGES: &str = "/v1/messages";

const CALL: &str = "Look.\n</think>\n\nReading.\n\n<tool_call>\n<function=read>\n<parameter=path>\na.txt\n</parameter>\n</function>\n</tool_call>";

async fn server() -> Running {
    let engine = Scripted::replies(&[
        ("hello", "A greeting.\n</think>\n\nHi there!"),
        ("files", CALL),
        ("plain", "Just text."),
    ]);
    scripted(engine, options()).await
}

fn ask(text: &str, more: Value) -> Value {
    let mut body = json!({ "model": "scripted", "max_tokens": 100,
        "messages": [{ "role": "user", "content": text }] });
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

/// The blocks that a stream builds.
fn blocks(events: &[Value]) -> Vec<Value> {
    let mut blocks: Vec<Value> = Vec::new();
    let mut arguments = String::new();
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                assert_eq!(event["index"], blocks.len());
                blocks.push(event["content_block"].clone());
                arguments.clear();
            }
            "content_block_delta" => {
                let (delta, block) = (&event["delta"], blocks.last_mut().unwrap());
                for key in ["text", "thinking", "signature"] {
                    if let Some(text) = delta[key].as_str() {
                        block[key] = json!(format!("{}{text}", block[key].as_str().unwrap()));
                    }
                }
                arguments.push_str(delta["partial_json"].as_str().unwrap_or_default());
            }
            "content_block_stop" => {
                let block = blocks.last_mut().unwrap();
                if block["type"] == "tool_use" {
                    block["input"] = serde_json::from_str(&arguments).unwrap();
                }
            }
            _ => {}
        }
    }
    blocks
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_whole_answers_agree() {
    let tools = json!([{ "name": "read", "input_schema": { "type": "object",
        "properties": { "path": { "type": "string" } } } }]);
    let thinking = json!({ "type": "enabled", "budget_tokens": 50 });
    for (name, text, more, reason) in [
        ("thinking", "hello", json!({ "thinking": thinking }), "end_turn"),
        ("text", "plain", json!({}), "end_turn"),
        ("tool", "files", json!({ "thinking": thinking, "tools": tools }), "tool_use"),
        ("cap", "plain", json!({ "max_tokens": 1 }), "max_tokens"),
        ("stop", "plain", json!({ "stop_sequences": ["te"] }), "stop_sequence"),
    ] {
        let s = server().await;
        let whole = s.client().post(MESSAGES, &ask(text, more.clone())).await;
        assert_eq!(whole.status, 200, "{}", whole.body);
        let mut streaming = ask(text, more);
        streaming["stream"] = json!(true);
        let stream = s.client().post(MESSAGES, &streaming).await;
        transcript(&format!("messages-{name}.stream"), &stream.body);
        let (whole, events) = (whole.json(), stream.events());
        assert_eq!(whole["stop_reason"], reason);
        let mut built = json!(blocks(&events));
        let mut expected = whole["content"].clone();
        // Ids of calls belong to their responses.
        for value in [&mut built, &mut expected] {
            value.as_array_mut().unwrap().iter_mut().for_each(|b| b["id"] = Value::Null);
        }
        assert_eq!(built, expected, "{name}");
        let last = events.iter().find(|e| e["type"] == "message_delta").unwrap();
        assert_eq!(last["delta"]["stop_reason"], whole["stop_reason"]);
        assert_eq!(last["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
        s.stop().await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn blocks_of_all_kinds_go_into_the_prompt() {
    let s = server().await;
    let body = json!({ "model": "alias", "max_tokens": 50,
        "system": [
            { "type": "text", "text": "x-anthropic-billing-header: cch=1234;" },
            { "type": "text", "text": "be kind", "cache_control": { "type": "ephemeral" } }],
        "messages": [
            { "role": "user", "content": [{ "type": "text", "text": "files" }] },
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "hm", "signature": "unsigned" },
                { "type": "tool_use", "id": "toolu_1", "name": "read", "input": { "path": "a" } }] },
            { "role": "user", "content": [
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "none" }] },
                { "type": "text", "text": "plain" }] }],
        "metadata": { "user_id": "u" }, "output_config": { "effort": "high" } });
    let reply = s.client().post("/v1/v1/messages?beta=true", &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["content"][0]["text"], "Just text.");
    assert_eq!(reply.header("x-reasoning-effort").as_deref(), Some("xhigh"));
    let count = |body: Value| async move {
        let client = server().await;
        let counted = client.client().post("/v1/messages/count_tokens", &body).await.json();
        counted["input_tokens"].as_u64().unwrap()
    };
    let counted = count(body.clone()).await;
    let usage = &reply.json()["usage"];
    let sent = usage["input_tokens"].as_u64().unwrap()
        + usage["cache_read_input_tokens"].as_u64().unwrap();
    assert_eq!(counted, sent);
    let mut other = body;
    other["system"][0]["text"] = json!("x-anthropic-billing-header: cch=99999999999;");
    assert_eq!(count(other).await, counted, "a line that changes every time is not in the prompt");
    for (more, status) in [
        (json!({ "max_tokens": null }), 400),
        (json!({ "tool_choice": { "type": "any" } }), 400),
        (json!({ "messages": [{ "role": "user", "content": [{ "type": "image" }] }] }), 400),
        (
            json!({ "messages": [{ "role": "user", "content": "x" }, { "role": "assistant", "content": "y" }] }),
            400,
        ),
        (json!({ "mcp_servers": [{}] }), 400),
        (json!({ "model": "claude" }), 404),
    ] {
        let reply = s.client().post(MESSAGES, &ask("plain", more.clone())).await;
        assert_eq!(reply.status, status, "{more}: {}", reply.body);
        assert_eq!(reply.json()["type"], "error");
        assert!(reply.json()["error"]["message"].is_string());
    }
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_models_metrics() {
    let s = server().await;
    let c = s.client();
    let tokens = c.post("/tokenize", &json!({ "content": "Grüße <|im_end|>" })).await.json();
    assert_eq!(tokens["tokens"], json!(tokenizer().encode("Grüße <|im_end|>").unwrap()));
    let back = c.post("/detokenize", &json!({ "tokens": tokens["tokens"] })).await.json();
    assert_eq!(back["content"], "Grüße <|im_end|>");
    assert_eq!(c.post("/detokenize", &json!({ "tokens": [999_999] })).await.status, 400);
    let chat = json!({ "messages": [{ "role": "user", "content": "hello" }] });
    let rendered = c.post("/tokenize", &chat).await.json();
    let usage = c.post("/v1/chat/completions", &chat).await.json()["usage"].clone();
    assert_eq!(rendered["count"], usage["prompt_tokens"]);
    let models = c.get("/v1/models").await.json();
    let names: Vec<&str> =
        models["data"].as_array().unwrap().iter().map(|m| m["id"].as_str().unwrap()).collect();
    assert_eq!(names, ["scripted", "alias"]);
    assert_eq!(c.get("/v1/models/scripted").await.json()["max_model_len"], 2048);
    assert_eq!(c.get("/v1/models/other").await.status, 404);
    assert_eq!(c.get("/health").await.json()["status"], "ready");
    let metrics = c.get("/metrics").await.body;
    assert!(metrics.contains("cherenkov_requests_total{outcome=\"finished\"} 1\n"), "{metrics}");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_hosts_origins_and_sizes() {
    let guarded = ServeOptions {
        api_keys: vec!["one".into(), "two".into()],
        cors: vec!["https://page.example".into()],
        body_bytes_max: 200,
        ..options()
    };
    let s = scripted(Scripted::replies(&[("hello", "Hi.")]), guarded).await;
    let host = s.address.to_string();
    let get = |headers: Vec<(&'static str, &'static str)>| {
        let mut all = vec![("host", host.clone())];
        all.extend(headers.into_iter().map(|(n, v)| (n, v.to_owned())));
        let all: Vec<(&str, &str)> = all.iter().map(|(n, v)| (*n, v.as_str())).collect();
        s.client().with_headers(&all)
    };
    assert_eq!(get(vec![]).get("/health").await.status, 200);
    assert_eq!(get(vec![]).get("/v1/models").await.status, 401);
    assert_eq!(get(vec![("authorization", "Bearer three")]).get("/v1/models").await.status, 401);
    assert_eq!(get(vec![("authorization", "Bearer two")]).get("/v1/models").await.status, 200);
    let key = get(vec![("x-api-key", "one")]);
    assert_eq!(key.get("/v1/models").await.status, 200);
    let big = key.send("POST", MESSAGES, &"x".repeat(300)).await;
    assert_eq!(
        (big.status, big.json()["error"]["type"].as_str()),
        (413, Some("request_too_large"))
    );
    let stranger = s.client().with_headers(&[("host", "evil.example")]).get("/health").await;
    assert_eq!(stranger.status, 403);
    let page = get(vec![("origin", "https://page.example"), ("x-api-key", "one")]);
    let reply = page.get("/v1/models").await;
    let allowed = reply.header("access-control-allow-origin");
    assert_eq!((reply.status, allowed.as_deref()), (200, Some("https://page.example")));
    assert_eq!(page.send("OPTIONS", MESSAGES, "").await.status, 204);
    let other = get(vec![("origin", "https://evil.example"), ("x-api-key", "one")]);
    assert_eq!(other.get("/v1/models").await.status, 403);
    s.stop().await.unwrap();
}
