//! What happened, in numbers.
//!
//! Owns: counters per layer and per expert, the immutable [`Snapshot`]. Never: decisions.

use crate::pool::Taker;
use crate::queue::Priority;
use crate::source::{Drive, ExpertKey};
use std::collections::HashMap;
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
    /// Reads because a step waited.
    pub demand_reads: u64,
    /// Reads ahead of a step.
    pub ahead_reads: u64,
    /// Reads of scans: passes that read more than the pool can keep.
    pub scan_reads: u64,
    /// Those of them that began before their layer did.
    pub scan_ahead_reads: u64,
    /// Of the demand reads, those of small records.
    pub low_reads: u64,
    /// Of the bytes read, those of small records.
    pub low_bytes: u64,
    /// Of the hits, those of small records.
    pub low_hits: u64,
    /// Small records for which the whole ones were read.
    pub upgrades: u64,
    /// Weak experts that came late and were left out.
    pub left_out: u64,
    /// Reads that failed at both attempts.
    pub failed_reads: u64,
    /// Bytes read because a step waited.
    pub demand_bytes: u64,
    /// Bytes read ahead of a step.
    pub ahead_bytes: u64,
    /// Bytes that scans read.
    pub scan_bytes: u64,
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

/// Field by field; a field that is left out does not compile.
macro_rules! field_by_field {
    ($of:ident: $($field:ident),*) => {
        impl AddAssign for $of {
            fn add_assign(&mut self, other: Self) {
                $(self.$field += other.$field;)*
            }
        }

        impl $of {
            /// What was counted since `earlier`.
            pub fn since(self, earlier: Self) -> Self {
                Self { $($field: self.$field - earlier.$field),* }
            }
        }
    };
}

field_by_field! {
    Counters: selections, hits, misses, ahead_right, ahead_late, ahead_wasted, ahead_cancelled,
    demand_reads, ahead_reads, scan_reads, scan_ahead_reads, low_reads, low_bytes, low_hits, upgrades, left_out, failed_reads, demand_bytes,
    ahead_bytes, scan_bytes, read_bytes,
    read_time, waves, waits, wait_time
}

field_by_field! { ExpertCounters: selections, hits, misses, reads }

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
    /// Bits of a weight of the records that are read; 16 or 32 where they are no codes.
    pub bits: usize,
    /// Those of short records, if there are any.
    pub low_bits: Option<usize>,
    /// Bytes of a record.
    pub record_bytes: u64,
}

impl Snapshot {
    /// All layers together.
    pub fn total(&self) -> Counters {
        let mut total = Counters::default();
        self.layers.iter().for_each(|layer| total += *layer);
        total
    }

    /// What was counted since `earlier`, with the pool as it is now.
    pub fn since(&self, earlier: &Self) -> Self {
        let layers = self.layers.iter().zip(&earlier.layers);
        let experts = self.experts.iter().zip(&earlier.experts);
        let mut drives = self.drives.clone();
        for (drive, before) in drives.iter_mut().zip(&earlier.drives) {
            drive.read_bytes -= before.read_bytes;
            drive.retries -= before.retries;
        }
        Self {
            layers: layers.map(|(now, before)| now.since(*before)).collect(),
            experts: experts.map(|(now, before)| now.since(*before)).collect(),
            drives,
            ..self.clone()
        }
    }
}

/// Why a record is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cause {
    pub priority: Priority,
    pub taker: Taker,
}

/// The counters as they grow.
#[derive(Debug)]
pub(crate) struct Tally {
    per_layer: usize,
    /// Reads under way.
    causes: HashMap<ExpertKey, Cause>,
    layers: Vec<Counters>,
    experts: Vec<ExpertCounters>,
}

impl Tally {
    pub fn new((layers, per_layer): (usize, usize)) -> Self {
        Self {
            per_layer,
            causes: HashMap::new(),
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

    /// A read of `key` was asked for.
    pub fn asked(&mut self, key: ExpertKey, cause: Cause) {
        self.causes.insert(key, cause);
        let counters = self.layer(key.layer);
        match (cause.taker, cause.priority) {
            (Taker::Step, Priority::Demand) => counters.demand_reads += 1,
            (Taker::Step, Priority::Lookahead) => counters.ahead_reads += 1,
            (Taker::Scan { .. }, priority) => {
                counters.scan_reads += 1;
                counters.scan_ahead_reads += u64::from(priority == Priority::Lookahead);
            }
        }
    }

    /// A read of `key` has come to its end, with so many bytes.
    pub fn read(&mut self, key: ExpertKey, bytes: u64) {
        let cause = self.causes.remove(&key).expect("a read that ends was asked for");
        let counters = self.layer(key.layer);
        counters.read_bytes += bytes;
        *match (cause.taker, cause.priority) {
            (Taker::Step, Priority::Demand) => &mut counters.demand_bytes,
            (Taker::Step, Priority::Lookahead) => &mut counters.ahead_bytes,
            (Taker::Scan { .. }, _) => &mut counters.scan_bytes,
        } += bytes;
    }

    pub fn layers(&self) -> &[Counters] {
        &self.layers
    }

    pub fn experts(&self) -> &[ExpertCounters] {
        &self.experts
    }
}
