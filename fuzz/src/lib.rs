//! The bodies of the fuzz targets: each takes any bytes at all and must return.
//!
//! Two drivers share them. `cargo test` replays the seeds and then mutates them for a few seconds
//! (`SPECGEN_FUZZ_SECONDS=600 cargo test --release` for longer), on stable Rust. libFuzzer, guided by
//! coverage: `cargo +nightly fuzz run gguf --features libfuzzer`. A crashing input belongs into `seeds/`.

use std::hint::black_box;

use specgen::weights::{Weights, gguf::is_gguf};

/// A GGUF file: opening it, and everything a caller may do with what opened.
pub fn gguf(data: &[u8]) {
    if is_gguf(data) {
        weights(data);
    }
}

/// A safetensors file, likewise.
pub fn safetensors(data: &[u8]) {
    if !is_gguf(data) {
        weights(data);
    }
}

fn weights(data: &[u8]) {
    let weights = match Weights::from_bytes("fuzz", data.to_vec()) {
        Ok(weights) => weights,
        Err(error) => {
            let message = error.to_string();
            assert!(!message.contains('\n') && message.len() < 1000, "an error of one line: {message}");
            return;
        }
    };
    assert!(weights.total_bytes() <= data.len() as u64);
    for info in weights.tensors() {
        assert!(weights.contains(&info.name));
        let Ok(tensor) = weights.tensor(&info.name) else { continue };
        assert_eq!(tensor.bytes().len() as u64, info.bytes);
        assert_eq!(tensor.rows() * tensor.cols(), tensor.num_elements());
        assert_eq!(black_box(tensor.to_f32()).len(), tensor.num_elements());
        let half = tensor.rows() / 2;
        let front = tensor.rows_range(0..half).expect("the rows are there");
        let back = tensor.rows_range(half..tensor.rows()).expect("the rows are there");
        assert_eq!([front.bytes(), back.bytes()].concat(), tensor.bytes());
    }
}
