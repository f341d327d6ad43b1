//! Figures on paper.
//!
//! Owns: medians and spreads, the table, the JSON. Never: measuring.

use super::cost::Cost;
use super::machine::Machine;
use super::measure::{Kind, Row};
use super::tokens::Tokens;
use super::verbs::Profile;
use crate::args::Drafts;
use crate::args::bench::BenchArgs;
use crate::device::Choice;
use crate::exit::output_error;
use crate::terminal::bytes;
use anyhow::Context as _;
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::Attention;
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::io::Write as _;

/// Everything that was measured.
#[derive(Debug)]
pub struct Report {
    machine: Machine,
    model: Value,
    head: String,
    token_bytes: u64,
    attention: Attention,
    tokens: &'static str,
    /// Measurements in the order they were made.
    pub rows: Vec<(Choice, Row)>,
    profiles: Vec<Value>,
    profile_tables: String,
}

/// The middle value; the mean of the two middle ones of an even number.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (n, half) = (sorted.len(), sorted.len() / 2);
    match n {
        0 => 0.0,
        n if n % 2 == 1 => sorted[half],
        _ => (sorted[half - 1] + sorted[half]) / 2.0,
    }
}

/// Half of the distance between the extremes, as a share of the median.
fn spread(values: &[f64]) -> f64 {
    let middle = median(values);
    let low = values.iter().copied().fold(f64::INFINITY, f64::min);
    let high = values.iter().copied().fold(0.0, f64::max);
    if middle > 0.0 && low.is_finite() { (high - low) / 2.0 / middle } else { 0.0 }
}

const COLUMNS: &str =
    "test     depth  drafts  threads  isa         kv    tokens/s  spread   roofline  acceptance";

impl Row {
    fn name(&self) -> String {
        let prefix = match self.kind {
            Kind::Prefill => "pp",
            Kind::Decode => "tg",
        };
        format!("{prefix}{}", self.count)
    }

    /// Share of the plain read that decode without drafts makes of its weights; the median over the
    /// samples, each with the read just before it.
    fn roofline(&self, token_bytes: u64) -> Option<f64> {
        if self.kind != Kind::Decode || self.drafts != Drafts::NONE || self.reads.is_empty() {
            return None;
        }
        let share = |(rate, read): (f64, &f64)| rate * token_bytes as f64 / read;
        let shares: Vec<f64> = self.rates().into_iter().zip(&self.reads).map(share).collect();
        Some(median(&shares))
    }

    /// Share of all drafts that were accepted.
    fn acceptance(&self) -> Option<f64> {
        let sum = |(a, b): (u64, u64), &(offered, hit): &(u64, u64)| (a + offered, b + hit);
        let (offered, hit) = self.accepted.iter().fold((0, 0), sum);
        (offered > 0).then(|| hit as f64 / offered as f64)
    }
}

/// How a device was made.
struct Made {
    isa: String,
    threads: Option<usize>,
    kv: Option<&'static str>,
}

impl From<Choice> for Made {
    fn from(device: Choice) -> Self {
        match device {
            Choice::Cpu { threads, isa, kv } => {
                Self { isa: isa.name().to_owned(), threads: Some(threads), kv: Some(kv.name()) }
            }
            other => Self { isa: other.describe(), threads: None, kv: None },
        }
    }
}

/// A number, or the word.
fn drafts(drafts: Drafts) -> Value {
    match drafts {
        Drafts::Auto => json!("auto"),
        Drafts::Count(count) => json!(count),
    }
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.1} %", 100.0 * share))
}

impl Report {
    /// An empty report.
    pub fn new(args: &BenchArgs, store: &Store, tokens: &Tokens, cost: &Cost) -> Self {
        let (machine, c, m) = (Machine::look(), store.config(), store.manifest());
        let name = store.dir().file_name().unwrap_or_default().to_string_lossy().into_owned();
        let name =
            args.model.model.as_ref().map_or_else(|| "the bundled pocket model".into(), |_| name);
        let experts = store.experts().bytes();
        let mut head = String::new();
        let _ = writeln!(
            head,
            "machine  {}, {} cores, {}, {}, kernel {}",
            machine.cpu,
            machine.cores,
            bytes(machine.memory_bytes),
            machine.os,
            machine.kernel
        );
        let _ = writeln!(
            head,
            "model    {name}: {} layers, hidden {}, {} of {} experts; dense {}, experts {}, {} of weights per token",
            c.layers.len(),
            c.hidden,
            c.moe.top_k,
            c.moe.experts,
            bytes(m.dense.bytes),
            bytes(experts),
            bytes(cost.token_bytes)
        );
        let _ = write!(
            head,
            "run      cherenkov {}, {} tokens, temperature {}, medians of {}, chunks of {}",
            env!("CARGO_PKG_VERSION"),
            tokens.name(),
            args.temperature,
            args.repeat,
            args.model.chunk
        );
        let model = json!({
            "name": name, "config": c, "dense_bytes": m.dense.bytes, "expert_bytes": experts,
            "experts": store.experts().layout(), "dense": m.dense.tensors[0].encoding,
        });
        Self {
            machine,
            model,
            head,
            token_bytes: cost.token_bytes,
            attention: c.attention.clone(),
            tokens: tokens.name(),
            rows: Vec::new(),
            profiles: Vec::new(),
            profile_tables: String::new(),
        }
    }

    /// One measurement as a line of the table.
    pub fn line(&self, device: Choice, row: &Row) -> String {
        let Made { isa, threads, kv } = device.into();
        let threads = threads.map_or_else(|| "-".to_owned(), |n| n.to_string());
        let kv = kv.unwrap_or("-");
        let rates = row.rates();
        let mut line = format!(
            "{:<8} {:>5}  {:>6}  {threads:>7}  {isa:<10}  {kv:<3} {:>9.2}  {:>5.1} %  {:>8}  {:>10}",
            row.name(),
            row.depth,
            row.drafts,
            median(&rates),
            100.0 * spread(&rates),
            percent(row.roofline(self.token_bytes)),
            percent(row.acceptance()),
        );
        if row.misses > 0 {
            let _ = write!(line, "  {} experts read", row.misses);
        }
        line
    }

    /// Adds a profile.
    pub fn profile(&mut self, device: Choice, profile: Profile, cost: &Cost) {
        let row = &profile.row;
        let total: f64 = row.seconds.iter().sum();
        let tokens = (row.count * row.seconds.len()) as f64;
        let named: f64 = profile.calls.iter().map(|c| c.time.as_secs_f64()).sum();
        let mut table = format!(
            "\n{} at depth {}, {}: {:.3} ms a token, of which\nstage  verb                        calls    us a call  us a token  share      GB/s\n",
            row.name(),
            row.depth,
            device.describe(),
            1e3 * total / tokens
        );
        let mut verbs = Vec::new();
        for calls in &profile.calls {
            let seconds = calls.time.as_secs_f64();
            let work = cherenkov_model::traced::Work { experts: calls.experts, ..calls.work };
            let whole = calls.experts > 0;
            let read = cost.of_call(calls.at, work);
            let read = read.map(|b| if whole { b } else { b * calls.count });
            let speed = read.map(|b| b as f64 / seconds / 1e9);
            let _ = writeln!(
                table,
                "{:<6} {:<26} {:>6} {:>12.2} {:>12.2} {:>5.1} %  {:>8}",
                calls.stage().name(),
                calls.name(),
                calls.count,
                1e6 * seconds / calls.count as f64,
                1e6 * seconds / tokens,
                100.0 * seconds / total,
                speed.map_or_else(|| "-".to_owned(), |s| format!("{s:.2}")),
            );
            verbs.push(json!({
                "stage": calls.stage().name(), "verb": calls.at.verb.name(),
                "inputs": calls.work.inputs, "outputs": calls.work.outputs, "calls": calls.count,
                "seconds": seconds, "weight_bytes": read,
            }));
        }
        let rest = total - named;
        let _ = writeln!(
            table,
            "       between the verbs {:>35.2} {:>5.1} %",
            1e6 * rest / tokens,
            100.0 * rest / total
        );
        self.profile_tables += &table;
        let Made { isa, threads, kv } = device.into();
        self.profiles.push(json!({
            "test": row.name(), "depth": row.depth, "drafts": drafts(row.drafts), "isa": isa,
            "threads": threads, "kv": kv, "tokens": tokens, "seconds": total,
            "between_seconds": rest, "verbs": verbs,
        }));
    }

    fn row_json(&self, (device, row): &(Choice, Row)) -> Value {
        let Made { isa, threads, kv } = (*device).into();
        let rates = row.rates();
        let (offered, hits): (Vec<u64>, Vec<u64>) = row.accepted.iter().copied().unzip();
        json!({
            "test": row.name(),
            "tokens": row.count,
            "depth": row.depth,
            "drafts": drafts(row.drafts),
            "isa": isa,
            "threads": threads,
            "kv": kv,
            "kv_bytes_per_token_and_layer": device.token_bytes(&self.attention),
            "tokens_per_second": median(&rates),
            "spread": spread(&rates),
            "samples": rates,
            "read_bytes_per_second": (!row.reads.is_empty()).then(|| median(&row.reads)),
            "roofline": row.roofline(self.token_bytes),
            "acceptance": row.acceptance(),
            "drafted": offered,
            "accepted": hits,
            "steps": row.steps,
            "expert_misses": row.misses,
        })
    }

    fn json(&self, args: &BenchArgs) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "machine": self.machine.json(),
            "model": self.model,
            "weight_bytes_per_token": self.token_bytes,
            "tokens": self.tokens,
            "temperature": args.temperature,
            "seed": args.seed,
            "force_acceptance": args.force_acceptance,
            "chunk": args.model.chunk,
            "results": self.rows.iter().map(|row| self.row_json(row)).collect::<Vec<_>>(),
            "profiles": self.profiles,
        })
    }

    fn table(&self) -> String {
        let mut table = format!("{}\n\n{COLUMNS}\n", self.head);
        for (device, row) in &self.rows {
            let _ = writeln!(table, "{}", self.line(*device, row));
        }
        let reads = self.rows.iter().filter(|(_, row)| !row.reads.is_empty());
        let mut said: Vec<Choice> = Vec::new();
        for (device, _) in reads {
            if !said.contains(device) {
                said.push(*device);
                let same = self.rows.iter().filter(|(other, _)| other == device);
                let all: Vec<f64> = same.flat_map(|(_, row)| row.reads.iter().copied()).collect();
                let gigabytes = median(&all) / 1e9;
                let _ = writeln!(table, "plain read, {}: {gigabytes:.2} GB/s", device.describe());
            }
        }
        let mut kept: Vec<(&str, f64)> = Vec::new();
        for (device, _) in &self.rows {
            let size = device.token_bytes(&self.attention);
            let kind = (Made::from(*device).kv.unwrap_or("f32"), size);
            if !kept.contains(&kind) {
                kept.push(kind);
                let _ = writeln!(table, "keys and values, {}: {size} B a token and layer", kind.0);
            }
        }
        table + &self.profile_tables
    }

    /// Prints the table, or writes the JSON.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn write(&self, args: &BenchArgs) -> anyhow::Result<()> {
        let text = format!("{:#}\n", self.json(args));
        let mut stdout = std::io::stdout().lock();
        match args.json.as_deref() {
            Some(path) if path.as_os_str() == "-" => {
                return stdout.write_all(text.as_bytes()).map_err(output_error);
            }
            Some(path) => std::fs::write(path, text)
                .with_context(|| format!("cannot write {}", path.display()))?,
            None => {}
        }
        stdout.write_all(self.table().as_bytes()).map_err(output_error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_spreads() {
        assert_eq!(median(&[3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&[]), 0.0);
        assert_eq!(spread(&[9.0, 10.0, 12.0]), 0.15);
    }

    #[test]
    fn the_roofline_is_that_of_each_sample() {
        let row = Row {
            kind: Kind::Decode,
            count: 10,
            depth: 0,
            drafts: Drafts::NONE,
            seconds: vec![1.0, 2.0, 1.0],
            reads: vec![100.0, 50.0, 50.0],
            accepted: vec![(10, 8), (8, 1)],
            steps: 30,
            misses: 0,
        };
        assert_eq!(row.rates(), [10.0, 5.0, 10.0]);
        assert_eq!(row.roofline(7), Some(0.7));
        assert_eq!(row.acceptance(), Some(0.5));
        assert_eq!(Row { drafts: Drafts::Count(1), ..row.clone() }.roofline(7), None);
        assert_eq!(Row { kind: Kind::Prefill, ..row }.roofline(7), None);
    }
}
