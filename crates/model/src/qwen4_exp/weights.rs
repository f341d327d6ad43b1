//! Weights, activations and lanes of a model on a device.
//!
//! Owns: which tensor of the store becomes which weight. Never: numbers.

use super::attention::AttentionLayer;
use super::delta::DeltaLayer;
use super::moe::MoeLayer;
use super::mtp::MtpLayer;
use super::ngram::NgramLayer;
use crate::device::{Act, Device, Hyper, Limits, Picks, RowLane};
use crate::error::{Error, Result};
use cherenkov_format::Store;
use cherenkov_format::qwen4_exp::config::{Config, Mixer};

/// A hyper-connection of a device.
pub type HyperOf<D> = Hyper<<D as Device>::Matrix, <D as Device>::Vector>;

/// The token mixer of a layer.
pub enum Mix<D: Device> {
    /// Gated DeltaNet.
    Delta(DeltaLayer<D>),
    /// QSA attention.
    Attention(AttentionLayer<D>),
}

/// One decoder layer, of the trunk or of the draft head.
pub struct Layer<D: Device> {
    /// N-gram embeddings added before the layer.
    pub ngram: Option<NgramLayer<D>>,
    /// Read before the mixer.
    pub mix_hyper: HyperOf<D>,
    /// The mixer.
    pub mix: Mix<D>,
    /// Read before the experts.
    pub moe_hyper: HyperOf<D>,
    /// The experts.
    pub moe: MoeLayer<D>,
}

/// Activations; every layer uses the same ones.
#[derive(Clone, Copy, Debug)]
pub struct Acts {
    /// Embedding of a token `[h]`.
    pub embed: Act,
    /// The residual `[C*h]`.
    pub stream: Act,
    /// Input of a mixer or of the experts `[h]`.
    pub x: Act,
    /// Output of a mixer or of the experts `[h]`.
    pub y: Act,
    /// Injection gate `[C]`.
    pub gate: Act,
    /// DeltaNet: projections, convolved projections, output gate, decay, beta, output.
    pub delta: [Act; 6],
    /// Attention: q with gates, k, v, index queries and key, output.
    pub attention: [Act; 5],
    /// Selected blocks.
    pub picks: Picks,
    /// Expert outputs per rank `[k*h]`.
    pub parts: Act,
    /// Shared expert's output `[h]`.
    pub shared: Act,
    /// PLE: rows, key, value.
    pub ngram: [Act; 3],
    /// Draft head: hidden input, normed hidden input, its own residual, all `[C*h]`.
    pub draft: [Act; 3],
}

/// The draft head.
pub struct Draft<D: Device> {
    /// How hidden state and embedding become its residual.
    pub fold: MtpLayer<D>,
    /// Its decoder layer.
    pub layer: Layer<D>,
    /// Its final read.
    pub mixer: HyperOf<D>,
    /// The trunk's residual of the last rows.
    pub hidden: RowLane,
}

/// A whole model on a device.
pub struct Model<D: Device> {
    /// Geometry.
    pub config: Config,
    /// `[vocab, h]`.
    pub embed: D::Matrix,
    /// The trunk.
    pub layers: Vec<Layer<D>>,
    /// Read before the head.
    pub mixer: HyperOf<D>,
    /// `[vocab, h]`; absent when it is the embedding.
    pub head: Option<D::Matrix>,
    /// The draft head, if loaded.
    pub draft: Option<Draft<D>>,
    /// Activations.
    pub acts: Acts,
    /// What the device has room for.
    pub limits: Limits,
}

/// Whether the draft head is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoadDraft {
    /// If the store has one.
    Yes,
    /// Not at all.
    No,
}

/// Reads a store's tensors into a device.
pub struct Loader<'a, D: Device> {
    /// Where from.
    pub store: &'a Store,
    /// Where to.
    pub device: &'a mut D,
}

impl<D: Device> Loader<'_, D> {
    /// A projection by canonical name.
    pub fn matrix(&mut self, name: &str) -> Result<D::Matrix> {
        let matrix = self.store.matrix(name)?;
        self.device.matrix(matrix)
    }

    /// A vector (or taps) by canonical name.
    pub fn vector(&mut self, name: &str) -> Result<D::Vector> {
        let values = self.store.matrix(name)?.view().to_f32();
        self.device.vector(&values)
    }

    /// A hyper-connection with injection weights.
    pub fn hyper(&mut self, at: &str) -> Result<HyperOf<D>> {
        let inject = self.matrix(&format!("{at}.block_inject_weight"))?;
        Ok(Hyper { inject: Some(inject), ..self.mixer(at)? })
    }

    /// A final mixer: a hyper-connection without injection.
    pub fn mixer(&mut self, at: &str) -> Result<HyperOf<D>> {
        Ok(Hyper {
            count: self.store.config().hyper.count,
            norm: self.vector(&format!("{at}.hc_norm"))?,
            down: self.matrix(&format!("{at}.input_mix_weight_down"))?,
            up: self.matrix(&format!("{at}.input_mix_weight_up"))?,
            inject: None,
        })
    }

    fn layer(&mut self, at: &str, index: usize, mixer: Mixer) -> Result<Layer<D>> {
        let config = self.store.config();
        let table = config.ple.as_ref().and_then(|p| p.layers.iter().position(|&l| l == index));
        Ok(Layer {
            ngram: table.map(|t| NgramLayer::load(self, &format!("{at}.ple"), t)).transpose()?,
            mix_hyper: self.hyper(&format!("{at}.attn_hyper_connection"))?,
            mix: match mixer {
                Mixer::Delta => Mix::Delta(DeltaLayer::load(self, &format!("{at}.linear_attn"))?),
                Mixer::Attention => {
                    Mix::Attention(AttentionLayer::load(self, &format!("{at}.self_attn"))?)
                }
            },
            moe_hyper: self.hyper(&format!("{at}.mlp_hyper_connection"))?,
            moe: MoeLayer::load(self, &format!("{at}.mlp"), index)?,
        })
    }

    fn draft(&mut self) -> Result<Draft<D>> {
        let config = self.store.config();
        let (index, wide) = (config.layers.len(), config.wide());
        Ok(Draft {
            fold: MtpLayer::load(self)?,
            layer: self.layer("mtp.layers.0", index, Mixer::Attention)?,
            mixer: self.mixer("mtp.hyper_connection_mixer")?,
            hidden: self.device.row_lane(wide, 1),
        })
    }
}

/// The activations of a model; `act` makes one of some width.
fn acts(c: &Config, picks: Picks, mut act: impl FnMut(usize) -> Act) -> Acts {
    let (h, wide) = (c.hidden, c.wide());
    let (a, ple) = (&c.attention, c.ple.as_ref().map_or(0, |p| p.embed_dim));
    let kv = a.kv_heads * a.head_dim;
    let (channels, values, heads) =
        (c.delta.channels(), c.delta.value_width(), c.delta.value_heads);
    Acts {
        embed: act(h),
        stream: act(wide),
        x: act(h),
        y: act(h),
        gate: act(c.hyper.count),
        delta: [channels, channels, values, heads, heads, values].map(&mut act),
        attention: [a.heads * a.head_dim * 2, kv, kv, a.index_width(), a.heads * a.head_dim]
            .map(&mut act),
        picks,
        parts: act(c.moe.top_k * h),
        shared: act(h),
        ngram: [ple, if ple > 0 { wide } else { 0 }, if ple > 0 { h } else { 0 }].map(&mut act),
        draft: [wide; 3].map(&mut act),
    }
}

/// Values per row of every activation of a model, for plans of memory.
pub fn act_widths(config: &Config) -> Vec<usize> {
    let mut widths = Vec::new();
    acts(config, Picks { id: 0, blocks: 0 }, |width| {
        widths.push(width);
        Act { id: 0, width: width as u32 }
    });
    widths
}

impl<D: Device> Model<D> {
    /// Loads a store into `device` and makes room for `rows` rows, `slots` sequences and `pages`
    /// pages of [`Self::page_rows`] rows.
    ///
    /// # Errors
    /// When the store is damaged or the device has no room.
    pub fn load(
        store: &Store,
        device: &mut D,
        draft: LoadDraft,
        (rows, slots, pages): (usize, usize, usize),
    ) -> Result<Self> {
        let config = store.config().clone();
        if config.moe.top_k > config.moe.experts {
            return Err(Error::Unsupported {
                what: "num_experts_per_tok",
                found: config.moe.top_k.to_string(),
                expected: format!("at most num_experts {}", config.moe.experts),
            });
        }
        let limits = Limits { rows, slots, pages, page_rows: Self::page_rows(&config) };
        let mut load = Loader { store, device };
        let embed = load.matrix("embed_tokens")?;
        let layers = config.layers.iter().enumerate();
        let layers = layers.map(|(i, &m)| load.layer(&format!("layers.{i}"), i, m));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let mixer = load.mixer("hyper_connection_mixer")?;
        let head = (!config.tied_embeddings).then(|| load.matrix("lm_head")).transpose()?;
        let wanted = draft == LoadDraft::Yes && config.mtp.is_some();
        let draft = wanted.then(|| load.draft()).transpose()?;
        let picks = load.device.picks(config.attention.budget_blocks());
        let acts = acts(&config, picks, |width| load.device.act(width));
        device.allocate(limits)?;
        Ok(Self { config, embed, layers, mixer, head, draft, acts, limits })
    }

    /// Rows of a page: about 64, and whole blocks.
    pub fn page_rows(config: &Config) -> usize {
        64usize.next_multiple_of(config.attention.index_ratio)
    }

    /// The vocabulary projection.
    pub fn head(&self) -> &D::Matrix {
        self.head.as_ref().unwrap_or(&self.embed)
    }
}
