//! The draft head's input: hidden state and embedding become its own residual.

use super::weights::{Acts, Loader};
use crate::device::Device;
use crate::error::Result;
use cherenkov_format::qwen4_exp::config::HiddenNorm;

/// Weights that fold a hidden state and an embedding.
pub struct MtpLayer<D: Device> {
    norm_embed: D::Vector,
    norm_hidden: D::Vector,
    hidden_groups: usize,
    fc_embed: D::Matrix,
    fc_hidden: D::Matrix,
}

impl<D: Device> MtpLayer<D> {
    /// Loads the `mtp.*` input weights.
    pub fn load(load: &mut Loader<'_, D>) -> Result<Self> {
        let config = load.store.config();
        let norm = config.mtp.as_ref().map_or(HiddenNorm::Global, |m| m.hidden_norm);
        let hidden_groups = match norm {
            HiddenNorm::Global => 1,
            HiddenNorm::PerStream => config.hyper.count,
        };
        Ok(Self {
            norm_embed: load.vector("mtp.pre_fc_norm_embedding")?,
            norm_hidden: load.vector("mtp.pre_fc_norm_hidden")?,
            hidden_groups,
            fc_embed: load.matrix("mtp.fc_embedding")?,
            fc_hidden: load.matrix("mtp.fc_hidden")?,
        })
    }

    /// `residual_c = fc_embedding(norm(embed)) + fc_hidden(norm(hidden)_c)`.
    pub fn fold(&self, device: &mut D, table: &D::Matrix, a: &Acts) -> Result<()> {
        let [hidden, normed, stream] = a.draft;
        device.embed(table, a.embed)?;
        device.norm(&self.norm_embed, 1, a.embed, a.x)?;
        device.linear(&self.fc_embed, a.x, a.y)?;
        device.norm(&self.norm_hidden, self.hidden_groups, hidden, normed)?;
        device.linear_streams(&self.fc_hidden, normed, stream)?;
        device.add_repeat(a.y, stream)
    }
}
