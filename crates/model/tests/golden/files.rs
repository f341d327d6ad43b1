//! Golden files.

use safetensors::{Dtype, SafeTensors};
use std::path::{Path, PathBuf};

/// The repository's fixtures.
pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// One prompt of a golden file.
pub struct Prompt {
    /// Prefix of its tensors.
    pub name: String,
    /// Its tokens.
    pub ids: Vec<u32>,
    /// The token after the last one.
    pub bonus: Option<u32>,
    /// Tokens of the chained rows of the draft head.
    pub chain: Vec<u32>,
    /// First row of `mtp_logits`.
    pub draft_from: usize,
    /// What the public implementation writes when greedy.
    pub greedy: Vec<u32>,
}

/// A folder with golden values.
pub struct Golden {
    /// The folder.
    pub dir: PathBuf,
    /// Its prompts.
    pub prompts: Vec<Prompt>,
    bytes: Vec<u8>,
}

fn ids(value: &serde_json::Value) -> Vec<u32> {
    let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
    items.iter().map(|v| v.as_u64().unwrap() as u32).collect()
}

impl Golden {
    /// Reads a folder.
    pub fn open(dir: &Path) -> Self {
        let json = std::fs::read_to_string(dir.join("golden.json")).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!(json["magic"], "cherenkov-golden");
        assert_eq!(json["version"], 1, "regenerate with: {}", json["regenerate"]);
        let prompts = json["prompts"].as_array().unwrap().iter().map(|p| Prompt {
            name: p["name"].as_str().unwrap().to_owned(),
            ids: ids(&p["input_ids"]),
            bonus: p["bonus_token"].as_u64().map(|t| t as u32),
            chain: ids(&p["chain_drafts"]),
            draft_from: p["mtp_first_row"].as_u64().unwrap_or(0) as usize,
            greedy: ids(&p["greedy"]),
        });
        let bytes = std::fs::read(dir.join("golden.safetensors")).unwrap();
        Self { dir: dir.to_owned(), prompts: prompts.collect(), bytes }
    }

    /// Whether there is such a tensor.
    pub fn has(&self, name: &str) -> bool {
        SafeTensors::deserialize(&self.bytes).unwrap().tensor(name).is_ok()
    }

    fn raw(&self, name: &str, dtype: Dtype) -> Option<Vec<u8>> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = file.tensor(name).ok()?;
        assert_eq!(tensor.dtype(), dtype, "{name}");
        Some(tensor.data().to_vec())
    }

    /// An f32 tensor.
    pub fn floats(&self, name: &str) -> Vec<f32> {
        let bytes = self.raw(name, Dtype::F32).unwrap_or_else(|| panic!("no tensor {name}"));
        bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// An i32 tensor.
    pub fn ints(&self, name: &str) -> Vec<i32> {
        let bytes = self.raw(name, Dtype::I32).unwrap_or_else(|| panic!("no tensor {name}"));
        bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().unwrap())).collect()
    }

    /// A u8 tensor, if there.
    pub fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        self.raw(name, Dtype::U8)
    }
}
