//! How many drafts a step should have.
//!
//! Owns: estimates of acceptance and of what a draft costs, made from steps so far; the choice. Never: a
//! clock (times are told), tokens. The choice changes no token: drafts are verified.
//!
//! With `a(i)` the share of i-th drafts accepted among those whose forerunners were, a step of `d` drafts
//! yields `1 + a(1) + a(1) a(2) + ... + a(1) ... a(d)` tokens on average. Its time is that of the last few
//! dozen steps of this depth, and where there were few, `base + slope * d`, fitted to all of them: the slope
//! holds everything that a row costs more, the experts that it alone has to read among it. The depth with
//! the most tokens per time wins, and now and then a neighbour is tried, so that the estimates stay fresh.

use std::time::Duration;

/// Weight of a step after the next one.
const MEMORY: f64 = 0.98;
/// Share of drafts expected to be accepted before any was seen, and the drafts that this stands for.
const ACCEPTED_PRIOR: (f64, f64) = (0.7, 2.0);
/// Slope over base expected before several depths were seen. With the share above: two drafts.
const SLOPE_PRIOR: f64 = 0.35;
/// Observations of a neighbouring depth that the expected slope counts as.
const SLOPE_WEIGHT: f64 = 1.0;
/// Steps of a depth that the fitted line counts as.
const LINE_WEIGHT: f64 = 1.0;
/// Another draft has to gain this much.
const GAIN: f64 = 1.01;
/// Every so many steps a neighbour of the best depth is tried.
const TRY_EVERY: u64 = 16;
/// A step counts at most this many times the time expected: the process may have been suspended.
const OUTLIER: f64 = 2.0;

/// Chooses the number of drafts, step by step.
#[derive(Clone, Debug)]
pub struct Depth {
    most: usize,
    steps: u64,
    /// Per depth: weight of drafts offered, and of those accepted.
    drafts: Vec<(f64, f64)>,
    /// Weighted sums over steps: 1, d, d d, seconds, d seconds.
    sums: [f64; 5],
    /// Per depth: weighted steps and seconds.
    times: Vec<(f64, f64)>,
}

impl Depth {
    /// At most `most` drafts a step.
    pub fn new(most: usize) -> Self {
        let (share, weight) = ACCEPTED_PRIOR;
        Self {
            most,
            steps: 0,
            drafts: vec![(weight, share * weight); most],
            sums: [0.0; 5],
            times: vec![(0.0, 0.0); most + 1],
        }
    }

    /// The number of drafts that the next step should have.
    pub fn next(&self) -> usize {
        let best = self.best();
        if self.steps % TRY_EVERY != TRY_EVERY - 1 {
            return best;
        }
        let up = (self.steps / TRY_EVERY).is_multiple_of(2);
        match up {
            true if best < self.most => best + 1,
            _ => best.saturating_sub(1),
        }
    }

    /// A step with so many drafts emitted so many tokens in this time.
    pub fn learn(&mut self, drafts: usize, tokens: usize, time: Duration) {
        let (drafts, hits) = (drafts.min(self.most), tokens.saturating_sub(1));
        for (offered, accepted) in &mut self.drafts {
            *offered *= MEMORY;
            *accepted *= MEMORY;
        }
        for (i, (offered, accepted)) in self.drafts.iter_mut().take(drafts).enumerate() {
            if i <= hits {
                *offered += 1.0;
                *accepted += f64::from(u8::from(i < hits));
            }
        }
        let (d, mut seconds) = (drafts as f64, time.as_secs_f64());
        if self.steps > 0 {
            seconds = seconds.min(OUTLIER * self.time(drafts, self.line()));
        }
        for (steps, total) in &mut self.times {
            *steps *= MEMORY;
            *total *= MEMORY;
        }
        self.times[drafts].0 += 1.0;
        self.times[drafts].1 += seconds;
        let step = [1.0, d, d * d, seconds, d * seconds];
        self.sums.iter_mut().zip(step).for_each(|(sum, new)| *sum = *sum * MEMORY + new);
        self.steps += 1;
    }

    /// Seconds of a step with so many drafts.
    fn time(&self, drafts: usize, (base, slope): (f64, f64)) -> f64 {
        let (steps, total) = self.times[drafts];
        let fitted = base + slope * drafts as f64;
        (total + LINE_WEIGHT * fitted) / (steps + LINE_WEIGHT)
    }

    /// The line fitted to all steps: seconds without drafts, and of each draft more.
    fn line(&self) -> (f64, f64) {
        let [n, d, dd, t, dt] = self.sums;
        if n == 0.0 {
            return (1.0, SLOPE_PRIOR);
        }
        let (mean_d, mean_t) = (d / n, t / n);
        let usual = SLOPE_PRIOR * mean_t / (1.0 + SLOPE_PRIOR * mean_d);
        let (together, spread) = (dt - d * mean_t, dd - d * mean_d);
        let slope = (together + SLOPE_WEIGHT * usual) / (spread + SLOPE_WEIGHT);
        // A draft is never free, whatever noise says.
        let slope = slope.clamp(0.01 * mean_t, f64::INFINITY);
        let base = (mean_t - slope * mean_d).max(0.05 * mean_t);
        (base, slope)
    }

    fn best(&self) -> usize {
        let line = self.line();
        let rate = |tokens: f64, d: usize| tokens / self.time(d, line);
        let (mut tokens, mut reach) = (1.0, 1.0);
        let (mut best, mut most) = (0, rate(tokens, 0));
        for (i, (offered, accepted)) in self.drafts.iter().enumerate() {
            let (share, weight) = ACCEPTED_PRIOR;
            // What is no longer seen is forgotten, and then as likely as before anything was seen.
            let rest = (weight - offered).max(0.0);
            reach *= (accepted + share * rest) / (offered + rest);
            tokens += reach;
            if rate(tokens, i + 1) > GAIN * most {
                (best, most) = (i + 1, rate(tokens, i + 1));
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs steps of a machine with such costs and a model with such a share of accepted drafts, and
    /// says which depths were chosen.
    fn run(
        depth: &mut Depth,
        steps: usize,
        share: f64,
        seconds: impl Fn(usize) -> f64,
    ) -> Vec<usize> {
        let mut state = 7u64;
        let mut luck = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 40) as f64 / (1u64 << 24) as f64
        };
        let mut chosen = Vec::new();
        for _ in 0..steps {
            let d = depth.next();
            let hits = (0..d).take_while(|_| luck() < share).count();
            let noise = 0.9 + 0.2 * luck();
            depth.learn(d, hits + 1, Duration::from_secs_f64(seconds(d) * noise));
            chosen.push(d);
        }
        chosen
    }

    fn mean(chosen: &[usize]) -> f64 {
        chosen.iter().sum::<usize>() as f64 / chosen.len() as f64
    }

    #[test]
    fn it_begins_with_two() {
        assert_eq!(Depth::new(7).next(), 2);
        assert_eq!(Depth::new(1).next(), 1);
        assert_eq!(Depth::new(0).next(), 0);
    }

    #[test]
    fn cheap_rows_and_good_drafts_make_it_deep() {
        let mut depth = Depth::new(7);
        let chosen = run(&mut depth, 300, 0.98, |d| 1.0 + 0.1 * d as f64);
        assert!(mean(&chosen[100..]) > 6.0, "{chosen:?}");
    }

    #[test]
    fn drafts_that_fail_are_given_up_but_for_trials() {
        let mut depth = Depth::new(7);
        let chosen = run(&mut depth, 300, 0.02, |d| 1.0 + 0.3 * d as f64);
        assert!(mean(&chosen[100..]) < 0.2, "{chosen:?}");
        assert!(chosen[100..].contains(&1), "a neighbour is tried now and then");
    }

    #[test]
    fn a_cold_pool_drafts_less_than_a_warm_one() {
        // Every row reads experts of its own while the pool is cold.
        let (cold, warm) = (|d: usize| 4.0 + 3.5 * d as f64, |d: usize| 1.0 + 0.25 * d as f64);
        let mut depth = Depth::new(7);
        let first = run(&mut depth, 100, 0.7, cold);
        let second = run(&mut depth, 500, 0.7, warm);
        assert!(mean(&first[40..]) < 0.5, "{first:?}");
        let settled = mean(&second[250..]);
        assert!((1.5..4.0).contains(&settled), "{second:?}");
    }

    #[test]
    fn the_choice_is_about_as_good_as_the_best_fixed_depth() {
        for share in [0.3f64, 0.5, 0.7, 0.9] {
            for slope in [0.1, 0.3, 0.6] {
                let seconds = |d: usize| 1.0 + slope * d as f64;
                let rate = |d: usize| {
                    let tokens: f64 = (0..=d).map(|i| share.powi(i as i32)).sum();
                    tokens / seconds(d)
                };
                let best = (0..=7).map(rate).fold(0.0, f64::max);
                let chosen = run(&mut Depth::new(7), 400, share, seconds);
                let chosen = &chosen[100..];
                let tokens: f64 = chosen.iter().map(|&d| rate(d) * seconds(d)).sum();
                let time: f64 = chosen.iter().map(|&d| seconds(d)).sum();
                assert!(tokens / time > 0.93 * best, "{share} {slope}: {} {best}", tokens / time);
            }
        }
    }

    #[test]
    fn a_pause_of_the_process_is_soon_forgotten() {
        let seconds = |d: usize| 1.0 + 0.2 * d as f64;
        let mut depth = Depth::new(7);
        run(&mut depth, 100, 0.8, seconds);
        let before = depth.best();
        depth.learn(before + 1, 1, Duration::from_secs(3600));
        let after = run(&mut depth, 60, 0.8, seconds);
        assert!(mean(&after[30..]) > before as f64 - 1.5, "{before} {after:?}");
    }
}
