//! QSA attention: keys and values into pages, selection, attention.
//!
//! Invariant: which tokens form a segment depends on a row's own list of visible tokens only.

use crate::arena::Buf;
use crate::device::{GpuDevice, GpuVector, Scratch};
use crate::error::{Error, Result};
use crate::kernels::{Kernel, LANES, SEGMENT};
use crate::params;
use cherenkov_format::qwen4_exp::config::Attention;
use cherenkov_model::device::{AttentionWeights, KvLane, RowLane};
use cherenkov_model::{Act, MAX_TENTATIVE, Picks};

/// Bytes of intermediate values of one slice of rows.
const SLICE_BYTES: u64 = 64 << 20;

/// Where the tables of the batch lie.
struct Table {
    buf: Buf,
    runs_at: u32,
    pages_at: u32,
    page_rows: u32,
}

/// One kind of query heads within an activation.
struct Heads<'a> {
    weight: &'a GpuVector,
    width: usize,
    count: usize,
    row_stride: u32,
    head_stride: usize,
}

impl GpuDevice {
    fn table(&self) -> Result<Table> {
        let tables = self.tables()?;
        let page_rows = self.limits.map_or(1, |l| l.page_rows) as u32;
        let (runs_at, pages_at) = (tables.runs_at, tables.pages_at);
        Ok(Table { buf: tables.buf.clone(), runs_at, pages_at, page_rows })
    }

    fn rope(&self, lane: KvLane) -> Result<Buf> {
        let rope = &self.ropes[self.state.kvs[lane.0 as usize].rope];
        rope.buf.clone().ok_or_else(|| Error::Misuse { what: "allocate first".into() })
    }

    pub(crate) fn verb_kv_append(
        &mut self,
        lane: KvLane,
        raw: RowLane,
        w: &AttentionWeights<GpuVector>,
        k: Act,
        v: Act,
        index: Act,
    ) -> Result<()> {
        let spec = &w.spec;
        self.check_layer(lane, w)?;
        let kv = (spec.kv_heads * spec.head_dim) as u32;
        let ring = self.state.rings.get(raw.0 as usize);
        let reach = (spec.index_ratio - 1 + MAX_TENTATIVE) as u32;
        let keeps = ring.is_some_and(|r| r.width == spec.index_dim as u32 && r.capacity >= reach);
        let fits = [k.width, v.width, index.width] == [kv, kv, spec.index_width() as u32];
        ensure!(fits && keeps, "kv_append: {k:?}, {v:?}, {index:?} for {spec:?}");
        let (table, rope) = (self.table()?, self.rope(lane)?);
        let [keys, values, pooled] = self.state.kvs[lane.0 as usize].bufs()?;
        let (k, v, index_buf) = (self.buf(k)?, self.buf(v)?, self.buf(index)?);
        let half = (spec.rope_dims / 2) as u32;
        let params = params::Append {
            width: spec.head_dim as u32,
            heads: spec.kv_heads as u32,
            half,
            page_rows: table.page_rows,
            eps: self.eps,
            runs_at: table.runs_at,
            pages_at: table.pages_at,
        };
        let kernel = Kernel::Append { head: params.width };
        let buffers = [&table.buf, &rope, &w.k_norm.buf, &k, &v, &keys, &values];
        self.run(kernel, &buffers, &params, [params.heads, self.rows(), 1])?;

        let ring = &self.state.rings[raw.0 as usize];
        let (capacity, memory, short) = (ring.capacity, ring.buf()?, self.runs_are_short());
        let params = params::Pool {
            width: spec.index_dim as u32,
            stride: index.width,
            offset: (spec.index_heads * spec.index_dim) as u32,
            half,
            ratio: spec.index_ratio as u32,
            capacity,
            page_rows: table.page_rows,
            keeps: u32::from(short),
            eps: self.eps,
            runs_at: table.runs_at,
            pages_at: table.pages_at,
        };
        let kernel = Kernel::Pool { head: params.width };
        let buffers = [&table.buf, &rope, &w.index_k_norm.buf, &index_buf, &memory, &pooled];
        self.run(kernel, &buffers, &params, [1, self.rows(), 1])?;
        if short {
            return Ok(());
        }
        self.keep_rows(raw, &index_buf, (params.stride, params.offset))
    }

    /// The weights must be the lane's and the rows must have pages.
    fn check_layer(&self, lane: KvLane, w: &AttentionWeights<GpuVector>) -> Result<()> {
        let spec = self.state.kvs.get(lane.0 as usize).map(|kv| &kv.spec);
        let norms =
            [&w.q_norm, &w.k_norm, &w.index_q_norm, &w.index_k_norm].map(|n| n.len as usize);
        let (head, index) = (w.spec.head_dim, w.spec.index_dim);
        let fits = spec == Some(&w.spec) && norms == [head, head, index, index];
        ensure!(fits, "attention: weights of another shape than the lane's");
        self.check_pages()
    }

    /// Every row must lie in a page of its run: kernels do not look.
    fn check_pages(&self) -> Result<()> {
        let rows = self.limits.map_or(1, |l| l.page_rows);
        let short = |run: &&cherenkov_model::Run| {
            (run.start as usize + run.rows).div_ceil(rows) > run.pages.len()
        };
        match self.batch.runs.iter().find(short) {
            None => Ok(()),
            Some(run) => Err(Error::Misuse {
                what: format!(
                    "{} pages of {rows} rows for {} rows from {}",
                    run.pages.len(),
                    run.rows,
                    run.start
                ),
            }),
        }
    }

    /// Query heads, normed and rotated, in scratch memory.
    fn queries(&mut self, lane: KvLane, x: &Buf, half: usize, heads: &Heads<'_>) -> Result<Buf> {
        let out = self.scratch_rows(Scratch::Queries, (heads.width * heads.count) as u32)?;
        let rope = self.rope(lane)?;
        let params = params::Query {
            width: heads.width as u32,
            heads: heads.count as u32,
            half: half as u32,
            row_stride: heads.row_stride,
            head_stride: heads.head_stride as u32,
            eps: self.eps,
        };
        let kernel = Kernel::Query { head: params.width };
        let buffers = [&rope, &heads.weight.buf, x, &out];
        self.run(kernel, &buffers, &params, [params.heads, self.rows(), 1])?;
        Ok(out)
    }

    /// The most tokens that a row of the batch sees.
    fn longest(&self) -> usize {
        self.batch.runs.iter().map(|run| run.start as usize + run.rows).max().unwrap_or(0)
    }

    pub(crate) fn verb_select(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<GpuVector>,
        index: Act,
        picks: Picks,
    ) -> Result<()> {
        let spec = w.spec.clone();
        self.check_layer(lane, w)?;
        ensure!(index.width == spec.index_width() as u32, "select: {index:?} for {spec:?}");
        let (table, budget) = (self.table()?, picks.blocks);
        let chosen = self.picks_buf(picks)?;
        let blocks = (self.longest() / spec.index_ratio) as u32;
        // While nothing has to be left out, nobody has to be scored.
        let scored = blocks > budget;
        let queries = if scored {
            let (x, half) = (self.buf(index)?, spec.rope_dims / 2);
            let heads = Heads {
                weight: &w.index_q_norm,
                width: spec.index_dim,
                count: spec.index_heads,
                row_stride: index.width,
                head_stride: spec.index_dim,
            };
            Some(self.queries(lane, &x, half, &heads)?)
        } else {
            None
        };
        let stride = if scored { blocks } else { 0 };
        let slice = slice_rows(u64::from(stride) * 4);
        for first in (0..self.rows()).step_by(slice as usize) {
            let count = slice.min(self.rows() - first);
            let bytes = u64::from(count) * u64::from(stride) * 4;
            let scores = self.scratch(Scratch::Parts, bytes)?;
            if let Some(queries) = &queries {
                self.scores(lane, &spec, &table, (queries, &scores), (first, count, stride))?;
            }
            let params = params::Select {
                ratio: spec.index_ratio as u32,
                budget,
                first,
                stride,
                runs_at: table.runs_at,
                pages_at: table.pages_at,
            };
            let buffers = [&table.buf, &scores, &chosen];
            self.run(Kernel::Select, &buffers, &params, [1, count, 1])?;
        }
        Ok(())
    }

    fn scores(
        &mut self,
        lane: KvLane,
        spec: &Attention,
        table: &Table,
        (queries, scores): (&Buf, &Buf),
        (first, count, stride): (u32, u32, u32),
    ) -> Result<()> {
        let [_, _, pooled] = self.state.kvs[lane.0 as usize].bufs()?;
        let params = params::Scores {
            width: spec.index_dim as u32,
            heads: spec.index_heads as u32,
            ratio: spec.index_ratio as u32,
            page_rows: table.page_rows,
            first,
            stride,
            runs_at: table.runs_at,
            pages_at: table.pages_at,
        };
        let buffers = [&table.buf, queries, &pooled, scores];
        self.run(Kernel::Scores, &buffers, &params, [stride.div_ceil(LANES), count, 1])
    }

    pub(crate) fn verb_attend(
        &mut self,
        lane: KvLane,
        w: &AttentionWeights<GpuVector>,
        q: Act,
        picks: Picks,
        out: Act,
    ) -> Result<()> {
        let spec = &w.spec;
        self.check_layer(lane, w)?;
        let wide = (spec.heads * spec.head_dim) as u32;
        let fits = [q.width, out.width] == [2 * wide, wide];
        ensure!(fits, "attend: {q:?} into {out:?} for {spec:?}");
        let table = self.table()?;
        let buffers = (self.buf(q)?, self.picks_buf(picks)?, self.buf(out)?);
        let heads = Heads {
            weight: &w.q_norm,
            width: spec.head_dim,
            count: spec.heads,
            row_stride: q.width,
            head_stride: 2 * spec.head_dim,
        };
        let queries = self.queries(lane, &buffers.0, spec.rope_dims / 2, &heads)?;
        let seen = (picks.blocks as usize * spec.index_ratio + spec.index_ratio - 1)
            .min(self.longest()) as u32;
        let segments = seen.div_ceil(SEGMENT).max(1);
        let row_bytes = u64::from(segments) * (spec.heads * (spec.head_dim + 2) * 4) as u64;
        let slice = slice_rows(row_bytes);
        for first in (0..self.rows()).step_by(slice as usize) {
            let rows = (first, slice.min(self.rows() - first), segments);
            let parts = self.scratch(Scratch::Parts, u64::from(rows.1) * row_bytes)?;
            self.segments(lane, spec, &table, (&buffers.1, &queries, &parts), rows, picks)?;
            let params = params::Join {
                width: spec.head_dim as u32,
                heads: spec.heads as u32,
                ratio: spec.index_ratio as u32,
                budget: picks.blocks,
                first,
                segments,
                tokens: SEGMENT,
                runs_at: table.runs_at,
                pages_at: table.pages_at,
            };
            let bound = [&table.buf, &buffers.1, &parts, &buffers.0, &buffers.2];
            let grid = [params.width.div_ceil(LANES), params.heads, rows.1];
            self.run(Kernel::Join, &bound, &params, grid)?;
        }
        Ok(())
    }

    fn segments(
        &mut self,
        lane: KvLane,
        spec: &Attention,
        table: &Table,
        (chosen, queries, parts): (&Buf, &Buf, &Buf),
        (first, count, segments): (u32, u32, u32),
        picks: Picks,
    ) -> Result<()> {
        let [keys, values, _] = self.state.kvs[lane.0 as usize].bufs()?;
        let params = params::Attend {
            heads: spec.heads as u32,
            kv_heads: spec.kv_heads as u32,
            ratio: spec.index_ratio as u32,
            page_rows: table.page_rows,
            budget: picks.blocks,
            first,
            segments,
            runs_at: table.runs_at,
            pages_at: table.pages_at,
        };
        let share = shared_heads(spec);
        let kernel = Kernel::Attend { head: spec.head_dim as u32, share };
        let buffers = [&table.buf, chosen, queries, &keys, &values, parts];
        self.run(kernel, &buffers, &params, [segments, params.heads / share, count])
    }

    pub(crate) fn verb_fetch_picks(&mut self, picks: Picks) -> Result<Vec<Vec<u32>>> {
        let buf = self.picks_buf(picks)?;
        let stride = picks.blocks as usize + 1;
        let words = self.read::<u32>(&buf, u64::from(self.rows()) * stride as u64)?;
        Ok(words.chunks_exact(stride).map(|r| r[1..=r[0] as usize].to_vec()).collect())
    }

    pub(crate) fn verb_put_picks(&mut self, picks: Picks, blocks: &[Vec<u32>]) -> Result<()> {
        let buf = self.picks_buf(picks)?;
        let stride = picks.blocks as usize + 1;
        let ratios = self.state.kvs.iter().map(|kv| kv.spec.index_ratio).max().unwrap_or(1);
        let most = self.longest() / ratios.max(1);
        let fits =
            |row: &Vec<u32>| row.len() < stride && row.iter().all(|&block| (block as usize) < most);
        if blocks.len() != self.batch.rows() || !blocks.iter().all(fits) {
            return Err(Error::Misuse { what: "picks that no row can have".into() });
        }
        let mut words = Vec::with_capacity(blocks.len() * stride);
        for row in blocks {
            words.push(row.len() as u32);
            words.extend_from_slice(row);
            words.resize(words.len().next_multiple_of(stride), 0);
        }
        self.stream().write(&buf, 0, bytemuck::cast_slice(&words))
    }
}

/// Query heads of a workgroup: as many as read the same keys, up to four.
fn shared_heads(spec: &Attention) -> u32 {
    let group = spec.heads / spec.kv_heads;
    [4, 3, 2].into_iter().find(|&n| group.is_multiple_of(n)).unwrap_or(1) as u32
}

/// Rows whose intermediate values fit the slice.
fn slice_rows(row_bytes: u64) -> u32 {
    (SLICE_BYTES / row_bytes.max(1)).clamp(1, 32768) as u32
}
