//! Conversions with tiny vocabularies, hostile metadata, and streams against whole texts.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;

use super::{Tokenizer, byte_level};
use crate::weights::metadata::{Metadata, Value};

const PATH: &str = "model.gguf";

fn strings<T: AsRef<[u8]>>(texts: &[T]) -> Value {
    Value::Strings(texts.iter().map(|text| text.as_ref().to_vec()).collect())
}

fn text(text: &str) -> Value {
    Value::String(text.as_bytes().to_vec())
}

pub(crate) fn open(meta: &Metadata) -> crate::Result<Tokenizer> {
    Tokenizer::from_metadata(meta, Path::new(PATH), None)
}

/// All bytes, then `hello` by merges, then tokens of every kind.
pub(crate) fn byte_pair() -> Metadata {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_level::char_of(byte).to_string()).collect();
    let mut kinds = vec![1; 256];
    let more = [
        ("he", 1),
        ("ll", 1),
        ("hell", 1),
        ("hello", 1),
        ("Ġhello", 1),
        ("<|im_end|>", 1),
        ("<|im_start|>", 3),
        ("<think>", 4),
        ("[PAD]0", 5),
    ];
    for (token, kind) in more {
        tokens.push(token.to_owned());
        kinds.push(kind);
    }
    let merges = ["h e", "l l", "he ll", "hell o", "Ġ hello"];
    Metadata(
        [
            ("tokenizer.ggml.model", text("gpt2")),
            ("tokenizer.ggml.pre", text("qwen2")),
            ("tokenizer.ggml.tokens", strings(&tokens)),
            ("tokenizer.ggml.token_type", Value::Ints(kinds)),
            ("tokenizer.ggml.merges", strings(&merges)),
            ("tokenizer.ggml.bos_token_id", Value::Uint(262)),
            ("tokenizer.ggml.eos_token_id", Value::Uint(261)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into(),
    )
}

/// Unknown, begin, end, all bytes, then words with scores.
pub(crate) fn sentence_piece() -> Metadata {
    let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).into();
    let mut kinds = vec![2, 3, 3];
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    kinds.extend([6; 256]);
    let words =
        [("▁", -9.0), ("a", -8.0), ("b", -7.0), ("ab", -2.0), ("ba", -1.0), ("▁a", -3.0), ("▁ab", -4.0)];
    let mut scores = vec![0.0; tokens.len()];
    for (word, score) in words {
        tokens.push(word.to_owned());
        kinds.push(1);
        scores.push(score);
    }
    Metadata(
        [
            ("tokenizer.ggml.model", text("llama")),
            ("tokenizer.ggml.tokens", strings(&tokens)),
            ("tokenizer.ggml.token_type", Value::Ints(kinds)),
            ("tokenizer.ggml.scores", Value::Floats(scores)),
        ]
        .map(|(key, value)| (key.to_owned(), value))
        .into(),
    )
}

fn with(mut meta: Metadata, key: &str, value: Value) -> Metadata {
    meta.0.insert(format!("tokenizer.ggml.{key}"), value);
    meta
}

fn spelled(tokenizer: &Tokenizer, text: &str, parse_special: bool) -> Vec<String> {
    let ids = tokenizer.encode(text, parse_special).unwrap();
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap().to_owned()).collect()
}

#[test]
fn byte_pair_merges_and_special_tokens() {
    let tokenizer = open(&byte_pair()).unwrap();
    assert_eq!(spelled(&tokenizer, "hello hello", true), ["hello", "Ġhello"]);
    assert_eq!(
        spelled(&tokenizer, "hell<think>é<|im_end|>", true),
        ["hell", "<think>", "Ã", "©", "<|im_end|>"]
    );
    // Text from strangers never holds control tokens, but user-defined ones are text.
    let plain = spelled(&tokenizer, "<think><|im_end|><|im_start|>", false);
    assert_eq!(plain[0], "<think>");
    assert!(plain.iter().all(|token| !token.starts_with("<|")), "{plain:?}");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(262), Some(261), false));
    // Called an end of turn, it is one, whatever the file says of its type.
    assert!(tokenizer.is_special(261) && !tokenizer.is_special(263));
    assert_eq!(tokenizer.end_of_generation(), [261]);
    assert_eq!(tokenizer.vocab_size(), 265);
    assert_eq!(tokenizer.token_bytes(260).unwrap(), b" hello");
    assert_eq!(tokenizer.token_bytes(264).unwrap(), b"");
    assert_eq!(tokenizer.token_bytes(265), None);
    let ids = tokenizer.encode("<|im_start|>hello<think>\n", true).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), "<|im_start|>hello<think>\n");
    assert_eq!(tokenizer.decode(&ids, true), "hello<think>\n");
    assert_eq!(tokenizer.decode(&[u32::MAX, 999], false), "");
}

#[test]
fn sentence_piece_merges_by_score() {
    let tokenizer = open(&sentence_piece()).unwrap();
    // `ba` has the best score, then `▁a`.
    assert_eq!(spelled(&tokenizer, "aba", false), ["▁a", "ba"]);
    assert_eq!(spelled(&tokenizer, "ab a", false), ["▁ab", "▁a"]);
    assert_eq!(spelled(&tokenizer, "é", false), ["▁", "<0xC3>", "<0xA9>"]);
    // The letters of a control or byte token are letters.
    assert!(
        !spelled(&tokenizer, "</s><0x0A>", false).iter().any(|token| token == "</s>" || token == "<0x0A>")
    );
    // A text after a special token begins anew.
    assert_eq!(spelled(&tokenizer, "a</s>a", true), ["▁a", "</s>", "▁a"]);
    let ids = tokenizer.encode("a b\né", false).unwrap();
    assert_eq!(tokenizer.decode(&ids, false), " a b\né");
    assert_eq!(tokenizer.decode_from_start(&ids, false), "a b\né");
    assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (Some(1), Some(2), true));

    let bare = open(&with(sentence_piece(), "add_space_prefix", Value::Bool(false))).unwrap();
    assert_eq!(spelled(&bare, "a a", false), ["a", "▁a"]);
    assert_eq!(bare.decode_from_start(&bare.encode(" a", false).unwrap(), false), " a");
}

#[test]
fn phi_3_swallows_space_after_special_tokens() {
    let phi = |name: &str| {
        let mut meta = sentence_piece();
        meta.0.insert("general.name".to_owned(), text(name));
        open(&meta).unwrap().encode("</s> \n a", true).unwrap()
    };
    assert_eq!(phi("Phi-3 mini"), phi("phi3"));
    assert_eq!(phi("Phi-3 mini").len(), 2);
    assert_eq!(phi("llama").len(), 5);
}

#[test]
fn gemma_4_merges_characters() {
    let mut tokens: Vec<String> =
        ["<bos>", "<eos>", "</s>", "<|tool_response>", "<turn|>"].map(str::to_owned).into();
    tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
    tokens.extend(["▁", "a", "b", "\n", "\n\n", "▁a", "▁ab"].map(str::to_owned));
    let mut kinds = vec![3, 3, 1, 3, 3];
    kinds.extend([6; 256]);
    kinds.extend([1; 7]);
    let meta = Metadata::default();
    let meta = with(meta, "model", text("gemma4"));
    let meta = with(meta, "tokens", strings(&tokens));
    let meta = with(meta, "token_type", Value::Ints(kinds));
    let meta = with(meta, "merges", strings(&["▁ a", "▁a b"]));
    let meta = with(meta, "bos_token_id", Value::Uint(0));
    let tokenizer = open(&with(meta, "add_bos_token", Value::Bool(false))).unwrap();
    assert_eq!(spelled(&tokenizer, " ab\n\né", false), ["▁ab", "\n\n", "<0xC3>", "<0xA9>"]);
    assert_eq!(tokenizer.decode(&tokenizer.encode("b ab\né", false).unwrap(), true), "b ab\né");
    assert!(tokenizer.adds_bos(), "the file is overruled");
    // `</s>` is a tag in this vocabulary.
    assert_eq!(tokenizer.end_of_generation(), [1, 3, 4]);
    assert!(!tokenizer.is_special(2));
}

#[test]
fn unknown_pre_tokenizers_are_refused_with_a_way_out() {
    let mut without = byte_pair();
    without.0.remove("tokenizer.ggml.pre");
    for (meta, name) in [
        (with(byte_pair(), "pre", text("brand-new")), "`brand-new`"),
        (with(byte_pair(), "pre", text("default")), "`default`"),
        (without.clone(), "does not name"),
    ] {
        let error = open(&meta).unwrap_err().to_string();
        for word in [PATH, name, "name it", "tokenizer.json", "llama-bpe, llama-v3"] {
            assert!(error.contains(word), "{word}: {error}");
        }
        assert!(!error.contains('\n'));
        assert!(Tokenizer::from_metadata(&meta, Path::new(PATH), Some("gpt-2")).is_ok());
    }
    let error = Tokenizer::from_metadata(&byte_pair(), Path::new(PATH), Some("nonsense")).unwrap_err();
    assert!(error.to_string().contains("`nonsense`"));
    for model in ["bert", "t5", "rwkv", "plamo2", "x\n"] {
        let error = open(&with(byte_pair(), "model", text(model))).unwrap_err().to_string();
        assert!(error.contains("is not supported") && !error.contains('\n'), "{error}");
    }
}

#[test]
fn contradictions_are_errors() {
    let no_key = |key: &str| {
        let mut meta = byte_pair();
        meta.0.remove(&format!("tokenizer.ggml.{key}"));
        meta
    };
    let spm_without_scores = {
        let mut meta = sentence_piece();
        meta.0.remove("tokenizer.ggml.scores");
        meta
    };
    for (meta, word) in [
        (Metadata::default(), "tokenizer.ggml.model"),
        (no_key("tokens"), "tokenizer.ggml.tokens"),
        (no_key("merges"), "tokenizer.ggml.merges"),
        (with(byte_pair(), "tokens", Value::Ints(vec![1])), "tokenizer.ggml.tokens"),
        (with(byte_pair(), "tokens", strings::<&str>(&[])), "empty"),
        (with(byte_pair(), "tokens", strings(&["a", "a"])), "both `a`"),
        (with(byte_pair(), "token_type", Value::Ints(vec![1])), "1 types for 265"),
        (with(byte_pair(), "token_type", Value::Bool(true)), "integers"),
        (with(byte_pair(), "merges", strings(&["he"])), "no space"),
        (with(byte_pair(), "merges", strings(&["he zz"])), "ends with what is not a token"),
        (with(byte_pair(), "merges", strings(&["zz he"])), "begins with what is not a token"),
        (with(byte_pair(), "merges", strings(&["he he"])), "makes what is not a token"),
        (with(byte_pair(), "merges", strings(&[""])), "no space"),
        (with(byte_pair(), "merges", strings(&[[0xFF, b' ', 0xFE]])), "not a token"),
        (spm_without_scores, "tokenizer.ggml.scores"),
        (with(sentence_piece(), "scores", Value::Floats(vec![0.0])), "1 scores for 266"),
        (with(sentence_piece(), "scores", Value::Floats(vec![f64::NAN; 266])), "NaN"),
        (with(sentence_piece(), "scores", text("x")), "numbers"),
    ] {
        let error = open(&meta).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains(PATH), "{word}: {error}");
    }
}

#[test]
fn ids_out_of_range_name_nothing() {
    for bad in [Value::Uint(265), Value::Uint(u64::MAX), Value::Int(-1), text("1")] {
        let meta = with(with(byte_pair(), "bos_token_id", bad.clone()), "eos_token_id", bad);
        let tokenizer = open(&with(meta, "add_bos_token", Value::Bool(true))).unwrap();
        assert_eq!((tokenizer.bos(), tokenizer.eos(), tokenizer.adds_bos()), (None, None, false));
    }
}

#[test]
fn a_byte_without_a_token_is_an_error() {
    let meta = with(with(Metadata::default(), "model", text("gpt2")), "pre", text("gpt-2"));
    let meta = with(with(meta, "tokens", strings(&["a", "b"])), "merges", strings::<&str>(&[]));
    let error = open(&meta).unwrap().encode("abc", false).unwrap_err().to_string();
    assert!(error.contains("0x63"), "{error}");
    let unknown = open(&with(meta, "unknown_token_id", Value::Uint(1))).unwrap();
    assert_eq!(unknown.encode("ac", false).unwrap(), [0, 1]);
}

#[test]
fn long_texts_take_linear_time() {
    let start = std::time::Instant::now();
    for meta in [byte_pair(), sentence_piece()] {
        let tokenizer = open(&meta).unwrap();
        for unit in ["a", " ", "ll", "hello", "<think>", "<|im_end|>", "é", "ab", "\n"] {
            let text = unit.repeat(100_000 / unit.len());
            let ids = tokenizer.encode(&text, true).unwrap();
            assert_eq!(tokenizer.decode_from_start(&ids, false), text);
        }
    }
    assert!(start.elapsed().as_secs() < 20, "{:?}", start.elapsed());
}

#[test]
fn heaps_of_junk_end_soon() {
    let start = std::time::Instant::now();
    let tokens: Vec<String> = (0..1_000_000).map(|n| format!("junk {n}")).collect();
    let merges: Vec<String> = (0..1_000_000).map(|n| format!("x{n} y")).collect();
    let meta = with(with(byte_pair(), "tokens", strings(&tokens)), "merges", strings(&merges));
    let meta = with(meta, "token_type", Value::Ints(vec![4; 1_000_000]));
    assert!(open(&meta).unwrap_err().to_string().contains("merge 0"));
    let tokenizer = open(&with(meta, "merges", strings::<&str>(&[]))).unwrap();
    assert_eq!(tokenizer.encode("junk 999999junk 7", false).unwrap(), [999_999, 7]);
    assert!(start.elapsed().as_secs() < 30, "{:?}", start.elapsed());
}

/// A tokenizer.json of the same words as [`byte_pair`].
fn tokenizer_json() -> serde_json::Value {
    let mut vocab: serde_json::Map<String, serde_json::Value> =
        (0..=255_u8).map(|byte| (byte_level::char_of(byte).to_string(), byte.into())).collect();
    for (id, token) in (256..).zip(["he", "ll", "hell", "hello", "Ġhello"]) {
        vocab.insert(token.to_owned(), id.into());
    }
    let added = |id: u32, content: &str, special: bool| {
        serde_json::json!({
            "id": id, "content": content, "special": special,
            "single_word": false, "lstrip": false, "rstrip": false, "normalized": false
        })
    };
    serde_json::json!({
        "version": "1.0",
        "truncation": {"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"},
        "padding": null,
        "added_tokens": [added(261, "<|im_end|>", true), added(262, "<think>", false)],
        "normalizer": null,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "post_processor": null,
        "decoder": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
        "model": {
            "type": "BPE", "vocab": vocab,
            "merges": ["h e", "l l", "he ll", "hell o", "Ġ hello"]
        }
    })
}

#[test]
fn a_tokenizer_json_agrees_with_the_metadata() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    std::fs::write(&path, tokenizer_json().to_string()).unwrap();
    let config = r#"{"eos_token": {"content": "<|im_end|>"}, "bos_token": null, "add_bos_token": false}"#;
    std::fs::write(dir.path().join("tokenizer_config.json"), config).unwrap();
    std::fs::write(dir.path().join("generation_config.json"), r#"{"eos_token_id": [261, 3, 70000]}"#)
        .unwrap();
    let (json, gguf) = (Tokenizer::from_file(&path).unwrap(), open(&byte_pair()).unwrap());
    assert_eq!((json.bos(), json.eos(), json.adds_bos()), (None, Some(261), false));
    assert_eq!(json.end_of_generation(), [3, 261]);
    assert_eq!(json.vocab_size(), 263);
    assert!(json.is_special(261) && !json.is_special(262));
    for text in ["hello hello", "a\u{1F600}  b", "", "hell<|im_end|>o"] {
        assert_eq!(json.encode(text, true).unwrap(), gguf.encode(text, true).unwrap(), "{text}");
        assert_eq!(json.encode(text, false).unwrap(), gguf.encode(text, false).unwrap(), "{text}");
    }
    assert_eq!(json.encode("<think>", false).unwrap(), [262]);
    for id in 0..262 {
        assert_eq!(json.token_bytes(id), gguf.token_bytes(id));
    }
    for unit in ["a", " ", "\n", "hello"] {
        let text = unit.repeat(100_000 / unit.len());
        let ids = json.encode(&text, true).unwrap();
        assert_eq!(json.decode(&ids, false), text);
    }
}

#[test]
fn broken_tokenizer_files_are_errors() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("tokenizer.json");
    assert!(matches!(Tokenizer::from_file(&path), Err(crate::Error::Io { .. })));
    let edited = |edit: &dyn Fn(&mut serde_json::Value)| {
        let mut value = tokenizer_json();
        edit(&mut value);
        value.to_string()
    };
    for (content, word) in [
        (String::new(), "not a tokenizer.json"),
        ("{}".to_owned(), "not a tokenizer.json"),
        (edited(&|v| v["model"]["vocab"] = serde_json::json!({})), ""),
        (edited(&|v| v["model"]["vocab"]["he"] = 4_000_000_000_u32.into()), ""),
        (edited(&|v| v["model"]["merges"] = serde_json::json!(["q zz"])), ""),
        (
            edited(&|v| {
                v["decoder"] = serde_json::json!({"type": "WordPiece", "prefix": "##", "cleanup": true})
            }),
            "WordPiece",
        ),
    ] {
        std::fs::write(&path, &content).unwrap();
        let error = Tokenizer::from_file(&path).unwrap_err().to_string();
        assert!(error.contains(word) && error.contains("tokenizer.json"), "{word}: {error}");
    }
    std::fs::write(&path, tokenizer_json().to_string()).unwrap();
    std::fs::write(dir.path().join("tokenizer_config.json"), "{").unwrap();
    assert!(Tokenizer::from_file(&path).unwrap_err().to_string().contains("tokenizer_config.json"));
}

proptest! {
    #[test]
    fn a_stream_is_the_whole_text(
        ids in prop::collection::vec(0..270_u32, 0..60),
        skip_special: bool,
        snapshot_at in 0..60_usize,
    ) {
        for meta in [byte_pair(), sentence_piece()] {
            let tokenizer = open(&meta).unwrap();
            let mut stream = tokenizer.stream(skip_special);
            let mut text = String::new();
            for (index, &id) in ids.iter().enumerate() {
                if index == snapshot_at {
                    // What a rejected draft does: go on, then come back.
                    let snapshot = stream.clone();
                    stream.push(0xE2);
                    stream.push(7);
                    stream = snapshot;
                }
                text.push_str(&stream.push(id));
            }
            text.push_str(&stream.finish());
            prop_assert_eq!(&text, &tokenizer.decode(&ids, skip_special));
            prop_assert_eq!(stream.finish(), "");
        }
    }

    #[test]
    fn any_text_comes_back(text in "\\PC{0,40}|[a-c \\n\\t<|>éħ😀]{0,40}") {
        for meta in [byte_pair(), sentence_piece()] {
            let tokenizer = open(&meta).unwrap();
            let ids = tokenizer.encode(&text, false).unwrap();
            // `▁` is a space in these vocabularies; no code can tell them apart.
            let expected = if tokenizer.description().starts_with("Sentence") { text.replace('▁', " ") } else { text.clone() };
            prop_assert_eq!(tokenizer.decode_from_start(&ids, false), expected);
        }
    }

    #[test]
    fn arbitrary_metadata_never_panics(
        tokens in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..4), 0..12),
        kinds in prop::collection::vec(-1..8_i64, 0..14),
        scores in prop::collection::vec(any::<f32>(), 0..14),
        merges in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..3),
        model in prop::sample::select(vec!["gpt2", "llama", "gemma4"]),
        id: u64,
    ) {
        let meta = with(Metadata::default(), "model", text(model));
        let meta = with(with(meta, "pre", text("llama-bpe")), "tokens", strings(&tokens));
        let meta = with(meta, "token_type", Value::Ints(kinds));
        let meta = with(meta, "scores", Value::Floats(scores.into_iter().map(f64::from).collect()));
        let meta = with(with(meta, "merges", strings(&merges)), "eos_token_id", Value::Uint(id));
        if let Ok(tokenizer) = open(&meta)
            && let Ok(ids) = tokenizer.encode("a \u{1} é ▁\n", true)
        {
            tokenizer.decode(&ids, false);
        }
    }
}
