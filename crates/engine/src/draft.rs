//! Drafts from the model's own head.
//!
//! Owns: keeping the head's cache one row behind the trunk, chaining drafts. Never: accepting them.
//! Row m of the head is made from the trunk's residual at row m and the token at m + 1, and predicts
//! the token at m + 2. Chained rows are made from the head's own residual and are dropped afterwards.

use crate::error::Result;
use crate::runner::{Core, Open};
use crate::sample::Sampler;
use cherenkov_model::device::{Device, Recall};
use cherenkov_model::qwen4_exp::DraftSource;
use cherenkov_model::{Batch, Keep};

/// Runs the draft head over open sequences (named by index).
pub(crate) struct Drafter<'a, D: Device> {
    pub(crate) core: &'a mut Core<D>,
    pub(crate) open: &'a mut [Option<Open>],
}

/// What a sequence wants drafted.
pub(crate) struct Wish<'a> {
    pub(crate) index: usize,
    pub(crate) depth: usize,
    pub(crate) sampler: &'a mut Sampler,
    pub(crate) stop: &'a [u32],
    pub(crate) drafts: Vec<u32>,
}

impl<D: Device> Drafter<'_, D> {
    fn open(&mut self, index: usize) -> &mut Open {
        self.open[index].as_mut().expect("the caller checked that it is open")
    }

    /// Makes the head's rows up to the trunk's last one, from kept hidden rows. `next` names each
    /// sequence and the token that follows its last row. Returns each one's last row in the pass, if
    /// it had rows to make.
    pub(crate) fn catch_up(&mut self, next: &[(usize, u32)]) -> Result<Vec<Option<u32>>> {
        let (mut batch, mut hidden, mut last) = (Batch::default(), Vec::new(), Vec::new());
        if self.core.model.draft.is_none() {
            return Ok(vec![None; next.len()]);
        }
        for &(index, token) in next {
            let sequence = &mut self.open(index).sequence;
            let (from, to) = (sequence.draft_rows(), sequence.tokens().len());
            if from == to {
                last.push(None);
                continue;
            }
            let mut tokens = sequence.tokens()[from + 1..].to_vec();
            tokens.push(token);
            let slot = sequence.slot();
            batch.push(slot, from as u32, &tokens, sequence.pages(), Keep::All);
            hidden.extend((from..to).map(|row| Recall::Kept { slot, index: row as u32 }));
            last.push(Some(hidden.len() as u32 - 1));
            sequence.set_draft_rows(to);
        }
        self.pass(&batch, DraftSource::Trunk, &hidden)?;
        Ok(last)
    }

    /// Makes the head's rows of a chunk that the trunk has just run, all but the last one.
    pub(crate) fn follow(&mut self, index: usize, chunk: &[u32]) -> Result<()> {
        if self.core.model.draft.is_none() || chunk.len() < 2 {
            return Ok(());
        }
        let sequence = &mut self.open(index).sequence;
        let from = sequence.tokens().len() - chunk.len();
        debug_assert_eq!(sequence.draft_rows(), from, "catch up first");
        let mut batch = Batch::default();
        batch.push(sequence.slot(), from as u32, &chunk[1..], sequence.pages(), Keep::All);
        sequence.set_draft_rows(from + chunk.len() - 1);
        let hidden: Vec<Recall> = (0..chunk.len() as u32 - 1).map(Recall::Row).collect();
        self.pass(&batch, DraftSource::Trunk, &hidden)
    }

    fn pass(&mut self, batch: &Batch, source: DraftSource, hidden: &[Recall]) -> Result<()> {
        if !batch.is_empty() {
            let core = &mut *self.core;
            core.model.draft(&mut core.device, &mut core.experts, batch, source, hidden)?;
        }
        Ok(())
    }

    /// Drafts tokens for every wish: the head's own draws with the request's settings and noise.
    pub(crate) fn propose(&mut self, wishes: &mut [Wish<'_>]) -> Result<()> {
        let next: Vec<(usize, u32)> = wishes
            .iter()
            .map(|w| (w.index, self.open[w.index].as_ref().expect("open").tail[0]))
            .collect();
        let mut rows = self.catch_up(&next)?;
        let mut depth = 0;
        loop {
            let active: Vec<usize> = (0..wishes.len())
                .filter(|&i| rows[i].is_some() && wishes[i].drafts.len() == depth)
                .filter(|&i| depth < wishes[i].depth)
                .filter(|&i| !wishes[i].drafts.last().is_some_and(|d| wishes[i].stop.contains(d)))
                .collect();
            if active.is_empty() {
                break;
            }
            if depth > 0 {
                self.chain(wishes, &active, &mut rows)?;
            }
            self.draw(wishes, &active, &rows)?;
            depth += 1;
        }
        for wish in wishes {
            wish.drafts.iter().for_each(|&d| wish.sampler.retract(d));
        }
        Ok(())
    }

    /// One more row of the head per active wish, from its own residual and last draft.
    fn chain(
        &mut self,
        wishes: &[Wish<'_>],
        active: &[usize],
        rows: &mut [Option<u32>],
    ) -> Result<()> {
        let (mut batch, mut hidden) = (Batch::default(), Vec::new());
        for &i in active {
            let wish = &wishes[i];
            let sequence = &self.open(wish.index).sequence;
            let start = sequence.tokens().len() + wish.drafts.len() - 1;
            let token = *wish.drafts.last().expect("chains follow a draft");
            batch.push(sequence.slot(), start as u32, &[token], sequence.pages(), Keep::All);
            hidden.push(Recall::Row(rows[i].expect("active wishes have a row")));
            rows[i] = Some(hidden.len() as u32 - 1);
        }
        self.pass(&batch, DraftSource::Draft, &hidden)
    }

    fn draw(
        &mut self,
        wishes: &mut [Wish<'_>],
        active: &[usize],
        rows: &[Option<u32>],
    ) -> Result<()> {
        let chosen: Vec<u32> = active.iter().filter_map(|&i| rows[i]).collect();
        let core = &mut *self.core;
        let logits = core.model.draft_logits(&mut core.device, &chosen)?;
        for (&i, logits) in active.iter().zip(logits.chunks_exact(core.model.config.vocab)) {
            let wish = &mut wishes[i];
            let position = self.open[wish.index].as_ref().expect("open").len() + wish.drafts.len();
            // A head that draws nothing usable drafts nothing; the trunk decides anyway.
            if let Ok(drawn) = wish.sampler.draw(logits, position) {
                let own = drawn.token;
                let token = core.rewrite.as_mut().map_or(own, |rewrite| rewrite(position, own));
                wish.sampler.accept(token);
                wish.drafts.push(token);
            }
        }
        Ok(())
    }
}
