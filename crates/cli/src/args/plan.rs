//! Arguments of `plan`, and sizes of memory.
//!
//! Owns: names, help texts, how sizes are written. Never: what is done with them (see `plan`).

use super::{ComputeArgs, Drafts, ModelArgs, parse_drafts, positive};
use clap::Args;
use std::path::PathBuf;

/// How much memory the process may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MemorySize {
    /// What the machine can spare.
    #[default]
    Auto,
    /// This many bytes.
    Bytes(u64),
}

/// Reads `auto`, or a number with an optional unit: kB, MB, GB, TB are powers of 1000, KiB, MiB, GiB,
/// TiB of 1024; the B may be left out of the former.
pub fn parse_memory(text: &str) -> Result<MemorySize, String> {
    let expected = || format!("found `{text}`, expected auto or a size such as 24GB or 1.5GiB");
    if text == "auto" {
        return Ok(MemorySize::Auto);
    }
    let split = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(split);
    let number: f64 = number.parse().map_err(|_| expected())?;
    let unit = unit.trim().to_ascii_lowercase();
    let (prefix, base) = match unit.strip_suffix("ib") {
        Some(prefix) => (prefix, 1024f64),
        None => (unit.strip_suffix('b').unwrap_or(&unit), 1000f64),
    };
    let power = match prefix {
        "" if base == 1000.0 => 0,
        "k" => 1,
        "m" => 2,
        "g" => 3,
        "t" => 4,
        _ => return Err(expected()),
    };
    let bytes = number * base.powi(power);
    // Beyond 2^53 bytes nobody has so much, and a float cannot say it.
    if bytes < 1.0 || bytes > (1u64 << 53) as f64 {
        return Err(expected());
    }
    Ok(MemorySize::Bytes(bytes as u64))
}

/// Arguments of `plan`.
#[derive(Clone, Debug, Args)]
pub struct PlanArgs {
    /// The model and the machine.
    #[command(flatten)]
    pub model: ModelArgs,
    /// The cpu device.
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Context in tokens [default: 8192, as in a chat]
    #[arg(long, value_name = "N", value_parser = positive())]
    pub max_ctx: Option<usize>,
    /// Sequences open at a time
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = positive())]
    pub sequences: usize,
    /// Drafts per step, a number or auto [default: auto, or 0 without a draft head]
    #[arg(long, value_name = "N|auto", value_parser = parse_drafts)]
    pub drafts: Option<Drafts>,
    /// Do not measure the drive and the memory: no speeds are expected then
    #[arg(long)]
    pub no_measure: bool,
    /// Write the plan as JSON to a file, or (`-`) to stdout instead of the table
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_or_refused() {
        for (text, want) in [
            ("1", 1),
            ("4096", 4096),
            ("24GB", 24_000_000_000),
            ("24g", 24_000_000_000),
            ("1.5GiB", 3 << 29),
            ("512 MiB", 512 << 20),
            ("7kb", 7000),
            ("2T", 2_000_000_000_000),
        ] {
            assert_eq!(parse_memory(text), Ok(MemorySize::Bytes(want)), "{text}");
        }
        assert_eq!(parse_memory("auto"), Ok(MemorySize::Auto));
        for bad in ["", "0", "GB", "-1GB", "1.2.3GB", "5 parsecs", "1ib", "9e9", "9999999TB", "inf"]
        {
            assert!(parse_memory(bad).is_err(), "{bad}");
        }
    }
}
