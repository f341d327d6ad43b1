//! The interactive chat, through a pseudo-terminal.
#![cfg(unix)]

mod common;

use common::command;
use rexpect::session::{PtySession, spawn_command};

const PROMPT: &str = "> ";
const WAIT_MS: u64 = 20_000;

/// A chat with a state directory of its own.
fn chat(dir: &std::path::Path, args: &[&str]) -> PtySession {
    let mut command = command();
    command.arg("run").args(args).env("XDG_STATE_HOME", dir).env("TERM", "xterm");
    let mut session = spawn_command(command, Some(WAIT_MS)).expect("the program starts");
    session.exp_string("/help for commands").expect("a greeting");
    session.exp_string(PROMPT).expect("a prompt");
    session
}

/// Sends a line and returns everything up to the next prompt.
fn say(session: &mut PtySession, line: &str, expected: &str) {
    session.send_line(line).unwrap();
    session.exp_string(expected).unwrap_or_else(|e| panic!("{line}: no {expected:?}: {e}"));
    session.exp_string(PROMPT).unwrap();
}

#[test]
fn turns_commands_and_leaving() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("talk.json");
    let file = file.to_str().unwrap();
    let mut s = chat(dir.path(), &["-t", "0", "--no-think"]);
    say(&mut s, "/help", "/regen");
    say(&mut s, "/stats", "(no answer yet)");
    say(&mut s, "/regen", "(nothing to answer yet)");
    say(&mut s, "/frob", "unknown command: /frob");
    say(&mut s, "Who is Mira?", "paper boats.");
    say(&mut s, "/stats", "(prompt 16, reused 0)");
    say(&mut s, "/regen", "paper boats.");
    say(&mut s, "/stats", "(prompt 16, reused 9)");
    s.send_line("My name is \\").unwrap();
    s.exp_string("\n\u{1b}[?2004h").unwrap();
    say(&mut s, "Lukas.", "Lukas.");
    say(&mut s, "What is my name?", "Your name is");
    say(&mut s, &format!("/save {file}"), "(saved to ");
    say(&mut s, "/reset", "(forgotten)");
    say(&mut s, &format!("/load {file}"), "(6 messages)");
    say(&mut s, "/load /nowhere", "error: cannot read /nowhere");
    say(&mut s, "/system You are brief.", "(set)");
    say(&mut s, "/system", "(removed)");
    say(&mut s, "/think on", "(thinking)");
    say(&mut s, "What is 256 + 387?", "643");
    s.send_line("/quit").unwrap();
    s.exp_eof().unwrap();
    let talk = std::fs::read_to_string(file).unwrap();
    assert!(talk.contains("My name is \\nLukas."), "{talk}");
    let history = std::fs::read_to_string(dir.path().join("cherenkov/chat-history")).unwrap();
    assert!(history.contains("Who is Mira?"), "{history}");
}

#[test]
fn ctrl_c_stops_the_answer_and_not_the_program() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = chat(dir.path(), &["-t", "0", "--no-think", "--no-eos", "-n", "4000"]);
    for _ in 0..2 {
        s.send_line("Who is Mira?").unwrap();
        s.exp_string("paper boats.").unwrap();
        s.send_control('c').unwrap();
        s.exp_string("(stopped)").unwrap();
        s.exp_string(PROMPT).unwrap();
    }
    s.send_control('c').unwrap();
    s.exp_string("ctrl-c again").unwrap();
    s.exp_string(PROMPT).unwrap();
    s.send_control('c').unwrap();
    s.exp_eof().unwrap();
}

#[test]
fn a_conversation_that_outgrows_the_context_says_so_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let mut s = chat(dir.path(), &["-t", "0", "--no-think", "--max-ctx", "48", "-n", "20"]);
    say(&mut s, "Who is Mira?", "She works");
    say(
        &mut s,
        "Tell me more about her and about everyone else in the valley.",
        "context holds 48",
    );
    say(&mut s, "/reset", "(forgotten)");
    say(&mut s, "Who is Mira?", "She works");
    s.send_control('d').unwrap();
    s.exp_eof().unwrap();
}

#[test]
fn a_checkpoint_is_packed_only_after_a_yes_with_a_bar_and_a_time() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("model");
    common::wordy_checkpoint(&source);
    let ask = |answer: &str| {
        let mut command = command();
        command.args(["run", "hi", "-n", "4", "--no-eos", "-m"]).arg(&source);
        command.env("XDG_CACHE_HOME", dir.path()).env("HOME", dir.path()).env("TERM", "xterm");
        let mut session = spawn_command(command, Some(WAIT_MS)).unwrap();
        session.exp_string("Pack now? [Y/n] ").unwrap();
        session.send_line(answer).unwrap();
        session.exp_eof().unwrap()
    };
    assert!(ask("n").contains("error: not packed"));
    let packed = ask("y");
    assert!(packed.contains("packed ") && packed.contains(" left"), "{packed}");
    assert!(dir.path().join("cherenkov/packed").is_dir());
}
