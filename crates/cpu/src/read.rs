//! Reading memory as fast as it goes: what decode is measured against.
//!
//! Owns: the memory that is read and how threads share it. Never: clocks (the caller has one).
//! Invariant: every pass reads all bytes of its stretch once, with the widest loads of the
//! instruction set.

use crate::memory::Aligned;
use crate::simd::{Arch, Isa, Op, Simd};
use crate::threads::Pool;

struct Read<'a>(&'a [[u8; 64]]);

impl Op for Read<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self, s: S) -> f32 {
        let mut acc = [s.isplat(0); 8];
        for lines in self.0.as_chunks::<8>().0 {
            for (acc, line) in acc.iter_mut().zip(lines) {
                *acc = s.or(*acc, s.iload(line));
            }
        }
        acc.iter().map(|acc| s.sum(s.to_f32(*acc))).sum()
    }
}

/// A plain multi-threaded read, stretch by stretch through memory of its own.
pub struct PlainRead {
    pool: Pool,
    arch: Arch,
    memory: Aligned<u8>,
    next: usize,
    stretch: usize,
}

impl PlainRead {
    /// Reads with so many threads and this instruction set; `stretches` of `stretch_bytes` each are
    /// read in turn, so that together they should be much more than the caches hold. `None` when the
    /// processor does not have the instruction set.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn new(
        threads: usize,
        isa: Isa,
        stretches: usize,
        stretch_bytes: usize,
    ) -> std::io::Result<Option<Self>> {
        let Some(arch) = Arch::new(isa) else { return Ok(None) };
        let stretch = stretch_bytes.next_multiple_of(512);
        let mut memory = Aligned::new(stretch * stretches.max(1));
        // Memory that was never written is one page of zeros, whatever its size.
        memory.fill(1u8);
        Ok(Some(Self { pool: Pool::new(threads)?, arch, memory, next: 0, stretch }))
    }

    /// Reads the next stretch; returns its bytes.
    pub fn pass(&mut self) -> usize {
        let start = self.next;
        self.next = (start + self.stretch) % self.memory.len();
        let lines = self.memory[start..start + self.stretch].as_chunks::<64>().0;
        let (threads, arch) = (self.pool.threads(), self.arch);
        self.pool.run(&|i| {
            let part = lines.len() * i / threads..lines.len() * (i + 1) / threads;
            std::hint::black_box(arch.run(Read(&lines[part])));
        });
        self.stretch
    }
}
