//! Engines over packed fixtures.

#![allow(dead_code, reason = "each test binary uses its own part")]

use cherenkov_cpu::{CpuDevice, CpuOptions, Isa, KvPrecision};
use cherenkov_engine::{Engine, LoadDraft, Options, Runner, SampleParams, Sampler, SeqId, Step};
use cherenkov_experts::{ExpertKey, FileSource, Lookahead, Source, Streaming};
use cherenkov_format::pack::{self, Precision};
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_format::{Bits, RecordLayout, Store, checksum, synth};
use cherenkov_model::reference::Reference;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The repository's root.
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A packed store in a directory that lives as long as the value.
pub struct Packed {
    pub store: Arc<Store>,
    _dir: Option<tempfile::TempDir>,
}

impl Packed {
    /// A store within `dir`.
    pub fn new(store: Arc<Store>, dir: tempfile::TempDir) -> Self {
        Self { store, _dir: Some(dir) }
    }
}

/// The bundled pocket model.
pub fn pocket() -> Packed {
    let store = Store::open(&root().join("assets/pocket")).expect("the bundled model opens");
    Packed { store: Arc::new(store), _dir: None }
}

/// A random fixture, experts at 4 bits, dense weights at 8.
pub fn random(name: &str) -> Packed {
    random_with(name, &[])
}

/// As [`random`], with experts at other precisions too.
pub fn random_with(name: &str, others: &[Bits]) -> Packed {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let options = pack::Options {
        experts: Precision::Bits(Bits::B4),
        other_experts: others.iter().map(|bits| Precision::Bits(*bits)).collect(),
        dense: Precision::Bits(Bits::B8),
        ..pack::Options::default()
    };
    let src = root().join("fixtures/random").join(name);
    pack::pack(&src, &out, &options, &mut cherenkov_format::progress::Silent).unwrap();
    Packed { store: Arc::new(Store::open(&out).unwrap()), _dir: Some(dir) }
}

/// Random weights of some geometry, experts at 4 bits, dense weights at 8.
pub fn synthetic(config: Config) -> Packed {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("store");
    let silent = &mut cherenkov_format::progress::Silent;
    synth::store(&out, &synth::Options::new(config), silent).unwrap();
    Packed { store: Arc::new(Store::open(&out).unwrap()), _dir: Some(dir) }
}

/// What an engine is built with.
#[derive(Clone, Debug)]
pub struct Setup {
    pub isa: Isa,
    pub threads: usize,
    pub kv: KvPrecision,
    pub chunk: usize,
    pub pool_slots: usize,
    pub draft: LoadDraft,
    pub sequences: usize,
    pub context: usize,
    pub lookahead: Lookahead,
    pub readers: usize,
    pub miss: Option<Bits>,
    pub cut_weak: f32,
    /// Whether reads take their time.
    pub drive: Drive,
}

/// The drive below an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Drive {
    /// As fast as it is.
    Plain,
    /// Each read takes up to this many microseconds longer, some ten times as long.
    Slow(u64),
}

/// A source behind a slow drive.
struct SlowSource(FileSource, u64);

impl Source for SlowSource {
    fn layout(&self) -> &RecordLayout {
        self.0.layout()
    }

    fn shape(&self) -> (usize, usize) {
        self.0.shape()
    }

    fn low(&self) -> Option<&RecordLayout> {
        self.0.low()
    }

    fn read(&self, key: ExpertKey, out: &mut [u8]) -> cherenkov_experts::Result<()> {
        self.stall(key);
        self.0.read(key, out)
    }

    fn read_low(&self, key: ExpertKey, out: &mut [u8]) -> cherenkov_experts::Result<()> {
        self.stall(key);
        self.0.read_low(key, out)
    }
}

impl SlowSource {
    fn stall(&self, key: ExpertKey) {
        let dice = checksum(&[key.layer.to_le_bytes(), key.expert.to_le_bytes()].concat());
        let time = dice % self.1 * if dice.is_multiple_of(7) { 10 } else { 1 };
        std::thread::sleep(Duration::from_micros(time));
    }
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            isa: Isa::detect(),
            threads: 1,
            kv: KvPrecision::default(),
            chunk: 64,
            pool_slots: 64,
            draft: LoadDraft::Yes,
            sequences: 3,
            context: 512,
            lookahead: Lookahead::Auto,
            readers: 2,
            miss: None,
            cut_weak: 0.0,
            drive: Drive::Plain,
        }
    }
}

impl Setup {
    pub fn options(&self) -> Options {
        Options {
            context: self.context,
            sequences: self.sequences,
            chunk: self.chunk,
            step_rows: 8,
            draft: self.draft,
            pool_slots: self.pool_slots,
        }
    }

    pub fn cpu(&self, packed: &Packed) -> Runner<CpuDevice> {
        let base = CpuOptions::new(self.threads, packed.store.config().eps);
        let options = CpuOptions { isa: self.isa, kv: self.kv, ..base };
        let device = CpuDevice::new(options).unwrap();
        let Drive::Slow(most) = self.drive else {
            return Runner::load(&packed.store, device, self.options(), self.streaming()).unwrap();
        };
        let source = FileSource::open(&packed.store, &[]).unwrap();
        let source = match self.miss {
            Some(bits) => source.with_low(&packed.store, bits, &[]).unwrap(),
            None => source,
        };
        let source = SlowSource(source, most);
        let (options, streaming) = (self.options(), self.streaming());
        Runner::with_source(&packed.store, device, source, options, streaming).unwrap()
    }

    pub fn streaming(&self) -> Streaming {
        let start = Instant::now();
        Streaming {
            copies: Vec::new(),
            readers: self.readers,
            lookahead: self.lookahead,
            miss: self.miss,
            cut_weak: self.cut_weak,
            clock: Arc::new(move || start.elapsed()),
        }
    }

    pub fn reference(&self, packed: &Packed) -> Runner<Reference> {
        let device = Reference::new(packed.store.config().eps);
        Runner::load(&packed.store, device, self.options(), self.streaming()).unwrap()
    }
}

/// Tokens of an answer and the bits of every distribution they were drawn from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub tokens: Vec<u32>,
    pub hash: u64,
}

/// Draws and notes.
pub struct Writer {
    pub seq: SeqId,
    pub sampler: Sampler,
    pub tokens: Vec<u32>,
    bits: Vec<u8>,
}

impl Writer {
    pub fn new(seq: SeqId, params: &SampleParams, prompt: &[u32], vocab: usize) -> Self {
        let params = SampleParams { logprobs: Some(vocab), ..params.clone() };
        let sampler = Sampler::new(params, prompt).unwrap();
        Self { seq, sampler, tokens: Vec::new(), bits: Vec::new() }
    }

    /// Takes what a step emitted, at most up to `count` tokens.
    pub fn take(&mut self, out: &[cherenkov_engine::Drawn], count: usize) {
        for drawn in out.iter().take(count - self.tokens.len().min(count)) {
            self.tokens.push(drawn.token);
            for (token, logprob) in &drawn.logprobs.as_ref().unwrap().top {
                self.bits.extend(token.to_le_bytes());
                self.bits.extend(logprob.to_bits().to_le_bytes());
            }
        }
    }

    pub fn answer(&self) -> Answer {
        Answer { tokens: self.tokens.clone(), hash: checksum(&self.bits) }
    }
}

/// Writes `count` tokens on an open sequence.
pub fn write(engine: &mut dyn Engine, writer: &mut Writer, drafts: usize, count: usize) {
    while writer.tokens.len() < count {
        let mut step = [Step::new(writer.seq, &mut writer.sampler, drafts, &[])];
        engine.decode(&mut step).unwrap();
        let [step] = step;
        assert!(step.failure.is_none(), "{:?}", step.failure);
        let out = step.out;
        writer.take(&out, count);
    }
}

/// Answers a prompt with `count` tokens on a fresh sequence.
pub fn answer(
    engine: &mut dyn Engine,
    prompt: &[u32],
    params: &SampleParams,
    drafts: usize,
    count: usize,
) -> Answer {
    let seq = engine.open().unwrap();
    engine.prefill(seq, prompt).unwrap();
    let mut writer = Writer::new(seq, params, prompt, engine.info().vocab);
    write(engine, &mut writer, drafts, count);
    engine.close(seq);
    writer.answer()
}

/// A made-up prompt.
pub fn prompt(len: usize, vocab: usize, seed: u64) -> Vec<u32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u32
    };
    (0..len).map(|_| next() % vocab as u32).collect()
}

/// Greedy with nothing else.
pub fn greedy() -> SampleParams {
    SampleParams::default()
}

/// Warm sampling with every filter on.
pub fn warm(seed: u64) -> SampleParams {
    SampleParams {
        temperature: 1.0,
        top_k: 50,
        top_p: 0.98,
        min_p: 0.001,
        presence_penalty: 0.3,
        repetition_penalty: 1.05,
        seed,
        ..SampleParams::default()
    }
}
