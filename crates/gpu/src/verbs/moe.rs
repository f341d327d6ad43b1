//! The mixture of experts: route, experts, shared expert, combine.
//!
//! Invariant: every (row, rank) has its own place for its result, so waves may come in any order.

use crate::arena::Buf;
use crate::bank::GpuBank;
use crate::device::{GpuDevice, GpuMatrix, Scratch};
use crate::error::{Error, Result};
use crate::kernels::{CHOSEN_MAX, JOB_WORDS, Kernel, Variant};
use crate::params;
use crate::verbs::linear::{Epilogue, rows_per_group};
use cherenkov_experts::Wave;
use cherenkov_format::record::{PAGE_BYTES, Projection};
use cherenkov_model::device::{Shared, TopkNorm};
use cherenkov_model::{Act, Routes};
use std::collections::BTreeMap;

/// Work on one slab of the bank.
#[derive(Debug, Default)]
struct Jobs {
    words: Vec<u32>,
    count: u32,
}

impl GpuDevice {
    pub(crate) fn verb_route(
        &mut self,
        w: &GpuMatrix,
        k: usize,
        norm: TopkNorm,
        x: Act,
    ) -> Result<Routes> {
        if k > (CHOSEN_MAX as usize).min(w.rows as usize) {
            let what = format!("{k} experts of {} per row, at most {CHOSEN_MAX}", w.rows);
            return Err(Error::Misuse { what });
        }
        let (x, rows) = (self.buf(x)?, self.rows());
        let logits = self.scratch_rows(Scratch::Wide, w.rows)?;
        let routes = self.scratch_rows(Scratch::Routes, 2 * k as u32)?;
        self.product(w, &x, rows, &logits, Epilogue::Plain)?;
        let norm = match norm {
            TopkNorm::Sum => 1,
            TopkNorm::None => 0,
        };
        let params = params::Route { experts: w.rows, k: k as u32, norm };
        self.run(Kernel::Route, &[&logits, &routes], &params, [1, rows, 1])?;
        let words = self.read_u32(&routes, u64::from(rows) * 2 * k as u64)?;
        let mut out = Routes { k, ..Routes::default() };
        for row in words.chunks_exact(2 * k) {
            out.ids.extend_from_slice(&row[..k]);
            out.weights.extend(row[k..].iter().map(|&bits| f32::from_bits(bits)));
        }
        self.routes_sent = out.clone();
        Ok(out)
    }

    /// Brings the device's routes up to date: it has them already when they are its own.
    fn send_routes(&mut self, routes: &Routes) -> Result<Buf> {
        let buf = self.scratch_rows(Scratch::Routes, 2 * routes.k as u32)?;
        if same(&self.routes_sent, routes) {
            return Ok(buf);
        }
        let mut words = Vec::with_capacity(2 * routes.ids.len());
        let rows = routes.ids.chunks_exact(routes.k).zip(routes.weights.chunks_exact(routes.k));
        for (ids, weights) in rows {
            words.extend_from_slice(ids);
            words.extend(weights.iter().map(|w| w.to_bits()));
        }
        self.stream().write(&buf, 0, bytemuck::cast_slice(&words))?;
        self.routes_sent = routes.clone();
        Ok(buf)
    }

    pub(crate) fn verb_experts(
        &mut self,
        bank: &GpuBank,
        wave: &Wave,
        routes: &Routes,
        x: Act,
        parts: Act,
    ) -> Result<()> {
        let (input, output) = (self.buf(x)?, self.buf(parts)?);
        if routes.ids.len() != self.batch.rows() * routes.k {
            let what = format!("routes of {} pairs for {} rows", routes.ids.len(), self.rows());
            return Err(Error::Misuse { what });
        }
        let mut pairs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pair, &id) in routes.ids.iter().enumerate() {
            pairs.entry(id).or_default().push(pair as u32);
        }
        let none = Vec::new();
        let of = |expert: &u32| pairs.get(expert).unwrap_or(&none);
        let most = wave.experts.iter().map(|e| of(e).len()).max().unwrap_or(0) as u32;
        if most == 0 {
            return Ok(());
        }
        let per_group = rows_per_group(most);
        let mut slabs: BTreeMap<usize, Jobs> = BTreeMap::new();
        for (expert, &slot) in wave.experts.iter().zip(&wave.slots) {
            let (slab, at) = bank.place(slot);
            let jobs = slabs.entry(slab).or_default();
            for some in of(expert).chunks(per_group as usize) {
                jobs.words.extend([(at / PAGE_BYTES as u64) as u32, some.len() as u32]);
                jobs.words.extend_from_slice(some);
                jobs.words.resize(jobs.words.len().next_multiple_of(JOB_WORDS as usize), 0);
                jobs.count += 1;
            }
        }
        let inner = self.scratch_rows(Scratch::Inner, (routes.k * bank.layout.width()) as u32)?;
        for (slab, jobs) in slabs {
            let (k, buffers) = (routes.k as u32, [&input, &inner, &output]);
            self.expert_jobs(bank, slab, &jobs, (k, per_group), buffers)?;
        }
        Ok(())
    }

    fn expert_jobs(
        &mut self,
        bank: &GpuBank,
        slab: usize,
        jobs: &Jobs,
        (k, rows): (u32, u32),
        [input, inner, output]: [&Buf; 3],
    ) -> Result<()> {
        let slab = &bank.slabs[slab];
        let table = self.scratch(Scratch::Jobs, jobs.words.len() as u64 * 4)?;
        self.stream().write(&table, 0, bytemuck::cast_slice(&jobs.words))?;
        let layout = &bank.layout;
        let at = |which, unit: u32| (layout.span(which).0 / unit as usize) as u32;
        let (outs, cols, encoding) = layout.shape(Projection::Gate);
        let weights = Variant::of(encoding, cols);
        let unit = weights.unit_bytes();
        let params = params::ExpertUp {
            cols: cols as u32,
            outs: outs as u32,
            k,
            page: PAGE_BYTES as u32 / unit,
            gate_at: at(Projection::Gate, unit),
            up_at: at(Projection::Up, unit),
        };
        let grid = [params.outs.div_ceil(weights.tile()), jobs.count, 1];
        let kernel = Kernel::ExpertUp { weights, rows };
        self.run(kernel, &[slab, input, &table, inner], &params, grid)?;

        let (outs, cols, encoding) = layout.shape(Projection::Down);
        let weights = Variant::of(encoding, cols);
        let unit = weights.unit_bytes();
        let params = params::ExpertDown {
            cols: cols as u32,
            outs: outs as u32,
            page: PAGE_BYTES as u32 / unit,
            down_at: at(Projection::Down, unit),
        };
        let grid = [params.outs.div_ceil(weights.tile()), jobs.count, 1];
        let kernel = Kernel::ExpertDown { weights, rows };
        self.run(kernel, &[slab, inner, &table, output], &params, grid)
    }

    pub(crate) fn verb_shared_expert(
        &mut self,
        w: &Shared<GpuMatrix>,
        x: Act,
        out: Act,
    ) -> Result<()> {
        let (input, output, rows) = (self.buf(x)?, self.buf(out)?, self.rows());
        let gate = self.scratch_rows(Scratch::Normed, w.gate_proj.rows)?;
        let inner = self.scratch_rows(Scratch::Wide, w.up_proj.rows)?;
        let open = self.scratch_rows(Scratch::Rank, w.gate.rows)?;
        self.product(&w.gate_proj, &input, rows, &gate, Epilogue::Plain)?;
        self.product(&w.gate, &input, rows, &open, Epilogue::Plain)?;
        self.product(&w.up_proj, &input, rows, &inner, Epilogue::Gated(&gate))?;
        self.product(&w.down_proj, &inner, rows, &output, Epilogue::Opened(&open))
    }

    pub(crate) fn verb_combine(
        &mut self,
        routes: &Routes,
        parts: Act,
        shared: Act,
        out: Act,
    ) -> Result<()> {
        if routes.ids.len() != self.batch.rows() * routes.k {
            let what = format!("routes of {} pairs for {} rows", routes.ids.len(), self.rows());
            return Err(Error::Misuse { what });
        }
        let table = self.send_routes(routes)?;
        let buffers = [self.buf(parts)?, self.buf(shared)?, self.buf(out)?];
        let params = params::Combine { width: out.width, k: routes.k as u32 };
        let bound = [&table, &buffers[0], &buffers[1], &buffers[2]];
        self.each(Kernel::Combine, &bound, &params, (self.rows(), out.width))
    }
}

/// Whether two routes are the same, bit for bit: a NaN is equal to itself here.
fn same(a: &Routes, b: &Routes) -> bool {
    let bits = |r: &Routes| r.weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
    a.k == b.k && a.ids == b.ids && bits(a) == bits(b)
}
