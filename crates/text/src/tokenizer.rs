//! Owns: tokenizer.json, its vocabulary as bytes, and the three ways of encoding.
//! Never: templates, streams.
//! Invariants: `encode_plain` yields no control token; a damaged or foreign file is an error, never a panic.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use serde_json::Value as Json;
use tokenizers::{
    AddedToken, AddedVocabulary, NormalizerWrapper, OffsetReferential, OffsetType,
    Tokenizer as Plain,
};

use crate::byte_level;
use crate::error::{Error, Result};
use crate::prompt::Prompt;

/// Largest token id accepted, so that a hostile file cannot ask for a giant table.
const ID_MAX: u64 = (1 << 22) - 1;
/// Longest run of white space accepted: beyond a million the split pattern runs into its step limit, and the
/// tokens would silently differ from the reference.
const SPACES_MAX: usize = 900_000;

/// A byte-level BPE tokenizer read from tokenizer.json. Cloning is cheap.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    /// The file without its added tokens: its text never becomes a control token.
    plain: Plain,
    added: AddedVocabulary,
    /// Id in the file for each id that `added` uses.
    file_id: HashMap<u32, u32>,
    controls: HashMap<u32, Control>,
    by_text: HashMap<String, u32>,
    bytes: Vec<Option<Box<[u8]>>>,
    /// Ids of the 256 single-byte tokens.
    byte_ids: [u32; 256],
}

struct Control {
    text: String,
    special: bool,
}

/// A stretch of text, cut where control tokens stand.
pub(crate) enum Piece {
    /// Ordinary text.
    Text(String),
    /// A control token: its text with the white space it claims, and its id.
    Control(String, u32),
}

/// Form in which text is searched for control tokens. All accepted normal forms are idempotent, so that pieces of
/// normalised text give the tokens of the whole.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// As written.
    Raw,
    /// After the file's normaliser.
    Normal,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer")
            .field("vocab_size", &self.vocab_size())
            .field("control_tokens", &self.inner.controls.len())
            .finish()
    }
}

impl Tokenizer {
    /// Reads a tokenizer.json file.
    pub fn from_file(path: &Path) -> Result<Self> {
        let bytes =
            std::fs::read(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
        Self::from_bytes(&bytes)
    }

    /// Reads the bytes of a tokenizer.json file.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut file: Json = serde_json::from_slice(bytes).map_err(bad)?;
        check_kind(&file)?;
        let listed = take_added(&mut file)?;
        let stripped = serde_json::to_vec(&file).map_err(bad)?;
        drop(file);
        let mut plain = Plain::from_bytes(&stripped).map_err(bad)?;
        plain.with_padding(None);
        plain.with_truncation(None).map_err(bad)?;
        let bytes = byte_table(&plain, &listed)?;
        let (added, file_id) = added_vocabulary(&plain, &listed)?;
        let vocab = plain.get_vocab(false);
        let byte_ids = byte_level::alphabet().map(|c| vocab[c.encode_utf8(&mut [0; 4]) as &str]);
        let mut by_text: HashMap<String, u32> = vocab.into_iter().collect();
        let mut controls = HashMap::new();
        for (id, token) in listed {
            by_text.insert(token.content.clone(), id);
            let control = Control { text: token.content, special: token.special };
            controls.insert(id, control);
        }
        Ok(Self {
            inner: Arc::new(Inner { plain, added, file_id, controls, by_text, bytes, byte_ids }),
        })
    }

    /// Tokens of trusted text: text of control tokens becomes control tokens.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for piece in self.pieces(text, Form::Normal) {
            match piece {
                Piece::Text(text) => self.append_plain(&text, &mut ids)?,
                Piece::Control(_, id) => ids.push(id),
            }
        }
        Ok(ids)
    }

    /// Tokens of any text: no part of it becomes a control token.
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        self.append_plain(text, &mut ids)?;
        Ok(ids)
    }

    /// Tokens of a rendered prompt: the template's control tokens, and content as plain text.
    pub fn encode_prompt(&self, prompt: &Prompt) -> Result<Vec<u32>> {
        let mut ids = Vec::new();
        for piece in self.pieces(prompt.marked(), Form::Normal) {
            match piece {
                Piece::Text(text) => self.append_plain(&prompt.put_back(&text), &mut ids)?,
                Piece::Control(_, id) => ids.push(id),
            }
        }
        Ok(ids)
    }

    /// One more than the largest token id.
    pub fn vocab_size(&self) -> usize {
        self.inner.bytes.len()
    }

    /// Bytes that a token stands for; a control token stands for the bytes of its text.
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.inner.bytes.get(id as usize)?.as_deref()
    }

    /// Id of a token by its text in the file (byte-level spelling for ordinary tokens).
    pub fn id_of(&self, token: &str) -> Option<u32> {
        self.inner.by_text.get(token).copied()
    }

    /// Whether the id is one of the file's added tokens.
    pub fn is_control(&self, id: u32) -> bool {
        self.inner.controls.contains_key(&id)
    }

    /// Whether the id is an added token that the file marks as special (not meant to be shown).
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.controls.get(&id).is_some_and(|c| c.special)
    }

    /// Texts of all control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &str> {
        self.inner.controls.values().map(|c| c.text.as_str())
    }

    /// Cuts text at control tokens, by the file's own matching rules.
    pub(crate) fn pieces(&self, text: &str, form: Form) -> Vec<Piece> {
        let inner = &*self.inner;
        let normalizer: Option<&NormalizerWrapper> = match form {
            Form::Raw => None,
            Form::Normal => inner.plain.get_normalizer(),
        };
        let cut = inner.added.extract_and_normalize(normalizer, text);
        // Offsets into the original are not used: they lose combining marks.
        cut.get_splits(OffsetReferential::Normalized, OffsetType::None)
            .into_iter()
            .map(|(text, _, tokens)| {
                let id = tokens.as_ref().and_then(|t| t.first()).map(|t| t.id);
                match id.and_then(|id| inner.file_id.get(&id)) {
                    Some(id) => Piece::Control(text.to_owned(), *id),
                    None => Piece::Text(text.to_owned()),
                }
            })
            .collect()
    }

    fn append_plain(&self, text: &str, ids: &mut Vec<u32>) -> Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        check_spaces(text)?;
        let encoding = self.inner.plain.encode_fast(text, false);
        let encoding =
            encoding.map_err(|e| Error::Encode { bytes: text.len(), reason: e.to_string() })?;
        for id in encoding.get_ids() {
            if self.is_control(*id) {
                // A file may list a control token in its model too; spell it in bytes instead.
                let bytes = self.token_bytes(*id).unwrap_or_default();
                ids.extend(bytes.iter().map(|b| self.inner.byte_ids[usize::from(*b)]));
            } else {
                ids.push(*id);
            }
        }
        Ok(())
    }
}

fn check_spaces(text: &str) -> Result<()> {
    let mut run = 0;
    for c in text.chars() {
        run = if c.is_whitespace() { run + 1 } else { 0 };
        if run > SPACES_MAX {
            return Err(Error::Encode {
                bytes: text.len(),
                reason: format!(
                    "found more than {SPACES_MAX} white-space characters in a row; expected fewer, shorten the run"
                ),
            });
        }
    }
    Ok(())
}

fn bad(error: impl std::fmt::Display) -> Error {
    Error::Tokenizer(format!("{error}; expected a whole tokenizer.json, download it again"))
}

fn foreign(what: &str, found: &str, expected: &str) -> Error {
    Error::Tokenizer(format!(
        "{what} is {found}; expected {expected}: only byte-level BPE files are run"
    ))
}

/// Refuses every part that this crate does not know to be safe and byte-level.
fn check_kind(file: &Json) -> Result<()> {
    let model = &file["model"];
    match model["type"].as_str() {
        Some("BPE") => {}
        None if model["merges"].is_array() => {}
        other => return Err(foreign("model type", other.unwrap_or("missing"), "BPE")),
    }
    for key in ["continuing_subword_prefix", "end_of_word_suffix"] {
        if model[key].as_str().is_some_and(|s| !s.is_empty()) {
            return Err(foreign(key, "set", "none"));
        }
    }
    if model["byte_fallback"].as_bool() == Some(true) {
        return Err(foreign("byte_fallback", "true", "false"));
    }
    if !model["dropout"].is_null() && model["dropout"].as_f64() != Some(0.0) {
        return Err(foreign("dropout", "set", "none"));
    }
    check_parts("normalizer", &file["normalizer"], "normalizers", &["NFC", "NFD", "NFKC", "NFKD"])?;
    check_parts(
        "pre_tokenizer",
        &file["pre_tokenizer"],
        "pretokenizers",
        &["Split", "ByteLevel", "Digits"],
    )?;
    check_parts("decoder", &file["decoder"], "decoders", &["ByteLevel"])?;
    if !file["decoder"].is_object() {
        return Err(foreign("decoder", "missing", "ByteLevel"));
    }
    check_ids(model)
}

/// Accepts nothing, one known part, or a sequence of known parts.
fn check_parts(what: &str, part: &Json, list: &str, known: &[&str]) -> Result<()> {
    if part.is_null() {
        return Ok(());
    }
    let kind = part["type"].as_str().unwrap_or("missing");
    if kind == "Sequence" {
        let parts = part[list]
            .as_array()
            .ok_or_else(|| foreign(what, "a sequence without parts", "a list of parts"))?;
        // Depth is bounded by the JSON reader.
        return parts.iter().try_for_each(|part| check_parts(what, part, list, known));
    }
    if known.contains(&kind) {
        return Ok(());
    }
    Err(foreign(what, kind, &known.join(", ")))
}

fn check_ids(model: &Json) -> Result<()> {
    let vocab = model["vocab"]
        .as_object()
        .ok_or_else(|| foreign("model vocab", "missing", "an object of tokens"))?;
    let mut seen = HashSet::with_capacity(vocab.len());
    for (token, id) in vocab {
        let number = id.as_u64().filter(|id| *id <= ID_MAX);
        let number = number.ok_or_else(|| {
            Error::Tokenizer(format!(
                "id of token {token:?} is {id}; expected a number from 0 to {ID_MAX}"
            ))
        })?;
        if !seen.insert(number) {
            return Err(Error::Tokenizer(format!(
                "id {number} of token {token:?} is used twice; expected one token an id"
            )));
        }
    }
    for c in byte_level::alphabet() {
        if !vocab.contains_key(c.encode_utf8(&mut [0; 4]) as &str) {
            return Err(Error::Tokenizer(format!(
                "vocabulary lacks {c:?}; expected all 256 byte tokens, else text would be lost"
            )));
        }
    }
    Ok(())
}

/// Takes the added tokens out of the file.
fn take_added(file: &mut Json) -> Result<Vec<(u32, AddedToken)>> {
    let list = match file["added_tokens"].take() {
        Json::Null => Vec::new(),
        Json::Array(list) => list,
        _ => return Err(foreign("added_tokens", "no list", "a list")),
    };
    let mut tokens = Vec::with_capacity(list.len());
    let mut seen = HashSet::new();
    for entry in list {
        let id = entry["id"].as_u64().filter(|id| *id <= ID_MAX);
        let id = id.ok_or_else(|| {
            Error::Tokenizer(format!(
                "added token {entry} has no id from 0 to {ID_MAX}; expected one"
            ))
        })? as u32;
        let token: AddedToken = serde_json::from_value(entry).map_err(bad)?;
        if token.content.is_empty() {
            return Err(Error::Tokenizer(format!("added token {id} is empty; expected some text")));
        }
        if !seen.insert(id) {
            return Err(Error::Tokenizer(format!(
                "added token {id} is listed twice; expected one token an id"
            )));
        }
        tokens.push((id, token));
    }
    file["added_tokens"] = Json::Array(Vec::new());
    tokens.sort_by_key(|(id, _)| *id);
    Ok(tokens)
}

/// Builds the matcher, and maps the ids it hands out to those of the file.
fn added_vocabulary(
    plain: &Plain,
    listed: &[(u32, AddedToken)],
) -> Result<(AddedVocabulary, HashMap<u32, u32>)> {
    let mut added = AddedVocabulary::new();
    let tokens = listed.iter().map(|(_, token)| token.clone());
    added.add_tokens(tokens, plain.get_model(), plain.get_normalizer()).map_err(bad)?;
    let mut file_id = HashMap::new();
    for (id, token) in listed {
        let own = added.token_to_id(&token.content, plain.get_model());
        let own = own.ok_or_else(|| bad(format!("added token {id} was not taken")))?;
        if let Some(other) = file_id.insert(own, *id) {
            return Err(Error::Tokenizer(format!(
                "added tokens {other} and {id} have the same text; expected one id a text"
            )));
        }
    }
    Ok((added, file_id))
}

/// Bytes of every token.
fn byte_table(plain: &Plain, listed: &[(u32, AddedToken)]) -> Result<Vec<Option<Box<[u8]>>>> {
    let vocab = plain.get_vocab(false);
    let ids = vocab.values().chain(listed.iter().map(|(id, _)| id));
    let size = ids.max().map_or(0, |id| *id as usize + 1);
    let mut table: Vec<Option<Box<[u8]>>> = vec![None; size];
    for (token, id) in vocab {
        let mapped: Option<Vec<u8>> = token.chars().map(byte_level::byte_of).collect();
        table[id as usize] = Some(mapped.unwrap_or_else(|| token.into_bytes()).into());
    }
    for (id, token) in listed {
        table[*id as usize] = Some(token.content.as_bytes().into());
    }
    Ok(table)
}
