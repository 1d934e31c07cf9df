//! Takes integers, strings and metadata values off the front of a GGUF header, never past its end.

use crate::weights::metadata::Value;
use crate::weights::shown;

/// How deep arrays may nest. No known file nests them at all.
const MAX_DEPTH: u32 = 4;
/// The longest key or tensor name, in bytes.
const MAX_NAME: u64 = 65535;

/// A position in the header of a file.
pub(super) struct Cursor<'a> {
    /// The file, up to the longest header accepted.
    window: &'a [u8],
    position: usize,
    file_len: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of `file`; will not read past its first `max_header` bytes.
    pub(super) fn new(file: &'a [u8], max_header: usize) -> Self {
        Self { window: &file[..file.len().min(max_header)], position: 0, file_len: file.len() }
    }

    /// Bytes taken so far.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    fn left(&self) -> u64 {
        (self.window.len() - self.position) as u64
    }

    /// Says why `wanted` more bytes are not to be had.
    fn too_far(&self, wanted: impl std::fmt::Display) -> String {
        let (at, len) = (self.position, self.file_len);
        if self.window.len() < len {
            let max = self.window.len() >> 20;
            return format!(
                "{wanted} at byte {at} make the header longer than {max} MiB; the file is damaged"
            );
        }
        format!("truncated: {wanted} at byte {at} run past the file's end at {len}; download it again")
    }

    /// The next `len` bytes.
    pub(super) fn take(&mut self, len: usize) -> Result<&'a [u8], String> {
        let Some(bytes) = self.window[self.position..].get(..len) else {
            return Err(self.too_far(format_args!("{len} bytes")));
        };
        self.position += len;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        Ok(self.take(N)?.try_into().expect("`take` gives as many bytes as asked for"))
    }

    pub(super) fn u32(&mut self) -> Result<u32, String> {
        self.array().map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self) -> Result<u64, String> {
        self.array().map(u64::from_le_bytes)
    }

    /// Refuses a count of items that, at `min_bytes` each, cannot be in the bytes left.
    pub(super) fn expect_items(&self, count: u64, min_bytes: u64, what: &str) -> Result<(), String> {
        if count > self.left() / min_bytes {
            return Err(self.too_far(format_args!("{count} {what}")));
        }
        Ok(())
    }

    fn string(&mut self) -> Result<&'a [u8], String> {
        let len = self.u64()?;
        self.expect_items(len, 1, "string bytes")?;
        // No longer than the window, so it fits.
        self.take(len as usize)
    }

    /// A key or a tensor's name: UTF-8 of moderate length.
    pub(super) fn name(&mut self) -> Result<String, String> {
        let bytes = self.string()?;
        if bytes.len() as u64 > MAX_NAME {
            return Err(format!(
                "{} bytes long, at most {MAX_NAME} are accepted; the file is damaged",
                bytes.len()
            ));
        }
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.to_owned()),
            Err(_) => {
                let lossy = String::from_utf8_lossy(bytes);
                Err(format!("`{}` is not UTF-8; the file is damaged", shown(&lossy)))
            }
        }
    }

    /// A metadata value, its type first.
    pub(super) fn value(&mut self) -> Result<Value, String> {
        match self.u32()? {
            8 => Ok(Value::String(self.string()?.to_vec())),
            9 => self.array_value(1),
            id => {
                let kind = Scalar::from_id(id)?;
                kind.one(self.take(kind.size())?)
            }
        }
    }

    /// An array: its element type, its length, its elements.
    fn array_value(&mut self, depth: u32) -> Result<Value, String> {
        if depth > MAX_DEPTH {
            return Err(format!("arrays nested deeper than {MAX_DEPTH}; the file is damaged"));
        }
        let id = self.u32()?;
        let count = self.u64()?;
        match id {
            8 => {
                self.expect_items(count, 8, "strings")?;
                (0..count).map(|_| Ok(self.string()?.to_vec())).collect::<Result<_, _>>().map(Value::Strings)
            }
            9 => {
                self.expect_items(count, 12, "arrays")?;
                (0..count).map(|_| self.array_value(depth + 1)).collect::<Result<_, _>>().map(Value::Arrays)
            }
            id => {
                let kind = Scalar::from_id(id)?;
                self.expect_items(count, kind.size() as u64, "array elements")?;
                // No longer than the window, so neither cast nor product overflows.
                kind.many(self.take(count as usize * kind.size())?)
            }
        }
    }
}

/// The metadata types of fixed size.
#[derive(Clone, Copy)]
enum Scalar {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    U64,
    I64,
    F64,
}

impl Scalar {
    fn from_id(id: u32) -> Result<Self, String> {
        Ok(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return Err(format!("value type {id} is unknown, wanted 0 to 12; the file is damaged")),
        })
    }

    fn size(self) -> usize {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 => 8,
        }
    }

    /// The value of `raw`, which is [`Scalar::size`] bytes.
    fn one(self, raw: &[u8]) -> Result<Value, String> {
        Ok(match self {
            Self::F32 | Self::F64 => Value::Float(self.float(raw)),
            Self::Bool => Value::Bool(boolean(raw[0])?),
            Self::U64 => Value::Uint(u64::from_le_bytes(sized(raw))),
            _ => {
                let int = self.int(raw);
                u64::try_from(int).map_or(Value::Int(int), Value::Uint)
            }
        })
    }

    /// The values of `raw`, one after the other.
    fn many(self, raw: &[u8]) -> Result<Value, String> {
        let each = raw.chunks_exact(self.size());
        Ok(match self {
            Self::F32 | Self::F64 => Value::Floats(each.map(|raw| self.float(raw)).collect()),
            Self::Bool => Value::Bools(raw.iter().map(|&raw| boolean(raw)).collect::<Result<_, _>>()?),
            Self::U64 => {
                let int = |raw| {
                    let value = u64::from_le_bytes(sized(raw));
                    i64::try_from(value)
                        .map_err(|_| format!("an array element of {value}, at most 2^63 - 1 is accepted"))
                };
                Value::Ints(each.map(int).collect::<Result<_, _>>()?)
            }
            _ => Value::Ints(each.map(|raw| self.int(raw)).collect()),
        })
    }

    /// Any integer type but u64.
    fn int(self, raw: &[u8]) -> i64 {
        match self {
            Self::I8 => i8::from_le_bytes(sized(raw)).into(),
            Self::U16 => u16::from_le_bytes(sized(raw)).into(),
            Self::I16 => i16::from_le_bytes(sized(raw)).into(),
            Self::U32 => u32::from_le_bytes(sized(raw)).into(),
            Self::I32 => i32::from_le_bytes(sized(raw)).into(),
            Self::I64 => i64::from_le_bytes(sized(raw)),
            _ => raw[0].into(),
        }
    }

    fn float(self, raw: &[u8]) -> f64 {
        match self {
            Self::F64 => f64::from_le_bytes(sized(raw)),
            _ => f32::from_le_bytes(sized(raw)).into(),
        }
    }
}

fn boolean(raw: u8) -> Result<bool, String> {
    match raw {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(format!("a boolean of {other}, wanted 0 or 1; the file is damaged")),
    }
}

fn sized<const N: usize>(raw: &[u8]) -> [u8; N] {
    raw.try_into().expect("a scalar is cut to its own size")
}
