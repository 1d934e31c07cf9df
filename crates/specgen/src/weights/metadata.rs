//! Typed key-value metadata, as GGUF files carry it.

use std::collections::BTreeMap;

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any unsigned or non-negative integer type.
    Uint(u64),
    /// A negative integer.
    Int(i64),
    /// f32 or f64.
    Float(f64),
    /// bool.
    Bool(bool),
    /// A string; invalid UTF-8 is kept as bytes, since old vocabularies hold it.
    String(Vec<u8>),
    /// An array of integers of any width.
    Ints(Vec<i64>),
    /// An array of floats.
    Floats(Vec<f64>),
    /// An array of booleans.
    Bools(Vec<bool>),
    /// An array of strings.
    Strings(Vec<Vec<u8>>),
    /// An array of arrays.
    Arrays(Vec<Value>),
}

/// A file's metadata, by key. Every getter answers `None` where the key is absent or of another type.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata(pub BTreeMap<String, Value>);

impl Metadata {
    /// The value under `key`.
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.0.get(key)
    }

    /// A non-negative integer.
    pub fn uint(&self, key: &str) -> Option<u64> {
        match self.get(key)? {
            Value::Uint(v) => Some(*v),
            _ => None,
        }
    }

    /// A float, or an integer as one.
    pub fn float(&self, key: &str) -> Option<f64> {
        match self.get(key)? {
            Value::Float(v) => Some(*v),
            Value::Uint(v) => Some(*v as f64),
            Value::Int(v) => Some(*v as f64),
            _ => None,
        }
    }

    /// A boolean.
    pub fn bool(&self, key: &str) -> Option<bool> {
        match self.get(key)? {
            Value::Bool(v) => Some(*v),
            _ => None,
        }
    }

    /// A string that is valid UTF-8.
    pub fn str(&self, key: &str) -> Option<&str> {
        match self.get(key)? {
            Value::String(v) => std::str::from_utf8(v).ok(),
            _ => None,
        }
    }

    /// An array of integers.
    pub fn ints(&self, key: &str) -> Option<&[i64]> {
        match self.get(key)? {
            Value::Ints(v) => Some(v),
            _ => None,
        }
    }

    /// An array of floats.
    pub fn floats(&self, key: &str) -> Option<&[f64]> {
        match self.get(key)? {
            Value::Floats(v) => Some(v),
            _ => None,
        }
    }

    /// An array of booleans.
    pub fn bools(&self, key: &str) -> Option<&[bool]> {
        match self.get(key)? {
            Value::Bools(v) => Some(v),
            _ => None,
        }
    }

    /// An array of strings, as bytes.
    pub fn strings(&self, key: &str) -> Option<&[Vec<u8>]> {
        match self.get(key)? {
            Value::Strings(v) => Some(v),
            _ => None,
        }
    }
}
