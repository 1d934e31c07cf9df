//! One tensor of a weight file: what its header says, and a window into the mapping.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use specgen_kernels::Format;

use super::mapping::Mapping;
use super::shown;
use crate::{Error, Result};

/// How a file stores a tensor's elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TensorType {
    /// A type this library computes with.
    Known(Format),
    /// Any other: its name, and its number where the file gives one.
    Other {
        /// The name its format knows it by (`IQ4_XS`, `F8_E4M3`), or `type 57` where there is none.
        name: String,
        /// The GGML type number.
        id: Option<u32>,
    },
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(format) => write!(f, "{format:?}"),
            Self::Other { name, .. } => f.write_str(name),
        }
    }
}

/// A tensor as a header declares it, checked against the file it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorEntry {
    /// Its name.
    pub name: String,
    /// How its elements are stored.
    pub kind: TensorType,
    /// Outermost dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Where its bytes lie in the file. For a type of unknown size: up to the next tensor.
    pub range: Range<usize>,
}

impl TensorEntry {
    pub(super) fn info(&self) -> TensorInfo {
        TensorInfo {
            name: self.name.clone(),
            type_name: self.kind.to_string(),
            shape: self.shape.clone(),
            bytes: self.range.len() as u64,
        }
    }
}

/// What there is to list about a tensor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Its name.
    pub name: String,
    /// The storage type's name, as GGUF or safetensors writes it.
    pub type_name: String,
    /// Outermost dimension first; empty for a scalar.
    pub shape: Vec<usize>,
    /// Bytes it takes in the file.
    pub bytes: u64,
}

/// One tensor's bytes inside a mapped file. Cheap to clone; keeps the mapping alive.
#[derive(Clone)]
pub struct Tensor {
    file: Arc<Mapping>,
    name: Arc<str>,
    format: Format,
    shape: Vec<usize>,
    range: Range<usize>,
}

impl Tensor {
    pub(super) fn new(file: &Arc<Mapping>, entry: &TensorEntry) -> Result<Self> {
        let format = match &entry.kind {
            TensorType::Known(format) => *format,
            TensorType::Other { name, id } => {
                let number = id.map(|id| format!(" (GGML type {id})")).unwrap_or_default();
                return Err(Error::Unsupported(format!(
                    "{}: tensor `{}` is stored as {name}{number}, which is not supported; use a file of \
                     F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0 or Q2_K to Q6_K",
                    file.path().display(),
                    shown(&entry.name),
                )));
            }
        };
        Ok(Self {
            file: Arc::clone(file),
            name: entry.name.as_str().into(),
            format,
            shape: entry.shape.clone(),
            range: entry.range.clone(),
        })
    }

    /// The name it has in its file.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// How its elements are stored.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Outermost dimension first, as in torch: a matrix is `[rows, cols]`. Empty for a scalar.
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Its bytes: [`Tensor::rows`] rows of [`Format::row_bytes`]`(cols)` each, little-endian, at no
    /// particular alignment.
    pub fn bytes(&self) -> &[u8] {
        &self.file.bytes()[self.range.clone()]
    }

    /// The same tensor with its elements stored another way: `bytes`, in memory.
    pub(crate) fn replaced(&self, format: Format, bytes: Vec<u8>) -> Self {
        let range = 0..bytes.len();
        let file = Arc::new(Mapping::from_bytes(self.file.path().to_owned(), bytes));
        Self { file, name: Arc::clone(&self.name), format, shape: self.shape.clone(), range }
    }

    /// A matrix of these of its rows, copied.
    pub(crate) fn select_rows(&self, rows: &[u32]) -> Self {
        let row_bytes = self.bytes().len() / self.rows();
        let mut bytes = Vec::with_capacity(rows.len() * row_bytes);
        for &row in rows {
            bytes.extend_from_slice(&self.bytes()[row as usize * row_bytes..][..row_bytes]);
        }
        Self { shape: vec![rows.len(), self.cols()], ..self.replaced(self.format, bytes) }
    }

    /// Says that its bytes were copied: the memory their pages take may go to others. They can still be read.
    pub(crate) fn release(&self) {
        self.file.release(self.range.clone());
    }

    /// Elements in all.
    pub fn num_elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// All dimensions but the last, multiplied; 1 for a vector or a scalar.
    pub fn rows(&self) -> usize {
        let outer = self.shape.len().saturating_sub(1);
        self.shape[..outer].iter().product()
    }

    /// The last dimension, along which elements are contiguous; 1 for a scalar.
    pub fn cols(&self) -> usize {
        self.shape.last().copied().unwrap_or(1)
    }

    /// All elements as f32, row after row. Meant for norms, biases and tests, not for large matrices.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.num_elements()];
        specgen_kernels::dequantize(self.format, self.bytes(), &mut values);
        values
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {:?} {:?})", self.name, self.format, self.shape)
    }
}
