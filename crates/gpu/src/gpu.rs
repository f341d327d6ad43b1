//! One opened adapter.
//!
//! Owns: the wgpu device and queue, what the driver reported as wrong.
//! Invariant: the first failure sticks; nothing is read back from a device that has failed.

use crate::adapters::{self, AdapterInfo, Selection};
use crate::error::{Error, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// The first thing that went wrong on a device.
#[derive(Debug, Default)]
pub(crate) struct Faults(Mutex<Option<String>>);

impl Faults {
    fn report(&self, why: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(why);
    }

    /// An error when anything has gone wrong so far.
    pub fn check(&self) -> Result<()> {
        match &*self.0.lock().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(()),
            Some(why) => Err(Error::Lost { why: why.clone() }),
        }
    }
}

/// An opened adapter.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub device: wgpu::Device,
    pub queue: wgpu::Queue,
    pub info: AdapterInfo,
    pub faults: Arc<Faults>,
}

/// Largest size of a kernel's parameters; every adapter with immediates has room for it.
pub(crate) const PARAM_BYTES: u32 = 128;

/// Memory that the largest kernel's workgroup shares.
const WORKGROUP_BYTES: u32 = 16 << 10;
/// Lanes of the largest workgroup.
const WORKGROUP_LANES: u32 = 256;
/// Buffers of the kernel that needs the most.
const STORAGE_BUFFERS: u32 = 8;

impl Gpu {
    /// Opens the adapter that `selection` means.
    pub fn open(selection: &Selection) -> Result<Self> {
        let (info, adapter) = adapters::choose(selection)?;
        suffices(&info)?;
        let descriptor = wgpu::DeviceDescriptor {
            label: Some("cherenkov"),
            required_features: adapter.features() & adapters::wanted_features(),
            required_limits: adapter.limits(),
            memory_hints: wgpu::MemoryHints::Performance,
            ..Default::default()
        };
        let opened = pollster::block_on(adapter.request_device(&descriptor));
        let (device, queue) = opened.map_err(|e| Error::Lost { why: e.to_string() })?;
        let faults = Arc::new(Faults::default());
        let (on_error, on_lost) = (faults.clone(), faults.clone());
        device.on_uncaptured_error(Arc::new(move |e: wgpu::Error| on_error.report(e.to_string())));
        device.set_device_lost_callback(move |reason, message| {
            // Destroying the device at the end of its life is reported, too.
            if reason != wgpu::DeviceLostReason::Destroyed {
                on_lost.report(format!("device lost: {message}"));
            }
        });
        Ok(Self { device, queue, info, faults })
    }
}

fn suffices(info: &AdapterInfo) -> Result<()> {
    let l = &info.limits;
    let enough = l.workgroup_bytes >= WORKGROUP_BYTES
        && l.workgroup_lanes >= WORKGROUP_LANES
        && l.storage_buffers >= STORAGE_BUFFERS;
    if enough {
        return Ok(());
    }
    Err(Error::Missing {
        adapter: info.name.clone(),
        found: format!(
            "workgroups of {} lanes and {} bytes, {} buffers",
            l.workgroup_lanes, l.workgroup_bytes, l.storage_buffers
        ),
        expected: format!("{WORKGROUP_LANES} lanes, {WORKGROUP_BYTES} bytes, {STORAGE_BUFFERS}"),
    })
}
