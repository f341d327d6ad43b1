//! `cherenkov trace`: what it writes is what a run does.

mod common;

use common::{refused, text_of};
use serde_json::Value;
use std::collections::BTreeMap;

const PROMPT: &str = "There was once a fox who";

fn trace(more: &[&str]) -> Vec<Value> {
    let base = ["trace", PROMPT, "--out", "-", "-n", "6", "--threads", "1"];
    let text = text_of(&[&base[..], more].concat());
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

fn of<'a>(lines: &'a [Value], kind: &'a str) -> impl Iterator<Item = &'a Value> {
    lines.iter().filter(move |line| line["kind"] == kind)
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// The tokens that come after the prompt, as the trace's own argmax lines say: of a position that was
/// run twice the last one, since a draft was refused there before.
fn answer(lines: &[Value]) -> Vec<u64> {
    let prompt = lines[0]["prompt"].as_array().unwrap().len() as u64;
    let trunk = of(lines, "argmax").filter(|line| line["part"] == "trunk");
    let all: BTreeMap<u64, u64> =
        trunk.map(|line| (number(&line["position"]), number(&line["token"]))).collect();
    all.range(prompt - 1..).map(|(_, token)| *token).take(6).collect()
}

#[test]
fn a_trace_tells_what_a_run_does() {
    let lines = trace(&[]);
    let header = &lines[0];
    assert_eq!((&header["kind"], &header["format"]), (&"header".into(), &"cherenkov-trace".into()));
    let prompt = header["prompt"].as_array().unwrap();
    // The pass over the prompt, then each token but the last.
    let passes: Vec<&Value> = of(&lines, "pass").collect();
    let rows: Vec<usize> = passes.iter().map(|p| p["tokens"].as_array().unwrap().len()).collect();
    assert_eq!(rows, [vec![prompt.len() - 1], vec![1; 6]].concat());
    assert_eq!(passes[0]["tokens"].as_array().unwrap()[..], prompt[..prompt.len() - 1]);
    // What was likeliest is what the next pass runs.
    let answer = answer(&lines);
    for (pass, token) in passes[2..].iter().zip(&answer) {
        assert_eq!(number(&pass["tokens"][0]), *token);
    }
    assert!(of(&lines, "argmax").all(|line| line["margin"].as_f64().unwrap() >= 0.0));
    // Every row of every layer has its experts, ascending, and weights that sum to 1.
    let (layers, top_k) = (number(&header["layers"]), number(&header["top_k"]) as usize);
    let routes: Vec<&Value> = of(&lines, "routes").collect();
    assert_eq!(routes.len() as u64, layers * (prompt.len() as u64 - 1 + 6));
    for line in routes {
        let experts: Vec<u64> = line["experts"].as_array().unwrap().iter().map(number).collect();
        assert!(experts.len() == top_k && experts.is_sorted(), "{line}");
        let weights = line["weights"].as_array().unwrap().iter();
        let sum: f64 = weights.map(|w| w.as_f64().unwrap()).sum();
        assert!((sum - 1.0).abs() < 1e-5, "{line}");
    }
    // The text of a run is the text of these tokens: the statistics count them.
    let base = ["run", PROMPT, "--raw", "-t", "0", "-n", "6", "--no-eos", "--drafts", "0"];
    let ended = common::run(&[&base[..], &["--stats-json", "-"]].concat());
    let stats: Value = serde_json::from_str(&ended.err).unwrap();
    let selections = &stats["streaming"]["experts"]["selections"];
    for (layer, experts) in selections.as_array().unwrap().iter().enumerate().take(8) {
        for (expert, count) in experts.as_array().unwrap().iter().enumerate() {
            let routed = of(&lines, "routes").filter(|line| line["layer"] == layer as u64);
            let here = routed.filter(|line| {
                line["experts"].as_array().unwrap().contains(&Value::from(expert as u64))
            });
            assert_eq!(here.count() as u64, number(count), "expert {layer}/{expert}");
        }
    }
}

#[test]
fn drafts_and_the_pool_change_no_value() {
    let what = ["--what", "states,argmax,picks"];
    let plain = trace(&what);
    let states = |lines: &[Value]| {
        let mut all: Vec<(u64, u64, String)> = of(lines, "state")
            .filter(|line| line["part"] == "trunk")
            .map(|line| {
                let values = line["values"].to_string();
                (number(&line["layer"]), number(&line["position"]), values)
            })
            .collect();
        all.sort_unstable();
        all.dedup();
        all
    };
    let want = states(&plain);
    let rows = plain[0]["prompt"].as_array().unwrap().len() - 1 + 6;
    assert_eq!(want.len(), 8 * rows, "one per layer and row");
    assert_eq!(want, states(&trace(&[&what[..], &["--pool", "5"]].concat())));
    let drafted = trace(&[&what[..], &["--drafts", "3"]].concat());
    assert_eq!(answer(&drafted), answer(&plain));
    assert!(of(&drafted, "argmax").any(|line| line["part"] == "draft"));
    let tentative: Vec<&Value> =
        of(&drafted, "pass").flat_map(|p| p["tentative"].as_array().unwrap()).collect();
    assert!(tentative.iter().any(|t| **t == true) && tentative.iter().any(|t| **t == false));
    // Rows that stayed have the same bits; a draft that was refused is another row.
    let seen = states(&drafted);
    let found = want.iter().filter(|row| seen.contains(row)).count();
    assert!(found >= 8 * (rows - 1), "{found} of {}", want.len());
    assert!(of(&plain, "picks").count() >= 2 * rows);
}

#[test]
fn logits_are_whole_and_files_are_named() {
    let lines = trace(&["--what", "logits,argmax"]);
    let vocab = number(&lines[0]["vocab"]) as usize;
    for (logits, best) in of(&lines, "logits").zip(of(&lines, "argmax")) {
        let values = logits["values"].as_array().unwrap();
        assert_eq!(values.len(), vocab);
        assert_eq!(values[number(&best["token"]) as usize], best["logit"]);
    }
    refused(&["trace", "hi", "--out", "/nowhere/at/all"], 1, &["cannot create /nowhere/at/all"]);
    refused(&["trace", "hi", "--out", "-", "--what", "dreams"], 2, &["dreams", "routes"]);
}
