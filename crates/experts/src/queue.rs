//! The order in which reads are made.
//!
//! Owns: two priorities and the cancellation of what has not begun. Never: reading, threads.
//! Invariant: a job is handed out exactly once: to a reader, or back to who gave it.

use crate::error::Result;
use crate::grade::Grade;
use crate::source::{ExpertKey, Source};
use std::collections::VecDeque;

/// How urgent a read is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Priority {
    /// A step waits for it.
    Demand,
    /// It may be wanted soon.
    Lookahead,
}

/// A record to be read, and the memory for it.
#[derive(Debug)]
pub struct Job<L> {
    /// Which expert.
    pub key: ExpertKey,
    /// Which of its records.
    pub grade: Grade,
    /// Where it goes.
    pub landing: L,
    /// When it was asked for.
    pub queued: std::time::Duration,
}

impl<L: AsMut<[u8]>> Job<L> {
    /// Reads the record into its landing, which may be longer.
    ///
    /// # Errors
    /// As [`Source::read`].
    pub fn read(&mut self, source: &dyn Source) -> Result<()> {
        let out = self.landing.as_mut();
        match self.grade {
            Grade::Full => source.read(self.key, &mut out[..source.layout().bytes()]),
            Grade::Low => {
                let low = source.low().expect("small records are asked for where there are some");
                source.read_low(self.key, &mut out[..low.bytes()])
            }
        }
    }
}

/// Jobs that no reader has begun.
#[derive(Debug)]
pub struct Queue<L> {
    demand: VecDeque<Job<L>>,
    lookahead: VecDeque<Job<L>>,
}

impl<L> Default for Queue<L> {
    fn default() -> Self {
        Self { demand: VecDeque::new(), lookahead: VecDeque::new() }
    }
}

impl<L> Queue<L> {
    /// Adds a job behind all others of its priority.
    pub fn push(&mut self, priority: Priority, job: Job<L>) {
        match priority {
            Priority::Demand => self.demand.push_back(job),
            Priority::Lookahead => self.lookahead.push_back(job),
        }
    }

    /// The next job: demand in order, then lookahead in order.
    pub fn take(&mut self) -> Option<(Priority, Job<L>)> {
        let demand = self.demand.pop_front().map(|job| (Priority::Demand, job));
        demand.or_else(|| self.lookahead.pop_front().map(|job| (Priority::Lookahead, job)))
    }

    /// Makes a lookahead a demand, behind the demands there are; says whether it waited here.
    pub fn promote(&mut self, key: ExpertKey) -> bool {
        let Some(at) = self.lookahead.iter().position(|job| job.key == key) else { return false };
        let job = self.lookahead.remove(at).expect("found above");
        self.demand.push_back(job);
        true
    }

    /// Gives back a job that no reader has begun.
    pub fn cancel(&mut self, key: ExpertKey) -> Option<L> {
        for line in [&mut self.lookahead, &mut self.demand] {
            if let Some(at) = line.iter().position(|job| job.key == key) {
                return line.remove(at).map(|job| job.landing);
            }
        }
        None
    }

    /// Whether there is no job.
    pub fn is_empty(&self) -> bool {
        self.demand.is_empty() && self.lookahead.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn job(expert: u32) -> Job<u32> {
        let (key, grade) = (ExpertKey { layer: 0, expert }, Grade::Full);
        Job { key, grade, landing: expert, queued: Duration::ZERO }
    }

    fn key(expert: u32) -> ExpertKey {
        ExpertKey { layer: 0, expert }
    }

    #[test]
    fn demand_goes_first_and_promotion_joins_its_end() {
        let mut queue = Queue::default();
        for (priority, expert) in [
            (Priority::Lookahead, 1),
            (Priority::Lookahead, 2),
            (Priority::Demand, 3),
            (Priority::Lookahead, 4),
        ] {
            queue.push(priority, job(expert));
        }
        assert!(queue.promote(key(2)));
        assert!(!queue.promote(key(3)), "a demand already");
        assert_eq!(queue.cancel(key(4)), Some(4));
        assert_eq!(queue.cancel(key(4)), None);
        let order: Vec<_> =
            std::iter::from_fn(|| queue.take()).map(|(p, j)| (p, j.landing)).collect();
        let want = [(Priority::Demand, 3), (Priority::Demand, 2), (Priority::Lookahead, 1)];
        assert_eq!(order, want);
        assert!(queue.is_empty());
    }
}
