//! A sequence as bytes.
//!
//! Owns: the format of a saved sequence. Never: what a device writes into its blocks.
//! Invariant: bytes of another model, device, version or precision, cut or flipped bytes are refused.
//!
//! Little-endian: magic, fingerprint u64, what keys and values are kept as (eight bytes of ASCII, zeros
//! at the end), then lists (count u64, items u32) of run tokens, pending
//! tokens, and one item: draft rows; then blocks (length u64, bytes): the slot, then each page; at
//! the end the xxh3-64 of everything before.

use crate::error::{Error, Result};
use cherenkov_format::{Store, checksum};

/// Bytes of the name of a precision.
const KV_BYTES: usize = 8;
const MAGIC: &[u8; 8] = b"CHKVSEQ2";

/// What a saved sequence says besides the device's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saved {
    /// Of model and device.
    pub fingerprint: u64,
    /// What keys and values are kept as.
    pub kv: &'static str,
    /// Tokens run through the trunk.
    pub tokens: Vec<u32>,
    /// Tokens after them.
    pub tail: Vec<u32>,
    /// Rows of the draft head.
    pub draft_rows: usize,
}

/// Distinguishes models, precisions of experts, devices and whether the draft head has state.
pub fn fingerprint(store: &Store, device: &str, draft: bool) -> u64 {
    let experts = store.experts().layout();
    let text = format!("{:?} {experts:?} {device} {draft}", store.manifest());
    checksum(text.as_bytes())
}

fn kv_bytes(name: &str) -> [u8; KV_BYTES] {
    let mut bytes = [0; KV_BYTES];
    bytes[..name.len()].copy_from_slice(name.as_bytes());
    bytes
}

fn bad(found: impl Into<String>, expected: impl Into<String>) -> Error {
    let (found, expected) = (found.into(), expected.into());
    Error::Model(cherenkov_model::Error::State { found, expected })
}

fn put_list(out: &mut Vec<u8>, items: &[u32]) {
    out.extend((items.len() as u64).to_le_bytes());
    out.extend(items.iter().flat_map(|i| i.to_le_bytes()));
}

/// Takes `len` bytes off the front.
fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Result<&'a [u8]> {
    let (head, tail) =
        bytes.split_at_checked(len).ok_or_else(|| bad("too few bytes", "a whole state"))?;
    *bytes = tail;
    Ok(head)
}

fn take_u64(bytes: &mut &[u8]) -> Result<u64> {
    let head = take(bytes, 8)?;
    Ok(u64::from_le_bytes(head.try_into().expect("eight bytes")))
}

fn take_list(bytes: &mut &[u8]) -> Result<Vec<u32>> {
    let count = take_u64(bytes)? as usize;
    let len = count.checked_mul(4).ok_or_else(|| bad("a huge list", "a whole state"))?;
    let item = |b: &[u8]| u32::from_le_bytes([b[0], b[1], b[2], b[3]]);
    Ok(take(bytes, len)?.chunks_exact(4).map(item).collect())
}

impl Saved {
    /// Starts the bytes.
    pub fn header(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend(self.fingerprint.to_le_bytes());
        out.extend(kv_bytes(self.kv));
        put_list(&mut out, &self.tokens);
        put_list(&mut out, &self.tail);
        put_list(&mut out, &[self.draft_rows as u32]);
        out
    }

    /// Appends what `fill` writes as one block.
    pub fn block<E>(
        out: &mut Vec<u8>,
        fill: impl FnOnce(&mut Vec<u8>) -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let at = out.len();
        out.extend([0; 8]);
        fill(out)?;
        let len = (out.len() - at - 8) as u64;
        out[at..at + 8].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Ends the bytes.
    pub fn seal(out: &mut Vec<u8>) {
        out.extend(checksum(out).to_le_bytes());
    }

    /// Reads the bytes back: the lists and the blocks.
    ///
    /// # Errors
    /// When they are damaged, or the fingerprint or precision is another one.
    pub fn parse<'a>(
        bytes: &'a [u8],
        fingerprint: u64,
        kv: &'static str,
    ) -> Result<(Self, Vec<&'a [u8]>)> {
        let Some((mut rest, sum)) = bytes.split_last_chunk::<8>() else {
            return Err(bad(format!("{} bytes", bytes.len()), "a whole state"));
        };
        if checksum(rest) != u64::from_le_bytes(*sum) {
            return Err(bad("a wrong checksum", "the bytes that were saved"));
        }
        if take(&mut rest, 8)? != MAGIC {
            return Err(bad("another format", "version 2"));
        }
        let found = take_u64(&mut rest)?;
        if found != fingerprint {
            return Err(bad(format!("model {found:016x}"), format!("{fingerprint:016x}")));
        }
        let found = take(&mut rest, KV_BYTES)?;
        if found != kv_bytes(kv) {
            let found = String::from_utf8_lossy(found).trim_end_matches('\0').to_owned();
            return Err(Error::Kv { found, expected: kv });
        }
        let (tokens, tail) = (take_list(&mut rest)?, take_list(&mut rest)?);
        let draft_rows = match take_list(&mut rest)?[..] {
            [rows] => rows as usize,
            _ => return Err(bad("no draft rows", "one number")),
        };
        let mut blocks = Vec::new();
        while !rest.is_empty() {
            let len = take_u64(&mut rest)? as usize;
            blocks.push(take(&mut rest, len)?);
        }
        Ok((Self { fingerprint, kv, tokens, tail, draft_rows }, blocks))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> (Saved, Vec<u8>) {
        let (tokens, tail) = (vec![1, 2, 3], vec![4]);
        let saved = Saved { fingerprint: 5, kv: "f16", tokens, tail, draft_rows: 2 };
        let mut bytes = saved.header();
        for block in [&b"slot"[..], b"page"] {
            Saved::block(&mut bytes, |out| {
                out.extend(block);
                Ok::<_, Error>(())
            })
            .unwrap();
        }
        Saved::seal(&mut bytes);
        (saved, bytes)
    }

    #[test]
    fn it_comes_back() {
        let (saved, bytes) = sample();
        assert_eq!(Saved::parse(&bytes, 5, "f16").unwrap(), (saved, vec![&b"slot"[..], b"page"]));
    }

    #[test]
    fn every_flip_and_cut_is_refused() {
        let (_, bytes) = sample();
        assert!(Saved::parse(&bytes, 6, "f16").is_err());
        let error = Saved::parse(&bytes, 5, "q8").unwrap_err().to_string();
        assert!(error.contains("found keys and values in f16, expected q8"), "{error}");
        for at in 0..bytes.len() {
            assert!(Saved::parse(&bytes[..at], 5, "f16").is_err(), "cut at {at}");
            let mut flipped = bytes.clone();
            flipped[at] ^= 1;
            assert!(Saved::parse(&flipped, 5, "f16").is_err(), "flipped at {at}");
        }
    }
}
