//! Memory that starts on a cache line.
//!
//! Owns: alignment. Never: what the numbers mean.
//! Invariant: the address of the first element is a multiple of [`LINE_BYTES`].

use cherenkov_format::ask_for_huge_pages;

/// Bytes of a cache line, and of a vector.
pub const LINE_BYTES: usize = 64;

/// A buffer of plain numbers on a cache line boundary.
#[derive(Debug)]
pub struct Aligned<T> {
    raw: Vec<T>,
    start: usize,
    len: usize,
}

impl<T> Default for Aligned<T> {
    fn default() -> Self {
        Self { raw: Vec::new(), start: 0, len: 0 }
    }
}

impl<T: Copy + Default> Aligned<T> {
    /// `len` default elements.
    pub fn new(len: usize) -> Self {
        if len == 0 {
            return Self::default();
        }
        let spare = LINE_BYTES / size_of::<T>();
        let raw = vec![T::default(); len + spare];
        // Zeroed memory is not touched yet.
        ask_for_huge_pages(&raw);
        let start = raw.as_ptr().align_offset(LINE_BYTES);
        assert!(start <= spare, "numbers are aligned to their size");
        Self { raw, start, len }
    }

    /// A copy of `values`.
    pub fn from_slice(values: &[T]) -> Self {
        let mut out = Self::new(values.len());
        out.copy_from_slice(values);
        out
    }

    /// At least `len` elements; grows at most once per new maximum, and forgets the contents then.
    pub fn reserve(&mut self, len: usize) -> &mut [T] {
        if self.len < len {
            *self = Self::default();
            *self = Self::new(len);
        }
        &mut self[..len]
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.raw.capacity() * size_of::<T>()
    }
}

impl<T> std::ops::Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.raw[self.start..self.start + self.len]
    }
}

impl<T> std::ops::DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.raw[self.start..self.start + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_start_on_a_line() {
        for len in [0, 1, 63, 64, 1000] {
            let mut a = Aligned::<u8>::new(len);
            assert_eq!(a.len(), len);
            assert!(len == 0 || a.as_ptr().addr().is_multiple_of(LINE_BYTES));
            assert_eq!(a.reserve(2 * len).len(), 2 * len);
        }
        assert_eq!(&*Aligned::from_slice(&[1.0f32, 2.0]), &[1.0, 2.0]);
    }
}
