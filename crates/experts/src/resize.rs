//! A pool that changes its size between passes.
//!
//! Owns: which slots are given back to the system, and taken again. Never: when that should be.
//! Invariant: no record that a pass works with or that is on its way loses its slot.

use crate::bank::Bank;
use crate::error::Result;
use crate::waves::Experts;

impl<B: Bank> Experts<B> {
    /// Gives slots back to the system until `slots` are left, those whose records are worth the least
    /// first; or takes them again, at most as many as there were at the start. An open request is
    /// closed. Returns how many there are now: a bank that cannot part with single slots keeps all, and
    /// the system may have no room for more.
    ///
    /// # Errors
    /// [`crate::Error::Readers`] when a reader has failed.
    pub fn resize(&mut self, slots: usize) -> Result<usize> {
        if !self.bank.is_elastic() {
            return Ok(self.pool.slots());
        }
        self.abandon();
        self.ahead.plan.clear();
        let slots = slots.clamp(1, self.bank.slots());
        while self.pool.slots() > slots {
            match self.pool.close() {
                Some(slot) => self.bank.discard(slot),
                // The others are on their way, and nobody waits for them any more.
                None => {
                    let done = self.reads.wait()?;
                    self.land(done)?;
                }
            }
        }
        while self.pool.slots() < slots {
            let Some(slot) = self.pool.closed() else { break };
            if self.bank.restore(slot).is_err() {
                break;
            }
            self.pool.reopen(slot);
        }
        Ok(self.pool.slots())
    }
}
