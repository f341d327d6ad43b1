//! Bytes of weights that work has to read.
//!
//! Owns: which tensors a token and a verb touch. Never: times.

use cherenkov_format::Store;
use cherenkov_format::record::Projection;
use cherenkov_model::checked::Verb;
use cherenkov_model::device::Place;
use cherenkov_model::traced::{At, Work};

/// Sizes of the parts of a store.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Weights that the trunk reads for one token: everything dense but the embedding (of which one
    /// row is read), and the chosen experts. No recurrent state, no keys and values.
    pub token_bytes: u64,
    /// One routed expert, without padding.
    expert_bytes: u64,
    /// Name, (inputs, outputs) and bytes of every dense tensor.
    dense: Vec<(String, (u32, u32), u64)>,
}

impl Cost {
    /// Of a store.
    pub fn of(store: &Store) -> Self {
        let (manifest, config) = (store.manifest(), store.config());
        let dense = manifest.dense.tensors.iter().map(|t| {
            let bytes = t.byte_len().unwrap_or(0);
            (t.name.clone(), (t.cols as u32, t.rows as u32), bytes)
        });
        let dense: Vec<_> = dense.collect();
        let layout = store.experts().layout();
        let parts = [Projection::Gate, Projection::Up, Projection::Down];
        let expert_bytes = parts.map(|which| layout.span(which).1 as u64).iter().sum();
        let skipped = |name: &str| {
            name.starts_with("mtp.") || (name == "embed_tokens" && !config.tied_embeddings)
        };
        let trunk: u64 = dense.iter().filter(|(name, ..)| !skipped(name)).map(|d| d.2).sum();
        let experts = (config.layers.len() * config.moe.top_k) as u64 * expert_bytes;
        Self { token_bytes: trunk + experts, expert_bytes, dense }
    }

    fn named(&self, end: &str) -> Option<u64> {
        self.dense.iter().find(|(name, ..)| name.ends_with(end)).map(|d| d.2)
    }

    fn sum(&self, ends: &[&str]) -> Option<u64> {
        ends.iter().map(|end| self.named(end)).sum()
    }

    /// Bytes of weights that one call reads; `None` where that is not what it spends its time on.
    pub fn of_call(&self, at: At, work: Work) -> Option<u64> {
        match at.verb {
            Verb::Linear | Verb::LinearStreams => {
                let streams = if at.verb == Verb::LinearStreams { 1 } else { 0 };
                let shape = (work.inputs, work.outputs);
                let same = |d: &&(String, (u32, u32), u64)| {
                    d.1 == shape || (streams == 1 && d.0 == "mtp.fc_hidden")
                };
                self.dense.iter().find(same).map(|d| d.2)
            }
            Verb::HyperRead | Verb::HyperTurn => {
                let at = match at.place {
                    Place::Head => return self.sum(&MIXER),
                    _ if at.verb == Verb::HyperTurn => "mlp_hyper_connection",
                    _ => "attn_hyper_connection",
                };
                let part = |name: &str| self.named(&format!("{at}.{name}"));
                Some(
                    part("input_mix_weight_down")?
                        + part("input_mix_weight_up")?
                        + part("block_inject_weight")?,
                )
            }
            Verb::Route => self.named(".mlp.gate"),
            Verb::Experts => Some(work.experts as u64 * self.expert_bytes),
            Verb::SharedExpert => self.sum(&[
                ".shared_expert.gate_proj",
                ".shared_expert.up_proj",
                ".shared_expert.down_proj",
            ]),
            Verb::Logits => self.named("lm_head").or_else(|| self.named("embed_tokens")),
            _ => None,
        }
    }
}

const MIXER: [&str; 2] =
    ["hyper_connection_mixer.input_mix_weight_down", "hyper_connection_mixer.input_mix_weight_up"];

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn a_token_of_the_pocket_model_reads_its_trunk_and_four_experts_a_layer() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/pocket");
        let store = Store::open(&dir).unwrap();
        let cost = Cost::of(&store);
        let all = store.manifest().dense.bytes;
        let embed = cost.named("embed_tokens").unwrap();
        let head: u64 = cost.dense.iter().filter(|d| d.0.starts_with("mtp.")).map(|d| d.2).sum();
        let dense = cost.token_bytes - 8 * 4 * cost.expert_bytes;
        // But for the bytes between tensors.
        assert!(all - embed - head - dense < 64 * cost.dense.len() as u64);
        let expert = store.experts().record_bytes();
        assert!(cost.expert_bytes <= expert && cost.expert_bytes + 4096 > expert);
        let at = At { verb: Verb::Logits, place: Place::Head };
        assert_eq!(cost.of_call(at, Work::default()), cost.named("lm_head"));
    }
}
