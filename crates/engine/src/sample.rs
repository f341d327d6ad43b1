//! From logits to a token.
//!
//! Owns: penalties, filters, the draw. Never: the model.
//! Order: penalties, bias, temperature, top-k, top-p, min-p, then `argmax(logit + Gumbel noise)`,
//! which draws from the softmax of what is left. Ties go to the lowest id.
//! Invariant: the draw depends on the logits, the settings, the tokens so far and the position only.

use crate::error::{Error, Result};
use crate::noise::gumbel_above;
use std::collections::HashMap;

/// Settings of one request.
#[derive(Clone, Debug, PartialEq)]
pub struct SampleParams {
    /// 0 is greedy.
    pub temperature: f32,
    /// Most candidates; 0 keeps all.
    pub top_k: usize,
    /// Smallest probability mass kept; 1 keeps all.
    pub top_p: f32,
    /// Candidates below this share of the best one's probability go; 0 keeps all.
    pub min_p: f32,
    /// Seed of the noise.
    pub seed: u64,
    /// Divides (or multiplies, if negative) the logit of every token seen in prompt or answer.
    pub repetition_penalty: f32,
    /// Subtracted once from the logit of every token of the answer.
    pub presence_penalty: f32,
    /// Subtracted per occurrence in the answer.
    pub frequency_penalty: f32,
    /// Added to the logits of some tokens; negative infinity forbids.
    pub logit_bias: Vec<(u32, f32)>,
    /// How many of the most likely tokens are reported with each token; `None` reports nothing.
    pub logprobs: Option<usize>,
}

impl Default for SampleParams {
    /// Greedy, nothing else.
    fn default() -> Self {
        Self {
            temperature: 0.0,
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            seed: 0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            logprobs: None,
        }
    }
}

impl SampleParams {
    /// Checks every range.
    ///
    /// # Errors
    /// [`Error::Setting`] for the first value out of range.
    pub fn validate(&self) -> Result<()> {
        let check = |ok: bool, name, found: f32, expected| {
            if ok {
                Ok(())
            } else {
                Err(Error::Setting { name, found: found.to_string(), expected })
            }
        };
        let finite = |v: f32, low: f32, high: f32| v >= low && v <= high;
        check(finite(self.temperature, 0.0, 100.0), "temperature", self.temperature, "0 to 100")?;
        check(self.top_p > 0.0 && self.top_p <= 1.0, "top_p", self.top_p, "above 0, at most 1")?;
        check(finite(self.min_p, 0.0, 1.0), "min_p", self.min_p, "0 to 1")?;
        let repetition = self.repetition_penalty;
        check(
            repetition > 0.0 && repetition.is_finite(),
            "repetition_penalty",
            repetition,
            "above 0",
        )?;
        let presence = self.presence_penalty;
        check(finite(presence, -100.0, 100.0), "presence_penalty", presence, "-100 to 100")?;
        let frequency = self.frequency_penalty;
        check(finite(frequency, -100.0, 100.0), "frequency_penalty", frequency, "-100 to 100")?;
        for &(_, bias) in &self.logit_bias {
            check(bias < f32::INFINITY, "logit_bias", bias, "a number below infinity")?;
        }
        Ok(())
    }
}

/// A drawn token.
#[derive(Clone, Debug, PartialEq)]
pub struct Drawn {
    /// The token.
    pub token: u32,
    /// What the request asked to see of the distribution.
    pub logprobs: Option<LogProbs>,
}

/// Log-probabilities under the model's own distribution (before penalties and temperature).
#[derive(Clone, Debug, PartialEq)]
pub struct LogProbs {
    /// Of the drawn token.
    pub chosen: f32,
    /// The most likely tokens, most likely first.
    pub top: Vec<(u32, f32)>,
}

/// Draws the tokens of one request.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SampleParams,
    /// Occurrences in the answer.
    generated: HashMap<u32, u32>,
    /// Occurrences in the prompt; only whether there are any matters.
    prompt: HashMap<u32, u32>,
}

impl Sampler {
    /// A sampler for an answer to `prompt`.
    ///
    /// # Errors
    /// When a setting is out of range.
    pub fn new(params: SampleParams, prompt: &[u32]) -> Result<Self> {
        params.validate()?;
        let mut counts = HashMap::new();
        if params.repetition_penalty != 1.0 {
            prompt.iter().for_each(|&t| *counts.entry(t).or_insert(0) += 1);
        }
        Ok(Self { params, generated: HashMap::new(), prompt: counts })
    }

    /// The settings.
    pub fn params(&self) -> &SampleParams {
        &self.params
    }

    /// Counts a token of the answer.
    pub fn accept(&mut self, token: u32) {
        *self.generated.entry(token).or_insert(0) += 1;
    }

    /// Takes one [`Self::accept`] back.
    pub fn retract(&mut self, token: u32) {
        let count = self.generated.get_mut(&token).expect("the token was accepted");
        *count -= 1;
        if *count == 0 {
            self.generated.remove(&token);
        }
    }

    /// Draws the token at `position` (its index in the sequence).
    ///
    /// # Errors
    /// When the logits are not finite or nothing is left to draw.
    pub fn draw(&self, logits: &[f32], position: usize) -> Result<Drawn> {
        if !logits.iter().all(|l| l.is_finite()) {
            return Err(Error::NonFinite { position });
        }
        let mut shifted = logits.to_vec();
        self.penalise(&mut shifted);
        let token = if self.params.temperature == 0.0 {
            argmax(shifted.iter().enumerate().map(|(i, &l)| (i as u32, f64::from(l)))).map(|b| b.0)
        } else {
            self.draw_warm(&shifted, position)
        };
        let token = token.ok_or(Error::NoCandidate { position })?;
        let logprobs = self.params.logprobs.map(|top| logprobs(logits, token, top));
        Ok(Drawn { token, logprobs })
    }

    fn penalise(&self, logits: &mut [f32]) {
        let p = &self.params;
        if p.repetition_penalty != 1.0 {
            let answer = self.generated.keys().filter(|t| !self.prompt.contains_key(t));
            for &token in self.prompt.keys().chain(answer) {
                let logit = &mut logits[token as usize];
                *logit = if *logit > 0.0 {
                    *logit / p.repetition_penalty
                } else {
                    *logit * p.repetition_penalty
                };
            }
        }
        for (&token, &count) in &self.generated {
            logits[token as usize] -= p.presence_penalty + p.frequency_penalty * count as f32;
        }
        for &(token, bias) in &p.logit_bias {
            if let Some(logit) = logits.get_mut(token as usize) {
                *logit += bias;
            }
        }
    }

    fn draw_warm(&self, logits: &[f32], position: usize) -> Option<u32> {
        let p = &self.params;
        let scale = 1.0 / f64::from(p.temperature);
        let finite = logits.iter().enumerate().filter(|(_, l)| **l > f32::NEG_INFINITY);
        let scaled = finite.map(|(i, &l)| (i as u32, f64::from(l) * scale));
        if p.top_k == 0 && p.top_p >= 1.0 && p.min_p <= 0.0 {
            return noisy_argmax(scaled, p.seed, position);
        }
        let mut kept: Vec<(u32, f64)> = scaled.collect();
        let order = |a: &(u32, f64), b: &(u32, f64)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
        if p.top_k > 0 && p.top_k < kept.len() {
            kept.select_nth_unstable_by(p.top_k - 1, order);
            kept.truncate(p.top_k);
        }
        if p.top_p < 1.0 {
            kept.sort_unstable_by(order);
            kept.truncate(nucleus(&kept, f64::from(p.top_p)));
        }
        if p.min_p > 0.0 {
            let best = kept.iter().map(|k| k.1).fold(f64::NEG_INFINITY, f64::max);
            let floor = best + libm::log(f64::from(p.min_p));
            kept.retain(|k| k.1 >= floor);
        }
        noisy_argmax(kept.into_iter(), p.seed, position)
    }
}

/// How many of the candidates (best first) it takes to reach the probability mass.
fn nucleus(sorted: &[(u32, f64)], mass: f64) -> usize {
    let Some(&(_, best)) = sorted.first() else { return 0 };
    let weights: Vec<f64> = sorted.iter().map(|k| libm::exp(k.1 - best)).collect();
    let total: f64 = weights.iter().sum();
    let mut sum = 0.0;
    for (i, w) in weights.iter().enumerate() {
        sum += w;
        if sum >= mass * total {
            return i + 1;
        }
    }
    sorted.len()
}

/// The candidate with the largest value so far; the lowest id among equals. Minus infinity never wins.
#[derive(Clone, Copy, Default)]
struct Best(Option<(u32, f64)>);

impl Best {
    fn offer(&mut self, token: u32, value: f64) {
        let better = match self.0 {
            None => value > f64::NEG_INFINITY,
            Some((held, top)) => value > top || (value == top && token < held),
        };
        if better {
            self.0 = Some((token, value));
        }
    }
}

fn argmax(candidates: impl Iterator<Item = (u32, f64)>) -> Option<(u32, f64)> {
    let mut best = Best::default();
    candidates.for_each(|(token, value)| best.offer(token, value));
    best.0
}

/// `argmax` of the candidates plus their noise. Noise is only worked out where it could win: the best
/// candidate goes first, and most others cannot reach it with the bits that they have.
fn noisy_argmax(
    candidates: impl Iterator<Item = (u32, f64)> + Clone,
    seed: u64,
    position: usize,
) -> Option<u32> {
    let first = argmax(candidates.clone())?;
    let mut best = Best::default();
    for (token, value) in std::iter::once(first).chain(candidates) {
        let floor = best.0.map_or(f64::NEG_INFINITY, |(_, top)| top - value);
        if let Some(noise) = gumbel_above(seed, position, token, floor) {
            best.offer(token, value + noise);
        }
    }
    best.0.map(|(token, _)| token)
}

fn logprobs(logits: &[f32], token: u32, top: usize) -> LogProbs {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| libm::exp(f64::from(l - max))).sum();
    let log_sum = f64::from(max) + libm::log(sum);
    let of = |t: u32| (f64::from(logits[t as usize]) - log_sum) as f32;
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    let order =
        |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
    let top = top.min(ids.len());
    if top > 0 && top < ids.len() {
        ids.select_nth_unstable_by(top - 1, order);
    }
    ids.truncate(top);
    ids.sort_unstable_by(order);
    LogProbs { chosen: of(token), top: ids.into_iter().map(|t| (t, of(t))).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::noise::gumbel;

    fn sampler(params: SampleParams) -> Sampler {
        Sampler::new(params, &[]).unwrap()
    }

    fn warm(seed: u64) -> SampleParams {
        SampleParams { temperature: 1.0, seed, ..SampleParams::default() }
    }

    #[test]
    fn greedy_takes_the_lowest_id_among_equals() {
        let drawn = sampler(SampleParams::default()).draw(&[1.0, 3.0, 3.0, 2.0], 5).unwrap();
        assert_eq!(drawn.token, 1);
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0, 1.0, 2.0, -1.0];
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        let s = sampler(warm(3));
        let n = 40_000;
        let mut counts = [0u32; 4];
        for position in 0..n {
            counts[s.draw(&logits, position).unwrap().token as usize] += 1;
        }
        for (count, logit) in counts.iter().zip(logits) {
            let expected = f64::from(logit).exp() / sum;
            let found = f64::from(*count) / n as f64;
            assert!((found - expected).abs() < 0.01, "found {found}, expected {expected}");
        }
    }

    #[test]
    fn skipped_noise_changes_no_draw() {
        for seed in 0..40 {
            let spread = [0.1, 1.0, 4.0, 12.0][seed as usize % 4];
            let wave = |i: u32| (i.wrapping_mul(2_654_435_761) >> 8) as f32 / (1 << 24) as f32;
            let logits: Vec<f32> = (0..3000).map(|i| spread * 10.0 * wave(i)).collect();
            let s = sampler(warm(seed));
            for position in 0..5 {
                let all = logits.iter().enumerate();
                let plain =
                    argmax(all.map(|(t, &l)| {
                        (t as u32, f64::from(l) + gumbel(seed, position, t as u32))
                    }));
                assert_eq!(
                    Some(s.draw(&logits, position).unwrap().token),
                    plain.map(|b| b.0),
                    "seed {seed}"
                );
            }
        }
    }

    #[test]
    fn filters_keep_what_they_say() {
        let logits = [5.0, 4.0, 3.0, 2.0, 1.0];
        let seen = |params: SampleParams| {
            let s = sampler(params);
            let mut seen: Vec<u32> = (0..2000).map(|p| s.draw(&logits, p).unwrap().token).collect();
            seen.sort_unstable();
            seen.dedup();
            seen
        };
        assert_eq!(seen(SampleParams { top_k: 2, ..warm(1) }), [0, 1]);
        // Probabilities: 0.636, 0.234, 0.086, 0.032, 0.012.
        assert_eq!(seen(SampleParams { top_p: 0.64, ..warm(1) }), [0, 1]);
        assert_eq!(seen(SampleParams { top_p: 0.63, ..warm(1) }), [0]);
        assert_eq!(seen(SampleParams { min_p: 0.13, ..warm(1) }), [0, 1, 2]);
        assert_eq!(seen(SampleParams { top_k: 0, ..warm(1) }), [0, 1, 2, 3, 4]);
    }

    #[test]
    fn penalties_count_the_answer_and_repetition_the_prompt_too() {
        let params = SampleParams { presence_penalty: 2.0, ..SampleParams::default() };
        let mut s = Sampler::new(params, &[0]).unwrap();
        assert_eq!(s.draw(&[3.0, 2.0], 0).unwrap().token, 0, "the prompt does not count");
        s.accept(0);
        assert_eq!(s.draw(&[3.0, 2.0], 1).unwrap().token, 1);
        s.accept(0);
        assert_eq!(s.draw(&[3.0, 0.9], 1).unwrap().token, 0, "presence counts once");
        s.retract(0);
        s.retract(0);
        assert_eq!(s.draw(&[3.0, 2.0], 1).unwrap().token, 0, "taken back");
        let params = SampleParams { repetition_penalty: 2.0, ..SampleParams::default() };
        let s = Sampler::new(params.clone(), &[0, 0]).unwrap();
        assert_eq!(s.draw(&[3.0, 2.0], 0).unwrap().token, 1);
        assert_eq!(s.draw(&[3.0, 1.0], 0).unwrap().token, 0, "once per distinct token");
        let s = Sampler::new(params, &[0]).unwrap();
        assert_eq!(s.draw(&[-1.0, -1.5], 0).unwrap().token, 1, "negative logits are multiplied");
        let params = SampleParams { frequency_penalty: 1.0, ..SampleParams::default() };
        let mut s = Sampler::new(params, &[]).unwrap();
        s.accept(0);
        s.accept(0);
        assert_eq!(s.draw(&[3.0, 1.5], 0).unwrap().token, 1, "frequency counts occurrences");
    }

    #[test]
    fn what_is_not_a_number_is_an_error() {
        let s = sampler(SampleParams::default());
        assert!(matches!(s.draw(&[0.0, f32::NAN], 7), Err(Error::NonFinite { position: 7 })));
        let banned = vec![(0, f32::NEG_INFINITY), (1, f32::NEG_INFINITY)];
        for temperature in [0.0, 1.0] {
            let params =
                SampleParams { logit_bias: banned.clone(), temperature, ..Default::default() };
            let drawn = sampler(params).draw(&[0.0, 1.0], 7);
            assert!(matches!(drawn, Err(Error::NoCandidate { position: 7 })));
        }
        assert!(Sampler::new(SampleParams { top_p: 0.0, ..Default::default() }, &[]).is_err());
        assert!(
            Sampler::new(SampleParams { temperature: f32::NAN, ..Default::default() }, &[])
                .is_err()
        );
    }

    #[test]
    fn logprobs_are_those_of_the_model() {
        let params = SampleParams { logprobs: Some(2), ..SampleParams::default() };
        let got = sampler(params).draw(&[0.0, 2.0, 1.0], 0).unwrap().logprobs.unwrap();
        let sum = (1f64 + 2f64.exp() + 1f64.exp()).ln();
        assert!((f64::from(got.chosen) - (2.0 - sum)).abs() < 1e-6);
        assert_eq!(got.top.iter().map(|t| t.0).collect::<Vec<_>>(), [1, 2]);
    }
}
