//! The forward pass, stated once.

use super::sequence::Sequence;
use super::weights::{Acts, Layer, Mix, Model};
use crate::batch::{Batch, Keep};
use crate::device::{Act, Device, Place, Recall};
use crate::error::Result;
use cherenkov_experts::Experts;

/// The rows of a pass with their n-gram windows.
#[derive(Clone, Debug, Default)]
pub struct Input {
    batch: Batch,
    windows: Vec<u32>,
}

impl Input {
    /// Adds rows of one sequence.
    pub fn push<D: Device>(
        &mut self,
        model: &Model<D>,
        sequence: &mut Sequence,
        tokens: &[u32],
        keep: Keep,
    ) {
        if let Some(ple) = &model.config.ple {
            let eos = model.config.eos_hash;
            sequence.windows(tokens, ple.ngram, eos, &mut self.windows);
        }
        let start = sequence.tokens.len() as u32;
        self.batch.push(sequence.slot, start, tokens, &sequence.pages, keep);
        sequence.ran(tokens, keep);
    }

    /// The rows.
    pub fn batch(&self) -> &Batch {
        &self.batch
    }
}

/// What a pass works with.
pub struct Pass<'a, D: Device> {
    /// The device.
    pub device: &'a mut D,
    /// Its routed experts.
    pub experts: &'a mut Experts<D::Bank>,
    /// Its activations.
    pub acts: &'a Acts,
    /// N-gram windows of the rows.
    pub windows: &'a [u32],
}

impl<D: Device> Pass<'_, D> {
    /// One decoder layer over the residual `stream`; `next` comes after it, if anything does.
    fn layer(&mut self, layer: &Layer<D>, next: Option<&Layer<D>>, stream: Act) -> Result<()> {
        let a = self.acts;
        if let Some(ngram) = &layer.ngram {
            ngram.run(self)?;
        }
        self.device.hyper_read(&layer.mix_hyper, stream, a.x, a.gate)?;
        match &layer.mix {
            Mix::Delta(delta) => delta.run(self)?,
            Mix::Attention(attention) => attention.run(self)?,
        }
        self.device.hyper_turn(a.y, &layer.moe_hyper, stream, a.x, a.gate)?;
        layer.moe.run(self, next.map(|next| &next.moe))?;
        self.device.hyper_write(a.y, a.gate, stream)
    }
}

impl<D: Device> Model<D> {
    /// Runs rows through the trunk. Afterwards the residual lies in `acts.stream`, and its last rows
    /// are kept for the draft head.
    ///
    /// # Errors
    /// When the device fails or an expert cannot be read. Sequences of the batch are then damaged.
    pub fn trunk(
        &self,
        device: &mut D,
        experts: &mut Experts<D::Bank>,
        input: &Input,
    ) -> Result<()> {
        let a = &self.acts;
        device.enter(Place::Embed);
        device.begin(&input.batch)?;
        device.embed(&self.embed, a.embed)?;
        device.repeat(a.embed, a.stream)?;
        let mut pass = Pass { device, experts, acts: a, windows: &input.windows };
        for (i, layer) in self.layers.iter().enumerate() {
            pass.device.enter(Place::Layer(i as u32));
            pass.layer(layer, self.layers.get(i + 1), a.stream)?;
        }
        if let Some(draft) = &self.draft {
            pass.device.keep(draft.hidden, a.stream)?;
        }
        Ok(())
    }

    /// Logits of the chosen rows of the last trunk pass, `[chosen, vocab]`.
    ///
    /// # Errors
    /// When the device fails.
    pub fn logits(&self, device: &mut D, rows: &[u32]) -> Result<Vec<f32>> {
        let a = &self.acts;
        device.enter(Place::Head);
        device.hyper_read(&self.mixer, a.stream, a.x, a.gate)?;
        device.logits(self.head(), a.x, rows)
    }

    /// Runs rows through the draft head. Row i has the token `batch.tokens[i]` and the hidden state
    /// `hidden[i]`: a row of the last trunk pass or of the last draft pass (as `source` says), or a
    /// kept row of the trunk.
    ///
    /// # Errors
    /// As [`Self::trunk`].
    ///
    /// # Panics
    /// When no draft head is loaded.
    pub fn draft(
        &self,
        device: &mut D,
        experts: &mut Experts<D::Bank>,
        batch: &Batch,
        source: DraftSource,
        hidden: &[Recall],
    ) -> Result<()> {
        let draft = self.draft.as_ref().expect("a draft head is loaded");
        let a = &self.acts;
        let [input, _, stream] = a.draft;
        device.enter(Place::Draft);
        device.begin(batch)?;
        let from = match source {
            DraftSource::Trunk => a.stream,
            DraftSource::Draft => stream,
        };
        device.recall(draft.hidden, from, hidden, input)?;
        draft.fold.fold(device, &self.embed, a)?;
        let mut pass = Pass { device, experts, acts: a, windows: &[] };
        pass.layer(&draft.layer, None, stream)
    }

    /// Logits of the chosen rows of the last draft pass, `[chosen, vocab]`.
    ///
    /// # Errors
    /// When the device fails.
    ///
    /// # Panics
    /// When no draft head is loaded.
    pub fn draft_logits(&self, device: &mut D, rows: &[u32]) -> Result<Vec<f32>> {
        let draft = self.draft.as_ref().expect("a draft head is loaded");
        let a = &self.acts;
        device.hyper_read(&draft.mixer, a.draft[2], a.x, a.gate)?;
        device.logits(self.head(), a.x, rows)
    }
}

/// Which residual a draft pass reads hidden rows from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DraftSource {
    /// The trunk's.
    Trunk,
    /// The draft head's own, of its last pass.
    Draft,
}
