//! Handles and parameter groups of the verbs.
//!
//! Owns: names of device memory, geometry and weights that a verb takes together. Never: meaning
//! beyond the shapes (see [`crate::device::Device`]).

use cherenkov_format::qwen4_exp::config::{Attention, Delta};
use std::collections::{BTreeMap, BTreeSet};

/// An activation: f32 `[rows, width]` in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Act {
    /// Number of the activation, counted from 0 in order of allocation.
    pub id: u16,
    /// Values per row.
    pub width: u32,
}

/// Selected blocks per row, in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Picks {
    /// Number of the selection buffer.
    pub id: u16,
    /// Most blocks per row.
    pub blocks: u32,
}

/// The recurrent state of one sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId(pub u32);

/// A page: the attention rows of one stretch of one sequence, in every attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PageId(pub u32);

/// A ring of the last rows of some activation, per sequence, addressed by row index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RowLane(pub u16);

/// The recurrent matrix of one DeltaNet layer, per sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct DeltaLane(pub u16);

/// Keys, values and index keys of one attention layer, in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KvLane(pub u16);

/// Where in the forward pass the following verbs belong; for decorators and errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Token embedding.
    Embed,
    /// A trunk layer.
    Layer(u32),
    /// Final mixer and logits.
    Head,
    /// The draft head.
    Draft,
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embed => write!(f, "the embedding"),
            Self::Layer(layer) => write!(f, "layer {layer}"),
            Self::Head => write!(f, "the head"),
            Self::Draft => write!(f, "the draft head"),
        }
    }
}

/// What a device must have room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rows of a batch.
    pub rows: usize,
    /// Open sequences.
    pub slots: usize,
    /// Pages shared by all sequences.
    pub pages: usize,
    /// Rows of a page; a multiple of the index ratio.
    pub page_rows: usize,
}

/// The experts chosen for each row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Routes {
    /// Experts per row.
    pub k: usize,
    /// Expert ids, `k` per row, ascending within a row.
    pub ids: Vec<u32>,
    /// The weight of each.
    pub weights: Vec<f32>,
}

impl Routes {
    /// Every chosen expert once, by falling sum of its weights.
    pub fn likeliest(&self) -> Vec<u32> {
        let mut sums: BTreeMap<u32, f32> = BTreeMap::new();
        for (&id, &weight) in self.ids.iter().zip(&self.weights) {
            *sums.entry(id).or_default() += weight;
        }
        let mut order: Vec<(u32, f32)> = sums.into_iter().collect();
        order.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        order.into_iter().map(|(id, _)| id).collect()
    }

    /// The experts whose share of each row's weights is below `share`, ascending.
    pub fn weak(&self, share: f32) -> Vec<u32> {
        let mut strong: BTreeMap<u32, bool> = BTreeMap::new();
        let rows = self.ids.chunks_exact(self.k).zip(self.weights.chunks_exact(self.k));
        for (ids, weights) in rows {
            let least = share * weights.iter().sum::<f32>();
            for (&id, &weight) in ids.iter().zip(weights) {
                // A weight that is no number is not below anything.
                let weak = weight < least;
                *strong.entry(id).or_default() |= !weak;
            }
        }
        strong.into_iter().filter(|(_, strong)| !strong).map(|(id, _)| id).collect()
    }

    /// Sets the weights of these experts to 0; the others stay as they are.
    pub fn leave_out(&mut self, experts: impl Iterator<Item = u32>) {
        let gone: BTreeSet<u32> = experts.collect();
        for (id, weight) in self.ids.iter().zip(&mut self.weights) {
            if gone.contains(id) {
                *weight = 0.0;
            }
        }
    }

    /// Every chosen expert once, ascending.
    pub fn distinct(&self) -> Vec<u32> {
        let mut ids = self.ids.clone();
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// One source row of [`crate::device::Device::recall`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Recall {
    /// A row of the activation.
    Row(u32),
    /// A kept row of a sequence.
    Kept {
        /// Whose.
        slot: SlotId,
        /// Index of the row within its sequence.
        index: u32,
    },
}

/// Weights of one hyper-connection. `C` streams of width `h`.
#[derive(Debug)]
pub struct Hyper<M, V> {
    /// Streams.
    pub count: usize,
    /// Grouped norm `[C*h]`.
    pub norm: V,
    /// `[rank, C*h]`.
    pub down: M,
    /// `[C*h, rank]`.
    pub up: M,
    /// `[C, C*h]`; absent in a final mixer.
    pub inject: Option<M>,
}

/// Constants of one DeltaNet layer.
#[derive(Debug)]
pub struct DeltaWeights<V> {
    /// Geometry.
    pub spec: Delta,
    /// `[value_heads]`: the decay is `-exp(a_log) * softplus(a + dt_bias)`.
    pub a_log: V,
    /// `[value_heads]`.
    pub dt_bias: V,
    /// Plain norm weight `[value_dim]`.
    pub norm: V,
}

/// Activations of one DeltaNet step.
#[derive(Clone, Copy, Debug)]
pub struct DeltaIo {
    /// `[q | k | v]` after convolution and SiLU.
    pub qkv: Act,
    /// Output gate input, one value per output.
    pub z: Act,
    /// Decay input per value head.
    pub a: Act,
    /// Beta input per value head.
    pub b: Act,
    /// Gated, normed output `[value_heads * value_dim]`.
    pub out: Act,
}

/// Constants of one attention layer.
#[derive(Debug)]
pub struct AttentionWeights<V> {
    /// Geometry.
    pub spec: Attention,
    /// `[head_dim]`.
    pub q_norm: V,
    /// `[head_dim]`.
    pub k_norm: V,
    /// `[index_dim]`.
    pub index_q_norm: V,
    /// `[index_dim]`.
    pub index_k_norm: V,
}

/// Weights of a shared expert with its gate.
#[derive(Debug)]
pub struct Shared<M> {
    /// `[width, hidden]`.
    pub gate_proj: M,
    /// `[width, hidden]`.
    pub up_proj: M,
    /// `[hidden, width]`.
    pub down_proj: M,
    /// `[1, hidden]`.
    pub gate: M,
}

/// Constants of one PLE layer. `C` streams of width `h`.
#[derive(Debug)]
pub struct PleWeights<V> {
    /// Streams.
    pub count: usize,
    /// Grouped norm `[C*h]` of the keys.
    pub norm_key: V,
    /// Grouped norm `[C*h]` of the residual.
    pub norm_query: V,
    /// Grouped norm `[C*h]` before the convolution.
    pub norm_conv: V,
    /// Taps `[C*h, kernel]`, last one on the current row.
    pub taps: V,
    /// Taps.
    pub kernel: usize,
    /// Rows between taps.
    pub dilation: usize,
}

/// Whether chosen router weights are divided by their sum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TopkNorm {
    /// They are.
    Sum,
    /// They stay as the softmax gave them.
    None,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn experts_are_counted_once_and_the_likeliest_comes_first() {
        let routes = Routes {
            k: 2,
            ids: vec![3, 7, 5, 7, 1, 3],
            weights: vec![0.5, 0.3, 0.5, 0.3, 0.1, 0.4],
        };
        assert_eq!(routes.likeliest(), [3, 7, 5, 1]);
        assert_eq!(routes.distinct(), [1, 3, 5, 7]);
    }

    #[test]
    fn an_expert_is_weak_only_if_it_is_so_for_every_row() {
        let ids = vec![3, 7, 5, 7, 1, 3];
        let weights = vec![0.5, 0.1, 0.9, 0.8, 0.1, 0.4];
        let mut routes = Routes { k: 2, ids, weights };
        assert_eq!(routes.weak(0.3), [1], "7 has a sixth of the first row, but half of the second");
        assert_eq!(routes.weak(0.0), [0u32; 0]);
        assert_eq!(routes.weak(0.2), [0u32; 0], "the share is exactly that");
        routes.leave_out([7, 9].into_iter());
        assert_eq!(routes.weights, [0.5, 0.0, 0.9, 0.0, 0.1, 0.4]);
        let unknown = Routes { k: 2, ids: vec![1, 2], weights: vec![f32::NAN, 0.1] };
        assert_eq!(unknown.weak(0.9), [0u32; 0]);
    }
}
