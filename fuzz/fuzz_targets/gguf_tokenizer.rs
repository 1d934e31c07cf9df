#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| specgen_fuzz::gguf_tokenizer(data));
