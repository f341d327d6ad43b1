//! MLX affine sources: codes kept bit for bit, widths joined, half-precision scales.

mod common;

use cherenkov_format::pack::{Options, Precision};
use cherenkov_format::qwen4_exp::config::Config;
use cherenkov_format::qwen4_exp::tensors::{self, Kind};
use cherenkov_format::{Bits, Encoding, Group, Projection, RowEncoding, Store, tile16};
use common::*;

/// Rewrites the quantisable tensors as MLX would; returns the codes by name.
fn to_mlx(
    tiny: &Tiny,
    config: &Config,
    bits: usize,
    group: usize,
    dtype: &'static str,
) -> (Tiny, Vec<(String, Mlx)>) {
    let mut all = Vec::new();
    let mut out = tiny.clone().mapped(split_switch);
    let mut names: Vec<String> = tensors::dense(config)
        .into_iter()
        .filter(|s| matches!(s.kind, Kind::Linear | Kind::Mix | Kind::Vocab) && s.cols % group == 0)
        .map(|s| official(&s.name))
        .collect();
    names.extend(
        out.tensors.keys().filter(|n| n.contains("switch_mlp") || n.contains("shard_")).cloned(),
    );
    for name in names {
        let t = out.tensors.remove(&name).unwrap();
        // n-gram rows and expert inner widths are 32 wide: their group is 32 always.
        let group = if t.shape[t.shape.len() - 1].is_multiple_of(group) { group } else { 32 };
        let m = mlx(&t, bits, group, dtype);
        [&m.weight, &m.scales, &m.biases].into_iter().for_each(|t| out.put(t.clone()));
        all.push((name, m));
    }
    out.config["quantization"] = serde_json::json!({"group_size": group, "bits": bits, "mode": "affine",
        "language_model.model.layers.0.mlp.gate": {"group_size": 64, "bits": 8}});
    (out, all)
}

fn codes_of(store: &Store, name: &str) -> (Vec<u8>, Vec<f32>) {
    let matrix = store.matrix(name).unwrap();
    let view = matrix.view();
    let Encoding::Tile16 { bits, group } = view.encoding() else { panic!("{name}") };
    let (size, groups) = (tile16::block_bytes(bits, group), view.cols() / group.get());
    let mut codes = Vec::new();
    for row in 0..view.rows() {
        for g in 0..groups {
            let mut part = vec![0; group.get()];
            let block = &view.bytes()[(row / 16 * groups + g) * size..][..size];
            tile16::get_row(block, bits, group, row % 16, &mut part);
            codes.extend(part);
        }
    }
    (codes, view.to_f32())
}

#[test]
fn mlx_codes_are_kept_bit_for_bit() {
    let (tiny, config) = tiny();
    for (bits, group) in [(2, 32), (3, 64), (4, 64), (4, 32), (4, 128), (5, 64), (6, 32), (8, 64)] {
        let (source, all) = to_mlx(&tiny, &config, bits, group, "BF16");
        let options = Options {
            experts: Precision::Bits(Bits::B8),
            ngram: Precision::Bits(Bits::B8),
            ..Options::default()
        };
        let packed = pack_with(&options, |d| source.write(d)).unwrap();
        let store = open(&packed);
        assert_eq!(store.manifest().source.format, "mlx-affine");
        let mut compared = 0;
        for (name, m) in &all {
            let canonical = name.strip_prefix("model.language_model.").unwrap_or(name);
            let canonical = canonical.strip_suffix(".weight").unwrap();
            if canonical.contains("switch_mlp") || canonical.contains("shard_") {
                continue;
            }
            let (codes, got) = codes_of(&store, canonical);
            assert_eq!(codes, m.codes, "{bits}/{group} {name}");
            let g = codes.len() / values(&m.scales).len();
            let (scales, biases) = (values(&m.scales), values(&m.biases));
            let want: Vec<f32> = m
                .codes
                .iter()
                .enumerate()
                .map(|(i, &c)| f32::from(c) * scales[i / g] + biases[i / g])
                .collect();
            assert_eq!(got, want, "{bits}/{group} {name}");
            compared += 1;
        }
        assert!(compared > 5);
        // Experts and table: the values the codes stand for, and no error counted.
        assert!(
            packed
                .report
                .quality
                .iter()
                .filter(|q| q.part != "dense")
                .all(|q| q.relative_rms == 0.0)
        );
        let (_, up) = all
            .iter()
            .find(|(n, _)| n.ends_with("layers.1.mlp.switch_mlp.up_proj.weight"))
            .unwrap();
        let layout = store.experts().layout();
        let mut record = vec![0; layout.bytes()];
        store.experts().read(1, 2, &mut record).unwrap();
        let got = layout.matrix(&record, Projection::Up).to_f32();
        let (g, n) = (up.codes.len() / values(&up.scales).len(), got.len());
        let want: Vec<f32> = (2 * n..3 * n)
            .map(|i| f32::from(up.codes[i]) * values(&up.scales)[i / g] + values(&up.biases)[i / g])
            .collect();
        assert_eq!(got, want, "{bits}/{group}");
    }
}

#[test]
fn wider_codes_are_quantised_anew() {
    let (tiny, config) = tiny();
    let (source, _) = to_mlx(&tiny, &config, 8, 64, "BF16");
    let packed = pack_with(&Options::default(), |d| source.write(d)).unwrap();
    let store = open(&packed);
    let (_, _, inner) = store.experts().layout().shape(Projection::Gate);
    assert_eq!(inner, Encoding::Tile16 { bits: Bits::B4, group: Group::G64 });
    let quality =
        |part| packed.report.quality.iter().find(|q| q.part == part).unwrap().relative_rms;
    assert!((0.01..0.2).contains(&quality("experts")), "{}", quality("experts"));
    assert_eq!(store.ngram(0).unwrap().encoding(), RowEncoding::Affine { bits: Bits::B4 });
}

#[test]
fn half_precision_scales_keep_their_codes_and_are_noted() {
    let (tiny, config) = tiny();
    let (source, all) = to_mlx(&tiny, &config, 4, 64, "F16");
    let packed = pack_with(&Options::default(), |d| source.write(d)).unwrap();
    let (name, m) = all.iter().find(|(n, _)| n.contains("in_proj_qkv")).unwrap();
    let canonical =
        name.strip_prefix("model.language_model.").unwrap().strip_suffix(".weight").unwrap();
    assert_eq!(codes_of(&open(&packed), canonical).0, m.codes);
    assert!(
        packed.report.notes.iter().any(|n| n.contains("bf16 cannot hold")),
        "{:?}",
        packed.report.notes
    );
    let quality = &packed.report.quality[0];
    assert!(quality.relative_rms > 0.0 && quality.relative_rms < 0.02, "{quality:?}");
}

#[test]
fn mixed_expert_widths_share_one_exact_layout() {
    let (tiny, config) = tiny();
    let (mut source, _) = to_mlx(&tiny, &config, 4, 64, "BF16");
    let wide = mlx(
        &tiny.clone().mapped(split_switch).tensors["model.language_model.layers.0.mlp.switch_mlp.gate_proj.weight"],
        8,
        32,
        "BF16",
    );
    [&wide.weight, &wide.scales, &wide.biases].into_iter().for_each(|t| source.put(t.clone()));
    let options = Options { experts: Precision::Bits(Bits::B8), ..Options::default() };
    let packed = pack_with(&options, |d| source.write(d)).unwrap();
    let layout = open(&packed).experts().layout();
    assert_eq!(
        layout.shape(Projection::Gate).2,
        Encoding::Tile16 { bits: Bits::B8, group: Group::G32 }
    );
    assert_eq!(
        layout.shape(Projection::Down).2,
        Encoding::Tile16 { bits: Bits::B4, group: Group::G32 }
    );
    let experts = packed.report.quality.iter().find(|q| q.part == "experts").unwrap();
    assert_eq!(experts.relative_rms, 0.0);
}

#[test]
fn nan_scales_are_refused() {
    let (tiny, config) = tiny();
    let (mut source, all) = to_mlx(&tiny, &config, 4, 64, "BF16");
    let name = all[0].1.scales.name.clone();
    source.tensors.get_mut(&name).unwrap().bytes[0..2].copy_from_slice(&[0xc0, 0x7f]);
    check_refused("nan scale", &source, &[&name, "NaN"]);
}
