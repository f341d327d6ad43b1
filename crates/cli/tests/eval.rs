//! `cherenkov eval`: figures hang together; what cannot be compared is refused.

mod common;

use common::{bundled_store, refused, run, text_of, wordy_checkpoint};
use serde_json::Value;
use std::path::{Path, PathBuf};

const STORY: &str = "There was once a shy fox named Pip. He lived on Kite Hill, a place known for its \
                     strong wind. He was patient and quite hungry, and he loved shiny buttons.";

/// A file in a directory of its own.
struct Files(tempfile::TempDir);

impl Files {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        std::fs::write(&path, text).unwrap();
        path.to_str().unwrap().to_owned()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

fn figures(args: &[&str]) -> Value {
    let text = text_of(&[&["eval", "--json"], args].concat());
    serde_json::from_str(&text).expect("the output is JSON")
}

fn number(figures: &Value, name: &str) -> f64 {
    figures[name].as_f64().unwrap_or_else(|| panic!("{name} of {figures} is not a number"))
}

/// The figures that say that two models are the same one.
fn assert_same(figures: &Value) {
    for (name, expected) in [
        ("divergence", 0.0),
        ("divergence_max", 0.0),
        ("divergence_error", 0.0),
        ("perplexity_ratio", 1.0),
        ("agreement", 1.0),
    ] {
        assert_eq!(number(figures, name), expected, "{name}");
    }
    assert_eq!(number(figures, "perplexity"), number(figures, "base_perplexity"));
}

#[test]
fn a_store_does_not_differ_from_itself() {
    let files = Files::new();
    let text = files.write("story.txt", STORY);
    let itself = bundled_store();
    let args = ["--text", &text, "--window", "20", "--against", itself.to_str().unwrap()];
    let all = figures(&[&args[..], &["--threads", "1"]].concat());
    assert_same(&all);
    let (tokens, windows) = (number(&all, "tokens"), number(&all, "windows"));
    assert!(windows >= 2.0 && tokens > 20.0 && tokens <= windows * 19.0, "{all}");
    assert!(number(&all, "perplexity") > 1.0 && number(&all, "accuracy") > 0.3, "{all}");
}

#[test]
fn the_reference_is_near_whatever_keys_and_values_are_kept_as() {
    let files = Files::new();
    let text = files.write("story.txt", STORY);
    let args = ["--text", &text, "--window", "16", "--against", "reference"];
    let half = figures(&[&args[..], &["--threads", "2"]].concat());
    let divergence = number(&half, "divergence");
    assert!(divergence > 0.0 && divergence < 1e-3, "{half}");
    assert!((number(&half, "perplexity_ratio") - 1.0).abs() < 0.01, "{half}");
    assert!(number(&half, "divergence_max") >= divergence);
    // The sums do not depend on workers or threads.
    let one = figures(&[&args[..], &["--threads", "1", "--chunk", "3"]].concat());
    assert_eq!(number(&one, "divergence"), divergence);
    assert_eq!(number(&one, "base_perplexity"), number(&half, "base_perplexity"));
    for kv in ["f32", "q8"] {
        let other = figures(&[&args[..], &["--kv", kv]].concat());
        assert!(number(&other, "divergence") != divergence, "{other}");
        assert!(number(&other, "divergence") < 1e-2, "{other}");
        assert!(other["device"].as_str().unwrap().contains(kv), "{other}");
    }
    let args = ["--text", &text, "--window", "16", "--limit", "9", "--against", "reference"];
    assert_same(&figures(&[&args[..], &["--device", "reference"]].concat()));
}

#[test]
fn lines_of_tokens_are_texts_of_their_own() {
    let files = Files::new();
    let one = files.write("one.txt", "550 198 2 861 256 467 562\n");
    let two = files.write("two.txt", "550 198 2 861 256 467 562\n\n4084 550 198\n17\n");
    let (one, two) = (figures(&["--tokens", &one]), figures(&["--tokens", &two]));
    assert_eq!((number(&one, "tokens"), number(&one, "windows")), (6.0, 1.0));
    // A single token predicts nothing.
    assert_eq!((number(&two, "tokens"), number(&two, "windows")), (8.0, 2.0));
    let limited = figures(&["--tokens", files.path("two.txt").to_str().unwrap(), "--limit", "7"]);
    assert_eq!(number(&limited, "perplexity"), number(&one, "perplexity"));
}

#[test]
fn the_lines_by_position_add_up() {
    let files = Files::new();
    let text = files.write("story.txt", STORY);
    let csv = files.path("by.csv");
    let args = ["--text", &text, "--window", "20", "--bucket", "8", "--limit", "30"];
    let base = bundled_store();
    let more = ["--against", base.to_str().unwrap(), "--csv", csv.to_str().unwrap()];
    let all = figures(&[&args[..], &more].concat());
    let csv = std::fs::read_to_string(csv).unwrap();
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0].len(), 11, "{csv}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{csv}");
    let places: Vec<_> = rows[1..].iter().map(|row| row[..3].join(" ")).collect();
    // Windows of 20 and 10 tokens predict 19 and 9.
    assert_eq!(places, ["1 8 16", "9 16 9", "17 19 3"]);
    let value = |row: &Vec<&str>, i: usize| row[i].parse::<f64>().unwrap();
    let loss: f64 = rows[1..].iter().map(|row| value(row, 2) * value(row, 3).ln()).sum();
    assert!((loss / 28.0 - number(&all, "perplexity").ln()).abs() < 1e-9, "{csv}");
    let lines = all["by_position"].as_array().unwrap();
    assert_eq!(lines.len(), 3);
    assert_eq!(number(&lines[1], "perplexity"), value(&rows[2], 3));
}

#[test]
fn the_table_names_every_figure() {
    let files = Files::new();
    let text = files.write("story.txt", STORY);
    let base = bundled_store();
    let args = ["eval", "--text", &text, "--against", base.to_str().unwrap(), "--limit", "12"];
    let table = text_of(&args);
    for words in
        ["11 predicted in 1 windows", "perplexity", "ratio        1.00000", "0.000e0", "100.00 %"]
    {
        assert!(table.contains(words), "no {words} in {table}");
    }
    let ended = run(&["eval", "--text", &text, "--limit", "12"]);
    assert!(!ended.out.contains("ratio") && ended.err.is_empty(), "{ended:?}");
}

#[test]
fn control_text_needs_special() {
    let files = Files::new();
    let text = files.write("chat.txt", "<|im_start|>user\nhi<|im_end|>\n");
    let plain = figures(&["--text", &text]);
    let special = figures(&["--text", &text, "--special"]);
    assert!(number(&special, "tokens") < number(&plain, "tokens"));
}

fn refuse(args: &[&str], words: &[&str]) {
    refused(&[&["eval"], args].concat(), 2, words);
}

#[test]
fn what_cannot_be_scored_is_refused() {
    let files = Files::new();
    let (empty, one) = (files.write("empty.txt", ""), files.write("one.txt", "x"));
    let (bad, story) = (files.write("bad.txt", "1 2\n3 4096\n"), files.write("story.txt", STORY));
    refuse(&[], &["--text", "--tokens"]);
    refuse(&["--text", &story, "--tokens", &bad], &["cannot be used with"]);
    refuse(&["--text", &empty], &["empty.txt", "0 tokens", "at least 2"]);
    refuse(&["--text", &one], &["one.txt", "1 tokens", "at least 2"]);
    refuse(&["--tokens", &empty], &["empty.txt", "0 tokens"]);
    refuse(&["--tokens", &bad], &["bad.txt", "line 2", "`4096`", "below 4096"]);
    refuse(&["--text", &story, "--limit", "1"], &["1 tokens", "at least 2"]);
    refuse(&["--text", &story, "--window", "1"], &["--window 1", "2 to 8192"]);
    refuse(&["--text", &story, "--window", "9000"], &["--window 9000"]);
    refuse(&["--text", &story, "--device", "reference", "--kv", "f32"], &["--kv", "--device cpu"]);
    refused(&["eval", "--text", "/nowhere/x.txt"], 1, &["cannot read /nowhere/x.txt"]);
    refused(&["eval", "--text", &story, "--csv", "/nowhere/x.csv"], 1, &["/nowhere/x.csv"]);
    let base = ["--text", &story, "--against", "/nowhere/store"];
    refused(
        &[&["eval"], &base[..]].concat(),
        1,
        &["--against /nowhere/store", "no such directory"],
    );
}

#[test]
fn stores_of_other_vocabularies_are_refused() {
    let files = Files::new();
    let story = files.write("story.txt", STORY);
    let small = files.path("small");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/random/silu");
    text_of(&["pack", fixture.to_str().unwrap(), small.to_str().unwrap()]);
    let args = ["--text", &story, "--against", small.to_str().unwrap()];
    refuse(&args, &["--against", "found 96 tokens", "the model's 4096", "vocabularies differ"]);
    // Weights may differ.
    let (wordy, packed) = (files.path("wordy"), files.path("packed"));
    wordy_checkpoint(&wordy);
    text_of(&["pack", wordy.to_str().unwrap(), packed.to_str().unwrap()]);
    let args = ["--text", &story, "--limit", "20", "--against", packed.to_str().unwrap()];
    let all = figures(&args);
    assert!(number(&all, "divergence") > 1.0 && number(&all, "perplexity_ratio") < 0.1, "{all}");
    // As many tokens, but other ones.
    let path = wordy.join("tokenizer.json");
    let mut words: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let vocab = words["model"]["vocab"].as_object_mut().unwrap();
    let (there, t) = (vocab["There"].clone(), vocab["T"].clone());
    vocab["There"] = t;
    vocab["T"] = there;
    std::fs::write(&path, words.to_string()).unwrap();
    let other = files.path("other");
    text_of(&["pack", wordy.to_str().unwrap(), other.to_str().unwrap()]);
    let args = ["--text", &story, "--against", other.to_str().unwrap()];
    refuse(&args, &["--against", "token 0 of the text", "vocabularies differ"]);
}
