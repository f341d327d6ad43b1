//! The verbs as values.
//!
//! Owns: their names. Never: what they do (see [`crate::Device`]).

/// A verb of [`crate::Device`] that computes something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verb {
    /// `embed`
    Embed,
    /// `repeat`
    Repeat,
    /// `add_repeat`
    AddRepeat,
    /// `norm`
    Norm,
    /// `linear`
    Linear,
    /// `linear_streams`
    LinearStreams,
    /// `hyper_read`
    HyperRead,
    /// `hyper_write`
    HyperWrite,
    /// `hyper_turn`
    HyperTurn,
    /// `conv_silu`
    ConvSilu,
    /// `delta`
    Delta,
    /// `kv_append`
    KvAppend,
    /// `select`
    Select,
    /// `attend`
    Attend,
    /// `route`
    Route,
    /// `experts`
    Experts,
    /// `shared_expert`
    SharedExpert,
    /// `combine`
    Combine,
    /// `ngram_add`
    NgramAdd,
    /// `keep`
    Keep,
    /// `recall`
    Recall,
    /// `logits`
    Logits,
}

impl Verb {
    /// Every verb, in the order of the trait.
    pub const ALL: [Self; 22] = [
        Self::Embed,
        Self::Repeat,
        Self::AddRepeat,
        Self::Norm,
        Self::Linear,
        Self::LinearStreams,
        Self::HyperRead,
        Self::HyperWrite,
        Self::HyperTurn,
        Self::ConvSilu,
        Self::Delta,
        Self::KvAppend,
        Self::Select,
        Self::Attend,
        Self::Route,
        Self::Experts,
        Self::SharedExpert,
        Self::Combine,
        Self::NgramAdd,
        Self::Keep,
        Self::Recall,
        Self::Logits,
    ];

    /// The method's name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embed => "embed",
            Self::Repeat => "repeat",
            Self::AddRepeat => "add_repeat",
            Self::Norm => "norm",
            Self::Linear => "linear",
            Self::LinearStreams => "linear_streams",
            Self::HyperRead => "hyper_read",
            Self::HyperWrite => "hyper_write",
            Self::HyperTurn => "hyper_turn",
            Self::ConvSilu => "conv_silu",
            Self::Delta => "delta",
            Self::KvAppend => "kv_append",
            Self::Select => "select",
            Self::Attend => "attend",
            Self::Route => "route",
            Self::Experts => "experts",
            Self::SharedExpert => "shared_expert",
            Self::Combine => "combine",
            Self::NgramAdd => "ngram_add",
            Self::Keep => "keep",
            Self::Recall => "recall",
            Self::Logits => "logits",
        }
    }
}

impl std::fmt::Display for Verb {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
