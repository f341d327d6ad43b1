//! Weights and banks that exist on two devices.
//!
//! Owns: taking pairs apart for one device or the other. Never: comparison.
//! Invariant: both halves of a published slot hold the same bytes.

use crate::device::{AttentionWeights, DeltaWeights, Hyper, PleWeights, Shared};
use cherenkov_experts::{Bank, Slot};

/// One thing on both devices.
#[derive(Clone, Debug)]
pub struct Pair<F, R> {
    /// On the fast device.
    pub fast: F,
    /// On the exact one.
    pub oracle: R,
}

/// A bank on both devices; records land in the fast one's memory.
#[derive(Debug)]
pub struct PairBank<F, R> {
    /// The fast device's.
    pub fast: F,
    /// The exact one's.
    pub oracle: R,
}

impl<F: Bank, R: Bank> Bank for PairBank<F, R> {
    type Landing = F::Landing;
    type Ticket = (F::Ticket, R::Ticket);

    fn slots(&self) -> usize {
        self.fast.slots()
    }

    fn land(&mut self, slot: Slot) -> F::Landing {
        self.fast.land(slot)
    }

    fn publish(&mut self, slot: Slot, landing: F::Landing) {
        let mut copy = self.oracle.land(slot);
        // A device may pad the landing of a record.
        let record = landing.as_ref().len().min(copy.as_ref().len());
        copy.as_mut()[..record].copy_from_slice(&landing.as_ref()[..record]);
        self.oracle.publish(slot, copy);
        self.fast.publish(slot, landing);
    }

    fn withdraw(&mut self, slot: Slot, landing: F::Landing) {
        self.fast.withdraw(slot, landing);
    }

    fn wait(&mut self, (fast, oracle): Self::Ticket) {
        self.fast.wait(fast);
        self.oracle.wait(oracle);
    }

    fn is_elastic(&self) -> bool {
        self.fast.is_elastic() && self.oracle.is_elastic()
    }

    fn discard(&mut self, slot: Slot) {
        self.fast.discard(slot);
        self.oracle.discard(slot);
    }

    fn restore(&mut self, slot: Slot) -> std::io::Result<()> {
        self.fast.restore(slot)?;
        self.oracle.restore(slot).inspect_err(|_| self.fast.discard(slot))
    }
}

fn fast<F: Clone, R>(pair: &Pair<F, R>) -> F {
    pair.fast.clone()
}

fn oracle<F, R: Clone>(pair: &Pair<F, R>) -> R {
    pair.oracle.clone()
}

fn map_hyper<M, V, N, U>(w: &Hyper<M, V>, m: impl Fn(&M) -> N, v: impl Fn(&V) -> U) -> Hyper<N, U> {
    Hyper {
        count: w.count,
        norm: v(&w.norm),
        down: m(&w.down),
        up: m(&w.up),
        inject: w.inject.as_ref().map(m),
    }
}

fn map_delta<V, U>(w: &DeltaWeights<V>, v: impl Fn(&V) -> U) -> DeltaWeights<U> {
    DeltaWeights {
        spec: w.spec.clone(),
        a_log: v(&w.a_log),
        dt_bias: v(&w.dt_bias),
        norm: v(&w.norm),
    }
}

fn map_attention<V, U>(w: &AttentionWeights<V>, v: impl Fn(&V) -> U) -> AttentionWeights<U> {
    AttentionWeights {
        spec: w.spec.clone(),
        q_norm: v(&w.q_norm),
        k_norm: v(&w.k_norm),
        index_q_norm: v(&w.index_q_norm),
        index_k_norm: v(&w.index_k_norm),
    }
}

fn map_shared<M, N>(w: &Shared<M>, m: impl Fn(&M) -> N) -> Shared<N> {
    Shared {
        gate_proj: m(&w.gate_proj),
        up_proj: m(&w.up_proj),
        down_proj: m(&w.down_proj),
        gate: m(&w.gate),
    }
}

fn map_ple<V, U>(w: &PleWeights<V>, v: impl Fn(&V) -> U) -> PleWeights<U> {
    PleWeights {
        count: w.count,
        norm_key: v(&w.norm_key),
        norm_query: v(&w.norm_query),
        norm_conv: v(&w.norm_conv),
        taps: v(&w.taps),
        kernel: w.kernel,
        dilation: w.dilation,
    }
}

/// Weights made of pairs, taken apart: the fast device's, then the exact one's.
pub trait Split {
    /// What the fast device takes.
    type Fast;
    /// What the exact device takes.
    type Oracle;

    /// Copies of both halves.
    fn split(&self) -> (Self::Fast, Self::Oracle);
}

impl<M: Clone, N: Clone, V: Clone, U: Clone> Split for Hyper<Pair<M, N>, Pair<V, U>> {
    type Fast = Hyper<M, V>;
    type Oracle = Hyper<N, U>;

    fn split(&self) -> (Self::Fast, Self::Oracle) {
        (map_hyper(self, fast, fast), map_hyper(self, oracle, oracle))
    }
}

impl<V: Clone, U: Clone> Split for DeltaWeights<Pair<V, U>> {
    type Fast = DeltaWeights<V>;
    type Oracle = DeltaWeights<U>;

    fn split(&self) -> (Self::Fast, Self::Oracle) {
        (map_delta(self, fast), map_delta(self, oracle))
    }
}

impl<V: Clone, U: Clone> Split for AttentionWeights<Pair<V, U>> {
    type Fast = AttentionWeights<V>;
    type Oracle = AttentionWeights<U>;

    fn split(&self) -> (Self::Fast, Self::Oracle) {
        (map_attention(self, fast), map_attention(self, oracle))
    }
}

impl<M: Clone, N: Clone> Split for Shared<Pair<M, N>> {
    type Fast = Shared<M>;
    type Oracle = Shared<N>;

    fn split(&self) -> (Self::Fast, Self::Oracle) {
        (map_shared(self, fast), map_shared(self, oracle))
    }
}

impl<V: Clone, U: Clone> Split for PleWeights<Pair<V, U>> {
    type Fast = PleWeights<V>;
    type Oracle = PleWeights<U>;

    fn split(&self) -> (Self::Fast, Self::Oracle) {
        (map_ple(self, fast), map_ple(self, oracle))
    }
}
