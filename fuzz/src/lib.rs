//! The bodies of the fuzz targets: each takes any bytes at all and must return.
//!
//! Two drivers share them. `cargo test` replays the seeds and then mutates them for a few seconds
//! (`SPECGEN_FUZZ_SECONDS=600 cargo test --release` for longer), on stable Rust. libFuzzer, guided by
//! coverage: `cargo +nightly fuzz run gguf --features libfuzzer`. A crashing input belongs into `seeds/`.

use std::hint::black_box;
use std::path::Path;

use specgen::tokenizer::Tokenizer;
use specgen::weights::{Weights, gguf};

/// A GGUF file: opening it, and everything a caller may do with what opened.
pub fn gguf(data: &[u8]) {
    if gguf::is_gguf(data) {
        weights(data);
    }
}

/// A safetensors file, likewise.
pub fn safetensors(data: &[u8]) {
    if !gguf::is_gguf(data) {
        weights(data);
    }
}

/// The tokenizer in a GGUF file's metadata: building it, encoding with it, decoding every id.
pub fn gguf_tokenizer(data: &[u8]) {
    let path = Path::new("fuzz");
    let Ok(contents) = gguf::parse(path, data) else { return };
    let tokenizer = match Tokenizer::from_metadata(&contents.metadata, path, None) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return one_line(&error),
    };
    for text in [
        "",
        " Hello  world, it's 12345!\n\n",
        "<s>\u{2581}\u{e9}\u{10348}\t\0",
        "</s> <|im_end|> aaaaaaaaaaaaaaaa",
    ] {
        for parse_special in [false, true] {
            match tokenizer.encode(text, parse_special) {
                Ok(ids) => {
                    assert!(ids.iter().all(|&id| (id as usize) < tokenizer.vocab_size()));
                    black_box(tokenizer.decode_from_start(&ids, false));
                }
                Err(error) => one_line(&error),
            }
        }
    }
    let mut stream = tokenizer.stream(true);
    for id in 0..=tokenizer.vocab_size() as u32 {
        black_box((tokenizer.token_bytes(id), tokenizer.token_text(id), stream.push(id)));
    }
    black_box((stream.finish(), tokenizer.end_of_generation(), tokenizer.bos(), tokenizer.description()));
}

fn one_line(error: &specgen::Error) {
    let message = error.to_string();
    assert!(!message.contains('\n') && message.len() < 4000, "an error of one line: {message}");
}

fn weights(data: &[u8]) {
    let weights = match Weights::from_bytes("fuzz", data.to_vec()) {
        Ok(weights) => weights,
        Err(error) => return one_line(&error),
    };
    assert!(weights.total_bytes() <= data.len() as u64);
    for info in weights.tensors() {
        assert!(weights.contains(&info.name));
        let Ok(tensor) = weights.tensor(&info.name) else { continue };
        assert_eq!(tensor.bytes().len() as u64, info.bytes);
        assert_eq!(tensor.rows() * tensor.cols(), tensor.num_elements());
        assert_eq!(black_box(tensor.to_f32()).len(), tensor.num_elements());
    }
}
