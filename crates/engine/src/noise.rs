//! The counter-based generator behind sampling.
//!
//! Owns: noise as a pure function of (seed, position, token). Never: state.
//! Invariant: the same noise for draft and target, so speculation changes no token.
//!
//! Philox4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers: as easy as 1, 2, 3", 2011).

const MUL: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

fn wide(a: u32, b: u32) -> (u32, u32) {
    let product = u64::from(a) * u64::from(b);
    ((product >> 32) as u32, product as u32)
}

/// Ten rounds of Philox4x32.
pub fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..10 {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let (high0, low0) = wide(MUL[0], counter[0]);
        let (high1, low1) = wide(MUL[1], counter[2]);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

fn bits(seed: u64, position: usize, token: u32) -> u32 {
    let position = position as u64;
    let counter = [token, position as u32, (position >> 32) as u32, 0];
    philox(counter, [seed as u32, (seed >> 32) as u32])[0]
}

fn gumbel_of(bits: u32) -> f64 {
    let u = (f64::from(bits) + 0.5) / 4_294_967_296.0;
    -libm::log(-libm::log(u))
}

/// Standard Gumbel noise `-ln(-ln u)` for one token at one position.
pub fn gumbel(seed: u64, position: usize, token: u32) -> f64 {
    gumbel_of(bits(seed, position, token))
}

/// [`gumbel`], or `None` when it is certainly below `floor`: found out without logarithms, because
/// `-ln u >= 1 - u`, so that the noise is at most `-ln(1 - u)`, and `1 - u > 2^-(z + 1)` where `u` starts
/// with z ones.
pub fn gumbel_above(seed: u64, position: usize, token: u32, floor: f64) -> Option<f64> {
    /// A little above `-ln(1 - u)` of the largest u.
    const MOST: f64 = 22.9;
    if floor >= MOST {
        return None;
    }
    let bits = bits(seed, position, token);
    let bound = f64::from(bits.leading_ones() + 1) * std::f64::consts::LN_2 + 1e-6;
    (bound >= floor).then(|| gumbel_of(bits))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers published with the Random123 library.
    #[test]
    fn known_answers() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], [u32::MAX; 2]),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox(
                [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
                [0xa409_3822, 0x299f_31d0]
            ),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn only_noise_below_the_floor_is_left_out() {
        let mut left_out = 0;
        for token in 0..20_000 {
            let noise = gumbel(3, 8, token);
            assert_eq!(gumbel_above(3, 8, token, noise), Some(noise));
            assert_eq!(gumbel_above(3, 8, token, f64::NEG_INFINITY), Some(noise));
            left_out += usize::from(gumbel_above(3, 8, token, noise + 2.0).is_none());
        }
        assert!(left_out > 15_000, "{left_out}");
        assert!([0, 1, u32::MAX - 1, u32::MAX].map(gumbel_of).iter().all(|g| *g < 22.9));
    }

    #[test]
    fn gumbel_has_the_right_mean_and_variance() {
        let n = 100_000;
        let draws: Vec<f64> = (0..n).map(|i| gumbel(7, i / 100, (i % 100) as u32)).collect();
        let mean = draws.iter().sum::<f64>() / n as f64;
        let var = draws.iter().map(|d| (d - mean).powi(2)).sum::<f64>() / n as f64;
        assert!((mean - 0.577_216).abs() < 0.02, "{mean}");
        assert!((var - 1.644_934).abs() < 0.05, "{var}");
    }
}
