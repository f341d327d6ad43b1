//! What a text says about logits.
//!
//! Owns: the formulas of perplexity, divergence and agreement; sums in f64. Never: engines.
//!
//! With p and q the distributions of the base and of the model under test after a token, and t the
//! token that follows:
//!
//! ```text
//! perplexity = exp(mean(-ln q(t)))      KL(p || q) = sum over tokens of p ln(p / q), in nats
//! ```

/// A row of logits as logarithms of probabilities.
struct LogSoftmax<'a> {
    logits: &'a [f32],
    /// Logarithm of the sum of exponentials.
    normaliser: f64,
}

impl<'a> LogSoftmax<'a> {
    fn new(logits: &'a [f32]) -> Self {
        let top = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|&l| (f64::from(l) - top).exp()).sum();
        Self { logits, normaliser: top + sum.ln() }
    }

    fn of(&self, token: usize) -> f64 {
        f64::from(self.logits[token]) - self.normaliser
    }

    /// The most probable token, the lowest among equals.
    fn top(&self) -> usize {
        let better =
            |best: usize, i: usize| if self.logits[i] > self.logits[best] { i } else { best };
        (0..self.logits.len()).fold(0, better)
    }
}

/// Sums over predictions.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tally {
    /// Predictions.
    pub count: usize,
    /// Sum of `-ln q(t)`.
    loss: f64,
    /// Predictions whose most probable token came.
    right: usize,
    /// Against the base, if there is one.
    pub against: Option<Comparison>,
}

/// Sums of a comparison.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Comparison {
    /// Sum of `-ln p(t)`.
    loss: f64,
    /// Sum of the divergences, and of their squares.
    divergence: [f64; 2],
    /// The largest divergence, in nats.
    pub divergence_max: f64,
    /// Predictions on whose most probable token both agree.
    agreed: usize,
}

/// Logits that are not numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// Of the model under test.
    Model,
    /// Of the base.
    Base,
}

impl Tally {
    /// Counts one prediction: logits of the model under test, those of the base, the token that came.
    ///
    /// # Errors
    /// When the logits have no distribution.
    pub fn add(&mut self, logits: &[f32], base: Option<&[f32]>, came: u32) -> Result<(), Broken> {
        let (q, came) = (LogSoftmax::new(logits), came as usize);
        if !q.normaliser.is_finite() {
            return Err(Broken::Model);
        }
        if let Some(base) = base {
            let p = LogSoftmax::new(base);
            if !p.normaliser.is_finite() {
                return Err(Broken::Base);
            }
            self.against.get_or_insert_default().add(&p, &q, came);
        }
        self.count += 1;
        self.loss -= q.of(came);
        self.right += usize::from(q.top() == came);
        Ok(())
    }

    /// Counts the predictions of another tally.
    pub fn merge(&mut self, other: &Self) {
        self.count += other.count;
        self.loss += other.loss;
        self.right += other.right;
        if let Some(other) = &other.against {
            self.against.get_or_insert_default().merge(other);
        }
    }

    fn mean(&self, sum: f64) -> f64 {
        sum / self.count.max(1) as f64
    }

    /// Perplexity of the model under test.
    pub fn perplexity(&self) -> f64 {
        self.mean(self.loss).exp()
    }

    /// Share of predictions whose most probable token came.
    pub fn accuracy(&self) -> f64 {
        self.mean(self.right as f64)
    }
}

impl Comparison {
    fn add(&mut self, p: &LogSoftmax<'_>, q: &LogSoftmax<'_>, came: usize) {
        let part = |t: usize| p.of(t).exp() * (p.of(t) - q.of(t));
        let divergence: f64 = (0..p.logits.len()).map(part).sum();
        self.loss -= p.of(came);
        self.divergence[0] += divergence;
        self.divergence[1] += divergence * divergence;
        self.divergence_max = self.divergence_max.max(divergence);
        self.agreed += usize::from(p.top() == q.top());
    }

    fn merge(&mut self, other: &Self) {
        self.loss += other.loss;
        self.divergence[0] += other.divergence[0];
        self.divergence[1] += other.divergence[1];
        self.divergence_max = self.divergence_max.max(other.divergence_max);
        self.agreed += other.agreed;
    }

    /// Perplexity of the base.
    pub fn perplexity(&self, all: &Tally) -> f64 {
        all.mean(self.loss).exp()
    }

    /// Perplexity of the model under test divided by the base's.
    pub fn ratio(&self, all: &Tally) -> f64 {
        all.mean(all.loss - self.loss).exp()
    }

    /// Mean divergence in nats per token.
    pub fn divergence(&self, all: &Tally) -> f64 {
        all.mean(self.divergence[0])
    }

    /// Standard error of that mean, as if tokens were independent; 0 for one token.
    pub fn divergence_error(&self, all: &Tally) -> f64 {
        let mean = self.divergence(all);
        let variance = (all.mean(self.divergence[1]) - mean * mean).max(0.0);
        (variance / (all.count.max(2) - 1) as f64).sqrt()
    }

    /// Share of predictions with the same most probable token.
    pub fn agreement(&self, all: &Tally) -> f64 {
        all.mean(self.agreed as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn near(a: f64, b: f64) {
        assert!((a - b).abs() < 1e-6, "{a} and {b}");
    }

    fn logits(p: [f32; 3]) -> [f32; 3] {
        p.map(f32::ln).map(|l| l + 5.0)
    }

    #[test]
    fn figures_are_those_of_the_formulas() {
        let (q, p) = ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25]);
        let mut all = Tally::default();
        all.add(&logits(q), Some(&logits(p)), 0).unwrap();
        all.add(&logits(q), Some(&logits(q)), 1).unwrap();
        let against = all.against.unwrap();
        near(all.perplexity(), 8f64.sqrt());
        near(all.accuracy(), 0.5);
        near(against.perplexity(&all), 4.0);
        near(against.ratio(&all), 0.5f64.sqrt());
        let kl = 0.25 * 0.5f64.ln() + 0.5 * 2f64.ln();
        near(against.divergence(&all), kl / 2.0);
        near(against.divergence_max, kl);
        near(against.divergence_error(&all), kl / 2.0);
        near(against.agreement(&all), 0.5);
    }

    #[test]
    fn parts_add_up() {
        let (q, p) = (logits([0.5, 0.25, 0.25]), logits([0.125, 0.5, 0.375]));
        let rows = [(q, p, 0), (p, q, 2), (q, q, 1)];
        let (mut all, mut merged) = (Tally::default(), Tally::default());
        for (q, p, came) in &rows {
            all.add(q, Some(p), *came).unwrap();
            let mut one = Tally::default();
            one.add(q, Some(p), *came).unwrap();
            merged.merge(&one);
        }
        assert_eq!(merged, all);
        let mut alone = Tally::default();
        alone.add(&q, None, 0).unwrap();
        merged.merge(&alone);
        assert_eq!((merged.count, merged.against), (4, all.against));
    }

    #[test]
    fn equal_logits_do_not_diverge_and_huge_ones_do_not_overflow() {
        let row = [1e4, -1e4, 3.0];
        let mut all = Tally::default();
        all.add(&row, Some(&row), 0).unwrap();
        let against = all.against.unwrap();
        assert_eq!(against.divergence(&all), 0.0);
        assert_eq!(against.ratio(&all), 1.0);
        near(all.perplexity(), 1.0);
    }

    #[test]
    fn what_is_no_number_is_an_error() {
        let (good, bad) = ([0.0, 1.0], [0.0, f32::NAN]);
        let mut all = Tally::default();
        assert_eq!(all.add(&bad, Some(&good), 0), Err(Broken::Model));
        assert_eq!(all.add(&good, Some(&bad), 0), Err(Broken::Base));
        assert_eq!(all.add(&[f32::INFINITY, 0.0], None, 0), Err(Broken::Model));
        assert_eq!(all, Tally::default());
    }
}
