//! Benches live in `*.rs` beside the manifest.
