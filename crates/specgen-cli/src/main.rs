//! The `specgen` command.
fn main() {}
