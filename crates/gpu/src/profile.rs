//! Time on the GPU by kernel.
//!
//! Owns: timestamps around every kernel. Never: clocks of the host.
//! Invariant: off unless asked for; a profiled stream runs one kernel at a time and waits after each
//! submission, so only the kernels' own times mean anything.

use crate::error::Result;
use crate::gpu::Gpu;
use std::collections::BTreeMap;

/// Whether a device measures its kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Profiling {
    /// It does not.
    Off,
    /// By kernel, where the adapter has timestamps.
    Kernels,
}

/// What a kernel has cost.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// How often it ran.
    pub runs: u64,
    /// Microseconds on the GPU, all runs together.
    pub micros: f64,
}

/// Kernels of one submission.
const KERNELS: u32 = 256;

/// A kernel and its workgroups: the latter tell products apart.
type Name = (&'static str, [u32; 3]);

/// Timestamps of the kernels in the open submission, and the sums so far.
#[derive(Debug)]
pub(crate) struct Profile {
    set: wgpu::QuerySet,
    resolved: wgpu::Buffer,
    back: wgpu::Buffer,
    names: Vec<Name>,
    costs: BTreeMap<Name, Cost>,
    period: f64,
}

impl Profile {
    /// A profile, if the adapter has timestamps.
    pub fn new(gpu: &Gpu) -> Option<Self> {
        if !gpu.info.features.timestamps {
            return None;
        }
        let set = gpu.device.create_query_set(&wgpu::QuerySetDescriptor {
            label: Some("kernels"),
            ty: wgpu::QueryType::Timestamp,
            count: 2 * KERNELS,
        });
        let buffer = |usage| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("timestamps"),
                size: u64::from(2 * KERNELS) * 8,
                usage,
                mapped_at_creation: false,
            })
        };
        Some(Self {
            set,
            resolved: buffer(wgpu::BufferUsages::QUERY_RESOLVE | wgpu::BufferUsages::COPY_SRC),
            back: buffer(wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST),
            names: Vec::new(),
            costs: BTreeMap::new(),
            period: f64::from(gpu.queue.get_timestamp_period()),
        })
    }

    /// Whether the submission must end before another kernel.
    pub fn is_full(&self) -> bool {
        self.names.len() >= KERNELS as usize
    }

    /// The timestamps of the next kernel.
    pub fn next(&mut self, name: Name) -> wgpu::ComputePassTimestampWrites<'_> {
        let at = 2 * self.names.len() as u32;
        self.names.push(name);
        wgpu::ComputePassTimestampWrites {
            query_set: &self.set,
            beginning_of_pass_write_index: Some(at),
            end_of_pass_write_index: Some(at + 1),
        }
    }

    /// Ends the submission.
    pub fn resolve(&self, encoder: &mut wgpu::CommandEncoder) {
        let count = 2 * self.names.len() as u32;
        if count > 0 {
            encoder.resolve_query_set(&self.set, 0..count, &self.resolved, 0);
            encoder.copy_buffer_to_buffer(&self.resolved, 0, &self.back, 0, u64::from(count) * 8);
        }
    }

    /// Adds the times of the submission just made.
    pub fn collect(&mut self, gpu: &Gpu) -> Result<()> {
        let bytes = self.names.len() as u64 * 16;
        if bytes == 0 {
            return Ok(());
        }
        self.back.slice(..bytes).map_async(wgpu::MapMode::Read, drop);
        let polled = gpu.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|e| gpu.faults.fail(e))?;
        let view = self.back.slice(..bytes).get_mapped_range().map_err(|e| gpu.faults.fail(e))?;
        let ticks: Vec<u64> = bytemuck::pod_collect_to_vec(&view);
        drop(view);
        self.back.unmap();
        for (name, ticks) in self.names.drain(..).zip(ticks.chunks_exact(2)) {
            let cost = self.costs.entry(name).or_default();
            cost.runs += 1;
            cost.micros += ticks[1].saturating_sub(ticks[0]) as f64 * self.period / 1e3;
        }
        Ok(())
    }

    /// Costs by kernel since the last call.
    pub fn take(&mut self) -> Vec<(String, Cost)> {
        let label = |(name, [x, y, z]): Name| format!("{name}, {x} x {y} x {z}");
        std::mem::take(&mut self.costs).into_iter().map(|(n, cost)| (label(n), cost)).collect()
    }
}
