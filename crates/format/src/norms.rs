//! What the norm weights of a checkpoint mean.
//!
//! Owns: the groups of norms, the two conventions, and the decision between them from the means of
//! all tensors of a group. Never: reading tensors.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Norms that a converter treats alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NormGroup {
    /// Hyper-connections, query and key norms of the trunk.
    Trunk,
    /// Norms of the n-gram blocks.
    Ple,
    /// Query and key norms of the trunk's indexers.
    Indexer,
    /// Everything within the draft head's layer, and its mixer.
    MtpLayer,
    /// The two norms at the draft head's input.
    MtpInputs,
}

impl NormGroup {
    /// Every group.
    pub const ALL: [Self; 5] =
        [Self::Trunk, Self::Ple, Self::Indexer, Self::MtpLayer, Self::MtpInputs];

    /// The group of a norm, by canonical name.
    pub fn of(name: &str) -> Self {
        if name.starts_with("mtp.pre_fc_") {
            Self::MtpInputs
        } else if name.starts_with("mtp.") {
            Self::MtpLayer
        } else if name.contains(".ple.") {
            Self::Ple
        } else if name.contains(".indexer.") {
            Self::Indexer
        } else {
            Self::Trunk
        }
    }

    /// The name in options and messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Trunk => "trunk",
            Self::Ple => "ple",
            Self::Indexer => "indexer",
            Self::MtpLayer => "mtp_layer",
            Self::MtpInputs => "mtp_inputs",
        }
    }
}

/// What a checkpoint stores for a norm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Convention {
    /// `w`, to which 1 has to be added.
    Raw,
    /// `1 + w` already.
    Shifted,
}

/// Conventions that the user imposes, by group; groups without one are decided from the weights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NormOverride(pub BTreeMap<NormGroup, Convention>);

impl NormOverride {
    /// The same convention for every group.
    pub fn all(convention: Convention) -> Self {
        Self(NormGroup::ALL.iter().map(|&group| (group, convention)).collect())
    }
}

impl FromStr for NormOverride {
    type Err = String;

    /// Parses `auto`, `raw`, `shifted`, or a list such as `trunk=shifted,mtp_inputs=raw`.
    fn from_str(text: &str) -> Result<Self, String> {
        let convention = |word: &str| match word {
            "raw" => Ok(Convention::Raw),
            "shifted" => Ok(Convention::Shifted),
            _ => Err(format!("found {word:?}, expected raw or shifted")),
        };
        match text {
            "auto" => return Ok(Self::default()),
            "raw" | "shifted" => return Ok(Self::all(convention(text)?)),
            _ => {}
        }
        let mut map = BTreeMap::new();
        for part in text.split(',') {
            let (name, word) = part.split_once('=').ok_or_else(|| {
                format!("found {part:?}, expected auto, raw, shifted or group=raw")
            })?;
            let group = NormGroup::ALL.into_iter().find(|g| g.name() == name).ok_or_else(|| {
                let names = NormGroup::ALL.map(NormGroup::name);
                format!("found norm group {name:?}, expected one of {names:?}")
            })?;
            map.insert(group, convention(word)?);
        }
        Ok(Self(map))
    }
}

impl fmt::Display for NormGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What was measured on one norm tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct NormStat {
    /// Canonical name.
    pub name: String,
    /// Mean of its values.
    pub mean: f64,
    /// Share of its values below zero.
    pub negative: f64,
}

/// What was decided for a group, with the evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Evidence {
    /// Which norms.
    pub group: NormGroup,
    /// The decision.
    pub convention: Convention,
    /// Median over the tensors' means.
    pub mean: f64,
    /// Share of negative values over all tensors.
    pub negative: f64,
    /// Tensors in the group.
    pub tensors: usize,
}

/// Medians between these are no evidence by themselves.
const UNSURE: std::ops::Range<f64> = 0.35..0.65;
/// Effective weights are hardly ever negative; raw ones often are.
const NEGATIVE_SHARE: f64 = 0.05;

/// The convention of one tensor, where it leaves no doubt.
fn clear(stat: &NormStat) -> Option<Convention> {
    if stat.mean < UNSURE.start && stat.negative > NEGATIVE_SHARE {
        Some(Convention::Raw)
    } else if stat.mean > UNSURE.end && stat.negative < 0.01 {
        Some(Convention::Shifted)
    } else {
        None
    }
}

/// Tensors so alike that a checkpoint which treats them differently is broken: the per-layer
/// hyper-connection norms, the norms of the n-gram blocks, the two inputs of the draft head. (Final
/// mixers and query and key norms may lie anywhere.)
fn uniform(name: &str) -> bool {
    name.ends_with("_hyper_connection.hc_norm")
        || name.contains(".ple.")
        || name.starts_with("mtp.pre_fc_")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = ((values.len() - 1) / 2, values.len() / 2);
    (values[low] + values[high]) / 2.0
}

/// Decides each group that has tensors. The error says what speaks against a decision; the caller
/// adds file and remedy.
pub fn decide(stats: &[NormStat], imposed: &NormOverride) -> Result<Vec<Evidence>, String> {
    let mut decisions = Vec::new();
    for group in NormGroup::ALL {
        let of: Vec<&NormStat> = stats.iter().filter(|s| NormGroup::of(&s.name) == group).collect();
        if of.is_empty() {
            continue;
        }
        let mean = median(of.iter().map(|s| s.mean).collect());
        let negative = of.iter().map(|s| s.negative).sum::<f64>() / of.len() as f64;
        let convention = match imposed.0.get(&group) {
            Some(&convention) => convention,
            None => judge(group, &of, mean, negative)?,
        };
        decisions.push(Evidence { group, convention, mean, negative, tensors: of.len() });
    }
    Ok(decisions)
}

fn judge(
    group: NormGroup,
    of: &[&NormStat],
    mean: f64,
    negative: f64,
) -> Result<Convention, String> {
    let one = |c: Convention| of.iter().find(|s| uniform(&s.name) && clear(s) == Some(c));
    if let (Some(raw), Some(shifted)) = (one(Convention::Raw), one(Convention::Shifted)) {
        return Err(format!(
            "norm group {group} is mixed: {} has mean {:.3} and {} has {:.3}",
            raw.name, raw.mean, shifted.name, shifted.mean
        ));
    }
    if UNSURE.contains(&mean) && negative <= NEGATIVE_SHARE {
        return Err(format!(
            "norm group {group} has median mean {mean:.3} and no negative weights"
        ));
    }
    let raw = mean < UNSURE.start || (UNSURE.contains(&mean) && negative > NEGATIVE_SHARE);
    Ok(if raw { Convention::Raw } else { Convention::Shifted })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(name: &str, mean: f64, negative: f64) -> NormStat {
        NormStat { name: name.into(), mean, negative }
    }

    fn check(stats: &[NormStat], imposed: &str, want: Result<Convention, &str>) {
        let got = decide(stats, &imposed.parse().unwrap());
        match (got, want) {
            (Ok(d), Ok(c)) => assert_eq!(d[0].convention, c, "{stats:?}"),
            (Err(e), Err(part)) => assert!(e.contains(part), "{e}"),
            (got, want) => panic!("{stats:?}: {got:?}, not {want:?}"),
        }
    }

    #[test]
    fn groups_are_told_by_name() {
        for (name, group) in [
            ("layers.3.self_attn.q_norm", NormGroup::Trunk),
            ("layers.3.self_attn.indexer.q_layernorm", NormGroup::Indexer),
            ("layers.1.ple.norm_key", NormGroup::Ple),
            ("mtp.layers.0.self_attn.indexer.q_layernorm", NormGroup::MtpLayer),
            ("mtp.hyper_connection_mixer.hc_norm", NormGroup::MtpLayer),
            ("mtp.pre_fc_norm_hidden", NormGroup::MtpInputs),
            ("hyper_connection_mixer.hc_norm", NormGroup::Trunk),
        ] {
            assert_eq!(NormGroup::of(name), group, "{name}");
        }
    }

    #[test]
    fn decisions_follow_the_evidence() {
        let hc = |i: usize, mean, negative| {
            stat(&format!("layers.{i}.attn_hyper_connection.hc_norm"), mean, negative)
        };
        let mixer = |mean| stat("hyper_connection_mixer.hc_norm", mean, 0.0);
        check(&[hc(0, -0.04, 0.6), hc(1, 0.1, 0.3), mixer(0.7)], "auto", Ok(Convention::Raw));
        check(&[hc(0, 0.96, 0.0), hc(1, 1.1, 0.0), mixer(1.7)], "auto", Ok(Convention::Shifted));
        check(&[hc(0, 0.5, 0.2)], "auto", Ok(Convention::Raw));
        check(&[hc(0, 0.5, 0.0)], "auto", Err("no negative weights"));
        check(&[hc(0, 0.5, 0.0)], "trunk=shifted", Ok(Convention::Shifted));
        check(&[hc(0, 0.0, 0.5), hc(1, 1.0, 0.0)], "auto", Err("mixed"));
        check(&[hc(0, 0.0, 0.5), hc(1, 1.0, 0.0)], "raw", Ok(Convention::Raw));
        check(&[hc(0, 0.96, 0.0)], "raw", Ok(Convention::Raw));
    }

    #[test]
    fn inputs_of_the_draft_head_are_judged_apart() {
        let stats = [
            stat("layers.0.mlp_hyper_connection.hc_norm", 0.96, 0.0),
            stat("mtp.layers.0.mlp_hyper_connection.hc_norm", 0.97, 0.0),
            stat("mtp.pre_fc_norm_embedding", -0.3, 1.0),
            stat("mtp.pre_fc_norm_hidden", 0.0, 0.5),
        ];
        let got: Vec<_> = decide(&stats, &NormOverride::default())
            .unwrap()
            .iter()
            .map(|e| (e.group, e.convention))
            .collect();
        let want = [
            (NormGroup::Trunk, Convention::Shifted),
            (NormGroup::MtpLayer, Convention::Shifted),
            (NormGroup::MtpInputs, Convention::Raw),
        ];
        assert_eq!(got, want);
    }

    #[test]
    fn overrides_are_parsed_or_refused() {
        assert_eq!("auto".parse(), Ok(NormOverride::default()));
        assert_eq!("raw".parse(), Ok(NormOverride::all(Convention::Raw)));
        let list: NormOverride = "trunk=shifted,mtp_inputs=raw".parse().unwrap();
        assert_eq!(list.0[&NormGroup::MtpInputs], Convention::Raw);
        for bad in ["", "maybe", "trunk", "trunk=1", "tail=raw"] {
            assert!(bad.parse::<NormOverride>().is_err(), "{bad}");
        }
    }
}
