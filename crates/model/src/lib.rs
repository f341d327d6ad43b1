//! The model families: their wiring, their state, the seam to the hardware, the exact reference.
//!
//! Owns: the equations and their order, sequence state, the `Device` trait and its conformance suite.
//! Never: threads, files other than through `format`, clocks.
#![forbid(unsafe_code)]

pub mod batch;
pub mod checked;
pub mod device;
mod error;
pub mod pages;
pub mod qwen4_exp;
pub mod reference;
pub mod suite;
pub mod traced;

pub use batch::{Batch, Keep, MAX_TENTATIVE, Position, Run};
pub use device::{Act, Device, Limits, PageId, Picks, Place, Recall, Routes, SlotId};
pub use error::{Error, Result};
