//! Lookahead in virtual time: on drives of several kinds it is never slower than none, and faster where
//! there is something to gain. No clock of this machine is read.

mod common;

use cherenkov_experts::{
    Done, Error, ExpertKey, Experts, Fading, Grade, Job, Lookahead, PageBuf, Priority, Queue,
    RamBank, Reads, Result, Source,
};
use cherenkov_format::RecordLayout;
use common::{Dice, layout};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const LAYERS: u32 = 12;
const PER_LAYER: u32 = 64;
const K: usize = 6;
const READERS: usize = 4;

/// A drive whose reads share its bandwidth.
#[derive(Clone, Copy, Debug)]
struct Drive {
    /// Time of a read that has the drive for itself, in microseconds.
    alone: f64,
    /// Reads that it serves at the same time without slowing down.
    lanes: f64,
}

struct Shape(RecordLayout);

impl Source for Shape {
    fn layout(&self) -> &RecordLayout {
        &self.0
    }

    fn shape(&self) -> (usize, usize) {
        (LAYERS as usize, PER_LAYER as usize)
    }

    fn read(&self, _key: ExpertKey, _out: &mut [u8]) -> Result<()> {
        Ok(())
    }
}

struct Active {
    job: Job<PageBuf>,
    started: f64,
    /// Microseconds of a read alone that are left.
    left: f64,
}

struct World {
    drive: Drive,
    now: f64,
    queue: Queue<PageBuf>,
    active: Vec<Active>,
    done: Vec<Done<PageBuf>>,
}

fn micros(time: f64) -> Duration {
    Duration::from_nanos((time * 1000.0) as u64)
}

impl World {
    fn begin(&mut self) {
        while self.active.len() < READERS {
            let Some((_, job)) = self.queue.take() else { return };
            let (started, left) = (self.now, self.drive.alone);
            self.active.push(Active { job, started, left });
        }
    }

    /// Lets time pass up to `until`, or to the end of the next read.
    fn pass(&mut self, until: f64) {
        self.begin();
        let speed = (self.drive.lanes / self.active.len().max(1) as f64).min(1.0);
        let next = self.active.iter().map(|a| a.left / speed).fold(f64::INFINITY, f64::min);
        let step = next.min(until - self.now);
        self.now += step;
        self.active.iter_mut().for_each(|a| a.left -= step * speed);
        while let Some(at) = self.active.iter().position(|a| a.left < 1e-6) {
            let Active { job: Job { key, grade, landing, queued }, started, .. } =
                self.active.swap_remove(at);
            let (started, ended) = (micros(started), micros(self.now));
            let result = Ok(());
            self.done.push(Done { key, grade, landing, result, queued, started, ended });
        }
        self.begin();
    }

    /// The device computes.
    fn compute(&mut self, time: f64) {
        let end = self.now + time;
        while self.now < end {
            self.pass(end);
        }
    }
}

struct Shared(Arc<Mutex<World>>);

impl Reads<PageBuf> for Shared {
    fn submit(&mut self, priority: Priority, key: ExpertKey, grade: Grade, landing: PageBuf) {
        let mut world = self.0.lock().unwrap();
        let queued = micros(world.now);
        world.queue.push(priority, Job { key, grade, landing, queued });
    }

    fn promote(&mut self, key: ExpertKey) {
        self.0.lock().unwrap().queue.promote(key);
    }

    fn cancel(&mut self, key: ExpertKey) -> Option<PageBuf> {
        self.0.lock().unwrap().queue.cancel(key)
    }

    fn poll(&mut self) -> Result<Option<Done<PageBuf>>> {
        let mut world = self.0.lock().unwrap();
        world.begin();
        Ok(world.done.pop())
    }

    fn wait(&mut self) -> Result<Done<PageBuf>> {
        let mut world = self.0.lock().unwrap();
        loop {
            if let Some(done) = world.done.pop() {
                return Ok(done);
            }
            let before = world.now;
            world.pass(f64::INFINITY);
            assert!(world.now.is_finite() && world.now > before, "nothing is under way");
        }
    }

    fn now(&self) -> Duration {
        micros(self.0.lock().unwrap().now)
    }

    fn width(&self) -> usize {
        READERS
    }
}

/// How well guesses do, by place: the first is right so often, and so on.
type Skill = [f64; K];

/// What the pocket model's guesses reach, continued.
const GOOD: Skill = [0.94, 0.80, 0.65, 0.46, 0.26, 0.20];
const BAD: Skill = [0.1; K];

/// Experts of a layer, some far more often than others, half of them those of the token before.
fn route(dice: &mut Dice, before: &[u32]) -> Vec<u32> {
    let mut ids: Vec<u32> = Vec::new();
    while ids.len() < K {
        let popular = dice.below(u64::from(PER_LAYER)).min(dice.below(u64::from(PER_LAYER)));
        let repeats = !before.is_empty() && dice.once_in(4);
        let id = if repeats { before[dice.below(K as u64) as usize] } else { popular as u32 };
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    ids
}

fn guess(dice: &mut Dice, truth: &[u32], skill: &Skill) -> Vec<u32> {
    let mut left = truth.to_vec();
    let mut out = Vec::new();
    for &chance in skill {
        if !left.is_empty() && (dice.below(1000) as f64) < chance * 1000.0 {
            out.push(left.swap_remove(dice.below(left.len() as u64) as usize));
        } else {
            let wrong = (0..).map(|_| dice.below(u64::from(PER_LAYER)) as u32);
            let mut wrong = wrong.filter(|id| !truth.contains(id) && !out.contains(id));
            let id = wrong.next().expect("an endless line");
            out.push(id);
        }
    }
    out
}

/// A machine at work.
#[derive(Clone, Copy, Debug)]
struct Case {
    drive: Drive,
    slots: usize,
    /// The device's time for a layer in microseconds, a third of it after the experts are there.
    compute: f64,
    skill: Skill,
}

impl Case {
    /// Microseconds per token. A guess takes a hundredth of a layer's time.
    fn time(&self, lookahead: Lookahead) -> f64 {
        let (drive, skill) = (self.drive, &self.skill);
        let (now, queue, active, done) = (0.0, Queue::default(), Vec::new(), Vec::new());
        let world = Arc::new(Mutex::new(World { drive, now, queue, active, done }));
        let bank = RamBank::new(self.slots, layout().bytes());
        let reads = Box::new(Shared(Arc::clone(&world)));
        let (policy, source) = (Box::new(Fading::default()), Arc::new(Shape(layout())));
        let mut experts = Experts::over(bank, source, reads, policy, lookahead).unwrap();
        let compute = |part: f64| world.lock().unwrap().compute(part * self.compute);
        let mut dice = Dice(5);
        let mut routes = vec![Vec::new(); LAYERS as usize];
        let mut began = 0.0;
        for token in 0..TOKENS {
            if token == TOKENS / 4 {
                began = world.lock().unwrap().now;
            }
            routes = routes.iter().map(|before: &Vec<u32>| route(&mut dice, before)).collect();
            for layer in 0..LAYERS {
                compute(0.6);
                let own = &routes[layer as usize];
                experts.request(layer, K, own);
                let next = routes.get(layer as usize + 1).map(|next| guess(&mut dice, next, skill));
                if let Some(hint) = next.filter(|_| experts.wants_hint()) {
                    compute(0.01);
                    experts.hint(layer + 1, &hint);
                }
                let run = |_: &RamBank, wave: &cherenkov_experts::Wave| {
                    compute(0.4 * wave.experts.len() as f64 / K as f64);
                    Ok(())
                };
                experts.waves::<Error>(run).unwrap();
            }
        }
        let now = world.lock().unwrap().now;
        (now - began) / (TOKENS - TOKENS / 4) as f64
    }
}

const TOKENS: usize = 500;

/// One read at a time at full speed, four, and a drive that one read cannot fill.
const LANES: [f64; 3] = [1.0, 1.5, 4.0];

fn cases(skill: Skill) -> impl Iterator<Item = Case> {
    let sizes = [100, 200, 400, LAYERS as usize * PER_LAYER as usize];
    let kinds = LANES.into_iter().flat_map(move |lanes| sizes.map(|slots| (lanes, slots)));
    kinds.flat_map(move |(lanes, slots)| {
        [30.0, 150.0, 600.0, 2500.0].map(|compute| {
            let drive = Drive { alone: 300.0, lanes };
            Case { drive, slots, compute, skill }
        })
    })
}

#[test]
fn it_is_never_slower_than_none() {
    for case in cases(GOOD).chain(cases(BAD)) {
        let (off, auto) = (case.time(Lookahead::Off), case.time(Lookahead::Auto));
        assert!(auto < 1.01 * off, "{auto} us per token, without {off}: {case:?}");
    }
}

#[test]
fn it_gains_where_reads_can_hide() {
    for (lanes, slots, compute, most) in
        [(1.0, 100, 2500.0, 0.91), (1.5, 100, 600.0, 0.94), (4.0, 200, 600.0, 0.92)]
    {
        let drive = Drive { alone: 300.0, lanes };
        let case = Case { drive, slots, compute, skill: GOOD };
        let (off, auto) = (case.time(Lookahead::Off), case.time(Lookahead::Auto));
        assert!(auto < most * off, "{auto} us per token, without {off}: {case:?}");
    }
}
