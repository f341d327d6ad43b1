//! Choosing scale, bias and codes of a group of weights.
//!
//! Owns: the error-minimising search. Never: layouts, files.
//! Invariant: the error counted is the one the engine will see, with scale and bias already rounded
//! to bf16; it is never larger than that of the plain rule (scale from the range, bias from the
//! minimum). The same group gives the same result on every machine.
//!
//! The search: several ranges, from the full one inwards, then at 2 and 3 bits the best one with either
//! end moved by itself, since groups are lopsided; for each, codes by rounding and scale and bias by
//! least squares, alternately; then the bf16 neighbours of the best pair, until none is better. At 2
//! to 4 bits the inner ranges win (large values are clipped so that the many small ones get a finer
//! grid); at 8 bits the neighbours do (bf16 is coarser than the grid there). At 2 and 3 bits 98 % is
//! found of what the best of 576 ranges gains over the plain rule (squared error, pocket model); then
//! a little of it is given back for values that are not smaller on the whole than they were.

use crate::encoding::Bits;
use crate::float::{bf16_to_f32, f32_to_bf16};

/// Widest group.
pub const GROUP_MAX: usize = 64;
const LANES: usize = 8;

/// A quantised group.
#[derive(Clone, Copy, Debug)]
pub struct Quantised {
    /// Scale, bf16 bits.
    pub scale: u16,
    /// Bias, bf16 bits.
    pub bias: u16,
    /// Codes; only the group's length is used.
    pub codes: [u8; GROUP_MAX],
    /// Sum of squared errors.
    pub error: f64,
    /// What the plain rule would have given.
    pub plain_error: f64,
}

/// A bf16 scale and bias, with the sum of squared errors in f32.
#[derive(Clone, Copy)]
struct Pair {
    scale: u16,
    bias: u16,
    error: f32,
}

/// Ranges tried, as factors about the middle of the full range.
fn factors(bits: Bits) -> &'static [f32] {
    match bits {
        Bits::B2 => &[1.0, 0.9, 0.8, 0.7, 0.6, 0.5],
        Bits::B3 => &[1.0, 0.92, 0.84, 0.76, 0.68],
        Bits::B4 => &[1.0, 0.95, 0.9, 0.84, 0.78],
        Bits::B8 => &[1.0],
    }
}

/// By how much one end of the best range is moved, in the same unit.
fn shifts(bits: Bits) -> &'static [f32] {
    match bits {
        Bits::B2 | Bits::B3 => &[-0.2, -0.1, 0.1, 0.2],
        // A gain of a hundredth in the error for half as much time again.
        Bits::B4 | Bits::B8 => &[],
    }
}

/// Quantises one group.
///
/// # Panics
/// When the group is empty, longer than [`GROUP_MAX`] or not a multiple of 8 long.
pub fn quantise(values: &[f32], bits: Bits) -> Quantised {
    assert!(!values.is_empty() && values.len() <= GROUP_MAX && values.len().is_multiple_of(LANES));
    let lo = values.iter().copied().fold(f32::INFINITY, f32::min);
    let hi = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if lo == hi {
        return constant(values);
    }
    let max = f32::from(bits.max_code());
    let plain = (f32_to_bf16((hi - lo) / max), f32_to_bf16(lo));
    let mut best = pair(values, plain, max);
    let middle = lo + (hi - lo) * 0.5;
    let within = |(low, high): (f32, f32)| {
        let (from, to) = (middle + (lo - middle) * low, middle + (hi - middle) * high);
        refine(values, ((to - from) / max, from), max)
    };
    let mut place = (1.0, 1.0);
    for ends in factors(bits).iter().map(|&factor| (factor, factor)) {
        let found = within(ends);
        if found.error < best.error {
            (best, place) = (found, ends);
        }
    }
    let (low, high) = place;
    for ends in shifts(bits).iter().flat_map(|by| [(low + by, high), (low, high + by)]) {
        let found = within(ends);
        if found.error < best.error {
            best = found;
        }
    }
    best = descend(values, best, max);
    let plain = finish(values, plain, bits);
    let mut found = finish(values, (best.scale, best.bias), bits);
    if bits <= Bits::B3 {
        found = unshrunk(values, found);
    }
    let plain_error = plain.error;
    Quantised { plain_error, ..if found.error < plain_error { found } else { plain } }
}

/// One value throughout: exact whenever it is a bf16 number, else to 16 bits.
fn constant(values: &[f32]) -> Quantised {
    let value = values[0];
    let bias = f32_to_bf16(value);
    let rest = value - bf16_to_f32(bias);
    let mut result = finish(values, (f32_to_bf16(rest), bias), Bits::B2);
    result.codes = [u8::from(rest != 0.0); GROUP_MAX];
    result.error = error_of(values, &result);
    result.plain_error = values.len() as f64 * f64::from(rest) * f64::from(rest);
    result
}

/// Rounds `value` to the grid: its code, still as a float, for a given scale and bias.
#[inline(always)]
fn code(value: f32, inverse: f32, bias: f32, max: f32) -> f32 {
    // A float this large has no fraction: adding it rounds to the nearest whole number, ties to
    // even, with plain additions that every instruction set vectorises. The comparisons also turn
    // a NaN (infinite inverse of a tiny scale, times zero) into a code.
    const WHOLE: f32 = (3 << 22) as f32;
    let at = (value - bias) * inverse;
    let at = if at > 0.0 { at } else { 0.0 };
    let at = if at < max { at } else { max };
    (at + WHOLE) - WHOLE
}

fn inverse(scale: f32) -> f32 {
    if scale == 0.0 { 0.0 } else { 1.0 / scale }
}

/// Squared error of a bf16 pair; eight running sums keep the order fixed and let compilers vectorise.
fn pair(values: &[f32], (scale, bias): (u16, u16), max: f32) -> Pair {
    let (s, b) = (bf16_to_f32(scale), bf16_to_f32(bias));
    let inverse = inverse(s);
    let mut sums = [0f32; LANES];
    for chunk in values.as_chunks::<LANES>().0 {
        for i in 0..LANES {
            let d = chunk[i] - (code(chunk[i], inverse, b, max) * s + b);
            sums[i] += d * d;
        }
    }
    Pair { scale, bias, error: total(sums) }
}

fn total(sums: [f32; LANES]) -> f32 {
    sums.iter().sum()
}

/// Alternates codes and least squares from a starting grid; the result is rounded to bf16.
fn refine(values: &[f32], start: (f32, f32), max: f32) -> Pair {
    let n = values.len() as f32;
    let mean = {
        let mut sums = [0f32; LANES];
        for chunk in values.chunks_exact(LANES) {
            sums.iter_mut().zip(chunk).for_each(|(sum, &x)| *sum += x);
        }
        total(sums) / n
    };
    let (mut scale, mut bias) = start;
    let mut code_mean = 0.0;
    for _ in 0..3 {
        let inverse = inverse(scale);
        let (mut c1, mut c2, mut cx) = ([0f32; LANES], [0f32; LANES], [0f32; LANES]);
        for chunk in values.as_chunks::<LANES>().0 {
            for i in 0..LANES {
                let c = code(chunk[i], inverse, bias, max);
                c1[i] += c;
                c2[i] += c * c;
                cx[i] += c * (chunk[i] - mean);
            }
        }
        code_mean = total(c1) / n;
        let variance = total(c2) - n * code_mean * code_mean;
        let covariance = total(cx);
        if variance <= 0.0 || covariance <= 0.0 {
            break;
        }
        scale = covariance / variance;
        bias = mean - scale * code_mean;
    }
    // The bias that suits the scale as it will be stored.
    let rounded = f32_to_bf16(scale);
    let bias = if code_mean > 0.0 { mean - bf16_to_f32(rounded) * code_mean } else { bias };
    pair(values, (rounded, f32_to_bf16(bias)), max)
}

/// The bf16 numbers next to `bits`, by magnitude; zero keeps to itself.
fn neighbours(bits: u16) -> [u16; 3] {
    if bits & 0x7fff == 0 { [bits; 3] } else { [bits, bits - 1, bits + 1] }
}

/// Moves to the best neighbouring pair until none is better.
fn descend(values: &[f32], mut best: Pair, max: f32) -> Pair {
    for _ in 0..4 {
        let from = best;
        for scale in neighbours(from.scale) {
            for bias in neighbours(from.bias) {
                if (scale, bias) != (from.scale, from.bias) {
                    let found = pair(values, (scale, bias), max);
                    if found.error < best.error {
                        best = found;
                    }
                }
            }
        }
        if (best.scale, best.bias) == (from.scale, from.bias) {
            break;
        }
    }
    best
}

fn finish(values: &[f32], (scale, bias): (u16, u16), bits: Bits) -> Quantised {
    let (s, b) = (bf16_to_f32(scale), bf16_to_f32(bias));
    let mut codes = [0u8; GROUP_MAX];
    for (c, &x) in codes.iter_mut().zip(values) {
        *c = code(x, inverse(s), b, f32::from(bits.max_code())) as u8;
    }
    let mut result = Quantised { scale, bias, codes, error: 0.0, plain_error: 0.0 };
    result.error = error_of(values, &result);
    result
}

/// The same codes with a scale that shrinks nothing. The least squared error pulls all values towards
/// their mean, at 2 bits by a tenth: a matrix of such groups gives outputs that are a tenth too small,
/// and layer after layer makes more of that. Here the values, regressed on the original ones, have a
/// slope of 1 and the same mean; what is left is noise that averages out.
fn unshrunk(values: &[f32], found: Quantised) -> Quantised {
    let n = values.len() as f64;
    let codes = || found.codes.iter().take(values.len()).map(|&c| f64::from(c));
    let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
    let middle = codes().sum::<f64>() / n;
    let (mut variance, mut covariance) = (0.0, 0.0);
    for (&v, c) in values.iter().zip(codes()) {
        let v = f64::from(v) - mean;
        variance += v * v;
        covariance += v * (c - middle);
    }
    if found.error == 0.0 || covariance <= 0.0 {
        return found;
    }
    let scale = f32_to_bf16((variance / covariance) as f32);
    let bias = f32_to_bf16((mean - f64::from(bf16_to_f32(scale)) * middle) as f32);
    let mut result = Quantised { scale, bias, ..found };
    result.error = error_of(values, &result);
    result
}

/// Sum of squared errors in f64, as the engine reads the group.
fn error_of(values: &[f32], q: &Quantised) -> f64 {
    let (scale, bias) = (bf16_to_f32(q.scale), bf16_to_f32(q.bias));
    values
        .iter()
        .zip(&q.codes)
        .map(|(&x, &c)| {
            let d = f64::from(x) - f64::from(f32::from(c) * scale + bias);
            d * d
        })
        .sum()
}

/// Rounds a scale and a bias of f16 or f32 to bf16 while the codes stay: the bias is refitted to
/// the rounded scale. Returns the pair and the squared error this causes (0 when both fit exactly).
pub fn round_affine(scale: f32, bias: f32, codes: &[u8]) -> ((u16, u16), f64) {
    let rounded = f32_to_bf16(scale);
    let exact = bf16_to_f32(rounded) == scale && bf16_to_f32(f32_to_bf16(bias)) == bias;
    if exact {
        return ((rounded, f32_to_bf16(bias)), 0.0);
    }
    let mean = codes.iter().map(|&c| f64::from(c)).sum::<f64>() / codes.len() as f64;
    let drift = f64::from(scale) - f64::from(bf16_to_f32(rounded));
    let fitted = f32_to_bf16((f64::from(bias) + drift * mean) as f32);
    let off = f64::from(bias) - f64::from(bf16_to_f32(fitted));
    let error = codes.iter().map(|&c| (drift * f64::from(c) + off).powi(2)).sum();
    ((rounded, fitted), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn worth(values: &[f32], q: &Quantised) -> Vec<f32> {
        let (s, b) = (bf16_to_f32(q.scale), bf16_to_f32(q.bias));
        values.iter().zip(&q.codes).map(|(_, &c)| f32::from(c) * s + b).collect()
    }

    fn group() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            -1.0f32..1.0,
            Just(0.0f32),
            (-40i32..40).prop_map(|e| 2f32.powi(e)),
            any::<u16>().prop_map(bf16_to_f32).prop_filter("finite", |v| v.abs() < 1e18),
        ];
        prop_oneof![
            prop::collection::vec(value.clone(), 64),
            prop::collection::vec(value, 32),
            prop::collection::vec(-0.1f32..0.1, 64),
        ]
    }

    proptest! {
        #[test]
        fn never_worse_than_the_plain_rule(values in group(), bits in prop::sample::select(&Bits::ALL[..])) {
            let q = quantise(&values, bits);
            prop_assert!(q.error <= q.plain_error);
            prop_assert!(q.codes[..values.len()].iter().all(|&c| c <= bits.max_code()));
            let back = worth(&values, &q);
            let error: f64 = values.iter().zip(&back).map(|(&x, &y)| (f64::from(x) - f64::from(y)).powi(2)).sum();
            prop_assert_eq!(error, q.error);
            let again = quantise(&values, bits);
            prop_assert_eq!((again.scale, again.bias, again.codes), (q.scale, q.bias, q.codes));
        }

        #[test]
        fn constant_groups_are_exact(bits in prop::sample::select(&Bits::ALL[..]), raw in any::<u16>()) {
            let value = bf16_to_f32(raw);
            prop_assume!(value.is_finite());
            let values = [value; 64];
            let q = quantise(&values, bits);
            prop_assert_eq!(q.error, 0.0);
            prop_assert_eq!(worth(&values, &q), values.to_vec());
        }

        #[test]
        fn values_on_a_bf16_grid_come_back(bits in prop::sample::select(&Bits::ALL[..]), seed in any::<u64>()) {
            // A grid whose scale and bias are powers of two, both ends used.
            let max = bits.max_code();
            let mut state = seed | 1;
            let values: Vec<f32> = (0..64).map(|i| {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                let c = match i { 0 => 0, 1 => max, _ => (state >> 40) as u8 & max };
                f32::from(c) * 0.25 - 8.0
            }).collect();
            prop_assert_eq!(quantise(&values, bits).error, 0.0);
        }

        #[test]
        fn rounding_a_scale_costs_little(scale in 1e-3f32..1.0, bias in -8f32..0.0, seed in any::<u64>()) {
            let codes: Vec<u8> = (0..64).map(|i| ((seed >> (i % 60)) & 15) as u8).collect();
            let ((s, b), error) = round_affine(scale, bias, &codes);
            let measured: f64 = codes.iter().map(|&c| {
                let d = f64::from(scale) * f64::from(c) + f64::from(bias)
                    - f64::from(bf16_to_f32(s)) * f64::from(c) - f64::from(bf16_to_f32(b));
                d * d
            }).sum();
            prop_assert!((error - measured).abs() <= 1e-9 + measured * 1e-6);
            // The refitted bias is at least as good as the plainly rounded one.
            let plain: f64 = codes.iter().map(|&c| {
                let d = f64::from(scale) * f64::from(c) + f64::from(bias)
                    - f64::from(bf16_to_f32(s)) * f64::from(c) - f64::from(bf16_to_f32(f32_to_bf16(bias)));
                d * d
            }).sum();
            prop_assert!(error <= plain * (1.0 + 1e-9));
        }
    }

    #[test]
    fn rounding_in_the_search_never_makes_it_worse() {
        // Few distinct values: many candidates tie but for the rounding of their sums.
        let mut state = 3u64;
        for _ in 0..20_000 {
            let values: Vec<f32> = (0..32)
                .map(|_| {
                    state = state.wrapping_mul(6364136223846793005).wrapping_add(1);
                    1.0 + ((state >> 60) as f32 - 8.0) * 2f32.powi(-7)
                })
                .collect();
            for bits in Bits::ALL {
                let q = quantise(&values, bits);
                assert!(q.error <= q.plain_error, "{bits:?} {values:?}");
            }
        }
    }

    #[test]
    fn refitting_the_bias_pays_over_many_groups() {
        let (mut fitted, mut plain) = (0.0, 0.0);
        for i in 1..2000u32 {
            let (scale, bias) = (0.01 + i as f32 * 1.37e-5, -0.05 - i as f32 * 1.71e-5);
            let codes: Vec<u8> = (0..64).map(|c| (c * i % 16) as u8).collect();
            let ((s, _), error) = round_affine(scale, bias, &codes);
            fitted += error;
            let (drift, off) = (scale - bf16_to_f32(s), bias - bf16_to_f32(f32_to_bf16(bias)));
            let one = |&c: &u8| (f64::from(drift) * f64::from(c) + f64::from(off)).powi(2);
            plain += codes.iter().map(one).sum::<f64>();
        }
        assert!(fitted < 0.9 * plain, "{fitted} against {plain}");
    }

    #[test]
    fn the_search_gains_on_gaussian_weights() {
        // Sums of uniform numbers: close enough to a bell.
        let mut state = 7u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        for (bits, gain) in
            [(Bits::B2, 0.76), (Bits::B3, 0.885), (Bits::B4, 0.95), (Bits::B8, 0.995)]
        {
            let (mut best, mut plain) = (0.0, 0.0);
            for _ in 0..200 {
                let values: Vec<f32> = (0..64)
                    .map(|_| {
                        bf16_to_f32(f32_to_bf16((0..6).map(|_| uniform()).sum::<f32>() * 0.02))
                    })
                    .collect();
                let q = quantise(&values, bits);
                best += q.error;
                plain += q.plain_error;
            }
            let ratio = (best / plain).sqrt();
            assert!(ratio < gain, "{bits:?}: {ratio}");
        }
    }

    #[test]
    fn few_bits_do_not_shrink_a_group() {
        let mut state = 11u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        for bits in [Bits::B2, Bits::B3] {
            for _ in 0..100 {
                let values: Vec<f32> =
                    (0..64).map(|_| 0.01 + (0..6).map(|_| uniform()).sum::<f32>() * 0.02).collect();
                let back = worth(&values, &quantise(&values, bits));
                let mean = |x: &[f32]| x.iter().sum::<f32>() / 64.0;
                let (a, b) = (mean(&values), mean(&back));
                let with = |y: &[f32], b: f32| -> f32 {
                    values.iter().zip(y).map(|(x, y)| (x - a) * (y - b)).sum()
                };
                let slope = with(&back, b) / with(&values, a);
                // A bf16 scale is off by a 256th at most, a bias by as much of the largest value.
                assert!((slope - 1.0).abs() < 0.005, "{bits:?}: {slope}");
                assert!((a - b).abs() < 5e-4, "{bits:?}: {a} {b}");
            }
        }
    }

    /// The least error of the best of 576 ranges, with unrounded scale and bias.
    fn exhaustive(values: &[f32], max: f64) -> f64 {
        let x: Vec<f64> = values.iter().map(|&v| f64::from(v)).collect();
        let (lo, hi) = x.iter().fold((f64::MAX, f64::MIN), |(a, b), &v| (a.min(v), b.max(v)));
        let (middle, n) = ((lo + hi) / 2.0, x.len() as f64);
        let mean = x.iter().sum::<f64>() / n;
        let error = |low: usize, high: usize| {
            let at = |end: f64, i: usize| middle + (end - middle) * (0.25 + 0.035 * i as f64);
            let (mut bias, mut scale) = (at(lo, low), (at(hi, high) - at(lo, low)) / max);
            let code = |v: f64, scale: f64, bias: f64| ((v - bias) / scale).round().clamp(0.0, max);
            for _ in 0..12 {
                let codes: Vec<f64> = x.iter().map(|&v| code(v, scale, bias)).collect();
                let middle = codes.iter().sum::<f64>() / n;
                let variance: f64 = codes.iter().map(|c| (c - middle).powi(2)).sum();
                let pairs = codes.iter().zip(&x);
                let covariance: f64 = pairs.map(|(c, v)| (c - middle) * (v - mean)).sum();
                if variance > 0.0 && covariance > 0.0 {
                    scale = covariance / variance;
                    bias = mean - scale * middle;
                }
            }
            let off = |&v: &f64| (v - code(v, scale, bias) * scale - bias).powi(2);
            x.iter().map(off).sum::<f64>()
        };
        let ends = (0..24).flat_map(|low| (0..24).map(move |high| (low, high)));
        ends.map(|(low, high)| error(low, high)).fold(f64::MAX, f64::min)
    }

    #[test]
    fn the_search_comes_close_to_the_best_of_all_ranges() {
        let mut state = 5u64;
        let mut uniform = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
        };
        for (bits, bar) in [(Bits::B2, 1.14), (Bits::B3, 1.06)] {
            let (mut found, mut best) = (0.0, 0.0);
            for _ in 0..60 {
                let values: Vec<f32> =
                    (0..64).map(|_| (0..6).map(|_| uniform()).sum::<f32>() * 0.02).collect();
                found += quantise(&values, bits).error;
                best += exhaustive(&values, f64::from(bits.max_code()));
            }
            let ratio = found / best;
            assert!(ratio < bar, "{bits:?}: {ratio}");
        }
    }
}
