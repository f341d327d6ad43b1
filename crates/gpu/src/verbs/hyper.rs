//! Hyper-connections: read and write.

use crate::arena::Buf;
use crate::device::{GpuDevice, GpuMatrix, GpuVector, Scratch};
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::params;
use crate::verbs::linear::Epilogue;
use cherenkov_model::Act;
use cherenkov_model::device::Hyper;

/// A write of a hyper-connection that has been asked for and not been done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub y: Act,
    pub gate: Act,
    pub stream: Act,
}

impl Write {
    /// Whether it reads or writes this activation.
    pub fn touches(&self, x: Act) -> bool {
        [self.y, self.gate, self.stream].contains(&x)
    }
}

fn check_hyper(w: &Hyper<GpuMatrix, GpuVector>, stream: Act, out: Act, gate: Act) -> Result<()> {
    let (wide, count) = (stream.width, w.count as u32);
    let streams = wide == out.width * count && w.norm.len == wide;
    let gates = (w.down.cols, w.up.rows, w.up.cols) == (wide, wide, w.down.rows);
    let inject = w.inject.as_ref();
    let injects = inject.is_none_or(|i| (i.cols, i.rows, gate.width) == (wide, count, count));
    ensure!(streams && gates && injects, "hyper_read: {stream:?} into {out:?} and {gate:?}");
    Ok(())
}

impl GpuDevice {
    pub(crate) fn verb_hyper_read(
        &mut self,
        w: &Hyper<GpuMatrix, GpuVector>,
        stream: Act,
        out: Act,
        gate: Act,
    ) -> Result<()> {
        let (rows, count) = (self.rows(), w.count as u32);
        check_hyper(w, stream, out, gate)?;
        let normed = self.scratch_rows(Scratch::Normed, stream.width)?;
        self.normed_streams(w, stream, &normed)?;
        let to = self.buf(out)?;
        let rank = self.scratch_rows(Scratch::Rank, w.down.rows)?;
        let gates = self.scratch_rows(Scratch::Wide, stream.width)?;
        self.product(&w.down, &normed, rows, &rank, Epilogue::Silu(count))?;
        // The injection stands beside the down projection: neither waits for the other.
        if let Some(inject) = &w.inject {
            let gate = self.buf(gate)?;
            self.product(inject, &normed, rows, &gate, Epilogue::Inject(count))?;
        }
        self.product(&w.up, &rank, rows, &gates, Epilogue::Plain)?;
        let params = params::Streams { width: out.width, count };
        self.each(Kernel::HyperMix { count }, &[&normed, &gates, &to], &params, (rows, out.width))
    }

    /// The normed streams; a write that waits for them is done on the way.
    fn normed_streams(
        &mut self,
        w: &Hyper<GpuMatrix, GpuVector>,
        stream: Act,
        normed: &Buf,
    ) -> Result<()> {
        let (rows, count) = (self.rows(), w.count as u32);
        let waiting = self.waiting_write.filter(|write| write.stream == stream);
        match waiting.zip(Kernel::chunks(stream.width / count)) {
            // This does the write first, if one waits.
            None => {
                let from = self.buf(stream)?;
                self.norm_rows(&w.norm, count, &from, rows, normed)
            }
            Some((write, chunks)) => {
                self.waiting_write = None;
                let [y, gate, streams] = self.write_bufs(write)?;
                let params = params::Turn { width: write.y.width, count, eps: self.eps };
                let buffers = [&y, &gate, &w.norm.buf, &streams, normed];
                self.run(Kernel::HyperTurn { chunks }, &buffers, &params, [count, rows, 1])
            }
        }
    }

    /// Notes the write: the read that mostly follows does both at once. Whoever touches one of its
    /// activations before that makes it happen (see [`Self::buf`]).
    pub(crate) fn verb_hyper_write(&mut self, y: Act, gate: Act, stream: Act) -> Result<()> {
        self.finish_write()?;
        let write = Write { y, gate, stream };
        self.write_bufs(write)?;
        if y.width * gate.width != stream.width {
            let what = format!("{y:?} times {gate:?} into {stream:?}");
            return Err(Error::Misuse { what });
        }
        self.waiting_write = Some(write);
        Ok(())
    }

    fn write_bufs(&mut self, write: Write) -> Result<[Buf; 3]> {
        Ok([self.buf(write.y)?, self.buf(write.gate)?, self.buf(write.stream)?])
    }

    /// Does the write that waits, if any.
    pub(crate) fn finish_write(&mut self) -> Result<()> {
        let Some(write) = self.waiting_write.take() else { return Ok(()) };
        let buffers = self.write_bufs(write)?;
        let params = params::Streams { width: write.y.width, count: write.gate.width };
        let size = (self.rows(), write.y.width);
        self.each(Kernel::HyperWrite, &buffers.each_ref(), &params, size)
    }
}
