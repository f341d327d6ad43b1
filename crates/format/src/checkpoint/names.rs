//! Spellings of tensor names.
//!
//! Owns: prefixes, suffixes and aliases of checkpoints, turned into canonical names.
//! Never: shapes.

/// Longest first: a shorter one is the beginning of a longer one.
const PREFIXES: [&str; 4] =
    ["model.language_model.", "language_model.model.", "language_model.", "model."];

/// Which part of a tensor a name stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The numbers themselves, or the packed codes.
    Weight,
    /// MLX affine scales.
    Scales,
    /// MLX affine biases.
    Biases,
    /// A scale of a format that is not read.
    Foreign,
}

/// A name understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Name {
    /// Vision tower: left out.
    Vision,
    /// Buffers that are recomputed, such as rotary frequencies: left out.
    Derived,
    /// A text tensor: canonical name and part.
    Text(String, Part),
}

/// Understands the name of a tensor in a checkpoint.
pub fn canonical(raw: &str) -> Name {
    let name = PREFIXES.iter().find_map(|p| raw.strip_prefix(p)).unwrap_or(raw);
    if ["visual.", "vision_tower.", "vision_model."].iter().any(|p| name.starts_with(p)) {
        return Name::Vision;
    }
    if name.ends_with("rotary_emb.inv_freq") {
        return Name::Derived;
    }
    let suffixes = [
        (".weight", Part::Weight),
        (".scales", Part::Scales),
        (".biases", Part::Biases),
        (".weight_scale_inv", Part::Foreign),
        (".weight_scale", Part::Foreign),
        (".weight_scale_2", Part::Foreign),
        (".input_scale", Part::Foreign),
        (".weight_packed", Part::Foreign),
    ];
    let split = suffixes.iter().find_map(|&(s, part)| Some((name.strip_suffix(s)?, part)));
    let (base, part) = split.unwrap_or((name, Part::Weight));
    let base = base
        .replace(".mlp.switch_mlp.", ".mlp.experts.")
        .replace(".ngram_embedding.shards.", ".ngram_embedding.shard_");
    Name::Text(base, part)
}

/// The name that the official checkpoint gives a tensor with this canonical name.
pub fn official(name: &str) -> String {
    let prefix =
        if name.starts_with("mtp.") || name == "lm_head" { "" } else { "model.language_model." };
    let bare = ["A_log", "dt_bias", "gate_up_proj"].iter().any(|end| name.ends_with(end))
        || name.ends_with("experts.down_proj")
        || (name.contains(".ple_embedding.") && !name.contains(".shard_"));
    format!("{prefix}{name}{}", if bare { "" } else { ".weight" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_prefix_leads_to_the_same_name() {
        for prefix in
            ["", "model.", "model.language_model.", "language_model.model.", "language_model."]
        {
            let text = |name: &str, part| {
                assert_eq!(
                    canonical(&format!("{prefix}{name}")),
                    Name::Text("layers.3.self_attn.q_proj".into(), part)
                )
            };
            text("layers.3.self_attn.q_proj.weight", Part::Weight);
            text("layers.3.self_attn.q_proj.scales", Part::Scales);
            text("layers.3.self_attn.q_proj.biases", Part::Biases);
            text("layers.3.self_attn.q_proj.weight_scale_inv", Part::Foreign);
        }
    }

    #[test]
    fn aliases_and_odd_ones() {
        let weight = |raw: &str, base: &str| {
            assert_eq!(canonical(raw), Name::Text(base.into(), Part::Weight));
        };
        weight("language_model.lm_head.weight", "lm_head");
        weight("mtp.fc_hidden.weight", "mtp.fc_hidden");
        weight("model.layers.0.linear_attn.A_log", "layers.0.linear_attn.A_log");
        weight("model.layers.0.mlp.experts.gate_up_proj", "layers.0.mlp.experts.gate_up_proj");
        weight("layers.0.mlp.switch_mlp.up_proj.weight", "layers.0.mlp.experts.up_proj");
        weight(
            "layers.1.ple.ple_embedding.ngram_embedding.shards.7.weight",
            "layers.1.ple.ple_embedding.ngram_embedding.shard_7",
        );
        assert_eq!(canonical("model.visual.blocks.0.weight"), Name::Vision);
        assert_eq!(canonical("vision_tower.patch_embed.weight"), Name::Vision);
    }

    #[test]
    fn official_names_lead_back() {
        for (name, expected) in [
            ("lm_head", "lm_head.weight"),
            ("mtp.fc_hidden", "mtp.fc_hidden.weight"),
            ("layers.0.linear_attn.A_log", "model.language_model.layers.0.linear_attn.A_log"),
            (
                "layers.0.mlp.experts.down_proj",
                "model.language_model.layers.0.mlp.experts.down_proj",
            ),
            (
                "mtp.layers.0.mlp.shared_expert.down_proj",
                "mtp.layers.0.mlp.shared_expert.down_proj.weight",
            ),
            (
                "layers.1.ple.ple_embedding.ngram_embedding.shard_3",
                "model.language_model.layers.1.ple.ple_embedding.ngram_embedding.shard_3.weight",
            ),
            (
                "layers.1.ple.ple_embedding.layer_multipliers",
                "model.language_model.layers.1.ple.ple_embedding.layer_multipliers",
            ),
        ] {
            assert_eq!(official(name), expected);
            assert_eq!(canonical(expected), Name::Text(name.into(), Part::Weight));
        }
    }
}
