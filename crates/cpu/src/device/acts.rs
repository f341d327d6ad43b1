//! Activations.
//!
//! Owns: their memory, and a stamp that changes with their contents. Never: what they mean.

use super::engine::Stamp;
use crate::memory::Aligned;
use cherenkov_model::Act;

#[derive(Debug, Default)]
struct Buffer {
    width: usize,
    version: u64,
    data: Aligned<f32>,
}

/// All activations of a device.
#[derive(Debug, Default)]
pub struct Acts {
    buffers: Vec<Buffer>,
    /// Rows of the batch.
    pub rows: usize,
}

impl Acts {
    /// Declares an activation.
    pub fn declare(&mut self, width: usize) -> Act {
        self.buffers.push(Buffer { width, ..Buffer::default() });
        Act { id: (self.buffers.len() - 1) as u16, width: width as u32 }
    }

    /// Makes room for this many rows of each.
    pub fn allocate(&mut self, rows: usize) {
        for buffer in &mut self.buffers {
            buffer.data = Aligned::new(rows * buffer.width);
        }
    }

    /// The batch's rows of an activation.
    pub fn get(&self, x: Act) -> &[f32] {
        &self.buffers[x.id as usize].data[..self.rows * x.width as usize]
    }

    /// One row, also beyond the batch's.
    pub fn row(&self, x: Act, row: usize) -> &[f32] {
        let width = x.width as usize;
        &self.buffers[x.id as usize].data[row * width..][..width]
    }

    /// Names the contents of an activation.
    pub fn stamp(&self, x: Act) -> Stamp {
        Stamp { act: x.id, version: self.buffers[x.id as usize].version }
    }

    /// Takes the memory of an activation that will be written; give it back with [`Self::give`].
    pub fn take(&mut self, out: Act) -> Aligned<f32> {
        let buffer = &mut self.buffers[out.id as usize];
        buffer.version += 1;
        std::mem::take(&mut buffer.data)
    }

    /// Gives the memory back.
    pub fn give(&mut self, out: Act, data: Aligned<f32>) {
        self.buffers[out.id as usize].data = data;
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.buffers.iter().map(|b| b.data.bytes()).sum()
    }
}
