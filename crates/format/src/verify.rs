//! Comparing every byte of a store with its checksums.
//!
//! Owns: the walk over all files of a store, and what is reported about damage. Never: repair.
//! Invariant: after `Ok` with no strays, every byte of the directory is one that the packer wrote.

use crate::checksum::checksum;
use crate::error::{Error, Result};
use crate::manifest::{MANIFEST_FILE, Manifest};
use crate::pio;
use crate::progress::{Progress, Stage, Status};
use crate::store::{Store, chunk_lens};
use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;

const REMEDY: &str = "the store is damaged: pack again";

/// What was verified.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Files of the store.
    pub files: usize,
    /// Bytes compared, the manifest's included.
    pub bytes: u64,
    /// Checksums compared.
    pub checksums: u64,
    /// Entries of the directory that do not belong to the store, sorted.
    pub strays: Vec<String>,
}

/// A run of bytes and what it must be.
struct Span {
    file: usize,
    offset: u64,
    bytes: usize,
    /// `None`: zeros.
    expected: Option<u64>,
    what: String,
}

/// Verifies the store in `dir`. The error names the damaged span with the lowest place.
pub fn verify(dir: &Path, progress: &mut dyn Progress) -> Result<Report> {
    let store = Store::open(dir)?;
    let manifest = store.manifest();
    let names = file_names(manifest);
    let mut files = Vec::new();
    for name in &names {
        let path = dir.join(name);
        let file = File::open(&path).map_err(|e| Error::io(&path, "open", e))?;
        files.push((path, file));
    }
    let spans = spans(manifest);
    let total = spans.iter().map(|s| s.bytes as u64).sum();
    let check = |span: &Span| {
        let (path, file) = &files[span.file];
        check_span(path, file, span)
    };
    walk(dir, &spans, total, check, progress)?;
    let own = dir.join(MANIFEST_FILE);
    let own = std::fs::metadata(&own).map_err(|e| Error::io(&own, "ask the size", e))?.len();
    Ok(Report {
        files: names.len() + 1,
        bytes: total + own,
        checksums: spans.iter().filter(|s| s.expected.is_some()).count() as u64,
        strays: strays(dir, &names)?,
    })
}

fn file_names(m: &Manifest) -> Vec<String> {
    let mut names = vec![m.dense.file.clone()];
    names.extend(m.all_experts().map(|x| x.file.clone()));
    names.extend(m.ngram.iter().map(|n| n.file.clone()));
    names.extend(m.files.iter().map(|f| f.file.clone()));
    names
}

fn spans(m: &Manifest) -> Vec<Span> {
    let mut spans = Vec::new();
    let mut end = 0;
    for t in &m.dense.tensors {
        if t.offset > end {
            let bytes = (t.offset - end) as usize;
            let what = format!("padding before {}", t.name);
            spans.push(Span { file: 0, offset: end, bytes, expected: None, what });
        }
        end = t.offset;
        for (chunk, (bytes, &sum)) in chunk_lens(t).zip(&t.checksums.0).enumerate() {
            let what = format!("tensor {}, rows from {}", t.name, chunk * t.chunk_rows);
            spans.push(Span { file: 0, offset: end, bytes, expected: Some(sum), what });
            end += bytes as u64;
        }
    }
    for (section, x) in m.all_experts().enumerate() {
        for number in 0..x.layers * x.per_layer {
            let (layer, expert) = (number / x.per_layer, number % x.per_layer);
            spans.push(Span {
                file: 1 + section,
                offset: number as u64 * x.record_bytes,
                bytes: x.record_bytes as usize,
                expected: Some(x.checksums[layer].0[expert]),
                what: format!("expert {layer}/{expert}"),
            });
        }
    }
    let tables = 2 + m.other_experts.len();
    for (table, n) in m.ngram.iter().enumerate() {
        for (chunk, &sum) in n.checksums.0.iter().enumerate() {
            let first = chunk as u64 * n.chunk_rows;
            let rows = n.chunk_rows.min(n.rows - first);
            let bytes = (rows * n.row_bytes) as usize;
            let what = format!("rows from {first}");
            let offset = first * n.row_bytes;
            spans.push(Span { file: tables + table, offset, bytes, expected: Some(sum), what });
        }
    }
    for (at, f) in m.files.iter().enumerate() {
        let (file, bytes) = (tables + m.ngram.len() + at, f.bytes as usize);
        let expected = Some(f.checksum.0[0]);
        spans.push(Span { file, offset: 0, bytes, expected, what: "contents".into() });
    }
    spans
}

fn check_span(path: &Path, file: &File, span: &Span) -> Result<()> {
    let mut bytes = vec![0; span.bytes];
    pio::read_exact_at(file, path, span.offset, &mut bytes)?;
    let subject = || {
        let end = span.offset + span.bytes as u64;
        format!("{} (bytes {}..{end})", span.what, span.offset)
    };
    match span.expected {
        None if bytes.iter().any(|&b| b != 0) => {
            Err(Error::invalid(path, subject(), "other bytes", "zeros", REMEDY))
        }
        None => Ok(()),
        Some(expected) => {
            let found = checksum(&bytes);
            if found == expected {
                return Ok(());
            }
            let (found, expected) = (format!("checksum {found:016x}"), format!("{expected:016x}"));
            Err(Error::invalid(path, subject(), found, expected, REMEDY))
        }
    }
}

/// Checks all spans on all cores; of several errors the one of the first span wins.
fn walk(
    dir: &Path,
    spans: &[Span],
    total: u64,
    check: impl Fn(&Span) -> Result<()> + Sync,
    progress: &mut dyn Progress,
) -> Result<()> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    let mut worst: Option<(usize, Error)> = None;
    std::thread::scope(|scope| {
        let (sender, receiver) = mpsc::sync_channel(2 * threads);
        for _ in 0..threads {
            let (sender, check, next, stop) = (sender.clone(), &check, &next, &stop);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(span) = spans.get(number) else { break };
                    if sender.send((number, check(span))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut done = 0;
        for (number, result) in receiver {
            done += spans[number].bytes as u64;
            let status = Status { stage: Stage::Verify, done, total, skipped: 0 };
            let result = result.and_then(|()| match progress.update(status).is_break() {
                true => Err(Error::Cancelled { path: dir.to_owned() }),
                false => Ok(()),
            });
            if let Err(e) = result {
                stop.store(true, Ordering::Relaxed);
                // Numbers are handed out in order, so every span before a bad one is looked at.
                if worst.as_ref().is_none_or(|(first, _)| number < *first) {
                    worst = Some((number, e));
                }
            }
        }
    });
    worst.map_or(Ok(()), |(_, e)| Err(e))
}

fn strays(dir: &Path, names: &[String]) -> Result<Vec<String>> {
    let known: BTreeSet<&str> = names.iter().map(String::as_str).chain([MANIFEST_FILE]).collect();
    let mut strays = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|e| Error::io(dir, "list", e))? {
        let name = entry.map_err(|e| Error::io(dir, "list", e))?.file_name();
        let name = name.to_string_lossy().into_owned();
        if !known.contains(name.as_str()) {
            strays.push(name);
        }
    }
    strays.sort();
    Ok(strays)
}
