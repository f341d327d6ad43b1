//! `cherenkov plan`.
//!
//! Owns: the order of a plan: store, budget, measurements, table or JSON. Never: the arithmetic (see
//! `budget` and `speed`).

use super::probe::{self, DriveRate};
use super::speed::{Expected, Rates, Traffic};
use super::{CHAT_CONTEXT_DEFAULT, Copies, Plan, Wanted, context_limit};
use crate::args::plan::{MemorySize, PlanArgs};
use crate::bench::cost::Cost;
use crate::device::Choice;
use crate::interrupt::Interrupt;
use crate::memory::Machine;
use crate::prompt::Words;
use crate::settings::{self, Mode};
use crate::terminal::bytes;
use crate::{exit, locate};
use anyhow::Context as _;
use cherenkov_format::Store;
use cherenkov_text::SpecialTokens;
use serde_json::{Map, Value, json};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

/// Plans, measures, prints.
///
/// # Errors
/// When the plan does not fit, or a measurement fails.
pub fn run(args: &PlanArgs) -> anyhow::Result<()> {
    let device = Choice::of(args.model.device, &args.compute)?;
    let interrupt = Interrupt::install()?;
    let store = locate::store(&args.model, &interrupt)?;
    let limit = context_limit(args.max_ctx, store.config())?;
    let context = args.max_ctx.unwrap_or(limit.min(CHAT_CONTEXT_DEFAULT));
    let (_, drafts) = settings::drafts(args.drafts, &store)?;
    // A run has its tokenizer in memory when it plans.
    let mode = Mode::Raw(SpecialTokens::Hide);
    let words = store.dir().join("tokenizer.json").exists().then(|| Words::open(&store, &mode));
    let _words = words.transpose()?;
    let (sequences, copies) = (args.sequences, Copies::Single);
    let wanted = Wanted { device, context, sequences, drafts, copies, engines: 1 };
    let machine = Machine::look();
    let plan = Plan::make(&args.model, &store, wanted, machine)?;
    let measured = if args.no_measure { None } else { Some(measure(args, &store, device)?) };
    let report = Report { store: &store, args, wanted, machine, plan, measured };
    match args.json.as_deref() {
        None => write_out(&report.table()),
        Some(path) if path == Path::new("-") => write_out(&format!("{:#}\n", report.json())),
        Some(path) => std::fs::write(path, format!("{:#}\n", report.json()))
            .with_context(|| format!("cannot write {}", path.display())),
    }
}

fn write_out(text: &str) -> anyhow::Result<()> {
    std::io::stdout().write_all(text.as_bytes()).map_err(exit::output_error)
}

/// What was measured.
struct Measured {
    /// Bytes per second; `None` where the device has no read to compare with.
    memory: Option<f64>,
    drive: DriveRate,
}

fn measure(args: &PlanArgs, store: &Store, device: Choice) -> anyhow::Result<Measured> {
    let memory = probe::plain_read(device)?.as_mut().map(probe::memory_rate);
    let drive = probe::drive(store, &args.model).context("cannot measure the drive")?;
    Ok(Measured { memory, drive })
}

struct Report<'a> {
    store: &'a Store,
    args: &'a PlanArgs,
    wanted: Wanted,
    machine: Machine,
    plan: Plan,
    measured: Option<Measured>,
}

impl Report<'_> {
    fn traffic(&self) -> Traffic {
        let config = self.store.config();
        Traffic {
            token: Cost::of(self.store).token_bytes,
            experts: config.layers.len() * config.moe.top_k,
            record: self.store.experts().record_bytes(),
            slots: self.plan.options.pool_slots,
            records: self.plan.sizes.records,
            chunk: self.plan.options.chunk,
        }
    }

    fn expected(&self) -> Option<Expected> {
        let measured = self.measured.as_ref()?;
        let rates = Rates { memory: measured.memory?, drive: measured.drive.rate };
        Some(self.traffic().at(rates))
    }

    fn table(&self) -> String {
        let (plan, wanted, mut t) = (&self.plan, &self.wanted, String::new());
        let experts = self.store.experts();
        let _ = writeln!(
            t,
            "model        {}, {} layers of {} experts",
            self.store.dir().display(),
            experts.layers(),
            experts.per_layer()
        );
        let _ = writeln!(
            t,
            "run          {}, {} x {} tokens, {} drafts, passes of {}",
            wanted.device.describe(),
            wanted.sequences,
            wanted.context,
            wanted.drafts,
            plan.options.chunk
        );
        let token = wanted.device.token_bytes(&self.store.config().attention);
        let _ = writeln!(t, "keys, values {token} B a token and attention layer");
        let most = bytes(self.machine.resident + self.machine.available);
        let chosen = match self.args.model.memory {
            MemorySize::Auto => "auto",
            MemorySize::Bytes(_) => "--memory",
        };
        let _ = writeln!(t, "budget       {} ({chosen}; {most} can be had)", bytes(plan.budget));
        for (what, size) in plan.parts.list() {
            let _ = writeln!(t, "  {what:<14} {:>12}", bytes(size));
        }
        let _ = writeln!(t, "  {:<14} {:>12}", "together", bytes(plan.parts.total()));
        self.speeds(&mut t);
        t
    }

    fn speeds(&self, t: &mut String) {
        let traffic = self.traffic();
        let _ = writeln!(
            t,
            "experts      {} of {} in memory ({:.1} %)",
            traffic.slots,
            traffic.records,
            100.0 * traffic.resident()
        );
        let _ = writeln!(
            t,
            "a token      {} of weights; {:.1} of {} experts = {} from the drive, were all equally likely",
            bytes(traffic.token),
            traffic.missing(),
            traffic.experts,
            bytes(traffic.drive() as u64)
        );
        let Some(measured) = &self.measured else { return };
        let rate = |rate: f64| format!("{}/s", bytes(rate as u64));
        let memory = measured.memory.map_or_else(String::new, |m| format!("memory {}, ", rate(m)));
        let cached = match &measured.drive.buffered {
            None => "uncached".to_owned(),
            Some(reason) => format!("through the page cache: {reason}"),
        };
        let _ = writeln!(
            t,
            "measured     {memory}drive {} ({} reads of {} at a time, {cached})",
            rate(measured.drive.rate),
            self.args.model.readers,
            bytes(traffic.record)
        );
        let Some(expected) = self.expected() else { return };
        let _ = writeln!(
            t,
            "decode       at most {:.1} tokens/s without drafts, limited by the {}",
            expected.decode,
            expected.limit.name()
        );
        if expected.prefill.is_finite() {
            let _ = writeln!(
                t,
                "prefill      reads {} a pass: the drive allows {:.0} tokens/s",
                bytes(traffic.pass() as u64),
                expected.prefill
            );
        }
    }

    fn json(&self) -> Value {
        let (plan, wanted, traffic) = (&self.plan, &self.wanted, self.traffic());
        let parts: Map<String, Value> = plan
            .parts
            .list()
            .iter()
            .map(|(what, size)| ((*what).to_owned(), json!(size)))
            .collect();
        let measured = self.measured.as_ref().map(|m| {
            json!({
                "memory_bytes_per_second": m.memory,
                "drive_bytes_per_second": m.drive.rate,
                "drive_bytes_read": m.drive.bytes,
                "page_cache": m.drive.buffered,
            })
        });
        let expected = self.expected().map(|e| {
            json!({
                "decode_tokens_per_second": e.decode,
                "limit": e.limit.name(),
                "prefill_tokens_per_second_of_drive": e.prefill.is_finite().then_some(e.prefill),
            })
        });
        json!({
            "device": wanted.device.describe(),
            "context": wanted.context,
            "kv_bytes_per_token_and_layer":
                wanted.device.token_bytes(&self.store.config().attention),
            "sequences": wanted.sequences,
            "drafts": wanted.drafts,
            "chunk": plan.options.chunk,
            "budget_bytes": plan.budget,
            "available_bytes": self.machine.resident + self.machine.available,
            "bytes": parts,
            "total_bytes": plan.parts.total(),
            "pool_slots": traffic.slots,
            "records": traffic.records,
            "record_bytes": traffic.record,
            "resident_share": traffic.resident(),
            "token_weight_bytes": traffic.token,
            "token_experts": traffic.experts,
            "token_drive_bytes": traffic.drive(),
            "pass_drive_bytes": traffic.pass(),
            "measured": measured,
            "expected": expected,
        })
    }
}
