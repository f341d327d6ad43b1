//! Files from an enemy: a typed error for every damaged byte, never a panic.

mod common;

use cherenkov_format::checkpoint::Checkpoint;
use cherenkov_format::checkpoint::json;
use cherenkov_format::manifest::{self, MANIFEST_FILE};
use cherenkov_format::pack::{self, Options};
use cherenkov_format::progress::Silent;
use cherenkov_format::{Error, Store, verify};
use common::*;
use proptest::prelude::*;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

fn store() -> (TempDir, std::path::PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let (src, out) = (dir.path().join("src"), dir.path().join("out"));
    tiny().0.write(&src);
    pack::pack(&src, &out, &Options::default(), &mut Silent).unwrap();
    (dir, out)
}

#[test]
fn every_byte_of_a_manifest_counts() {
    let (_dir, out) = store();
    let path = out.join(MANIFEST_FILE);
    let good = fs::read(&path).unwrap();
    manifest::from_bytes(&path, &good).unwrap();
    for at in 0..good.len() {
        for flip in [0x01, 0x20, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            assert!(manifest::from_bytes(&path, &bad).is_err(), "byte {at} ^ {flip:#x}");
        }
    }
    for len in 0..good.len() {
        assert!(manifest::from_bytes(&path, &good[..len]).is_err(), "cut to {len}");
    }
    let longer = [&good[..], b"\n"].concat();
    assert!(manifest::from_bytes(&path, &longer).is_err());
}

/// Gives a changed body the head that it would have had.
fn sealed(body: &str) -> Vec<u8> {
    let sum = cherenkov_format::checksum(body.as_bytes());
    format!("{{\n  \"checksum\": \"{sum:016x}\",\n{body}").into_bytes()
}

#[test]
fn a_manifest_that_lies_is_refused() {
    let (_dir, out) = store();
    let path = out.join(MANIFEST_FILE);
    let text = fs::read_to_string(&path).unwrap();
    let body = text.splitn(3, '\n').nth(2).unwrap();
    manifest::from_bytes(&path, &sealed(body)).unwrap();
    for (from, to) in [
        ("\"version\": 1", "\"version\": 2"),
        ("\"hidden\": 64", "\"hidden\": 18446744073709551615"),
        ("\"hidden\": 64", "\"hidden\": 0"),
        ("\"vocab\": 96", "\"vocab\": 16777217"),
        ("\"ngram\": 3", "\"ngram\": 0"),
        ("\"heads_per_ngram\": 1", "\"heads_per_ngram\": 0"),
        ("\"vocab_base\": 50", "\"vocab_base\": 18446744073709551615"),
        ("\"kv_heads\": 1", "\"kv_heads\": 0"),
        ("\"index_ratio\": 4", "\"index_ratio\": 0"),
        ("\"width\": 32", "\"width\": 33"),
        ("\"experts\": 3", "\"experts\": 0"),
        ("\"chunk_rows\": 16", "\"chunk_rows\": 0"),
        ("\"file\": \"dense.bin\"", "\"file\": \"../dense.bin\""),
        ("\"file\": \"ngram-0.bin\"", "\"file\": \"/etc/passwd\""),
        ("\"file\": \"tokenizer.json\"", "\"file\": \"a/tokenizer.json\""),
        ("\"rows\": 96", "\"rows\": 95"),
        ("\"offset\": 0", "\"offset\": 64"),
        ("\"record_bytes\": ", "\"record_bytes\": 1"),
        ("\"notes\": [", "\"more\": 1, \"notes\": ["),
        ("\"notes\": [", "\"notes\": [], \"notes\": ["),
        ("\"eos_hash\": 90", "\"eos_hash\": 96"),
        ("\"bits\": 8", "\"bits\": 5"),
    ] {
        let lie = body.replacen(from, to, 1);
        assert_ne!(lie, body, "{from}");
        let error = manifest::from_bytes(&path, &sealed(&lie)).expect_err(to);
        assert!(matches!(error, Error::Invalid { .. }), "{to}: {error}");
    }
    let other = manifest::from_bytes(&path, b"{\"a\": 1}").unwrap_err().to_string();
    assert!(other.contains("cherenkov-store"), "{other}");
    let newer = manifest::from_bytes(&path, b"{\"format\": \"cherenkov-store\", \"version\": 3}");
    let newer = newer.unwrap_err().to_string();
    assert!(newer.contains("found 3, expected 1 or 2"), "{newer}");
}

#[test]
fn every_changed_byte_of_the_data_is_found() {
    let (_dir, out) = store();
    let names: Vec<String> = contents(&out).into_keys().filter(|n| n != MANIFEST_FILE).collect();
    let mut tried = 0;
    for name in names {
        let path = out.join(&name);
        let good = fs::read(&path).unwrap();
        let step = (good.len() / 150).max(1) | 1;
        for at in (0..good.len()).step_by(step).chain([good.len() - 1]) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            let error = verify::verify(&out, &mut Silent).expect_err(&name).to_string();
            assert!(error.contains(&name) && error.contains("bytes "), "{error}");
            tried += 1;
        }
        fs::write(&path, &good).unwrap();
    }
    assert!(tried > 500, "{tried}");
    verify::verify(&out, &mut Silent).unwrap();
}

#[test]
fn padding_belongs_to_the_store() {
    let (_dir, out) = store();
    let opened = Store::open(&out).unwrap();
    let tensors = &opened.manifest().dense.tensors;
    let gap =
        tensors.windows(2).find(|w| w[0].offset + w[0].byte_len().unwrap() < w[1].offset).unwrap();
    let path = out.join("dense.bin");
    let mut bytes = fs::read(&path).unwrap();
    bytes[gap[1].offset as usize - 1] = 1;
    fs::write(&path, bytes).unwrap();
    let error = verify::verify(&out, &mut Silent).unwrap_err().to_string();
    assert!(error.contains(&format!("padding before {}", gap[1].name)), "{error}");
}

#[test]
fn the_first_bad_span_is_named_and_damage_is_not_handed_out() {
    let (_dir, out) = store();
    let opened = Store::open(&out).unwrap();
    let x = opened.experts();
    let path = out.join("experts.bin");
    let mut bytes = fs::read(&path).unwrap();
    for (layer, expert) in [(3, 1), (1, 2)] {
        bytes[x.offset(layer, expert) as usize + 100] ^= 1;
    }
    fs::write(&path, bytes).unwrap();
    let error = verify::verify(&out, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("expert 1/2"), "{error}");
    let mut record = vec![0; x.layout().bytes()];
    x.read(1, 1, &mut record).unwrap();
    let error = x.read(1, 2, &mut record).unwrap_err().to_string();
    assert!(error.contains("expert 1/2") && error.contains("pack again"), "{error}");
    let dense = out.join("dense.bin");
    let t = opened.manifest().dense.tensors.iter().find(|t| t.name.ends_with("q_proj")).unwrap();
    let mut bytes = fs::read(&dense).unwrap();
    bytes[t.offset as usize] ^= 1;
    fs::write(&dense, bytes).unwrap();
    assert!(opened.matrix(&t.name).unwrap_err().to_string().contains(&t.name));
    assert!(opened.matrix("no.such").is_err());
    assert!(opened.ngram(1).is_err());
}

#[test]
fn wrong_sizes_and_strays_are_noticed() {
    let (_dir, out) = store();
    let names: Vec<String> = contents(&out).into_keys().filter(|n| n != MANIFEST_FILE).collect();
    for name in names {
        let path = out.join(&name);
        let good = fs::read(&path).unwrap();
        for len in [0, good.len() / 2, good.len() - 1] {
            fs::write(&path, &good[..len]).unwrap();
            assert!(Store::open(&out).unwrap_err().to_string().contains(&name));
        }
        fs::write(&path, [&good[..], &[0]].concat()).unwrap();
        assert!(Store::open(&out).unwrap_err().to_string().contains(&name));
        fs::remove_file(&path).unwrap();
        assert!(matches!(Store::open(&out).unwrap_err(), Error::Io { .. }));
        fs::write(&path, &good).unwrap();
    }
    fs::write(out.join("journal"), "x").unwrap();
    fs::create_dir(out.join("a")).unwrap();
    assert_eq!(verify::verify(&out, &mut Silent).unwrap().strays, ["a", "journal"]);
    assert!(Store::open(Path::new("/no/such/store")).is_err());
}

/// Writes one raw safetensors file beside a good configuration and opens it.
fn open_raw(bytes: &[u8]) -> Result<Checkpoint, Error> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    Checkpoint::open(dir.path())
}

fn raw(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

#[test]
fn hostile_headers_are_refused() {
    let check = |bytes: &[u8], part: &str| {
        let error = open_raw(bytes).map(|_| ()).expect_err(part).to_string();
        assert!(
            error.contains(part) && error.contains("model.safetensors"),
            "{error} lacks {part}"
        );
    };
    check(b"", "header length");
    check(&u64::MAX.to_le_bytes(), "18446744073709551615");
    check(&[&100u64.to_le_bytes()[..], b"{}"].concat(), "header length");
    check(&raw("[]", 0), "header");
    check(&raw("{\"a\": 1}", 0), "header");
    check(&raw(&"[".repeat(10_000), 0), "header");
    let one = |dtype: &str, shape: &str, range: &str| {
        format!(
            "{{\"a\": {{\"dtype\": \"{dtype}\", \"shape\": {shape}, \"data_offsets\": {range}}}}}"
        )
    };
    open_raw(&raw(&one("F32", "[2]", "[0, 8]"), 8)).unwrap();
    check(&raw(&one("F32", "[2]", "[0, 8]"), 7), "truncated");
    check(&raw(&one("F32", "[2]", "[0, 8]"), 9), "the end of the last tensor");
    check(&raw(&one("F32", "[2]", "[8, 0]"), 8), "a range that ends after it begins");
    check(&raw(&one("F32", "[3]", "[0, 8]"), 8), "12 for F32 [3]");
    check(&raw(&one("F32", "[4294967296, 4294967296, 2]", "[0, 8]"), 8), "a shape that fits");
    check(&raw(&one("F32", "[9223372036854775807]", "[0, 8]"), 8), "a shape that fits");
    check(&raw(&one("F32", "[-1]", "[0, 8]"), 8), "header");
    check(&raw(&one("F32", "[1,1,1,1,1,1,1,1,2]", "[0, 8]"), 8), "9 dimensions");
    check(&raw(&one("F31", "[2]", "[0, 8]"), 8), "F31");
    check(&raw(&one("F32", "[2]", "[1, 9]"), 9), "without a hole");
    check(&raw(&one("F32", "[2]", "[0, 18446744073709551615]"), 8), "truncated");
    let two = "{\"a\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [0, 4]}, \
                \"b\": {\"dtype\": \"U8\", \"shape\": [4], \"data_offsets\": [2, 6]}}";
    check(&raw(two, 6), "overlaps");
    check(&raw(&two.replace("\"b\"", "\"a\""), 6), "twice");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn random_headers_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = open_raw(&bytes);
    }

    #[test]
    fn random_edits_of_a_header_never_panic(edits in prop::collection::vec((0usize..400, any::<u8>()), 1..6), cut in 0usize..600) {
        let (a, b) = (floats("a.weight", "BF16", vec![4, 8], &[0.5; 32]), floats("b", "F32", vec![3], &[1.0; 3]));
        let mut bytes = safetensors(&[&a, &b]);
        let len = bytes.len();
        for (at, value) in edits {
            bytes[at % len] = value;
        }
        bytes.truncate(len - (cut % (4 * len)).min(len) / 4);
        let _ = open_raw(&bytes);
    }

    #[test]
    fn random_configurations_never_panic(edits in prop::collection::vec((0usize..2000, any::<u8>()), 1..4)) {
        let dir = tempfile::tempdir().unwrap();
        let mut bytes = text_config().to_string().into_bytes();
        let len = bytes.len();
        for (at, value) in edits {
            bytes[at % len] = value;
        }
        fs::write(dir.path().join("config.json"), &bytes).unwrap();
        let _ = json::read(dir.path(), CHOICES);
    }

    #[test]
    fn random_numbers_in_a_configuration_never_panic(key in 0usize..60, value in prop_oneof![any::<u64>(), 0u64..300]) {
        let dir = tempfile::tempdir().unwrap();
        let mut config = text_config();
        let map = config.as_object_mut().unwrap();
        let keys: Vec<String> = map.keys().cloned().collect();
        map.insert(keys[key % keys.len()].clone(), value.into());
        fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        if let Ok(parsed) = json::read(dir.path(), CHOICES) {
            // Whatever is accepted has sizes that can be computed.
            let dense = cherenkov_format::qwen4_exp::tensors::dense(&parsed.config);
            prop_assert!(dense.iter().all(|t| t.rows.checked_mul(t.cols).is_some()));
        }
    }
}

/// Every single byte of a shard's header changed: packing fails by name or gives a whole store.
#[test]
fn changed_header_bytes_give_an_error_or_a_whole_store() {
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tiny().0.write(&src);
    let path = src.join("model.safetensors");
    let good = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(good[..8].try_into().unwrap()) as usize;
    let mut refused = 0;
    for at in (0..header).step_by(53) {
        let mut bad = good.clone();
        bad[at] ^= 0x15;
        fs::write(&path, &bad).unwrap();
        let out = dir.path().join(format!("out{at}"));
        match pack::pack(&src, &out, &exact(), &mut Silent) {
            Ok(_) => drop(verify::verify(&out, &mut Silent).unwrap()),
            Err(Error::Invalid { .. }) => refused += 1,
            Err(e) => panic!("byte {at}: {e}"),
        }
    }
    assert!(refused > header / 53 / 2, "{refused}");
}
