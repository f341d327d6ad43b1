//! The output parser: every case as a whole text and as streams of every cut.

mod common;

use cherenkov_text::{
    CallMode, Event, OutputParser, ParsedCall, ParsedOutput, ParserOptions, Start, StopStrings,
    ToolSchemas,
};
use common::{merged, split};
use proptest::prelude::*;
use serde_json::{Value, json};

fn schemas() -> ToolSchemas {
    let tool = json!({"type": "function", "function": {"name": "edit", "parameters": {"properties": {
        "path": {"type": "string"}, "old": {"type": "string"}, "count": {"type": "integer"},
        "flag": {"type": "boolean"}, "-n": {"type": "integer"}, "data": {"type": "object"}}}}});
    ToolSchemas::new(&[tool])
}

fn options(start: Start) -> ParserOptions {
    ParserOptions { schemas: schemas(), ..ParserOptions::new(start) }
}

fn stream(options: ParserOptions, chunks: &[&str]) -> Vec<Event> {
    let mut parser = OutputParser::new(options);
    let mut events = Vec::new();
    for chunk in chunks {
        events.extend(parser.push(chunk));
    }
    events.extend(parser.finish());
    check(&events);
    merged(events)
}

/// Calls open and close in order, and their arguments are JSON objects without repeated keys.
fn check(events: &[Event]) {
    let mut open = false;
    let mut count = 0;
    for event in events {
        match event {
            Event::ToolCallStart { index, id, .. } => {
                assert!(!open && *index == count && *id == format!("call_{index}"), "{events:?}");
                open = true;
                count += 1;
            }
            Event::ToolArgument(text) => assert!(open && !text.is_empty(), "{events:?}"),
            Event::ToolCallEnd => assert!(std::mem::take(&mut open), "{events:?}"),
            Event::Reasoning(text) | Event::Content(text) => {
                assert!(!open && !text.is_empty(), "{events:?}")
            }
        }
    }
    assert!(!open, "{events:?}");
    let whole: ParsedOutput = events.iter().cloned().collect();
    for call in whole.tool_calls {
        let arguments: Value = serde_json::from_str(&call.arguments)
            .unwrap_or_else(|e| panic!("{e} in {:?}", call.arguments));
        assert!(arguments.is_object(), "{arguments}");
    }
}

/// Parses the text whole, by characters, and cut at every single place; all must agree.
fn parse(start: Start, text: &str) -> (Option<String>, Option<String>, Vec<(String, Value)>) {
    let whole = stream(options(start), &[text]);
    let every: Vec<&str> = split(text, &[true; 4096]);
    assert_eq!(stream(options(start), &every), whole, "{text:?} by characters");
    for (at, _) in text.char_indices() {
        assert_eq!(
            stream(options(start), &[&text[..at], &text[at..]]),
            whole,
            "{text:?} cut at {at}"
        );
    }
    let output: ParsedOutput = whole.into_iter().collect();
    assert_eq!(OutputParser::parse(options(start), text), output);
    let call = |c: ParsedCall| (c.name, serde_json::from_str(&c.arguments).unwrap());
    (output.reasoning, output.content, output.tool_calls.into_iter().map(call).collect())
}

fn text(text: &str) -> Option<String> {
    Some(text.to_owned())
}

fn call(body: &str) -> String {
    format!("<tool_call>\n<function=edit>\n{body}</function>\n</tool_call>")
}

fn arguments(body: &str) -> Value {
    let (reasoning, content, mut calls) = parse(Start::Content, &call(body));
    assert_eq!((reasoning, content, calls.len()), (None, None, 1), "{body}");
    calls.remove(0).1
}

#[test]
fn reasoning_is_split_from_content() {
    use Start::{Content, Reasoning};
    let cases = [
        (Reasoning, "because\n</think>\n\nyes", text("because"), text("yes")),
        (Reasoning, "\na\n\nb\n\n</think>\n\n\n yes\n", text("a\n\nb\n"), text("\n yes\n")),
        // B008: never closed, so all of it is reasoning.
        (Reasoning, "still thinking\n", text("still thinking\n"), None),
        (Reasoning, "half a tag </thi", text("half a tag </thi"), None),
        (Reasoning, "\n\n</think>\n\nyes", None, text("yes")),
        (Reasoning, "</think>yes", None, text("yes")),
        (Reasoning, "a</think>", text("a"), None),
        // B007: the prompt closed the block, so the answer is content at once.
        (Content, "yes", None, text("yes")),
        (Content, "a <think> b", None, text("a <think> b")),
        (Content, "x </think> y", None, text("x </think> y")),
        (Content, "\n<think>\nwhy\n</think>\n\nyes", text("why"), text("yes")),
        (Content, "    indented\n  code\n", None, text("    indented\n  code\n")),
        (Content, " \n\n", None, None),
        (Content, "", None, None),
        (Reasoning, "", None, None),
        (Content, "<thin", None, text("<thin")),
        (Reasoning, "a\n</think>\n\n<think>\nb\n</think>\n\nc", text("ab"), text("c")),
    ];
    for (start, output, reasoning, content) in cases {
        assert_eq!(parse(start, output), (reasoning, content, vec![]), "{output:?}");
    }
}

#[test]
fn calls_follow_reasoning_and_content_in_order() {
    let one = call("<parameter=path>\na.rs\n</parameter>\n");
    let two = call("<parameter=count>\n2\n</parameter>\n");
    let both = vec![
        ("edit".to_owned(), json!({"path": "a.rs"})),
        ("edit".to_owned(), json!({"count": 2})),
    ];
    // B016: the end of thinking is seen before any call is.
    let output = format!("look: <tool_call> in mind\n</think>\n\n{one}\n{two}");
    assert_eq!(
        parse(Start::Reasoning, &output),
        (text("look: <tool_call> in mind"), None, both.clone())
    );
    // B020: white space before a call is no content.
    let output = format!("why\n</think>\n\n\n \n{one}{two}\n\n");
    assert_eq!(parse(Start::Reasoning, &output), (text("why"), None, both.clone()));
    let output = format!("I will.\n\n{one}\n\n{two}\n");
    assert_eq!(parse(Start::Content, &output), (None, text("I will."), both.clone()));
    let output = format!("{one}\nDone.\n{two}");
    assert_eq!(parse(Start::Content, &output), (None, text("\nDone."), both));
}

#[test]
fn unknown_functions_and_broken_calls_are_not_lost() {
    let output = "<tool_call>\n<function=nobody.knows-it>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>";
    let expected = vec![("nobody.knows-it".to_owned(), json!({"x": 1}))];
    assert_eq!(parse(Start::Content, output), (None, None, expected));
    for broken in [
        "<tool_call>\n{\"name\": \"f\"}\n</tool_call>",
        "<tool_call>\n<function=>\n</function>\n</tool_call>",
        "<tool_call>\n<function=two words>\n</function>\n</tool_call>",
        "<tool_call>",
        "<tool_call>\n<function=na",
        "<tool_call>\n<func",
        "say <tool_call> twice",
        "a <tool_ca",
    ] {
        assert_eq!(parse(Start::Content, broken), (None, text(broken), vec![]), "{broken}");
    }
    let output = format!("<tool_call>oops {}", call(""));
    assert_eq!(
        parse(Start::Content, &output),
        (None, text("<tool_call>oops"), vec![("edit".into(), json!({}))])
    );
}

#[test]
fn argument_text_is_kept_to_the_byte() {
    let cases = [
        ("path", "    indented\n", "    indented\n"),
        ("path", "", ""),
        ("path", "\n", "\n"),
        ("old", "\tif x:\n\t\treturn 1\n\n", "\tif x:\n\t\treturn 1\n\n"),
        ("path", "C:\\new\\table\\\"x\"\\", "C:\\new\\table\\\"x\"\\"),
        (
            "old",
            "<b>&amp;</b> </param </parameter <parameter",
            "<b>&amp;</b> </param </parameter <parameter",
        ),
        (
            "old",
            "quote </parameter> and </function> and </tool_call> on",
            "quote </parameter> and </function> and </tool_call> on",
        ),
        ("old", "สวัสดี 🙂 e\u{301}", "สวัสดี 🙂 e\u{301}"),
        ("path", "42", "42"),
    ];
    for (key, raw, value) in cases {
        let body = format!("<parameter={key}>\n{raw}\n</parameter>\n");
        assert_eq!(arguments(&body), json!({key: value}), "{raw:?}");
    }
}

#[test]
fn other_types_are_json() {
    let body = "<parameter=count>\n3\n</parameter>\n<parameter=flag>\nTrue\n</parameter>\n\
                <parameter=data>\n{\"a\": [1, \"</b>\", null]}\n</parameter>\n<parameter=-n>\n-7\n</parameter>\n\
                <parameter=free>\n[1]\n</parameter>\n<parameter=words>\nnot json\n</parameter>\n";
    assert_eq!(
        arguments(body),
        json!({"count": 3, "flag": true, "data": {"a": [1, "</b>", null]}, "-n": -7, "free": [1], "words": "not json"})
    );
    assert_eq!(arguments("<parameter=count>\nthree\n</parameter>\n"), json!({"count": "three"}));
}

#[test]
fn broken_parameters_leave_valid_json_and_the_other_keys() {
    let good = "<parameter=path>\nx\n</parameter>\n";
    for broken in [
        "<parameter>\nlost\n</parameter>\n",
        "<parameter=>\nlost\n</parameter>\n",
        "<parameter=no bracket\nlost\n</parameter>\n",
        "<parameter=cut\nlost\n</parameter>\n",
        "<parameter=a<b>\nlost\n</parameter>\n",
        "<parameter = x>\nlost\n</parameter>\n",
        "<parameter=path>\nsecond\n</parameter>\n",
    ] {
        assert_eq!(arguments(&format!("{good}{broken}")), json!({"path": "x"}), "{broken}");
        let both = format!("{good}{broken}<parameter=count>\n1\n</parameter>\n");
        assert_eq!(arguments(&both), json!({"path": "x", "count": 1}), "{broken}");
    }
    assert_eq!(arguments("<parameter==path=>\nx\n</parameter>\n"), json!({"path": "x"}));
    assert_eq!(arguments("<parameter=path>\nx\n"), json!({"path": "x"}));
    // A close tag that no tag of the format follows is text of the value; between elements, text is skipped.
    assert_eq!(
        arguments("<parameter=path>\nx\n</parameter>\n</parameter>\n"),
        json!({"path": "x\n</parameter>"})
    );
    assert_eq!(arguments(&format!("stray < text > </param\n{good}")), json!({"path": "x"}));
}

#[test]
fn a_cut_call_ends_as_valid_json() {
    let whole = call(
        "<parameter=path>\nC:\\\\a\\\"b\n</parameter>\n<parameter=data>\n{\"a\": 1}\n</parameter>\n",
    );
    for (at, _) in whole.char_indices() {
        let mut parser = OutputParser::new(options(Start::Content));
        let mut events = parser.push(&whole[..at]);
        events.extend(parser.finish());
        check(&events);
        let started = events.iter().any(|e| matches!(e, Event::ToolCallStart { .. }));
        assert_eq!(
            parser.call_was_cut(),
            started && at < whole.len() - "\n</tool_call>".len(),
            "{at}"
        );
        assert!(parser.push("late").is_empty() && parser.finish().is_empty());
    }
}

#[test]
fn missing_close_tags_do_not_swallow_the_next_call() {
    let output = "<tool_call>\n<function=edit>\n<parameter=path>\nx\n</parameter>\n<tool_call>\n<function=edit>\n\
                  <parameter=count>\n1\n</parameter>\n</function>\n</tool_call>";
    let expected =
        vec![("edit".to_owned(), json!({"path": "x"})), ("edit".to_owned(), json!({"count": 1}))];
    assert_eq!(parse(Start::Content, output), (None, None, expected.clone()));
    let output = "<tool_call>\n<function=edit>\n<parameter=path>\nx\n</parameter>\n</function>\n<function=edit>\n\
                  <parameter=count>\n1\n</parameter>\n</function>\n</function>\n</tool_call>";
    assert_eq!(parse(Start::Content, output), (None, None, expected));
    let output =
        "<tool_call>\n<function=edit>\n<parameter=path>\nx\n</function>\n</tool_call> after";
    let expected = vec![("edit".to_owned(), json!({"path": "x"}))];
    assert_eq!(parse(Start::Content, output), (None, text(" after"), expected));
}

#[test]
fn string_arguments_stream_as_they_come() {
    let mut parser = OutputParser::new(options(Start::Content));
    parser.push("<tool_call>\n<function=edit>\n<parameter=path>\n");
    assert_eq!(parser.push("src/"), [Event::ToolArgument("src/".into())]);
    assert_eq!(parser.push("a\n"), [Event::ToolArgument("a".into())]);
    assert_eq!(parser.push("b"), [Event::ToolArgument("\\nb".into())]);
    assert_eq!(parser.push("<x"), [Event::ToolArgument("<x".into())]);
    assert_eq!(parser.push("\n</para"), []);
    assert_eq!(parser.push("meter>\n"), []);
    assert_eq!(parser.push("</function>"), [Event::ToolArgument("\"}".into()), Event::ToolCallEnd]);
    assert_eq!(parser.push("\n</tool_call>"), []);
    assert_eq!(parser.finish(), []);
}

#[test]
fn markup_stays_text_when_asked() {
    let text = call("");
    let as_text = ParserOptions { calls: CallMode::Text, ..options(Start::Content) };
    assert_eq!(stream(as_text, &[&text]), [Event::Content(text.clone())]);
}

#[test]
fn an_end_of_turn_inside_thinking_or_a_call_is_text_a_few_times() {
    let mut parser = OutputParser::new(options(Start::Reasoning));
    parser.push("the template writes ");
    assert!(parser.end_of_turn_is_text());
    parser.push("<|im_end|> here\n</think>\n\n");
    assert!(!parser.end_of_turn_is_text());
    parser.push("text");
    assert!(!parser.end_of_turn_is_text());
    parser.push("<tool_call>");
    assert!(parser.end_of_turn_is_text());
    parser.push("<function=edit>\n<parameter=old>\n");
    assert!(parser.end_of_turn_is_text());
    assert!(parser.end_of_turn_is_text());
    assert!(!parser.end_of_turn_is_text(), "bounded");
    assert_eq!(parser.end_of_turns_kept(), 4);
    let mut closed = OutputParser::new(options(Start::Content));
    closed.push(&call(""));
    assert!(!closed.end_of_turn_is_text());
}

#[test]
fn stop_strings_before_the_parser_never_slice_tags() {
    let output = "why\n</think>\n\nanswer STOP never";
    for cut in 0..output.len() {
        let mut stops = StopStrings::new(vec!["STOP".into(), "</thinx".into()]).unwrap();
        let mut parser = OutputParser::new(options(Start::Reasoning));
        let mut events = Vec::new();
        for chunk in [&output[..cut], &output[cut..]] {
            events.extend(parser.push(&stops.push(chunk).text));
        }
        events.extend(parser.push(&stops.finish()));
        events.extend(parser.finish());
        let expected = [Event::Reasoning("why".into()), Event::Content("answer ".into())];
        assert_eq!(merged(events), expected);
    }
}

#[test]
fn long_hostile_output_takes_little_time() {
    let start = std::time::Instant::now();
    for unit in
        ["<", "<tool_call>", "</think>", "\n", "<parameter=x>\n", "</parameter>\n", "</function>"]
    {
        let body = unit.repeat(200_000 / unit.len());
        stream(options(Start::Reasoning), &[&body]);
        stream(options(Start::Content), &[&body]);
        stream(options(Start::Content), &["<tool_call><function=edit><parameter=old>", &body]);
        stream(options(Start::Content), &["<tool_call><function=edit>", &body]);
    }
    assert!(start.elapsed() < std::time::Duration::from_secs(60), "{:?}", start.elapsed());
}

fn markup() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        Just("<think>"),
        Just("</think>"),
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("<function=edit>"),
        Just("<function="),
        Just("</function>"),
        Just("<parameter=path>"),
        Just("<parameter=count>"),
        Just("<parameter=data>"),
        Just("<parameter="),
        Just("<parameter"),
        Just("</parameter>"),
        Just("\n"),
        Just("\n\n"),
        Just(" "),
        Just("<"),
        Just(">"),
        Just("="),
        Just("x"),
        Just("12"),
        Just("é🙂"),
        Just("\\"),
        Just("\""),
        Just("{\"a\": 1}"),
        Just("</par"),
        Just("<tool"),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn start() -> impl Strategy<Value = Start> {
    prop_oneof![Just(Start::Reasoning), Just(Start::Content)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]

    #[test]
    fn every_cut_of_markup_gives_the_same_events(
        text in markup(), start in start(), cut in prop::collection::vec(any::<bool>(), 300),
    ) {
        let whole = stream(options(start), &[&text]);
        prop_assert_eq!(stream(options(start), &split(&text, &cut)), whole);
    }

    #[test]
    fn every_cut_of_a_real_call_gives_the_same_events(
        why in "[a-z<>/\n ]{0,20}", content in "[a-z<>\n ]{0,20}", path in "[a-z<>/\\\\\"\n é🙂]{0,30}",
        count in any::<i64>(), cut in prop::collection::vec(any::<bool>(), 400), stop in 0..400usize,
    ) {
        let body = format!("<parameter=path>\n{path}\n</parameter>\n<parameter=count>\n{count}\n</parameter>\n");
        let text = format!("{why}\n</think>\n\n{content}\n\n{}", call(&body));
        let whole = stream(options(Start::Reasoning), &[&text]);
        prop_assert_eq!(&stream(options(Start::Reasoning), &split(&text, &cut)), &whole);
        let output: ParsedOutput = whole.into_iter().collect();
        let parsed: Value = serde_json::from_str(&output.tool_calls[0].arguments).unwrap();
        prop_assert_eq!(parsed, json!({"path": path, "count": count}));
        // Cut anywhere, the arguments are still JSON (checked inside).
        let end = text.char_indices().map(|(at, _)| at).take(stop).last().unwrap_or(0);
        stream(options(Start::Reasoning), &split(&text[..end], &cut));
    }

    #[test]
    fn garbage_never_panics(text in any::<String>(), start in start(), cut in prop::collection::vec(any::<bool>(), 100)) {
        let whole = stream(options(start), &[&text]);
        prop_assert_eq!(stream(options(start), &split(&text, &cut)), whole);
    }
}
