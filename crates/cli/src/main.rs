//! Cherenkov.
fn main() {}
