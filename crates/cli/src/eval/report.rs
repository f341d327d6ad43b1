//! Figures on paper.
//!
//! Owns: the table, the JSON, the lines by position. Never: formulas (see `score`).

use super::score::Tally;
use crate::args::eval::{Against, EvalArgs};
use crate::device::Choice;
use crate::exit::output_error;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;

/// The first line of the file by position.
const COLUMNS: &str = "seen_from,seen_to,tokens,perplexity,accuracy";
/// What follows where there is a base.
const COLUMNS_AGAINST: &str = ",base_perplexity,perplexity_ratio,divergence,divergence_error,\
                               divergence_max,agreement";

/// What was found.
pub struct Figures<'a> {
    /// Sums by position.
    pub buckets: Vec<Tally>,
    /// Positions of a bucket.
    pub bucket: usize,
    /// Tokens of a window.
    pub window: usize,
    /// Windows.
    pub windows: usize,
    /// What computed.
    pub device: Choice,
    /// What was asked for.
    pub args: &'a EvalArgs,
}

impl Figures<'_> {
    /// Prints the table or JSON, and writes the lines by position.
    ///
    /// # Errors
    /// When something cannot be written.
    pub fn write(&self, csv: Option<File>) -> anyhow::Result<()> {
        if let (Some(mut file), Some(path)) = (csv, &self.args.csv) {
            let written = file.write_all(self.csv().as_bytes());
            written.with_context(|| format!("cannot write {}", path.display()))?;
        }
        let text = if self.args.json { format!("{:#}\n", self.json()) } else { self.table() };
        std::io::stdout().write_all(text.as_bytes()).map_err(output_error)
    }

    fn all(&self) -> Tally {
        let mut all = Tally::default();
        self.buckets.iter().for_each(|bucket| all.merge(bucket));
        all
    }

    fn base(&self) -> Option<String> {
        self.args.against.as_ref().map(|against| match against {
            Against::Reference => "reference".to_owned(),
            Against::Model(dir) => dir.display().to_string(),
        })
    }

    fn table(&self) -> String {
        let all = self.all();
        let mut out = format!(
            "tokens       {} predicted in {} windows of at most {}\n\
             device       {}\n\
             perplexity   {:.5}\n\
             accuracy     {:.2} % of the most probable tokens came\n",
            all.count,
            self.windows,
            self.window,
            self.device.describe(),
            all.perplexity(),
            all.accuracy() * 100.0
        );
        if let (Some(against), Some(name)) = (&all.against, self.base()) {
            let _ = write!(
                out,
                "against      {name}, perplexity {:.5}\n\
                 ratio        {:.5}\n\
                 divergence   {:.3e} +- {:.1e} nats per token, at most {:.3e}\n\
                 agreement    {:.2} % of the most probable tokens\n",
                against.perplexity(&all),
                against.ratio(&all),
                against.divergence(&all),
                against.divergence_error(&all),
                against.divergence_max,
                against.agreement(&all) * 100.0
            );
        }
        out
    }

    fn json(&self) -> Value {
        let mut figures = json!({
            "version": env!("CARGO_PKG_VERSION"),
            "device": self.device.describe(),
            "window": self.window,
            "windows": self.windows,
            "against": self.base(),
        });
        let whole = figures.as_object_mut().expect("made above");
        whole.extend(fields(&self.all()));
        let lines = self.lines().map(|(from, to, tally)| {
            let mut line = serde_json::Map::new();
            line.insert("seen_from".into(), from.into());
            line.insert("seen_to".into(), to.into());
            line.extend(fields(tally));
            Value::from(line)
        });
        whole.insert("by_position".into(), lines.collect());
        figures
    }

    fn csv(&self) -> String {
        let mut out = COLUMNS.to_owned();
        if self.args.against.is_some() {
            out += COLUMNS_AGAINST;
        }
        out.push('\n');
        for (from, to, tally) in self.lines() {
            let _ = write!(out, "{from},{to}");
            for (_, value) in fields(tally) {
                let _ = write!(out, ",{value}");
            }
            out.push('\n');
        }
        out
    }

    /// Buckets with the numbers of tokens that their predictions have seen.
    fn lines(&self) -> impl Iterator<Item = (usize, usize, &Tally)> {
        let size = self.bucket;
        let most = self.window - 1;
        let line = move |(i, tally): (usize, _)| (i * size + 1, ((i + 1) * size).min(most), tally);
        self.buckets.iter().enumerate().map(line)
    }
}

/// Figures of some predictions, in the order of the columns.
fn fields(all: &Tally) -> Vec<(String, Value)> {
    let mut out = vec![
        ("tokens", json!(all.count)),
        ("perplexity", json!(all.perplexity())),
        ("accuracy", json!(all.accuracy())),
    ];
    if let Some(against) = &all.against {
        out.extend([
            ("base_perplexity", json!(against.perplexity(all))),
            ("perplexity_ratio", json!(against.ratio(all))),
            ("divergence", json!(against.divergence(all))),
            ("divergence_error", json!(against.divergence_error(all))),
            ("divergence_max", json!(against.divergence_max)),
            ("agreement", json!(against.agreement(all))),
        ]);
    }
    out.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}
