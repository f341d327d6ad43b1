//! The reference against golden values of the public implementation (tools/golden).

mod files;
mod pass;

use files::{Golden, Prompt};
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

/// Worst relative errors seen: logits, streams, draft head, chained drafts.
#[derive(Default)]
struct Worst([f64; 4]);

impl Worst {
    fn note(&mut self, what: usize, prompt: &str, found: &[f32], expected: &[f32], width: usize) {
        let error = worst_row(found, expected, width);
        let name = ["logits", "streams", "draft head", "chained drafts"][what];
        assert!(error < BOUND, "{prompt}: {name} are off by {error:e}");
        self.0[what] = self.0[what].max(error);
    }

    fn print(&self, name: &str) {
        let [logits, streams, draft, chained] = self.0;
        println!(
            "{name}: worst relative error of a row: logits {logits:.1e}, streams {streams:.1e}, \
             draft {draft:.1e}, chained {chained:.1e}"
        );
    }
}

fn check_prompt(
    golden: &Golden,
    loaded: &mut Loaded,
    prompt: &Prompt,
    chunk: usize,
    worst: &mut Worst,
) {
    let at = |what: &str| format!("{}.{what}", prompt.name);
    let (vocab, wide) = (loaded.config().vocab, loaded.config().wide());
    let run = loaded.run(&prompt.ids, chunk);
    worst.note(0, &prompt.name, &run.logits, &golden.floats(&at("logits")), vocab);
    check_router(golden, &prompt.name, &run.routes);
    let ratio = loaded.config().attention.index_ratio;
    for (layer, picks) in &run.picks {
        check_mask(golden, &prompt.name, *layer, picks, ratio);
    }
    if golden.has(&at("stream")) {
        worst.note(1, &prompt.name, &run.streams, &golden.floats(&at("stream")), wide);
    }
    if golden.has(&at("mtp_logits")) {
        let (rows, chain) = loaded.draft(prompt, chunk);
        let rows = &rows[prompt.draft_from * vocab..];
        worst.note(2, &prompt.name, rows, &golden.floats(&at("mtp_logits")), vocab);
        worst.note(3, &prompt.name, &chain, &golden.floats(&at("mtp_chain_logits")), vocab);
    }
    loaded.close();
}

fn check_fixture(name: &str) {
    let golden = Golden::open(&files::fixtures().join("random").join(name).join("golden"));
    let mut worst = Worst::default();
    for chunk in [usize::MAX, 1, 3] {
        let mut loaded = Loaded::from_checkpoint(golden.dir.parent().unwrap());
        for prompt in &golden.prompts {
            check_prompt(&golden, &mut loaded, prompt, chunk, &mut worst);
        }
    }
    worst.print(name);
}

/// The bundled model, against the public implementation on its dequantised weights.
#[test]
fn pocket() {
    let golden = Golden::open(&files::fixtures().join("pocket"));
    let mut worst = Worst::default();
    let mut loaded = Loaded::from_store(&files::fixtures().join("../assets/pocket"));
    for prompt in golden.prompts.iter().filter(|p| golden.has(&format!("{}.logits", p.name))) {
        check_prompt(&golden, &mut loaded, prompt, 100, &mut worst);
    }
    worst.print("pocket");
}

/// The bundled model's greedy text is that of the public implementation.
#[test]
fn pocket_greedy() {
    let golden = Golden::open(&files::fixtures().join("pocket"));
    let mut loaded = Loaded::from_store(&files::fixtures().join("../assets/pocket"));
    for prompt in &golden.prompts {
        assert!(!prompt.greedy.is_empty());
        let found = loaded.greedy(&prompt.ids, prompt.greedy.len());
        assert_eq!(found, prompt.greedy, "{}", prompt.name);
        loaded.close();
    }
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
