//! Commands on their way to the GPU.
//!
//! Owns: the open encoder and pass, parameter memory, uploads and read-backs in order.
//! Never: which kernel runs.
//! Invariant: the GPU sees dispatches, copies and uploads in the order of the calls.

use crate::adapters::Kind;
use crate::arena::Buf;
use crate::device::ParamPath;
use crate::error::Result;
use crate::gpu::{Gpu, PARAM_BYTES};
use crate::pipelines::Pipeline;
use crate::profile::Profile;
use std::sync::Arc;

/// Parameter blocks of one submission, where parameters do not travel inside the commands.
const RING_BLOCKS: u64 = 1024;

/// Parameters in a uniform buffer: the fallback for adapters without immediates.
#[derive(Debug)]
pub(crate) struct ParamRing {
    buffer: wgpu::Buffer,
    pub layout: wgpu::BindGroupLayout,
    group: wgpu::BindGroup,
    step: u64,
    host: Vec<u8>,
}

impl ParamRing {
    fn new(gpu: &Gpu) -> Self {
        let step = u64::from(gpu.device.limits().min_uniform_buffer_offset_alignment)
            .max(u64::from(PARAM_BYTES));
        let buffer = gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("parameters"),
            size: step * RING_BLOCKS,
            usage: wgpu::BufferUsages::UNIFORM | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        let layout = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
            label: Some("parameters"),
            entries: &[wgpu::BindGroupLayoutEntry {
                binding: 0,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Uniform,
                    has_dynamic_offset: true,
                    min_binding_size: None,
                },
                count: None,
            }],
        });
        let group = gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
            label: Some("parameters"),
            layout: &layout,
            entries: &[wgpu::BindGroupEntry {
                binding: 0,
                resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                    buffer: &buffer,
                    offset: 0,
                    size: std::num::NonZeroU64::new(u64::from(PARAM_BYTES)),
                }),
            }],
        });
        Self { buffer, layout, group, step, host: Vec::new() }
    }

    fn push(&mut self, bytes: &[u8]) -> u32 {
        let at = self.host.len();
        self.host.extend_from_slice(bytes);
        self.host.resize(at + self.step as usize, 0);
        at as u32
    }

    fn is_full(&self) -> bool {
        self.host.len() as u64 >= self.step * RING_BLOCKS
    }
}

/// Kernels after which a submission is made without being asked for: the GPU starts on them while the
/// next ones are encoded.
const EARLY: u32 = 12;

/// How often the host looks whether the GPU is done before it sleeps: waking up costs more than most
/// waits last. A software adapter needs the processor itself.
const LOOKS: u32 = 2000;

/// What a stream has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Kernels run.
    pub dispatches: u64,
    /// Times that commands were handed over.
    pub submissions: u64,
    /// Times that the host waited.
    pub waits: u64,
}

/// The order of commands.
#[derive(Debug)]
pub(crate) struct Stream {
    gpu: Arc<Gpu>,
    // The pass borrows from the encoder in spirit: it is always dropped first.
    pass: Option<wgpu::ComputePass<'static>>,
    encoder: Option<wgpu::CommandEncoder>,
    ring: Option<ParamRing>,
    back: Option<wgpu::Buffer>,
    /// Kernels since the last submission.
    waiting: u32,
    looks: u32,
    pub profile: Option<Profile>,
    pub counts: Counts,
}

impl Stream {
    pub fn new(gpu: Arc<Gpu>, path: ParamPath) -> Self {
        let ring = (path == ParamPath::Uniform).then(|| ParamRing::new(&gpu));
        let looks = if gpu.info.kind == Kind::Software { 0 } else { LOOKS };
        Self {
            gpu,
            pass: None,
            encoder: None,
            ring,
            back: None,
            waiting: 0,
            looks,
            profile: None,
            counts: Counts::default(),
        }
    }

    /// Layout of the parameter group, where there is one.
    pub fn param_layout(&self) -> Option<&wgpu::BindGroupLayout> {
        self.ring.as_ref().map(|r| &r.layout)
    }

    fn encoder(&mut self) -> &mut wgpu::CommandEncoder {
        let gpu = &self.gpu;
        self.encoder.get_or_insert_with(|| gpu.device.create_command_encoder(&Default::default()))
    }

    /// Runs a kernel after everything before it.
    pub fn dispatch(
        &mut self,
        pipeline: &Pipeline,
        group: &wgpu::BindGroup,
        params: &[u8],
        grid: [u32; 3],
    ) -> Result<()> {
        if self.waiting >= EARLY || self.ring.as_ref().is_some_and(ParamRing::is_full) {
            self.flush()?;
        }
        self.open_pass(pipeline.name, grid)?;
        let pass = self.pass.as_mut().expect("just begun");
        pass.set_pipeline(&pipeline.raw);
        pass.set_bind_group(0, group, &[]);
        match &mut self.ring {
            None => pass.set_immediates(0, params),
            Some(ring) => {
                let at = ring.push(params);
                pass.set_bind_group(1, &ring.group, &[at]);
            }
        }
        pass.dispatch_workgroups(grid[0], grid[1], grid[2]);
        self.counts.dispatches += 1;
        self.waiting += 1;
        Ok(())
    }

    /// Makes sure that a pass is open; a profile wants one per kernel.
    fn open_pass(&mut self, name: &'static str, grid: [u32; 3]) -> Result<()> {
        if self.profile.as_ref().is_some_and(Profile::is_full) {
            self.flush()?;
        }
        let mut profile = self.profile.take();
        if profile.is_some() {
            self.pass = None;
        }
        if self.pass.is_none() {
            let timestamp_writes = profile.as_mut().map(|p| p.next((name, grid)));
            let descriptor = wgpu::ComputePassDescriptor { label: Some(name), timestamp_writes };
            let pass = self.encoder().begin_compute_pass(&descriptor);
            self.pass = Some(pass.forget_lifetime());
        }
        self.profile = profile;
        Ok(())
    }

    /// Copies between different buffers.
    pub fn copy(&mut self, from: (&Buf, u64), to: (&Buf, u64), bytes: u64) {
        debug_assert_ne!(from.0.id, to.0.id, "a copy within one buffer goes through another");
        self.pass = None;
        self.encoder().copy_buffer_to_buffer(&from.0.raw, from.1, &to.0.raw, to.1, bytes);
    }

    /// Zeroes a part of a buffer.
    pub fn clear(&mut self, buf: &Buf, at: u64, bytes: u64) {
        self.pass = None;
        self.encoder().clear_buffer(&buf.raw, at, Some(bytes));
    }

    /// Writes host bytes (a multiple of four of them) after everything before.
    pub fn write(&mut self, buf: &Buf, at: u64, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        self.flush()?;
        self.gpu.queue.write_buffer(&buf.raw, at, bytes);
        Ok(())
    }

    /// Hands everything so far to the GPU.
    pub fn flush(&mut self) -> Result<()> {
        self.pass = None;
        if let Some(mut encoder) = self.encoder.take() {
            if let Some(profile) = &self.profile {
                profile.resolve(&mut encoder);
            }
            if let Some(ring) = &mut self.ring {
                self.gpu.queue.write_buffer(&ring.buffer, 0, &ring.host);
                ring.host.clear();
            }
            self.gpu.queue.submit([encoder.finish()]);
            self.counts.submissions += 1;
            self.waiting = 0;
            if let Some(profile) = &mut self.profile {
                profile.collect(&self.gpu)?;
            }
        }
        self.gpu.faults.check()
    }

    /// Hands parts of buffers, one after the other, to `take`, once everything before is done.
    pub fn read<T>(
        &mut self,
        parts: &[(&Buf, u64, u64)],
        take: impl FnOnce(&[u8]) -> T,
    ) -> Result<T> {
        let total: u64 = parts.iter().map(|p| p.2).sum();
        if total == 0 {
            return Ok(take(&[]));
        }
        let back = self.back(total)?;
        self.pass = None;
        let mut to = 0;
        for &(buf, at, bytes) in parts {
            self.encoder().copy_buffer_to_buffer(&buf.raw, at, &back, to, bytes);
            to += bytes;
        }
        self.flush()?;
        let (send, receive) = std::sync::mpsc::channel();
        back.slice(..total).map_async(wgpu::MapMode::Read, move |r| drop(send.send(r)));
        let faults = self.gpu.faults.clone();
        self.counts.waits += 1;
        let mut mapped = None;
        for _ in 0..self.looks {
            self.gpu.device.poll(wgpu::PollType::Poll).map_err(|e| faults.fail(e))?;
            mapped = receive.try_recv().ok();
            if mapped.is_some() {
                break;
            }
            std::hint::spin_loop();
        }
        if mapped.is_none() {
            let polled = self.gpu.device.poll(wgpu::PollType::wait_indefinitely());
            polled.map_err(|e| faults.fail(e))?;
            mapped = receive.try_recv().ok();
        }
        self.gpu.faults.check()?;
        let mapped = mapped.ok_or_else(|| faults.fail("a finished copy was not handed over"))?;
        mapped.map_err(|e| faults.fail(e))?;
        let view = back.slice(..total).get_mapped_range().map_err(|e| faults.fail(e))?;
        let taken = take(&view);
        drop(view);
        back.unmap();
        Ok(taken)
    }

    /// Host memory of at least this size that the GPU can write.
    fn back(&mut self, bytes: u64) -> Result<wgpu::Buffer> {
        if let Some(back) = self.back.as_ref().filter(|b| b.size() >= bytes) {
            return Ok(back.clone());
        }
        let size = bytes.next_power_of_two().max(1 << 16);
        let back = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some("read back"),
            size,
            usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
            mapped_at_creation: false,
        });
        self.gpu.faults.check()?;
        self.back = Some(back.clone());
        Ok(back)
    }
}
