//! Writes GGUF files: tiny checkpoints for tests, and models embedded in a program.

use specgen_kernels::Format;

use super::gguf;
use super::metadata::Value;

/// Builds a GGUF file in memory.
///
/// ```
/// use specgen::weights::{Format, Value, Weights, gguf_writer::GgufWriter};
///
/// let file = GgufWriter::new()
///     .metadata("general.architecture", Value::String(b"llama".to_vec()))
///     .tensor("output_norm.weight", Format::F32, &[2], &[0; 8])
///     .finish();
/// let weights = Weights::from_bytes("tiny.gguf", file)?;
/// assert_eq!(weights.tensor("output_norm.weight")?.shape(), [2]);
/// # Ok::<(), specgen::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct GgufWriter {
    version: u32,
    alignment: usize,
    metadata_count: u64,
    metadata: Vec<u8>,
    tensor_count: u64,
    declarations: Vec<u8>,
    data: Vec<u8>,
}

impl Default for GgufWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl GgufWriter {
    /// An empty file of version 3, its data aligned to 32 bytes.
    pub fn new() -> Self {
        Self {
            version: 3,
            alignment: 32,
            metadata_count: 0,
            metadata: Vec::new(),
            tensor_count: 0,
            declarations: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Writes another version number (the layout stays that of 2 and 3).
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Aligns tensors to `bytes`, and writes `general.alignment`. Call it before the first tensor.
    pub fn alignment(mut self, bytes: u32) -> Self {
        self.alignment = bytes as usize;
        self.metadata("general.alignment", Value::Uint(bytes.into()))
    }

    /// Adds a metadata pair. Integers and floats take the narrowest of 32 and 64 bits that holds them.
    pub fn metadata(mut self, key: &str, value: Value) -> Self {
        string(&mut self.metadata, key.as_bytes());
        write_value(&mut self.metadata, &value);
        self.metadata_count += 1;
        self
    }

    /// Adds a tensor of `shape`, outermost dimension first, whose rows are `bytes`.
    ///
    /// # Panics
    /// Where `bytes` is not as long as `shape` in `format`; the mistake is in the calling test.
    pub fn tensor(self, name: &str, format: Format, shape: &[usize], bytes: &[u8]) -> Self {
        let cols = shape.last().copied().unwrap_or(1);
        let elements: usize = shape.iter().product();
        let wanted = format.row_bytes(cols).map(|row| elements / cols * row);
        assert_eq!(Some(bytes.len()), wanted, "bytes of tensor {name}, {format:?} {shape:?}");
        let id = gguf::id_of(format).expect("every format is a GGML type");
        self.raw_tensor(name, id, shape, bytes)
    }

    /// Adds a tensor of any GGML type number, unchecked.
    pub fn raw_tensor(mut self, name: &str, type_id: u32, shape: &[usize], bytes: &[u8]) -> Self {
        self.data.resize(self.data.len().next_multiple_of(self.alignment.max(1)), 0);
        string(&mut self.declarations, name.as_bytes());
        self.declarations.extend((shape.len() as u32).to_le_bytes());
        for &dim in shape.iter().rev() {
            self.declarations.extend((dim as u64).to_le_bytes());
        }
        self.declarations.extend(type_id.to_le_bytes());
        self.declarations.extend((self.data.len() as u64).to_le_bytes());
        self.data.extend(bytes);
        self.tensor_count += 1;
        self
    }

    /// The file's bytes.
    pub fn finish(self) -> Vec<u8> {
        let mut file = b"GGUF".to_vec();
        file.extend(self.version.to_le_bytes());
        file.extend(self.tensor_count.to_le_bytes());
        file.extend(self.metadata_count.to_le_bytes());
        file.extend(self.metadata);
        file.extend(self.declarations);
        file.resize(file.len().next_multiple_of(self.alignment.max(1)), 0);
        file.extend(self.data);
        file
    }
}

fn string(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend((bytes.len() as u64).to_le_bytes());
    out.extend(bytes);
}

/// A value's type, then the value; arrays put their element type and length between.
fn write_value(out: &mut Vec<u8>, value: &Value) {
    let mut typed = |id: u32, raw: &[u8]| {
        out.extend(id.to_le_bytes());
        out.extend(raw);
    };
    match value {
        Value::Uint(v) => match u32::try_from(*v) {
            Ok(v) => typed(4, &v.to_le_bytes()),
            Err(_) => typed(10, &v.to_le_bytes()),
        },
        Value::Int(v) => match i32::try_from(*v) {
            Ok(v) => typed(5, &v.to_le_bytes()),
            Err(_) => typed(11, &v.to_le_bytes()),
        },
        Value::Float(v) if is_f32(*v) => typed(6, &(*v as f32).to_le_bytes()),
        Value::Float(v) => typed(12, &v.to_le_bytes()),
        Value::Bool(v) => typed(7, &[u8::from(*v)]),
        Value::String(v) => {
            typed(8, &[]);
            string(out, v);
        }
        _ => {
            typed(9, &[]);
            write_array(out, value);
        }
    }
}

/// An array without its own type number: element type, length, elements.
fn write_array(out: &mut Vec<u8>, value: &Value) {
    let mut head = |id: u32, len: usize| {
        out.extend(id.to_le_bytes());
        out.extend((len as u64).to_le_bytes());
    };
    match value {
        Value::Ints(v) if v.iter().all(|&v| i32::try_from(v).is_ok()) => {
            head(5, v.len());
            out.extend(v.iter().flat_map(|&v| (v as i32).to_le_bytes()));
        }
        Value::Ints(v) => {
            head(11, v.len());
            out.extend(v.iter().flat_map(|v| v.to_le_bytes()));
        }
        Value::Floats(v) if v.iter().all(|&v| is_f32(v)) => {
            head(6, v.len());
            out.extend(v.iter().flat_map(|&v| (v as f32).to_le_bytes()));
        }
        Value::Floats(v) => {
            head(12, v.len());
            out.extend(v.iter().flat_map(|v| v.to_le_bytes()));
        }
        Value::Bools(v) => {
            head(7, v.len());
            out.extend(v.iter().map(|&v| u8::from(v)));
        }
        Value::Strings(v) => {
            head(8, v.len());
            for v in v {
                string(out, v);
            }
        }
        Value::Arrays(v) => {
            head(9, v.len());
            for v in v {
                write_array(out, v);
            }
        }
        // A scalar inside an array of arrays: as an array of one, the nearest thing GGUF can say.
        Value::Uint(_) | Value::Int(_) | Value::Float(_) | Value::Bool(_) | Value::String(_) => {
            let mut one = Vec::new();
            write_value(&mut one, value);
            out.extend(&one[..4]);
            out.extend(1u64.to_le_bytes());
            out.extend(&one[4..]);
        }
    }
}

fn is_f32(value: f64) -> bool {
    f64::from(value as f32).to_bits() == value.to_bits()
}
