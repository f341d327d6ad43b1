//! `cherenkov bench`: figures hang together; impossible wishes are refused.

mod common;

use common::{refused, text_of};
use serde_json::Value;

fn figures(args: &[&str]) -> Value {
    let text = text_of(&[&["bench", "--json", "-", "--repeat", "2"], args].concat());
    serde_json::from_str(&text).expect("the output is JSON")
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is not a number"))
}

#[test]
fn every_configuration_is_measured() {
    let args = ["--prompt", "20,70", "-n", "9", "--depth", "0,90", "--threads", "1,2"];
    let all = figures(&args);
    let results = all["results"].as_array().unwrap();
    let names: Vec<&str> = results.iter().map(|r| r["test"].as_str().unwrap()).collect();
    assert_eq!(names, ["pp20", "pp70", "tg9"].repeat(4));
    for row in results {
        let samples = row["samples"].as_array().unwrap();
        assert_eq!(samples.len(), 2);
        let middle = (number(&samples[0]) + number(&samples[1])) / 2.0;
        assert!((number(&row["tokens_per_second"]) / middle - 1.0).abs() < 1e-9);
        assert!(number(&row["read_bytes_per_second"]) > 0.0);
        assert_eq!(row["roofline"].is_number(), row["test"] == "tg9");
    }
    // A text is not cut: the depth is at least that of the built-in question.
    let depths: Vec<f64> = results.iter().map(|r| number(&r["depth"])).collect();
    assert!(depths[0] > 0.0 && depths[0] < 90.0 && depths[3] == 90.0, "{depths:?}");
    assert!(all["machine"]["cpu"].is_string() && all["machine"]["cores"].is_number());
    assert_eq!(all["model"]["config"]["moe"]["experts"], 48);
    assert!(number(&all["weight_bytes_per_token"]) > 1e6);
}

#[test]
fn precisions_of_keys_and_values_are_measured_in_turn() {
    let all = figures(&["--prompt", "none", "-n", "5", "--threads", "1", "--kv", "f16,q8"]);
    let kv: Vec<_> = all["results"].as_array().unwrap().iter().map(|r| &r["kv"]).collect();
    assert_eq!(kv, ["f16", "q8"]);
    let args = ["bench", "--prompt", "none", "-n", "2", "--repeat", "1", "--kv", "q8,f16"];
    let table = text_of(&args);
    // Keys and values of two heads of 64, and a quarter of an index key of 64 in half precision.
    for words in ["keys and values, q8: 304 B", "keys and values, f16: 544 B"] {
        assert!(table.contains(words), "no {words} in {table}");
    }
    refused(&["bench", "--device", "reference", "--kv", "q8"], 2, &["--device cpu"]);
}

#[test]
fn acceptance_is_forced() {
    let base = ["--prompt", "none", "-n", "120", "--drafts", "2", "--tokens", "random"];
    for (share, low, high) in [("0", 0.0, 0.0), ("1", 1.0, 1.0), ("0.7", 0.55, 0.85)] {
        let all = figures(&[&base[..], &["--force-acceptance", share]].concat());
        let found = number(&all["results"][0]["acceptance"]);
        assert!((low..=high).contains(&found), "{share}: {found}");
    }
    let warm = ["--temperature", "1", "--force-acceptance", "1"];
    let all = figures(&[&base[..], &warm].concat());
    assert_eq!(all["results"][0]["acceptance"], 1.0);
}

#[test]
fn verbs_are_taken_apart() {
    let all = figures(&["--prompt", "40", "-n", "10", "--threads", "1", "--verbs"]);
    let profiles = all["profiles"].as_array().unwrap();
    assert_eq!(profiles.len(), 2);
    for profile in profiles {
        let verbs = profile["verbs"].as_array().unwrap();
        let sum: f64 = verbs.iter().map(|v| number(&v["seconds"])).sum();
        let (total, between) = (number(&profile["seconds"]), number(&profile["between_seconds"]));
        assert!((sum + between - total).abs() < 1e-9 && between > 0.0, "{sum} {between} {total}");
        for name in ["delta", "attend", "experts", "hyper_turn", "linear"] {
            assert!(verbs.iter().any(|v| v["verb"] == name), "{name}");
        }
    }
    // Two layers in eight are attention, twice over ten steps of decode.
    let attend = profiles[1]["verbs"].as_array().unwrap().iter().find(|v| v["verb"] == "attend");
    assert_eq!(attend.unwrap()["calls"], 40);
    let table = text_of(&["bench", "--prompt", "none", "-n", "3", "--repeat", "1", "--verbs"]);
    assert!(table.contains("tg3") && table.contains("between the verbs"), "{table}");
}

#[test]
fn impossible_wishes_are_refused() {
    refused(&["bench", "--drafts", "8"], 2, &["--drafts 8", "at most 7"]);
    refused(&["bench", "--force-acceptance", "0.5"], 2, &["--force-acceptance", "--drafts"]);
    refused(&["bench", "--force-acceptance", "1.5", "--drafts", "2"], 2, &["0 to 1"]);
    refused(&["bench", "--prompt", "none", "--generate", "none"], 2, &["nothing to measure"]);
    refused(&["bench", "--prompt", "0"], 2, &["lengths such as"]);
    refused(&["bench", "--isa", "mmx"], 2, &["--isa mmx", "portable"]);
    refused(&["bench", "--device", "reference", "--threads", "2"], 2, &["--device cpu"]);
}

#[test]
fn routes_are_recorded_and_replayed() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("routes.txt");
    let file = file.to_str().unwrap();
    let recorded = figures(&["-n", "40", "--drafts", "1", "--trace", "--save-trace", file]);
    assert_eq!((&recorded["layers"], &recorded["experts"]), (&9.into(), &48.into()));
    let pools = recorded["pools"].as_array().unwrap();
    for pool in pools {
        let rate = |policy: &str| number(&pool["hit_rates"][policy]["steps"]);
        let (lru, fading, best) = (rate("lru"), rate("fading"), rate("belady"));
        assert!(lru <= best && fading <= best && best <= 1.0, "{pool}");
    }
    let quarter = pools.iter().find(|p| p["percent"] == 25).unwrap();
    assert_eq!(quarter["slots"], 108);
    let rates = &quarter["hit_rates"];
    assert!(number(&rates["fading"]["steps"]) > number(&rates["lru"]["steps"]), "{quarter}");
    // The file alone gives the same figures, and is text that can be read.
    assert_eq!(figures(&["--trace", file]), recorded);
    std::fs::write(file, "cherenkov-routes 1\nlayers 9 experts 48\n0 4 1 2 3 48\n").unwrap();
    refused(&["bench", "--trace", file], 1, &["routes.txt", "line 3"]);
    refused(&["bench", "--save-trace", file], 2, &["--trace"]);
}
