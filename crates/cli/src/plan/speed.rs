//! What speed a plan leads to.
//!
//! Owns: the arithmetic from bytes and rates to tokens per second. Never: measuring.
//! Invariant: reading from memory and from the drive overlap, so the slower one decides.

/// What a token has to read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Traffic {
    /// Bytes of weights of one token, its experts included.
    pub token: u64,
    /// Experts of one token, all layers together.
    pub experts: usize,
    /// Bytes of a record.
    pub record: u64,
    /// Records of the pool.
    pub slots: usize,
    /// Records of the store that are used.
    pub records: usize,
    /// Tokens of a prefill pass.
    pub chunk: usize,
}

/// Bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Of memory, read by all threads of the device.
    pub memory: f64,
    /// Of the drive, in large reads.
    pub drive: f64,
}

/// What decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Reading weights from memory.
    Memory,
    /// Reading experts from the drive.
    Drive,
}

impl Limit {
    /// For tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Drive => "drive",
        }
    }
}

/// What to expect.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Expected {
    /// Tokens per second of an answer, at most.
    pub decode: f64,
    /// What decides that.
    pub limit: Limit,
    /// Prompt tokens per second that the drive alone allows; infinite when nothing is missing.
    pub prefill: f64,
}

impl Traffic {
    /// Share of the experts that are in memory.
    pub fn resident(&self) -> f64 {
        if self.records == 0 { 1.0 } else { self.slots as f64 / self.records as f64 }
    }

    /// Experts of a token that are read from the drive, were all of them equally likely. Text repeats
    /// its experts, so that it is fewer.
    pub fn missing(&self) -> f64 {
        self.experts as f64 * (1.0 - self.resident())
    }

    /// Bytes of them.
    pub fn drive(&self) -> f64 {
        self.missing() * self.record as f64
    }

    /// Bytes of the experts that a prefill pass reads from the drive.
    pub fn pass(&self) -> f64 {
        self.records.saturating_sub(self.slots) as f64 * self.record as f64
    }

    /// At these rates.
    pub fn at(&self, rates: Rates) -> Expected {
        let (memory, drive) = (self.token as f64 / rates.memory, self.drive() / rates.drive);
        Expected {
            decode: 1.0 / memory.max(drive),
            limit: if drive > memory { Limit::Drive } else { Limit::Memory },
            prefill: self.chunk as f64 * rates.drive / self.pass(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Traffic =
        Traffic { token: 4000, experts: 40, record: 50, slots: 25, records: 100, chunk: 10 };

    #[test]
    fn the_slower_of_memory_and_drive_decides() {
        // 30 of 40 experts are missing: 1500 bytes.
        assert_eq!((T.resident(), T.missing(), T.drive(), T.pass()), (0.25, 30.0, 1500.0, 3750.0));
        let slow = T.at(Rates { memory: 8000.0, drive: 1000.0 });
        assert_eq!((slow.decode, slow.limit), (1.0 / 1.5, Limit::Drive));
        assert_eq!(slow.prefill, 10.0 * 1000.0 / 3750.0);
        let fast = T.at(Rates { memory: 8000.0, drive: 1e6 });
        assert_eq!((fast.decode, fast.limit), (2.0, Limit::Memory));
        let whole = Traffic { slots: 100, ..T }.at(Rates { memory: 8000.0, drive: 1.0 });
        assert_eq!((whole.decode, whole.limit), (2.0, Limit::Memory));
        assert!(whole.prefill.is_infinite());
    }
}
