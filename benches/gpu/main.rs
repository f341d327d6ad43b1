//! What the verbs cost on a GPU, at the geometry of the official model.
//!
//! `cargo bench -p cherenkov-gpu -- [--adapter NAME] [--small] [--rows 1,8,512] [verbs|token|profile]`
//!
//! `profile` shows the GPU's own time by kernel over whole passes (one kernel at a time).
//!
//! Weights are random. A time is the wall time of many calls over their number, with one wait at the
//! end; `route` waits every time, as it does in use. Bytes are those of the weights, read once.

mod layer;
mod weights;

use cherenkov_gpu::{GpuDevice, Options, Profiling, Selection};
use cherenkov_model::device::Device;
use layer::{Layer, Shape};
use std::time::Instant;

/// What is measured.
struct Settings {
    selection: Selection,
    shape: Shape,
    rows: Vec<usize>,
    verbs: bool,
    token: bool,
    profile: bool,
    /// Calls per measurement.
    calls: usize,
}

fn settings() -> Settings {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let after = |flag: &str| {
        let at = args.iter().position(|a| a == flag)?;
        args.get(at + 1).cloned()
    };
    // Only `cargo bench` says so; as a test the program shows that it runs.
    let small = args.iter().any(|a| a == "--small") || !args.iter().any(|a| a == "--bench");
    let named = |name: &str| args.iter().any(|a| a == name);
    let rows =
        after("--rows").unwrap_or_else(|| if small { "1,8" } else { "1,2,4,8,64,512" }.into());
    Settings {
        selection: after("--adapter").map_or(Selection::Any, Selection::Named),
        shape: if small { Shape::small() } else { Shape::official() },
        rows: rows.split(',').map(|r| r.parse().expect("a number of rows")).collect(),
        verbs: named("verbs") || !(named("token") || named("profile")),
        token: named("token") || !(named("verbs") || named("profile")),
        profile: named("profile"),
        calls: if small { 3 } else { 100 },
    }
}

/// Time per call in microseconds: the best of three runs.
fn time(
    device: &mut GpuDevice,
    calls: usize,
    wait: impl Fn(&mut GpuDevice),
    mut call: impl FnMut(&mut GpuDevice),
) -> f64 {
    call(device);
    wait(device);
    let run = |_| {
        let start = Instant::now();
        for _ in 0..calls {
            call(device);
        }
        wait(device);
        start.elapsed().as_secs_f64() * 1e6 / calls as f64
    };
    (0..3).map(run).fold(f64::INFINITY, f64::min)
}

fn report(what: &str, rows: usize, micros: f64, bytes: usize) {
    let rate = bytes as f64 / micros / 1e3;
    println!("| {what:40} | {rows:5} | {micros:10.1} | {rate:8.0} |");
}

/// Time on the GPU by kernel, the dearest first.
fn profile(device: &mut GpuDevice, rows: usize) {
    let mut costs = device.costs();
    costs.sort_by(|a, b| b.1.micros.total_cmp(&a.1.micros));
    let all: f64 = costs.iter().map(|(_, c)| c.micros).sum();
    for (name, cost) in costs {
        let (each, share) = (cost.micros / cost.runs as f64, 100.0 * cost.micros / all);
        let runs = cost.runs;
        println!(
            "| {name:40} | {rows:5} rows | {runs:6} runs | {each:9.2} us each | {share:5.1} % |"
        );
    }
}

fn main() {
    let s = settings();
    let profiling = if s.profile { Profiling::Kernels } else { Profiling::Off };
    let options = Options { profiling, ..Options::new(1e-6) };
    let mut device = match GpuDevice::new(&s.selection, options) {
        Ok(device) => device,
        Err(error) => return println!("not measured: {error}"),
    };
    println!("{}", device.adapter());
    let most = s.rows.iter().copied().max().unwrap_or(1);
    let mut layers = Layer::load(&mut device, &s.shape, most);
    println!("| {:40} | {:>5} | {:>10} | {:>8} |", "what", "rows", "us", "GB/s");
    println!("|{}|------:|-----------:|---------:|", "-".repeat(42));
    for &rows in &s.rows {
        if s.verbs {
            layers.verbs(&mut device, rows, s.calls);
        }
        if s.token {
            layers.token(&mut device, rows, s.calls.div_ceil(20));
        }
        if s.profile {
            device.costs();
            layers.token(&mut device, rows, 1);
            profile(&mut device, rows);
        }
    }
    for (what, bytes) in device.memory() {
        println!("{what}: {:.2} GB", bytes as f64 / 1e9);
    }
}
