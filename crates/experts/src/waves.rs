//! Residency meets the device: every routed expert is presented once, pinned, in waves.
//!
//! Owns: the order of waves and the life of pins. Never: arithmetic, routing.
//! Invariants: an expert of a step is presented exactly once; a slot is reused only after the
//! ticket of the wave that read it; a failed read is an error and leaves no half-filled slot behind.

use crate::bank::{Bank, Slot};
use crate::error::{Error, Result};
use crate::pool::Pool;
use crate::source::{ExpertKey, Source};

/// Experts that are in memory together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wave {
    /// Layer of all of them.
    pub layer: u32,
    /// Expert ids.
    pub experts: Vec<u32>,
    /// Where each one lies, in the same order.
    pub slots: Vec<Slot>,
}

/// Counters since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Experts found in memory.
    pub hits: u64,
    /// Experts read.
    pub misses: u64,
    /// Bytes read.
    pub read_bytes: u64,
}

/// A bank, its pool and the source that fills it.
pub struct Experts<B: Bank, S> {
    bank: B,
    source: S,
    pool: Pool,
    counters: Counters,
}

impl<B: Bank, S: Source> Experts<B, S> {
    /// Joins a bank and a source.
    ///
    /// # Errors
    /// [`Error::NoSlots`] when the bank is empty.
    pub fn new(bank: B, source: S) -> Result<Self> {
        if bank.slots() == 0 {
            return Err(Error::NoSlots { found: 0 });
        }
        let pool = Pool::new(bank.slots());
        Ok(Self { bank, source, pool, counters: Counters::default() })
    }

    /// What happened so far.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.bank.slots()
    }

    /// Presents each of `wanted` (distinct expert ids of `layer`) to `run` exactly once: first the
    /// resident ones together, then the others in groups as large as the pool allows.
    ///
    /// # Errors
    /// A failed read, or the first error of `run`.
    pub fn waves<E: From<Error>>(
        &mut self,
        layer: u32,
        wanted: &[u32],
        mut run: impl FnMut(&B, &Wave) -> std::result::Result<B::Ticket, E>,
    ) -> std::result::Result<(), E> {
        let mut resident = Wave { layer, ..Wave::default() };
        let mut missing = Vec::new();
        for &expert in wanted {
            match self.pool.pin_resident(ExpertKey { layer, expert }) {
                Some(slot) => {
                    resident.experts.push(expert);
                    resident.slots.push(slot);
                }
                None => missing.push(expert),
            }
        }
        self.counters.hits += resident.experts.len() as u64;
        let done = self.present(&resident, &mut run);
        self.pool.unpin(&resident.slots);
        done?;
        let mut rest = &missing[..];
        while !rest.is_empty() {
            let (wave, left) = self.fetch(layer, rest)?;
            rest = left;
            let done = self.present(&wave, &mut run);
            self.pool.unpin(&wave.slots);
            done?;
        }
        Ok(())
    }

    /// Runs one wave and waits until its slots are free again.
    fn present<E>(
        &mut self,
        wave: &Wave,
        run: &mut impl FnMut(&B, &Wave) -> std::result::Result<B::Ticket, E>,
    ) -> std::result::Result<(), E> {
        if wave.experts.is_empty() {
            return Ok(());
        }
        let ticket = run(&self.bank, wave)?;
        self.bank.wait(ticket);
        Ok(())
    }

    /// Reads as many of `missing` as there are slots; returns the rest.
    fn fetch<'a>(&mut self, layer: u32, missing: &'a [u32]) -> Result<(Wave, &'a [u32])> {
        let mut wave = Wave { layer, ..Wave::default() };
        for &expert in missing {
            let key = ExpertKey { layer, expert };
            let Some(slot) = self.pool.pin_victim(key) else { break };
            let mut landing = self.bank.land(slot);
            let read = self.source.read(key, landing.as_mut());
            self.bank.publish(slot, landing);
            if let Err(error) = read {
                self.pool.forget(slot);
                self.pool.unpin(&wave.slots);
                return Err(error);
            }
            self.counters.misses += 1;
            self.counters.read_bytes += self.source.layout().bytes() as u64;
            wave.experts.push(expert);
            wave.slots.push(slot);
        }
        let taken = wave.experts.len();
        Ok((wave, &missing[taken..]))
    }
}
