//! The binary `cherenkov`.
//!
//! Owns: the command line, the environment, devices by name, printing.
//! Never: arithmetic, file formats, prompts (the libraries do).
//! Invariant: every failure is one line `error: ...` on stderr and an exit code; never a panic.
#![forbid(unsafe_code)]

mod args;
mod bench;
mod bundled;
mod chat;
mod check;
mod cores;
mod device;
mod dirs;
mod eval;
mod exit;
mod export;
mod generate;
mod governor;
mod interrupt;
mod locate;
mod memory;
mod pace;
mod pack;
mod plan;
mod progress;
mod prompt;
mod run;
mod settings;
mod stats;
mod synth;
mod terminal;
mod trace;

use args::{Cli, Command};
use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as errors too; a closed pipe is nothing to report.
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { exit::USAGE } else { exit::OK });
        }
    };
    let done = match cli.command {
        Command::Run(args) => run::run(&args),
        Command::Pack(args) => pack::run(args),
        Command::Check(args) => check::run(args),
        Command::Plan(args) => plan::command::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Trace(args) => trace::run(&args),
        Command::Export(args) => export::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Completions(args) => args::completions(args.shell),
    };
    exit::code(done)
}
