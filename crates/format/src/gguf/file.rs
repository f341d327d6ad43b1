//! The head of a GGUF file: metadata and the list of tensors.
//!
//! Owns: the byte form of version 3, alignment. Never: what is in it.

use super::blocks::Type;

/// Tensors start at multiples of this many bytes.
pub const ALIGN: u64 = 32;
const VERSION: u32 = 3;

/// A tensor's entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// Sizes, the innermost first.
    pub dims: Vec<u64>,
    /// How its numbers are stored.
    pub kind: Type,
    /// First byte, counted from the end of the head.
    pub offset: u64,
}

/// Metadata in the order of writing.
#[derive(Clone, Debug, Default)]
pub struct Head {
    entries: u64,
    bytes: Vec<u8>,
}

fn text(out: &mut Vec<u8>, value: &str) {
    out.extend((value.len() as u64).to_le_bytes());
    out.extend(value.as_bytes());
}

impl Head {
    fn entry(&mut self, key: &str, kind: u32) -> &mut Vec<u8> {
        self.entries += 1;
        text(&mut self.bytes, key);
        self.bytes.extend(kind.to_le_bytes());
        &mut self.bytes
    }

    fn list(&mut self, key: &str, kind: u32, len: usize) -> &mut Vec<u8> {
        let out = self.entry(key, 9);
        out.extend(kind.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
        out
    }

    /// A whole number.
    pub fn u32(&mut self, key: &str, value: usize) {
        let value = u32::try_from(value).unwrap_or(u32::MAX);
        self.entry(key, 4).extend(value.to_le_bytes());
    }

    /// A number.
    pub fn f32(&mut self, key: &str, value: f64) {
        self.entry(key, 6).extend((value as f32).to_le_bytes());
    }

    /// Yes or no.
    pub fn flag(&mut self, key: &str, value: bool) {
        self.entry(key, 7).push(u8::from(value));
    }

    /// A text.
    pub fn text(&mut self, key: &str, value: &str) {
        text(self.entry(key, 8), value);
    }

    /// Whole numbers of 32 bits.
    pub fn u32s(&mut self, key: &str, values: &[usize]) {
        let out = self.list(key, 4, values.len());
        values.iter().for_each(|&v| out.extend((v as u32).to_le_bytes()));
    }

    /// Signed numbers of 32 bits.
    pub fn i32s(&mut self, key: &str, values: &[i32]) {
        let out = self.list(key, 5, values.len());
        values.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }

    /// Whole numbers of 64 bits.
    pub fn u64s(&mut self, key: &str, values: &[i64]) {
        let out = self.list(key, 10, values.len());
        values.iter().for_each(|v| out.extend(v.to_le_bytes()));
    }

    /// Yes or no, several times.
    pub fn flags(&mut self, key: &str, values: impl ExactSizeIterator<Item = bool>) {
        let out = self.list(key, 7, values.len());
        out.extend(values.map(u8::from));
    }

    /// Texts.
    pub fn texts(&mut self, key: &str, values: &[String]) {
        let out = self.list(key, 8, values.len());
        values.iter().for_each(|v| text(out, v));
    }

    /// The bytes before the first tensor.
    pub fn finish(self, tensors: &[Tensor]) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        out.extend(VERSION.to_le_bytes());
        out.extend((tensors.len() as u64).to_le_bytes());
        out.extend(self.entries.to_le_bytes());
        out.extend(self.bytes);
        for t in tensors {
            text(&mut out, &t.name);
            out.extend((t.dims.len() as u32).to_le_bytes());
            t.dims.iter().for_each(|d| out.extend(d.to_le_bytes()));
            out.extend(t.kind.id().to_le_bytes());
            out.extend(t.offset.to_le_bytes());
        }
        out.resize(out.len().next_multiple_of(ALIGN as usize), 0);
        out
    }
}
