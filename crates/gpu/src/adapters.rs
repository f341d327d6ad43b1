//! Which GPUs there are and which one is used.
//!
//! Owns: the probe, the order of preference. Never: opening a device (see `gpu`).

use crate::arena;
use crate::error::{Error, Result};
use std::fmt;

/// Programming interface of an adapter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Backend {
    /// Vulkan.
    Vulkan,
    /// Metal.
    Metal,
    /// Direct3D 12.
    Dx12,
}

/// What sort of processor an adapter is; the earlier, the more wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    /// With memory of its own.
    Discrete,
    /// Shares the system's memory.
    Integrated,
    /// A slice of a GPU given to a virtual machine.
    Virtual,
    /// The driver does not say.
    Unknown,
    /// A program on the CPU: right, but slow.
    Software,
}

/// Sizes that an adapter allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest buffer, bytes.
    pub buffer_bytes: u64,
    /// Largest part of a buffer that a kernel can see, bytes.
    pub binding_bytes: u64,
    /// Memory that a workgroup shares, bytes.
    pub workgroup_bytes: u32,
    /// Most lanes of a workgroup.
    pub workgroup_lanes: u32,
    /// Most workgroups along one axis.
    pub workgroups: u32,
    /// Most storage buffers of a kernel.
    pub storage_buffers: u32,
}

/// What an adapter can do beyond the necessary; every one is optional.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// Parameters travel inside the commands; bytes, if any.
    pub immediate_bytes: Option<u32>,
    /// Half-precision arithmetic.
    pub f16: bool,
    /// Smallest and largest number of lanes in lockstep, where kernels may use that.
    pub subgroup: Option<(u32, u32)>,
    /// Host and GPU can see the same buffer.
    pub mapped: bool,
    /// The GPU can say how long it took.
    pub timestamps: bool,
    /// Matrix units.
    pub matrix_units: bool,
    /// Most buffers that one kernel can see as an array, where it can.
    pub buffer_array: Option<u32>,
}

/// An adapter of this machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Name given by the driver.
    pub name: String,
    /// Driver and its version.
    pub driver: String,
    /// Its interface.
    pub backend: Backend,
    /// Its sort.
    pub kind: Kind,
    /// Its own memory, bytes; only Vulkan says. For integrated ones a part of the system's.
    pub memory_bytes: Option<u64>,
    /// Its limits.
    pub limits: Limits,
    /// Its features.
    pub features: Features,
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?}, {:?}, {})", self.name, self.kind, self.backend, self.driver)
    }
}

/// Which adapter to use.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum Selection {
    /// The most wanted one that is not software.
    #[default]
    Hardware,
    /// The most wanted one, software if need be.
    Any,
    /// The most wanted one whose name contains this, whatever the case.
    Named(String),
}

impl Selection {
    fn accepts(&self, info: &AdapterInfo) -> bool {
        match self {
            Self::Hardware => info.kind != Kind::Software,
            Self::Any => true,
            Self::Named(part) => info.name.to_lowercase().contains(&part.to_lowercase()),
        }
    }

    fn wanted(&self) -> String {
        match self {
            Self::Hardware => "a hardware adapter".into(),
            Self::Any => "any adapter".into(),
            Self::Named(part) => format!("one whose name contains {part:?}"),
        }
    }
}

/// Every usable adapter, the most wanted first.
pub fn adapters() -> Vec<AdapterInfo> {
    probe().into_iter().map(|(info, _)| info).collect()
}

/// The adapter that `selection` means.
pub(crate) fn choose(selection: &Selection) -> Result<(AdapterInfo, wgpu::Adapter)> {
    let all = probe();
    let names: Vec<String> = all.iter().map(|(info, _)| info.to_string()).collect();
    let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    let chosen = all.into_iter().find(|(info, _)| selection.accepts(info));
    chosen.ok_or_else(|| Error::NoAdapter { found, wanted: selection.wanted() })
}

/// What kernels need to see several buffers as an array.
fn buffer_arrays() -> wgpu::Features {
    wgpu::Features::BUFFER_BINDING_ARRAY
        | wgpu::Features::STORAGE_RESOURCE_BINDING_ARRAY
        | wgpu::Features::SAMPLED_TEXTURE_AND_STORAGE_BUFFER_ARRAY_NON_UNIFORM_INDEXING
}

/// Features asked for where present.
pub(crate) fn wanted_features() -> wgpu::Features {
    wgpu::Features::SHADER_F16
        | wgpu::Features::SUBGROUP
        | wgpu::Features::SUBGROUP_BARRIER
        | wgpu::Features::IMMEDIATES
        | wgpu::Features::MAPPABLE_PRIMARY_BUFFERS
        | wgpu::Features::TIMESTAMP_QUERY
        | buffer_arrays()
}

fn probe() -> Vec<(AdapterInfo, wgpu::Adapter)> {
    let backends = wgpu::Backends::VULKAN | wgpu::Backends::METAL | wgpu::Backends::DX12;
    let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
    descriptor.backends = backends;
    descriptor.flags = wgpu::InstanceFlags::empty();
    let instance = wgpu::Instance::new(descriptor);
    let all = pollster::block_on(instance.enumerate_adapters(backends));
    let mut all: Vec<_> = all.into_iter().filter_map(|a| Some((describe(&a)?, a))).collect();
    all.sort_by_key(|(info, _)| info.kind);
    all
}

fn describe(adapter: &wgpu::Adapter) -> Option<AdapterInfo> {
    let (info, limits, has) = (adapter.get_info(), adapter.limits(), adapter.features());
    let backend = match info.backend {
        wgpu::Backend::Vulkan => Backend::Vulkan,
        wgpu::Backend::Metal => Backend::Metal,
        wgpu::Backend::Dx12 => Backend::Dx12,
        _ => return None,
    };
    let immediates = has.contains(wgpu::Features::IMMEDIATES);
    let subgroup = has.contains(wgpu::Features::SUBGROUP);
    Some(AdapterInfo {
        name: info.name,
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
        backend,
        kind: match info.device_type {
            wgpu::DeviceType::DiscreteGpu => Kind::Discrete,
            wgpu::DeviceType::IntegratedGpu => Kind::Integrated,
            wgpu::DeviceType::VirtualGpu => Kind::Virtual,
            wgpu::DeviceType::Cpu => Kind::Software,
            wgpu::DeviceType::Other => Kind::Unknown,
        },
        memory_bytes: arena::own_memory(adapter),
        limits: Limits {
            buffer_bytes: limits.max_buffer_size,
            binding_bytes: limits.max_storage_buffer_binding_size,
            workgroup_bytes: limits.max_compute_workgroup_storage_size,
            workgroup_lanes: limits.max_compute_invocations_per_workgroup,
            workgroups: limits.max_compute_workgroups_per_dimension,
            storage_buffers: limits.max_storage_buffers_per_shader_stage,
        },
        features: Features {
            immediate_bytes: immediates.then_some(limits.max_immediate_size),
            f16: has.contains(wgpu::Features::SHADER_F16),
            subgroup: subgroup.then_some((info.subgroup_min_size, info.subgroup_max_size)),
            mapped: has.contains(wgpu::Features::MAPPABLE_PRIMARY_BUFFERS),
            timestamps: has.contains(wgpu::Features::TIMESTAMP_QUERY),
            matrix_units: has.contains(wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX),
            buffer_array: has
                .contains(buffer_arrays())
                .then_some(limits.max_binding_array_elements_per_shader_stage),
        },
    })
}
