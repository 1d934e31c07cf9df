//! GGUF files that are valid, broken by hand, and broken at random.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use proptest::prelude::*;

use super::*;
use crate::weights::gguf_writer::GgufWriter;
use specgen_kernels::Format;

/// Two pairs and two tensors: a [2, 32] matrix of Q8_0 and a vector of three F32.
fn small() -> GgufWriter {
    GgufWriter::new()
        .metadata("general.architecture", Value::String(b"llama".to_vec()))
        .metadata("llama.block_count", Value::Uint(2))
        .tensor("matrix", Format::Q8_0, &[2, 32], &[7; 68])
        .tensor("vector", Format::F32, &[3], &[1; 12])
}

fn read(bytes: &[u8]) -> Result<Contents> {
    parse(Path::new("test.gguf"), bytes)
}

/// The message of the error that `bytes` must give; one line, the path first.
fn failure(bytes: &[u8]) -> String {
    let message = read(bytes).unwrap_err().to_string();
    assert!(message.starts_with("test.gguf: ") && !message.contains('\n'), "{message}");
    message
}

/// Replaces the first occurrence of `old`, which must be there.
fn patch(mut bytes: Vec<u8>, old: &[u8], new: &[u8]) -> Vec<u8> {
    let at = bytes.windows(old.len()).position(|window| window == old).expect("the bytes to patch");
    bytes.splice(at..at + old.len(), new.iter().copied());
    bytes
}

/// A length-prefixed string as it lies in the file.
fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes()[..], text].concat()
}

/// `name` as the start of a tensor's declaration with these dimensions, innermost first.
fn declaration(name: &str, dims: &[u64]) -> Vec<u8> {
    let mut bytes = string(name.as_bytes());
    bytes.extend((dims.len() as u32).to_le_bytes());
    bytes.extend(dims.iter().flat_map(|dim| dim.to_le_bytes()));
    bytes
}

/// A metadata pair of the given type and raw value in an otherwise empty file.
fn pair(type_id: u32, raw: &[u8]) -> Vec<u8> {
    let empty = GgufWriter::new().metadata("key", Value::Bool(true)).finish();
    let old = [&string(b"key")[..], &7u32.to_le_bytes(), &[1]].concat();
    patch(empty, &old, &[&string(b"key")[..], &type_id.to_le_bytes(), raw].concat())
}

#[test]
fn shapes_are_outermost_first() {
    let contents = read(&small().finish()).unwrap();
    assert_eq!(contents.version, 3);
    assert_eq!(contents.metadata.uint("llama.block_count"), Some(2));
    let names: Vec<_> = contents.tensors.iter().map(|t| (t.name.as_str(), t.shape.as_slice())).collect();
    assert_eq!(names, [("matrix", &[2, 32][..]), ("vector", &[3])]);
    assert_eq!(contents.tensors[0].kind, TensorType::Known(Format::Q8_0));
    // 68 bytes of matrix, padded to 96.
    assert_eq!(contents.tensors[1].range.start - contents.tensors[0].range.start, 96);
}

#[test]
fn every_scalar_type_reads() {
    let cases: [(u32, &[u8], Value); 15] = [
        (0, &[200], Value::Uint(200)),
        (1, &[0xff], Value::Int(-1)),
        (1, &[5], Value::Uint(5)),
        (2, &[1, 2], Value::Uint(0x201)),
        (3, &[0xfe, 0xff], Value::Int(-2)),
        (4, &[0xff; 4], Value::Uint(0xffff_ffff)),
        (5, &[0xff; 4], Value::Int(-1)),
        (6, &1.5f32.to_le_bytes(), Value::Float(1.5)),
        (7, &[0], Value::Bool(false)),
        (7, &[1], Value::Bool(true)),
        (8, &[2, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xfe], Value::String(vec![0xff, 0xfe])),
        (10, &[0xff; 8], Value::Uint(u64::MAX)),
        (11, &[0xff; 8], Value::Int(-1)),
        (11, &i64::MIN.to_le_bytes(), Value::Int(i64::MIN)),
        (12, &0.1f64.to_le_bytes(), Value::Float(0.1)),
    ];
    for (id, raw, wanted) in cases {
        assert_eq!(read(&pair(id, raw)).unwrap().metadata.get("key"), Some(&wanted), "type {id}");
    }
}

#[test]
fn every_array_type_reads() {
    let array = |id: u32, count: u64, raw: &[u8]| {
        pair(9, &[&id.to_le_bytes()[..], &count.to_le_bytes(), raw].concat())
    };
    let nested = [&4u32.to_le_bytes()[..], &1u64.to_le_bytes(), &9u32.to_le_bytes()].concat();
    let cases: [(u32, u64, &[u8], Value); 14] = [
        (0, 2, &[200, 3], Value::Ints(vec![200, 3])),
        (1, 2, &[0xff, 3], Value::Ints(vec![-1, 3])),
        (2, 1, &[1, 2], Value::Ints(vec![0x201])),
        (3, 1, &[0xfe, 0xff], Value::Ints(vec![-2])),
        (4, 1, &[0xff; 4], Value::Ints(vec![0xffff_ffff])),
        (5, 1, &[0xff; 4], Value::Ints(vec![-1])),
        (6, 1, &1.5f32.to_le_bytes(), Value::Floats(vec![1.5])),
        (7, 3, &[1, 0, 1], Value::Bools(vec![true, false, true])),
        (8, 1, &string(b"\xff"), Value::Strings(vec![vec![0xff]])),
        (8, 0, &[], Value::Strings(vec![])),
        (9, 1, &nested, Value::Arrays(vec![Value::Ints(vec![9])])),
        (10, 1, &7u64.to_le_bytes(), Value::Ints(vec![7])),
        (11, 1, &[0xff; 8], Value::Ints(vec![-1])),
        (12, 1, &0.1f64.to_le_bytes(), Value::Floats(vec![0.1])),
    ];
    for (id, count, raw, wanted) in cases {
        let found = read(&array(id, count, raw)).unwrap();
        assert_eq!(found.metadata.get("key"), Some(&wanted), "array of type {id}");
    }
    assert!(failure(&array(10, 1, &[0xff; 8])).contains("at most 2^63 - 1"));
    assert!(failure(&array(13, 1, &[0; 8])).contains("value type 13 is unknown"));
    assert!(failure(&array(7, 1, &[2])).contains("a boolean of 2"));
}

#[test]
fn counts_beyond_the_file_are_refused_before_they_are_allocated() {
    for id in [0u32, 4, 7, 8, 9, 12] {
        for count in [1000u64, 1 << 40, u64::MAX] {
            let array = [&id.to_le_bytes()[..], &count.to_le_bytes(), &[0; 40]].concat();
            assert!(failure(&pair(9, &array)).contains("truncated: "), "{count} of type {id}");
        }
    }
    let long = u64::MAX.to_le_bytes();
    assert!(
        failure(&pair(8, &long)).contains("metadata `key`: truncated: 18446744073709551615 string bytes")
    );
    let file = small().finish();
    // Magic and version take 8 bytes, then tensors, then pairs.
    for (at, what) in [(8, "18446744073709551615 tensors"), (16, "18446744073709551615 metadata pairs")] {
        let mut file = file.clone();
        file[at..at + 8].copy_from_slice(&long);
        assert!(failure(&file).contains(what));
    }
}

#[test]
fn deep_nesting_is_refused() {
    let level = [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat();
    let leaf = [&0u32.to_le_bytes()[..], &0u64.to_le_bytes()].concat();
    assert!(read(&pair(9, &[level.repeat(3), leaf.clone()].concat())).is_ok());
    for levels in [4, 100_000] {
        let message = failure(&pair(9, &[level.repeat(levels), leaf.clone()].concat()));
        assert!(message.contains("nested deeper than 4"), "{message}");
    }
}

#[test]
fn versions_and_kinds_are_told_apart() {
    assert_eq!(read(&small().version(2).finish()).unwrap().version, 2);
    assert!(failure(&small().version(1).finish()).contains("version 1 is too old"));
    assert!(failure(&small().version(4).finish()).contains("version 4 is unknown"));
    assert!(failure(&small().version(3u32.swap_bytes()).finish()).contains("big-endian"));
    assert!(failure(b"").contains("empty"));
    assert!(failure(b"GGU").contains("neither GGUF nor safetensors: it starts with `GGU`"));
    assert!(failure(b"version https://git-lfs.github.com/spec/v1").contains("git lfs pull"));
    assert!(failure(b"<!doctype html>").contains("web page"));
}

#[test]
fn bad_dimensions_are_refused() {
    let good = declaration("matrix", &[32, 2]);
    let with = |dims: &[u64]| failure(&patch(small().finish(), &good, &declaration("matrix", dims)));
    assert!(with(&[32, 2, 1, 1, 1]).contains("tensor `matrix`: 5 dimensions"));
    assert!(with(&[32, 0]).contains("tensor `matrix`: a dimension of 0"));
    assert!(with(&[31, 2]).contains("rows of 31 elements do not divide into Q8_0 blocks of 32"));
    assert!(with(&[1 << 32, 1 << 32]).contains("multiply beyond any memory"));
    assert!(with(&[32, u64::MAX / 32]).contains("multiply beyond any memory"));
    assert!(with(&[1 << 40, 2]).contains("truncated: tensor `matrix` ends at byte"));
}

#[test]
fn a_scalar_is_one_element() {
    let file = GgufWriter::new().tensor("scalar", Format::F32, &[], &[0; 4]).finish();
    let contents = read(&file).unwrap();
    assert_eq!((contents.tensors[0].shape.len(), contents.tensors[0].range.len()), (0, 4));
}

#[test]
fn bad_offsets_are_refused() {
    let good = [&declaration("vector", &[3])[..], &0u32.to_le_bytes(), &96u64.to_le_bytes()].concat();
    let with = |offset: u64| {
        let new = [&declaration("vector", &[3])[..], &0u32.to_le_bytes(), &offset.to_le_bytes()].concat();
        failure(&patch(small().finish(), &good, &new))
    };
    assert!(with(97).contains("tensor `vector` starts at offset 97, wanted a multiple of 32"));
    assert!(with(64).contains("tensor `matrix` overlaps the one after it"));
    assert!(with(0).contains("overlaps the one after it"));
    assert!(with(128).contains("truncated: tensor `vector` ends at byte"));
    assert!(with(u64::MAX - 31).contains("lies beyond any file"));
}

#[test]
fn alignment_is_honoured_and_checked() {
    let build = |alignment| {
        GgufWriter::new()
            .alignment(alignment)
            .tensor("a", Format::F32, &[1], &[1; 4])
            .tensor("b", Format::F32, &[1], &[2; 4])
            .finish()
    };
    for alignment in [8, 64, 4096] {
        let contents = read(&build(alignment)).unwrap();
        let [a, b] = &contents.tensors[..] else { panic!("two tensors") };
        assert_eq!(a.range.start % alignment as usize, 0);
        assert_eq!(b.range.start, a.range.start + alignment as usize);
    }
    for alignment in [0u32, 4, 24, u32::MAX] {
        // Only declared: the writer must not pad to it.
        let file = small().metadata("general.alignment", Value::Uint(alignment.into())).finish();
        let message = failure(&file);
        assert!(message.contains(&format!("general.alignment is {alignment}, wanted a power of two")));
    }
    let file = small().metadata("general.alignment", Value::Bool(true)).finish();
    assert!(failure(&file).contains("not an unsigned integer"));
}

#[test]
fn duplicates_are_refused() {
    let twice = small().tensor("vector", Format::F32, &[3], &[0; 12]).finish();
    assert!(failure(&twice).contains("tensor `vector` occurs twice"));
    let twice = small().metadata("llama.block_count", Value::Uint(3)).finish();
    assert!(failure(&twice).contains("metadata key `llama.block_count` occurs twice"));
}

#[test]
fn names_in_errors_stay_on_one_short_line() {
    let name = "x\n".repeat(5000);
    let file = GgufWriter::new().raw_tensor(&name, 0, &[1 << 40], &[]).finish();
    let message = failure(&file);
    assert!(message.contains(r"x\nx\n") && message.len() < 300, "{message}");
    assert!(failure(&patch(small().finish(), b"vector", b"\xffector")).contains("is not UTF-8"));
}

#[test]
fn unknown_types_keep_their_place() {
    let file = GgufWriter::new()
        .raw_tensor("a", 23, &[256], &[1; 136])
        .raw_tensor("b", 57, &[256], &[2; 40])
        .finish();
    let contents = read(&file).unwrap();
    let kinds: Vec<_> = contents.tensors.iter().map(|t| (t.kind.to_string(), t.range.len())).collect();
    assert_eq!(kinds, [("IQ4_XS".into(), 160), ("type 57".into(), 40)]);
}

#[test]
fn every_format_has_one_number() {
    let known = (0..64).filter(|&id| matches!(types::from_id(id), TensorType::Known(_)));
    let ids: Vec<u32> = known.collect();
    assert_eq!(ids, [0, 1, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 30]);
    assert_eq!((id_of(Format::F32), id_of(Format::Q6_K), id_of(Format::BF16)), (Some(0), Some(14), Some(30)));
}

fn any_value() -> impl Strategy<Value = Value> {
    let bytes = || prop::collection::vec(any::<u8>(), 0..12);
    let finite =
        || prop_oneof![any::<f32>().prop_map(f64::from), any::<f64>()].prop_filter("NaN", |f| !f.is_nan());
    let array = prop_oneof![
        prop::collection::vec(any::<i64>(), 0..6).prop_map(Value::Ints),
        prop::collection::vec(any::<i32>().prop_map(i64::from), 0..6).prop_map(Value::Ints),
        prop::collection::vec(finite(), 0..6).prop_map(Value::Floats),
        prop::collection::vec(any::<bool>(), 0..6).prop_map(Value::Bools),
        prop::collection::vec(bytes(), 0..6).prop_map(Value::Strings),
    ];
    prop_oneof![
        any::<u64>().prop_map(Value::Uint),
        (i64::MIN..0).prop_map(Value::Int),
        finite().prop_map(Value::Float),
        any::<bool>().prop_map(Value::Bool),
        bytes().prop_map(Value::String),
        array.clone(),
        prop::collection::vec(array, 0..4).prop_map(Value::Arrays),
    ]
}

fn any_format() -> impl Strategy<Value = Format> {
    use Format::*;
    prop::sample::select(vec![F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K])
}

/// Metadata, tensors as (format, shape, seed of their bytes), and an alignment.
type Model = (BTreeMap<String, Value>, Vec<(Format, Vec<usize>, u8)>, u32);

fn any_model() -> impl Strategy<Value = Model> {
    let tensor = (any_format(), prop::collection::vec(1usize..4, 1..=4), any::<u8>()).prop_map(
        |(format, mut shape, seed)| {
            *shape.last_mut().unwrap() *= format.block_len();
            (format, shape, seed)
        },
    );
    (
        prop::collection::btree_map("[a-z.]{1,12}", any_value(), 0..6),
        prop::collection::vec(tensor, 0..5),
        prop::sample::select(vec![8u32, 32, 128]),
    )
}

fn tensor_bytes(format: Format, shape: &[usize], seed: u8) -> Vec<u8> {
    let rows: usize = shape[..shape.len() - 1].iter().product();
    let len = rows * format.row_bytes(shape[shape.len() - 1]).unwrap();
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

fn write((metadata, tensors, alignment): &Model) -> Vec<u8> {
    let mut writer = GgufWriter::new().alignment(*alignment);
    for (key, value) in metadata {
        writer = writer.metadata(key, value.clone());
    }
    for (index, (format, shape, seed)) in tensors.iter().enumerate() {
        writer = writer.tensor(&format!("t{index}"), *format, shape, &tensor_bytes(*format, shape, *seed));
    }
    writer.finish()
}

/// What a caller may do with whatever was accepted: index every range.
fn touch(bytes: &[u8]) {
    if let Ok(contents) = read(bytes) {
        for tensor in contents.tensors {
            std::hint::black_box(&bytes[tensor.range]);
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read(model in any_model()) {
        let bytes = write(&model);
        let mut contents = read(&bytes).unwrap();
        contents.metadata.0.remove("general.alignment");
        prop_assert_eq!(&contents.metadata.0, &model.0);
        prop_assert_eq!(contents.tensors.len(), model.1.len());
        for (index, (entry, (format, shape, seed))) in contents.tensors.iter().zip(&model.1).enumerate() {
            prop_assert_eq!(&entry.name, &format!("t{index}"));
            prop_assert_eq!(&entry.kind, &TensorType::Known(*format));
            prop_assert_eq!(&entry.shape, shape);
            prop_assert_eq!(&bytes[entry.range.clone()], &tensor_bytes(*format, shape, *seed)[..]);
        }
    }

    #[test]
    fn no_damage_panics(
        model in any_model(),
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = write(&model);
        let len = bytes.len();
        // Most of the file is padding and data; aim at the header.
        for (at, value) in flips {
            bytes[at.index(len.min(200))] = value;
        }
        touch(&bytes);
        touch(&bytes[..cut.index(len)]);
    }

    #[test]
    fn every_truncation_is_refused(model in any_model(), cut in any::<prop::sample::Index>()) {
        let bytes = write(&model);
        prop_assume!(!model.1.is_empty());
        let message = read(&bytes[..cut.index(bytes.len())]).unwrap_err().to_string();
        let told = ["truncated", "empty", "neither GGUF"].iter().any(|word| message.contains(word));
        prop_assert!(told, "{}", message);
    }
}
