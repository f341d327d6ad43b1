//! The OpenAI endpoints over scripted engines: transcripts, shapes, refusals.

use crate::support::client::Reply;
use crate::support::script::Scripted;
use crate::support::{self, Running, options, scripted, transcript};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

const CALLS: &str = "Two files.\n</think>\n\nReading.\n\n<tool_call>\n<function=read>\n<parameter=path>\nC:\\a \"b\"\n</parameter>\n<parameter=lines>\n12\n</parameter>\n</function>\n</tool_call>\n<tool_call>\n<function=list>\n</function>\n</tool_call>";

async fn server() -> Running {
    let engine = Scripted::replies(&[
        ("hello", "A greeting.\n</think>\n\nHi there, friend!"),
        ("plain", "Just text."),
        ("files", CALLS),
        ("open thought", "Thinking without end, on and on and on and on"),
        ("emoji", "ok\n</think>\n\nGood 😀 day"),
        ("quote", "The tag <|im_end|> ends a turn.\n</think>\n\nDone."),
        ("count", "one two three four five six"),
    ]);
    scripted(engine, options()).await
}

fn ask(text: &str) -> Value {
    json!({ "model": "scripted", "messages": [{ "role": "user", "content": text }] })
}

fn with(mut body: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

fn tools() -> Value {
    json!([
        { "type": "function", "function": { "name": "read", "parameters": { "type": "object",
            "properties": { "path": { "type": "string" }, "lines": { "type": "integer" } } } } },
        { "type": "function", "function": { "name": "list" } },
    ])
}

/// Puts the deltas of a stream together to the choice that a whole answer has.
fn assemble(reply: &Reply, index: usize) -> Value {
    let mut message = json!({ "role": "assistant", "content": null });
    let mut finish = Value::Null;
    let mut logs = Vec::new();
    for event in reply.events() {
        for choice in event["choices"].as_array().unwrap() {
            if choice["index"] != index {
                continue;
            }
            assert!(finish.is_null(), "nothing comes after the reason to finish");
            finish = choice["finish_reason"].clone();
            if let Some(content) = choice["logprobs"]["content"].as_array() {
                logs.extend(content.clone());
            }
            merge(&mut message, &choice["delta"]);
        }
    }
    let logprobs =
        if logs.is_empty() { Value::Null } else { json!({ "content": logs, "refusal": null }) };
    json!({ "index": index, "message": message, "logprobs": logprobs, "finish_reason": finish })
}

fn merge(message: &mut Value, delta: &Value) {
    for key in ["content", "reasoning_content"] {
        if let Some(text) = delta[key].as_str().filter(|t| !t.is_empty()) {
            let so_far = message[key].as_str().unwrap_or_default();
            message[key] = json!(format!("{so_far}{text}"));
        }
    }
    for call in delta["tool_calls"].as_array().into_iter().flatten() {
        if message["tool_calls"].is_null() {
            message["tool_calls"] = json!([]);
        }
        let place = call["index"].as_u64().unwrap() as usize;
        let calls = message["tool_calls"].as_array_mut().unwrap();
        if calls.len() == place {
            let function = json!({ "name": call["function"]["name"], "arguments": "" });
            calls.push(json!({ "id": call["id"], "type": "function", "function": function }));
        }
        let more = call["function"]["arguments"].as_str().unwrap();
        let so_far = calls[place]["function"]["arguments"].as_str().unwrap();
        calls[place]["function"]["arguments"] = json!(format!("{so_far}{more}"));
    }
}

/// Asks for a stream and for a whole answer of a fresh server each: both must agree.
async fn both(body: &Value) -> (Reply, Value) {
    let whole = server().await;
    let reply = whole.client().post(CHAT, body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let whole_value = reply.json();
    whole.stop().await.unwrap();
    let streaming = server().await;
    let more = json!({ "stream": true, "stream_options": { "include_usage": true } });
    let reply = streaming.client().post(CHAT, &with(body.clone(), more)).await;
    streaming.stop().await.unwrap();
    let choices = whole_value["choices"].as_array().unwrap();
    for (index, choice) in choices.iter().enumerate() {
        let mut found = assemble(&reply, index);
        if found["message"]["content"].is_null() && choice["message"]["content"] == "" {
            found["message"]["content"] = json!("");
        }
        assert_eq!(&found, choice);
    }
    let usage = reply.events().last().unwrap()["usage"].clone();
    assert_eq!(usage, whole_value["usage"]);
    (reply, whole_value)
}

#[tokio::test(flavor = "multi_thread")]
async fn transcripts_are_the_same_every_time() {
    let (stream, whole) = both(&ask("hello")).await;
    transcript("chat.stream", &stream.body);
    transcript("chat.json", &format!("{whole:#}\n"));
    let (stream, whole) = both(&with(ask("files"), json!({ "tools": tools() }))).await;
    transcript("calls.stream", &stream.body);
    transcript("calls.json", &format!("{whole:#}\n"));
    let more = json!({ "logprobs": true, "top_logprobs": 2, "enable_thinking": false });
    // The chunks of two answers mix as they come; only each answer's own order is fixed.
    both(&with(ask("plain"), with(more.clone(), json!({ "n": 2 })))).await;
    let (stream, whole) = both(&with(ask("plain"), more)).await;
    transcript("logprobs.stream", &stream.body);
    transcript("logprobs.json", &format!("{whole:#}\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn reasons_to_finish() {
    let reason = |value: &Value| value["choices"][0]["finish_reason"].clone();
    let message = |value: &Value| value["choices"][0]["message"].clone();

    let (_, cut) = both(&with(ask("open thought"), json!({ "max_tokens": 5 }))).await;
    assert_eq!(reason(&cut), "length");
    assert_eq!(message(&cut)["content"], "", "an open thought never becomes content");
    assert_eq!(cut["usage"]["completion_tokens"], 5);
    assert_eq!(cut["usage"]["completion_tokens_details"]["reasoning_tokens"], 5);

    let (_, stopped) = both(&with(ask("hello"), json!({ "stop": ["here, fr", "zzz"] }))).await;
    assert_eq!(reason(&stopped), "stop");
    assert_eq!(message(&stopped)["content"], "Hi t");

    let (_, calls) = both(&with(ask("files"), json!({ "tools": tools() }))).await;
    assert_eq!(reason(&calls), "tool_calls");
    let arguments = message(&calls)["tool_calls"][0]["function"]["arguments"].clone();
    assert_eq!(arguments, r#"{"path": "C:\\a \"b\"", "lines": 12}"#);

    let one = json!({ "tools": tools(), "parallel_tool_calls": false });
    let (_, calls) = both(&with(ask("files"), one)).await;
    assert_eq!(reason(&calls), "tool_calls");
    assert_eq!(message(&calls)["tool_calls"].as_array().unwrap().len(), 1);

    let cut = json!({ "tools": tools(), "max_tokens": 30 });
    let (_, calls) = both(&with(ask("files"), cut)).await;
    assert_eq!(reason(&calls), "length");
    let arguments = message(&calls)["tool_calls"][0]["function"]["arguments"].clone();
    serde_json::from_str::<Value>(arguments.as_str().unwrap()).expect("cut arguments are closed");

    let none = json!({ "tools": tools(), "tool_choice": "none" });
    let (_, text) = both(&with(ask("files"), none)).await;
    assert_eq!(reason(&text), "stop");
    assert!(message(&text)["tool_calls"].is_null());
}

#[tokio::test(flavor = "multi_thread")]
async fn characters_and_end_tokens_inside_thoughts() {
    let (_, whole) = both(&ask("emoji")).await;
    assert_eq!(whole["choices"][0]["message"]["content"], "Good 😀 day");
    let tokens = support::tokenizer().encode("ok\n</think>\n\nGood 😀 day").unwrap().len();
    for cap in 1..tokens {
        let (_, cut) = both(&with(ask("emoji"), json!({ "max_tokens": cap }))).await;
        let content = cut["choices"][0]["message"]["content"].as_str().unwrap().to_owned();
        assert!(!content.contains('\u{fffd}'), "found {content}");
    }
    let (_, quoted) = both(&ask("quote")).await;
    let message = &quoted["choices"][0]["message"];
    assert_eq!(message["content"], "Done.");
    assert_eq!(message["reasoning_content"], "The tag <|im_end|> ends a turn.");
}

#[tokio::test(flavor = "multi_thread")]
async fn thinking_leaves_room_and_keeps_to_its_budget() {
    let s = server().await;
    let budget = with(ask("hello"), json!({ "thinking_budget": 2 }));
    let reply = s.client().post(CHAT, &budget).await.json();
    let message = &reply["choices"][0]["message"];
    assert_eq!(message["content"], "cut short");
    assert_eq!(reply["choices"][0]["finish_reason"], "stop");
    for (asked, content) in [
        (json!({ "enable_thinking": false }), "A greeting.\n</think>\n\nHi there, friend!"),
        (json!({ "reasoning_effort": "none" }), "A greeting.\n</think>\n\nHi there, friend!"),
        (
            json!({ "chat_template_kwargs": { "enable_thinking": false } }),
            "A greeting.\n</think>\n\nHi there, friend!",
        ),
        (json!({ "reasoning_effort": "high" }), "Hi there, friend!"),
    ] {
        let reply = s.client().post(CHAT, &with(ask("hello"), asked.clone())).await;
        assert_eq!(reply.json()["choices"][0]["message"]["content"], content, "{asked}");
        if asked["reasoning_effort"] == "high" {
            assert_eq!(reply.header("x-reasoning-effort").as_deref(), Some("xhigh"));
        }
    }
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_not_there_is_refused_by_name() {
    let s = server().await;
    let cases = [
        (json!({ "max_tokens": 3, "max_completion_tokens": 4 }), "max_completion_tokens"),
        (json!({ "response_format": { "type": "json_object" } }), "response_format"),
        (json!({ "tool_choice": "required" }), "tool_choice"),
        (json!({ "tool_choice": { "type": "function" } }), "tool_choice"),
        (json!({ "frobnicate": 1 }), "frobnicate"),
        (json!({ "n": 0 }), "n"),
        (json!({ "n": 99 }), "n"),
        (json!({ "temperature": -1 }), "temperature"),
        (json!({ "temperature": "hot" }), "temperature"),
        (json!({ "top_logprobs": 2 }), "top_logprobs"),
        (json!({ "logit_bias": { "x": 1 } }), "logit_bias"),
        (json!({ "functions": [{}] }), "functions"),
        (
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image_url" }] }] }),
            "messages[0].content[0]",
        ),
        (json!({ "stream_options": { "chunks": 1 } }), "stream_options.chunks"),
        (json!({ "priority": "urgent" }), "priority"),
    ];
    for (more, param) in cases {
        let reply = s.client().post(CHAT, &with(ask("hello"), more.clone())).await;
        assert_eq!(reply.status, 400, "{more}: {}", reply.body);
        let error = reply.json()["error"].clone();
        assert_eq!(error["param"], param, "{more}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
    }
    let clash = json!({ "reasoning_effort": "low", "chat_template_kwargs": { "reasoning_effort": "high" } });
    assert_eq!(s.client().post(CHAT, &with(ask("hello"), clash)).await.status, 400);
    let harmless = json!({ "user": "u", "metadata": {}, "store": true, "service_tier": "auto",
        "response_format": { "type": "text" }, "functions": null, "top_k": -1, "max_tokens": 100.0 });
    assert_eq!(s.client().post(CHAT, &with(ask("hello"), harmless)).await.status, 200);
    let other = s.client().post(CHAT, &with(ask("hello"), json!({ "model": "gpt" }))).await;
    assert_eq!(
        (other.status, other.json()["error"]["code"].as_str()),
        (404, Some("model_not_found"))
    );
    for (method, path, status) in [
        ("POST", "/v1/responses", 501),
        ("POST", "/v1/embeddings", 501),
        ("GET", "/v1/nothing", 404),
        ("GET", CHAT, 405),
        ("POST", CHAT, 400),
    ] {
        let reply = s.client().send(method, path, "{").await;
        assert_eq!(reply.status, status, "{path}: {}", reply.body);
        assert!(reply.json()["error"]["message"].is_string());
    }
    let long = ask(&"hello ".repeat(3000));
    let reply = s.client().post(CHAT, &long).await;
    assert_eq!(reply.json()["error"]["code"], "context_length_exceeded");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn system_messages_anywhere_and_half_open_arguments_are_taken() {
    let s = server().await;
    let body = json!({ "messages": [
        { "role": "system", "content": "one" },
        { "role": "developer", "content": "two" },
        { "role": "user", "content": "files" },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "a", "type": "function", "function": { "name": "read", "arguments": "{\"pa" } }] },
        { "role": "tool", "tool_call_id": "a", "content": [{ "type": "text", "text": "none" }] },
        { "role": "system", "content": "late" },
        { "role": "user", "content": "hello" },
    ] });
    let reply = s.client().post(CHAT, &body).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "Hi there, friend!");
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn completions_of_texts_and_tokens() {
    let s = server().await;
    let path = "/v1/completions";
    let one = s.client().post(path, &json!({ "prompt": "count=>", "logprobs": 1 })).await;
    transcript("completion.json", &format!("{:#}\n", one.json()));
    let tokens = support::tokenizer().encode("count=>").unwrap();
    let body = json!({ "prompt": ["count=>", "plain=>"], "n": 2, "max_tokens": 4 });
    let several = s.client().post(path, &body).await.json();
    let texts: Vec<_> = several["choices"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["text"].as_str().unwrap())
        .collect();
    assert_eq!(texts.len(), 4);
    assert!(texts[0] == texts[1] && texts[2] == texts[3] && texts[0] != texts[2]);
    let ids = s.client().post(path, &json!({ "prompt": tokens, "stream": true })).await;
    transcript("completion.stream", &ids.body);
    let text: String =
        ids.events().iter().map(|e| e["choices"][0]["text"].as_str().unwrap().to_owned()).collect();
    assert_eq!(text, one.json()["choices"][0]["text"]);
    let biased = json!({ "prompt": "count=>", "max_tokens": 1,
        "logit_bias": { (support::tokenizer().encode("x").unwrap()[0].to_string()): 100 } });
    assert_eq!(s.client().post(path, &biased).await.json()["choices"][0]["text"], "x");
    let ignored = json!({ "prompt": "plain=>", "ignore_eos": true, "max_tokens": 9 });
    assert_eq!(s.client().post(path, &ignored).await.json()["usage"]["completion_tokens"], 9);
    for body in [
        json!({ "prompt": "" }),
        json!({ "prompt": [] }),
        json!({ "prompt": [99999] }),
        json!({ "prompt": "x=>", "suffix": "y" }),
        json!({}),
    ] {
        assert_eq!(s.client().post(path, &body).await.status, 400, "{body}");
    }
    s.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_make_answers_repeatable() {
    let s = server().await;
    let body = |seed: u64| json!({ "prompt": "count=>", "temperature": 1.5, "seed": seed, "max_tokens": 12, "n": 3 });
    let texts = |v: Value| {
        let choices = v["choices"].as_array().unwrap().clone();
        choices.into_iter().map(|c| c["text"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let first = texts(s.client().post("/v1/completions", &body(5)).await.json());
    let again = texts(s.client().post("/v1/completions", &body(5)).await.json());
    let next = texts(s.client().post("/v1/completions", &body(6)).await.json());
    assert_eq!(first, again);
    assert!(first[0] != first[1] || first[1] != first[2]);
    assert_eq!(first[1..], next[..2], "answer j has the seed plus j");
    s.stop().await.unwrap();
}
