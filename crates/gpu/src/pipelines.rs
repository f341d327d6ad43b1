//! Compiled kernels and the buffers bound to them.
//!
//! Owns: the caches of pipelines and bind groups. Never: sources (see `kernels`), order.
//! Invariant: after the first pass of each row count nothing here is created any more.

use crate::arena::{self, Buf};
use crate::gpu::{Gpu, PARAM_BYTES};
use crate::kernels::{Access, Kernel};
use crate::stream::Stream;
use std::collections::HashMap;
use std::num::NonZeroU32;
use std::sync::Arc;

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub name: &'static str,
    pub raw: wgpu::ComputePipeline,
    layout: wgpu::BindGroupLayout,
}

/// Most buffers of a kernel.
pub(crate) const BUFFERS_MAX: usize = 8;

type GroupKey = (Kernel, [u32; BUFFERS_MAX]);

/// Everything compiled so far.
#[derive(Debug)]
pub(crate) struct Pipelines {
    gpu: Arc<Gpu>,
    made: HashMap<Kernel, Arc<Pipeline>>,
    groups: HashMap<GroupKey, wgpu::BindGroup>,
}

impl Pipelines {
    pub fn new(gpu: Arc<Gpu>) -> Self {
        Self { gpu, made: HashMap::new(), groups: HashMap::new() }
    }

    /// The compiled kernel and its buffers, ready to run.
    pub fn bind(
        &mut self,
        stream: &Stream,
        kernel: Kernel,
        slabs: &[Buf],
        buffers: &[&Buf],
    ) -> (Arc<Pipeline>, wgpu::BindGroup) {
        let arrays = usize::from(!slabs.is_empty());
        debug_assert_eq!(arrays + buffers.len(), kernel.access().len(), "{kernel:?}");
        let gpu = &self.gpu;
        let pipeline = self
            .made
            .entry(kernel)
            .or_insert_with(|| Arc::new(compile(gpu, kernel, stream.param_layout())))
            .clone();
        let mut ids = [u32::MAX; BUFFERS_MAX];
        // The slabs of a bank are made together: the first one stands for all.
        let first = slabs.first().into_iter().chain(buffers.iter().copied());
        ids.iter_mut().zip(first).for_each(|(id, buffer)| *id = buffer.id);
        let group = self.groups.entry((kernel, ids)).or_insert_with(|| {
            let array: Vec<_> = slabs.iter().map(|b| b.raw.as_entire_buffer_binding()).collect();
            let weights = match &array[..] {
                [] => None,
                [one] => Some(wgpu::BindingResource::Buffer(one.clone())),
                some => Some(wgpu::BindingResource::BufferArray(some)),
            };
            let entries: Vec<_> = weights
                .into_iter()
                .chain(buffers.iter().map(|b| b.raw.as_entire_binding()))
                .enumerate()
                .map(|(i, resource)| wgpu::BindGroupEntry { binding: i as u32, resource })
                .collect();
            gpu.device.create_bind_group(&wgpu::BindGroupDescriptor {
                label: Some(kernel.name()),
                layout: &pipeline.layout,
                entries: &entries,
            })
        });
        (pipeline, group.clone())
    }

    /// Drops everything that holds a buffer about to be given back.
    pub fn forget(&mut self, id: u32) {
        self.groups.retain(|(_, ids), _| !ids.contains(&id));
    }
}

fn compile(gpu: &Gpu, kernel: Kernel, params: Option<&wgpu::BindGroupLayout>) -> Pipeline {
    let path = if params.is_some() {
        crate::device::ParamPath::Uniform
    } else {
        crate::device::ParamPath::Immediate
    };
    let module = arena::module(gpu, kernel.name(), kernel.source(path));
    let entries: Vec<_> = kernel
        .access()
        .iter()
        .enumerate()
        .map(|(i, access)| wgpu::BindGroupLayoutEntry {
            binding: i as u32,
            visibility: wgpu::ShaderStages::COMPUTE,
            ty: wgpu::BindingType::Buffer {
                ty: wgpu::BufferBindingType::Storage { read_only: *access == Access::Read },
                has_dynamic_offset: false,
                min_binding_size: None,
            },
            count: NonZeroU32::new(kernel.slabs()).filter(|n| i == 0 && n.get() > 1),
        })
        .collect();
    let layout = gpu.device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor {
        label: Some(kernel.name()),
        entries: &entries,
    });
    let whole = gpu.device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label: Some(kernel.name()),
        bind_group_layouts: &[Some(&layout), params][..1 + usize::from(params.is_some())],
        immediate_size: if params.is_some() { 0 } else { PARAM_BYTES },
    });
    let raw = gpu.device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label: Some(kernel.name()),
        layout: Some(&whole),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    Pipeline { name: kernel.name(), raw, layout }
}
