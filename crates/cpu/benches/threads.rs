//! What handing a job to the pool costs.
//!
//! `cargo bench -p cherenkov-cpu --bench threads -- [threads]`: empty jobs and jobs of 20 microseconds,
//! back to back and with pauses, alone and beside other load; and the processor time of an idle pool.

use cherenkov_cpu::threads::Pool;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const JOBS: usize = 20_000;
const JOB: Duration = Duration::from_micros(20);

/// Keeps a thread busy for some time.
fn busy(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {
        std::hint::spin_loop();
    }
}

/// Microseconds at the median, at 99 % and on average.
fn jobs(pool: &mut Pool, jobs: usize, pause: Duration, work: Duration) -> [f64; 3] {
    let mut times = Vec::with_capacity(jobs);
    for _ in 0..jobs {
        busy(pause);
        let start = Instant::now();
        pool.run(&|_| {
            if !work.is_zero() {
                busy(work);
            }
        });
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    let mean = times.iter().sum::<f64>() / jobs as f64;
    times.sort_by(f64::total_cmp);
    [times[jobs / 2], times[jobs * 99 / 100], mean]
}

fn line(what: &str, [median, late, mean]: [f64; 3]) {
    println!("{what:44} {median:9.2} {late:9.2} {mean:9.2}");
}

fn cases(pool: &mut Pool, what: &str) {
    let none = Duration::ZERO;
    line(&format!("{what}: empty"), jobs(pool, JOBS, none, none));
    line(&format!("{what}: 20 us"), jobs(pool, JOBS / 4, none, JOB));
    line(&format!("{what}: 20 us, 10 us apart"), jobs(pool, JOBS / 4, JOB / 2, JOB));
    line(&format!("{what}: 20 us, 1 ms apart"), jobs(pool, JOBS / 40, JOB * 50, JOB));
}

/// Processor time of this process so far.
fn processor_seconds() -> f64 {
    let own = std::fs::read_to_string("/proc/self/schedstat").ok();
    let all = std::fs::read_dir("/proc/self/task").ok().map(|tasks| {
        let task = |t: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(t.ok()?.path().join("schedstat")).ok()
        };
        tasks.filter_map(task).collect::<Vec<_>>()
    });
    let first = |s: &String| s.split(' ').next()?.parse::<f64>().ok();
    all.unwrap_or_else(|| own.into_iter().collect()).iter().filter_map(first).sum::<f64>() / 1e9
}

fn main() {
    let given = std::env::args().skip(1).find_map(|a| a.parse().ok());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let threads: usize = given.unwrap_or(cores);
    println!("{:44} {:>9} {:>9} {:>9}", "microseconds per job", "median", "99 %", "mean");
    let mut pool = Pool::new(threads).expect("threads start");
    cases(&mut pool, &format!("{threads} threads"));
    let before = processor_seconds();
    std::thread::sleep(Duration::from_millis(500));
    let idle = (processor_seconds() - before) * 1e3;
    println!("idle for 500 ms: {idle:.2} ms of processor time");
    let mut many = Pool::new(2 * cores).expect("threads start");
    let what = format!("{} threads on {cores} cores", many.threads());
    line(&format!("{what}: empty"), jobs(&mut many, JOBS / 20, Duration::ZERO, Duration::ZERO));
    line(&format!("{what}: 20 us"), jobs(&mut many, JOBS / 20, Duration::ZERO, JOB));
    drop(many);
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        s.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        line("one core taken by others: 20 us", jobs(&mut pool, JOBS / 4, Duration::ZERO, JOB));
        stop.store(true, Ordering::Relaxed);
    });
}
