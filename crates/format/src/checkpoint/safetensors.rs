//! The header of one safetensors file.
//!
//! Owns: the container format: header length, JSON, data types, offsets. Never: tensor bytes.
//! Invariant: every span of a returned header lies within the file, matches its shape and data
//! type, and overlaps no other.

use crate::error::{Error, Result};
use crate::pio;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};
use std::collections::HashSet;
use std::fmt;
use std::fs::File;
use std::path::Path;

/// The reference implementation refuses longer headers too.
const HEADER_BYTES_MAX: u64 = 100_000_000;
const RANK_MAX: usize = 8;
const REMEDY: &str = "download the file again";

/// Data type of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dtype {
    /// 32-bit float.
    F32,
    /// IEEE half.
    F16,
    /// bfloat16.
    Bf16,
    /// Words of packed codes.
    U32,
    /// Hash constants.
    I64,
    /// 8-bit float of FP8 checkpoints; recognised, not read.
    F8,
    /// Bytes; packed 4-bit floats of NVFP4 and MXFP4 checkpoints; recognised, not read.
    U8,
    /// Anything else that the container allows.
    Other {
        /// Bytes of one value.
        size: u64,
    },
}

impl Dtype {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "F32" => Self::F32,
            "F16" => Self::F16,
            "BF16" => Self::Bf16,
            "U32" => Self::U32,
            "I64" => Self::I64,
            "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Self::F8,
            "U8" => Self::U8,
            "I8" | "BOOL" => Self::Other { size: 1 },
            "I16" | "U16" => Self::Other { size: 2 },
            "I32" => Self::Other { size: 4 },
            "U64" | "F64" | "C64" => Self::Other { size: 8 },
            _ => return None,
        })
    }

    /// Bytes of one value.
    pub fn size(self) -> u64 {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::I64 => 8,
            Self::F8 | Self::U8 => 1,
            Self::Other { size } => size,
        }
    }

    /// Whether values are floats that this crate reads.
    pub fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

/// One tensor of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Data type.
    pub dtype: Dtype,
    /// Shape; empty for a scalar.
    pub shape: Vec<u64>,
    /// First byte, counted from the start of the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The header in file order, with duplicate names refused.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(
                self,
                mut map: A,
            ) -> std::result::Result<Header, A::Error> {
                let mut seen = HashSet::new();
                let mut entries = Vec::new();
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("tensor {name:?} twice")));
                    }
                    if name == "__metadata__" {
                        map.next_value::<IgnoredAny>()?;
                    } else {
                        entries.push((name, map.next_value()?));
                    }
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Names)
    }
}

fn bad(
    path: &Path,
    subject: impl Into<String>,
    found: impl Into<String>,
    expected: impl Into<String>,
) -> Error {
    Error::invalid(path, subject, found, expected, REMEDY)
}

/// Reads and checks the header of `file`.
pub fn read_header(file: &File, path: &Path) -> Result<Vec<TensorInfo>> {
    let len = file.metadata().map_err(|e| Error::io(path, "ask the size", e))?.len();
    if len < 8 {
        return Err(bad(path, "size", format!("{len} bytes"), "at least the 8 of a header length"));
    }
    let mut head = [0; 8];
    pio::read_exact_at(file, path, 0, &mut head)?;
    let header_len = u64::from_le_bytes(head);
    if header_len > HEADER_BYTES_MAX || header_len > len - 8 {
        let expected = format!("at most {}", HEADER_BYTES_MAX.min(len - 8));
        return Err(bad(path, "header length", header_len.to_string(), expected));
    }
    let mut text = vec![0; header_len as usize];
    pio::read_exact_at(file, path, 8, &mut text)?;
    let header: Header = serde_json::from_slice(&text)
        .map_err(|e| bad(path, "header", e.to_string(), "an object of tensors"))?;
    let start = 8 + header_len;
    let mut tensors = Vec::with_capacity(header.0.len());
    for (name, entry) in header.0 {
        tensors.push(check_entry(path, name, &entry, start, len)?);
    }
    check_cover(path, &tensors, start, len)?;
    Ok(tensors)
}

fn check_entry(
    path: &Path,
    name: String,
    entry: &Entry,
    start: u64,
    len: u64,
) -> Result<TensorInfo> {
    let subject = || format!("tensor {name}");
    let Some(dtype) = Dtype::parse(&entry.dtype) else {
        let expected = "a known data type such as BF16, F16, F32, U32 or I64";
        return Err(bad(path, subject(), format!("data type {:?}", entry.dtype), expected));
    };
    if entry.shape.len() > RANK_MAX {
        let found = format!("{} dimensions", entry.shape.len());
        return Err(bad(path, subject(), found, format!("at most {RANK_MAX}")));
    }
    let [begin, end] = entry.data_offsets;
    if begin > end {
        return Err(bad(
            path,
            subject(),
            format!("data {begin}..{end}"),
            "a range that ends after it begins",
        ));
    }
    let data = len - start;
    if end > data {
        let found = format!("{data} bytes of data in the file");
        return Err(bad(path, subject(), found, format!("{end}: the file is truncated")));
    }
    let count = entry.shape.iter().try_fold(1u64, |n, &d| n.checked_mul(d));
    let bytes = count.and_then(|n| n.checked_mul(dtype.size()));
    if bytes != Some(end - begin) {
        let found = format!("{} bytes", end - begin);
        let expected = bytes.map_or_else(|| "a shape that fits".into(), |b| b.to_string());
        let expected = format!("{expected} for {} {:?}", entry.dtype, entry.shape);
        return Err(bad(path, subject(), found, expected));
    }
    Ok(TensorInfo {
        dtype,
        shape: entry.shape.clone(),
        offset: start + begin,
        bytes: end - begin,
        name,
    })
}

/// The tensors must cover the data exactly: no overlap, no hole, nothing after the last.
fn check_cover(path: &Path, tensors: &[TensorInfo], start: u64, len: u64) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().collect();
    order.sort_by_key(|t| (t.offset, t.bytes));
    let mut at = start;
    for t in order {
        if t.offset != at {
            let found = format!("data from byte {}", t.offset - start);
            let what =
                if t.offset < at { "after the tensor it overlaps" } else { "without a hole" };
            let expected = format!("{}, {what}", at - start);
            return Err(bad(path, format!("tensor {}", t.name), found, expected));
        }
        at += t.bytes;
    }
    if at != len {
        let found = format!("{len} bytes");
        return Err(bad(path, "size", found, format!("{at}, the end of the last tensor")));
    }
    Ok(())
}
