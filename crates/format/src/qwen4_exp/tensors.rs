//! The canonical list of dense tensors: name, shape and kind of each.
//!
//! Owns: canonical names (the official ones without prefix and `.weight`) and shapes. The packer
//! writes exactly this list, the loader reads exactly this list.
//! Never: expert and n-gram table tensors (they live in files of their own).

use super::config::{Config, Mixer};

/// What a dense tensor is for; decides its precision in a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A projection `[out, in]`: quantised.
    Linear,
    /// A mixing projection of a hyper-connection: quantised to 8 bits or better. Its errors reach
    /// every stream of the residual, twice a layer; at 4 bits they cost more than they save.
    Mix,
    /// The token embedding or lm_head `[vocab, hidden]`: quantised.
    Vocab,
    /// A router or a small gate projection: kept at 16 bits or better.
    Gate,
    /// A zero-centred norm: the store holds the effective weight `1 + w` in f32.
    Norm,
    /// Convolution taps, decay constants and the plain norm inside DeltaNet: f32 as they are.
    Plain,
}

/// One dense tensor of the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorSpec {
    /// Canonical name.
    pub name: String,
    /// Output rows; 1 for vectors.
    pub rows: usize,
    /// Inputs; the length of vectors.
    pub cols: usize,
    /// What it is for.
    pub kind: Kind,
}

struct List(Vec<TensorSpec>);

impl List {
    fn add(&mut self, name: String, rows: usize, cols: usize, kind: Kind) {
        self.0.push(TensorSpec { name, rows, cols, kind });
    }

    fn hyper(&mut self, at: &str, c: &Config) {
        let wide = c.wide();
        self.add(format!("{at}.hc_norm"), 1, wide, Kind::Norm);
        self.add(format!("{at}.input_mix_weight_down"), c.hyper.rank, wide, Kind::Mix);
        self.add(format!("{at}.input_mix_weight_up"), wide, c.hyper.rank, Kind::Mix);
    }

    fn delta(&mut self, at: &str, c: &Config) {
        let (h, d) = (c.hidden, &c.delta);
        self.add(format!("{at}.in_proj_qkv"), d.channels(), h, Kind::Linear);
        self.add(format!("{at}.in_proj_z"), d.value_width(), h, Kind::Linear);
        self.add(format!("{at}.in_proj_a"), d.value_heads, h, Kind::Gate);
        self.add(format!("{at}.in_proj_b"), d.value_heads, h, Kind::Gate);
        self.add(format!("{at}.conv1d"), d.channels(), d.conv_kernel, Kind::Plain);
        self.add(format!("{at}.A_log"), 1, d.value_heads, Kind::Plain);
        self.add(format!("{at}.dt_bias"), 1, d.value_heads, Kind::Plain);
        self.add(format!("{at}.norm"), 1, d.value_dim, Kind::Plain);
        self.add(format!("{at}.out_proj"), h, d.value_width(), Kind::Linear);
    }

    fn attention(&mut self, at: &str, c: &Config) {
        let (h, a) = (c.hidden, &c.attention);
        self.add(format!("{at}.q_proj"), a.heads * a.head_dim * 2, h, Kind::Linear);
        self.add(format!("{at}.k_proj"), a.kv_heads * a.head_dim, h, Kind::Linear);
        self.add(format!("{at}.v_proj"), a.kv_heads * a.head_dim, h, Kind::Linear);
        self.add(format!("{at}.o_proj"), h, a.heads * a.head_dim, Kind::Linear);
        self.add(format!("{at}.q_norm"), 1, a.head_dim, Kind::Norm);
        self.add(format!("{at}.k_norm"), 1, a.head_dim, Kind::Norm);
        self.add(format!("{at}.indexer.index_qk_proj"), a.index_width(), h, Kind::Linear);
        self.add(format!("{at}.indexer.q_layernorm"), 1, a.index_dim, Kind::Norm);
        self.add(format!("{at}.indexer.k_layernorm"), 1, a.index_dim, Kind::Norm);
    }

    fn moe(&mut self, at: &str, c: &Config) {
        let (h, m) = (c.hidden, &c.moe);
        self.add(format!("{at}.gate"), m.experts, h, Kind::Gate);
        self.add(format!("{at}.shared_expert.gate_proj"), m.shared_width, h, Kind::Linear);
        self.add(format!("{at}.shared_expert.up_proj"), m.shared_width, h, Kind::Linear);
        self.add(format!("{at}.shared_expert.down_proj"), h, m.shared_width, Kind::Linear);
        self.add(format!("{at}.shared_expert_gate"), 1, h, Kind::Gate);
    }

    fn layer(&mut self, at: &str, mixer: Mixer, c: &Config) {
        for half in ["attn", "mlp"] {
            let hyper = format!("{at}.{half}_hyper_connection");
            self.hyper(&hyper, c);
            let count = c.hyper.count;
            self.add(format!("{hyper}.block_inject_weight"), count, c.wide(), Kind::Gate);
        }
        match mixer {
            Mixer::Delta => self.delta(&format!("{at}.linear_attn"), c),
            Mixer::Attention => self.attention(&format!("{at}.self_attn"), c),
        }
        self.moe(&format!("{at}.mlp"), c);
    }

    fn ple(&mut self, at: &str, c: &Config) {
        let Some(ple) = &c.ple else { return };
        let wide = c.wide();
        self.add(format!("{at}.key_proj"), wide, ple.embed_dim, Kind::Linear);
        self.add(format!("{at}.value_proj"), c.hidden, ple.embed_dim, Kind::Linear);
        for norm in ["norm_key", "norm_query", "norm_conv"] {
            self.add(format!("{at}.{norm}"), 1, wide, Kind::Norm);
        }
        self.add(format!("{at}.conv1d"), wide, ple.conv_kernel, Kind::Plain);
    }
}

/// Every dense tensor of a model with this configuration, in store order.
pub fn dense(c: &Config) -> Vec<TensorSpec> {
    let mut list = List(Vec::new());
    list.add("embed_tokens".into(), c.vocab, c.hidden, Kind::Vocab);
    for (i, &mixer) in c.layers.iter().enumerate() {
        let at = format!("layers.{i}");
        if c.ple.as_ref().is_some_and(|p| p.layers.contains(&i)) {
            list.ple(&format!("{at}.ple"), c);
        }
        list.layer(&at, mixer, c);
    }
    list.hyper("hyper_connection_mixer", c);
    if !c.tied_embeddings {
        list.add("lm_head".into(), c.vocab, c.hidden, Kind::Vocab);
    }
    if c.mtp.is_some() {
        list.add("mtp.pre_fc_norm_embedding".into(), 1, c.hidden, Kind::Norm);
        list.add("mtp.pre_fc_norm_hidden".into(), 1, c.wide(), Kind::Norm);
        list.add("mtp.fc_embedding".into(), c.hidden, c.hidden, Kind::Linear);
        list.add("mtp.fc_hidden".into(), c.hidden, c.hidden, Kind::Linear);
        list.layer("mtp.layers.0", Mixer::Attention, c);
        list.hyper("mtp.hyper_connection_mixer", c);
    }
    list.0
}
