//! Weight files: GGUF and safetensors to named tensors; the one mmap.
//!
//! Files are mapped, never read whole: a tensor is a name, a shape and a window into the mapping, so
//! opening a model of any size costs only its header. Everything in a header is checked before it is
//! believed: a truncated or hostile file is an [`Error`], never a panic or a huge allocation.
//! A tensor stored in a type this library cannot compute with fails when it is asked for, not at open.

pub mod gguf;
pub mod gguf_writer;
pub mod metadata;
pub mod safetensors;

pub(crate) mod locate;
mod mapping;
mod tensor;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use metadata::{Metadata, Value};
pub use specgen_kernels::Format;
use specgen_kernels::Packed;
pub use tensor::{Tensor, TensorEntry, TensorInfo, TensorType};

use crate::{Error, Result};
use mapping::Mapping;

/// A model's weights: a GGUF file or its shards, or a safetensors file or its shards.
///
/// The files are mapped for as long as this value or any [`Tensor`] of it lives. They must not be
/// truncated meanwhile: the system ends a process (`SIGBUS` on Unix) that touches a page which is no
/// longer there. Replacing a file by renaming another over it is safe.
pub struct Weights {
    path: PathBuf,
    metadata: Option<Metadata>,
    files: Vec<Arc<Mapping>>,
    /// In file order, each with the index of its file.
    entries: Vec<(usize, TensorEntry)>,
    by_name: HashMap<String, usize>,
}

impl Weights {
    /// Opens a `.gguf` or `.safetensors` file, or a folder that holds one model of either kind.
    ///
    /// The content decides the kind, not the extension. A file that is one shard of several
    /// (`-00001-of-0000N`) opens them all. In a folder, `model.safetensors` counts first, then what
    /// `model.safetensors.index.json` names; elsewhere safetensors before GGUF.
    ///
    /// # Errors
    /// [`Error::Io`] where the system refuses; [`Error::Format`] where a file is damaged or of another
    /// kind, a shard is missing, or a folder holds no model or several.
    pub fn open(path: &Path) -> Result<Self> {
        let mut weights = match locate::locate(path)? {
            locate::Found::Files(files) => Self::from_files(&files)?,
            locate::Found::Index(index, shards) => Self::from_index(&index, &shards)?,
        };
        weights.path = path.to_owned();
        Ok(weights)
    }

    /// Opens exactly these files as one model: all GGUF shards of one model, or all its safetensors files.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty list, otherwise as [`Weights::open`].
    pub fn from_files(files: &[PathBuf]) -> Result<Self> {
        Self::from_mappings(files.iter().map(|path| Mapping::open(path)).collect::<Result<_>>()?)
    }

    /// Reads a GGUF or safetensors file that is already in memory; `name` stands for its path in errors.
    ///
    /// # Errors
    /// [`Error::Format`] where the bytes are damaged or of another kind.
    pub fn from_bytes(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Result<Self> {
        Self::from_mappings(vec![Mapping::from_bytes(name.into(), bytes)])
    }

    fn from_mappings(mappings: Vec<Mapping>) -> Result<Self> {
        let Some(first) = mappings.first() else {
            return Err(Error::InvalidArgument("no weight file was given; give at least one".into()));
        };
        let mut weights = Self {
            path: first.path().to_owned(),
            metadata: None,
            files: Vec::new(),
            entries: Vec::new(),
            by_name: HashMap::new(),
        };
        if gguf::is_gguf(first.bytes()) {
            let mut shards = Vec::new();
            for file in mappings {
                let contents = gguf::parse(file.path(), file.bytes())?;
                shards.push((file, contents));
            }
            weights.metadata = Some(gguf::join_shards(&mut shards)?);
            for (file, contents) in shards {
                weights.add(file, contents.tensors)?;
            }
        } else {
            for file in mappings {
                let tensors = safetensors::parse(file.path(), file.bytes())?;
                weights.add(file, tensors)?;
            }
        }
        Ok(weights)
    }

    /// The shards an index names, each with the tensors it says are there; others are left out.
    fn from_index(index: &Path, shards: &safetensors::Shards) -> Result<Self> {
        let mut weights = Self {
            path: index.to_owned(),
            metadata: None,
            files: Vec::new(),
            entries: Vec::new(),
            by_name: HashMap::new(),
        };
        for (path, names) in shards {
            if !path.exists() {
                let message = format!(
                    "the shard `{}` it lists is not there; download it into the same folder",
                    shown(&path.file_name().unwrap_or_default().to_string_lossy())
                );
                return Err(Error::format(index, message));
            }
            let file = Mapping::open(path)?;
            let mut tensors = safetensors::parse(path, file.bytes())?;
            tensors.retain(|entry| names.contains(&entry.name));
            if tensors.len() < names.len() {
                let there: HashSet<&str> = tensors.iter().map(|entry| entry.name.as_str()).collect();
                let missing = names.iter().find(|name| !there.contains(name.as_str()));
                let name = missing.cloned().unwrap_or_default();
                return Err(Error::MissingTensor { path: path.clone(), name });
            }
            weights.add(file, tensors)?;
        }
        Ok(weights)
    }

    fn add(&mut self, file: Mapping, tensors: Vec<TensorEntry>) -> Result<()> {
        for entry in tensors {
            if self.by_name.insert(entry.name.clone(), self.entries.len()).is_some() {
                let message = format!(
                    "tensor `{}` is in an earlier shard as well; the files are not of one model",
                    shown(&entry.name)
                );
                return Err(Error::format(file.path(), message));
            }
            self.entries.push((self.files.len(), entry));
        }
        self.files.push(Arc::new(file));
        Ok(())
    }

    /// The metadata of a GGUF file (of its first shard), or `None` for safetensors.
    pub fn metadata(&self) -> Option<&Metadata> {
        self.metadata.as_ref()
    }

    /// What was opened: the file or folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of this name, of whatever type.
    pub fn contains(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// The tensor `name`, without copying it.
    ///
    /// # Errors
    /// [`Error::MissingTensor`] where there is none, [`Error::Unsupported`] where its storage type is
    /// none of [`Format`].
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let Some(&index) = self.by_name.get(name) else {
            return Err(Error::MissingTensor { path: self.path.clone(), name: name.to_owned() });
        };
        let (file, entry) = &self.entries[index];
        Tensor::new(&self.files[*file], entry)
    }

    /// Every tensor in file order, those of unsupported types included.
    pub fn tensors(&self) -> impl Iterator<Item = TensorInfo> {
        self.entries.iter().map(|(_, entry)| entry.info())
    }

    /// Bytes of all tensors together in memory: quantised matrices are repacked for the CPU, which may pad
    /// them.
    pub fn memory_bytes(&self) -> u64 {
        let bytes = |entry: &TensorEntry| match (&entry.kind, entry.shape.as_slice()) {
            (TensorType::Known(format), [outer @ .., cols]) if !outer.is_empty() => {
                Packed::bytes_of(*format, outer.iter().product(), *cols).unwrap_or(entry.range.len())
            }
            _ => entry.range.len(),
        };
        self.entries.iter().map(|(_, entry)| bytes(entry) as u64).fold(0, u64::saturating_add)
    }

    /// Bytes of all tensors together, without headers.
    pub fn total_bytes(&self) -> u64 {
        self.entries.iter().map(|(_, entry)| entry.range.len() as u64).sum()
    }
}

impl fmt::Debug for Weights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = self.entries.len();
        f.debug_struct("Weights").field("path", &self.path).field("tensors", &tensors).finish_non_exhaustive()
    }
}

/// A name from a file, fit for one line of an error: escaped, and cut where it is very long.
fn shown(name: &str) -> String {
    const MAX: usize = 80;
    let escaped: String = name.chars().take(MAX).flat_map(char::escape_debug).collect();
    if name.chars().nth(MAX).is_some() { escaped + "..." } else { escaped }
}

#[cfg(test)]
mod tests;
