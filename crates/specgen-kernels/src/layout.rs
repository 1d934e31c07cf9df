//! How packed weights lie in memory, and how a kernel reads them.
//!
//! Sixteen weight rows make a *tile*, rows `16 t..16 t + 16` of the matrix, the last filled up with zeros. A
//! *line* is 64 bytes: 4 consecutive elements of each of the 16 rows, byte `4 n + b` for element `b` of row
//! `n`. It is at once an operand of a byte dot product whose lanes are rows, and a row of an AMX tile. Tiles
//! follow each other:
//!
//! - head: for each block the 16 scales `d` (f16), and where the format has them the 16 minimums `m`;
//!   padded to whole lines;
//! - body: for each block of 256 the sub-blocks' scales (see [`Shape::scales`]), then for each 32 elements
//!   their low bits and their high bits. Low bits of 4: byte of line `i` holds those of lines `i` and `i +
//!   4`. Of 2: lines `i`, `i + 2`, `i + 4`, `i + 6`, from the lowest bits up. High bits: one bit a line from
//!   the lowest up; of 2, four lines a byte.
//!
//! It is the file's bits in another order, but that 6-bit scales and minimums get whole bytes (3 % more for
//! Q4_K), which spares their unpacking; and one stream for a thread to read from end to end.
#![allow(unsafe_code)]

use crate::Format;
use crate::isa::Isa;

/// Weight rows of a tile.
pub(crate) const TILE: usize = 16;
/// Bytes of a line.
pub(crate) const LINE: usize = 64;
/// Elements that are unpacked together: 8 lines.
pub(crate) const STEP: usize = 32;

/// What distinguishes the quantised formats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    /// Elements of a block.
    pub(crate) block_len: usize,
    /// Sub-blocks with scales of their own.
    pub(crate) subs: usize,
    /// Whether blocks have a minimum.
    pub(crate) min: bool,
    /// What is taken from every stored integer.
    pub(crate) offset: i32,
    /// Low bits of an element.
    pub(crate) low: usize,
    /// Its bits above them.
    pub(crate) high: usize,
}

impl Shape {
    /// The shape of a quantised format.
    pub(crate) const fn of(format: Format) -> Self {
        let (subs, min, low, high) = match format {
            Format::Q4_0 => (1, false, 4, 0),
            Format::Q4_1 => (1, true, 4, 0),
            Format::Q5_0 => (1, false, 4, 1),
            Format::Q5_1 => (1, true, 4, 1),
            Format::Q8_0 => (1, false, 8, 0),
            Format::Q2_K => (16, true, 2, 0),
            Format::Q3_K => (16, false, 2, 1),
            Format::Q4_K => (8, true, 4, 0),
            Format::Q5_K => (8, true, 4, 1),
            Format::Q6_K => (16, false, 4, 2),
            Format::F32 | Format::F16 | Format::BF16 => panic!("dense weights have no blocks"),
        };
        let offset = crate::blocks::offset(format);
        Self { block_len: format.block_len(), subs, min, offset, low, high }
    }

    /// Bytes of a block in the head.
    pub(crate) const fn head(self) -> usize {
        if self.min { 2 * 2 * TILE } else { 2 * TILE }
    }

    /// Bytes of a block's scales in the body. Sixteen sub-blocks: a byte each, rows side by side; with
    /// minimums the scale is its low half, the minimum the high one. Eight: a byte each likewise, then the
    /// minimums, two neighbouring sub-blocks' side by side (`2 n`, `2 n + 1`).
    pub(crate) const fn scales(self) -> usize {
        if self.subs == 1 { 0 } else { 16 * TILE }
    }

    /// Bytes of 32 elements.
    pub(crate) const fn step(self) -> usize {
        LINE * (self.low + self.high)
    }

    /// Bytes of a block in the body.
    pub(crate) const fn body(self) -> usize {
        self.scales() + self.block_len / STEP * self.step()
    }

    /// Where the body of a tile of `blocks` begins.
    pub(crate) const fn body_at(self, blocks: usize) -> usize {
        (blocks * self.head()).next_multiple_of(LINE)
    }

    /// Bytes of a tile of `blocks`.
    pub(crate) const fn tile(self, blocks: usize) -> usize {
        self.body_at(blocks) + blocks * self.body()
    }
}

/// A quantised format, as a type.
pub(crate) trait Layout {
    const FORMAT: Format;
    const SHAPE: Shape = Shape::of(Self::FORMAT);
}

macro_rules! layouts {
    ($($format:ident),*) => {
        $(
            #[allow(non_camel_case_types, reason = "the field writes it so")]
            pub(crate) struct $format;
            impl Layout for $format {
                const FORMAT: Format = Format::$format;
            }
        )*

        /// Calls `$f::<L>` with `L` for a quantised format.
        macro_rules! with_layout {
            ($value:expr, $call:ident, $args:tt) => {
                match $value {
                    $(Format::$format => $call!($crate::layout::$format, $args),)*
                    Format::F32 | Format::F16 | Format::BF16 => unreachable!("dense weights have no tiles"),
                }
            };
        }
        pub(crate) use with_layout;
    };
}
layouts!(Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K);

/// The 8 lines of 32 elements, as unsigned bytes.
///
/// # Safety
/// A step of `L` lies at `from`, and the CPU has what `S` needs.
#[inline(always)]
pub(crate) unsafe fn lines<S: Isa, L: Layout>(from: *const u8) -> [S::I; 8] {
    let shape = L::SHAPE;
    // SAFETY: a step is `low + high` lines, and no other is read.
    unsafe {
        let mut lines = [S::splat(0); 8];
        let per_byte = 8 / shape.low;
        for i in 0..shape.low {
            let packed = S::load(from.add(LINE * i));
            for j in 0..per_byte {
                let v = if j == 0 { packed } else { S::shr(packed, (shape.low * j) as i32) };
                lines[i + shape.low * j] = if per_byte == 1 { v } else { mask::<S>(v, (1 << shape.low) - 1) };
            }
        }
        for i in 0..shape.high {
            let packed = S::load(from.add(LINE * (shape.low + i)));
            let lines_here = 8 / shape.high;
            for j in 0..lines_here {
                // From bit `high * j` of each byte to the place above the low bits.
                let up = shape.low as i32 - (shape.high * j) as i32;
                let v = if up < 0 { S::shr(packed, -up) } else { S::shl(packed, up) };
                let bits = mask::<S>(v, ((1 << shape.high) - 1) << shape.low);
                let line = &mut lines[lines_here * i + j];
                *line = S::or(*line, bits);
            }
        }
        lines
    }
}

/// `v & bits`, the same bits in every byte.
///
/// # Safety
/// The CPU has what `S` needs.
#[inline(always)]
unsafe fn mask<S: Isa>(v: S::I, bits: u32) -> S::I {
    // SAFETY: the caller's contract.
    unsafe { S::and(v, S::splat((bits * 0x0101_0101).cast_signed())) }
}
