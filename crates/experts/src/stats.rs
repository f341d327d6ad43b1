//! What happened, in numbers.
//!
//! Owns: counters per layer and per expert, the immutable [`Snapshot`]. Never: decisions.

use crate::source::{Drive, ExpertKey};
use std::ops::AddAssign;
use std::time::Duration;

/// Counters of a layer, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// (row, rank) pairs routed to experts.
    pub selections: u64,
    /// Experts found in memory when a pass wanted them.
    pub hits: u64,
    /// Experts that a pass had to wait for.
    pub misses: u64,
    /// Hits that lookahead had brought in.
    pub ahead_right: u64,
    /// Misses that lookahead had begun to read.
    pub ahead_late: u64,
    /// Records that lookahead read in vain.
    pub ahead_wasted: u64,
    /// Lookahead reads taken back before they began.
    pub ahead_cancelled: u64,
    /// Reads because a pass waited.
    pub demand_reads: u64,
    /// Reads ahead.
    pub ahead_reads: u64,
    /// Reads that failed at both attempts.
    pub failed_reads: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Time that reads took, each by itself.
    pub read_time: Duration,
    /// Waves given to the device.
    pub waves: u64,
    /// Times that a pass stood still for a read.
    pub waits: u64,
    /// How long it stood still.
    pub wait_time: Duration,
}

impl AddAssign for Counters {
    fn add_assign(&mut self, other: Self) {
        let Self {
            selections,
            hits,
            misses,
            ahead_right,
            ahead_late,
            ahead_wasted,
            ahead_cancelled,
            demand_reads,
            ahead_reads,
            failed_reads,
            read_bytes,
            read_time,
            waves,
            waits,
            wait_time,
        } = other;
        self.selections += selections;
        self.hits += hits;
        self.misses += misses;
        self.ahead_right += ahead_right;
        self.ahead_late += ahead_late;
        self.ahead_wasted += ahead_wasted;
        self.ahead_cancelled += ahead_cancelled;
        self.demand_reads += demand_reads;
        self.ahead_reads += ahead_reads;
        self.failed_reads += failed_reads;
        self.read_bytes += read_bytes;
        self.read_time += read_time;
        self.waves += waves;
        self.waits += waits;
        self.wait_time += wait_time;
    }
}

/// Counters of one expert.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExpertCounters {
    /// Rows routed to it.
    pub selections: u64,
    /// Passes that found it in memory.
    pub hits: u64,
    /// Passes that had to wait for it.
    pub misses: u64,
    /// Times it was read.
    pub reads: u64,
}

/// Everything counted so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Per layer; the draft head's comes last.
    pub layers: Vec<Counters>,
    /// Per expert, layer by layer.
    pub experts: Vec<ExpertCounters>,
    /// The files.
    pub drives: Vec<Drive>,
    /// Slots of the pool.
    pub slots: usize,
    /// Reader threads.
    pub readers: usize,
    /// Records that lookahead reads per layer at present.
    pub width: usize,
    /// Name of the policy.
    pub policy: &'static str,
}

impl Snapshot {
    /// All layers together.
    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        self.layers.iter().for_each(|layer| total += *layer);
        total
    }
}

/// The counters as they grow.
#[derive(Debug)]
pub(crate) struct Tally {
    per_layer: usize,
    layers: Vec<Counters>,
    experts: Vec<ExpertCounters>,
}

impl Tally {
    pub fn new((layers, per_layer): (usize, usize)) -> Self {
        Self {
            per_layer,
            layers: vec![Counters::default(); layers],
            experts: vec![ExpertCounters::default(); layers * per_layer],
        }
    }

    pub fn layer(&mut self, layer: u32) -> &mut Counters {
        &mut self.layers[layer as usize]
    }

    pub fn expert(&mut self, key: ExpertKey) -> &mut ExpertCounters {
        &mut self.experts[key.layer as usize * self.per_layer + key.expert as usize]
    }

    pub fn layers(&self) -> &[Counters] {
        &self.layers
    }

    pub fn experts(&self) -> &[ExpertCounters] {
        &self.experts
    }
}
