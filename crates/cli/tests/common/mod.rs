//! Runs the program as a user would.
#![allow(dead_code, reason = "every test binary uses another part")]

use std::ffi::OsStr;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// A directory that all test binaries share, so that the bundled model is unpacked once.
pub fn shared_dir() -> PathBuf {
    Path::new(env!("CARGO_TARGET_TMPDIR")).join("home")
}

/// The program, away from the user's own files.
pub fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_cherenkov"));
    let home = shared_dir();
    command
        .env("HOME", &home)
        .env("XDG_CACHE_HOME", home.join("cache"))
        .env("XDG_STATE_HOME", home.join("state"))
        .env("LOCALAPPDATA", home.join("cache"))
        .env_remove("NO_COLOR");
    command
}

/// How a run ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code.
    pub code: i32,
    /// What it said.
    pub out: String,
    /// What it reported.
    pub err: String,
}

impl From<Output> for Ended {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().expect("the program was not killed"),
            out: String::from_utf8(output.stdout).expect("stdout is UTF-8"),
            err: String::from_utf8(output.stderr).expect("stderr is UTF-8"),
        }
    }
}

/// Runs to the end.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Ended {
    command().args(args).output().expect("the program starts").into()
}

/// Runs with this text on stdin.
pub fn run_with_input(args: &[&str], input: &str) -> Ended {
    let mut child = command()
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut stdin = child.stdin.take().expect("stdin is a pipe");
    // A program that refuses its arguments does not read.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    child.wait_with_output().expect("the program ends").into()
}

/// Runs, and expects success.
pub fn text_of(args: &[&str]) -> String {
    let ended = run(args);
    assert_eq!(ended.code, 0, "{args:?}: {ended:?}");
    ended.out
}

/// Runs, and expects this exit code and these words in the one error line.
pub fn refused(args: &[&str], code: i32, words: &[&str]) {
    let ended = run(args);
    assert_eq!(ended.code, code, "{args:?}: {ended:?}");
    assert_eq!(ended.out, "", "{args:?}");
    assert!(ended.err.contains("error: "), "{args:?}: {}", ended.err);
    assert!(!ended.err.contains("panicked"), "{}", ended.err);
    for word in words {
        assert!(ended.err.contains(word), "{args:?}: no {word:?} in {}", ended.err);
    }
}

/// A copy of the bundled store that may be damaged.
pub fn store_copy(to: &Path) {
    let from = bundled_store();
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

/// The bundled store in the repository.
pub fn bundled_store() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket")
}

/// Makes a checkpoint of random weights that has words: a fixture whose vocabulary is stretched to
/// that of the bundled tokenizer by repeating rows.
pub fn wordy_checkpoint(to: &Path) {
    const VOCAB: usize = 4096;
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/random/silu");
    std::fs::create_dir_all(to).unwrap();
    for name in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"] {
        std::fs::copy(bundled_store().join(name), to.join(name)).unwrap();
    }
    let config = std::fs::read_to_string(from.join("config.json")).unwrap();
    let config = config.replace("\"vocab_size\": 96", &format!("\"vocab_size\": {VOCAB}"));
    std::fs::write(to.join("config.json"), config).unwrap();
    let bytes = std::fs::read(from.join("model.safetensors")).unwrap();
    let (length, rest) = bytes.split_first_chunk::<8>().unwrap();
    let (header, data) = rest.split_at(u64::from_le_bytes(*length) as usize);
    let mut header: serde_json::Value = serde_json::from_slice(header).unwrap();
    let mut stretched = Vec::new();
    for (name, tensor) in header.as_object_mut().unwrap() {
        if name == "__metadata__" {
            continue;
        }
        let offset = |i: usize| tensor["data_offsets"][i].as_u64().unwrap() as usize;
        let values = &data[offset(0)..offset(1)];
        let at = stretched.len();
        let count = if name.contains("embed_tokens") || name.contains("lm_head") {
            let rows = tensor["shape"][0].as_u64().unwrap() as usize;
            tensor["shape"][0] = VOCAB.into();
            values.len() / rows * VOCAB
        } else {
            values.len()
        };
        stretched.extend(values.iter().cycle().take(count));
        tensor["data_offsets"] = serde_json::json!([at, stretched.len()]);
    }
    let header = header.to_string();
    let parts = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &stretched];
    std::fs::write(to.join("model.safetensors"), parts.concat()).unwrap();
}
