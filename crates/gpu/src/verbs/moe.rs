//! The mixture of experts: route, experts, shared expert, combine.
//!
//! Invariant: every (row, rank) has its own place for its result, so waves may come in any order.

use crate::arena::Buf;
use crate::bank::GpuBank;
use crate::device::{GpuDevice, GpuMatrix, Scratch, SlabPath};
use crate::error::{Error, Result};
use crate::kernels::{CHOSEN_MAX, EXPERTS_MAX, JOB_WORDS, Kernel, Variant};
use crate::params;
use crate::verbs::linear::Epilogue;
use cherenkov_experts::{Bank, Grade, Slot, Wave};
use cherenkov_format::record::{PAGE_BYTES, Projection, RecordLayout};
use cherenkov_model::device::{Shared, TopkNorm};
use cherenkov_model::{Act, Routes};
use std::collections::BTreeMap;
use std::ops::Range;

/// Work on a wave.
#[derive(Debug, Default)]
pub(crate) struct Jobs {
    words: Vec<u32>,
    /// Per slab its jobs; they lie together.
    pub slabs: Vec<(usize, Range<u32>)>,
}

impl Jobs {
    /// That many jobs, whatever their slabs; for kernels that see all of them.
    pub fn all(count: u32) -> Self {
        Self { words: Vec::new(), slabs: vec![(0, 0..count)] }
    }

    /// Adds a job: the record's slab and page within it, the pairs.
    fn push(&mut self, slab: usize, page: u32, pairs: &[u32]) {
        let job = self.words.len() as u32 / JOB_WORDS;
        match self.slabs.last_mut() {
            Some((last, range)) if *last == slab => range.end = job + 1,
            _ => self.slabs.push((slab, job..job + 1)),
        }
        self.words.extend([page, slab as u32, pairs.len() as u32]);
        self.words.extend_from_slice(pairs);
        self.words.resize((job + 1) as usize * JOB_WORDS as usize, 0);
    }
}

impl GpuDevice {
    pub(crate) fn verb_route(
        &mut self,
        w: &GpuMatrix,
        k: usize,
        norm: TopkNorm,
        x: Act,
    ) -> Result<Routes> {
        let rows = self.rows();
        let routes = self.route_on_device(w, k, norm, x)?;
        let words = self.read::<u32>(&routes, u64::from(rows) * 2 * k as u64)?;
        let mut out = Routes { k, ..Routes::default() };
        for row in words.chunks_exact(2 * k) {
            out.ids.extend_from_slice(&row[..k]);
            out.weights.extend(row[k..].iter().map(|&bits| f32::from_bits(bits)));
        }
        self.routes_sent = out.clone();
        Ok(out)
    }

    /// The routes of every row, in device memory only.
    pub(crate) fn route_on_device(
        &mut self,
        w: &GpuMatrix,
        k: usize,
        norm: TopkNorm,
        x: Act,
    ) -> Result<Buf> {
        let most = (CHOSEN_MAX as usize).min(w.rows as usize);
        ensure!((1..=most).contains(&k), "{k} experts of {} per row, 1 to {most} can be", w.rows);
        ensure!(w.rows <= EXPERTS_MAX, "{} experts, at most {EXPERTS_MAX}", w.rows);
        ensure!(w.cols == x.width, "route: {x:?} by weights of {} inputs", w.cols);
        let (x, rows) = (self.buf(x)?, self.rows());
        let logits = self.scratch_rows(Scratch::Wide, w.rows)?;
        let routes = self.scratch_rows(Scratch::Routes, 2 * k as u32)?;
        self.product(w, &x, rows, &logits, Epilogue::Plain)?;
        let norm = match norm {
            TopkNorm::Sum => 1,
            TopkNorm::None => 0,
        };
        let params = params::Route { experts: w.rows, k: k as u32, norm };
        let kernel = Kernel::Route { room: w.rows.next_multiple_of(4) };
        self.run(kernel, &[&logits, &routes], &params, [1, rows, 1])?;
        // The host does not know them.
        self.routes_sent = Routes::default();
        Ok(routes)
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
        let hidden = bank.layouts.full.hidden() as u32;
        let fits = x.width == hidden && parts.width == hidden * routes.k as u32;
        let known = wave.slots.iter().all(|slot| (slot.0 as usize) < bank.slots());
        ensure!(fits && known, "experts: {x:?} into {parts:?}, slots {:?}", wave.slots);
        let mut pairs: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (pair, &id) in routes.ids.iter().enumerate() {
            pairs.entry(id).or_default().push(pair as u32);
        }
        // Kernels are made for one layout: the records of each grade are a run of their own.
        for grade in [Grade::Full, Grade::Low] {
            let mut placed: Vec<(Slot, &[u32])> = Vec::new();
            for (i, &slot) in wave.slots.iter().enumerate() {
                match pairs.get(&wave.experts[i]) {
                    Some(pairs) if wave.grades[i] == grade => placed.push((slot, pairs)),
                    _ => {}
                }
            }
            if !placed.is_empty() {
                let layout = *bank.layouts.of(grade);
                self.experts_of(bank, &layout, routes.k, placed, [&input, &output])?;
            }
        }
        Ok(())
    }

    /// Computes experts whose records have one layout, each for its pairs.
    fn experts_of(
        &mut self,
        bank: &GpuBank,
        layout: &RecordLayout,
        k: usize,
        mut placed: Vec<(Slot, &[u32])>,
        [input, output]: [&Buf; 2],
    ) -> Result<()> {
        let most = placed.iter().map(|(_, pairs)| pairs.len()).max().unwrap_or(0) as u32;
        let [up, down] = [Projection::Gate, Projection::Down].map(|which| {
            let (_, cols, encoding) = layout.shape(which);
            self.variant(encoding, cols)
        });
        let rows = up.rows_per_group(most).min(down.rows_per_group(most));
        let mut jobs = Jobs::default();
        placed.sort_by_key(|(slot, _)| bank.place(*slot).0);
        for (slot, pairs) in placed {
            let (slab, at) = bank.place(slot);
            for some in pairs.chunks(rows as usize) {
                jobs.push(slab, (at / PAGE_BYTES as u64) as u32, some);
            }
        }
        if self.sees_slabs(bank.slabs.len()) {
            jobs.slabs = vec![(0, 0..jobs.slabs.last().map_or(0, |s| s.1.end))];
        }
        let inner = (k * layout.width()) as u32;
        let inner = self.scratch_rows(Scratch::Inner, inner)?;
        let table = self.scratch(Scratch::Jobs, jobs.words.len() as u64 * 4)?;
        self.stream().write(&table, 0, bytemuck::cast_slice(&jobs.words))?;
        self.expert_up((bank, layout), &jobs, (up, k as u32, rows), [input, &table, &inner])?;
        self.expert_down((bank, layout), &jobs, (down, rows), [&inner, &table, output])
    }

    /// Whether kernels can see so many slabs at once.
    pub(crate) fn sees_slabs(&self, slabs: usize) -> bool {
        let most = self.gpu.info.features.buffer_array.unwrap_or(1) as usize;
        self.slab_path == SlabPath::Best && slabs <= most
    }

    pub(crate) fn expert_up(
        &mut self,
        (bank, layout): (&GpuBank, &RecordLayout),
        jobs: &Jobs,
        (weights, k, rows): (Variant, u32, u32),
        buffers: [&Buf; 3],
    ) -> Result<()> {
        let (outs, cols, _) = layout.shape(Projection::Gate);
        let unit = weights.unit_bytes();
        let at = |which| (layout.span(which).0 / unit as usize) as u32;
        for (slab, range) in &jobs.slabs {
            let params = params::ExpertUp {
                cols: cols as u32,
                outs: outs as u32,
                k,
                page: PAGE_BYTES as u32 / unit,
                gate_at: at(Projection::Gate),
                up_at: at(Projection::Up),
                first: range.start,
            };
            let grid = [params.outs.div_ceil(weights.tile()), range.len() as u32, 1];
            let slabs = self.slabs_of(bank, *slab);
            let kernel = Kernel::ExpertUp { weights, rows, slabs: slabs.len() as u32 };
            self.run_on_slabs(kernel, slabs, &buffers, &params, grid)?;
        }
        Ok(())
    }

    pub(crate) fn expert_down(
        &mut self,
        (bank, layout): (&GpuBank, &RecordLayout),
        jobs: &Jobs,
        (weights, rows): (Variant, u32),
        buffers: [&Buf; 3],
    ) -> Result<()> {
        let (outs, cols, _) = layout.shape(Projection::Down);
        let unit = weights.unit_bytes();
        for (slab, range) in &jobs.slabs {
            let params = params::ExpertDown {
                cols: cols as u32,
                outs: outs as u32,
                page: PAGE_BYTES as u32 / unit,
                down_at: (layout.span(Projection::Down).0 / unit as usize) as u32,
                first: range.start,
            };
            let grid = [params.outs.div_ceil(weights.tile()), range.len() as u32, 1];
            let slabs = self.slabs_of(bank, *slab);
            let kernel = Kernel::ExpertDown { weights, rows, slabs: slabs.len() as u32 };
            self.run_on_slabs(kernel, slabs, &buffers, &params, grid)?;
        }
        Ok(())
    }

    /// The slabs that a dispatch sees: all of them, or one.
    fn slabs_of<'a>(&self, bank: &'a GpuBank, slab: usize) -> &'a [Buf] {
        if self.sees_slabs(bank.slabs.len()) { &bank.slabs } else { &bank.slabs[slab..=slab] }
    }

    pub(crate) fn verb_shared_expert(
        &mut self,
        w: &Shared<GpuMatrix>,
        x: Act,
        out: Act,
    ) -> Result<()> {
        let [gate, up, down] = [&w.gate_proj, &w.up_proj, &w.down_proj].map(|m| (m.rows, m.cols));
        let fits = x.id != out.id
            && gate == up
            && gate.1 == x.width
            && down == (out.width, gate.0)
            && (w.gate.rows, w.gate.cols) == (1, x.width);
        ensure!(fits, "shared_expert: {x:?} through {gate:?}, {up:?}, {down:?} into {out:?}");
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
        let fits = parts.width == out.width * routes.k as u32 && shared.width == out.width;
        let apart = out.id != parts.id && out.id != shared.id;
        ensure!(fits && apart, "combine: {parts:?} and {shared:?} into {out:?}");
        let table = self.send_routes(routes)?;
        self.combine_by(&table, routes.k, parts, shared, out)
    }

    /// The weighted sum by routes in device memory.
    pub(crate) fn combine_by(
        &mut self,
        table: &Buf,
        k: usize,
        parts: Act,
        shared: Act,
        out: Act,
    ) -> Result<()> {
        let buffers = [self.buf(parts)?, self.buf(shared)?, self.buf(out)?];
        let params = params::Combine { width: out.width, k: k as u32 };
        let bound = [table, &buffers[0], &buffers[1], &buffers[2]];
        self.each(Kernel::Combine { k: params.k }, &bound, &params, (self.rows(), out.width))
    }
}

/// Whether two routes are the same, bit for bit: a NaN is equal to itself here.
fn same(a: &Routes, b: &Routes) -> bool {
    let bits = |r: &Routes| r.weights.iter().map(|w| w.to_bits()).collect::<Vec<_>>();
    a.k == b.k && a.ids == b.ids && bits(a) == bits(b)
}
