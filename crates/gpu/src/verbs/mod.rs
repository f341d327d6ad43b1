//! The verbs of the seam, each as a few kernels.
//!
//! Owns: which kernels make up a verb, and with which parameters. Never: buffers' lifetimes.

mod attention;
mod delta;
mod hyper;
mod linear;
mod memory;
mod moe;
mod rows;
mod seam;
mod slots;
