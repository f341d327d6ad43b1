//! The CPU as a device.
//!
//! Owns: the verbs, the memory of activations. Never: kernels (see `kernels`), layer order.
//! Invariants: verbs allocate nothing once their scratch has grown to the largest batch; no result
//! depends on how work was cut.

mod acts;
mod attention;
mod delta;
mod engine;
mod moe;
mod pages;
mod residual;
mod state;
mod verbs;
mod weights;

use crate::memory::Aligned;
use crate::simd::{Arch, Isa};
use crate::threads::Pool;
use acts::Acts;
use attention::Ropes;
use cherenkov_experts::Layouts;
use cherenkov_model::{Batch, Error, Limits, Result};
use engine::Engine;
use moe::Grouped;
pub use pages::KvPrecision;
pub(crate) use pages::stored;
pub(crate) use residual::BLOCK_ROWS;
use state::State;
pub use weights::{CpuMatrix, CpuVector};

/// Name of the device in messages.
const NAME: &str = "cpu";

/// How the device is made.
#[derive(Clone, Copy, Debug)]
pub struct CpuOptions {
    /// Threads, the caller included.
    pub threads: usize,
    /// Instruction set.
    pub isa: Isa,
    /// Precision of keys and values.
    pub kv: KvPrecision,
    /// Epsilon of the model's norms.
    pub eps: f64,
}

impl CpuOptions {
    /// The fastest instruction set, half-precision keys and values.
    pub fn new(threads: usize, eps: f64) -> Self {
        let (isa, kv) = (Isa::detect(), KvPrecision::default());
        Self { threads, isa, kv, eps }
    }
}

/// The fast CPU device.
pub struct CpuDevice {
    options: CpuOptions,
    eps: f32,
    engine: Engine,
    acts: Acts,
    /// By [`cherenkov_model::Picks`], then by row.
    picks: Vec<Vec<Vec<u32>>>,
    state: State,
    layouts: Option<Layouts>,
    limits: Limits,
    batch: Batch,
    ropes: Ropes,
    grouped: Grouped,
    scratch: [Aligned<f32>; 4],
    weight_bytes: usize,
}

/// A device may move to the thread that owns the engine.
const _: () = {
    const fn assert_send<T: Send>() {}
    assert_send::<CpuDevice>();
};

impl CpuDevice {
    /// A device with these options.
    ///
    /// # Errors
    /// When the processor lacks the instruction set or a thread cannot be started.
    pub fn new(options: CpuOptions) -> Result<Self> {
        let failed = |what: String| Error::Device { device: NAME, what };
        let arch = Arch::new(options.isa).ok_or_else(|| {
            let have: Vec<_> = Isa::available().into_iter().map(Isa::name).collect();
            let wanted = options.isa.name();
            failed(format!("this processor has no {wanted}; choose one of {}", have.join(", ")))
        })?;
        let pool = Pool::new(options.threads)
            .map_err(|e| failed(format!("starting {} threads failed: {e}", options.threads)))?;
        Ok(Self {
            options,
            eps: options.eps as f32,
            engine: Engine::new(pool, arch),
            acts: Acts::default(),
            picks: Vec::new(),
            state: State::default(),
            layouts: None,
            limits: Limits { rows: 0, slots: 0, pages: 0, page_rows: 0 },
            batch: Batch::default(),
            ropes: Ropes::default(),
            grouped: Grouped::default(),
            scratch: Default::default(),
            weight_bytes: 0,
        })
    }

    /// The options it was made with.
    pub fn options(&self) -> &CpuOptions {
        &self.options
    }

    fn memory_by_purpose(&self) -> Vec<(&'static str, usize)> {
        let (slots, pages) = self.state.bytes();
        let scratch = self.scratch.iter().map(Aligned::bytes).sum::<usize>();
        vec![
            ("weights", self.weight_bytes),
            ("activations", self.acts.bytes()),
            ("context pages", pages),
            ("recurrent state", slots),
            ("scratch", scratch + self.engine.bytes()),
        ]
    }
}
