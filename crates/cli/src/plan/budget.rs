//! One budget of memory, cut into its purposes.
//!
//! Owns: the arithmetic. Never: asking anybody for sizes or for memory.
//! Invariants: a cut never adds up to more than its budget; it is refused only when no smaller pool
//! would do, and then with the least that would.

use cherenkov_model::MAX_TENTATIVE;

/// What everything needs, in bytes, before it is known how much there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The program itself, with what it has read so far.
    pub program: u64,
    /// Dense weights.
    pub dense: u64,
    /// Most that loading them takes for a moment besides.
    pub loading: u64,
    /// State of one sequence that does not grow with its tokens.
    pub state: u64,
    /// Keys, values and index keys of one page of tokens.
    pub page: u64,
    /// Tokens of a page.
    pub page_tokens: usize,
    /// Sequences open at a time.
    pub sequences: usize,
    /// Activations, scratch memory, logits.
    pub scratch: u64,
    /// What the server keeps of earlier prompts.
    pub prefix: u64,
    /// Reader threads.
    pub readers: u64,
    /// N-gram rows that stay in memory.
    pub ngram: u64,
    /// One expert record with its bookkeeping.
    pub record: u64,
    /// Records of the store that are used.
    pub records: usize,
    /// The smallest pool that is offered unasked: one token's experts of one layer.
    pub least: usize,
}

/// Bytes by purpose.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parts {
    /// The program itself.
    pub program: u64,
    /// Dense weights.
    pub dense: u64,
    /// State of all sequences.
    pub context: u64,
    /// Activations, scratch memory, logits.
    pub scratch: u64,
    /// What the server keeps of earlier prompts.
    pub prefix: u64,
    /// Reader threads.
    pub readers: u64,
    /// N-gram rows.
    pub ngram: u64,
    /// Expert records.
    pub pool: u64,
}

impl Parts {
    /// Purpose and bytes, in the order of tables.
    pub fn list(&self) -> [(&'static str, u64); 8] {
        [
            ("program", self.program),
            ("dense weights", self.dense),
            ("context", self.context),
            ("scratch", self.scratch),
            ("prefix cache", self.prefix),
            ("readers", self.readers),
            ("n-gram rows", self.ngram),
            ("expert pool", self.pool),
        ]
    }

    /// All together.
    pub fn total(&self) -> u64 {
        self.list().iter().map(|(_, bytes)| bytes).sum()
    }
}

/// What is asked of a cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Tokens of one sequence.
    pub context: usize,
    /// Records of the pool, where the user insists on a number.
    pub pool: Option<usize>,
}

/// A budget that was cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// Bytes by purpose.
    pub parts: Parts,
    /// Records of the pool.
    pub slots: usize,
}

/// A budget that does not suffice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shortage {
    /// What was asked for, with the smallest pool that will do.
    pub parts: Parts,
    /// Records of that pool.
    pub slots: usize,
    /// The smallest budget that would do.
    pub needed: u64,
    /// The largest context that would do with this budget; `None` when not even one page does.
    pub context: Option<usize>,
}

impl Sizes {
    /// Pages of one sequence of so many tokens.
    fn pages(&self, context: usize) -> u64 {
        (context + MAX_TENTATIVE).div_ceil(self.page_tokens) as u64
    }

    /// Everything, with a pool of so many records.
    pub fn parts(&self, context: usize, slots: usize) -> Parts {
        let sequence = self.state + self.pages(context) * self.page;
        Parts {
            program: self.program,
            dense: self.dense,
            context: self.sequences as u64 * sequence,
            scratch: self.scratch,
            prefix: self.prefix,
            readers: self.readers,
            ngram: self.ngram,
            pool: slots as u64 * self.record,
        }
    }

    /// The most that is held at any time: at the end, or while weights are loaded.
    fn peak(&self, parts: &Parts) -> u64 {
        parts.total().max(self.program + self.dense + self.loading)
    }

    fn smallest(&self, demand: Demand) -> usize {
        demand.pool.unwrap_or(self.least).min(self.records)
    }

    /// Cuts a budget.
    ///
    /// # Errors
    /// When it does not suffice.
    pub fn cut(&self, budget: u64, demand: Demand) -> Result<Cut, Shortage> {
        let slots = self.smallest(demand);
        let parts = self.parts(demand.context, slots);
        let needed = self.peak(&parts);
        if needed > budget {
            return Err(Shortage { parts, slots, needed, context: self.longest(budget, demand) });
        }
        if demand.pool.is_some() {
            return Ok(Cut { parts, slots });
        }
        let more = (budget - parts.total()).checked_div(self.record).unwrap_or(u64::MAX);
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        let slots = slots.saturating_add(more).min(self.records);
        Ok(Cut { parts: self.parts(demand.context, slots), slots })
    }

    /// The largest context for which the smallest pool fits.
    fn longest(&self, budget: u64, demand: Demand) -> Option<usize> {
        let slots = self.smallest(demand);
        let fits = |pages: u64| {
            let tokens = pages as usize * self.page_tokens;
            let context = tokens.checked_sub(MAX_TENTATIVE).filter(|tokens| *tokens > 0)?;
            (self.peak(&self.parts(context, slots)) <= budget).then_some(context)
        };
        let (mut low, mut high) = (1, self.pages(demand.context));
        let mut found = fits(low)?;
        while low + 1 < high {
            let middle = u64::midpoint(low, high);
            match fits(middle) {
                Some(context) => (low, found) = (middle, context),
                None => high = middle,
            }
        }
        Some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sizes() -> impl Strategy<Value = Sizes> {
        let fixed = (0u64..1000, 0u64..5000, 0u64..2000, 0u64..500, 1u64..200, 9usize..100);
        let rest = (1usize..5, 0u64..300, 0u64..300, 0u64..300, 0u64..300, 1u64..400, 1usize..200);
        (fixed, rest, 1usize..20).prop_map(|(a, b, least)| Sizes {
            program: a.0,
            dense: a.1,
            loading: a.2,
            state: a.3,
            page: a.4,
            page_tokens: a.5,
            sequences: b.0,
            scratch: b.1,
            prefix: b.2,
            readers: b.3,
            ngram: b.4,
            record: b.5,
            records: b.6,
            least,
        })
    }

    fn demand() -> impl Strategy<Value = Demand> {
        let pool = prop::option::weighted(0.3, 1usize..300);
        (1usize..3000, pool).prop_map(|(context, pool)| Demand { context, pool })
    }

    proptest! {
        #[test]
        fn a_cut_uses_what_it_can_and_no_more(s in sizes(), d in demand(), budget in 0u64..200_000) {
            match s.cut(budget, d) {
                Ok(cut) => {
                    prop_assert!(cut.parts.total() <= budget);
                    prop_assert!(s.program + s.dense + s.loading <= budget);
                    prop_assert_eq!(cut.parts, s.parts(d.context, cut.slots));
                    match d.pool {
                        Some(pool) => prop_assert_eq!(cut.slots, pool.min(s.records)),
                        None => {
                            prop_assert!(cut.slots >= s.least.min(s.records));
                            let full = cut.slots == s.records;
                            prop_assert!(full || cut.parts.total() + s.record > budget);
                        }
                    }
                }
                Err(short) => {
                    prop_assert!(short.needed > budget);
                    prop_assert!(s.cut(short.needed, d).is_ok());
                    prop_assert!(s.cut(short.needed - 1, d).is_err());
                    let with = |context| s.cut(budget, Demand { context, ..d });
                    match short.context {
                        Some(context) => {
                            prop_assert!(context < d.context);
                            prop_assert!(with(context).is_ok());
                            prop_assert!(with(context + 1).is_err());
                        }
                        None => prop_assert!(with(s.page_tokens - MAX_TENTATIVE).is_err()),
                    }
                }
            }
        }

        #[test]
        fn more_memory_is_never_a_smaller_pool(
            s in sizes(), d in demand(), budget in 0u64..200_000, more in 0u64..10_000,
        ) {
            if let Ok(cut) = s.cut(budget, d) {
                let larger = s.cut(budget + more, d).expect("more suffices as well");
                prop_assert!(larger.slots >= cut.slots);
            }
        }
    }
}
