//! `cherenkov pack`.
//!
//! Owns: arguments, the bar, the report. Never: the work (see `cherenkov_format::pack`).

use crate::args::{HiddenNormName, PackArgs};
use crate::interrupt::Interrupt;
use crate::progress;
use crate::terminal::bytes;
use cherenkov_format::norms::Convention;
use cherenkov_format::pack::{self, DraftHead, Existing, ExtraTensors, Options, Report};
use cherenkov_format::qwen4_exp::config::HiddenNorm;
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;

/// Packs a checkpoint and reports on stderr.
///
/// # Errors
/// When the checkpoint cannot be packed, or the user stopped it.
pub fn run(args: PackArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::install()?;
    let out = args.out.clone().unwrap_or_else(|| pack::default_out(&args.source));
    if !args.source.is_dir() {
        anyhow::bail!(
            "{}: no such directory; expected a checkpoint (config.json and *.safetensors)",
            args.source.display()
        );
    }
    pack_into(&args.source, &out, &options(&args), &interrupt)
}

fn options(args: &PackArgs) -> Options {
    Options {
        experts: args.experts[0],
        other_experts: args.experts[1..].to_vec(),
        dense: args.dense,
        ngram: args.ngram,
        norms: args.norms.clone(),
        hidden_norm: match args.hidden_norm {
            HiddenNormName::Global => HiddenNorm::Global,
            HiddenNormName::PerStream => HiddenNorm::PerStream,
        },
        draft: if args.drop_draft { DraftHead::Drop } else { DraftHead::AsDeclared },
        eos_hash: args.eos_hash,
        extra: if args.skip_unknown { ExtraTensors::Skip } else { ExtraTensors::Refuse },
        existing: if args.force { Existing::Replace } else { Existing::Refuse },
        threads: args.threads.and_then(NonZeroUsize::new),
    }
}

/// Packs with a progress bar.
///
/// # Errors
/// As [`run`].
pub fn pack_into(
    source: &Path,
    out: &Path,
    options: &Options,
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    progress::run(
        interrupt,
        |meter| pack::pack(source, out, options, meter),
        summary,
        || format!("cannot pack {}", source.display()),
    )
}

fn summary(report: &Report, seconds: f64) -> String {
    let mut text =
        format!("packed {} into {} in {seconds:.1} s", bytes(report.bytes), report.out.display());
    if report.resumed_bytes > 0 {
        let _ = write!(text, " ({} from an earlier run)", bytes(report.resumed_bytes));
    }
    for (name, size) in &report.files {
        let _ = write!(text, "\n  {name:<24}{:>10}", bytes(*size));
    }
    for n in &report.norms {
        let means = match n.convention {
            Convention::Raw => "raw, 1 added",
            Convention::Shifted => "shifted, kept",
        };
        let _ = write!(text, "\n  norms {:<18}{means} (mean {:.3})", n.group.name(), n.mean);
    }
    for line in &report.notes {
        let _ = write!(text, "\n  note: {line}");
    }
    text
}
