//! `cherenkov pack`, `cherenkov check`, and checkpoints as models.

mod common;

use common::{command, refused, run, store_copy, text_of, wordy_checkpoint};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};

/// A checkpoint of random weights, without tokenizer.
fn checkpoint() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/random/base")
}

fn str(path: &Path) -> &str {
    path.to_str().expect("test paths are UTF-8")
}

#[test]
fn a_checkpoint_becomes_a_store_that_verifies() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (checkpoint(), dir.path().join("store"));
    let pack = ["pack", str(&source), str(&out), "--experts", "4", "--dense", "8"];
    let ended = run(&pack);
    assert_eq!((ended.code, ended.out.as_str()), (0, ""), "{ended:?}");
    for word in ["packed ", "dense.bin", "experts.bin", "norms trunk", "tokenizer.json is absent"] {
        assert!(ended.err.contains(word), "no {word} in {}", ended.err);
    }
    let ended = run(&["check", "--store", str(&out)]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("every byte is as it was packed"), "{}", ended.err);
    refused(&pack, 1, &["force replacement or name another output"]);
    let again = run(&[&pack[..], &["--force", "--threads", "1", "--drop-draft"]].concat());
    assert_eq!(again.code, 0, "{again:?}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing unfinished is left");
}

#[test]
fn a_store_has_the_precisions_asked_for_and_a_run_chooses_one() {
    let dir = tempfile::tempdir().unwrap();
    let (source, out) = (checkpoint(), dir.path().join("store"));
    let ended = run(&["pack", str(&source), str(&out), "--experts", "4,3,2"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for word in ["experts.bin", "experts-3.bin", "experts-2.bin", "experts at 2 bits: relative rms"]
    {
        assert!(ended.err.contains(word), "no {word} in {}", ended.err);
    }
    let ended = run(&["check", "--store", str(&out)]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for bits in ["2", "3", "4"] {
        let ended = run(&["check", "--model", str(&out), "--experts", bits, "-n", "2"]);
        assert_eq!(ended.code, 0, "{bits}: {ended:?}");
    }
    for bits in ["2", "4"] {
        let bench = ["bench", "--model", str(&out), "--experts", bits, "--tokens", "random"];
        let few = ["-p", "none", "-n", "2", "--repeat", "1", "--json", "-"];
        let all: Value = serde_json::from_str(&text_of(&[&bench[..], &few].concat())).unwrap();
        assert_eq!(all["model"]["experts"]["inner"]["bits"].to_string(), bits);
    }
    let eight = ["check", "--model", str(&out), "--experts", "8"];
    refused(&eight, 1, &["--experts 8", "found 2, 3, 4 bits", "pack SRC --experts 4,8"]);
    refused(&["check", "--model", str(&out), "--experts", "5"], 2, &["expected 2, 3, 4 or 8"]);
}

#[test]
fn packing_says_what_is_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let (none, source) = (dir.path().join("none"), checkpoint());
    refused(&["pack", str(&none), str(&out)], 1, &["none: no such directory"]);
    refused(&["pack", str(dir.path()), str(&out)], 1, &["config.json"]);
    refused(&["pack", str(&source), str(&out), "--experts", "5"], 2, &["2, 3, 4, 8 or 16"]);
    refused(&["pack", str(&source), str(&out), "--norms", "maybe"], 2, &["maybe"]);
    assert!(!out.exists());
}

#[test]
fn the_default_output_lies_beside_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("model");
    fs::create_dir(&source).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(checkpoint().join(name), source.join(name)).unwrap();
    }
    assert_eq!(run(&["pack", str(&source)]).code, 0);
    assert!(dir.path().join("model-cherenkov/manifest.json").exists());
}

#[test]
fn damage_is_named_by_file() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_copy(&store);
    for name in ["experts.bin", "dense.bin", "ngram-0.bin", "tokenizer.json", "manifest.json"] {
        let path = store.join(name);
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0x10;
        fs::write(&path, &bytes).unwrap();
        refused(&["check", "--store", str(&store)], 1, &[name]);
        fs::write(&path, &bytes[..middle]).unwrap();
        refused(&["check", "--store", str(&store)], 1, &[name]);
        fs::write(&path, &whole).unwrap();
    }
    fs::write(store.join("stray"), "").unwrap();
    let ended = run(&["check", "--store", str(&store)]);
    assert_eq!(ended.code, 0);
    assert!(ended.err.contains("note: stray does not belong"), "{}", ended.err);
    refused(&["check", "--store", str(&store), "--prompt", "x"], 2, &[]);
    refused(&["check", "--store", str(dir.path())], 1, &["manifest.json"]);
}

#[test]
fn a_damaged_expert_fails_the_run_that_meets_it() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    store_copy(&store);
    let path = store.join("experts.bin");
    let bytes = vec![0xAA; fs::metadata(&path).unwrap().len() as usize];
    fs::write(&path, bytes).unwrap();
    refused(&["run", "hi", "-m", str(&store)], 1, &["experts.bin", "expert 0/"]);
}

#[test]
fn a_checkpoint_is_packed_into_the_cache_once_and_only_when_allowed() {
    let cache = tempfile::tempdir().unwrap();
    let source = checkpoint();
    let check = |more: &[&str]| {
        let mut command = command();
        command.args(["check", "-n", "4", "--model", str(&source)]).args(more);
        command.env("XDG_CACHE_HOME", cache.path()).env("HOME", cache.path());
        common::Ended::from(command.env("LOCALAPPDATA", cache.path()).output().unwrap())
    };
    let asked = check(&[]);
    assert_eq!(asked.code, 1, "{asked:?}");
    assert!(asked.err.contains("is a checkpoint of") && asked.err.contains("--yes"), "{asked:?}");
    let first = check(&["--yes"]);
    assert_eq!(first.code, 0, "{first:?}");
    assert!(first.err.contains("packed "), "{}", first.err);
    assert!(first.err.contains("agrees with the exact reference"), "{}", first.err);
    let second = check(&[]);
    assert_eq!(second.code, 0, "{second:?}");
    assert!(!second.err.contains("packed "), "{}", second.err);
    let mut run = command();
    run.args(["run", "hi", "--model", str(&source)]).env("XDG_CACHE_HOME", cache.path());
    run.env("HOME", cache.path()).env("LOCALAPPDATA", cache.path());
    let ended = common::Ended::from(run.output().unwrap());
    assert_eq!(ended.code, 1, "{ended:?}");
    assert!(ended.err.contains("no tokenizer.json"), "{}", ended.err);
}

#[test]
fn devices_are_compared_on_the_bundled_model() {
    let ended = run(&["check", "-n", "8", "--prompt", "Who is Mira?"]);
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("\"Who is Mira?\": 14 + 8 tokens agree"), "{}", ended.err);
    assert!(ended.err.contains("agrees with the exact reference in every verb"), "{}", ended.err);
}

#[test]
fn a_checkpoint_answers_like_the_store_made_from_it() {
    let dir = tempfile::tempdir().unwrap();
    let (source, store) = (dir.path().join("model"), dir.path().join("store"));
    wordy_checkpoint(&source);
    let answer = |model: &Path, more: &[&str]| {
        let mut command = command();
        command.args(["run", "hi", "--no-eos", "-n", "24", "-m", str(model)]).args(more);
        command.env("XDG_CACHE_HOME", dir.path()).env("HOME", dir.path());
        let ended = common::Ended::from(command.env("LOCALAPPDATA", dir.path()).output().unwrap());
        assert_eq!(ended.code, 0, "{ended:?}");
        ended.out
    };
    assert_eq!(run(&["pack", str(&source), str(&store)]).code, 0);
    let text = answer(&source, &["--yes"]);
    assert!(!text.trim().is_empty());
    // Without generation_config.json a model is greedy.
    assert_eq!(text, answer(&store, &["--drafts", "0", "--pool", "2", "--threads", "1"]));
    let headless = dir.path().join("headless");
    assert_eq!(run(&["pack", str(&source), str(&headless), "--drop-draft"]).code, 0);
    assert_eq!(text, answer(&headless, &[]), "two drafts are no default without a head");
    refused(&["run", "hi", "-m", str(&headless), "--drafts", "1"], 2, &["no draft head"]);
}

#[test]
fn small_records_for_misses_are_read_counted_and_warned_about() {
    let dir = tempfile::tempdir().unwrap();
    let (source, store) = (dir.path().join("checkpoint"), dir.path().join("store"));
    wordy_checkpoint(&source);
    assert_eq!(run(&["pack", str(&source), str(&store), "--experts", "4,2"]).code, 0);
    let ask = ["run", "hi", "--raw", "--no-eos", "-n", "12", "-m", str(&store), "--stats"];
    let with = |more: &[&str]| run(&[&ask[..], more].concat());
    let plain = with(&["--cut-weak", "0"]);
    assert_eq!(plain.code, 0, "{plain:?}");
    assert!(!plain.err.contains("depend on") && !plain.err.contains("small records"), "{plain:?}");
    let fixed = ["--miss-experts", "2", "--lookahead", "off", "--drafts", "1", "--governor", "off"];
    let low = with(&fixed);
    assert_eq!(low.code, 0, "{low:?}");
    for word in
        ["--miss-experts 2: answers depend on which experts", " small records read, 0 made whole"]
    {
        assert!(low.err.contains(word), "no {word} in {}", low.err);
    }
    assert_eq!(low.out, with(&[&fixed[..], &["--readers", "1", "--threads", "2"]].concat()).out);
    let cut = with(&["--cut-weak", "0.9", "--pool", "4"]);
    assert_eq!(cut.code, 0, "{cut:?}");
    assert!(cut.err.contains("--cut-weak 0.9: answers depend on how fast"), "{}", cut.err);
    let model = ["run", "hi", "-m", str(&store)];
    refused(&[&model[..], &["--miss-experts", "3"]].concat(), 1, &["found 2, 4 bits"]);
    refused(&[&model[..], &["--miss-experts", "4"]].concat(), 1, &["choose fewer bits for misses"]);
    refused(&[&model[..], &["--cut-weak", "1"]].concat(), 2, &["at least 0 and below 1"]);
}
