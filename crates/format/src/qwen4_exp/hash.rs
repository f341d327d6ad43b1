//! The n-gram hash: multipliers, table sizes and row ids.
//!
//! Owns: the integer constants of MODEL "PLE" and the row computation, in 64-bit integers only
//! (floats lose bits of the multipliers). Never: table bytes.

use super::config::{Config, Ple};
use serde::{Deserialize, Serialize};

const GOLDEN_GAMMA: u64 = 0x9E37_79B9_7F4A_7C15;

/// The integer constants of one PLE layer's table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HashTable {
    /// One odd multiplier per position of the window, the current token's first.
    pub multipliers: Vec<i64>,
    /// Rows of each head: bigram heads first.
    pub sizes: Vec<i64>,
    /// First row of each head.
    pub offsets: Vec<i64>,
    /// Rows of the table, padding included.
    pub rows: u64,
}

fn splitmix64(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(GOLDEN_GAMMA);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn is_prime(n: u64) -> bool {
    if n < 4 {
        return n >= 2;
    }
    if n.is_multiple_of(2) {
        return false;
    }
    let mut d = 3;
    while d <= n / d {
        if n.is_multiple_of(d) {
            return false;
        }
        d += 2;
    }
    true
}

impl HashTable {
    /// The constants of the `index`-th PLE layer (zero-based place in the sorted list).
    ///
    /// Head `j` has as size the `(index * heads + j + 1)`-th prime at or above the base.
    pub fn new(ple: &Ple, vocab: usize, index: usize) -> Self {
        let heads = ple.heads();
        let primes = (ple.vocab_base..).filter(|&n| is_prime(n));
        let sizes: Vec<i64> = primes.skip(index * heads).take(heads).map(|p| p as i64).collect();
        let mut total = 0;
        let offsets = sizes
            .iter()
            .map(|size| {
                let offset = total;
                total += size;
                offset
            })
            .collect();
        let half = ((i64::MAX as u64 / vocab as u64) / 2).max(1);
        let multipliers = (0..ple.ngram as u64)
            .map(|i| {
                let seed = ple
                    .seed
                    .wrapping_add(10007u64.wrapping_mul(index as u64))
                    .wrapping_add(GOLDEN_GAMMA.wrapping_mul(i + 1));
                (2 * (splitmix64(seed) % half) + 1) as i64
            })
            .collect();
        let rows = (total as u64).next_multiple_of(ple.divisor);
        Self { multipliers, sizes, offsets, rows }
    }

    /// The constants of every PLE layer, in the order of `ple.layers`.
    pub fn all(config: &Config) -> Vec<Self> {
        config
            .ple
            .iter()
            .flat_map(|ple| (0..ple.layers.len()).map(|index| Self::new(ple, config.vocab, index)))
            .collect()
    }

    /// The table rows of one token, one per head.
    ///
    /// `window[0]` is the current token, `window[i]` the one `i` places before it, already replaced
    /// by the end token where it would lie before the start or beyond an end token.
    pub fn rows_of(&self, window: &[u32], rows: &mut Vec<u64>) {
        let lengths = self.multipliers.len() - 1;
        let per_length = self.sizes.len() / lengths;
        let mut mix = i64::from(window[0]).wrapping_mul(self.multipliers[0]);
        for (n, (&id, m)) in window[1..=lengths].iter().zip(&self.multipliers[1..]).enumerate() {
            mix ^= i64::from(id).wrapping_mul(*m);
            for head in n * per_length..(n + 1) * per_length {
                rows.push((mix.rem_euclid(self.sizes[head]) + self.offsets[head]) as u64);
            }
        }
    }
}

/// Fills `window` (see [`HashTable::rows_of`]) for position `at` of `tokens`.
///
/// Ids before the start, and ids at or before the last `eos` preceding `at`, count as `eos`; an
/// `eos` at `at` itself still sees what precedes it.
pub fn window(tokens: &[u32], at: usize, eos: u32, window: &mut [u32]) {
    let mut open = true;
    for (back, slot) in window.iter_mut().enumerate() {
        if back > 0 {
            open = open && back <= at && tokens[at - back] != eos;
        }
        *slot = if open { tokens[at - back] } else { eos };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn official() -> Ple {
        Ple {
            layers: vec![1],
            embed_dim: 2560,
            conv_kernel: 4,
            ngram: 3,
            heads_per_ngram: 8,
            vocab_base: 20_000_000,
            divisor: 128,
            seed: 1234,
        }
    }

    #[test]
    fn official_constants() {
        let table = HashTable::new(&official(), 248_320, 0);
        assert_eq!(table.multipliers, [23_703_573_157_769, 20_109_073_645_365, 8_052_911_324_071]);
        let tail = [3, 23, 33, 47, 59, 63, 69, 77, 81, 93, 107, 147, 153, 159, 161, 171];
        assert_eq!(table.sizes, tail.map(|t| 20_000_000 + t));
        assert_eq!(table.offsets[1], 20_000_003);
        assert_eq!(table.rows, 320_001_536);
    }

    #[test]
    fn the_window_never_crosses_an_end_token() {
        let check = |tokens: &[u32], at: usize, want: [u32; 3]| {
            let mut got = [0; 3];
            window(tokens, at, 9, &mut got);
            assert_eq!(got, want, "{tokens:?} at {at}");
        };
        check(&[1], 0, [1, 9, 9]);
        check(&[1, 2], 1, [2, 1, 9]);
        check(&[1, 2, 3], 2, [3, 2, 1]);
        check(&[1, 9, 3], 2, [3, 9, 9]);
        check(&[1, 2, 9], 2, [9, 2, 1]);
        check(&[1, 9, 9], 2, [9, 9, 9]);
        check(&[9, 2, 3], 2, [3, 2, 9]);
    }
}
