//! Comparison of two devices' results.
//!
//! Owns: what counts as equal. Never: running verbs.
//! Invariant: a difference that is not a number never counts as small.

use crate::device::TopkNorm;

/// A result that is too far off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Off {
    /// Row of the result.
    pub row: usize,
    /// Largest difference in that row, over its allowance.
    pub worst: f64,
    /// What was allowed there.
    pub allowed: f64,
}

/// Compares rows of `width` values; `allowed` says how much, by (row, column).
///
/// Two values that are both not finite are equal: a device may reach another kind of them.
///
/// # Errors
/// The first row with a value out of bounds, and its worst value.
pub fn values(
    width: usize,
    found: &[f32],
    expected: &[f32],
    allowed: impl Fn(usize, usize) -> f64,
) -> Result<(), Off> {
    if found.len() != expected.len() {
        return Err(Off { row: 0, worst: f64::INFINITY, allowed: 0.0 });
    }
    let rows = found.chunks_exact(width).zip(expected.chunks_exact(width));
    for (row, (found, expected)) in rows.enumerate() {
        let mut off: Option<Off> = None;
        for (column, (&found, &expected)) in found.iter().zip(expected).enumerate() {
            if !found.is_finite() && !expected.is_finite() {
                continue;
            }
            let worst = (f64::from(found) - f64::from(expected)).abs();
            let worst = if worst.is_nan() { f64::INFINITY } else { worst };
            let allowed = allowed(row, column);
            let fine = worst <= allowed;
            if !fine && off.is_none_or(|o| worst - allowed > o.worst - o.allowed) {
                off = Some(Off { row, worst, allowed });
            }
        }
        if let Some(off) = off {
            return Err(off);
        }
    }
    Ok(())
}

/// Compares the ids chosen for one row, given the score of every candidate. Another choice is right
/// when the candidates that changed places are closer than `allowed`.
///
/// # Errors
/// The difference of the scores; infinite when `found` is no choice at all.
pub fn choice(
    row: usize,
    found: &[u32],
    expected: &[u32],
    scores: &[f64],
    allowed: f64,
) -> Result<(), Off> {
    if found == expected {
        return Ok(());
    }
    let ascending = found.windows(2).all(|w| w[0] < w[1]);
    let known = found.iter().all(|&id| (id as usize) < scores.len());
    if found.len() != expected.len() || !ascending || !known {
        return Err(Off { row, worst: f64::INFINITY, allowed });
    }
    if scores.iter().any(|s| !s.is_finite()) {
        return Ok(());
    }
    let score = |id: &u32| scores[*id as usize];
    let missed = expected.iter().filter(|id| !found.contains(id)).map(score);
    let taken = found.iter().filter(|id| !expected.contains(id)).map(score);
    let worst = missed.fold(f64::MIN, f64::max) - taken.fold(f64::MAX, f64::min);
    if worst <= allowed { Ok(()) } else { Err(Off { row, worst, allowed }) }
}

/// Compares the weights of one row's chosen experts with what the router's logits say, when a logit
/// may be off by `allowed`.
///
/// # Errors
/// The worst weight.
pub fn route_weights(
    row: usize,
    ids: &[u32],
    weights: &[f32],
    norm: TopkNorm,
    logits: &[f64],
    allowed: f64,
) -> Result<(), Off> {
    let max = logits.iter().copied().fold(f64::MIN, f64::max);
    let exp: Vec<f64> = logits.iter().map(|l| libm::exp(l - max)).collect();
    let chosen = ids.iter().map(|&id| exp[id as usize]);
    let sum: f64 = match norm {
        TopkNorm::Sum => chosen.clone().sum(),
        TopkNorm::None => exp.iter().sum(),
    };
    let expected: Vec<f32> = chosen.map(|e| (e / sum) as f32).collect();
    // d ln(weight) is a logit's error against a mean of such errors: at most twice one.
    let slack = libm::exp(2.0 * allowed) - 1.0;
    values(ids.len(), weights, &expected, |_, i| f64::from(expected[i]).mul_add(slack, 1e-7))
        .map_err(|off| Off { row, ..off })
}

/// The largest magnitude of a row, of its finite values.
pub fn magnitude(row: &[f32]) -> f64 {
    let finite = row.iter().filter(|v| v.is_finite());
    finite.fold(0.0, |max: f64, &v| max.max(f64::from(v).abs()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_never_close_to_a_number() {
        let loose = |_, _| 1e9;
        assert!(values(1, &[f32::NAN], &[1.0], loose).is_err());
        assert!(values(1, &[1.0], &[f32::INFINITY], loose).is_err());
        assert_eq!(values(1, &[f32::NAN], &[f32::INFINITY], loose), Ok(()));
    }

    #[test]
    fn the_row_that_is_off_is_named() {
        let off = values(2, &[0.0, 1.0, 2.0, 3.5], &[0.0, 1.0, 2.25, 3.0], |_, _| 0.1);
        assert_eq!(off, Err(Off { row: 1, worst: 0.5, allowed: 0.1 }));
    }

    #[test]
    fn only_a_near_tie_may_be_chosen_otherwise() {
        let scores = [5.0, 3.0, 2.9, 1.0];
        assert_eq!(choice(0, &[0, 2], &[0, 1], &scores, 0.2), Ok(()));
        assert!(choice(0, &[0, 3], &[0, 1], &scores, 0.2).is_err());
        assert!(choice(0, &[1, 0], &[0, 1], &scores, 9.0).is_err(), "not ascending");
        assert!(choice(0, &[0], &[0, 1], &scores, 9.0).is_err(), "too few");
        assert!(choice(0, &[0, 4], &[0, 1], &scores, 9.0).is_err(), "no such candidate");
    }
}
