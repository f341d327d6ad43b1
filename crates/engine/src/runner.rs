//! The engine over one device.
//!
//! Owns: sequences, prefill, decode, drafts. Never: arithmetic, strings.
//! Invariants: every sequence has exactly one pending token; the draft head's cache holds only rows
//! made from true (hidden, next token) pairs once a call returns; a sequence that saw a device
//! failure refuses further work.

use crate::draft::{Drafter, Wish};
use crate::engine::{Engine, Info, SeqId, Snapshot, Step};
use crate::error::{Error, Result};
use crate::saved::{self, Saved};
use cherenkov_experts::{Experts, FileSource, Layouts, Snapshot as Streamed, Source, Streaming};
use cherenkov_format::Store;
use cherenkov_model::device::{Device, SlotId};
use cherenkov_model::pages::Pages;
use cherenkov_model::qwen4_exp::{Input, LoadDraft, Model, Sequence};
use cherenkov_model::{Keep, MAX_TENTATIVE};

/// How much an engine makes room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Tokens of one sequence.
    pub context: usize,
    /// Sequences open at a time.
    pub sequences: usize,
    /// Tokens of one prefill pass.
    pub chunk: usize,
    /// Rows of one decode step, all sequences together.
    pub step_rows: usize,
    /// Whether to load the draft head.
    pub draft: LoadDraft,
    /// Expert records held in memory.
    pub pool_slots: usize,
}

/// Rows whose logits are held at a time.
const LOGIT_ROWS: usize = 32;

/// Gets the logits of one row.
type See<'a> = dyn FnMut(&[f32]) + 'a;

/// One open sequence.
pub(crate) struct Open {
    pub(crate) sequence: Sequence,
    /// Tokens after the settled ones: the pending one, and until the last step is committed what it
    /// emitted.
    pub(crate) tail: Vec<u32>,
    /// Tokens that the last step emitted, while it can be cut short.
    emitted: usize,
    /// Whether the last step's rows are tentative.
    tentative: bool,
    /// A pass failed half way: the state is not to be trusted.
    damaged: bool,
}

impl Open {
    fn new(sequence: Sequence, tail: Vec<u32>) -> Self {
        Self { sequence, tail, emitted: 0, tentative: false, damaged: false }
    }

    /// All tokens.
    pub(crate) fn len(&self) -> usize {
        self.sequence.tokens().len() + self.tail.len()
    }
}

/// Replaces drafts before they are verified: called with a draft's position in its sequence and the
/// head's own token.
pub type Rewrite = Box<dyn FnMut(usize, u32) -> u32 + Send>;

/// The parts that a pass needs.
pub(crate) struct Core<D: Device> {
    pub(crate) model: Model<D>,
    pub(crate) device: D,
    pub(crate) experts: Experts<D::Bank>,
    pub(crate) pages: Pages,
    pub(crate) rewrite: Option<Rewrite>,
}

/// The engine over one device.
pub struct Runner<D: Device> {
    core: Core<D>,
    info: Info,
    open: Vec<Option<Open>>,
    stats: Snapshot,
    fingerprint: u64,
}

impl<D: Device> Runner<D> {
    /// Loads a store into a device.
    ///
    /// # Errors
    /// When the store is damaged, `streaming.copies` are none of it, or the device has no room.
    pub fn load(store: &Store, device: D, options: Options, streaming: Streaming) -> Result<Self> {
        let copies = &streaming.copies;
        let source = FileSource::open(store, copies).and_then(|source| match streaming.miss {
            Some(bits) => source.with_low(store, bits, copies),
            None => Ok(source),
        });
        let source = source.map_err(cherenkov_model::Error::from)?;
        Self::with_source(store, device, source, options, streaming)
    }

    /// As [`Runner::load`], with experts from elsewhere.
    ///
    /// # Errors
    /// As [`Runner::load`].
    pub fn with_source(
        store: &Store,
        mut device: D,
        source: impl Source + 'static,
        options: Options,
        streaming: Streaming,
    ) -> Result<Self> {
        let page_rows = Model::<D>::page_rows(store.config());
        let per_sequence = (options.context + MAX_TENTATIVE).div_ceil(page_rows);
        let rows = options.chunk.max(options.step_rows).max(2 * MAX_TENTATIVE);
        let size = (rows, options.sequences, per_sequence * options.sequences);
        let model = Model::load(store, &mut device, options.draft, size)?;
        let bank = device.bank(options.pool_slots, &Layouts::of_source(&source))?;
        let experts = Experts::new(bank, source, streaming);
        let mut experts = experts.map_err(cherenkov_model::Error::from)?;
        experts.use_layers(model.layers.len() + usize::from(model.draft.is_some()));
        let drafts = if model.draft.is_some() { MAX_TENTATIVE - 1 } else { 0 };
        let info = Info {
            device: device.name(),
            vocab: model.config.vocab,
            context: options.context,
            sequences: options.sequences,
            step_rows: options.step_rows,
            chunk: options.chunk,
            drafts,
            stop: model.config.eos_stop.clone(),
        };
        let stats =
            Snapshot { drafted: vec![0; drafts], accepted: vec![0; drafts], ..Snapshot::default() };
        let pages = Pages::new(size.2);
        let open = (0..options.sequences).map(|_| None).collect();
        let fingerprint = saved::fingerprint(store, device.name(), model.draft.is_some());
        Ok(Self {
            core: Core { model, device, experts, pages, rewrite: None },
            info,
            open,
            stats,
            fingerprint,
        })
    }

    /// Has every draft replaced by what `rewrite` says. Answers stay the same, since drafts are
    /// verified whoever made them; what changes is how many are accepted. For measurements at a given
    /// acceptance: engines behind the [`Engine`] trait cannot be told.
    pub fn rewrite_drafts(&mut self, rewrite: Rewrite) {
        self.core.rewrite = Some(rewrite);
    }

    /// The device, for tests and tools.
    pub fn device_mut(&mut self) -> &mut D {
        &mut self.core.device
    }

    fn get(&self, seq: SeqId) -> Result<&Open> {
        self.open.get(seq.0 as usize).and_then(Option::as_ref).ok_or(Error::Closed(seq.0))
    }

    /// Keeps the first `count` tokens of the last step.
    fn keep_emitted(&mut self, seq: SeqId, count: usize) -> Result<()> {
        let emitted = self.get(seq)?.emitted;
        if count == 0 || count > emitted {
            return Err(Error::Order("the last step did not emit that many tokens"));
        }
        let open = self.open[seq.0 as usize].as_mut().expect("checked above");
        if open.tentative {
            open.sequence.settle(&mut self.core.device, count)?;
        }
        let first = open.tail.len() - emitted;
        open.tail = vec![open.tail[first + count - 1]];
        open.emitted = 0;
        open.tentative = false;
        Ok(())
    }

    /// The sequence, with the last step committed.
    fn ready(&mut self, seq: SeqId) -> Result<&mut Open> {
        let count = self.get(seq)?.emitted;
        if self.get(seq)?.damaged {
            return Err(Error::Order("the sequence saw a failed pass; close it and start again"));
        }
        if count > 0 {
            self.keep_emitted(seq, count)?;
        }
        Ok(self.open[seq.0 as usize].as_mut().expect("checked above"))
    }

    fn free(&self) -> Result<usize> {
        let limit = self.open.len();
        let error = cherenkov_model::Error::Exhausted { what: "sequences", limit };
        self.open.iter().position(Option::is_none).ok_or(Error::Model(error))
    }

    fn install(&mut self, index: usize, open: Open) -> SeqId {
        self.open[index] = Some(open);
        SeqId(index as u32)
    }

    fn damage(&mut self, seqs: impl Iterator<Item = usize>, damaged: bool) {
        for index in seqs {
            self.open[index].as_mut().expect("checked by the caller").damaged = damaged;
        }
    }

    /// Appends tokens and runs all but the last, in chunks.
    fn extend(&mut self, seq: SeqId, tokens: &[u32], mut see: Option<&mut See<'_>>) -> Result<()> {
        let (limit, vocab) = (self.info.context, self.info.vocab);
        if let Some(&token) = tokens.iter().find(|&&t| t as usize >= vocab) {
            return Err(Error::Token { token, vocab });
        }
        let open = self.ready(seq)?;
        let needed = open.len() + tokens.len();
        if needed > limit {
            return Err(Error::Context { needed, limit });
        }
        open.tail.extend_from_slice(tokens);
        while self.get(seq)?.tail.len() > 1 {
            let tail = &self.get(seq)?.tail;
            let run = tail[..self.info.pass_tokens(tail.len() - 1)].to_vec();
            self.chunk(seq.0 as usize, &run, see.as_deref_mut())?;
            self.stats.prefill_tokens += run.len() as u64;
            let open = self.open[seq.0 as usize].as_mut().expect("checked above");
            open.tail.drain(..run.len());
        }
        Ok(())
    }

    /// Runs `tokens` of one sequence through the trunk and, one row behind, the draft head.
    fn chunk(&mut self, index: usize, tokens: &[u32], see: Option<&mut See<'_>>) -> Result<()> {
        let core = &mut self.core;
        let open = self.open[index].as_mut().expect("checked by the caller");
        open.sequence.reserve(&mut core.device, &mut core.pages, tokens.len())?;
        open.damaged = true;
        Drafter { core, open: &mut self.open }.catch_up(&[(index, tokens[0])])?;
        let open = self.open[index].as_mut().expect("checked by the caller");
        let mut input = Input::default();
        input.push(&core.model, &mut open.sequence, tokens, Keep::All);
        core.model.trunk(&mut core.device, &mut core.experts, &input)?;
        if let Some(see) = see {
            let rows: Vec<u32> = (0..tokens.len() as u32).collect();
            for rows in rows.chunks(LOGIT_ROWS) {
                let logits = core.model.logits(&mut core.device, rows)?;
                logits.chunks_exact(self.info.vocab).for_each(&mut *see);
            }
        }
        Drafter { core, open: &mut self.open }.follow(index, tokens)?;
        self.damage([index].into_iter(), false);
        Ok(())
    }

    /// Checks a step and says how many drafts it can have.
    fn depth(&mut self, step: &Step<'_>) -> Result<usize> {
        let (context, drafts) = (self.info.context, self.info.drafts);
        let open = self.ready(step.seq)?;
        if open.tail.is_empty() {
            return Err(Error::Order("the sequence has no token to run; prefill first"));
        }
        let needed = open.len() + 1;
        let room = context.checked_sub(needed);
        let room = room.ok_or(Error::Context { needed, limit: context })?;
        // The head's first row needs the trunk's.
        let possible = if open.sequence.tokens().is_empty() { 0 } else { drafts };
        Ok(step.drafts.min(possible).min(room))
    }

    /// Lets the draft head propose, one list per step.
    fn propose(&mut self, steps: &mut [Step<'_>], depths: &[usize]) -> Result<Vec<Vec<u32>>> {
        let mut wishes: Vec<Wish<'_>> = steps
            .iter_mut()
            .zip(depths)
            .map(|(step, &depth)| Wish {
                index: step.seq.0 as usize,
                depth,
                sampler: step.sampler,
                stop: step.stop,
                drafts: Vec::new(),
            })
            .collect();
        Drafter { core: &mut self.core, open: &mut self.open }.propose(&mut wishes)?;
        Ok(wishes.into_iter().map(|w| w.drafts).collect())
    }

    /// Draws the tokens of one sequence's rows, as far as the drafts agree.
    fn verify(&mut self, step: &mut Step<'_>, drafts: &[u32], logits: &[f32]) {
        let open = self.open[step.seq.0 as usize].as_mut().expect("checked by the caller");
        if drafts.is_empty() {
            // The pending token's row stays whatever comes: it is among the settled ones already.
            open.tail.clear();
        }
        let position = open.len();
        for (row, logits) in logits.chunks_exact(self.info.vocab).enumerate() {
            let drawn = match step.sampler.draw(logits, position + row) {
                Ok(drawn) => drawn,
                // The tokens before this one stand; the next step meets the error again, alone.
                Err(_) if row > 0 => break,
                Err(error) => {
                    step.failure = Some(error);
                    open.damaged = true;
                    return;
                }
            };
            let token = drawn.token;
            step.sampler.accept(token);
            step.out.push(drawn);
            let hit = drafts.get(row) == Some(&token);
            if row < drafts.len() {
                self.stats.drafted[row] += 1;
                self.stats.accepted[row] += u64::from(hit);
            }
            if !hit || step.stop.contains(&token) {
                break;
            }
        }
        open.tentative = !drafts.is_empty();
        open.emitted = step.out.len();
        open.tail.extend(step.out.iter().map(|d| d.token));
        self.stats.decode_tokens += open.emitted as u64;
    }

    /// The trunk over every step's pending token and drafts; logits of all rows.
    fn step_pass(&mut self, steps: &[Step<'_>], drafts: &[Vec<u32>]) -> Result<Vec<f32>> {
        let core = &mut self.core;
        let mut input = Input::default();
        for (step, drafts) in steps.iter().zip(drafts) {
            let open = self.open[step.seq.0 as usize].as_mut().expect("checked by the caller");
            let mut tokens = open.tail.clone();
            tokens.extend_from_slice(drafts);
            let keep = if drafts.is_empty() { Keep::All } else { Keep::Tentative };
            input.push(&core.model, &mut open.sequence, &tokens, keep);
        }
        core.model.trunk(&mut core.device, &mut core.experts, &input)?;
        let rows: Vec<u32> = (0..input.batch().rows() as u32).collect();
        Ok(core.model.logits(&mut core.device, &rows)?)
    }
}

impl<D> Engine for Runner<D>
where
    D: Device + Send,
    D::Matrix: Send,
    D::Vector: Send,
    D::Bank: Send,
{
    fn info(&self) -> &Info {
        &self.info
    }

    fn open(&mut self) -> Result<SeqId> {
        let index = self.free()?;
        let core = &mut self.core;
        let sequence = Sequence::open(&core.model, &mut core.device, SlotId(index as u32))?;
        Ok(self.install(index, Open::new(sequence, Vec::new())))
    }

    fn fork(&mut self, seq: SeqId) -> Result<SeqId> {
        self.ready(seq)?;
        let index = self.free()?;
        let core = &mut self.core;
        let open = self.open[seq.0 as usize].as_ref().expect("checked above");
        let slot = SlotId(index as u32);
        let sequence = open.sequence.fork(&mut core.device, &mut core.pages, slot)?;
        let copy = Open::new(sequence, open.tail.clone());
        Ok(self.install(index, copy))
    }

    fn close(&mut self, seq: SeqId) {
        if let Some(open) = self.open.get_mut(seq.0 as usize).and_then(Option::take) {
            open.sequence.close(&mut self.core.pages);
        }
    }

    fn tokens(&self, seq: SeqId) -> Result<Vec<u32>> {
        let open = self.get(seq)?;
        Ok([open.sequence.tokens(), &open.tail].concat())
    }

    fn prefill(&mut self, seq: SeqId, tokens: &[u32]) -> Result<()> {
        self.extend(seq, tokens, None)
    }

    fn score(&mut self, seq: SeqId, tokens: &[u32], see: &mut dyn FnMut(&[f32])) -> Result<()> {
        self.extend(seq, tokens, Some(see))
    }

    fn decode(&mut self, steps: &mut [Step<'_>]) -> Result<()> {
        let seqs: Vec<usize> = steps.iter().map(|s| s.seq.0 as usize).collect();
        if (1..seqs.len()).any(|i| seqs[..i].contains(&seqs[i])) {
            return Err(Error::Order("a sequence is named twice in one step"));
        }
        let depths = steps.iter().map(|s| self.depth(s)).collect::<Result<Vec<_>>>()?;
        let rows: usize = depths.iter().map(|d| d + 1).sum();
        if steps.is_empty() || rows > self.info.step_rows {
            return Err(Error::Order("a step has no rows, or more than the engine has room for"));
        }
        for (&index, depth) in seqs.iter().zip(&depths) {
            let core = &mut self.core;
            let open = self.open[index].as_mut().expect("checked above");
            open.sequence.reserve(&mut core.device, &mut core.pages, depth + 1)?;
        }
        self.damage(seqs.iter().copied(), true);
        let drafts = self.propose(steps, &depths)?;
        let logits = self.step_pass(steps, &drafts)?;
        self.damage(seqs.into_iter(), false);
        let mut rest = &logits[..];
        for (step, drafts) in steps.iter_mut().zip(&drafts) {
            let (own, other) = rest.split_at((drafts.len() + 1) * self.info.vocab);
            self.verify(step, drafts, own);
            rest = other;
        }
        self.stats.steps += 1;
        Ok(())
    }

    fn commit(&mut self, seq: SeqId, count: usize) -> Result<()> {
        self.keep_emitted(seq, count)
    }

    fn save(&mut self, seq: SeqId) -> Result<Vec<u8>> {
        self.ready(seq)?;
        let open = self.open[seq.0 as usize].as_ref().expect("checked above");
        let saved = Saved {
            fingerprint: self.fingerprint,
            kv: self.core.device.kv_numbers(),
            tokens: open.sequence.tokens().to_vec(),
            tail: open.tail.clone(),
            draft_rows: open.sequence.draft_rows(),
        };
        let (mut out, device) = (saved.header(), &mut self.core.device);
        Saved::block(&mut out, |out| device.save_slot(open.sequence.slot(), out))?;
        for &page in open.sequence.pages_in_use() {
            Saved::block(&mut out, |out| device.save_page(page, out))?;
        }
        Saved::seal(&mut out);
        Ok(out)
    }

    fn restore(&mut self, bytes: &[u8]) -> Result<SeqId> {
        let (index, kv) = (self.free()?, self.core.device.kv_numbers());
        let (saved, blocks) = Saved::parse(bytes, self.fingerprint, kv)?;
        let (limit, needed) = (self.info.context, saved.tokens.len() + saved.tail.len());
        if needed > limit {
            return Err(Error::Context { needed, limit });
        }
        let core = &mut self.core;
        let slot = SlotId(index as u32);
        let mut sequence = Sequence::open(&core.model, &mut core.device, slot)?;
        let (device, pages) = (&mut core.device, &mut core.pages);
        let loaded = sequence.load(device, pages, &saved.tokens, saved.draft_rows, &blocks);
        if let Err(error) = loaded {
            sequence.close(&mut core.pages);
            return Err(error.into());
        }
        Ok(self.install(index, Open::new(sequence, saved.tail)))
    }

    fn resize_pool(&mut self, slots: usize) -> Result<usize> {
        let held = self.core.experts.resize(slots);
        Ok(held.map_err(cherenkov_model::Error::from)?)
    }

    fn snapshot(&self) -> Snapshot {
        let counters = self.core.experts.counters();
        Snapshot {
            expert_hits: counters.hits,
            expert_misses: counters.misses,
            read_bytes: counters.read_bytes,
            pool_slots: self.core.experts.slots(),
            low_reads: counters.low_reads,
            upgrades: counters.upgrades,
            left_out: counters.left_out,
            memory: self.core.device.memory(),
            ..self.stats.clone()
        }
    }

    fn streamed(&self) -> Streamed {
        self.core.experts.snapshot()
    }
}
