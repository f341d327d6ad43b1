//! `cherenkov synth`.
//!
//! Owns: from arguments to a geometry, the report. Never: the work (see `cherenkov_format::synth`).

use crate::args::synth::{FormName, PresetName, SynthArgs};
use crate::exit::usage;
use crate::interrupt::Interrupt;
use crate::progress;
use crate::terminal::bytes;
use cherenkov_format::pack::{Existing, Report};
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_format::synth::{self, Options, Preset, geometry};
use std::fmt::Write as _;
use std::num::NonZeroUsize;

/// Writes a model of random weights and reports on stderr.
///
/// # Errors
/// When the geometry is impossible, the output is taken, or the user stopped it.
pub fn run(args: &SynthArgs) -> anyhow::Result<()> {
    if args.format == FormName::Checkpoint && args.force {
        return Err(usage(
            "--force replaces stores only; delete the checkpoint or name another OUT",
        ));
    }
    let options = Options {
        experts: args.experts_bits[0],
        other_experts: args.experts_bits[1..].to_vec(),
        dense: args.dense,
        ngram: args.ngram,
        seed: args.seed,
        existing: if args.force { Existing::Replace } else { Existing::Refuse },
        threads: args.threads.and_then(NonZeroUsize::new),
        ..Options::new(config(args)?)
    };
    let interrupt = Interrupt::install()?;
    progress::run(
        &interrupt,
        |meter| match args.format {
            FormName::Store => synth::store(&args.out, &options, meter),
            FormName::Checkpoint => synth::checkpoint(&args.out, &options, meter),
        },
        summary,
        || format!("cannot make {}", args.out.display()),
    )
}

/// The preset with all changes. Paths come last: they may touch anything.
fn config(args: &SynthArgs) -> anyhow::Result<Config> {
    let preset = match args.preset {
        PresetName::FlashNext => Preset::FlashNext,
        PresetName::Pocket => Preset::Pocket,
        PresetName::Small => Preset::Small,
    };
    let mut config = preset.config();
    if let Some(layers) = args.layers {
        geometry::set_layers(&mut config, layers);
    }
    if let Some(hidden) = args.hidden {
        geometry::set_hidden(&mut config, hidden);
    }
    if let Some(vocab) = args.vocab {
        geometry::set_vocab(&mut config, vocab);
    }
    config.moe.experts = args.experts.unwrap_or(config.moe.experts);
    config.moe.top_k = args.top_k.unwrap_or(config.moe.top_k.min(config.moe.experts));
    if let (Some(rows), Some(ple)) = (args.ngram_rows, &mut config.ple) {
        ple.vocab_base = rows as u64;
    }
    if args.no_draft_head {
        config.mtp = None;
    }
    for (path, value) in &args.set {
        config = geometry::set(&config, path, value).map_err(|e| usage(format!("--set {e}")))?;
    }
    Ok(config)
}

fn summary(report: &Report, seconds: f64) -> String {
    let mut text =
        format!("wrote {} into {} in {seconds:.1} s", bytes(report.bytes), report.out.display());
    for (name, size) in &report.files {
        let _ = write!(text, "\n  {name:<34}{:>10}", bytes(*size));
    }
    for line in &report.notes {
        let _ = write!(text, "\n  note: {line}");
    }
    text
}
