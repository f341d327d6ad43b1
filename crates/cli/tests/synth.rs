//! `cherenkov synth`: what it writes runs, packs and is verified.

mod common;

use common::{refused, run, text_of};

fn path(dir: &tempfile::TempDir, name: &str) -> String {
    dir.path().join(name).to_string_lossy().into_owned()
}

const LITTLE: [&str; 10] =
    ["--preset", "pocket", "--layers", "3", "--hidden", "128", "--vocab", "600", "--experts", "6"];

fn synth(out: &str, more: &[&str]) {
    let ended = run(&[&["synth", out], &LITTLE[..], more].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("wrote "), "{}", ended.err);
}

#[test]
fn a_synthetic_store_answers_the_same_with_and_without_drafts() {
    let dir = tempfile::tempdir().unwrap();
    let out = path(&dir, "store");
    // Rows of 128 / 16 values are not quantised.
    synth(&out, &["--experts-bits", "3"]);
    text_of(&["check", "--store", &out]);
    let base = ["run", "--model", &out, "-n", "12", "--no-eos", "what is this?"];
    let text = text_of(&base);
    assert!(text.chars().count() > 8, "{text:?}");
    assert_eq!(text_of(&[&base[..], &["--drafts", "0"]].concat()), text);
}

#[test]
fn a_synthetic_checkpoint_packs_and_runs() {
    let dir = tempfile::tempdir().unwrap();
    let (out, store) = (path(&dir, "checkpoint"), path(&dir, "store"));
    synth(
        &out,
        &["--format", "checkpoint", "--set", "delta.gate=silu", "--set", "ple.embed_dim=512"],
    );
    let packed = run(&["pack", &out, &store]);
    assert_eq!(packed.code, 0, "{packed:?}");
    assert!(packed.err.contains("raw, 1 added"), "{}", packed.err);
    text_of(&["run", "--model", &store, "-n", "4", "hello"]);
}

#[test]
fn what_cannot_be_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let out = path(&dir, "x");
    let with = |more: &[&'static str]| {
        let mut args = vec!["synth", &out, "--preset", "small"];
        args.extend_from_slice(more);
        args.into_iter().map(str::to_owned).collect::<Vec<_>>()
    };
    for (more, code, words) in [
        (&["--set", "moe.exparts=3"][..], 2, ["--set", "moe.exparts", "moe.experts"]),
        (&["--set", "delta.gate=relu"], 2, ["--set", "delta.gate", "relu"]),
        (&["--hidden", "100"], 1, ["geometry", "ple.embed_dim 100", "16 heads"]),
        (&["--format", "checkpoint", "--force"], 2, ["--force", "stores only", "OUT"]),
        (&["--layers", "1"], 0, ["", "", ""]),
    ] {
        let args = with(more);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        if code == 0 {
            text_of(&args);
        } else {
            refused(&args, code, &words);
        }
    }
}
