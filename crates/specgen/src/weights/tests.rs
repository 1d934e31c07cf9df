//! Opening models: files, shards, folders, safetensors and its index, and what broken ones say.
#![allow(clippy::unwrap_used, clippy::print_stderr)]

use std::fs;

use ::safetensors::tensor::{Dtype, TensorView};
use proptest::prelude::*;
use tempfile::TempDir;

use super::gguf_writer::GgufWriter;
use super::*;

/// A safetensors file: each tensor's name, type, shape and bytes.
fn st(tensors: &[(&str, Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (*name, TensorView::new(*dtype, shape.to_vec(), bytes).unwrap()));
    ::safetensors::serialize(views, None).unwrap()
}

/// A safetensors file with this header text and that many bytes of data.
fn raw_st(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn one_gguf(tensor: &str) -> Vec<u8> {
    GgufWriter::new().tensor(tensor, Format::F32, &[1], &[0; 4]).finish()
}

fn gguf_shard(number: u64, count: u64, tensor: &str) -> Vec<u8> {
    GgufWriter::new()
        .metadata("split.no", Value::Uint(number))
        .metadata("split.count", Value::Uint(count))
        .metadata("split.tensors.count", Value::Int(-1))
        .metadata("name", Value::String(format!("shard {number}").into_bytes()))
        .tensor(tensor, Format::F32, &[1], &[number as u8; 4])
        .finish()
}

fn folder(files: &[(&str, Vec<u8>)]) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    folder
}

fn failure(path: &Path) -> String {
    let message = Weights::open(path).unwrap_err().to_string();
    assert!(!message.contains('\n') && message.starts_with(path.to_str().unwrap()), "{message}");
    message
}

#[test]
fn tensors_and_their_rows() {
    let bytes: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let file = GgufWriter::new()
        .tensor("m", Format::F32, &[3, 2], &bytes)
        .tensor("q", Format::Q8_0, &[2, 2, 64], &[3; 4 * 68])
        .finish();
    let weights = Weights::from_bytes("m.gguf", file).unwrap();
    assert_eq!(weights.total_bytes(), 24 + 4 * 68);
    assert!(weights.contains("m") && !weights.contains("n"));

    let m = weights.tensor("m").unwrap();
    let q = weights.tensor("q").unwrap();
    // Tensors outlive what they came from.
    drop(weights);
    assert_eq!((m.name(), m.format(), m.shape()), ("m", Format::F32, &[3, 2][..]));
    assert_eq!((m.rows(), m.cols(), m.num_elements()), (3, 2, 6));
    assert_eq!(m.to_f32(), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    assert_eq!((q.rows(), q.cols(), q.num_elements()), (4, 64, 256));
    assert_eq!(q.bytes(), &[3; 4 * 68]);
}

#[test]
fn half_precision_stays_two_bytes() {
    let f16: Vec<u8> = [1.0f32, -0.5].iter().flat_map(|&v| half::f16::from_f32(v).to_le_bytes()).collect();
    let bf16: Vec<u8> = [3.0f32, 1e30].iter().flat_map(|&v| half::bf16::from_f32(v).to_le_bytes()).collect();
    let gguf = GgufWriter::new().tensor("a", Format::F16, &[2], &f16).tensor("b", Format::BF16, &[2], &bf16);
    let safe = st(&[("a", Dtype::F16, &[2], &f16), ("b", Dtype::BF16, &[2], &bf16)]);
    for file in [gguf.finish(), safe] {
        let weights = Weights::from_bytes("h", file).unwrap();
        let (a, b) = (weights.tensor("a").unwrap(), weights.tensor("b").unwrap());
        assert_eq!((a.bytes(), a.to_f32()), (&f16[..], vec![1.0, -0.5]));
        assert_eq!((b.bytes(), b.format()), (&bf16[..], Format::BF16));
        assert_eq!(b.to_f32(), [3.0, half::bf16::from_f32(1e30).to_f32()]);
    }
}

#[test]
fn unsupported_types_fail_only_when_used() {
    let gguf = GgufWriter::new()
        .raw_tensor("x", 39, &[32], &[0; 17])
        .raw_tensor("y", 99, &[32], &[0; 17])
        .tensor("z", Format::F32, &[1], &[0; 4])
        .finish();
    let weights = Weights::from_bytes("m.gguf", gguf).unwrap();
    assert!(weights.tensor("z").is_ok());
    let message = weights.tensor("x").unwrap_err().to_string();
    assert!(message.starts_with("m.gguf: tensor `x` is stored as MXFP4 (GGML type 39)"), "{message}");
    let message = weights.tensor("y").unwrap_err().to_string();
    assert!(message.contains("stored as type 99 (GGML type 99)"), "{message}");

    let safe = st(&[("x", Dtype::F8_E4M3, &[4], &[0; 4]), ("z", Dtype::F32, &[1], &[0; 4])]);
    let weights = Weights::from_bytes("m.safetensors", safe).unwrap();
    assert!(weights.tensor("z").is_ok());
    let message = weights.tensor("x").unwrap_err().to_string();
    assert!(message.starts_with("m.safetensors: tensor `x` is stored as F8_E4M3, which"), "{message}");
    let types: Vec<_> = weights.tensors().map(|t| (t.name, t.type_name, t.bytes)).collect();
    assert_eq!(types.len(), 2);
    assert!(types.contains(&("x".into(), "F8_E4M3".into(), 4)));
}

#[test]
fn a_missing_tensor_is_named() {
    let weights = Weights::from_bytes("m.gguf", one_gguf("a")).unwrap();
    assert_eq!(weights.tensor("b").unwrap_err().to_string(), "m.gguf: tensor `b` is missing");
}

#[test]
fn gguf_shards_open_from_any_of_them() {
    let files: Vec<(String, Vec<u8>)> = (0..3)
        .map(|i| (format!("m-0000{}-of-00003.gguf", i + 1), gguf_shard(i, 3, &format!("t{i}"))))
        .collect();
    let files: Vec<(&str, Vec<u8>)> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.clone())).collect();
    let dir = folder(&files);
    for path in [dir.path().to_owned(), dir.path().join(files[0].0), dir.path().join(files[2].0)] {
        let weights = Weights::open(&path).unwrap();
        assert_eq!(weights.path(), path);
        assert_eq!(weights.metadata().unwrap().str("name"), Some("shard 0"));
        assert_eq!(weights.tensors().map(|t| t.name).collect::<Vec<_>>(), ["t0", "t1", "t2"]);
        assert_eq!(weights.tensor("t2").unwrap().bytes(), [2; 4]);
    }
    let any_order: Vec<PathBuf> = [2, 0, 1].map(|i| dir.path().join(files[i].0)).to_vec();
    let weights = Weights::from_files(&any_order).unwrap();
    assert_eq!(weights.metadata().unwrap().str("name"), Some("shard 0"));
    assert_eq!(weights.tensor("t1").unwrap().bytes(), [1; 4]);

    let message = Weights::from_files(&any_order[..2]).unwrap_err().to_string();
    assert!(message.contains("one of 3 that make up its model, but 2 were given"), "{message}");
    let twice = [any_order[0].clone(), any_order[0].clone(), any_order[1].clone()];
    assert!(Weights::from_files(&twice).unwrap_err().to_string().contains("a second shard number 2"));

    fs::remove_file(dir.path().join(files[1].0)).unwrap();
    let message = failure(&dir.path().join(files[0].0));
    assert!(message.contains("shard 2 of 3, `m-00002-of-00003.gguf`, is not there"), "{message}");
}

#[test]
fn a_renamed_shard_says_that_it_is_one() {
    let dir = folder(&[("m.gguf", gguf_shard(0, 2, "a"))]);
    assert!(
        failure(&dir.path().join("m.gguf")).contains("one of 2 that make up its model, but 1 were given")
    );
}

#[test]
fn shards_that_contradict_each_other_are_refused() {
    let pair = |a: Vec<u8>, b: Vec<u8>| {
        let dir = folder(&[("m-00001-of-00002.gguf", a), ("m-00002-of-00002.gguf", b)]);
        Weights::open(dir.path()).unwrap_err().to_string()
    };
    let message = pair(gguf_shard(0, 2, "a"), gguf_shard(1, 2, "a"));
    assert!(message.contains("tensor `a` is in an earlier shard as well"), "{message}");
    assert!(pair(gguf_shard(0, 2, "a"), gguf_shard(5, 2, "b")).contains("shard number 5 of only 2"));
    assert!(pair(gguf_shard(0, 2, "a"), one_gguf("b")).contains("one of 1 that make up"));
    assert!(pair(gguf_shard(0, 2, "a"), st(&[])).contains("neither GGUF nor"));
    let short = GgufWriter::new()
        .metadata("split.count", Value::Uint(1))
        .metadata("split.tensors.count", Value::Uint(9))
        .finish();
    let message = Weights::from_bytes("m.gguf", short).unwrap_err().to_string();
    assert!(message.contains("the shards hold 0 tensors, wanted 9"), "{message}");
}

#[test]
fn folders_hold_one_model() {
    let only = folder(&[("m.gguf", one_gguf("a")), ("mmproj-m.gguf", one_gguf("v")), ("x.txt", vec![])]);
    assert!(Weights::open(only.path()).unwrap().contains("a"));
    let none = folder(&[("pytorch_model.bin", vec![1])]);
    assert!(failure(none.path()).contains("no .gguf or .safetensors file in this folder"));
    let two = folder(&[("a.gguf", one_gguf("a")), ("b.gguf", one_gguf("b"))]);
    assert!(failure(two.path()).contains("holds 2 models (a.gguf, b.gguf); name the file"));
    let both = folder(&[("model.safetensors", st(&[])), ("consolidated.safetensors", st(&[]))]);
    assert!(Weights::open(both.path()).is_ok());
}

#[test]
fn what_cannot_be_weights_is_refused() {
    let dir = folder(&[("empty.gguf", vec![]), ("page.gguf", b"<html>".to_vec()), ("b", one_gguf("a"))]);
    assert!(failure(&dir.path().join("nowhere.gguf")).contains("No such file"));
    assert!(failure(&dir.path().join("empty.gguf")).contains("the file is empty"));
    assert!(failure(&dir.path().join("page.gguf")).contains("a web page"));
    // The content decides, not the extension.
    assert!(Weights::open(&dir.path().join("b")).is_ok());
    assert!(Weights::from_files(&[]).unwrap_err().to_string().contains("give at least one"));
}

#[cfg(unix)]
#[test]
fn a_pipe_does_not_block() {
    let dir = folder(&[]);
    let pipe = dir.path().join("m.gguf");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    if !made.is_ok_and(|status| status.success()) {
        eprintln!("skipped: no mkfifo here");
        return;
    }
    assert!(failure(&pipe).contains("not a regular file"));
}

#[test]
fn a_safetensors_index_decides() {
    let index =
        |map: &str| format!(r#"{{"metadata": {{"total_size": 8}}, "weight_map": {map}}}"#).into_bytes();
    let name = "model.safetensors.index.json";
    let a = st(&[("a", Dtype::F32, &[1], &[1; 4]), ("extra", Dtype::F32, &[1], &[1; 4])]);
    let b = st(&[("b", Dtype::F32, &[1], &[2; 4])]);
    let with = |map: &str| {
        folder(&[(name, index(map)), ("s1.safetensors", a.clone()), ("s2.safetensors", b.clone())])
    };

    let dir = with(r#"{"a": "s1.safetensors", "b": "s2.safetensors"}"#);
    for path in [dir.path().to_owned(), dir.path().join(name)] {
        let weights = Weights::open(&path).unwrap();
        assert!(weights.metadata().is_none());
        assert_eq!(weights.tensor("b").unwrap().bytes(), [2; 4]);
        assert!(weights.contains("a") && !weights.contains("extra"));
    }

    let dir = with(r#"{"a": "s1.safetensors", "b": "s3.safetensors"}"#);
    let message = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("index.json: the shard `s3.safetensors` it lists is not there"), "{message}");
    let dir = with(r#"{"a": "s2.safetensors"}"#);
    let message = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(message.ends_with("s2.safetensors: tensor `a` is missing"), "{message}");
    for outside in ["../s1.safetensors", "/etc/passwd", "a/../../b", "", "..", "a\\\\..\\\\b", "./.."] {
        let dir = with(&format!(r#"{{"a": "{outside}"}}"#));
        let message = Weights::open(dir.path()).unwrap_err().to_string();
        assert!(message.contains("outside the model's folder"), "{outside}: {message}");
    }
    for broken in ["[]", "{}", r#"{"a": 1}"#, "{"] {
        let message = Weights::open(with(broken).path()).unwrap_err().to_string();
        assert!(message.contains("index") && !message.contains('\n'), "{message}");
    }
}

#[test]
fn safetensors_shards_open_without_an_index() {
    let dir = folder(&[
        ("model-00001-of-00002.safetensors", st(&[("a", Dtype::F32, &[1], &[1; 4])])),
        ("model-00002-of-00002.safetensors", st(&[("b", Dtype::F32, &[1], &[2; 4])])),
    ]);
    assert_eq!(Weights::open(dir.path()).unwrap().tensor("b").unwrap().bytes(), [2; 4]);
    fs::remove_file(dir.path().join("model-00002-of-00002.safetensors")).unwrap();
    let message = Weights::open(dir.path()).unwrap_err().to_string();
    assert!(message.contains("shard 2 of 2, `model-00002-of-00002.safetensors`, is not there"), "{message}");
}

#[test]
fn broken_safetensors_say_what_is_wrong() {
    let fail = |bytes: Vec<u8>| {
        let message = Weights::from_bytes("m", bytes).unwrap_err().to_string();
        assert!(message.starts_with("m: ") && !message.contains('\n') && message.len() < 300, "{message}");
        message
    };
    let good = st(&[("a", Dtype::F32, &[2], &[1; 8])]);
    assert!(fail(good[..good.len() - 1].to_vec()).contains("truncated: the tensors end at byte"));
    assert!(fail(good[..20].to_vec()).contains("truncated: the header ends at byte"));
    assert!(fail([&good[..], &[0]].concat()).contains("it is damaged"));
    let tensor = |shape: &str, offsets: &str| {
        raw_st(&format!(r#"{{"a\nb":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#), 8)
    };
    assert!(Weights::from_bytes("m", tensor("[2]", "[0,8]")).is_ok());
    for (shape, offsets) in [
        ("[2]", "[0,4]"),
        ("[2]", "[8,0]"),
        ("[2]", "[4,12]"),
        ("[4294967296,4294967296,4294967296]", "[0,8]"),
        ("[-1]", "[0,8]"),
    ] {
        assert!(fail(tensor(shape, offsets)).contains("the safetensors header is broken"));
    }
    assert!(fail(raw_st("{", 0)).contains("the safetensors header is broken"));
    // A plausible length is what tells safetensors from anything else.
    assert!(fail([&u64::MAX.to_le_bytes()[..], b"{}"].concat()).contains("neither GGUF nor safetensors"));
}

#[test]
fn offsets_that_overflow_together_are_refused() {
    // Each tensor passes on its own; their sum with the header's length wraps around.
    let big = (1u64 << 61) - 1;
    let mut start = 0u64;
    let mut header = String::from("{");
    for (index, size) in [big; 8].into_iter().chain([7]).enumerate() {
        let end = start + size;
        header += &format!(r#""t{index}":{{"dtype":"U8","shape":[{size}],"data_offsets":[{start},{end}]}},"#);
        start = end;
    }
    let header = header.trim_end_matches(',').to_owned() + "}";
    let message = Weights::from_bytes("m", raw_st(&header, 0)).unwrap_err().to_string();
    assert!(message.contains("the tensors' offsets overflow"), "{message}");
}

proptest! {
    #[test]
    fn no_damage_to_safetensors_panics(
        flips in prop::collection::vec((0usize..200, any::<u8>()), 1..6),
        cut in 0usize..400,
    ) {
        let mut bytes = st(&[
            ("first", Dtype::F32, &[2, 3], &[1; 24]),
            ("second", Dtype::BF16, &[5], &[2; 10]),
            ("third", Dtype::I8, &[], &[3]),
        ]);
        for (at, value) in flips {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        for bytes in [bytes[..cut.min(bytes.len())].to_vec(), bytes] {
            let Ok(weights) = Weights::from_bytes("m", bytes) else { continue };
            for info in weights.tensors() {
                if let Ok(tensor) = weights.tensor(&info.name) {
                    prop_assert_eq!(tensor.to_f32().len(), tensor.num_elements());
                }
            }
        }
    }
}
