//! The geometry and constants of one `qwen4_exp` model, normalised.
//!
//! Owns: the values, after every default and spelling of config.json has been resolved.
//! Never: reading files (see `checkpoint`), arithmetic.

use serde::{Deserialize, Serialize};

/// Token mixer of a trunk layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Gated DeltaNet (`linear_attention`).
    Delta,
    /// QSA attention (`full_attention`).
    Attention,
}

/// Activation of the DeltaNet output gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Logistic sigmoid.
    Sigmoid,
    /// `x * sigmoid(x)`.
    Silu,
}

/// QSA attention with its indexer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Values per head.
    pub head_dim: usize,
    /// Rotated dimensions of a head: floor(head_dim * partial_rotary_factor).
    pub rope_dims: usize,
    /// Base of the rotary frequencies `theta^(-2i/rope_dims)`.
    pub rope_theta: f64,
    /// How the frequencies are shared among the axes (t, h, w).
    pub mrope_section: [usize; 3],
    /// Query heads of the indexer.
    pub index_heads: usize,
    /// Values per indexer head.
    pub index_dim: usize,
    /// Tokens that the selection may keep.
    pub index_budget: usize,
    /// Tokens per block.
    pub index_ratio: usize,
}

impl Attention {
    /// Blocks that the selection may keep.
    pub fn budget_blocks(&self) -> usize {
        self.index_budget / self.index_ratio
    }

    /// Width of the index projection: the query heads, then one key.
    pub fn index_width(&self) -> usize {
        (self.index_heads + 1) * self.index_dim
    }
}

/// Gated DeltaNet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Delta {
    /// Heads of q and k.
    pub key_heads: usize,
    /// Heads of v, z, beta, decay and the state.
    pub value_heads: usize,
    /// Values per q or k head.
    pub key_dim: usize,
    /// Values per v head.
    pub value_dim: usize,
    /// Taps of the causal convolution.
    pub conv_kernel: usize,
    /// Output gate.
    pub gate: Gate,
}

impl Delta {
    /// Channels of the convolution: q, k, v concatenated.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Width of v and z.
    pub fn value_width(&self) -> usize {
        self.value_heads * self.value_dim
    }
}

/// Mixture of experts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Moe {
    /// Routed experts of a layer.
    pub experts: usize,
    /// Experts per token.
    pub top_k: usize,
    /// Inner width of a routed expert.
    pub width: usize,
    /// Inner width of the shared expert.
    pub shared_width: usize,
    /// Whether the chosen weights are divided by their sum.
    pub norm_topk: bool,
}

/// Hyper-connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hyper {
    /// Residual streams.
    pub count: usize,
    /// Inner width of the mixing gate.
    pub rank: usize,
}

/// N-gram embeddings (PLE).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ple {
    /// ZERO-based trunk layers that have one, ascending.
    pub layers: Vec<usize>,
    /// Width of the concatenated rows.
    pub embed_dim: usize,
    /// Taps of the dilated convolution; its dilation is `ngram`.
    pub conv_kernel: usize,
    /// Longest n-gram.
    pub ngram: usize,
    /// Hash heads per n-gram length.
    pub heads_per_ngram: usize,
    /// Head sizes are successive primes at or above this.
    pub vocab_base: u64,
    /// Table row counts are multiples of this.
    pub divisor: u64,
    /// Seed of the multipliers.
    pub seed: u64,
}

impl Ple {
    /// Hash heads of one table.
    pub fn heads(&self) -> usize {
        (self.ngram - 1) * self.heads_per_ngram
    }

    /// Values per table row.
    pub fn row_width(&self) -> usize {
        self.embed_dim / self.heads()
    }

    /// Normalised rows of history that the convolution needs.
    pub fn history(&self) -> usize {
        (self.conv_kernel - 1) * self.ngram
    }
}

/// Which norm the draft head applies to the trunk's residual.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HiddenNorm {
    /// One RMS over all streams.
    Global,
    /// One RMS per stream.
    PerStream,
}

/// The draft head.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Mtp {
    /// Norm of the hidden input.
    pub hidden_norm: HiddenNorm,
}

/// The whole text model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Width of one residual stream.
    pub hidden: usize,
    /// Rows of the embedding.
    pub vocab: usize,
    /// Epsilon of every RMS norm.
    pub eps: f64,
    /// Longest sequence the model was made for.
    pub max_positions: usize,
    /// Whether lm_head is the embedding.
    pub tied_embeddings: bool,
    /// The trunk's mixers, first layer first.
    pub layers: Vec<Mixer>,
    /// Attention layers (and the draft head's).
    pub attention: Attention,
    /// DeltaNet layers.
    pub delta: Delta,
    /// Experts of every layer.
    pub moe: Moe,
    /// Residual streams.
    pub hyper: Hyper,
    /// N-gram embeddings, if any.
    pub ple: Option<Ple>,
    /// Draft head, if any.
    pub mtp: Option<Mtp>,
    /// Token on which the n-gram window resets.
    pub eos_hash: u32,
    /// Tokens that end generation, ascending.
    pub eos_stop: Vec<u32>,
}

impl Config {
    /// Width of the whole residual: streams times hidden.
    pub fn wide(&self) -> usize {
        self.hyper.count * self.hidden
    }

    /// Layers with routed experts: the trunk's, then the draft head's.
    pub fn expert_layers(&self) -> usize {
        self.layers.len() + usize::from(self.mtp.is_some())
    }
}

/// Upper bounds that no real model comes near and below which no size computation overflows.
const DIM_MAX: usize = 1 << 24;
const LAYERS_MAX: usize = 4096;
const PLE_LAYERS_MAX: usize = 16;
const HEADS_MAX: usize = 256;
const VOCAB_BASE_MAX: u64 = 1 << 36;
const DIVISOR_MAX: u64 = 1 << 24;

fn within(name: &str, found: usize, max: usize) -> Result<(), String> {
    if (1..=max).contains(&found) {
        return Ok(());
    }
    Err(format!("{name} {found}, outside 1..={max}"))
}

fn holds(condition: Option<bool>, message: impl FnOnce() -> String) -> Result<(), String> {
    if condition == Some(true) { Ok(()) } else { Err(message()) }
}

impl Config {
    /// Checks that every value is one the engine can compute with and that no size derived from it
    /// overflows. The message says what was found.
    pub fn validate(&self) -> Result<(), String> {
        within("hidden", self.hidden, DIM_MAX)?;
        within("vocab", self.vocab, DIM_MAX)?;
        within("layers", self.layers.len(), LAYERS_MAX)?;
        within("hyper.count", self.hyper.count, 64)?;
        within("hyper.rank", self.hyper.rank, DIM_MAX)?;
        holds(Some(self.eps.is_finite() && self.eps > 0.0), || format!("eps {}", self.eps))?;
        self.attention.validate()?;
        self.delta.validate()?;
        let m = &self.moe;
        within("moe.experts", m.experts, 1 << 16)?;
        within("moe.top_k", m.top_k, m.experts)?;
        within("moe.width", m.width, DIM_MAX)?;
        within("moe.shared_width", m.shared_width, DIM_MAX)?;
        if let Some(ple) = &self.ple {
            ple.validate(&self.layers)?;
        }
        let fits = |id: u32| (id as usize) < self.vocab;
        holds(Some(fits(self.eos_hash)), || format!("eos_hash {}", self.eos_hash))?;
        let ascending = self.eos_stop.windows(2).all(|w| w[0] < w[1]);
        let known = self.eos_stop.iter().all(|&id| fits(id));
        holds(Some(ascending && known), || format!("eos_stop {:?}", self.eos_stop))
    }
}

impl Attention {
    fn validate(&self) -> Result<(), String> {
        within("attention.heads", self.heads, 1 << 12)?;
        within("attention.kv_heads", self.kv_heads, self.heads)?;
        holds(Some(self.heads.is_multiple_of(self.kv_heads)), || {
            format!("attention.heads {} over kv_heads {}", self.heads, self.kv_heads)
        })?;
        within("attention.head_dim", self.head_dim, 1 << 12)?;
        within("attention.index_heads", self.index_heads, 1 << 10)?;
        within("attention.index_dim", self.index_dim, 1 << 12)?;
        within("attention.index_ratio", self.index_ratio, 1 << 12)?;
        within("attention.index_budget", self.index_budget, 1 << 24)?;
        holds(Some(self.index_budget.is_multiple_of(self.index_ratio)), || {
            format!("index_budget {} over ratio {}", self.index_budget, self.index_ratio)
        })?;
        let rope = self.rope_dims.is_multiple_of(2)
            && (2..=self.head_dim.min(self.index_dim)).contains(&self.rope_dims);
        holds(Some(rope), || format!("attention.rope_dims {}", self.rope_dims))?;
        let theta = self.rope_theta.is_finite() && self.rope_theta > 0.0;
        holds(Some(theta), || format!("attention.rope_theta {}", self.rope_theta))?;
        let sum = self.mrope_section.iter().try_fold(0usize, |a, &b| a.checked_add(b));
        holds(sum.map(|s| s == self.rope_dims / 2), || {
            format!("mrope_section {:?} for {} rotated dims", self.mrope_section, self.rope_dims)
        })
    }
}

impl Delta {
    fn validate(&self) -> Result<(), String> {
        within("delta.value_heads", self.value_heads, 1 << 12)?;
        within("delta.key_heads", self.key_heads, self.value_heads)?;
        holds(Some(self.value_heads.is_multiple_of(self.key_heads)), || {
            format!("delta.value_heads {} over key_heads {}", self.value_heads, self.key_heads)
        })?;
        within("delta.key_dim", self.key_dim, 1 << 12)?;
        within("delta.value_dim", self.value_dim, 1 << 12)?;
        within("delta.conv_kernel", self.conv_kernel, 64)
    }
}

impl Ple {
    fn validate(&self, mixers: &[Mixer]) -> Result<(), String> {
        within("ple.layers", self.layers.len(), PLE_LAYERS_MAX)?;
        let ascending = self.layers.windows(2).all(|w| w[0] < w[1]);
        let linear = self.layers.iter().all(|&l| mixers.get(l) == Some(&Mixer::Delta));
        holds(Some(ascending && linear), || {
            format!("ple.layers {:?}, not ascending linear-attention layers", self.layers)
        })?;
        within("ple.embed_dim", self.embed_dim, DIM_MAX)?;
        within("ple.conv_kernel", self.conv_kernel, 64)?;
        holds(Some((2..=16).contains(&self.ngram)), || format!("ple.ngram {}", self.ngram))?;
        within("ple.heads_per_ngram", self.heads_per_ngram, HEADS_MAX)?;
        within("ple.heads", self.heads(), HEADS_MAX)?;
        holds(Some(self.embed_dim.is_multiple_of(self.heads())), || {
            format!("ple.embed_dim {} over {} heads", self.embed_dim, self.heads())
        })?;
        holds(Some((1..=VOCAB_BASE_MAX).contains(&self.vocab_base)), || {
            format!("ple.vocab_base {}", self.vocab_base)
        })?;
        let divisor = (1..=DIVISOR_MAX).contains(&self.divisor);
        holds(Some(divisor), || format!("ple.divisor {}", self.divisor))
    }
}
