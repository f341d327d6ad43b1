//! Memory of the device, and the one place that asks the driver for trust.
//!
//! Owns: buffers and their tally, shader modules compiled without run-time checks, the size of an
//! adapter's memory.
//! Never: what lies in a buffer.
//! Invariant: no buffer is larger than the adapter can bind; running out is an error, not a panic.
#![allow(unsafe_code)]

use crate::error::{Error, Result};
use crate::gpu::Gpu;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A storage buffer.
#[derive(Clone, Debug)]
pub(crate) struct Buf {
    pub raw: wgpu::Buffer,
    /// Unique within its arena.
    pub id: u32,
    pub bytes: u64,
}

/// Bytes handed to the queue before waiting for them to arrive.
const UPLOAD_WINDOW: u64 = 64 << 20;

/// Makes buffers.
#[derive(Debug)]
pub(crate) struct Arena {
    gpu: Arc<Gpu>,
    next: u32,
    held: BTreeMap<&'static str, u64>,
    in_flight: u64,
    cap: u64,
}

impl Arena {
    /// An arena whose buffers are at most `cap` bytes, if that is less than the adapter's limit.
    pub fn new(gpu: Arc<Gpu>, cap: Option<u64>) -> Self {
        let cap = cap.unwrap_or(u64::MAX);
        Self { gpu, next: 0, held: BTreeMap::new(), in_flight: 0, cap }
    }

    /// Bytes by purpose.
    pub fn held(&self) -> Vec<(&'static str, usize)> {
        self.held.iter().map(|(&what, &bytes)| (what, bytes as usize)).collect()
    }

    /// The largest buffer that kernels can see whole.
    pub fn largest(&self) -> u64 {
        let limits = &self.gpu.info.limits;
        limits.buffer_bytes.min(limits.binding_bytes).min(self.cap) / 16 * 16
    }

    /// A zeroed storage buffer of at least `bytes`.
    pub fn storage(&mut self, what: &'static str, bytes: u64) -> Result<Buf> {
        let bytes = bytes.next_multiple_of(16).max(16);
        let limit = self.largest();
        if bytes > limit {
            let remedy = "use fewer rows, a shorter context or another device";
            return Err(Error::TooLarge { what, bytes, limit, remedy });
        }
        let scope = self.gpu.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let raw = self.gpu.device.create_buffer(&wgpu::BufferDescriptor {
            label: Some(what),
            size: bytes,
            usage: wgpu::BufferUsages::STORAGE
                | wgpu::BufferUsages::COPY_DST
                | wgpu::BufferUsages::COPY_SRC,
            mapped_at_creation: false,
        });
        if pollster::block_on(scope.pop()).is_some() {
            return Err(Error::Memory { what, bytes });
        }
        self.gpu.faults.check()?;
        *self.held.entry(what).or_default() += bytes;
        self.next += 1;
        Ok(Buf { raw, id: self.next, bytes })
    }

    /// Gives a buffer back.
    pub fn release(&mut self, what: &'static str, buf: Buf) {
        if let Some(held) = self.held.get_mut(what) {
            *held -= buf.bytes;
        }
    }

    /// A storage buffer with this content; for loading, not for a running pass.
    pub fn filled(&mut self, what: &'static str, bytes: &[u8]) -> Result<Buf> {
        let buf = self.storage(what, bytes.len() as u64)?;
        for (i, chunk) in bytes.chunks(UPLOAD_WINDOW as usize).enumerate() {
            let (whole, rest) = chunk.split_at(chunk.len() / 4 * 4);
            let at = i as u64 * UPLOAD_WINDOW;
            self.gpu.queue.write_buffer(&buf.raw, at, whole);
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                self.gpu.queue.write_buffer(&buf.raw, at + whole.len() as u64, &last);
            }
            self.in_flight += chunk.len() as u64;
            if self.in_flight >= UPLOAD_WINDOW {
                self.settle()?;
            }
        }
        Ok(buf)
    }

    /// Waits until everything handed to the queue has arrived, so that staging memory is free again.
    fn settle(&mut self) -> Result<()> {
        self.in_flight = 0;
        self.gpu.queue.submit([]);
        let polled = self.gpu.device.poll(wgpu::PollType::wait_indefinitely());
        polled.map_err(|e| self.gpu.faults.fail(e))?;
        self.gpu.faults.check()
    }
}

/// Bytes of the adapter's own memory, where its interface says.
#[cfg(not(target_vendor = "apple"))]
pub(crate) fn own_memory(adapter: &wgpu::Adapter) -> Option<u64> {
    /// `VK_MEMORY_HEAP_DEVICE_LOCAL_BIT`.
    const DEVICE_LOCAL: u32 = 1;
    // SAFETY: the adapter outlives the borrowed handles, and nothing is changed through them.
    let properties = unsafe {
        let vulkan = adapter.as_hal::<wgpu::hal::api::Vulkan>()?;
        let instance = vulkan.shared_instance().raw_instance();
        instance.get_physical_device_memory_properties(vulkan.raw_physical_device())
    };
    let heaps = &properties.memory_heaps[..properties.memory_heap_count as usize];
    let own = heaps.iter().filter(|heap| heap.flags.as_raw() & DEVICE_LOCAL != 0);
    own.map(|heap| heap.size).max()
}

/// Bytes of the adapter's own memory, where its interface says.
#[cfg(target_vendor = "apple")]
pub(crate) fn own_memory(_adapter: &wgpu::Adapter) -> Option<u64> {
    None
}

/// Compiles one of this crate's kernels.
pub(crate) fn module(gpu: &Gpu, label: &str, source: String) -> wgpu::ShaderModule {
    let descriptor = wgpu::ShaderModuleDescriptor {
        label: Some(label),
        source: wgpu::ShaderSource::Wgsl(source.into()),
    };
    let checks = wgpu::ShaderRuntimeChecks::unchecked();
    // SAFETY: only kernels of this crate come here. Their indices stay within the bound buffers:
    // hosts values that become indices (tokens, pages, slots, rows) are checked by the verbs, and
    // every loop ends.
    unsafe { gpu.device.create_shader_module_trusted(descriptor, checks) }
}
