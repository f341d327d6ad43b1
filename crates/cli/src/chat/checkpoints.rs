//! States of a conversation that later prompts can start from.
//!
//! Owns: which sequences are kept between turns. Never: rendering, answers.
//! Invariant: a kept sequence is reused only if all its tokens begin the new prompt; at most
//! [`KEPT_MAX`] are kept.

use crate::exit::Interrupted;
use crate::interrupt::Interrupt;
use crate::run::prefill;
use cherenkov_engine::{Engine, SeqId};

/// The last message boundary and the last answer.
const KEPT_MAX: usize = 2;
/// Sequences that a chat needs: while one is at work, only the one it was made from is kept.
pub const SEQUENCES: usize = KEPT_MAX;

/// A sequence with its prompt in place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ready {
    /// The sequence; the caller answers in it and gives it back with [`Checkpoints::keep`].
    pub seq: SeqId,
    /// Tokens that were not run again.
    pub reused: usize,
}

/// Sequences kept between turns.
#[derive(Debug, Default)]
pub struct Checkpoints {
    kept: Vec<(SeqId, Vec<u32>)>,
}

impl Checkpoints {
    /// Brings `prompt` into a sequence and keeps a checkpoint at `boundary`, the conversation
    /// without the opening of the answer. What else was kept goes.
    ///
    /// # Errors
    /// When the engine fails, or [`Interrupted`]; what was run until then is kept in that case.
    pub fn prepare(
        &mut self,
        engine: &mut dyn Engine,
        boundary: &[u32],
        prompt: &[u32],
        interrupt: &Interrupt,
    ) -> anyhow::Result<Ready> {
        let (seq, reused) = self.start(engine, prompt)?;
        let done = self.extend(engine, seq, reused, boundary, prompt, interrupt);
        match done {
            Ok(()) => Ok(Ready { seq, reused }),
            Err(error) if error.is::<Interrupted>() => {
                self.keep(engine, seq);
                Err(error)
            }
            Err(error) => {
                engine.close(seq);
                Err(error)
            }
        }
    }

    /// A sequence that holds the beginning of `prompt`, as much of it as is kept; only the
    /// checkpoint that it was made from stays.
    fn start(&mut self, engine: &mut dyn Engine, prompt: &[u32]) -> anyhow::Result<(SeqId, usize)> {
        let fitting = self.kept.iter().filter(|(_, tokens)| prompt.starts_with(tokens));
        let best = fitting.max_by_key(|(_, tokens)| tokens.len()).map(|(seq, _)| *seq);
        self.kept.retain(|(seq, _)| {
            let stays = Some(*seq) == best;
            if !stays {
                engine.close(*seq);
            }
            stays
        });
        match self.kept.first() {
            Some((seq, tokens)) => Ok((engine.fork(*seq)?, tokens.len())),
            None => Ok((engine.open()?, 0)),
        }
    }

    fn extend(
        &mut self,
        engine: &mut dyn Engine,
        seq: SeqId,
        mut at: usize,
        boundary: &[u32],
        prompt: &[u32],
        interrupt: &Interrupt,
    ) -> anyhow::Result<()> {
        if boundary.len() > at && prompt.starts_with(boundary) {
            prefill(engine, seq, &boundary[at..], interrupt)?;
            at = boundary.len();
            self.clear(engine);
            let kept = engine.fork(seq)?;
            self.kept.push((kept, boundary.to_vec()));
        }
        prefill(engine, seq, &prompt[at..], interrupt)
    }

    /// Keeps a sequence with all its tokens.
    pub fn keep(&mut self, engine: &mut dyn Engine, seq: SeqId) {
        match engine.tokens(seq) {
            Ok(tokens) if !tokens.is_empty() && self.kept.len() < KEPT_MAX => {
                self.kept.push((seq, tokens));
            }
            _ => engine.close(seq),
        }
    }

    /// Keeps nothing.
    pub fn clear(&mut self, engine: &mut dyn Engine) {
        self.kept.drain(..).for_each(|(seq, _)| engine.close(seq));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cherenkov_cpu::{CpuDevice, CpuOptions};
    use cherenkov_engine::{LoadDraft, Options, Runner, SampleParams, Sampler, Step};
    use cherenkov_experts::Streaming;
    use cherenkov_format::Store;
    use std::path::Path;

    fn engine() -> Box<dyn Engine> {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket");
        let store = Store::open(&dir).unwrap();
        let device = CpuDevice::new(CpuOptions::new(1, store.config().eps)).unwrap();
        let options = Options {
            context: 256,
            sequences: SEQUENCES,
            chunk: 16,
            step_rows: 3,
            draft: LoadDraft::Yes,
            pool_slots: 432,
        };
        Box::new(Runner::load(&store, device, options, Streaming::default()).unwrap())
    }

    fn answer(engine: &mut dyn Engine, seq: SeqId) -> Vec<u32> {
        let mut sampler = Sampler::new(SampleParams::default(), &[]).unwrap();
        let mut tokens = Vec::new();
        while tokens.len() < 12 {
            let mut steps = [Step::new(seq, &mut sampler, 2, &[])];
            engine.decode(&mut steps).unwrap();
            let [step] = steps;
            tokens.extend(step.out.iter().map(|d| d.token));
        }
        tokens.truncate(12);
        tokens
    }

    fn cold(prompt: &[u32]) -> Vec<u32> {
        let mut engine = engine();
        let seq = engine.open().unwrap();
        engine.prefill(seq, prompt).unwrap();
        answer(&mut *engine, seq)
    }

    fn ids(seed: u32, count: u32) -> Vec<u32> {
        (0..count).map(|i| (i * 7 + seed) * 131 % 4000).collect()
    }

    /// One turn; returns the tokens that were reused.
    fn turn(
        engine: &mut dyn Engine,
        checkpoints: &mut Checkpoints,
        boundary: &[u32],
        open: &[u32],
    ) -> usize {
        let prompt = [boundary, open].concat();
        let ready = checkpoints.prepare(engine, boundary, &prompt, &Interrupt::default()).unwrap();
        assert_eq!(engine.tokens(ready.seq).unwrap(), prompt);
        assert_eq!(answer(engine, ready.seq), cold(&prompt), "as from an empty state");
        checkpoints.keep(engine, ready.seq);
        ready.reused
    }

    #[test]
    fn turns_answer_as_from_an_empty_state_and_reuse_what_fits() {
        let (mut engine, mut kept) = (engine(), Checkpoints::default());
        let open = ids(5, 3);
        let first = ids(1, 20);
        assert_eq!(turn(&mut *engine, &mut kept, &first, &open), 0);
        assert_eq!(turn(&mut *engine, &mut kept, &first, &open), 20, "again");
        // A template that drops the opening of old answers: back to the boundary.
        let second = [&first[..], &ids(2, 9)].concat();
        assert_eq!(turn(&mut *engine, &mut kept, &second, &open), 20);
        // One that keeps them: on from the answer.
        let live = kept.kept[1].1.clone();
        let third = [&live[..], &ids(3, 9)].concat();
        assert_eq!(turn(&mut *engine, &mut kept, &third, &open), live.len());
        assert_eq!(turn(&mut *engine, &mut kept, &ids(9, 4), &[]), 0, "another conversation");
        kept.clear(&mut *engine);
        for _ in 0..SEQUENCES {
            engine.open().unwrap();
        }
    }

    #[test]
    fn a_stopped_prefill_keeps_what_was_run() {
        let (mut engine, mut kept) = (engine(), Checkpoints::default());
        let first = ids(1, 20);
        turn(&mut *engine, &mut kept, &first, &[7]);
        let interrupt = Interrupt::default();
        interrupt.press();
        let longer = [&first[..], &ids(2, 40)].concat();
        let error = kept.prepare(&mut *engine, &longer, &longer, &interrupt).unwrap_err();
        assert!(error.is::<Interrupted>());
        assert_eq!(turn(&mut *engine, &mut kept, &longer, &[7]), 20);
    }
}
