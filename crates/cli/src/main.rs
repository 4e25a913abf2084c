//! The `tenure` binary.
fn main() {}
