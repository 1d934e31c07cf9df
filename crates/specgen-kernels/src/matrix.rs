//! A weight matrix as it lies in the file: borrowed bytes with a format and a shape.

use crate::Format;

/// Weights `[rows, cols]` (rows = out features, cols = in features), row-major, in GGUF blocks.
#[derive(Clone, Copy, Debug)]
pub struct MatrixRef<'a> {
    format: Format,
    rows: usize,
    cols: usize,
    row_bytes: usize,
    bytes: &'a [u8],
}

impl<'a> MatrixRef<'a> {
    /// Views `bytes` as `[rows, cols]` weights, or `None` where `cols` is not whole blocks or the
    /// sizes do not agree.
    pub fn new(format: Format, rows: usize, cols: usize, bytes: &'a [u8]) -> Option<Self> {
        let row_bytes = format.row_bytes(cols)?;
        (rows.checked_mul(row_bytes)? == bytes.len()).then_some(Self { format, rows, cols, row_bytes, bytes })
    }

    /// The storage format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Out features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// In features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        self.row_bytes
    }

    /// All rows.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes of row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&self, row: usize) -> &'a [u8] {
        &self.bytes[row * self.row_bytes..(row + 1) * self.row_bytes]
    }
}
