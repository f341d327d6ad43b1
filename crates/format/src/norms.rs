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
