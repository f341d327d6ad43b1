//! Which pages belong to whom.
//!
//! Owns: the free list and the number of owners of each page. Never: their bytes.
//! Invariant: a page with more than one owner is never written (see `Sequence::reserve`).

use crate::device::PageId;
use crate::error::{Error, Result};

/// Reference counts of all pages of a device.
#[derive(Debug)]
pub struct Pages {
    owners: Vec<u32>,
    free: Vec<PageId>,
}

impl Pages {
    /// `count` free pages.
    pub fn new(count: usize) -> Self {
        Self { owners: vec![0; count], free: (0..count as u32).rev().map(PageId).collect() }
    }

    /// Pages without an owner.
    pub fn available(&self) -> usize {
        self.free.len()
    }

    /// Takes a free page.
    ///
    /// # Errors
    /// [`Error::Exhausted`] when there is none.
    pub fn take(&mut self) -> Result<PageId> {
        let limit = self.owners.len();
        let page = self.free.pop().ok_or(Error::Exhausted { what: "context pages", limit })?;
        self.owners[page.0 as usize] = 1;
        Ok(page)
    }

    /// Adds an owner.
    pub fn share(&mut self, page: PageId) {
        debug_assert!(self.owners[page.0 as usize] > 0);
        self.owners[page.0 as usize] += 1;
    }

    /// Removes an owner; the last one frees the page.
    pub fn release(&mut self, page: PageId) {
        let owners = &mut self.owners[page.0 as usize];
        *owners = owners.checked_sub(1).expect("a released page has an owner");
        if *owners == 0 {
            self.free.push(page);
        }
    }

    /// Whether someone else owns the page too.
    pub fn is_shared(&self, page: PageId) -> bool {
        self.owners[page.0 as usize] > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_free_when_its_last_owner_lets_go() {
        let mut pages = Pages::new(1);
        let page = pages.take().unwrap();
        pages.share(page);
        assert!(pages.is_shared(page));
        pages.release(page);
        assert!(!pages.is_shared(page));
        assert!(matches!(pages.take(), Err(Error::Exhausted { limit: 1, .. })));
        pages.release(page);
        assert_eq!(pages.take().unwrap(), page);
    }
}
