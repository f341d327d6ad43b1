//! How an answer went, in numbers.
//!
//! Owns: the clock of a run, the table and the JSON line. Never: counting (the engine does).

mod experts;

use crate::generate::{Answer, Finish};
use crate::memory;
use crate::settings::Reports;
use crate::terminal::{bytes, note};
use anyhow::Context as _;
use cherenkov_engine::{Engine, Snapshot, Streamed};
use serde_json::{Value, json};
use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::time::Duration;

/// The numbers of one answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Numbers {
    /// Name of the device.
    pub device: &'static str,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// Those of them that a checkpoint had already.
    pub reused: usize,
    /// Time for the others.
    pub prefill: Duration,
    /// Tokens of the answer.
    pub output: usize,
    /// Time for them.
    pub decode: Duration,
    /// What ended the answer.
    pub finish: Finish,
    /// The seed, unless greedy.
    pub seed: Option<u64>,
    /// Context in tokens.
    pub context: usize,
    /// Bytes of an expert record.
    pub record_bytes: usize,
    /// Engine's counters before.
    pub before: Snapshot,
    /// Engine's counters after.
    pub after: Snapshot,
    /// How experts were streamed: before, after the prompt, after the answer.
    pub streamed: [Streamed; 3],
}

fn rate(tokens: usize, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
}

impl Numbers {
    /// Of an answer that is about to begin.
    pub fn begin(engine: &dyn Engine, record_bytes: u64) -> Self {
        let (info, before) = (engine.info(), engine.snapshot());
        Self {
            device: info.device,
            prompt: 0,
            reused: 0,
            prefill: Duration::ZERO,
            output: 0,
            decode: Duration::ZERO,
            finish: Finish::Length,
            seed: None,
            context: info.context,
            record_bytes: record_bytes as usize,
            after: before.clone(),
            before,
            streamed: [engine.streamed(), Streamed::default(), Streamed::default()],
        }
    }

    /// The prompt has been run, but for `reused` tokens of it.
    pub fn prefilled(&mut self, engine: &dyn Engine, prompt: usize, reused: usize, time: Duration) {
        (self.prompt, self.reused, self.prefill) = (prompt, reused, time);
        self.streamed[1] = engine.streamed();
    }

    /// The answer is there.
    pub fn answered(&mut self, engine: &dyn Engine, answer: &Answer, time: Duration) {
        (self.output, self.finish, self.decode) = (answer.tokens.len(), answer.finish, time);
        self.after = engine.snapshot();
        self.streamed[2] = engine.streamed();
    }

    /// Streaming of the prompt, of the answer, of both.
    fn phases(&self) -> [Streamed; 3] {
        let [before, between, after] = &self.streamed;
        [between.since(before), after.since(between), after.since(before)]
    }

    fn fresh(&self) -> usize {
        self.prompt - self.reused
    }

    fn steps(&self) -> u64 {
        self.after.steps - self.before.steps
    }

    fn per_pass(&self) -> f64 {
        self.output as f64 / (self.steps() as f64).max(1.0)
    }

    /// Drafts offered and accepted, by depth, as far as any were offered.
    fn drafts(&self) -> Vec<(u64, u64)> {
        let at = |list: &[u64], i: usize| list.get(i).copied().unwrap_or(0);
        (0..self.after.drafted.len())
            .map(|i| {
                let offered = at(&self.after.drafted, i) - at(&self.before.drafted, i);
                (offered, at(&self.after.accepted, i) - at(&self.before.accepted, i))
            })
            .take_while(|(offered, _)| *offered > 0)
            .collect()
    }

    fn experts(&self) -> (u64, u64, u64) {
        let (a, b) = (&self.after, &self.before);
        (
            a.expert_hits - b.expert_hits,
            a.expert_misses - b.expert_misses,
            a.read_bytes - b.read_bytes,
        )
    }

    /// Small records read, small records made whole, weak experts left out.
    fn late(&self) -> [u64; 3] {
        let (a, b) = (&self.after, &self.before);
        [a.low_reads - b.low_reads, a.upgrades - b.upgrades, a.left_out - b.left_out]
    }

    /// Memory by purpose, the pool included, which is not the device's.
    fn memory(&self) -> Vec<(&'static str, usize)> {
        let pool = ("expert pool", self.after.pool_slots * self.record_bytes);
        self.after.memory.iter().copied().chain([pool]).collect()
    }

    /// The table for people.
    pub fn table(&self) -> String {
        let mut t = String::new();
        let (fresh, output) = (self.fresh(), self.output);
        let (prefill, decode) = (self.prefill.as_secs_f64(), self.decode.as_secs_f64());
        let _ = writeln!(
            t,
            "prefill     {fresh:>6} tokens in {prefill:>7.3} s {:>9.1} tokens/s  (prompt {}, reused {})",
            rate(fresh, self.prefill),
            self.prompt,
            self.reused
        );
        let _ = writeln!(
            t,
            "decode      {output:>6} tokens in {decode:>7.3} s {:>9.1} tokens/s  (ended by {})",
            rate(output, self.decode),
            self.finish.name()
        );
        let (steps, per_pass) = (self.steps(), self.per_pass());
        let _ = writeln!(t, "passes      {steps:>6}, {per_pass:.2} tokens per pass");
        let drafts = self.drafts();
        if !drafts.is_empty() {
            let share = |(i, (offered, accepted)): (usize, &(u64, u64))| {
                format!("draft {}: {:.1} %", i + 1, 100.0 * *accepted as f64 / *offered as f64)
            };
            let shares: Vec<String> = drafts.iter().enumerate().map(share).collect();
            let _ = writeln!(t, "acceptance  {}", shares.join(", "));
        }
        let (hits, misses, read) = self.experts();
        let percent = 100.0 * hits as f64 / ((hits + misses) as f64).max(1.0);
        let slots = self.after.pool_slots;
        let _ = writeln!(
            t,
            "experts     {hits} hits ({percent:.1} %), {misses} misses, {} read, pool of {slots}",
            bytes(read)
        );
        let [prefill, decode, _] = &self.phases();
        for line in experts::lines(&[("prefill", prefill), ("decode", decode)]) {
            let _ = writeln!(t, "{line}");
        }
        let late = self.late();
        if late != [0; 3] {
            let [low, whole, out] = late;
            let _ = writeln!(
                t,
                "late        {low} small records read, {whole} made whole, {out} weak experts left out"
            );
        }
        let memory = self.memory().into_iter();
        let memory: Vec<String> =
            memory.map(|(what, size)| format!("{what} {}", bytes(size as u64))).collect();
        let _ = writeln!(t, "memory      {}", memory.join(", "));
        if let Some(peak) = memory::peak_resident() {
            let _ = writeln!(t, "peak        {} resident", bytes(peak));
        }
        let seed = self.seed.map_or_else(|| "greedy".to_owned(), |seed| format!("seed {seed}"));
        let _ = write!(t, "run         {}, context {}, {seed}", self.device, self.context);
        t
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let (hits, misses, read) = self.experts();
        let [low, whole, out] = self.late();
        let (offered, accepted): (Vec<u64>, Vec<u64>) = self.drafts().into_iter().unzip();
        let memory: serde_json::Map<String, Value> =
            self.memory().iter().map(|(what, size)| ((*what).to_owned(), json!(size))).collect();
        let [prefill, decode, all] = &self.phases();
        json!({
            "device": self.device,
            "context": self.context,
            "seed": self.seed,
            "prompt_tokens": self.prompt,
            "reused_tokens": self.reused,
            "prefill_seconds": self.prefill.as_secs_f64(),
            "prefill_tokens_per_second": rate(self.fresh(), self.prefill),
            "output_tokens": self.output,
            "decode_seconds": self.decode.as_secs_f64(),
            "decode_tokens_per_second": rate(self.output, self.decode),
            "finish": self.finish.name(),
            "passes": self.steps(),
            "tokens_per_pass": self.per_pass(),
            "drafted": offered,
            "accepted": accepted,
            "expert_hits": hits,
            "expert_misses": misses,
            "expert_read_bytes": read,
            "expert_low_reads": low,
            "expert_upgrades": whole,
            "experts_left_out": out,
            "pool_slots": self.after.pool_slots,
            "memory_bytes": memory,
            "peak_resident_bytes": memory::peak_resident(),
            "phases": {
                "prefill": experts::phase(prefill),
                "decode": experts::phase(decode),
            },
            "streaming": experts::all(all),
        })
    }
}

/// Sends numbers where they were asked for.
#[derive(Debug)]
pub struct Reporter {
    table: bool,
    json: Option<JsonLines>,
}

#[derive(Debug)]
enum JsonLines {
    Stderr,
    File(File),
}

impl Reporter {
    /// Opens what is to be written.
    ///
    /// # Errors
    /// When the file cannot be created.
    pub fn new(reports: &Reports) -> anyhow::Result<Self> {
        let json = match reports.json.as_deref() {
            None => None,
            Some(path) if path.as_os_str() == "-" => Some(JsonLines::Stderr),
            Some(path) => Some(JsonLines::File(
                File::create(path).with_context(|| format!("cannot create {}", path.display()))?,
            )),
        };
        Ok(Self { table: reports.table, json })
    }

    /// Reports one answer.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn report(&mut self, numbers: &Numbers) -> anyhow::Result<()> {
        if self.table {
            note(&numbers.table());
        }
        match &mut self.json {
            None => Ok(()),
            Some(JsonLines::Stderr) => {
                note(&numbers.json().to_string());
                Ok(())
            }
            Some(JsonLines::File(file)) => {
                writeln!(file, "{}", numbers.json()).context("cannot write the statistics")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_differences() {
        let before = Snapshot {
            steps: 10,
            drafted: vec![5, 5, 0],
            accepted: vec![5, 4, 0],
            expert_hits: 100,
            ..Snapshot::default()
        };
        let after = Snapshot {
            steps: 14,
            drafted: vec![9, 9, 0],
            accepted: vec![8, 5, 0],
            expert_hits: 190,
            expert_misses: 10,
            read_bytes: 1_500_000,
            low_reads: 6,
            left_out: 2,
            pool_slots: 48,
            memory: vec![("dense", 20_000_000)],
            ..before.clone()
        };
        let numbers = Numbers {
            device: "cpu",
            prompt: 30,
            reused: 10,
            prefill: Duration::from_millis(100),
            output: 8,
            decode: Duration::from_millis(500),
            finish: Finish::Stop,
            seed: Some(7),
            context: 64,
            record_bytes: 1000,
            before,
            after,
            streamed: Default::default(),
        };
        let table = numbers.table();
        for part in [
            "20 tokens in   0.100 s     200.0 tokens/s  (prompt 30, reused 10)",
            "8 tokens in   0.500 s      16.0 tokens/s  (ended by stop token)",
            "4, 2.00 tokens per pass",
            "draft 1: 75.0 %, draft 2: 25.0 %\n",
            "90 hits (90.0 %), 10 misses, 1.5 MB read, pool of 48",
            "6 small records read, 0 made whole, 2 weak experts left out",
            "dense 20.0 MB, expert pool 48.0 kB",
            "cpu, context 64, seed 7",
        ] {
            assert!(table.contains(part), "{part} in\n{table}");
        }
        let json = numbers.json();
        assert_eq!(json["drafted"], json!([4, 4]));
        assert_eq!(json["memory_bytes"]["dense"], 20_000_000);
        assert_eq!(json["decode_tokens_per_second"], 16.0);
    }
}
