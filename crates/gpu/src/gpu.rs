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

    /// Notes a failure; the device is not used any more.
    pub fn fail(&self, error: impl ToString) -> Error {
        let why = error.to_string();
        self.report(why.clone());
        Error::Lost { why }
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
            on_lost.report(format!("device lost ({reason:?}): {message}"));
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

#[cfg(test)]
mod tests {
    use crate::{GpuDevice, Options, Selection};
    use cherenkov_model::device::{Device, Limits, PageId, SlotId};
    use cherenkov_model::{Batch, Keep};

    #[test]
    fn a_device_that_is_gone_is_an_error() {
        let Ok(mut device) = GpuDevice::new(&Selection::Any, Options::new(1e-6)) else {
            println!("no adapter: 1 check not run (a device that is gone)");
            return;
        };
        let x = device.act(8);
        device.allocate(Limits { rows: 4, slots: 1, pages: 1, page_rows: 16 }).unwrap();
        let mut batch = Batch::default();
        batch.push(SlotId(0), 0, &[1], &[PageId(0)], Keep::All);
        device.begin(&batch).unwrap();
        assert_eq!(device.fetch(x).unwrap(), [0.0; 8]);
        device.gpu.device.destroy();
        let error = device.fetch(x).unwrap_err().to_string();
        assert!(error.contains("the GPU failed"), "{error}");
        assert!(device.vector(&[1.0]).is_err());
    }
}
