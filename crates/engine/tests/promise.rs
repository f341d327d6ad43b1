//! The determinism promise: one answer, one set of bits, whatever the circumstances.

mod common;

use cherenkov_cpu::KvPrecision;
use cherenkov_engine::{Engine, LoadDraft, SampleParams, Step};
use cherenkov_experts::Lookahead;
use common::{Answer, Drive, Setup, Writer, answer, greedy, pocket, prompt, random, warm, write};

const TOKENS: usize = 24;

/// A prompt longer than the pocket's selection budget of 128 tokens.
fn long_prompt(vocab: usize) -> Vec<u32> {
    prompt(150, vocab, 5)
}

fn same_under(setups: &[(Setup, usize)], params: &SampleParams, store: &common::Packed) {
    let vocab = store.store.config().vocab;
    let mut want: Option<Answer> = None;
    for (setup, drafts) in setups {
        let mut engine = setup.cpu(store);
        let got = answer(&mut engine, &long_prompt(vocab), params, *drafts, TOKENS);
        let want = want.get_or_insert_with(|| got.clone());
        assert_eq!(*want, got, "{setup:?}, {drafts} drafts");
    }
}

fn circumstances() -> Vec<(Setup, usize)> {
    let base = Setup::default();
    let mut all = vec![(Setup { draft: LoadDraft::No, ..base.clone() }, 0)];
    for chunk in [1, 7, 64, 500] {
        all.push((Setup { chunk, ..base.clone() }, 0));
    }
    for pool_slots in [1, 2, 5, 17, 1000] {
        all.push((Setup { pool_slots, ..base.clone() }, 2));
    }
    let (off, far) = (Lookahead::Off, Lookahead::Fixed(64));
    for (pool_slots, lookahead, readers, drive) in [
        (20, off, 1, Drive::Plain),
        (20, far, 1, Drive::Slow(300)),
        (60, far, 4, Drive::Slow(100)),
        (60, Lookahead::Auto, 4, Drive::Slow(200)),
        (3, far, 3, Drive::Slow(50)),
    ] {
        all.push((Setup { pool_slots, lookahead, readers, drive, ..base.clone() }, 2));
    }
    for threads in [2, 3] {
        all.push((Setup { threads, ..base.clone() }, 1));
    }
    for drafts in 0..=7 {
        all.push((base.clone(), drafts));
    }
    all
}

#[test]
fn pocket_greedy() {
    same_under(&circumstances(), &greedy(), &pocket());
}

#[test]
fn pocket_warm() {
    same_under(&circumstances(), &warm(11), &pocket());
}

#[test]
fn random_weights_greedy_and_warm() {
    for name in ["base", "silu", "tied_flat"] {
        let store = random(name);
        same_under(&circumstances(), &greedy(), &store);
        same_under(&circumstances(), &warm(3), &store);
    }
}

/// Up to eight sequences of different lengths in one step write what each writes alone.
#[test]
fn company_changes_nothing() {
    let store = random("base");
    let vocab = store.store.config().vocab;
    let setup = Setup { sequences: 8, pool_slots: 6, ..Setup::default() };
    let mut engine = setup.cpu(&store);
    let prompts: Vec<Vec<u32>> = (0..8).map(|i| prompt(1 + 7 * i, vocab, i as u64)).collect();
    let params = |i: usize| if i.is_multiple_of(2) { greedy() } else { warm(i as u64) };
    let alone: Vec<Answer> = prompts
        .iter()
        .enumerate()
        .map(|(i, p)| answer(&mut engine, p, &params(i), i % 3, TOKENS))
        .collect();
    for company in 2..=8 {
        let mut writers: Vec<Writer> = Vec::new();
        for (i, prompt) in prompts.iter().enumerate().take(company) {
            let seq = engine.open().unwrap();
            engine.prefill(seq, prompt).unwrap();
            writers.push(Writer::new(seq, &params(i), prompt, vocab));
        }
        let drafts = 8 / company - 1;
        while writers.iter().any(|w| w.tokens.len() < TOKENS) {
            let mut steps: Vec<Step<'_>> =
                writers.iter_mut().map(|w| Step::new(w.seq, &mut w.sampler, drafts, &[])).collect();
            engine.decode(&mut steps).unwrap();
            let outs: Vec<_> = steps.into_iter().map(|s| s.out).collect();
            for (writer, out) in writers.iter_mut().zip(&outs) {
                writer.take(out, TOKENS);
            }
        }
        for (i, writer) in writers.iter().enumerate() {
            assert_eq!(writer.answer(), alone[i], "sequence {i} of {company}");
            engine.close(writer.seq);
        }
    }
}

/// A slot that another conversation used gives the same answer as a fresh one.
#[test]
fn slots_and_pages_are_as_new() {
    let store = random("base");
    let vocab = store.store.config().vocab;
    let mut engine = Setup { sequences: 1, ..Setup::default() }.cpu(&store);
    let (a, b) = (prompt(40, vocab, 1), prompt(90, vocab, 2));
    let first = answer(&mut engine, &a, &greedy(), 3, TOKENS);
    answer(&mut engine, &b, &warm(1), 3, TOKENS);
    assert_eq!(answer(&mut engine, &a, &greedy(), 3, TOKENS), first);
}

/// Prefill in parts, a fork, a saved and restored sequence: all go on with the same bits.
#[test]
fn forks_and_saved_sequences_go_on_alike() {
    for (name, kv) in
        [("base", KvPrecision::F16), ("ple3", KvPrecision::F16), ("base", KvPrecision::Q8)]
    {
        let store = random(name);
        let vocab = store.store.config().vocab;
        let mut engine = Setup { kv, ..Setup::default() }.cpu(&store);
        for len in [1, 2, 3, 63, 64, 65, 66, 100] {
            let prompt = prompt(len + 20, vocab, len as u64);
            let want = answer(&mut engine, &prompt, &warm(2), 3, TOKENS);
            let base = engine.open().unwrap();
            engine.prefill(base, &prompt[..len]).unwrap();
            let fork = engine.fork(base).unwrap();
            let bytes = engine.save(base).unwrap();
            for part in prompt[len..].chunks(7) {
                engine.prefill(base, part).unwrap();
            }
            let mut writer = Writer::new(base, &warm(2), &prompt, vocab);
            write(&mut engine, &mut writer, 2, TOKENS);
            assert_eq!(writer.answer(), want, "{name}: in parts from {len}");
            engine.close(base);
            let restored = engine.restore(&bytes).unwrap();
            for seq in [fork, restored] {
                assert_eq!(engine.tokens(seq).unwrap(), prompt[..len]);
                engine.prefill(seq, &prompt[len..]).unwrap();
                let mut writer = Writer::new(seq, &warm(2), &prompt, vocab);
                write(&mut engine, &mut writer, 5, TOKENS);
                assert_eq!(writer.answer(), want, "{name}: continued from {len}");
                engine.close(seq);
            }
        }
    }
}

/// Keys and values of another precision are other numbers: they are refused by name.
#[test]
fn a_saved_sequence_keeps_to_its_precision() {
    let store = random("base");
    let setup = |kv| Setup { kv, ..Setup::default() };
    let mut half = setup(KvPrecision::F16).cpu(&store);
    let seq = half.open().unwrap();
    half.prefill(seq, &prompt(30, store.store.config().vocab, 1)).unwrap();
    let bytes = half.save(seq).unwrap();
    for (kv, name) in [(KvPrecision::Q8, "q8"), (KvPrecision::F32, "f32")] {
        let error = setup(kv).cpu(&store).restore(&bytes).unwrap_err().to_string();
        for words in ["keys and values in f16", &format!("expected {name}"), "--kv f16"] {
            assert!(error.contains(words), "no {words} in {error}");
        }
    }
    assert!(half.restore(&bytes).is_ok());
}

/// Two branches of one conversation, written in turns, do not see each other: a shared page is never
/// written.
#[test]
fn branches_written_in_turns_are_independent() {
    let store = random("base");
    let vocab = store.store.config().vocab;
    let mut engine = Setup::default().cpu(&store);
    let trunk = prompt(70, vocab, 3);
    let ends = [prompt(9, vocab, 21), prompt(5, vocab, 22), prompt(1, vocab, 23)];
    let whole = |end: &Vec<u32>| [&trunk[..], end].concat();
    let alone: Vec<Answer> =
        ends.iter().map(|end| answer(&mut engine, &whole(end), &warm(9), 2, TOKENS)).collect();
    let base = engine.open().unwrap();
    engine.prefill(base, &trunk).unwrap();
    let branches = [engine.fork(base).unwrap(), engine.fork(base).unwrap(), base];
    for (&seq, end) in branches.iter().zip(&ends) {
        engine.prefill(seq, end).unwrap();
    }
    let mut writers: Vec<Writer> = branches
        .iter()
        .zip(&ends)
        .map(|(&seq, end)| Writer::new(seq, &warm(9), &whole(end), vocab))
        .collect();
    while writers.iter().any(|w| w.tokens.len() < TOKENS) {
        for writer in writers.iter_mut().filter(|w| w.tokens.len() < TOKENS) {
            let mut step = [Step::new(writer.seq, &mut writer.sampler, 2, &[])];
            engine.decode(&mut step).unwrap();
            let [step] = step;
            let out = step.out;
            writer.take(&out, TOKENS);
        }
    }
    for (writer, want) in writers.iter().zip(&alone) {
        assert_eq!(writer.answer(), *want);
    }
}

/// Cutting a step short leaves the state as if the dropped tokens had never been drawn.
#[test]
fn a_step_cut_short_leaves_no_trace() {
    let store = pocket();
    let vocab = store.store.config().vocab;
    let mut engine = Setup::default().cpu(&store);
    let prompt = prompt(130, vocab, 8);
    let want = answer(&mut engine, &prompt, &greedy(), 0, TOKENS);
    for keep in 1..=4 {
        let seq = engine.open().unwrap();
        engine.prefill(seq, &prompt).unwrap();
        let mut writer = Writer::new(seq, &greedy(), &prompt, vocab);
        let mut cut = 0;
        while writer.tokens.len() < TOKENS {
            let mut step = [Step::new(seq, &mut writer.sampler, 7, &[])];
            engine.decode(&mut step).unwrap();
            let [step] = step;
            let out = step.out;
            let kept = keep.min(out.len());
            cut += usize::from(kept < out.len());
            engine.commit(seq, kept).unwrap();
            writer.take(&out[..kept], TOKENS);
            let text = [&prompt[..], &writer.tokens].concat();
            let seen = engine.tokens(seq).unwrap();
            assert_eq!(seen[..text.len().min(seen.len())], text[..text.len().min(seen.len())]);
        }
        assert_eq!(writer.answer(), want, "keeping {keep}");
        assert!(keep == 4 || cut > 0, "nothing was ever cut");
        engine.close(seq);
    }
}

/// No token follows a stop token, also inside an accepted group of drafts.
#[test]
fn nothing_follows_a_stop_token() {
    let store = pocket();
    let vocab = store.store.config().vocab;
    let mut engine = Setup::default().cpu(&store);
    let prompt = prompt(60, vocab, 4);
    let text = answer(&mut engine, &prompt, &greedy(), 0, TOKENS).tokens;
    for at in 0..12 {
        let stop = [text[at]];
        let first = text.iter().position(|t| *t == text[at]).unwrap();
        let seq = engine.open().unwrap();
        engine.prefill(seq, &prompt).unwrap();
        let mut writer = Writer::new(seq, &greedy(), &prompt, vocab);
        while !writer.tokens.contains(&stop[0]) {
            let mut step = [Step::new(seq, &mut writer.sampler, 7, &stop)];
            engine.decode(&mut step).unwrap();
            let [step] = step;
            let out = step.out;
            writer.take(&out, usize::MAX);
        }
        assert_eq!(writer.tokens, text[..=first]);
        engine.close(seq);
    }
}

#[test]
fn replaced_drafts_change_speed_only() {
    let store = pocket();
    let vocab = store.store.config().vocab;
    let asked = long_prompt(vocab);
    for params in [greedy(), warm(5)] {
        let plain = answer(&mut Setup::default().cpu(&store), &asked, &params, 0, TOKENS);
        let known = plain.tokens.clone();
        for (shift, expected) in [(0, 1.0), (1, 0.0)] {
            let mut engine = Setup::default().cpu(&store);
            let (known, start) = (known.clone(), asked.len());
            engine.rewrite_drafts(Box::new(move |position, own| {
                // Position 0 of the answer is that of the first token behind the prompt.
                known.get(position - start).map_or(own, |t| (t + shift) % vocab as u32)
            }));
            // As many steps as are known to the end.
            assert_eq!(answer(&mut engine, &asked, &params, 3, TOKENS), plain);
            let counts = engine.snapshot();
            let hits = counts.accepted[0] as f64 / counts.drafted[0] as f64;
            // The last step may look beyond what is known.
            assert!((hits - expected).abs() <= 1.0 / counts.drafted[0] as f64, "{hits} {expected}");
        }
    }
}
