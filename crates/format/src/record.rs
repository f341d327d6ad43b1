//! The record of one routed expert: its three matrices in one page-aligned run of bytes.
//!
//! Owns: offsets within a record. Never: reading, checksums.

use crate::encoding::{Bits, Encoding};
use crate::matrix::MatrixRef;
use serde::{Deserialize, Serialize};

/// Records start and end on multiples of this many bytes, so that uncached reads need no bounce.
pub const PAGE_BYTES: usize = 4096;

/// No matrix of an expert is larger than this; keeps every sum of sizes far from overflow.
pub const MATRIX_BYTES_MAX: usize = 1 << 40;

/// One matrix of an expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Projection {
    /// `[width, hidden]`.
    Gate,
    /// `[width, hidden]`.
    Up,
    /// `[hidden, width]`.
    Down,
}

/// Where the matrices of an expert lie in its record; the same for every expert of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Fields", into = "Fields")]
pub struct RecordLayout {
    hidden: usize,
    width: usize,
    /// Encoding of gate and up, `[width, hidden]`.
    inner: Encoding,
    /// Encoding of down, `[hidden, width]`.
    outer: Encoding,
}

/// The serialised form of a layout; becomes one only through [`RecordLayout::new`].
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    hidden: usize,
    width: usize,
    inner: Encoding,
    outer: Encoding,
}

impl From<RecordLayout> for Fields {
    fn from(l: RecordLayout) -> Self {
        Self { hidden: l.hidden, width: l.width, inner: l.inner, outer: l.outer }
    }
}

impl TryFrom<Fields> for RecordLayout {
    type Error = String;

    fn try_from(f: Fields) -> Result<Self, String> {
        Self::new(f.hidden, f.width, f.inner, f.outer).ok_or_else(|| {
            format!(
                "found hidden {} and width {}, expected widths that fit the encodings",
                f.hidden, f.width
            )
        })
    }
}

impl RecordLayout {
    /// The layout for experts of this geometry; `None` when a width does not fit its encoding.
    pub fn new(hidden: usize, width: usize, inner: Encoding, outer: Encoding) -> Option<Self> {
        let inner_len = inner.byte_len(width, hidden)?;
        let outer_len = outer.byte_len(hidden, width)?;
        if inner_len.max(outer_len) > MATRIX_BYTES_MAX {
            return None;
        }
        Some(Self { hidden, width, inner, outer })
    }

    /// Width of the expert's input and output.
    pub fn hidden(&self) -> usize {
        self.hidden
    }

    /// Inner width.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Width of the widest codes; `None` when there are floats.
    pub fn code_bits(&self) -> Option<Bits> {
        let bits = |encoding| match encoding {
            Encoding::Tile16 { bits, .. } => Some(bits),
            Encoding::F32 | Encoding::Bf16 => None,
        };
        Some(bits(self.inner)?.max(bits(self.outer)?))
    }

    /// (rows, columns, encoding) of one matrix.
    pub fn shape(&self, which: Projection) -> (usize, usize, Encoding) {
        match which {
            Projection::Gate | Projection::Up => (self.width, self.hidden, self.inner),
            Projection::Down => (self.hidden, self.width, self.outer),
        }
    }

    /// Bits of a weight of the inner matrices: of its code, or of the number it is.
    pub fn bits(&self) -> usize {
        match self.inner {
            Encoding::F32 => 32,
            Encoding::Bf16 => 16,
            Encoding::Tile16 { bits, .. } => bits.get(),
        }
    }

    /// Offset and length of one matrix in bytes; offsets are multiples of 64.
    pub fn span(&self, which: Projection) -> (usize, usize) {
        let inner = self.inner.byte_len(self.width, self.hidden).expect("checked by new");
        let outer = self.outer.byte_len(self.hidden, self.width).expect("checked by new");
        let step = inner.next_multiple_of(64);
        match which {
            Projection::Gate => (0, inner),
            Projection::Up => (step, inner),
            Projection::Down => (2 * step, outer),
        }
    }

    /// Bytes of a record, padding included: a multiple of [`PAGE_BYTES`].
    pub fn bytes(&self) -> usize {
        let (offset, len) = self.span(Projection::Down);
        (offset + len).next_multiple_of(PAGE_BYTES)
    }

    /// One matrix of `record`.
    ///
    /// # Panics
    /// When `record` is shorter than [`Self::bytes`].
    pub fn matrix<'a>(&self, record: &'a [u8], which: Projection) -> MatrixRef<'a> {
        let (rows, cols, encoding) = self.shape(which);
        let (offset, len) = self.span(which);
        MatrixRef::new(rows, cols, encoding, &record[offset..offset + len]).expect("sizes agree")
    }
}
