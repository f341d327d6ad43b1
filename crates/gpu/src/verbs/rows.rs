//! Verbs on rows by themselves: embed, repeat, norm.

use crate::arena::Buf;
use crate::device::{GpuDevice, GpuMatrix, GpuVector};
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::params;
use cherenkov_model::Act;

/// What repeating a row does to the streams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Onto {
    /// They become the row.
    Replaced,
    /// They gain it.
    Added,
}

impl GpuDevice {
    pub(crate) fn verb_embed(&mut self, table: &GpuMatrix, out: Act) -> Result<()> {
        ensure!(table.cols == out.width, "embed: rows of {} into {out:?}", table.cols);
        if let Some(token) = self.batch.tokens.iter().find(|&&t| t >= table.rows) {
            let what = format!("token {token} of a table of {} rows", table.rows);
            return Err(Error::Misuse { what });
        }
        let out_buf = self.buf(out)?;
        let rows_table = self.tables()?.buf.clone();
        for part in &table.parts {
            let params = params::Embed { cols: table.cols, first: part.first, count: part.rows };
            let buffers = [&part.buf, &rows_table, &out_buf];
            self.each(
                Kernel::Embed(table.variant.encoding),
                &buffers,
                &params,
                (self.rows(), table.cols),
            )?;
        }
        Ok(())
    }

    pub(crate) fn verb_repeat(&mut self, x: Act, out: Act, onto: Onto) -> Result<()> {
        let fits = x.id != out.id && x.width > 0 && out.width.is_multiple_of(x.width);
        ensure!(fits, "repeat: {x:?} into {out:?}");
        let (from, to) = (self.buf(x)?, self.buf(out)?);
        let params =
            params::Repeat { width: x.width, count: out.width / x.width, gains: onto as u32 };
        self.each(Kernel::Repeat, &[&from, &to], &params, (self.rows(), x.width))
    }

    /// RMS norm of each of `groups` slices of every row.
    pub(crate) fn norm_rows(
        &mut self,
        w: &GpuVector,
        groups: u32,
        x: &Buf,
        rows: u32,
        out: &Buf,
    ) -> Result<()> {
        let params = params::Norm { width: w.len / groups, groups, eps: self.eps };
        let kernel = Kernel::Norm { chunks: Kernel::chunks(params.width) };
        self.run(kernel, &[x, &w.buf, out], &params, [groups, rows, 1])
    }

    pub(crate) fn verb_norm(
        &mut self,
        w: &GpuVector,
        groups: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        let fits = x.id != out.id && w.len == x.width && x.width == out.width;
        let cut = groups > 0 && x.width.is_multiple_of(groups as u32);
        ensure!(fits && cut, "norm: {x:?} into {out:?} by {} weights, {groups} groups", w.len);
        let (from, to) = (self.buf(x)?, self.buf(out)?);
        self.norm_rows(w, groups as u32, &from, self.rows(), &to)
    }
}

impl GpuDevice {
    pub(crate) fn verb_put(&mut self, x: Act, values: &[f32]) -> Result<()> {
        let expected = self.rows() as usize * x.width as usize;
        if values.len() != expected {
            let what = format!("put: found {} values, expected {expected}", values.len());
            return Err(Error::Misuse { what });
        }
        let to = self.buf(x)?;
        self.stream().write(&to, 0, bytemuck::cast_slice(values))
    }

    pub(crate) fn verb_fetch(&mut self, x: Act) -> Result<Vec<f32>> {
        let from = self.buf(x)?;
        self.read(&from, u64::from(self.rows()) * u64::from(x.width))
    }
}
