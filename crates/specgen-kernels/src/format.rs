//! The storage formats of a weight row: how many elements share a block, and how many bytes it takes.

/// How the elements of a tensor are stored. Names and layouts are those of GGUF.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
#[allow(non_camel_case_types, reason = "the field writes them so")]
#[non_exhaustive]
pub enum Format {
    F32,
    F16,
    BF16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2_K,
    Q3_K,
    Q4_K,
    Q5_K,
    Q6_K,
}

impl Format {
    /// Elements in a block.
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::BF16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 => 32,
            Self::Q2_K | Self::Q3_K | Self::Q4_K | Self::Q5_K | Self::Q6_K => 256,
        }
    }

    /// Bytes in a block.
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
            Self::Q2_K => 84,
            Self::Q3_K => 110,
            Self::Q4_K => 144,
            Self::Q5_K => 176,
            Self::Q6_K => 210,
        }
    }

    /// Bytes of a row of `len` elements, or `None` where `len` is not whole blocks or overflows.
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}
