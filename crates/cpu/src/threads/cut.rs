//! Outputs shared by threads.
//!
//! Owns: disjoint access to a matrix by columns, by rows, by whoever claims first. Never: threads.
//! Invariant: no element of a [`Cut`] or [`Claims`] is handed out twice.

use super::THREADS_MAX;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// Part `index` of `total` units cut into `parts` nearly equal runs.
pub fn share(total: usize, parts: usize, index: usize) -> Range<usize> {
    total * index / parts..total * (index + 1) / parts
}

/// A matrix `[rows, width]` whose columns are cut among workers, in whole units.
pub struct Cut<'a, T> {
    data: *mut T,
    rows: usize,
    width: usize,
    unit: usize,
    parts: usize,
    taken: [AtomicU64; THREADS_MAX / 64],
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a cut hands every element to one taker only.
unsafe impl<T: Send> Sync for Cut<'_, T> {}

impl<'a, T> Cut<'a, T> {
    /// Cuts the columns of `data` into `parts`, each a multiple of `unit` columns but the last.
    ///
    /// # Panics
    /// When `data` is not `rows * width` long or there are too many parts.
    pub fn columns(data: &'a mut [T], rows: usize, unit: usize, parts: usize) -> Self {
        assert!(rows > 0 && data.len().is_multiple_of(rows), "whole rows");
        assert!((1..=THREADS_MAX).contains(&parts) && unit > 0);
        let taken = [const { AtomicU64::new(0) }; THREADS_MAX / 64];
        let width = data.len() / rows;
        Self { data: data.as_mut_ptr(), rows, width, unit, parts, taken, life: PhantomData }
    }

    /// Cuts a slice into `parts` runs, each a multiple of `unit` elements but the last.
    pub fn slice(data: &'a mut [T], unit: usize, parts: usize) -> Self {
        Self::columns(data, 1, unit, parts)
    }

    /// The units of part `index`.
    pub fn units(&self, index: usize) -> Range<usize> {
        share(self.width.div_ceil(self.unit), self.parts, index)
    }

    /// Part `index`, once.
    ///
    /// # Panics
    /// When it has been taken before.
    pub fn take(&self, index: usize) -> Columns<'a, T> {
        assert!(index < self.parts, "part {index} of {}", self.parts);
        let bit = 1u64 << (index % 64);
        let before = self.taken[index / 64].fetch_or(bit, Ordering::Relaxed);
        assert!(before & bit == 0, "part {index} is taken twice");
        let units = self.units(index);
        let start = (units.start * self.unit).min(self.width);
        let len = (units.end * self.unit).min(self.width) - start;
        // SAFETY: `start` is at most `width`, so the pointer stays within the slice.
        let data = unsafe { self.data.add(start) };
        Columns { data, rows: self.rows, pitch: self.width, start, len, life: PhantomData }
    }
}

/// Some columns of a matrix, owned by one worker.
pub struct Columns<'a, T> {
    data: *mut T,
    rows: usize,
    pitch: usize,
    start: usize,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

impl<T> Columns<'_, T> {
    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// First column.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Number of columns.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no columns.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// These columns of one row.
    ///
    /// # Panics
    /// When there is no such row.
    #[inline(always)]
    pub fn row(&mut self, row: usize) -> &mut [T] {
        assert!(row < self.rows);
        // SAFETY: row and columns lie within the matrix, and no other `Columns` overlaps this one.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.pitch), self.len) }
    }
}

/// Sixteen columns of consecutive rows, for kernels that write through pointers.
pub struct Patch<'a> {
    data: *mut f32,
    pitch: usize,
    rows: usize,
    life: PhantomData<&'a mut [f32]>,
}

impl Columns<'_, f32> {
    /// Columns `column..column + 16` (counted from the first one here) of `rows` rows from `row` on.
    ///
    /// # Panics
    /// When they do not exist.
    #[inline(always)]
    pub fn patch(&mut self, row: usize, rows: usize, column: usize) -> Patch<'_> {
        assert!(row + rows <= self.rows && column + 16 <= self.len);
        // SAFETY: row and column lie within the matrix.
        let data = unsafe { self.data.add(row * self.pitch + column) };
        Patch { data, pitch: self.pitch, rows, life: PhantomData }
    }
}

impl Patch<'_> {
    /// The first value; row r lies `r * pitch` values on, sixteen values each may be read and written.
    #[inline(always)]
    pub fn start(&mut self) -> *mut f32 {
        self.data
    }

    /// Values from row to row.
    #[inline(always)]
    pub fn pitch(&self) -> usize {
        self.pitch
    }

    /// Number of rows.
    #[inline(always)]
    pub fn rows(&self) -> usize {
        self.rows
    }
}

/// A matrix whose rows are claimed one by one, by whichever worker computes them.
pub struct Claims<'a, T> {
    data: *mut T,
    width: usize,
    claimed: &'a [AtomicU64],
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: a row is handed to one claimer only.
unsafe impl<T: Send> Sync for Claims<'_, T> {}

impl<'a, T> Claims<'a, T> {
    /// Rows of `width` elements of `data`; `claimed` is memory for one bit per row.
    ///
    /// # Panics
    /// When the sizes do not agree.
    pub fn rows(data: &'a mut [T], width: usize, claimed: &'a mut [AtomicU64]) -> Self {
        assert!(width > 0 && data.len().is_multiple_of(width), "whole rows");
        assert!(data.len() / width <= claimed.len() * 64, "a bit for every row");
        for bits in claimed.iter_mut() {
            *bits.get_mut() = 0;
        }
        // The length is implied: rows without a bit cannot be claimed.
        let rows = data.len() / width;
        let claimed = &claimed[..rows.div_ceil(64)];
        if !rows.is_multiple_of(64) {
            claimed[rows / 64].store(!0 << (rows % 64), Ordering::Relaxed);
        }
        Self { data: data.as_mut_ptr(), width, claimed, life: PhantomData }
    }

    /// One row, once.
    ///
    /// # Panics
    /// When there is no such row or it has been claimed before.
    pub fn claim(&self, row: usize) -> &'a mut [T] {
        let bit = 1u64 << (row % 64);
        let before = self.claimed[row / 64].fetch_or(bit, Ordering::Relaxed);
        assert!(before & bit == 0, "row {row} is claimed twice or does not exist");
        // SAFETY: the row exists (its bit was clear) and nobody else gets it.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(row * self.width), self.width) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_cover_every_column_once_in_whole_units() {
        for (rows, width, unit, parts) in
            [(1, 7, 1, 3), (3, 40, 16, 2), (2, 5, 16, 4), (4, 0, 1, 2)]
        {
            let mut data = vec![0u8; rows * width];
            let cut = Cut::columns(&mut data, rows, unit, parts);
            for part in 0..parts {
                let mut columns = cut.take(part);
                assert!(columns.is_empty() || columns.start().is_multiple_of(unit));
                for row in 0..rows {
                    columns.row(row).iter_mut().for_each(|v| *v += 1);
                }
            }
            assert!(data.iter().all(|v| *v == 1));
        }
    }

    #[test]
    #[should_panic(expected = "taken twice")]
    fn a_part_is_taken_once() {
        let mut data = [0u8; 4];
        let cut = Cut::slice(&mut data, 1, 2);
        let _first = cut.take(1);
        let _second = cut.take(1);
    }

    #[test]
    #[should_panic(expected = "claimed twice or does not exist")]
    fn rows_beyond_the_end_cannot_be_claimed() {
        let (mut data, mut bits) = ([0u8; 6], [AtomicU64::new(9)]);
        let claims = Claims::rows(&mut data, 2, &mut bits);
        claims.claim(2)[0] = 1;
        claims.claim(3);
    }
}
