//! The manifest of a store: what lies where, in which encoding, with which checksum.
//!
//! Owns: the wire form of manifest.json, its version and its own checksum. Never: bulk bytes.
//! Invariant: a manifest that [`read`] returns has been checked against the geometry of its
//! configuration, so nobody downstream needs to doubt a size or an offset.
//!
//! The file is three parts: a first line `{`, a second line with the checksum of everything after
//! that line, and the rest of a JSON object. See docs/store-format.md.

use crate::checksum::{Checksums, checksum, parse_hex};
use crate::encoding::Encoding;
use crate::error::{Error, Result};
use crate::norms::{Convention, NormGroup};
use crate::qwen4_exp::config::Config;
use crate::qwen4_exp::hash::HashTable;
use crate::qwen4_exp::tensors;
use crate::record::RecordLayout;
use crate::rows::RowEncoding;
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Value of the `format` field.
pub const FORMAT: &str = "cherenkov-store";
/// The version of a store that holds its experts at one precision.
pub const VERSION: u32 = 1;
/// The version of a store that holds its experts at several: readers of version 1 know nothing of
/// [`Manifest::other_experts`] and refuse it.
pub const VERSION_MANY: u32 = 2;
/// Name of the manifest within a store.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Name of the file of dense tensors.
pub const DENSE_FILE: &str = "dense.bin";
/// Name of the file of expert records at the default precision.
pub const EXPERTS_FILE: &str = "experts.bin";
/// Dense tensors start at multiples of this many bytes.
pub const DENSE_ALIGN: u64 = 64;
/// Files that a store may carry besides its own.
pub const SIDE_FILES: [&str; 5] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
];

const MANIFEST_BYTES_MAX: u64 = 1 << 28;
const REPACK: &str = "pack the checkpoint again";

/// Name of the file of the `index`-th n-gram table.
pub fn ngram_file(index: usize) -> String {
    format!("ngram-{index}.bin")
}

/// Name of the file of expert records that have this layout beside the default one.
pub fn other_experts_file(layout: &RecordLayout) -> String {
    match layout.code_bits() {
        Some(bits) => format!("experts-{}.bin", bits.get()),
        None => "experts-16.bin".to_owned(),
    }
}

/// Everything manifest.json says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`FORMAT`].
    pub format: String,
    /// [`VERSION`] or [`VERSION_MANY`].
    pub version: u32,
    /// Geometry and constants.
    pub config: Config,
    /// Hash constants, one per PLE layer.
    pub hash_tables: Vec<HashTable>,
    /// The dense tensors.
    pub dense: DenseSection,
    /// The expert records at the default precision.
    pub experts: ExpertSection,
    /// The same experts at other precisions; absent in version 1, some in version 2.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_experts: Vec<ExpertSection>,
    /// One n-gram table per PLE layer.
    pub ngram: Vec<NgramSection>,
    /// Tokenizer, template and generation config, copied as they were.
    pub files: Vec<FileEntry>,
    /// How each group of norms was read.
    pub norms: Vec<NormDecision>,
    /// Where the numbers came from.
    pub source: SourceInfo,
    /// What the packer had to say.
    pub notes: Vec<String>,
}

impl Manifest {
    /// The expert records at every precision, the default first.
    pub fn all_experts(&self) -> impl Iterator<Item = &ExpertSection> {
        std::iter::once(&self.experts).chain(&self.other_experts)
    }
}

/// The file of dense tensors.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DenseSection {
    /// [`DENSE_FILE`].
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// The tensors in the order of [`tensors::dense`].
    pub tensors: Vec<TensorEntry>,
}

/// One dense tensor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TensorEntry {
    /// Canonical name.
    pub name: String,
    /// Output rows.
    pub rows: usize,
    /// Inputs per row.
    pub cols: usize,
    /// Layout of the bytes.
    pub encoding: Encoding,
    /// First byte in the file.
    pub offset: u64,
    /// Rows per checksum; the last chunk may be shorter.
    pub chunk_rows: usize,
    /// One checksum per chunk.
    pub checksums: Checksums,
}

impl TensorEntry {
    /// Bytes of the tensor, or `None` when shape and encoding do not fit.
    pub fn byte_len(&self) -> Option<u64> {
        Some(self.encoding.byte_len(self.rows, self.cols)? as u64)
    }
}

/// A file of expert records, all of one layout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpertSection {
    /// [`EXPERTS_FILE`], or see [`other_experts_file`].
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// Layout of every record.
    pub layout: RecordLayout,
    /// Bytes of a record; also the distance from one record to the next.
    pub record_bytes: u64,
    /// Layers with experts: the trunk's, then the draft head's.
    pub layers: usize,
    /// Experts of a layer.
    pub per_layer: usize,
    /// One list per layer, one checksum per record.
    pub checksums: Vec<Checksums>,
}

/// The file of one n-gram table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NgramSection {
    /// See [`ngram_file`].
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// Rows, padding included.
    pub rows: u64,
    /// Values per row.
    pub width: usize,
    /// Layout of a row.
    pub encoding: RowEncoding,
    /// Bytes of a row.
    pub row_bytes: u64,
    /// Rows per checksum; the last chunk may be shorter.
    pub chunk_rows: u64,
    /// One checksum per chunk.
    pub checksums: Checksums,
}

/// A file copied from the checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// One of [`SIDE_FILES`].
    pub file: String,
    /// Length of the file.
    pub bytes: u64,
    /// Its one checksum.
    pub checksum: Checksums,
}

/// How one group of norms was read.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NormDecision {
    /// Which norms.
    pub group: NormGroup,
    /// What the checkpoint stores for them.
    pub convention: Convention,
    /// Median over the means of the group's tensors, as stored in the checkpoint.
    pub mean: f64,
    /// Share of negative values over all of them.
    pub negative: f64,
    /// Tensors in the group.
    pub tensors: usize,
    /// Whether the user chose the convention.
    pub origin: Origin,
}

/// Who decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// The means of the tensors.
    Evidence,
    /// An option of the user.
    Override,
}

/// Where the numbers came from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceInfo {
    /// `model_type` of config.json.
    pub model_type: String,
    /// `float`, `mlx-affine` or `synthetic`.
    pub format: String,
    /// Bytes of all weight files.
    pub bytes: u64,
    /// Digest of file names, sizes, times, configuration and options; a resumed pack must agree.
    pub identity: Checksums,
}

fn damaged(path: &Path, subject: &str, found: String, expected: String) -> Error {
    Error::invalid(path, subject, found, expected, REPACK)
}

/// Writes the bytes of manifest.json.
pub fn to_bytes(manifest: &Manifest) -> Vec<u8> {
    let text = serde_json::to_string_pretty(manifest).expect("a manifest serialises");
    let rest = text.strip_prefix("{\n").expect("a pretty object opens with a line");
    format!("{{\n  \"checksum\": \"{:016x}\",\n{rest}\n", checksum(rest_bytes(rest).as_bytes()))
        .into_bytes()
}

/// What the checksum covers: the text after the second line, with its final newline.
fn rest_bytes(rest: &str) -> String {
    format!("{rest}\n")
}

const HEAD: &[u8] = b"{\n  \"checksum\": \"";
const HEAD_END: &[u8] = b"\",\n";

/// Just enough to tell versions apart before anything else is judged.
#[derive(Deserialize)]
struct Peek {
    format: Option<String>,
    version: Option<u64>,
}

/// Parses and checks the bytes of a manifest; `path` is for messages.
pub fn from_bytes(path: &Path, bytes: &[u8]) -> Result<Manifest> {
    let peek: Peek = serde_json::from_slice(bytes)
        .map_err(|e| damaged(path, "json", e.to_string(), "a manifest".into()))?;
    if peek.format.as_deref() != Some(FORMAT) {
        let found = peek.format.unwrap_or_else(|| "no format".into());
        return Err(Error::invalid(path, "format", found, FORMAT, "name a store made by `pack`"));
    }
    let known = [VERSION, VERSION_MANY].map(u64::from);
    if peek.version.is_none_or(|version| !known.contains(&version)) {
        return Err(Error::invalid(
            path,
            "version",
            peek.version.map_or_else(|| "none".into(), |v| v.to_string()),
            format!("{VERSION} or {VERSION_MANY}"),
            "pack again with this program, or use the one that made the store",
        ));
    }
    let body = checked_body(path, bytes)?;
    let manifest: Manifest = serde_json::from_slice(&[b"{\n", body].concat())
        .map_err(|e| damaged(path, "json", e.to_string(), "the fields of its version".into()))?;
    check(path, &manifest)?;
    Ok(manifest)
}

fn checked_body<'a>(path: &Path, bytes: &'a [u8]) -> Result<&'a [u8]> {
    let parts = bytes.strip_prefix(HEAD).and_then(|rest| {
        let (digits, rest) = rest.split_at_checked(16)?;
        Some((parse_hex(digits)?, rest.strip_prefix(HEAD_END)?))
    });
    let Some((expected, body)) = parts else {
        let found = "another head".to_string();
        return Err(damaged(path, "checksum", found, "a second line with 16 hex digits".into()));
    };
    let found = checksum(body);
    if found != expected {
        return Err(damaged(path, "checksum", format!("{found:016x}"), format!("{expected:016x}")));
    }
    Ok(body)
}

/// Reads and checks the manifest of the store in `dir`.
pub fn read(dir: &Path) -> Result<Manifest> {
    let path = dir.join(MANIFEST_FILE);
    let file = File::open(&path).map_err(|e| Error::io(&path, "open", e))?;
    let mut bytes = Vec::new();
    file.take(MANIFEST_BYTES_MAX + 1)
        .read_to_end(&mut bytes)
        .map_err(|e| Error::io(&path, "read", e))?;
    if bytes.len() as u64 > MANIFEST_BYTES_MAX {
        let expected = format!("at most {MANIFEST_BYTES_MAX} bytes");
        return Err(damaged(&path, "size", "a larger file".into(), expected));
    }
    from_bytes(&path, &bytes)
}

/// Compares what the manifest says with what its configuration demands.
fn check(path: &Path, m: &Manifest) -> Result<()> {
    m.config
        .validate()
        .map_err(|e| Error::invalid(path, "config", e, "a usable geometry", REPACK))?;
    let expect = |subject: &str, found: String, expected: String| {
        if found == expected { Ok(()) } else { Err(damaged(path, subject, found, expected)) }
    };
    let tables = HashTable::all(&m.config);
    expect("hash_tables", format!("{:?}", m.hash_tables), format!("{tables:?}"))?;
    check_dense(path, m)?;
    check_experts(path, &m.config, "experts", &m.experts, EXPERTS_FILE.into())?;
    let version = if m.other_experts.is_empty() { VERSION } else { VERSION_MANY };
    expect("version", m.version.to_string(), version.to_string())?;
    for (i, x) in m.other_experts.iter().enumerate() {
        let subject = format!("other_experts[{i}]");
        check_experts(path, &m.config, &subject, x, other_experts_file(&x.layout))?;
        let mut before = [&m.experts].into_iter().chain(&m.other_experts[..i]);
        if before.any(|y| y.layout.code_bits() == x.layout.code_bits()) {
            let found = format!("{:?} once more", x.layout.code_bits());
            return Err(damaged(path, &subject, found, "each precision once".into()));
        }
    }
    expect("ngram", m.ngram.len().to_string(), tables.len().to_string())?;
    for (i, (n, table)) in m.ngram.iter().zip(&tables).enumerate() {
        check_ngram(path, &m.config, i, n, table)?;
    }
    for (i, f) in m.files.iter().enumerate() {
        let once = !m.files[..i].iter().any(|other| other.file == f.file);
        if !SIDE_FILES.contains(&f.file.as_str()) || !once || f.checksum.0.len() != 1 {
            let found = format!("{:?}", f.file);
            return Err(damaged(
                path,
                "files",
                found,
                format!("each of {SIDE_FILES:?} at most once"),
            ));
        }
    }
    Ok(())
}

fn check_experts(
    path: &Path,
    config: &Config,
    subject: &str,
    x: &ExpertSection,
    file: String,
) -> Result<()> {
    let expect = |field: &str, found: String, expected: String| {
        if found == expected {
            return Ok(());
        }
        Err(damaged(path, &format!("{subject}.{field}"), found, expected))
    };
    expect("file", x.file.clone(), file)?;
    expect("layers", x.layers.to_string(), config.expert_layers().to_string())?;
    expect("per_layer", x.per_layer.to_string(), config.moe.experts.to_string())?;
    expect("layout.hidden", x.layout.hidden().to_string(), config.hidden.to_string())?;
    expect("layout.width", x.layout.width().to_string(), config.moe.width.to_string())?;
    expect("record_bytes", x.record_bytes.to_string(), x.layout.bytes().to_string())?;
    let bytes = (x.layers as u64 * x.per_layer as u64).checked_mul(x.record_bytes);
    expect("bytes", format!("{:?}", Some(x.bytes)), format!("{bytes:?}"))?;
    let lists: Vec<usize> = x.checksums.iter().map(|c| c.0.len()).collect();
    expect("checksums", format!("{lists:?}"), format!("{:?}", vec![x.per_layer; x.layers]))
}

fn check_dense(path: &Path, m: &Manifest) -> Result<()> {
    let specs = tensors::dense(&m.config);
    let d = &m.dense;
    if d.file != DENSE_FILE {
        return Err(damaged(path, "dense.file", d.file.clone(), DENSE_FILE.into()));
    }
    if d.tensors.len() != specs.len() {
        let found = format!("{} tensors", d.tensors.len());
        return Err(damaged(path, "dense.tensors", found, format!("{}", specs.len())));
    }
    let mut end = 0u64;
    for (t, spec) in d.tensors.iter().zip(&specs) {
        let found = format!("{} [{}, {}]", t.name, t.rows, t.cols);
        let expected = format!("{} [{}, {}]", spec.name, spec.rows, spec.cols);
        if found != expected {
            return Err(damaged(path, "dense.tensors", found, expected));
        }
        let starts = Some(t.offset) == end.checked_next_multiple_of(DENSE_ALIGN);
        let stop = t.byte_len().filter(|_| starts).and_then(|len| t.offset.checked_add(len));
        let chunks = (t.chunk_rows > 0).then(|| t.rows.div_ceil(t.chunk_rows));
        let whole_tiles = t.rows <= t.chunk_rows || t.chunk_rows.is_multiple_of(16);
        match stop {
            Some(stop) if chunks == Some(t.checksums.0.len()) && whole_tiles => end = stop,
            _ => {
                let found =
                    format!("{:?} at {}, {} rows a chunk", t.encoding, t.offset, t.chunk_rows);
                let expected = "a fitting encoding, the next multiple of 64, whole tiles a chunk";
                return Err(damaged(
                    path,
                    &format!("dense tensor {}", t.name),
                    found,
                    expected.into(),
                ));
            }
        }
    }
    if d.bytes != end {
        return Err(damaged(path, "dense.bytes", d.bytes.to_string(), end.to_string()));
    }
    Ok(())
}

fn check_ngram(
    path: &Path,
    config: &Config,
    index: usize,
    n: &NgramSection,
    table: &HashTable,
) -> Result<()> {
    let width = config.ple.as_ref().map_or(0, |p| p.row_width());
    let row_bytes = n.encoding.row_bytes(width).map(|b| b as u64);
    let bytes = row_bytes.and_then(|b| b.checked_mul(table.rows));
    let chunks = (n.chunk_rows > 0).then(|| table.rows.div_ceil(n.chunk_rows));
    let found = (n.file.clone(), n.rows, n.width, Some(n.row_bytes), Some(n.bytes));
    let expected = (ngram_file(index), table.rows, width, row_bytes, bytes);
    let sums = n.checksums.0.len() as u64;
    if found != expected || chunks != Some(sums) {
        let found = format!("{found:?}, {sums} checksums");
        let expected = format!("{expected:?}, {chunks:?}");
        return Err(damaged(path, &format!("ngram[{index}]"), found, expected));
    }
    Ok(())
}
