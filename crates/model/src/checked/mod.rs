//! The fast device against the exact one, verb by verb.
//!
//! Owns: the names of the verbs, bounds, the comparison. Never: equations.

mod verb;

pub use verb::Verb;
