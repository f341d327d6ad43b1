//! Products at the sizes of the official model, against a plain read of the same memory.
//!
//! `cargo bench -p cherenkov-cpu -- [decode|near|prefill|experts] [isa] [threads]`. Every figure is the
//! median of rounds that alternate with the plain read.

use cherenkov_cpu::PlainRead;
use cherenkov_cpu::kernels::quant::{PANEL, Quantised, Shape};
use cherenkov_cpu::kernels::tile::{Dest, Product, Weights, multiply};
use cherenkov_cpu::memory::Aligned;
use cherenkov_cpu::simd::{Arch, Isa, Op, Simd};
use cherenkov_cpu::threads::{Cut, Pool};
use cherenkov_format::{Bits, Encoding, Group, MatrixRef, tile16};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Bytes of the pool of weights: far more than any cache.
const POOL_BYTES: usize = 1 << 30;
/// Bytes of a plain read, and of the products that it is compared with.
const READ_BYTES: usize = 400 << 20;
const ROUNDS: usize = 7;
/// Outputs and inputs: a square one, the two of a hyper-connection, DeltaNet's input and output.
const SHAPES: [(usize, usize); 5] =
    [(2560, 2560), (320, 10240), (10240, 320), (10240, 2560), (2560, 6144)];

struct Bench {
    pool: Pool,
    read: PlainRead,
    arch: Arch,
    isa: Isa,
    memory: Aligned<u8>,
    start: usize,
    position: usize,
    /// Bytes of the pool that are used.
    limit: usize,
}

struct Fill<'a>(&'a mut Quantised, Shape, &'a [f32]);

impl Op for Fill<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        self.0.fill(s, self.1, self.2);
    }
}

/// Seconds since the first call.
fn seconds() -> f64 {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

impl Bench {
    fn new(isa: Isa, threads: usize) -> Self {
        let mut memory = Aligned::<u8>::new(POOL_BYTES + 4096);
        let start = memory.as_ptr().align_offset(4096);
        let mut x = 0x9E37_79B9_7F4A_7C15u64;
        for word in memory.chunks_exact_mut(8) {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            word.copy_from_slice(&x.to_le_bytes());
        }
        let arch = Arch::new(isa).expect("the processor has it");
        let pool = Pool::new(threads).expect("threads start");
        let read = PlainRead::new(threads, isa, 2, READ_BYTES).expect("threads start");
        let read = read.expect("the processor has it");
        Self { pool, read, arch, isa, memory, start, position: 0, limit: POOL_BYTES }
    }

    /// Gives every block of this layout a scale of 0.01 and a bias of -0.08.
    fn headers(&mut self, bits: Bits) {
        for block in
            self.memory[self.start..].chunks_exact_mut(tile16::block_bytes(bits, Group::G64))
        {
            for (i, half) in block[..64].chunks_exact_mut(2).enumerate() {
                half.copy_from_slice(&if i < 16 { [0x24, 0x3c] } else { [0xa4, 0xbd] });
            }
        }
    }

    /// Offset of the next stretch of the pool.
    fn next(&mut self, bytes: usize) -> usize {
        if self.position + bytes > self.limit {
            self.position = 0;
        }
        self.position += bytes.next_multiple_of(64);
        self.start + self.position - bytes.next_multiple_of(64)
    }

    /// Plain reading, in bytes per second.
    fn read(&mut self) -> f64 {
        let begin = seconds();
        let bytes = self.read.pass();
        bytes as f64 / (seconds() - begin)
    }

    /// Products of different matrices with the same activations; seconds per product.
    fn products(&mut self, w: (usize, usize, Bits), x: &(Quantised, Shape), count: usize) -> f64 {
        let (rows, cols, bits) = w;
        let encoding = Encoding::Tile16 { bits, group: Group::G64 };
        let bytes = encoding.byte_len(rows, cols).expect("fits");
        let mut y = vec![0.0; x.1.rows * rows];
        let begin = seconds();
        for _ in 0..count {
            let at = self.next(bytes);
            let (arch, threads) = (self.arch, self.pool.threads());
            let memory = &self.memory[at..at + bytes];
            let cut = Cut::columns(&mut y, x.1.rows, 16, threads);
            self.pool.run(&|i| {
                let m = MatrixRef::new(rows, cols, encoding, memory).expect("sizes agree");
                let (w, panels) = (Weights::new(m).expect("tiles"), 0..x.1.rows.div_ceil(PANEL));
                let (dest, out) = (Dest::From(0), &mut cut.take(i));
                multiply(arch, Product { w, x: &x.0, shape: x.1, panels, dest, out });
            });
        }
        (seconds() - begin) / count as f64
    }

    fn activations(&self, rows: usize, cols: usize) -> (Quantised, Shape) {
        let mut x = 0x1234_5678u32;
        let values: Vec<f32> = (0..rows * cols)
            .map(|_| {
                x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                x as i32 as f32 / 1e9
            })
            .collect();
        let shape = Shape { rows, cols, group: Group::G64 };
        let mut quantised = Quantised::default();
        self.arch.run(Fill(&mut quantised, shape, &values));
        (quantised, shape)
    }

    fn decode(&mut self) {
        for bits in [Bits::B4, Bits::B8] {
            self.headers(bits);
            for rows in [1, 2, 4, 8] {
                let w = (2560, 2560, bits);
                let bytes = 2560 * 2560 / 1024 * tile16::block_bytes(bits, Group::G64);
                let x = self.activations(rows, 2560);
                let rounds = (0..ROUNDS).map(|_| {
                    let read = self.read();
                    let time = self.products(w, &x, READ_BYTES / bytes);
                    (bytes as f64 / time, read)
                });
                let (speed, read): (Vec<_>, Vec<_>) = rounds.unzip();
                let ratio = median(speed.iter().zip(&read).map(|(s, r)| s / r).collect());
                println!(
                    "decode {} {bits:?} {rows} rows: {:.2} GB/s, read {:.2}, ratio {ratio:.2}",
                    self.isa.name(),
                    median(speed) / 1e9,
                    median(read) / 1e9,
                );
            }
        }
    }

    /// The same matrix again and again, from the second cache: what the arithmetic alone allows.
    fn near(&mut self) {
        let (outputs, cols) = (640, 2560);
        for bits in [Bits::B4, Bits::B8] {
            self.headers(bits);
            for rows in [1, 2, 4, 8] {
                let bytes = outputs * cols / 1024 * tile16::block_bytes(bits, Group::G64);
                let x = self.activations(rows, cols);
                self.limit = bytes.next_multiple_of(64);
                let rounds = (0..ROUNDS).map(|_| self.products((outputs, cols, bits), &x, 400));
                let time = median(rounds.collect());
                println!(
                    "near {} {bits:?} {rows} rows: {:.1} GB/s, {:.0} GOP/s",
                    self.isa.name(),
                    bytes as f64 / time / 1e9,
                    2.0 * (rows * outputs * cols) as f64 / time / 1e9,
                );
            }
        }
        self.limit = POOL_BYTES;
    }

    fn prefill(&mut self) {
        for bits in [Bits::B4, Bits::B8] {
            self.headers(bits);
            for ((outputs, cols), rows) in
                SHAPES.into_iter().flat_map(|shape| [32, 512].map(|rows| (shape, rows)))
            {
                let x = self.activations(rows, cols);
                let rounds: Vec<f64> = (0..ROUNDS)
                    .map(|_| self.products((outputs, cols, bits), &x, 2048 / rows))
                    .collect();
                let operations = 2.0 * (rows * outputs * cols) as f64;
                println!(
                    "prefill {} {bits:?} {outputs}x{cols} {rows} rows: {:.0} GOP/s",
                    self.isa.name(),
                    operations / median(rounds) / 1e9,
                );
            }
        }
    }

    fn experts(&mut self) {
        const EXPERTS: usize = 512;
        for bits in [Bits::B4, Bits::B8] {
            self.headers(bits);
            let encoding = Encoding::Tile16 { bits, group: Group::G64 };
            let bytes = encoding.byte_len(640, 2560).expect("fits");
            let counts: Vec<usize> = (0..EXPERTS).map(|i| 10 + i * 7919 % 31).collect();
            let xs: Vec<_> = (10..41).map(|n| self.activations(n, 2560)).collect();
            let total: usize = counts.iter().sum();
            let mut rounds = Vec::new();
            for _ in 0..ROUNDS {
                let (arch, next) = (self.arch, AtomicUsize::new(0));
                let memory = &self.memory[self.start..];
                let begin = seconds();
                self.pool.run(&|_| {
                    let mut y = vec![0.0; 640 * 40];
                    loop {
                        let e = next.fetch_add(1, Ordering::Relaxed);
                        if e >= EXPERTS {
                            break;
                        }
                        let m = &memory[e * bytes..][..bytes];
                        let m = MatrixRef::new(640, 2560, encoding, m).expect("sizes agree");
                        let w = Weights::new(m).expect("tiles");
                        let (x, shape) = &xs[counts[e] - 10];
                        let cut = Cut::columns(&mut y[..640 * counts[e]], counts[e], 16, 1);
                        let (panels, dest) = (0..counts[e].div_ceil(PANEL), Dest::From(0));
                        let out = &mut cut.take(0);
                        multiply(arch, Product { w, x, shape: *shape, panels, dest, out });
                    }
                });
                rounds.push(seconds() - begin);
            }
            let time = median(rounds);
            println!(
                "experts {} {bits:?}: 512 of 640x2560, {total} rows: {:.1} ms, {:.0} GOP/s",
                self.isa.name(),
                time * 1e3,
                2.0 * (total * 640 * 2560) as f64 / time / 1e9,
            );
        }
    }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    let isas = match args.get(1) {
        Some(name) => Isa::available().into_iter().filter(|isa| isa.name() == name).collect(),
        None => vec![Isa::detect()],
    };
    let threads = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(2);
    let wanted = args.first().map_or("all", String::as_str);
    for isa in isas {
        let mut bench = Bench::new(isa, threads);
        if ["all", "decode"].contains(&wanted) {
            bench.decode();
        }
        if ["all", "near"].contains(&wanted) {
            bench.near();
        }
        if ["all", "prefill"].contains(&wanted) {
            bench.prefill();
        }
        if ["all", "experts"].contains(&wanted) {
            bench.experts();
        }
    }
}
