//! Choices: the best blocks of a row, the experts of a row.
//!
//! Owns: selection with ties to the lowest index; the softmax of the router. Never: sampling.

use super::lanes::{load_tail, store_tail};
use super::math::exp;
use crate::simd::{LANES, Op, Simd};

/// Candidates are thinned when they are so many times those wanted.
const CROWD: usize = 4;

/// The indices of the `k` largest values, lowest index first among equals, ascending; all of them when
/// there are no more than `k`. NaN counts as larger than everything. `keys` is memory.
pub fn largest(values: &[f32], k: usize, keys: &mut Vec<u64>, out: &mut Vec<u32>) {
    out.clear();
    if values.len() <= k {
        out.extend(0..values.len() as u32);
        return;
    }
    if k == 0 {
        return;
    }
    keys.clear();
    // Ascending keys are descending values; equal values are ordered by index.
    let mut limit = u64::MAX;
    let best = |keys: &mut Vec<u64>| {
        keys.select_nth_unstable(k - 1);
        keys.truncate(k);
        keys[k - 1]
    };
    for (i, v) in values.iter().enumerate() {
        let key = u64::from(!rank(*v)) << 32 | i as u64;
        // Worse than k others: cannot be among the best. Few of many values come this far.
        if key < limit {
            keys.push(key);
            if keys.len() == CROWD * k {
                limit = best(keys);
            }
        }
    }
    best(keys);
    out.extend(keys.iter().map(|key| *key as u32));
    out.sort_unstable();
}

/// Maps floats to integers of the same order; both zeros are equal, NaN is the largest.
fn rank(value: f32) -> u32 {
    if value.is_nan() {
        return u32::MAX;
    }
    let bits = (value + 0.0).to_bits();
    if bits >> 31 == 0 { bits | 1 << 31 } else { !bits }
}

/// `row = softmax(row)`.
pub struct Softmax<'a> {
    /// In and out.
    pub row: &'a mut [f32],
}

impl Op for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let top = self.row.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a });
        let mut sum = s.splat(0.0);
        for chunk in self.row.chunks_mut(LANES) {
            let p = exp(s, s.sub(load_tail(s, chunk), s.splat(top)));
            store_tail(s, p, chunk);
            sum = s.add(sum, load_tail(s, chunk));
        }
        let sum = s.splat(s.sum(sum));
        super::lanes::update(
            s,
            self.row,
            #[inline(always)]
            |p| s.div(p, sum),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pick(values: &[f32], k: usize) -> Vec<u32> {
        let (mut keys, mut out) = (Vec::new(), Vec::new());
        largest(values, k, &mut keys, &mut out);
        out
    }

    #[test]
    fn ties_go_to_the_lowest_index() {
        assert_eq!(pick(&[0.0, 1.0, 0.0, 1.0, 0.0], 3), [0, 1, 3]);
        assert_eq!(pick(&[-0.0, 0.0, -0.0], 2), [0, 1]);
        assert_eq!(pick(&[-1.0, -2.0, -1.0, -0.5], 2), [0, 3]);
        assert_eq!(pick(&[1.0; 100], 7), [0, 1, 2, 3, 4, 5, 6]);
    }

    #[test]
    fn the_best_of_many_are_those_that_sorting_finds() {
        let mut state = 1u64;
        for n in [33, 128, 129, 1000, 8192] {
            for distinct in [2, 50, 1 << 20] {
                let mut next = || {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    ((state >> 33) % distinct) as f32 - distinct as f32 / 2.0
                };
                let mut values: Vec<f32> = (0..n).map(|_| next()).collect();
                for rising in [false, true] {
                    if rising {
                        values.sort_by(f32::total_cmp);
                    }
                    let mut order: Vec<u32> = (0..n as u32).collect();
                    order.sort_by(|a, b| values[*b as usize].total_cmp(&values[*a as usize]));
                    let mut expected = order[..32].to_vec();
                    expected.sort_unstable();
                    assert_eq!(pick(&values, 32), expected, "{n} values, {distinct} distinct");
                }
            }
        }
    }

    #[test]
    fn few_values_are_all_chosen_and_none_when_none_is_wanted() {
        assert_eq!(pick(&[3.0, f32::NAN], 2), [0, 1]);
        assert_eq!(pick(&[3.0, 4.0], 0), [] as [u32; 0]);
        assert_eq!(pick(&[3.0, f32::NAN, f32::INFINITY], 1), [1]);
    }
}
