//! State of sequences: reset, copy, save, load, settle.

use crate::device::{GpuDevice, Scratch};
use crate::error::{Error, Result};
use crate::state::{Log, Span};
use cherenkov_model::{PageId, SlotId};

/// Bytes that do not belong to this model.
#[derive(Debug)]
pub(crate) struct Mismatch {
    found: usize,
    expected: u64,
}

impl From<Mismatch> for cherenkov_model::Error {
    fn from(m: Mismatch) -> Self {
        Self::State {
            found: format!("{} bytes", m.found),
            expected: format!("{} bytes", m.expected),
        }
    }
}

impl GpuDevice {
    fn known_slot(&self, slot: SlotId) -> Result<usize> {
        let slots = self.limits.map_or(0, |l| l.slots);
        let index = slot.0 as usize;
        if index < slots {
            return Ok(index);
        }
        Err(Error::Misuse { what: format!("slot {index} of {slots}") })
    }

    fn known_page(&self, page: PageId) -> Result<usize> {
        let pages = self.limits.map_or(0, |l| l.pages);
        let index = page.0 as usize;
        if index < pages {
            return Ok(index);
        }
        Err(Error::Misuse { what: format!("page {index} of {pages}") })
    }

    pub(crate) fn verb_reset_slot(&mut self, slot: SlotId) -> Result<()> {
        let slot = self.known_slot(slot)?;
        for delta in &mut self.state.deltas {
            delta.logs[slot] = Log::default();
        }
        let spans = self.state.slot_spans(slot)?;
        let mut stream = self.stream();
        for (buf, at, bytes) in spans.iter().filter(|s| s.2 > 0) {
            stream.clear(buf, *at, *bytes);
        }
        Ok(())
    }

    pub(crate) fn verb_copy_slot(&mut self, from: SlotId, to: SlotId) -> Result<()> {
        let (from, to) = (self.known_slot(from)?, self.known_slot(to)?);
        self.replay_slot(from)?;
        for delta in &mut self.state.deltas {
            delta.logs[to] = Log::default();
        }
        let (from, to) = (self.state.slot_spans(from)?, self.state.slot_spans(to)?);
        self.copy_spans(&from, &to)
    }

    pub(crate) fn verb_save_slot(&mut self, slot: SlotId, out: &mut Vec<u8>) -> Result<()> {
        let slot = self.known_slot(slot)?;
        self.replay_slot(slot)?;
        let spans = self.state.slot_spans(slot)?;
        self.save_spans(&spans, out)
    }

    pub(crate) fn verb_load_slot(
        &mut self,
        slot: SlotId,
        bytes: &[u8],
    ) -> Result<std::result::Result<(), Mismatch>> {
        let slot = self.known_slot(slot)?;
        for delta in &mut self.state.deltas {
            delta.logs[slot] = Log::default();
        }
        let spans = self.state.slot_spans(slot)?;
        self.load_spans(&spans, bytes)
    }

    pub(crate) fn verb_copy_page(&mut self, from: PageId, to: PageId) -> Result<()> {
        let (from, to) = (self.known_page(from)?, self.known_page(to)?);
        let (from, to) = (self.state.page_spans(from)?, self.state.page_spans(to)?);
        self.copy_spans(&from, &to)
    }

    pub(crate) fn verb_save_page(&mut self, page: PageId, out: &mut Vec<u8>) -> Result<()> {
        let spans = self.state.page_spans(self.known_page(page)?)?;
        self.save_spans(&spans, out)
    }

    pub(crate) fn verb_load_page(
        &mut self,
        page: PageId,
        bytes: &[u8],
    ) -> Result<std::result::Result<(), Mismatch>> {
        let spans = self.state.page_spans(self.known_page(page)?)?;
        self.load_spans(&spans, bytes)
    }

    pub(crate) fn verb_settle(&mut self, slot: SlotId, rows: usize) -> Result<()> {
        let slot = self.known_slot(slot)?;
        for delta in &mut self.state.deltas {
            let log = &mut delta.logs[slot];
            // A lane that the tentative run did not go through has nothing to settle.
            if log.open == 0 {
                continue;
            }
            if rows as u32 > log.open {
                let what = format!("settle: {rows} rows stay of {} tentative ones", log.open);
                return Err(Error::Misuse { what });
            }
            // Rows that waited since before were replayed by the run that is settled now.
            *log = Log { open: 0, replay: rows as u32, side: log.side };
        }
        Ok(())
    }

    /// Copies spans of the same buffers; a buffer cannot be copied onto itself, so through another.
    fn copy_spans(&mut self, from: &[Span], to: &[Span]) -> Result<()> {
        let total: u64 = from.iter().map(|s| s.2).sum();
        let most = from.iter().map(|s| s.2).max().unwrap_or(0);
        if total == 0 {
            return Ok(());
        }
        let way = self.scratch(Scratch::Way, most)?;
        let mut stream = self.stream();
        for (from, to) in from.iter().zip(to).filter(|(f, t)| f.2 > 0 && f.1 != t.1) {
            stream.copy((&from.0, from.1), (&way, 0), from.2);
            stream.copy((&way, 0), (&to.0, to.1), from.2);
        }
        Ok(())
    }

    fn save_spans(&mut self, spans: &[Span], out: &mut Vec<u8>) -> Result<()> {
        let parts: Vec<_> = spans.iter().filter(|s| s.2 > 0).map(|s| (&s.0, s.1, s.2)).collect();
        self.stream().read(&parts, |bytes| out.extend_from_slice(bytes))
    }

    fn load_spans(
        &mut self,
        spans: &[Span],
        bytes: &[u8],
    ) -> Result<std::result::Result<(), Mismatch>> {
        let expected: u64 = spans.iter().map(|s| s.2).sum();
        if bytes.len() as u64 != expected {
            return Ok(Err(Mismatch { found: bytes.len(), expected }));
        }
        let mut rest = bytes;
        let mut stream = self.stream();
        for (buf, at, len) in spans {
            let (part, left) = rest.split_at(*len as usize);
            rest = left;
            stream.write(buf, *at, part)?;
        }
        Ok(Ok(()))
    }
}
