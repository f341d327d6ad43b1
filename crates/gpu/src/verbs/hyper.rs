//! Hyper-connections: read and write.

use crate::device::{GpuDevice, GpuMatrix, GpuVector, Scratch};
use crate::error::Result;
use crate::kernels::Kernel;
use crate::params;
use crate::verbs::linear::Epilogue;
use cherenkov_model::Act;
use cherenkov_model::device::Hyper;

impl GpuDevice {
    pub(crate) fn verb_hyper_read(
        &mut self,
        w: &Hyper<GpuMatrix, GpuVector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        let (rows, count) = (self.rows(), w.count as u32);
        let (from, to) = (self.buf(stream)?, self.buf(out)?);
        let normed = self.scratch_rows(Scratch::Normed, stream.width)?;
        let rank = self.scratch_rows(Scratch::Rank, w.down.rows)?;
        let gates = self.scratch_rows(Scratch::Wide, stream.width)?;
        self.norm_rows(&w.norm, count, &from, rows, &normed)?;
        self.product(&w.down, &normed, rows, &rank, Epilogue::Silu(count))?;
        // The injection stands beside the down projection: neither waits for the other.
        if let Some(inject) = &w.inject {
            let gate = self.buf(gate)?;
            self.product(inject, &normed, rows, &gate, Epilogue::Inject(count))?;
        }
        self.product(&w.up, &rank, rows, &gates, Epilogue::Plain)?;
        let params = params::Streams { width: out.width, count };
        self.each(Kernel::HyperMix, &[&normed, &gates, &to], &params, (rows, out.width))
    }

    pub(crate) fn verb_hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        let buffers = [self.buf(y)?, self.buf(gate)?, self.buf(stream)?];
        let params = params::Streams { width: y.width, count: gate.width };
        let buffers = buffers.each_ref();
        self.each(Kernel::HyperWrite, &buffers, &params, (self.rows(), y.width))
    }
}
