//! Verbs with a memory of rows: convolutions, n-gram embeddings, keep and recall.

use crate::arena::Buf;
use crate::device::{GpuDevice, GpuVector, Scratch};
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::params;
use cherenkov_model::device::{PleWeights, RowLane};
use cherenkov_model::{Act, MAX_TENTATIVE, Recall};

/// A convolution over the rows of each sequence.
struct Conv<'a> {
    lane: RowLane,
    taps: &'a GpuVector,
    kernel: u32,
    dilation: u32,
    input: &'a Buf,
    /// Added to the output together with the result, which otherwise replaces it.
    gated: Option<&'a Buf>,
    output: &'a Buf,
}

impl GpuDevice {
    /// Whether every run is so short that the kernel which reads a ring may write it as well.
    pub(crate) fn runs_are_short(&self) -> bool {
        self.batch.runs.iter().all(|run| run.rows <= MAX_TENTATIVE)
    }

    /// Different activations, each as wide as the lane.
    fn check_lane(&self, lane: RowLane, acts: &[Act]) -> Result<()> {
        let width = self.state.rings.get(lane.0 as usize).map_or(0, |r| r.width);
        let fits = acts.iter().all(|x| x.width == width) && acts[1..].iter().all(|x| *x != acts[0]);
        ensure!(fits, "{acts:?} in a lane of {width} values");
        Ok(())
    }

    fn conv(&mut self, c: &Conv<'_>) -> Result<()> {
        let ring = &self.state.rings[c.lane.0 as usize];
        let (width, capacity, memory) = (ring.width, ring.capacity, ring.buf()?);
        let reach = c.kernel.saturating_sub(1) * c.dilation + MAX_TENTATIVE as u32;
        let fits = c.taps.len == width * c.kernel && reach <= capacity;
        ensure!(fits, "a convolution of {} taps over {width} values", c.taps.len);
        let tables = self.tables()?;
        let (table, runs_at, pages_at) = (tables.buf.clone(), tables.runs_at, tables.pages_at);
        let short = self.runs_are_short();
        let params = params::Conv {
            width,
            kernel: c.kernel,
            dilation: c.dilation,
            capacity,
            adds: u32::from(c.gated.is_some()),
            keeps: u32::from(short),
            runs_at,
            pages_at,
        };
        let nothing = self.nothing.clone();
        let gated = c.gated.unwrap_or(&nothing);
        let buffers = [&table, &c.taps.buf, c.input, gated, &memory, c.output];
        self.each(Kernel::Conv { kernel: c.kernel }, &buffers, &params, (self.rows(), width))?;
        if short {
            return Ok(());
        }
        self.keep_rows(c.lane, c.input, (width, 0))
    }

    /// The last rows of each run enter a ring; `(stride, offset)` says where in an input row.
    pub(crate) fn keep_rows(
        &mut self,
        lane: RowLane,
        input: &Buf,
        (stride, offset): (u32, u32),
    ) -> Result<()> {
        let ring = &self.state.rings[lane.0 as usize];
        let (width, capacity, memory) = (ring.width, ring.capacity, ring.buf()?);
        let tables = self.tables()?;
        let (table, runs_at, pages_at) = (tables.buf.clone(), tables.runs_at, tables.pages_at);
        let params = params::Keep { width, stride, offset, capacity, runs_at, pages_at };
        self.each(Kernel::Keep, &[&table, input, &memory], &params, (self.rows(), width))
    }

    pub(crate) fn verb_conv_silu(
        &mut self,
        lane: RowLane,
        taps: &GpuVector,
        kernel: usize,
        x: Act,
        out: Act,
    ) -> Result<()> {
        self.check_lane(lane, &[x, out])?;
        let (input, output) = (self.buf(x)?, self.buf(out)?);
        self.conv(&Conv {
            lane,
            taps,
            kernel: kernel as u32,
            dilation: 1,
            input: &input,
            gated: None,
            output: &output,
        })
    }

    pub(crate) fn verb_ngram_add(
        &mut self,
        lane: RowLane,
        w: &PleWeights<GpuVector>,
        key: Act,
        val: Act,
        stream: Act,
    ) -> Result<()> {
        self.check_lane(lane, &[key, stream])?;
        let norms = [&w.norm_key, &w.norm_query, &w.norm_conv].map(|n| n.len);
        let fits = norms == [stream.width; 3] && val.width * w.count as u32 == stream.width;
        ensure!(fits, "ngram_add: {val:?} into {stream:?}, norms of {norms:?}");
        let (key, val_buf, stream_buf) = (self.buf(key)?, self.buf(val)?, self.buf(stream)?);
        let gated = self.scratch_rows(Scratch::Wide, stream.width)?;
        let normed = self.scratch_rows(Scratch::Normed, stream.width)?;
        let params = params::NgramGate { width: val.width, count: w.count as u32, eps: self.eps };
        let buffers = [
            &key,
            &stream_buf,
            &val_buf,
            &w.norm_key.buf,
            &w.norm_query.buf,
            &w.norm_conv.buf,
            &gated,
            &normed,
        ];
        self.run(Kernel::NgramGate, &buffers, &params, [params.count, self.rows(), 1])?;
        self.conv(&Conv {
            lane,
            taps: &w.taps,
            kernel: w.kernel as u32,
            dilation: w.dilation as u32,
            input: &normed,
            gated: Some(&gated),
            output: &stream_buf,
        })
    }

    pub(crate) fn verb_keep(&mut self, lane: RowLane, x: Act) -> Result<()> {
        self.check_lane(lane, &[x])?;
        let input = self.buf(x)?;
        self.keep_rows(lane, &input, (x.width, 0))
    }

    pub(crate) fn verb_recall(
        &mut self,
        lane: RowLane,
        x: Act,
        from: &[Recall],
        out: Act,
    ) -> Result<()> {
        let limits = self.limits.ok_or_else(|| Error::Misuse { what: "allocate first".into() })?;
        let mut words = Vec::with_capacity(from.len() * 3);
        for &source in from {
            let (known, entry) = match source {
                Recall::Row(row) => ((row as usize) < limits.rows, [0, row, 0]),
                Recall::Kept { slot, index } => {
                    ((slot.0 as usize) < limits.slots, [1, slot.0, index])
                }
            };
            if !known || from.len() > limits.rows {
                return Err(Error::Misuse { what: format!("recall of {source:?}") });
            }
            words.extend(entry);
        }
        self.check_lane(lane, &[x, out])?;
        let ring = &self.state.rings[lane.0 as usize];
        let (params, memory) =
            (params::Recall { width: ring.width, capacity: ring.capacity }, ring.buf()?);
        let (input, output) = (self.buf(x)?, self.buf(out)?);
        let table = self.scratch(Scratch::Sources, limits.rows as u64 * 12)?;
        self.stream().write(&table, 0, bytemuck::cast_slice(&words))?;
        let buffers = [&table, &input, &memory, &output];
        self.each(Kernel::Recall, &buffers, &params, (from.len() as u32, params.width))
    }
}
