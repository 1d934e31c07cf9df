//! Reads safetensors files, and the index that spreads a model over several.
//!
//! The header is a JSON object; the `safetensors` crate parses it and checks that the tensors cover the
//! data without gap or overlap. Format: <https://github.com/huggingface/safetensors>.

use std::collections::{BTreeMap, HashSet};
use std::path::{Component, Path, PathBuf};

use ::safetensors::Dtype;
use ::safetensors::tensor::Metadata as Header;
use specgen_kernels::Format;

use super::shown;
use super::tensor::{TensorEntry, TensorType};
use crate::{Error, Result};

/// The longest header accepted, in bytes; the format's own limit.
const MAX_HEADER: u64 = 100_000_000;
/// The largest index file accepted, in bytes. The index of a 400B model takes about 0.1 MB.
const MAX_INDEX: u64 = 100_000_000;
/// Bytes of the header's length at the start of the file.
const LENGTH: usize = 8;

/// The files an index names, each with the tensors that are in it.
pub(crate) type Shards = BTreeMap<PathBuf, HashSet<String>>;

/// Whether `bytes` begin like a safetensors file: a plausible header length, then JSON.
pub fn is_safetensors(bytes: &[u8]) -> bool {
    header_len(bytes).is_some_and(|len| len <= MAX_HEADER) && bytes.get(LENGTH) == Some(&b'{')
}

/// The tensors of the safetensors file `bytes`, in file order; `path` is for errors.
///
/// # Errors
/// [`Error::Format`] where the file is of another kind, truncated, or its header contradicts itself.
pub fn parse(path: &Path, bytes: &[u8]) -> Result<Vec<TensorEntry>> {
    parse_header(bytes).map_err(|message| Error::format(path, message))
}

fn header_len(bytes: &[u8]) -> Option<u64> {
    bytes.first_chunk().map(|length: &[u8; LENGTH]| u64::from_le_bytes(*length))
}

fn parse_header(bytes: &[u8]) -> Result<Vec<TensorEntry>, String> {
    if !is_safetensors(bytes) {
        return Err(super::locate::not_weights(bytes));
    }
    let file_len = bytes.len();
    let header_end = header_len(bytes)
        .and_then(|len| usize::try_from(len).ok())
        .and_then(|len| len.checked_add(LENGTH))
        .ok_or("the header's length overflows")?;
    let Some(json) = bytes.get(LENGTH..header_end) else {
        return Err(format!(
            "truncated: the header ends at byte {header_end}, the file has {file_len}; download it again"
        ));
    };
    let header: Header = serde_json::from_slice(json).map_err(|e| {
        format!("the safetensors header is broken ({}); download it again", shown(&e.to_string()))
    })?;
    // `SafeTensors::deserialize` would add these unchecked.
    let data_end = header.data_len().checked_add(header_end).ok_or("the tensors' offsets overflow")?;
    if data_end > file_len {
        return Err(format!(
            "truncated: the tensors end at byte {data_end}, the file has {file_len}; download it again"
        ));
    }
    if data_end < file_len {
        return Err(format!(
            "the tensors end at byte {data_end}, but the file has {file_len}; it is damaged, download it again"
        ));
    }
    let mut entries = Vec::new();
    for name in header.offset_keys() {
        let info = header.info(&name).ok_or("the safetensors header is inconsistent")?;
        let (start, end) = info.data_offsets;
        let kind = tensor_type(info.dtype);
        entries.push(TensorEntry {
            name,
            kind,
            shape: info.shape.clone(),
            range: header_end + start..header_end + end,
        });
    }
    Ok(entries)
}

fn tensor_type(dtype: Dtype) -> TensorType {
    match dtype {
        Dtype::F32 => TensorType::Known(Format::F32),
        Dtype::F16 => TensorType::Known(Format::F16),
        Dtype::BF16 => TensorType::Known(Format::BF16),
        other => TensorType::Other { name: other.to_string(), id: None },
    }
}

/// The part of `*.safetensors.index.json` that matters.
#[derive(serde::Deserialize)]
struct Index {
    /// Tensor name to file name.
    weight_map: BTreeMap<String, String>,
}

/// Reads an index: which files there are, beside it, and which tensors each holds.
pub(super) fn read_index(path: &Path) -> Result<Shards> {
    let size = std::fs::metadata(path).map_err(|e| Error::io(path, e))?.len();
    if size > MAX_INDEX {
        let message =
            format!("an index of {size} bytes, at most {MAX_INDEX} are accepted; download it again");
        return Err(Error::format(path, message));
    }
    let text = std::fs::read(path).map_err(|e| Error::io(path, e))?;
    let index: Index = serde_json::from_slice(&text).map_err(|e| {
        Error::format(path, format!("the index is broken ({}); download it again", shown(&e.to_string())))
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut shards = Shards::new();
    for (tensor, file) in index.weight_map {
        let inside = !file.is_empty()
            && !file.contains('\\')
            && Path::new(&file).components().all(|part| matches!(part, Component::Normal(_)));
        if !inside {
            let message = format!(
                "tensor `{}` is said to be in `{}`, outside the model's folder; only names inside it are \
                 accepted",
                shown(&tensor),
                shown(&file),
            );
            return Err(Error::format(path, message));
        }
        shards.entry(folder.join(file)).or_default().insert(tensor);
    }
    if shards.is_empty() {
        return Err(Error::format(path, "the index names no tensor; download it again"));
    }
    Ok(shards)
}
