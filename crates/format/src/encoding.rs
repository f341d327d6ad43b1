//! How the numbers of a matrix are laid out in bytes.
//!
//! Owns: the closed set of encodings and their sizes. Never: conversion (see `tile16`, `matrix`).

use serde::{Deserialize, Serialize};

/// Width of an affine code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Bits {
    /// Codes 0..=3.
    B2,
    /// Codes 0..=7.
    B3,
    /// Codes 0..=15.
    B4,
    /// Codes 0..=255.
    B8,
}

impl Bits {
    /// Every width, narrowest first.
    pub const ALL: [Self; 4] = [Self::B2, Self::B3, Self::B4, Self::B8];

    /// The width as a number.
    pub const fn get(self) -> usize {
        match self {
            Self::B2 => 2,
            Self::B3 => 3,
            Self::B4 => 4,
            Self::B8 => 8,
        }
    }

    /// The largest code.
    pub const fn max_code(self) -> u8 {
        ((1u16 << self.get()) - 1) as u8
    }
}

impl From<Bits> for u32 {
    fn from(bits: Bits) -> Self {
        bits.get() as Self
    }
}

impl TryFrom<u32> for Bits {
    type Error = String;

    fn try_from(bits: u32) -> Result<Self, String> {
        match bits {
            2 => Ok(Self::B2),
            3 => Ok(Self::B3),
            4 => Ok(Self::B4),
            8 => Ok(Self::B8),
            other => Err(format!("found {other} bits, expected 2, 3, 4 or 8")),
        }
    }
}

/// How many consecutive inputs of a row share a scale and a bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Group {
    /// 32 inputs.
    G32,
    /// 64 inputs.
    G64,
}

impl Group {
    /// The width as a number.
    pub const fn get(self) -> usize {
        match self {
            Self::G32 => 32,
            Self::G64 => 64,
        }
    }

    /// The widest group that divides `cols`, if any does.
    pub const fn dividing(cols: usize) -> Option<Self> {
        if cols == 0 || !cols.is_multiple_of(32) {
            None
        } else if cols.is_multiple_of(64) {
            Some(Self::G64)
        } else {
            Some(Self::G32)
        }
    }
}

impl From<Group> for u32 {
    fn from(group: Group) -> Self {
        group.get() as Self
    }
}

impl TryFrom<u32> for Group {
    type Error = String;

    fn try_from(group: u32) -> Result<Self, String> {
        match group {
            32 => Ok(Self::G32),
            64 => Ok(Self::G64),
            other => Err(format!("found group size {other}, expected 32 or 64")),
        }
    }
}

/// The layout of one matrix `[rows, cols]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Encoding {
    /// Row-major little-endian f32.
    F32,
    /// Row-major bf16.
    Bf16,
    /// Affine codes in blocks of 16 rows x one group; see [`crate::tile16`].
    Tile16 {
        /// Code width.
        bits: Bits,
        /// Inputs per scale and bias.
        group: Group,
    },
}

impl Encoding {
    /// Bytes that a matrix of this shape takes, or `None` when the shape does not fit the encoding
    /// (columns not a multiple of the group) or overflows.
    pub fn byte_len(self, rows: usize, cols: usize) -> Option<usize> {
        match self {
            Self::F32 => rows.checked_mul(cols)?.checked_mul(4),
            Self::Bf16 => rows.checked_mul(cols)?.checked_mul(2),
            Self::Tile16 { bits, group } => {
                if !cols.is_multiple_of(group.get()) {
                    return None;
                }
                let blocks = rows.div_ceil(16).checked_mul(cols / group.get())?;
                blocks.checked_mul(crate::tile16::block_bytes(bits, group))
            }
        }
    }
}
