//! Devices by name.
//!
//! Owns: the only place where a device is chosen and joined to the engine. Never: what devices do.

use crate::args::{ComputeArgs, DeviceName, KvName, ModelArgs};
use crate::cores;
use crate::exit::usage;
use crate::plan::Copies;
use crate::terminal::note;
use anyhow::{Context as _, bail};
use cherenkov_cpu::{CpuDevice, CpuOptions, Isa, KvPrecision};
use cherenkov_engine::{Engine, Options, Rewrite, Runner};
use cherenkov_experts::Streaming;
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::Device;
use cherenkov_model::checked::{Bounds, Checked, Verb};
use cherenkov_model::reference::Reference;
use cherenkov_model::traced::{Trace, Traced};
use std::sync::Arc;
use std::time::Instant;

/// What a benchmark attaches to an engine.
#[derive(Default)]
pub struct Instruments {
    /// Who sees every verb.
    pub trace: Option<Box<dyn Trace + Send>>,
    /// Who replaces drafts.
    pub rewrite: Option<Rewrite>,
}

impl From<KvName> for KvPrecision {
    fn from(name: KvName) -> Self {
        match name {
            KvName::F16 => Self::F16,
            KvName::Q8 => Self::Q8,
            KvName::F32 => Self::F32,
        }
    }
}

/// A device that can be made on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// The fast kernels.
    Cpu {
        /// Threads, the caller included.
        threads: usize,
        /// Instruction set.
        isa: Isa,
        /// How keys and values are kept.
        kv: KvPrecision,
    },
    /// The exact reference.
    Reference,
}

impl Choice {
    /// What the arguments name.
    ///
    /// # Errors
    /// When there is no such device here, or it does not have the options given.
    pub fn of(device: DeviceName, args: &ComputeArgs) -> anyhow::Result<Self> {
        match device {
            DeviceName::Gpu => bail!("--device gpu: not built yet; expected cpu or reference"),
            DeviceName::Reference
                if args.threads.is_some() || args.isa.is_some() || args.kv.is_some() =>
            {
                Err(usage(
                    "--threads, --isa and --kv belong to --device cpu; the reference has none of them",
                ))
            }
            DeviceName::Reference => Ok(Self::Reference),
            DeviceName::Cpu => {
                let isa = args.isa.as_deref().map_or(Ok(Isa::detect()), isa)?;
                let threads = args.threads.unwrap_or_else(cores::performance);
                let kv = args.kv.map(KvPrecision::from).unwrap_or_default();
                Ok(Self::Cpu { threads, isa, kv })
            }
        }
    }

    /// Bytes of keys and values of one token in one attention layer.
    pub fn token_bytes(self, spec: &Attention) -> f64 {
        match self {
            Self::Cpu { kv, .. } => kv.token_bytes(spec),
            // An index key per token.
            Self::Reference => ((2 * spec.kv_heads * spec.head_dim + spec.index_dim) * 4) as f64,
        }
    }

    /// The device and how it was made, for people.
    pub fn describe(self) -> String {
        match self {
            Self::Cpu { threads, isa, kv } => {
                format!("cpu ({}, {threads} threads, {} keys and values)", isa.name(), kv.name())
            }
            Self::Reference => "reference".to_owned(),
        }
    }

    /// Loads a store into the device, for measurements.
    ///
    /// # Errors
    /// As [`Self::engine`].
    pub fn instrumented(
        self,
        store: &Store,
        options: Options,
        streaming: Streaming,
        instruments: Instruments,
    ) -> anyhow::Result<Box<dyn Engine>> {
        match self {
            Self::Reference => {
                let device = Reference::new(store.config().eps);
                measured(store, device, options, streaming, instruments)
            }
            Self::Cpu { threads, isa, kv } => {
                measured(store, cpu(store, threads, isa, kv)?, options, streaming, instruments)
            }
        }
    }

    /// Loads a store into the device.
    ///
    /// # Errors
    /// When the store is damaged, or the device cannot hold it.
    pub fn engine(
        self,
        store: &Store,
        options: Options,
        streaming: Streaming,
        copies: Copies,
    ) -> anyhow::Result<Box<dyn Engine>> {
        let eps = store.config().eps;
        let exact = || Reference::new(eps);
        match self {
            Self::Reference => match copies {
                Copies::Single => load(store, exact(), options, streaming, None),
                Copies::Checked => {
                    let device = Checked::new(exact(), exact(), Bounds::exact());
                    load(store, device, options, streaming, None)
                }
            },
            Self::Cpu { threads, isa, kv } => {
                let device = cpu(store, threads, isa, kv)?;
                match copies {
                    Copies::Single => load(store, device, options, streaming, None),
                    Copies::Checked => {
                        let device = Checked::new(device, exact(), cpu_bounds(kv));
                        load(store, device, options, streaming, None)
                    }
                }
            }
        }
    }
}

/// Bounds of the cpu device. Half precision: 11 bits of an attention score of about 10 are 5e-3 of a
/// weight, and of a block's score a few times 5e-4. Eight bits: half a step of 1/127 of the largest
/// value, and keys that are off by as much, whose errors mostly cancel in a score.
fn cpu_bounds(kv: KvPrecision) -> Bounds {
    let attend = match kv {
        KvPrecision::F32 | KvPrecision::F16 => 5e-3,
        KvPrecision::Q8 => 5e-2,
    };
    Bounds::int8().with(Verb::Attend, attend).with(Verb::Select, 2e-3)
}

/// Says in one line each which options make answers depend on more than the model and the prompt.
pub fn warn_of_circumstances(args: &ModelArgs) {
    if let Some(bits) = args.miss_experts {
        let bits = bits.get();
        note(&format!(
            "note: --miss-experts {bits}: answers depend on which experts are in memory"
        ));
    }
    if args.cut_weak > 0.0 {
        let share = args.cut_weak;
        note(&format!("note: --cut-weak {share}: answers depend on how fast experts are read"));
    }
}

/// How experts are streamed, with the clock of this machine.
pub fn streaming(args: &ModelArgs) -> Streaming {
    let start = Instant::now();
    Streaming {
        copies: args.store_copy.clone(),
        readers: args.readers,
        lookahead: args.lookahead,
        miss: args.miss_experts,
        cut_weak: args.cut_weak,
        clock: Arc::new(move || start.elapsed()),
    }
}

fn isa(name: &str) -> anyhow::Result<Isa> {
    let available = Isa::available();
    let found = available.iter().find(|isa| isa.name() == name).copied();
    found.ok_or_else(|| {
        let names: Vec<_> = available.iter().map(|isa| isa.name()).collect();
        usage(format!("--isa {name}: this processor has {}", names.join(", ")))
    })
}

fn cpu(store: &Store, threads: usize, isa: Isa, kv: KvPrecision) -> anyhow::Result<CpuDevice> {
    let options = CpuOptions { isa, kv, ..CpuOptions::new(threads, store.config().eps) };
    CpuDevice::new(options).context("cannot start the cpu device")
}

fn measured<D>(
    store: &Store,
    device: D,
    options: Options,
    streaming: Streaming,
    instruments: Instruments,
) -> anyhow::Result<Box<dyn Engine>>
where
    D: Device + Send + 'static,
    D::Matrix: Send,
    D::Vector: Send,
    D::Bank: Send,
{
    let Instruments { trace, rewrite } = instruments;
    match trace {
        Some(trace) => load(store, Traced::new(device, trace), options, streaming, rewrite),
        None => load(store, device, options, streaming, rewrite),
    }
}

fn load<D>(
    store: &Store,
    device: D,
    options: Options,
    streaming: Streaming,
    rewrite: Option<Rewrite>,
) -> anyhow::Result<Box<dyn Engine>>
where
    D: Device + Send + 'static,
    D::Matrix: Send,
    D::Vector: Send,
    D::Bank: Send,
{
    let mut runner = Runner::load(store, device, options, streaming)?;
    if let Some(rewrite) = rewrite {
        runner.rewrite_drafts(rewrite);
    }
    Ok(Box::new(runner))
}
