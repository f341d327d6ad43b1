//! The device: handles, loading, and the verbs by name.
//!
//! Owns: what each handle means in GPU memory. Never: kernels (see `shaders`), layer order.
//! Invariant: everything a pass touches is allocated before it, but for scratch, which the first
//! passes grow.

use crate::adapters::{AdapterInfo, Selection};
use crate::arena::{Arena, Buf};
use crate::bank::{GpuBank, SLAB_BYTES};
use crate::error::{Error, Result};
use crate::gpu::{Gpu, PARAM_BYTES};
use crate::kernels::{Kernel, LANES, Variant};
use crate::pipelines::Pipelines;
use crate::profile::{Cost, Profile, Profiling};
use crate::state::{DeltaState, KvState, Ring, State};
use crate::stream::{Counts, Stream};
use crate::tables::{Rope, Tables};
use crate::verbs::hyper::Write;
use cherenkov_experts::Layouts;
use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use cherenkov_format::{Encoding, Matrix};
use cherenkov_model::device::{DeltaLane, KvLane, RowLane};
use cherenkov_model::{Act, Batch, Limits, Picks, Routes};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// How kernels get their parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ParamPath {
    /// Inside the commands.
    Immediate,
    /// Through a uniform buffer; every adapter can.
    Uniform,
}

/// Choices of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Epsilon of the model's norms.
    pub eps: f64,
    /// How kernels get their parameters; by default what the adapter does best.
    pub params: Option<ParamPath>,
    /// Largest buffer, bytes, if it is to be smaller than the adapter's limit.
    pub buffer_bytes: Option<u64>,
    /// Largest slab of a bank, bytes.
    pub slab_bytes: u64,
    /// How kernels see a bank of several slabs.
    pub slabs: SlabPath,
    /// Whether kernels are measured.
    pub profiling: Profiling,
}

/// How kernels see a bank of several slabs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SlabPath {
    /// All at once where the adapter can, otherwise one after the other.
    Best,
    /// One after the other.
    Each,
}

impl Options {
    /// The defaults for a model with this norm epsilon.
    pub fn new(eps: f64) -> Self {
        Self {
            eps,
            params: None,
            buffer_bytes: None,
            slab_bytes: SLAB_BYTES,
            slabs: SlabPath::Best,
            profiling: Profiling::Off,
        }
    }
}

/// Consecutive rows of a projection.
#[derive(Clone, Debug)]
pub(crate) struct Part {
    pub buf: Buf,
    pub first: u32,
    pub rows: u32,
}

/// A projection in GPU memory, in as many buffers as the adapter's limits ask for; a handle.
#[derive(Clone, Debug)]
pub struct GpuMatrix {
    pub(crate) variant: Variant,
    pub(crate) rows: u32,
    pub(crate) cols: u32,
    pub(crate) parts: Vec<Part>,
}

/// A small vector in GPU memory; a handle.
#[derive(Clone, Debug)]
pub struct GpuVector {
    pub(crate) buf: Buf,
    pub(crate) len: u32,
}

#[derive(Debug)]
struct Activation {
    width: usize,
    buf: Option<Buf>,
}

/// Memory that verbs use between their kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scratch {
    Normed,
    Wide,
    Rank,
    Chosen,
    Ids,
    Logits,
    /// Between two parts of one buffer.
    Way,
    DeltaRuns,
    Sources,
    Queries,
    Parts,
    Routes,
    Inner,
    Jobs,
}

/// Number of [`Scratch`] buffers.
const SCRATCHES: usize = 16;

/// The GPU device.
#[derive(Debug)]
pub struct GpuDevice {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) arena: Arena,
    stream: Arc<Mutex<Stream>>,
    pipelines: Pipelines,
    pub(crate) eps: f32,
    pub(crate) waiting_write: Option<Write>,
    slab_bytes: u64,
    pub(crate) slab_path: SlabPath,
    acts: Vec<Activation>,
    scratch: [Option<Buf>; SCRATCHES],
    pub(crate) tables: Option<Tables>,
    pub(crate) ropes: Vec<Rope>,
    pub(crate) state: State,
    picks: Vec<(Picks, Option<Buf>)>,
    /// The delta table that the device holds.
    pub(crate) delta_sent: Vec<u32>,
    /// The routes that the device holds.
    pub(crate) routes_sent: Routes,
    pub(crate) batch: Batch,
    pub(crate) limits: Option<Limits>,
    pub(crate) nothing: Buf,
}

impl GpuDevice {
    /// Opens an adapter.
    ///
    /// # Errors
    /// When there is none such, or it cannot run the kernels.
    pub fn new(selection: &Selection, options: Options) -> Result<Self> {
        let gpu = Arc::new(Gpu::open(selection)?);
        let path = param_path(&gpu.info, options.params)?;
        let mut arena = Arena::new(gpu.clone(), options.buffer_bytes);
        let nothing = arena.storage("tables", 16)?;
        let mut stream = Stream::new(gpu.clone(), path);
        if options.profiling == Profiling::Kernels {
            stream.profile = Profile::new(&gpu);
        }
        Ok(Self {
            stream: Arc::new(Mutex::new(stream)),
            pipelines: Pipelines::new(gpu.clone()),
            arena,
            gpu,
            eps: options.eps as f32,
            waiting_write: None,
            slab_bytes: options.slab_bytes,
            slab_path: options.slabs,
            acts: Vec::new(),
            scratch: Default::default(),
            tables: None,
            ropes: Vec::new(),
            state: State::default(),
            picks: Vec::new(),
            delta_sent: Vec::new(),
            routes_sent: Routes::default(),
            batch: Batch::default(),
            limits: None,
            nothing,
        })
    }

    /// The adapter in use.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.gpu.info
    }

    /// What has been done so far.
    pub fn counts(&self) -> Counts {
        self.stream().counts
    }

    /// Time on the GPU by kernel and its workgroups since the last call; nothing unless asked for and
    /// possible.
    pub fn costs(&mut self) -> Vec<(String, Cost)> {
        self.stream().profile.as_mut().map(Profile::take).unwrap_or_default()
    }

    pub(crate) fn stream(&self) -> MutexGuard<'_, Stream> {
        self.stream.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a kernel after everything before it.
    pub(crate) fn run<P: bytemuck::Pod>(
        &mut self,
        kernel: Kernel,
        buffers: &[&Buf],
        params: &P,
        grid: [u32; 3],
    ) -> Result<()> {
        self.run_on_slabs(kernel, &[], buffers, params, grid)
    }

    /// Runs a kernel whose first binding is an array of buffers (or the first of `buffers`, when there
    /// are none).
    pub(crate) fn run_on_slabs<P: bytemuck::Pod>(
        &mut self,
        kernel: Kernel,
        slabs: &[Buf],
        buffers: &[&Buf],
        params: &P,
        grid: [u32; 3],
    ) -> Result<()> {
        let most = self.gpu.info.limits.workgroups;
        if grid.contains(&0) {
            return Ok(());
        }
        if grid.iter().any(|&n| n > most) {
            let what = format!("{}: {grid:?} workgroups, the GPU takes {most}", kernel.name());
            return Err(Error::Misuse { what });
        }
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        let (pipeline, group) = self.pipelines.bind(&stream, kernel, slabs, buffers);
        stream.dispatch(&pipeline, &group, bytemuck::bytes_of(params), grid)
    }

    /// Runs an elementwise kernel: one lane per column.
    pub(crate) fn each<P: bytemuck::Pod>(
        &mut self,
        kernel: Kernel,
        buffers: &[&Buf],
        params: &P,
        (rows, width): (u32, u32),
    ) -> Result<()> {
        self.run(kernel, buffers, params, [width.div_ceil(LANES), rows, 1])
    }

    /// Rows of the batch.
    pub(crate) fn rows(&self) -> u32 {
        self.batch.rows() as u32
    }

    /// The buffer of an activation, once a write that waits and touches it has been done.
    pub(crate) fn buf(&mut self, x: Act) -> Result<Buf> {
        if self.waiting_write.is_some_and(|write| write.touches(x)) {
            self.finish_write()?;
        }
        let act = self.acts.get(x.id as usize).filter(|a| a.width == x.width as usize);
        let buf = act.and_then(|a| a.buf.clone());
        buf.ok_or_else(|| Error::Misuse { what: format!("{x:?} is not allocated") })
    }

    /// Scratch memory of at least this size.
    pub(crate) fn scratch(&mut self, which: Scratch, bytes: u64) -> Result<Buf> {
        let held = &mut self.scratch[which as usize];
        if let Some(buf) = held.as_ref().filter(|b| b.bytes >= bytes) {
            return Ok(buf.clone());
        }
        if let Some(old) = held.take() {
            self.pipelines.forget(old.id);
            self.arena.release("scratch", old);
        }
        let buf = self.arena.storage("scratch", bytes)?;
        self.scratch[which as usize] = Some(buf.clone());
        Ok(buf)
    }

    /// Scratch for f32 values of every row of the batch; sized for the largest batch.
    pub(crate) fn scratch_rows(&mut self, which: Scratch, width: u32) -> Result<Buf> {
        let rows = self.limits.map_or(0, |l| l.rows).max(self.batch.rows());
        self.scratch(which, rows as u64 * u64::from(width) * 4)
    }

    /// The way to read weights of `cols` inputs.
    pub(crate) fn variant(&self, encoding: Encoding, cols: usize) -> Variant {
        Variant::of(encoding, cols, self.gpu.info.limits.workgroup_lanes)
    }

    pub(crate) fn load_matrix(&mut self, matrix: &Matrix) -> Result<GpuMatrix> {
        let view = matrix.view();
        let (rows, cols, encoding) = (view.rows(), view.cols(), view.encoding());
        let variant = self.variant(encoding, cols);
        let strip = encoding.byte_len(16, cols).filter(|&b| b > 0);
        let strip = strip.ok_or_else(|| Error::Misuse {
            what: format!("a matrix [{rows}, {cols}] does not fit its encoding {encoding:?}"),
        })?;
        let by_size = self.arena.largest() / strip as u64;
        let by_grid = u64::from(self.gpu.info.limits.workgroups) * u64::from(variant.tile()) / 16;
        let strips = by_size.min(by_grid).max(1) as usize;
        let mut parts = Vec::new();
        for (i, bytes) in view.bytes().chunks(strips * strip).enumerate() {
            let first = i * strips * 16;
            let rows = (rows - first).min(strips * 16) as u32;
            let buf = self.arena.filled("weights", bytes)?;
            parts.push(Part { buf, first: first as u32, rows });
        }
        Ok(GpuMatrix { variant, rows: rows as u32, cols: cols as u32, parts })
    }

    pub(crate) fn load_vector(&mut self, values: &[f32]) -> Result<GpuVector> {
        let buf = self.arena.filled("weights", bytemuck::cast_slice(values))?;
        Ok(GpuVector { buf, len: values.len() as u32 })
    }

    pub(crate) fn declare_act(&mut self, width: usize) -> Act {
        self.acts.push(Activation { width, buf: None });
        Act { id: (self.acts.len() - 1) as u16, width: width as u32 }
    }

    pub(crate) fn declare_picks(&mut self, blocks: usize) -> Picks {
        let picks = Picks { id: self.picks.len() as u16, blocks: blocks as u32 };
        self.picks.push((picks, None));
        picks
    }

    pub(crate) fn declare_ring(&mut self, width: usize, history: usize) -> RowLane {
        self.state.rings.push(Ring::new(width, history));
        RowLane((self.state.rings.len() - 1) as u16)
    }

    pub(crate) fn declare_delta(&mut self, spec: &Delta) -> DeltaLane {
        self.state.deltas.push(DeltaState::new(spec));
        DeltaLane((self.state.deltas.len() - 1) as u16)
    }

    pub(crate) fn declare_kv(&mut self, spec: &Attention) -> KvLane {
        let known = self.ropes.iter().position(|rope| rope.serves(spec));
        let rope = known.unwrap_or_else(|| {
            self.ropes.push(Rope::new(spec));
            self.ropes.len() - 1
        });
        self.state.kvs.push(KvState::new(spec, rope));
        KvLane((self.state.kvs.len() - 1) as u16)
    }

    /// The buffer of a selection.
    pub(crate) fn picks_buf(&self, picks: Picks) -> Result<Buf> {
        let held = self.picks.get(picks.id as usize).filter(|(p, _)| *p == picks);
        let buf = held.and_then(|(_, buf)| buf.clone());
        buf.ok_or_else(|| Error::Misuse { what: format!("{picks:?} is not allocated") })
    }

    pub(crate) fn make_room(&mut self, limits: Limits) -> Result<()> {
        for act in &mut self.acts {
            let bytes = limits.rows as u64 * act.width as u64 * 4;
            act.buf = Some(self.arena.storage("activations", bytes)?);
        }
        for (picks, buf) in &mut self.picks {
            let bytes = limits.rows as u64 * (u64::from(picks.blocks) + 1) * 4;
            *buf = Some(self.arena.storage("activations", bytes)?);
        }
        for rope in &mut self.ropes {
            rope.allocate(&mut self.arena, limits.rows)?;
        }
        self.state.allocate(&mut self.arena, &limits)?;
        self.tables = Some(Tables::new(&mut self.arena, &limits)?);
        self.limits = Some(limits);
        Ok(())
    }

    pub(crate) fn start(&mut self, batch: &Batch) -> Result<()> {
        let limits = self.limits.unwrap_or(Limits { rows: 0, slots: 0, pages: 0, page_rows: 1 });
        let misuse = |what: String| Err(Error::Misuse { what });
        if batch.rows() > limits.rows {
            let (rows, limit) = (batch.rows(), limits.rows);
            return misuse(format!("a batch has {rows} rows, room is for {limit}"));
        }
        let known = |run: &cherenkov_model::Run| {
            (run.slot.0 as usize) < limits.slots
                && run.pages.iter().all(|p| (p.0 as usize) < limits.pages)
        };
        if batch.runs.len() > limits.slots || !batch.runs.iter().all(known) {
            return misuse(format!("a batch names sequences or pages beyond {limits:?}"));
        }
        self.finish_write()?;
        self.batch = batch.clone();
        let Some(tables) = &self.tables else { return misuse("allocate first".into()) };
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        for (at, words) in tables.words(batch) {
            stream.write(&tables.buf, u64::from(at) * 4, bytemuck::cast_slice(&words))?;
        }
        for rope in &self.ropes {
            let buf = rope.buf.as_ref().expect("allocated with the tables");
            stream.write(buf, 0, bytemuck::cast_slice(&rope.values(batch)))?;
        }
        drop(stream);
        if self.state.deltas.is_empty() {
            return Ok(());
        }
        self.send_delta_words(self.delta_words(0))
    }

    pub(crate) fn tables(&self) -> Result<&Tables> {
        self.tables.as_ref().ok_or_else(|| Error::Misuse { what: "allocate first".into() })
    }

    pub(crate) fn make_bank(&mut self, slots: usize, layouts: &Layouts) -> Result<GpuBank> {
        GpuBank::new(&mut self.arena, self.stream.clone(), (slots, self.slab_bytes), layouts)
    }

    /// The first values of a buffer, on the host.
    pub(crate) fn read<T: bytemuck::AnyBitPattern + bytemuck::NoUninit>(
        &self,
        buf: &Buf,
        values: u64,
    ) -> Result<Vec<T>> {
        self.stream().read(&[(buf, 0, values * 4)], bytemuck::pod_collect_to_vec)
    }
}

fn param_path(info: &AdapterInfo, wanted: Option<ParamPath>) -> Result<ParamPath> {
    let can = info.features.immediate_bytes.is_some_and(|bytes| bytes >= PARAM_BYTES);
    match (wanted, can) {
        (Some(ParamPath::Immediate), false) => Err(Error::Missing {
            adapter: info.name.clone(),
            found: format!("{:?} immediate bytes", info.features.immediate_bytes),
            expected: format!("{PARAM_BYTES}"),
        }),
        (Some(path), _) => Ok(path),
        (None, true) => Ok(ParamPath::Immediate),
        (None, false) => Ok(ParamPath::Uniform),
    }
}
