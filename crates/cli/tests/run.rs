//! `cherenkov run` with a prompt, on the bundled model.

mod common;

use common::{bundled_store, command, refused, run, run_with_input, shared_dir, text_of};
use std::io::Read as _;
use std::process::Stdio;

const QUESTION: &str = "Who is Mira?";
const ANSWER: &str =
    "Mira is an owl who lives in Amber Valley. She works as a map maker and loves paper boats.\n";
/// Greedy and short: what most tests look at.
const GREEDY: [&str; 6] = ["run", QUESTION, "--temperature", "0", "--no-think", "--threads=1"];

fn greedy(more: &[&str]) -> String {
    text_of(&[&GREEDY[..], more].concat())
}

#[test]
fn a_question_is_answered_from_any_directory() {
    let elsewhere = tempfile::tempdir().unwrap();
    let output = command().args(GREEDY).current_dir(elsewhere.path()).output().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ANSWER);
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "", "nothing to report");
    assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
}

#[test]
fn the_text_does_not_depend_on_how_it_is_computed() {
    for more in [
        &["--drafts", "0"][..],
        &["--drafts", "1"],
        &["--drafts", "4"],
        &["--drafts", "7"],
        &["--pool", "1"],
        &["--pool", "50", "--drafts", "3"],
        &["--max-ctx", "100", "--chunk", "5"],
        &["--max-ctx", "4000", "--max-tokens", "40"],
        &["--isa", "portable"],
    ] {
        assert_eq!(greedy(more), ANSWER, "{more:?}");
    }
    let two = [&GREEDY[..5], &["--threads", "2"]].concat();
    assert_eq!(text_of(&two), ANSWER);
}

#[test]
fn keys_and_values_in_eight_bits_are_a_choice_with_one_answer() {
    for more in [
        &["--drafts", "0"][..],
        &["--drafts", "7", "--chunk", "5"],
        &["--isa", "portable"],
        &["--check", "--max-tokens", "30"],
    ] {
        assert_eq!(greedy(&[&["--kv", "q8"], more].concat()), ANSWER, "{more:?}");
    }
    refused(&["run", "x", "--kv", "q4"], 2, &["q4", "f16", "q8", "f32"]);
    refused(&["run", "x", "--kv", "q8", "--device", "reference"], 2, &["--kv", "--device cpu"]);
}

#[test]
fn sampled_text_follows_the_seed_alone() {
    let sampled = |seed: &str, more: &[&str]| {
        let args = ["run", "Tell me a story.", "--temperature", "1.2", "-n", "24", "--no-think"];
        text_of(&[&args[..], &["--threads=1", "--seed", seed], more].concat())
    };
    let one = sampled("1", &[]);
    assert_eq!(one, sampled("1", &["--drafts", "0", "--pool", "3"]));
    assert_eq!(format!("{one}{one}"), sampled("1", &["--repeat", "2"]), "a seed is for all runs");
    assert_ne!(one, sampled("2", &[]));
}

#[test]
fn repetitions_without_a_seed_differ() {
    let args = ["run", "Tell me a story.", "-t", "1.5", "-n", "16", "--no-think", "--repeat", "3"];
    let text = text_of(&[&args[..], &["--stats-json", "-"]].concat());
    assert!(text.lines().count() >= 3, "{text}");
    let ended = run(&[&args[..], &["--stats-json", "-"]].concat());
    let seeds: Vec<u64> = ended
        .err
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["seed"].as_u64())
        .map(Option::unwrap)
        .collect();
    assert_eq!(seeds, [seeds[0], seeds[0] + 1, seeds[0] + 2]);
}

#[test]
fn thinking_is_marked_hidden_or_off() {
    let args = ["run", "What is 256 + 387?", "-t", "0"];
    let think = text_of(&[&args[..], &["--think"]].concat());
    let (thought, answer) = think.split_once("\n</think>\n\n").expect("thinking is closed");
    assert!(thought.starts_with("<think>\n"), "{think}");
    assert!(answer.contains("643"), "{think}");
    assert!(!think.contains('\x1b'), "no styles in a pipe");
    let hidden = text_of(&[&args[..], &["--think", "--hide-thinking"]].concat());
    assert_eq!(hidden, answer);
    assert!(!text_of(&[&args[..], &["--no-think"]].concat()).contains("think>"));
}

#[test]
fn a_system_message_reaches_the_model() {
    let ended =
        run(&[&GREEDY[..], &["--system", "You are a pirate.", "--stats-json", "-"]].concat());
    let with: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    let ended = run(&[&GREEDY[..], &["--stats-json", "-"]].concat());
    let without: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    let tokens = |v: &serde_json::Value| v["prompt_tokens"].as_u64().unwrap();
    assert!(tokens(&with) > tokens(&without) + 4, "{with} {without}");
}

#[test]
fn raw_text_is_continued_and_control_text_needs_special() {
    let raw = |prompt: &str, more: &[&str]| {
        let args = ["run", prompt, "--raw", "-t", "0", "-n", "8", "--no-eos", "--stats-json", "-"];
        let ended = run(&[&args[..], more].concat());
        assert_eq!(ended.code, 0, "{ended:?}");
        let stats: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
        (stats["prompt_tokens"].as_u64().unwrap(), ended.out)
    };
    let (tokens, text) = raw("There was once a fox", &[]);
    assert!(tokens <= 6 && !text.is_empty(), "{tokens} {text}");
    let control = "<|im_start|>user\nhi<|im_end|>\n";
    let (plain, _) = raw(control, &[]);
    let (special, _) = raw(control, &["--special"]);
    assert!(special < plain, "{special} {plain}");
}

#[test]
fn answers_end_where_they_are_told_to() {
    assert_eq!(greedy(&["--stop", "Valley"]), "Mira is an owl who lives in Amber \n");
    assert_eq!(greedy(&["--stop", "nowhere", "--stop", " an"]), "Mira is\n");
    let short = greedy(&["--max-tokens", "5"]);
    assert!(ANSWER.starts_with(short.trim_end()) && short.len() < ANSWER.len(), "{short}");
    let ended = run(&[&GREEDY[..], &["--no-eos", "-n", "60", "--stats-json", "-"]].concat());
    let stats: serde_json::Value = serde_json::from_str(&ended.err).unwrap();
    assert_eq!(stats["output_tokens"], 60);
    assert_eq!(stats["finish"], "length");
    assert!(ended.out.starts_with(ANSWER.trim_end()), "{}", ended.out);
}

#[test]
fn statistics_say_what_happened() {
    let ended = run(&[&GREEDY[..], &["--stats", "--drafts", "2"]].concat());
    assert_eq!(ended.out, ANSWER);
    for word in
        ["prefill", "decode", "tokens/s", "tokens per pass", "draft 1: ", "hits", "resident"]
    {
        assert!(ended.err.contains(word), "no {word} in {}", ended.err);
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stats.json");
    let path = file.to_str().unwrap();
    greedy(&["--stats-json", path, "--repeat", "2", "--pool", "8", "--drafts", "0"]);
    let lines = std::fs::read_to_string(file).unwrap();
    let lines: Vec<serde_json::Value> =
        lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(lines.len(), 2);
    for line in &lines {
        assert!(line["expert_misses"].as_u64().unwrap() > 0, "{line}");
        assert_eq!(line["tokens_per_pass"], 1.0);
        assert_eq!(line["pool_slots"], 8);
        assert_eq!(line["finish"], "stop token");
        statistics_add_up(line);
    }
    assert_eq!(lines[0]["output_tokens"], lines[1]["output_tokens"]);
}

/// Phases, layers, experts and causes are the same reads, counted in other ways.
fn statistics_add_up(line: &serde_json::Value) {
    let number = |value: &serde_json::Value| value.as_u64().unwrap();
    let (phases, streaming) = (&line["phases"], &line["streaming"]);
    let layers = streaming["layers"].as_array().unwrap();
    for (what, total) in [
        ("hits", &line["expert_hits"]),
        ("misses", &line["expert_misses"]),
        ("read_bytes", &line["expert_read_bytes"]),
    ] {
        let by_phase = number(&phases["prefill"][what]) + number(&phases["decode"][what]);
        let by_layer: u64 = layers.iter().map(|layer| number(&layer[what])).sum();
        assert_eq!((by_phase, by_layer), (number(total), number(total)), "{what}");
    }
    let experts = |what: &str| -> u64 {
        let layers = streaming["experts"][what].as_array().unwrap().iter();
        layers.flat_map(|layer| layer.as_array().unwrap()).map(number).sum()
    };
    assert_eq!(experts("hits"), number(&line["expert_hits"]));
    assert_eq!(experts("misses"), number(&line["expert_misses"]));
    let selections: u64 = layers.iter().map(|layer| number(&layer["selections"])).sum();
    assert_eq!(experts("selections"), selections);
    let causes = |what: &str| -> u64 {
        let by_bits = layers.iter().map(|layer| &layer["reads_by_bits"]["4"]);
        let causes = by_bits.flat_map(|reads| reads.as_object().unwrap().values());
        causes.map(|cause| number(&cause[what])).sum()
    };
    assert_eq!(causes("bytes"), number(&line["expert_read_bytes"]));
    assert_eq!(
        experts("reads"),
        number(&line["expert_read_bytes"]) / number(&streaming["record_bytes"])
    );
    assert!(causes("reads") >= experts("reads"));
    assert!(
        line["memory_bytes"]["expert pool"].as_u64()
            == Some(8 * number(&streaming["record_bytes"]))
    );
}

#[test]
fn prompts_come_from_pipes_too() {
    let args = ["run", "-t", "0", "--no-think", "--threads=1"];
    assert_eq!(run_with_input(&args, &format!("{QUESTION}\n")).out, ANSWER);
    let dash = ["run", "-", "-t", "0", "--no-think", "--threads=1"];
    assert_eq!(run_with_input(&dash, QUESTION).out, ANSWER);
    let empty = run_with_input(&args, " \n");
    assert_eq!(empty.code, 2, "{empty:?}");
    assert!(empty.err.contains("prompt on stdin is empty"), "{}", empty.err);
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    refused(&["run", "hi", "--max-tokens", "9000"], 2, &["output 9000", "holds 8192"]);
    refused(
        &["run", "hi", "--max-ctx", "20", "-n", "16", "--drafts", "3"],
        2,
        &["output 16 + drafts 3", "holds 20", "raise --max-ctx (this model: up to 8192)"],
    );
    refused(&["run", "hi", "--max-ctx", "9000"], 2, &["9000", "at most 8192 tokens"]);
    refused(&["run", "hi", "--drafts", "8"], 2, &["--drafts 8", "at most 7"]);
}

#[test]
fn a_closed_pipe_ends_quietly() {
    let mut child = command()
        .args(["run", "Tell me a story.", "-t", "0", "--no-think", "--no-eos", "-n", "2000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    drop(stdout);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_single_answer_with_130() {
    use nix::sys::signal::{Signal, kill};
    let mut child = command()
        .args(["run", "Tell me a story.", "-t", "0", "--no-think", "--no-eos", "-n", "4000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdout = child.stdout.take().unwrap();
    stdout.read_exact(&mut [0]).unwrap();
    kill(nix::unistd::Pid::from_raw(child.id() as i32), Signal::SIGINT).unwrap();
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with('\n'), "the line is ended: {rest:?}");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

#[test]
fn models_that_are_none_are_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let none = dir.path().join("nowhere");
    refused(
        &["run", "hi", "--model", none.to_str().unwrap()],
        1,
        &["nowhere: no such directory", "expected a store"],
    );
    refused(
        &["run", "hi", "--model", dir.path().to_str().unwrap()],
        1,
        &["neither store nor checkpoint"],
    );
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    refused(&["run", "hi", "--model", file.to_str().unwrap()], 1, &["not a directory"]);
}

#[test]
fn contradictions_are_usage_errors() {
    for args in [
        &["run", "hi", "--think", "--no-think"][..],
        &["run", "hi", "--raw", "--system", "x"],
        &["run", "hi", "--raw", "--think"],
        &["run", "hi", "--special"],
        &["run", "hi", "--max-tokens", "0"],
        &["run", "hi", "--pool", "0"],
        &["run", "hi", "--temperature", "-1"],
        &["run", "hi", "--top-p", "0"],
        &["run", "hi", "--stop", ""],
        &["run", "hi", "--logit-bias", "5000=1"],
        &["run", "hi", "--logit-bias", "x"],
        &["run", "hi", "--device", "reference", "--threads", "2"],
        &["run", "hi", "--isa", "mmx"],
        &["run", "hi", "--frobnicate"],
        &["frobnicate"],
        &["run", "--raw", ""],
    ] {
        refused(args, 2, &[]);
    }
    refused(&["run", "hi", "--device", "gpu"], 1, &["not built yet"]);
}

#[test]
fn a_named_store_and_other_devices_give_the_same_kind_of_text() {
    let store = bundled_store();
    assert_eq!(greedy(&["--model", store.to_str().unwrap()]), ANSWER);
    let exact = ["run", QUESTION, "-t", "0", "--no-think", "--device", "reference", "-n", "8"];
    assert!(ANSWER.starts_with(text_of(&exact).trim_end()));
}

#[test]
fn a_checked_run_says_that_everything_agreed() {
    let ended = run(&[&GREEDY[..], &["--check", "-n", "6"]].concat());
    assert_eq!(ended.code, 0, "{ended:?}");
    assert!(ended.err.contains("every verb agreed"), "{}", ended.err);
    assert!(ANSWER.starts_with(ended.out.trim_end()), "{}", ended.out);
}

#[test]
fn a_logit_bias_forbids_a_token() {
    let text = greedy(&["--logit-bias", "4085=-inf", "--logit-bias", "4083=-inf", "-n", "40"]);
    assert!(text.starts_with(ANSWER.trim_end()) && text.len() > ANSWER.len(), "{text}");
}

#[test]
fn a_home_that_cannot_be_written_is_no_obstacle() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    std::fs::write(&file, "").unwrap();
    let temp = dir.path().join("temp");
    std::fs::create_dir(&temp).unwrap();
    let output = command()
        .args(GREEDY)
        .env("XDG_CACHE_HOME", file.join("cache"))
        .env("HOME", &file)
        .env("LOCALAPPDATA", &file)
        .env("TMPDIR", &temp)
        .env("TMP", &temp)
        .output()
        .unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), ANSWER);
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(err.contains("note: ") && err.contains("cherenkov-models instead"), "{err}");
}

#[test]
fn a_damaged_copy_of_the_bundled_model_is_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let again = || {
        let mut command = command();
        command.args(GREEDY).env("XDG_CACHE_HOME", dir.path()).env("HOME", dir.path());
        command.env("LOCALAPPDATA", dir.path()).output().unwrap()
    };
    assert_eq!(String::from_utf8(again().stdout).unwrap(), ANSWER);
    let mut damaged = 0;
    let mut left = vec![dir.path().to_owned()];
    while let Some(path) = left.pop() {
        if path.is_dir() {
            left.extend(std::fs::read_dir(path).unwrap().map(|e| e.unwrap().path()));
        } else if path.ends_with("ngram-0.bin") {
            let mut bytes = std::fs::read(&path).unwrap();
            bytes.fill(0);
            std::fs::write(&path, bytes).unwrap();
            damaged += 1;
        }
    }
    assert_eq!(damaged, 1);
    assert_eq!(String::from_utf8(again().stdout).unwrap(), ANSWER);
}

#[test]
fn version_help_and_completions_are_there() {
    assert_eq!(text_of(&["--version"]), format!("cherenkov {}\n", env!("CARGO_PKG_VERSION")));
    assert!(text_of(&["run", "--help"]).contains("--drafts"));
    for shell in ["bash", "zsh", "fish", "powershell"] {
        assert!(text_of(&["completions", shell]).contains("cherenkov"), "{shell}");
    }
    assert!(shared_dir().ends_with("home"));
}
