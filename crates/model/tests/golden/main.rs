//! The reference against golden values of the public implementation (tools/golden).

mod files;
mod pass;

use files::Golden;
use pass::Loaded;

/// Largest difference of a row over the row's largest value.
fn row_error(found: &[f32], expected: &[f32]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0f64, |m, &e| m.max(f64::from(e).abs()));
    let worst = found
        .iter()
        .zip(expected)
        .fold(0f64, |m, (&f, &e)| m.max((f64::from(f) - f64::from(e)).abs()));
    worst / scale
}

fn worst_row(found: &[f32], expected: &[f32], width: usize) -> f64 {
    assert_eq!(found.len(), expected.len());
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    rows.map(|(f, e)| row_error(f, e)).fold(0.0, f64::max)
}

const BOUND: f64 = 1e-5;

/// Experts may differ only where the golden choice is closer than rounding can decide.
const ROUTER_TIE: f32 = 2e-6;

fn check_router(golden: &Golden, prompt: &str, routes: &[Vec<Vec<u32>>]) {
    let expected = golden.ints(&format!("{prompt}.router"));
    let margin = golden.floats(&format!("{prompt}.router_margin"));
    let (tokens, k) = (routes[0].len(), routes[0][0].len());
    for (layer, rows) in routes.iter().enumerate() {
        for (token, row) in rows.iter().enumerate() {
            let at = layer * tokens + token;
            let mut want: Vec<u32> = expected[at * k..][..k].iter().map(|&e| e as u32).collect();
            want.sort_unstable();
            assert!(
                *row == want || margin[at] < ROUTER_TIE,
                "{prompt}: layer {layer}, token {token}: found experts {row:?}, expected {want:?}"
            );
        }
    }
}

/// Allowed blocks of each query according to the mask.
fn check_mask(golden: &Golden, prompt: &str, layer: usize, picks: &[Vec<u32>], ratio: usize) {
    let Some(mask) = golden.bytes(&format!("{prompt}.qsa_mask.{layer}")) else { return };
    let tokens = picks.len();
    for (query, blocks) in picks.iter().enumerate() {
        let row = &mask[query * tokens..][..tokens];
        let complete = (query + 1) / ratio;
        let seen = |key: usize| {
            key <= query && (key / ratio >= complete || blocks.contains(&((key / ratio) as u32)))
        };
        for (key, &visible) in row.iter().enumerate() {
            assert_eq!(
                seen(key),
                visible != 0,
                "{prompt}: layer {layer}, query {query}, key {key}"
            );
        }
    }
}

fn check_fixture(name: &str) {
    let golden = Golden::open(&files::fixtures().join("random").join(name).join("golden"));
    let mut worst = [0f64; 4];
    for chunk in [usize::MAX, 1, 3] {
        let mut loaded = Loaded::from_checkpoint(golden.dir.parent().unwrap());
        for prompt in &golden.prompts {
            let run = loaded.run(&prompt.ids, chunk);
            let at = |what: &str| format!("{}.{what}", prompt.name);
            let vocab = loaded.config().vocab;
            let error = worst_row(&run.logits, &golden.floats(&at("logits")), vocab);
            assert!(error < BOUND, "{name}/{}: logits are off by {error:e}", prompt.name);
            worst[0] = worst[0].max(error);
            check_router(&golden, &prompt.name, &run.routes);
            let ratio = loaded.config().attention.index_ratio;
            for (layer, picks) in &run.picks {
                check_mask(&golden, &prompt.name, *layer, picks, ratio);
            }
            if golden.has(&at("stream")) {
                let error =
                    worst_row(&run.streams, &golden.floats(&at("stream")), loaded.config().wide());
                assert!(error < BOUND, "{name}/{}: streams are off by {error:e}", prompt.name);
                worst[1] = worst[1].max(error);
            }
            if golden.has(&at("mtp_logits")) {
                let (rows, chain) = loaded.draft(prompt, chunk);
                let error = worst_row(&rows, &golden.floats(&at("mtp_logits")), vocab);
                assert!(error < BOUND, "{name}/{}: draft head is off by {error:e}", prompt.name);
                worst[2] = worst[2].max(error);
                let error = worst_row(&chain, &golden.floats(&at("mtp_chain_logits")), vocab);
                assert!(
                    error < BOUND,
                    "{name}/{}: chained drafts are off by {error:e}",
                    prompt.name
                );
                worst[3] = worst[3].max(error);
            }
            loaded.close();
        }
    }
    println!(
        "{name}: worst relative error of a row: logits {:.1e}, streams {:.1e}, draft {:.1e}, chained {:.1e}",
        worst[0], worst[1], worst[2], worst[3]
    );
}

macro_rules! fixtures {
    ($($name:ident),*) => {$(
        #[test]
        fn $name() {
            check_fixture(stringify!($name));
        }
    )*};
}

fixtures!(base, ple3, wide, silu, eos_list, tied_flat, interval2, ties);

/// The constants of the official configuration, as the reference's own code computes them.
#[test]
fn official_hash() {
    use cherenkov_format::qwen4_exp::config::Ple;
    use cherenkov_format::qwen4_exp::hash::HashTable;
    let text = std::fs::read_to_string(files::fixtures().join("hash_official.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    let ints = |v: &serde_json::Value| -> Vec<i64> {
        v.as_array().unwrap().iter().map(|v| v.as_i64().unwrap()).collect()
    };
    let ple = Ple {
        layers: vec![1],
        embed_dim: 2560,
        conv_kernel: 4,
        ngram: 3,
        heads_per_ngram: 8,
        vocab_base: 20_000_000,
        divisor: 128,
        seed: 1234,
    };
    let table = HashTable::new(&ple, 248_320, 0);
    assert_eq!(table.multipliers, ints(&json["multipliers"]));
    assert_eq!(table.sizes, ints(&json["sizes"]));
    assert_eq!(table.offsets, ints(&json["offsets"]));
    assert_eq!(table.rows, json["padded_rows"].as_u64().unwrap());
    for window in json["windows"].as_array().unwrap() {
        let tokens: Vec<u32> = ints(&window["ids"]).iter().map(|&t| t as u32).collect();
        let rows = window["rows"].as_array().unwrap();
        for (at, rows) in rows.iter().enumerate() {
            let (mut slots, mut got) = ([0; 3], Vec::new());
            cherenkov_format::qwen4_exp::hash::window(&tokens, at, 248_044, &mut slots);
            table.rows_of(&slots, &mut got);
            let got: Vec<i64> = got.iter().map(|&r| r as i64).collect();
            assert_eq!(got, ints(rows), "token {at} of {tokens:?}");
        }
    }
}
