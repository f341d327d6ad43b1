//! A budget of memory is kept: what the process held at most is what the system says it held.

mod common;

use common::{refused, run, text_of};
use serde_json::Value;
use std::path::Path;

/// A store whose dense weights and experts are large beside the program itself.
fn store(dir: &Path) -> String {
    let out = dir.join("store").to_string_lossy().into_owned();
    let geometry = ["--preset", "small", "--layers", "6", "--hidden", "1024", "--vocab", "16000"];
    let experts = ["--experts", "48", "--set", "moe.width=512", "--set", "moe.shared_width=1024"];
    let ended = run(&[&["synth", &out], &geometry[..], &experts].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    out
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&text_of(args)).expect("the output is JSON")
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a number"))
}

/// Answers a long prompt; the text, and the statistics.
fn answer(store: &str, more: &[&str]) -> (String, Value) {
    let prompt = "the quick brown fox jumps over the lazy dog and runs away. ".repeat(12);
    let base = ["run", &prompt, "--model", store, "-t", "0", "-n", "24", "--no-eos"];
    let ended = run(&[&base[..], &["--stats-json", "-", "--max-ctx", "2000"], more].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    (ended.out, serde_json::from_str(&ended.err).expect("the statistics are JSON"))
}

#[cfg(unix)]
#[test]
fn a_process_stays_within_its_budget() {
    let dir = tempfile::tempdir().unwrap();
    let store = store(dir.path());
    let plan = |more: &[&str]| {
        let base = ["plan", "--model", &store, "--max-ctx", "2000", "--no-measure", "--json", "-"];
        json(&[&base[..], more].concat())
    };
    let whole = plan(&["--memory", "100GB", "--overcommit"]);
    let (records, record) = (number(&whole["records"]), number(&whole["record_bytes"]));
    assert_eq!(number(&whole["pool_slots"]), records);
    let (_, all) = answer(&store, &["--memory", "100GB"]);
    let mut texts = Vec::new();
    for share in [4, 8, 64] {
        let budget = number(&whole["total_bytes"]) - record * (records - records * share / 100);
        let (text, stats) = answer(&store, &["--memory", &budget.to_string()]);
        let (slots, peak) = (number(&stats["pool_slots"]), number(&stats["peak_resident_bytes"]));
        assert!(slots < records && slots + 8 > records * share / 100, "{slots} of {records}");
        assert!(stats["expert_misses"].as_u64() > all["expert_misses"].as_u64(), "{stats}");
        let part = peak as f64 / budget as f64;
        assert!(part <= 1.03, "{peak} bytes held, {budget} allowed: {stats}");
        assert!(part >= 0.85, "{peak} bytes held of {budget}: the plan is too careful: {stats}");
        texts.push(text);
    }
    assert!(texts.iter().all(|text| *text == texts[0]), "memory changes no token");
}

#[test]
fn a_plan_says_what_is_needed_and_how_fast_it_can_be() {
    let all = json(&["plan", "--json", "-", "--threads", "1", "--max-ctx", "512"]);
    let parts = all["bytes"].as_object().unwrap();
    let sum: u64 = parts.values().map(number).sum();
    assert_eq!(number(&all["total_bytes"]), sum);
    assert!(sum <= number(&all["budget_bytes"]));
    for what in ["program", "dense weights", "context", "scratch", "n-gram rows", "expert pool"] {
        assert!(number(&parts[what]) > 0, "{what}: {all}");
    }
    assert_eq!(all["resident_share"], 1.0);
    assert_eq!(all["expected"]["limit"], "memory", "everything fits");
    let rate = |what: &str| all["measured"][what].as_f64().unwrap();
    let token = all["token_weight_bytes"].as_f64().unwrap();
    let decode = all["expected"]["decode_tokens_per_second"].as_f64().unwrap();
    assert!((decode * token / rate("memory_bytes_per_second") - 1.0).abs() < 1e-9);
    assert!(rate("drive_bytes_per_second") > 0.0);
    let half = json(&["plan", "--json", "-", "--threads", "1", "--pool", "216", "--no-measure"]);
    assert_eq!(half["resident_share"], 0.5);
    assert_eq!(
        half["token_drive_bytes"].as_f64(),
        Some(16.0 * number(&half["record_bytes"]) as f64)
    );
    assert!(half["measured"].is_null() && half["expected"].is_null());
    let table = text_of(&["plan", "--pool", "216"]);
    for word in ["expert pool", "216 of 432 in memory (50.0 %)", "tokens/s", "limited by the"] {
        assert!(table.contains(word), "no {word:?} in\n{table}");
    }
}

#[test]
fn budgets_that_cannot_work_are_refused() {
    refused(&["run", "hi", "--memory", "lots"], 2, &["--memory", "24GB"]);
    refused(&["run", "hi", "--memory", "20MB"], 1, &["--memory allows 20.0 MB", "dense weights"]);
    refused(&["plan", "--memory", "20MB"], 1, &["--memory allows 20.0 MB", "give it"]);
    refused(&["bench", "--memory", "20MB"], 1, &["--memory allows 20.0 MB"]);
    refused(&["plan", "--max-ctx", "9000"], 2, &["--max-ctx 9000", "at most 8192"]);
}
