//! Experts at several precisions in one store.

mod common;

use cherenkov_format::manifest::{self, MANIFEST_FILE, VERSION, VERSION_MANY};
use cherenkov_format::pack::{self, Options, Precision};
use cherenkov_format::progress::{Silent, Status};
use cherenkov_format::{Bits, Error, Store, synth, verify};
use common::*;
use std::fs;
use std::num::NonZeroUsize;
use std::ops::ControlFlow;
use std::path::Path;

const FOUR: Precision = Precision::Bits(Bits::B4);
const THREE: Precision = Precision::Bits(Bits::B3);
const TWO: Precision = Precision::Bits(Bits::B2);

fn at(precisions: &[Precision]) -> Options {
    let (first, others) = precisions.split_first().unwrap();
    Options { experts: *first, other_experts: others.to_vec(), ..Options::default() }
}

#[test]
fn one_pass_gives_what_one_pack_each_gives() {
    let (tiny, _) = tiny();
    let many = pack_with(&at(&[FOUR, THREE, TWO]), |d| tiny.write(d)).unwrap();
    let got = contents(&many.out);
    for (name, alone) in [("experts.bin", FOUR), ("experts-3.bin", THREE), ("experts-2.bin", TWO)] {
        let alone = contents(&pack_with(&at(&[alone]), |d| tiny.write(d)).unwrap().out);
        assert_eq!(got[name], alone["experts.bin"], "{name}");
        assert_eq!(got["dense.bin"], alone["dense.bin"]);
    }
    let parts: Vec<&str> = many.report.quality.iter().map(|q| q.part.as_str()).collect();
    let experts = ["experts at 4 bits", "experts at 3 bits", "experts at 2 bits"];
    assert_eq!(parts, [&["dense"][..], &experts, &["ngram"]].concat());
    let rms: Vec<f64> = many.report.quality[1..4].iter().map(|q| q.relative_rms).collect();
    assert!(rms[0] < rms[1] && rms[1] < rms[2], "{rms:?}");
}

#[test]
fn a_store_says_which_precisions_it_has_and_gives_each() {
    let (tiny, _) = tiny();
    let packed = pack_with(&at(&[THREE, FOUR]), |d| tiny.write(d)).unwrap();
    let mut store = open(&packed);
    assert_eq!(store.manifest().version, VERSION_MANY);
    let bits = |store: &Store| store.experts().layout().code_bits();
    assert_eq!(bits(&store), Some(Bits::B3), "the first one is the default");
    let mut record = vec![0; store.experts().record_bytes() as usize];
    store.experts().read(0, 1, &mut record).unwrap();
    store.use_experts(Bits::B4).unwrap();
    assert_eq!(bits(&store), Some(Bits::B4));
    let mut record = vec![0; store.experts().record_bytes() as usize];
    store.experts().read(0, 1, &mut record).unwrap();
    assert_eq!(store.experts_at(Bits::B3).unwrap().layout().code_bits(), Some(Bits::B3));
    let error = store.use_experts(Bits::B2).unwrap_err().to_string();
    assert!(error.contains("found 3, 4 bits, expected 2 bits"), "{error}");
    assert!(error.contains("pack SRC --experts 4,2"), "{error}");
    // A store with one precision is the one that older programs know.
    let single = open(&pack_with(&Options::default(), |d| tiny.write(d)).unwrap());
    assert_eq!(single.manifest().version, VERSION);
}

#[test]
fn what_comes_to_the_same_codes_is_refused() {
    let (tiny, _) = tiny();
    for (precisions, width) in [(&[FOUR, FOUR][..], "4 bits"), (&[TWO, FOUR, TWO], "2 bits")] {
        let error = pack_with(&at(precisions), |d| tiny.write(d)).err().unwrap().to_string();
        assert!(
            error.contains("two precisions that both come to") && error.contains(width),
            "{error}"
        );
    }
    // Four bits of the source are not turned into eight.
    let four = tiny.mapped(|t| {
        let expert = t.name.contains(".switch_mlp.") || t.name.contains(".mlp.experts.");
        split_switch(t)
            .into_iter()
            .flat_map(|t| if expert { quantised(&t) } else { vec![t] })
            .collect()
    });
    let eight = Precision::Bits(Bits::B8);
    let error = pack_with(&at(&[eight, FOUR]), |d| four.write(d)).err().unwrap().to_string();
    assert!(error.contains("come to 4 bits") && error.contains("the checkpoint has"), "{error}");
    let packed = pack_with(&at(&[eight, TWO]), |d| four.write(d)).unwrap();
    assert_eq!(open(&packed).experts().layout().code_bits(), Some(Bits::B4));
}

fn quantised(t: &Tensor) -> Vec<Tensor> {
    let mlx = mlx(t, 4, 32, "BF16");
    vec![mlx.weight, mlx.scales, mlx.biases]
}

/// Runs until the callback has been called `calls` times.
fn stop_after(calls: usize) -> impl FnMut(Status) -> ControlFlow<()> {
    let mut left = calls;
    move |_| {
        let go = left > 0;
        left = left.saturating_sub(1);
        if go { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Drops every `nth` unit from the journal, as if the pack had been killed within an expert.
fn thin(journal: &Path, nth: usize) -> usize {
    let text = fs::read_to_string(journal).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let kept = lines.iter().enumerate().filter(|(i, _)| *i == 0 || i % nth != 0);
    let kept: Vec<String> = kept.map(|(_, line)| format!("{line}\n")).collect();
    fs::write(journal, kept.concat()).unwrap();
    lines.len() - kept.len()
}

#[test]
fn a_pack_stopped_within_an_expert_resumes_to_the_same_bytes() {
    let (tiny, _) = tiny();
    let dir = tempfile::tempdir().unwrap();
    let src = dir.path().join("src");
    tiny.write(&src);
    let options = Options { threads: NonZeroUsize::new(2), ..at(&[FOUR, THREE, TWO]) };
    let whole = dir.path().join("whole");
    let mut calls = 0;
    pack::pack(&src, &whole, &options, &mut |_: Status| {
        calls += 1;
        ControlFlow::Continue(())
    })
    .unwrap();
    let want = contents(&whole);
    for stop in (0..calls).step_by(3) {
        let out = dir.path().join(format!("out{stop}"));
        let journal = dir.path().join(format!(".out{stop}.partial/journal"));
        let error = pack::pack(&src, &out, &options, &mut stop_after(stop)).unwrap_err();
        assert!(matches!(error, Error::Cancelled { .. }), "{stop}: {error}");
        let thinned = if journal.exists() { thin(&journal, 2 + stop % 3) } else { 0 };
        let report = pack::pack(&src, &out, &options, &mut Silent).unwrap();
        assert_eq!(contents(&out), want, "stopped after {stop}");
        let full = report.resumed_bytes == report.files.iter().map(|(_, b)| b).sum::<u64>();
        assert!(thinned == 0 || !full, "{thinned} units were made again");
        verify::verify(&out, &mut Silent).unwrap();
        fs::remove_dir_all(&out).unwrap();
    }
}

#[test]
fn every_changed_byte_of_every_precision_is_found() {
    let (tiny, _) = tiny();
    let packed = pack_with(&at(&[FOUR, THREE, TWO]), |d| tiny.write(d)).unwrap();
    for name in ["experts.bin", "experts-3.bin", "experts-2.bin"] {
        let path = packed.out.join(name);
        let good = fs::read(&path).unwrap();
        for at in (0..good.len()).step_by((good.len() / 40) | 1).chain([good.len() - 1]) {
            let mut bad = good.clone();
            bad[at] ^= 1 << (at % 8);
            fs::write(&path, &bad).unwrap();
            let error = verify::verify(&packed.out, &mut Silent).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("expert "), "{error}");
        }
        fs::write(&path, &good[..good.len() - 1]).unwrap();
        let error = Store::open(&packed.out).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains("size"), "{error}");
        fs::remove_file(&path).unwrap();
        assert!(Store::open(&packed.out).is_err());
        fs::write(&path, &good).unwrap();
    }
    verify::verify(&packed.out, &mut Silent).unwrap();
}

/// Gives a changed body the head that it would have had.
fn sealed(body: &str) -> Vec<u8> {
    let sum = cherenkov_format::checksum(body.as_bytes());
    format!("{{\n  \"checksum\": \"{sum:016x}\",\n{body}").into_bytes()
}

#[test]
fn a_manifest_that_lies_about_precisions_is_refused() {
    let (tiny, _) = tiny();
    let body = |precisions: &[Precision]| {
        let packed = pack_with(&at(precisions), |d| tiny.write(d)).unwrap();
        let text = fs::read_to_string(packed.out.join(MANIFEST_FILE)).unwrap();
        text.splitn(3, '\n').nth(2).unwrap().to_owned()
    };
    let path = Path::new(MANIFEST_FILE);
    let many = body(&[FOUR, THREE, TWO]);
    manifest::from_bytes(path, &sealed(&many)).unwrap();
    let start = many.find("\"other_experts\"").unwrap();
    let (head, tail) = many.split_at(start);
    for (from, to) in [
        ("\"file\": \"experts-2.bin\"", "\"file\": \"experts.bin\""),
        ("\"file\": \"experts-2.bin\"", "\"file\": \"../experts-2.bin\""),
        ("\"file\": \"experts-3.bin\"", "\"file\": \"experts-2.bin\""),
        ("\"layers\": 4", "\"layers\": 3"),
        ("\"record_bytes\": ", "\"record_bytes\": 1"),
        ("\"hidden\": 64", "\"hidden\": 128"),
    ] {
        let lie = tail.replacen(from, to, 1);
        assert_ne!(lie, tail, "{from}");
        let error = manifest::from_bytes(path, &sealed(&format!("{head}{lie}"))).expect_err(to);
        assert!(error.to_string().contains("other_experts["), "{to}: {error}");
    }
    let older = many.replacen("\"version\": 2", "\"version\": 1", 1);
    let error = manifest::from_bytes(path, &sealed(&older)).unwrap_err().to_string();
    assert!(error.contains("version: found 1, expected 2"), "{error}");
    let single = body(&[FOUR]).replacen("\"version\": 1", "\"version\": 2", 1);
    let error = manifest::from_bytes(path, &sealed(&single)).unwrap_err().to_string();
    assert!(error.contains("version: found 2, expected 1"), "{error}");
    // The same precision once more.
    let twice = body(&[FOUR, THREE]);
    let start = twice.find("\"other_experts\": [").unwrap() + "\"other_experts\": [".len();
    let end = start + twice[start..].find("\n  ],").unwrap();
    let section = twice[start..end].to_owned();
    let lie = format!("{},{section}{}", &twice[..end], &twice[end..]);
    let error = manifest::from_bytes(path, &sealed(&lie)).unwrap_err().to_string();
    assert!(error.contains("each precision once"), "{error}");
}

#[test]
fn synthetic_stores_have_precisions_too() {
    let dir = tempfile::tempdir().unwrap();
    let (out, again) = (dir.path().join("store"), dir.path().join("again"));
    let options = synth::Options::new(synth::Preset::Small.config());
    let options = synth::Options { other_experts: vec![TWO], ..options };
    synth::store(&out, &options, &mut Silent).unwrap();
    verify::verify(&out, &mut Silent).unwrap();
    let store = Store::open(&out).unwrap();
    let of = |bits| store.experts_at(bits).unwrap().record_bytes();
    assert!(of(Bits::B2) < of(Bits::B4));
    let twice = synth::Options { other_experts: vec![FOUR], ..options };
    let error = synth::store(&again, &twice, &mut Silent).unwrap_err().to_string();
    assert!(error.contains("the same precision twice"), "{error}");
}
