//! Reads GGUF files, versions 2 and 3, from bytes that may be truncated or hostile.
//!
//! Layout: magic, version, counts, metadata, tensor declarations, padding, data; all little-endian.
//! Specification: <https://github.com/ggml-org/ggml/blob/master/docs/gguf.md>. Every count is checked
//! against the bytes left before anything is allocated for it, and every tensor's range against the file
//! and its neighbours, so that what this module returns can be indexed without further checks.

mod cursor;
mod types;

pub(super) use types::id_of;

use std::collections::{BTreeMap, HashSet};
use std::ops::Range;
use std::path::Path;

use self::cursor::Cursor;
use super::mapping::Mapping;
use super::metadata::{Metadata, Value};
use super::shown;
use super::tensor::{TensorEntry, TensorType};
use crate::{Error, Result};

const MAGIC: &[u8] = b"GGUF";
/// Where tensor data is aligned to unless `general.alignment` says otherwise, in bytes.
const DEFAULT_ALIGNMENT: u64 = 32;
/// The largest header accepted, in bytes. The largest known vocabularies take about 20 MB.
const MAX_HEADER: usize = 128 << 20;
/// The most dimensions a GGML tensor has.
const MAX_DIMS: u32 = 4;

/// What a GGUF file says of itself.
#[derive(Clone, Debug)]
pub struct Contents {
    /// The format's version, 2 or 3.
    pub version: u32,
    /// The key-value pairs.
    pub metadata: Metadata,
    /// The tensors in the order of their data.
    pub tensors: Vec<TensorEntry>,
}

/// Whether `bytes` begin like a GGUF file.
pub fn is_gguf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Reads the header of the GGUF file `bytes`, the whole file; `path` is for errors.
///
/// Takes time linear in the header (but for sorting the tensors) and memory at most a small multiple of it.
///
/// # Errors
/// [`Error::Format`] where the file is of another kind or version, truncated, or contradicts itself.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Contents> {
    parse_file(bytes).map_err(|message| Error::format(path, message))
}

fn parse_file(bytes: &[u8]) -> Result<Contents, String> {
    if !is_gguf(bytes) {
        return Err(super::locate::not_weights(bytes));
    }
    let mut cursor = Cursor::new(bytes, MAX_HEADER);
    cursor.take(MAGIC.len())?;
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        1 => return Err("GGUF version 1 is too old, wanted 2 or 3; download a newer file".into()),
        v if (1..=0xffff).contains(&v.swap_bytes()) => {
            return Err("a big-endian GGUF file, wanted little-endian; download a little-endian one".into());
        }
        v => return Err(format!("GGUF version {v} is unknown, wanted 2 or 3; download another file")),
    }
    let tensor_count = cursor.u64()?;
    let metadata_count = cursor.u64()?;
    let metadata = read_metadata(&mut cursor, metadata_count)?;
    let alignment = alignment(&metadata)?;
    let declared = read_declarations(&mut cursor, tensor_count)?;
    let data_start = (cursor.position() as u64)
        .checked_next_multiple_of(alignment)
        .ok_or("the tensor data starts beyond any file")?;
    let tensors = place(declared, data_start, alignment, bytes.len())?;
    Ok(Contents { version, metadata, tensors })
}

fn read_metadata(cursor: &mut Cursor<'_>, count: u64) -> Result<Metadata, String> {
    // A key's length, a value's type, and a value of one byte at least.
    cursor.expect_items(count, 13, "metadata pairs")?;
    let mut pairs = BTreeMap::new();
    for index in 0..count {
        let key = cursor.name().map_err(|e| format!("metadata key {index}: {e}"))?;
        let value = cursor.value().map_err(|e| format!("metadata `{}`: {e}", shown(&key)))?;
        if pairs.contains_key(&key) {
            return Err(format!("metadata key `{}` occurs twice; the file is damaged", shown(&key)));
        }
        pairs.insert(key, value);
    }
    Ok(Metadata(pairs))
}

fn alignment(metadata: &Metadata) -> Result<u64, String> {
    let Some(value) = metadata.get("general.alignment") else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    match value {
        Value::Uint(n) if n.is_power_of_two() && (8..=1 << 30).contains(n) => Ok(*n),
        Value::Uint(n) => {
            Err(format!("general.alignment is {n}, wanted a power of two of at least 8; the file is damaged"))
        }
        _ => Err("general.alignment is not an unsigned integer; the file is damaged".into()),
    }
}

/// A tensor as declared, not yet checked against the file.
struct Declared {
    name: String,
    kind: TensorType,
    shape: Vec<usize>,
    /// From the start of the data section, in bytes.
    offset: u64,
    /// `None` where the type is none of ours.
    bytes: Option<u64>,
}

fn read_declarations(cursor: &mut Cursor<'_>, count: u64) -> Result<Vec<Declared>, String> {
    // A name's length, the number of dimensions, the type, the offset.
    cursor.expect_items(count, 24, "tensors")?;
    let mut declared = Vec::new();
    let mut names = HashSet::new();
    for index in 0..count {
        let name = cursor.name().map_err(|e| format!("name of tensor {index}: {e}"))?;
        let tensor =
            read_declaration(cursor, name.clone()).map_err(|e| format!("tensor `{}`: {e}", shown(&name)))?;
        if let Some(twice) = names.replace(name) {
            return Err(format!("tensor `{}` occurs twice; the file is damaged", shown(&twice)));
        }
        declared.push(tensor);
    }
    Ok(declared)
}

fn read_declaration(cursor: &mut Cursor<'_>, name: String) -> Result<Declared, String> {
    let dims = cursor.u32()?;
    if dims > MAX_DIMS {
        return Err(format!("{dims} dimensions, at most {MAX_DIMS} are known; the file is damaged"));
    }
    let mut shape = Vec::new();
    let mut elements: usize = 1;
    for _ in 0..dims {
        let dim = cursor.u64()?;
        if dim == 0 {
            return Err("a dimension of 0; the file is damaged".into());
        }
        let dim = usize::try_from(dim).ok();
        elements = dim
            .and_then(|dim| elements.checked_mul(dim))
            .filter(|&n| n <= isize::MAX as usize)
            .ok_or("its dimensions multiply beyond any memory; the file is damaged")?;
        shape.extend(dim);
    }
    // The file lists the fastest-varying dimension first.
    shape.reverse();
    let kind = types::from_id(cursor.u32()?);
    let offset = cursor.u64()?;
    let bytes = match &kind {
        TensorType::Known(format) => {
            let cols = shape.last().copied().unwrap_or(1);
            let Some(row_bytes) = format.row_bytes(cols) else {
                return Err(format!(
                    "rows of {cols} elements do not divide into {format:?} blocks of {}; the file is damaged",
                    format.block_len()
                ));
            };
            let bytes = (elements / cols).checked_mul(row_bytes);
            Some(bytes.ok_or("its size overflows; the file is damaged")? as u64)
        }
        TensorType::Other { .. } => None,
    };
    Ok(Declared { name, kind, shape, offset, bytes })
}

/// Turns offsets into byte ranges of the file: aligned, inside it, and apart from each other.
fn place(
    mut declared: Vec<Declared>,
    data_start: u64,
    alignment: u64,
    file_len: usize,
) -> Result<Vec<TensorEntry>, String> {
    declared.sort_by_key(|tensor| tensor.offset);
    let starts: Vec<u64> = declared.iter().map(|tensor| tensor.offset).collect();
    let mut entries = Vec::new();
    for (index, tensor) in declared.into_iter().enumerate() {
        let range = range_of(&tensor, starts.get(index + 1), data_start, alignment, file_len)?;
        entries.push(TensorEntry { name: tensor.name, kind: tensor.kind, shape: tensor.shape, range });
    }
    Ok(entries)
}

/// The file range of one tensor; `next` is the offset of the one after it.
fn range_of(
    tensor: &Declared,
    next: Option<&u64>,
    data_start: u64,
    alignment: u64,
    file_len: usize,
) -> Result<Range<usize>, String> {
    let name = shown(&tensor.name);
    if !tensor.offset.is_multiple_of(alignment) {
        return Err(format!(
            "tensor `{name}` starts at offset {}, wanted a multiple of {alignment}; the file is damaged",
            tensor.offset
        ));
    }
    let place = |offset: u64| data_start.checked_add(offset);
    let start = place(tensor.offset);
    let end = match (tensor.bytes, next) {
        (Some(bytes), _) => start.and_then(|start| start.checked_add(bytes)),
        (None, Some(&next)) => place(next),
        (None, None) => start.map(|start| start.max(file_len as u64)),
    };
    let (Some(start), Some(end)) = (start, end) else {
        return Err(format!("tensor `{name}` lies beyond any file; the file is damaged"));
    };
    if end > file_len as u64 {
        return Err(format!(
            "truncated: tensor `{name}` ends at byte {end}, the file has {file_len}; download it again"
        ));
    }
    if next.is_some_and(|&next| place(next).is_some_and(|next| next < end || next == start)) {
        return Err(format!("tensor `{name}` overlaps the one after it; the file is damaged"));
    }
    // Both are at most the file's length, which is a usize.
    Ok(start as usize..end as usize)
}

/// Checks that `shards` are all the parts of one model, puts them in order, and gives the first's metadata.
pub(super) fn join_shards(shards: &mut Vec<(Mapping, Contents)>) -> Result<Metadata> {
    let found = shards.len() as u64;
    let mut numbered = BTreeMap::new();
    for (file, contents) in shards.drain(..) {
        let path = file.path().to_owned();
        let fail = |message: String| Err(Error::format(&path, message));
        let count = contents.metadata.uint("split.count").unwrap_or(1);
        let number = contents.metadata.uint("split.no").unwrap_or(0);
        if count != found {
            return fail(format!(
                "the file is one of {count} that make up its model, but {found} were given; \
                 give all of them, and no others (their names end in -00001-of-{count:05}.gguf)"
            ));
        }
        if number >= count {
            return fail(format!("shard number {number} of only {count} (split.no counts from 0)"));
        }
        if numbered.insert(number, (file, contents)).is_some() {
            return fail(format!("a second shard number {number} (split.no) of the same model"));
        }
    }
    shards.extend(numbered.into_values());
    let tensors: usize = shards.iter().map(|(_, contents)| contents.tensors.len()).sum();
    let Some((first, contents)) = shards.first_mut() else {
        return Err(Error::InvalidArgument("no GGUF file was given; give at least one".into()));
    };
    match contents.metadata.uint("split.tensors.count") {
        Some(wanted) if wanted != tensors as u64 => Err(Error::format(
            first.path(),
            format!("the shards hold {tensors} tensors, wanted {wanted}; download them again"),
        )),
        // Moved: vocabularies are large.
        _ => Ok(std::mem::take(&mut contents.metadata)),
    }
}

#[cfg(test)]
mod tests;
