//! `cherenkov export`.
//!
//! Owns: the bar and the report. Never: the work (see `cherenkov_format::gguf`).

use crate::args::export::ExportArgs;
use crate::interrupt::Interrupt;
use crate::terminal::bytes;
use crate::{bundled, progress};
use cherenkov_format::gguf::{self, Options, Report};
use std::fmt::Write as _;
use std::num::NonZeroUsize;

/// Writes a GGUF file and reports on stderr.
///
/// # Errors
/// When the model cannot be expressed, the file cannot be written, or the user stopped it.
pub fn run(args: &ExportArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let dir = match &args.model {
        Some(dir) => dir.clone(),
        None => bundled::dir()?,
    };
    if !dir.is_dir() {
        anyhow::bail!(
            "{}: no such directory; expected a store (with manifest.json) or a checkpoint (with \
             config.json and *.safetensors)",
            dir.display()
        );
    }
    let options = Options {
        experts: args.experts,
        dense: args.dense,
        ngram: args.ngram.unwrap_or(args.experts),
        replace: args.force,
        threads: args.threads.and_then(NonZeroUsize::new),
    };
    progress::run(
        &interrupt,
        |meter| gguf::export(&dir, &args.gguf, &options, meter),
        summary,
        || format!("cannot export {}", dir.display()),
    )
}

fn summary(report: &Report, seconds: f64) -> String {
    let mut text = format!(
        "wrote {} tensors, {}, into {} in {seconds:.1} s",
        report.tensors,
        bytes(report.bytes),
        report.out.display()
    );
    for (part, tally) in &report.parts {
        if tally.values == 0 {
            continue;
        }
        let error = match tally.relative_rms() {
            0.0 => "exact".to_owned(),
            rms => format!("relative rms error {rms:.2e}"),
        };
        let _ = write!(text, "\n  {part:<8}{error}");
        if tally.requantised > 0 {
            let blocks = tally.requantised + tally.kept;
            let _ = write!(text, " ({} of {blocks} blocks quantised anew)", tally.requantised);
        }
    }
    for line in &report.notes {
        let _ = write!(text, "\n  note: {line}");
    }
    text
}
