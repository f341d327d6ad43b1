//! `cherenkov export`.

mod common;

use common::{refused, run};

#[test]
fn the_bundled_model_becomes_a_file_and_says_how_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("pocket.gguf");
    let out = out.to_str().unwrap();
    let ended = run(&["export", "--gguf", out]);
    assert_eq!(ended.code, 0, "{ended:?}");
    for words in [
        "214 tensors",
        "experts exact",
        "ngram   exact",
        "dense   relative rms error 4.80e-3",
        "512",
    ] {
        assert!(ended.err.contains(words), "{words} in {}", ended.err);
    }
    assert!(std::fs::read(out).unwrap().starts_with(b"GGUF\x03\0\0\0"));
    refused(&["export", "--gguf", out], 1, &["something there already"]);
    assert_eq!(run(&["export", "--gguf", out, "--force", "--experts", "bf16"]).code, 0);
    refused(&["export"], 2, &["--gguf"]);
    refused(&["export", "--gguf", out, "--experts", "q5_k"], 2, &["q5_k", "q4_0"]);
    refused(&["export", "--gguf", out, "--model", "/no/such"], 1, &["no such directory"]);
}
