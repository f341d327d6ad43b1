//! An engine whose pool follows the machine.
//!
//! Owns: when readings are taken: before each call that computes. Never: the decision (see `Governor`).
//! Invariant: what the engine returns is what it would return alone.

use super::{Governor, Sense};
use cherenkov_engine::{Engine, Info, Result, SeqId, Snapshot, Step, Streamed};

/// An engine and who watches it.
pub struct Governed {
    engine: Box<dyn Engine>,
    governor: Governor,
    sense: Box<dyn Sense>,
}

impl Governed {
    /// Has `governor` resize the pool of `engine` after what `sense` says.
    pub fn new(engine: Box<dyn Engine>, governor: Governor, sense: Box<dyn Sense>) -> Self {
        Self { engine, governor, sense }
    }

    fn watch(&mut self) -> Result<()> {
        let Some(reading) = self.sense.look() else { return Ok(()) };
        if let Some(slots) = self.governor.decide(reading) {
            let held = self.engine.resize_pool(slots)?;
            self.governor.holds(held);
        }
        Ok(())
    }
}

impl Engine for Governed {
    fn info(&self) -> &Info {
        self.engine.info()
    }

    fn open(&mut self) -> Result<SeqId> {
        self.engine.open()
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId> {
        self.engine.fork(seq)
    }

    fn close(&mut self, seq: SeqId) {
        self.engine.close(seq);
    }

    fn tokens(&self, seq: SeqId) -> Result<Vec<u32>> {
        self.engine.tokens(seq)
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32]) -> Result<()> {
        self.watch()?;
        self.engine.prefill(seq, tokens)
    }

    fn score(&mut self, seq: SeqId, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.watch()?;
        self.engine.score(seq, tokens, see)
    }

    fn decode(&mut self, steps: &mut [Step<'_>]) -> Result<()> {
        self.watch()?;
        self.engine.decode(steps)
    }

    fn commit(&mut self, seq: SeqId, count: usize) -> Result<()> {
        self.engine.commit(seq, count)
    }

    fn save(&mut self, seq: SeqId) -> Result<Vec<u8>> {
        self.engine.save(seq)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SeqId> {
        self.engine.restore(bytes)
    }

    fn resize_pool(&mut self, slots: usize) -> Result<usize> {
        let held = self.engine.resize_pool(slots)?;
        self.governor.holds(held);
        Ok(held)
    }

    fn snapshot(&self) -> Snapshot {
        self.engine.snapshot()
    }

    fn streamed(&self) -> Streamed {
        self.engine.streamed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::governor::{Reading, Rules};
    use cherenkov_cpu::{CpuDevice, CpuOptions};
    use cherenkov_engine::{LoadDraft, Options, Runner, SampleParams, Sampler, Streaming};
    use cherenkov_format::Store;
    use std::path::Path;

    const SLOTS: usize = 200;

    fn engine() -> Box<dyn Engine> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket");
        let store = Store::open(&dir).unwrap();
        let device = CpuDevice::new(CpuOptions::new(1, store.config().eps)).unwrap();
        let options = Options {
            context: 256,
            sequences: 1,
            chunk: 16,
            step_rows: 3,
            draft: LoadDraft::Yes,
            pool_slots: SLOTS,
        };
        Box::new(Runner::load(&store, device, options, Streaming::default()).unwrap())
    }

    /// Says the available bytes of a list, one per look, and then nothing any more.
    struct Script(Vec<u64>);

    impl Sense for Script {
        fn look(&mut self) -> Option<Reading> {
            self.0.pop().map(|available| Reading { available, pressure: None })
        }
    }

    /// The tokens of an answer, and the slots after each step.
    fn answer(engine: &mut dyn Engine, steps: usize) -> (Vec<u32>, Vec<usize>) {
        let seq = engine.open().unwrap();
        let prompt: Vec<u32> = (0..40).map(|i| i * 131 % 4000).collect();
        engine.prefill(seq, &prompt).unwrap();
        let mut sampler = Sampler::new(SampleParams::default(), &[]).unwrap();
        let mut slots = Vec::new();
        for _ in 0..steps {
            let mut step = [Step::new(seq, &mut sampler, 2, &[])];
            engine.decode(&mut step).unwrap();
            slots.push(engine.snapshot().pool_slots);
        }
        (engine.tokens(seq).unwrap(), slots)
    }

    #[test]
    fn the_pool_follows_the_machine_and_no_token_does() {
        let (plain, slots) = answer(&mut *engine(), 40);
        assert!(slots.iter().all(|&n| n == SLOTS));
        let rules = Rules { most: SLOTS, least: 4, record: 100, low: 1000, high: 1500 };
        // From the end: a first reading for the prompt, then calm, shortage, calm for long.
        let mut looks = vec![1 << 30; 30];
        looks.extend([0, 0, 1 << 20, 1 << 20, 1 << 20]);
        let script = Box::new(Script(looks));
        let mut governed = Governed::new(engine(), Governor::new(rules), script);
        let (tokens, slots) = answer(&mut governed, 40);
        assert_eq!(tokens, plain);
        // An eighth each time: more than what is missing.
        assert_eq!(slots[..4], [SLOTS, SLOTS, 175, 154]);
        assert_eq!(slots.iter().min(), Some(&154));
        assert!(slots[39] > 154 && slots[39] < SLOTS, "grown by steps: {slots:?}");
        assert_eq!(governed.resize_pool(7).unwrap(), 7);
    }
}
