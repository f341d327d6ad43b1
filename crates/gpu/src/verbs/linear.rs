//! Products of weights with rows.
//!
//! Invariant: the kernel for one row and the kernel for eight do the same arithmetic per row.

use crate::arena::Buf;
use crate::device::{GpuDevice, GpuMatrix, Scratch};
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::params;
use cherenkov_model::Act;

/// What is done with a product before it is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Epilogue<'a> {
    /// Nothing.
    Plain,
    /// `silu(v / count)`.
    Silu(u32),
    /// `2 sigmoid(v / count)`.
    Inject(u32),
    /// `silu(gate) * v`, a gate per value.
    Gated(&'a Buf),
    /// `sigmoid(gate) * v`, a gate per row.
    Opened(&'a Buf),
}

impl Epilogue<'_> {
    fn code(self) -> (u32, f32) {
        match self {
            Self::Plain => (0, 1.0),
            Self::Silu(count) => (1, count as f32),
            Self::Inject(count) => (2, count as f32),
            Self::Gated(_) => (3, 1.0),
            Self::Opened(_) => (4, 1.0),
        }
    }
}

/// Bytes of logits computed at once.
const LOGIT_BYTES: u64 = 64 << 20;

impl GpuDevice {
    /// `out = epilogue(W x)` for `rows` rows.
    pub(crate) fn product(
        &mut self,
        w: &GpuMatrix,
        x: &Buf,
        rows: u32,
        out: &Buf,
        epilogue: Epilogue<'_>,
    ) -> Result<()> {
        let per_group = w.variant.rows_per_group(rows);
        let kernel = Kernel::Linear { weights: w.variant, rows: per_group };
        let (code, divisor) = epilogue.code();
        let nothing = self.nothing.clone();
        let extra = match epilogue {
            Epilogue::Gated(gate) | Epilogue::Opened(gate) => gate,
            _ => &nothing,
        };
        for part in &w.parts {
            let params = params::Linear {
                rows,
                cols: w.cols,
                outs: part.rows,
                stride: w.rows,
                offset: part.first,
                epilogue: code,
                divisor,
            };
            let grid = [part.rows.div_ceil(w.variant.tile()), rows.div_ceil(per_group), 1];
            self.run(kernel, &[&part.buf, x, out, extra], &params, grid)?;
        }
        Ok(())
    }

    pub(crate) fn verb_linear(&mut self, w: &GpuMatrix, x: Act, out: Act) -> Result<()> {
        let fits = (w.cols, w.rows) == (x.width, out.width);
        ensure!(fits, "a product [{}, {}] of {x:?} into {out:?}", w.rows, w.cols);
        self.verb_linear_streams(w, x, out)
    }

    pub(crate) fn verb_linear_streams(&mut self, w: &GpuMatrix, x: Act, out: Act) -> Result<()> {
        let streams = x.width / w.cols.max(1);
        let fits = streams * w.cols == x.width && streams * w.rows == out.width && x.id != out.id;
        ensure!(fits, "a product [{}, {}] of {x:?} into {out:?}", w.rows, w.cols);
        let (x, out, rows) = (self.buf(x)?, self.buf(out)?, self.rows() * streams);
        self.product(w, &x, rows, &out, Epilogue::Plain)
    }

    /// `W x` of the chosen rows, on the host.
    pub(crate) fn verb_logits(&mut self, w: &GpuMatrix, x: Act, rows: &[u32]) -> Result<Vec<f32>> {
        let limit = self.limits.map_or(0, |l| l.rows) as u32;
        if let Some(row) = rows.iter().find(|&&r| r >= limit) {
            return Err(Error::Misuse { what: format!("row {row} of {limit}") });
        }
        ensure!(w.cols == x.width, "logits: {x:?} by weights of {} inputs", w.cols);
        let x_buf = self.buf(x)?;
        let at_once = (LOGIT_BYTES.min(self.arena.largest()) / (u64::from(w.rows) * 4)).max(1);
        let mut values = Vec::with_capacity(rows.len() * w.rows as usize);
        for some in rows.chunks(at_once as usize) {
            let count = some.len() as u32;
            let ids = self.scratch(Scratch::Ids, u64::from(count) * 4)?;
            let chosen = self.scratch(Scratch::Chosen, u64::from(count * x.width) * 4)?;
            let bytes = u64::from(count) * u64::from(w.rows) * 4;
            let logits = self.scratch(Scratch::Logits, bytes)?;
            self.stream().write(&ids, 0, bytemuck::cast_slice(some))?;
            let params = params::Gather { width: x.width };
            self.each(Kernel::Gather, &[&x_buf, &ids, &chosen], &params, (count, x.width))?;
            self.product(w, &chosen, count, &logits, Epilogue::Plain)?;
            values.extend(self.read::<f32>(&logits, u64::from(count) * u64::from(w.rows))?);
        }
        Ok(values)
    }
}
