//! An engine with text over a vocabulary of a few dozen tokens: letters, pieces of characters, and what JSON is made of.

use std::sync::LazyLock;

use serde_json::json;
use specgen::Engine;

use crate::tiny::Tiny;

/// Ends a text.
const END: &str = "<end>";

/// The bytes of the tokens, the one that ends a text aside. Characters of two, three and four bytes come whole and in
/// pieces that other tokens' pieces complete.
const PIECES: [&[u8]; 46] = [
    b"a",
    b"b",
    b"c",
    b"d",
    b"ab",
    b"ba",
    b"abc",
    b"bb",
    b"cab",
    b" ",
    b" a",
    b"\n",
    b"e",
    b"f",
    b"l",
    b"n",
    b"r",
    b"s",
    b"t",
    b"u",
    b"true",
    b"null",
    b"0",
    b"1",
    b"2",
    b"12",
    b"-",
    b"\"",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b",",
    b"{\"",
    b"\":",
    "é".as_bytes(),
    b"\xC3",
    b"\xA9",
    b"a\xC3",
    b"\xE2\x82",
    b"\xAC",
    b"\xE2",
    b"\x82\xAC",
    b"\xF0\x9F",
    b"\x98\x80",
];

/// Number of ids, the end's included.
pub const VOCAB_SIZE: usize = PIECES.len() + 1;

/// A tiny llama with this vocabulary. Its target can be replaced, and is its own draft until then.
pub fn engine() -> Engine {
    static ENGINE: LazyLock<Engine> = LazyLock::new(load);
    ENGINE.clone()
}

fn load() -> Engine {
    let dir = tempfile::tempdir().expect("a temporary folder");
    Tiny::named("llama").with_field("vocab_size", VOCAB_SIZE.into()).write_safetensors(dir.path());
    let vocab: serde_json::Map<_, _> =
        PIECES.iter().map(|piece| spelled(piece)).zip((0..).map(|id| json!(id))).collect();
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "normalizer": null, "post_processor": null,
        "added_tokens": [{"id": PIECES.len(), "content": END, "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {"type": "BPE", "vocab": vocab, "merges": ["a b", "b a", "ab c", "b b"]},
    });
    let write =
        |name: &str, text: String| std::fs::write(dir.path().join(name), text).expect("a writable folder");
    write("tokenizer.json", tokenizer.to_string());
    write("tokenizer_config.json", json!({"eos_token": END, "add_bos_token": false}).to_string());
    let path = dir.path().to_str().expect("a path of letters");
    Engine::builder(path).draft("none").threads(1).build().expect("a complete model")
}

/// Bytes in the alphabet of byte-level vocabularies: printable ones are themselves, the others come after 255 in order.
fn spelled(bytes: &[u8]) -> String {
    let is_itself = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let others_before = |byte: u8| (0..byte).filter(|&other| !is_itself(other)).count() as u32;
    let letter = |&byte: &u8| match is_itself(byte) {
        true => char::from(byte),
        false => char::from_u32(256 + others_before(byte)).expect("a letter"),
    };
    bytes.iter().map(letter).collect()
}
