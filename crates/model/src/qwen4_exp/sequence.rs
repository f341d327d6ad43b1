//! One sequence: its tokens, its slot, its pages.
//!
//! Owns: lengths and page tables. Never: bytes of state (they are the device's).
//! Invariants: `pages` covers every row run so far; a page that a pass may write has one owner.

use super::weights::Model;
use crate::batch::{Keep, MAX_TENTATIVE};
use crate::device::{Device, PageId, SlotId};
use crate::error::{Error, Result};
use crate::pages::Pages;

/// A sequence's bookkeeping. Its recurrent state lies in a slot of the device.
#[derive(Debug)]
pub struct Sequence {
    pub(super) slot: SlotId,
    pub(super) tokens: Vec<u32>,
    pub(super) pages: Vec<PageId>,
    /// Rows of the draft head made from true (hidden, next token) pairs; 0 without a head.
    pub(super) draft_rows: usize,
    /// Whether there is a head, which writes its rows behind the trunk's.
    has_head: bool,
    /// Tentative tokens of the last pass, not settled yet.
    pub(super) pending: Vec<u32>,
    page_rows: usize,
}

impl Sequence {
    /// An empty sequence of `model` in a slot, whose state it resets.
    ///
    /// # Errors
    /// When the device fails.
    pub fn open<D: Device>(model: &Model<D>, device: &mut D, slot: SlotId) -> Result<Self> {
        device.reset_slot(slot)?;
        Ok(Self {
            slot,
            tokens: Vec::new(),
            pages: Vec::new(),
            draft_rows: 0,
            has_head: model.draft.is_some(),
            pending: Vec::new(),
            page_rows: model.limits.page_rows,
        })
    }

    /// A copy that shares all pages.
    ///
    /// # Errors
    /// When the device fails.
    pub fn fork<D: Device>(&self, device: &mut D, pages: &mut Pages, slot: SlotId) -> Result<Self> {
        assert!(self.pending.is_empty(), "settle before fork");
        device.copy_slot(self.slot, slot)?;
        self.pages.iter().for_each(|&p| pages.share(p));
        Ok(Self {
            slot,
            tokens: self.tokens.clone(),
            pages: self.pages.clone(),
            draft_rows: self.draft_rows,
            has_head: self.has_head,
            pending: Vec::new(),
            page_rows: self.page_rows,
        })
    }

    /// Lets go of the pages.
    pub fn close(self, pages: &mut Pages) -> SlotId {
        self.pages.into_iter().for_each(|p| pages.release(p));
        self.slot
    }

    /// Where the recurrent state lies.
    pub fn slot(&self) -> SlotId {
        self.slot
    }

    /// Tokens run through the trunk and settled.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Rows of the draft head made from true pairs.
    pub fn draft_rows(&self) -> usize {
        self.draft_rows
    }

    /// The pages in order.
    pub fn pages(&self) -> &[PageId] {
        &self.pages
    }

    /// Notes that the draft head has `rows` rows made from true pairs.
    pub fn set_draft_rows(&mut self, rows: usize) {
        self.draft_rows = rows;
    }

    /// The pages that hold rows run so far.
    pub fn pages_in_use(&self) -> &[PageId] {
        &self.pages[..self.tokens.len().div_ceil(self.page_rows)]
    }

    /// Fills an empty sequence with saved state: `blocks` are the slot's bytes, then each page's.
    ///
    /// # Errors
    /// When the blocks are not as many or as long as these tokens need, or no page is free.
    pub fn load<D: Device>(
        &mut self,
        device: &mut D,
        pages: &mut Pages,
        tokens: &[u32],
        draft_rows: usize,
        blocks: &[&[u8]],
    ) -> Result<()> {
        let wanted = 1 + tokens.len().div_ceil(self.page_rows);
        if blocks.len() != wanted || draft_rows > tokens.len() {
            return Err(Error::State {
                found: format!("{} blocks", blocks.len()),
                expected: format!("{wanted} for {} tokens", tokens.len()),
            });
        }
        device.load_slot(self.slot, blocks[0])?;
        for block in &blocks[1..] {
            let page = pages.take()?;
            self.pages.push(page);
            device.load_page(page, block)?;
        }
        self.tokens = tokens.to_vec();
        self.draft_rows = draft_rows;
        Ok(())
    }

    /// Makes pages for `rows` more rows (and as many draft rows beyond), none of which is shared
    /// with another sequence from the first row that can be written.
    ///
    /// # Errors
    /// When no page is free or the device fails. The sequence is then as before, but for pages of
    /// its own.
    pub fn reserve<D: Device>(
        &mut self,
        device: &mut D,
        pages: &mut Pages,
        rows: usize,
    ) -> Result<()> {
        // Drafts chain beyond the last row; the draft head still writes one row behind the trunk.
        let end = self.tokens.len() + rows + MAX_TENTATIVE;
        while self.pages.len() * self.page_rows < end {
            self.pages.push(pages.take()?);
        }
        let first = if self.has_head { self.draft_rows } else { self.tokens.len() };
        let first = first / self.page_rows;
        for page in &mut self.pages[first..] {
            if pages.is_shared(*page) {
                let own = pages.take()?;
                device.copy_page(*page, own)?;
                pages.release(*page);
                *page = own;
            }
        }
        Ok(())
    }

    /// Notes that `tokens` have been run through the trunk.
    pub(super) fn ran(&mut self, tokens: &[u32], keep: Keep) {
        match keep {
            Keep::All => self.tokens.extend_from_slice(tokens),
            Keep::Tentative => self.pending = tokens.to_vec(),
        }
    }

    /// Keeps the first `rows` rows of the tentative run; the others never happened.
    ///
    /// # Errors
    /// When the device fails.
    pub fn settle<D: Device>(&mut self, device: &mut D, rows: usize) -> Result<()> {
        device.settle(self.slot, rows)?;
        let pending = std::mem::take(&mut self.pending);
        self.tokens.extend_from_slice(&pending[..rows]);
        Ok(())
    }

    /// The n-gram windows of `tokens` appended to this sequence, `ngram` ids each.
    pub(super) fn windows(&self, tokens: &[u32], ngram: usize, eos: u32, out: &mut Vec<u32>) {
        let known = self.tokens.len().min(ngram - 1);
        let mut near = self.tokens[self.tokens.len() - known..].to_vec();
        near.extend_from_slice(tokens);
        let mut window = vec![0; ngram];
        for at in known..near.len() {
            cherenkov_format::qwen4_exp::hash::window(&near, at, eos, &mut window);
            out.extend_from_slice(&window);
        }
    }
}
