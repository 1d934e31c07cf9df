//! Quantised weights repacked into tiles (see `layout.rs`), once, when a model is loaded.

use std::io;
use std::sync::Arc;

use half::f16;

use crate::arena::{Arena, Piece};
use crate::blocks::Block;
use crate::layout::{LINE, STEP, Shape, TILE};
use crate::{Format, MatrixRef, Team, read};

/// A quantised weight matrix `[rows, cols]` (rows = out features), in tiles.
#[derive(Debug)]
pub struct Packed {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Piece<u8>,
}

impl Packed {
    /// Repacks `matrix`, whose bytes aren't needed afterwards. The values and their products stay the same,
    /// bit for bit.
    ///
    /// # Errors
    /// Where the system gives no memory.
    ///
    /// # Panics
    /// If the matrix is dense.
    pub fn new(arena: &Arc<Arena>, team: &Team, matrix: &MatrixRef<'_>) -> io::Result<Self> {
        let (format, rows, cols) = (matrix.format(), matrix.rows(), matrix.cols());
        let shape = Shape::of(format);
        let tile_bytes = shape.tile(cols / shape.block_len);
        let mut bytes = arena.alloc(rows.div_ceil(TILE) * tile_bytes)?;
        team.share_rows(tile_bytes, &mut bytes, |tiles, share| {
            for (tile, to) in tiles.zip(share.chunks_exact_mut(tile_bytes)) {
                pack_tile(matrix, tile, to);
            }
        });
        Ok(Self { format, rows, cols, bytes })
    }

    /// Bytes that a matrix `[rows, cols]` in `format` takes once it is packed; as in the file where it is
    /// dense or `cols` isn't whole blocks.
    pub fn bytes_of(format: Format, rows: usize, cols: usize) -> Option<usize> {
        if format.block_len() == 1 || !cols.is_multiple_of(format.block_len()) {
            return format.row_bytes(cols)?.checked_mul(rows);
        }
        rows.div_ceil(TILE).checked_mul(Shape::of(format).tile(cols / format.block_len()))
    }

    /// The format it had.
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

    /// Bytes a matmul reads, and that this takes in memory.
    pub fn bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Reads all bytes and does nothing with them: the time it takes bounds that of a matmul.
    pub fn read(&self, team: &Team) {
        read(team, &self.bytes);
    }

    /// The same in memory from the allocator.
    #[cfg(all(test, unix, not(miri)))]
    pub(crate) fn moved(&self) -> Self {
        Self { bytes: self.bytes.moved(), ..*self }
    }

    /// All tiles.
    pub(crate) fn tiles(&self) -> &[u8] {
        &self.bytes
    }
}

fn pack_tile(matrix: &MatrixRef<'_>, tile: usize, to: &mut [u8]) {
    let format = matrix.format();
    let (shape, len) = (Shape::of(format), format.block_bytes());
    let (head, body) = to.split_at_mut(shape.body_at(matrix.cols() / shape.block_len));
    // A tile's rows follow each other in the file, but are read sixteen side by side: once through in order
    // first.
    let rows = tile * TILE..(tile * TILE + TILE).min(matrix.rows());
    let bytes = &matrix.bytes()[rows.start * matrix.row_bytes()..rows.end * matrix.row_bytes()];
    std::hint::black_box(bytes.iter().step_by(LINE).fold(0u8, |all, b| all ^ b));
    // Rows that are not there stay zeros.
    let count = rows.len();
    let mut rows = [const { Block::new() }; TILE];
    let rows = &mut rows[..count];
    let places = head.chunks_exact_mut(shape.head()).zip(body.chunks_exact_mut(shape.body()));
    for (b, (head, body)) in places.enumerate() {
        for (n, row) in rows.iter_mut().enumerate() {
            row.read(format, &matrix.row(tile * TILE + n)[b * len..]);
            let half = |x| f16::from_f32_const(x).to_le_bytes(); // exact: it was one in the file
            head[2 * n..2 * n + 2].copy_from_slice(&half(row.d));
            if shape.min {
                head[2 * (TILE + n)..2 * (TILE + n) + 2].copy_from_slice(&half(row.m));
            }
            pack_scales(shape, row, n, body);
        }
        for (step, to) in body[shape.scales()..].chunks_exact_mut(shape.step()).enumerate() {
            pack_step(shape, rows, step, to);
        }
    }
}

fn pack_scales(shape: Shape, block: &Block, n: usize, to: &mut [u8]) {
    match (shape.subs, shape.min) {
        (1, _) => {}
        (8, _) => {
            for s in 0..8 {
                to[TILE * s + n] = block.scale[2 * s] as u8;
                to[TILE * 8 + 2 * TILE * (s / 2) + 2 * n + s % 2] = block.min[2 * s] as u8;
            }
        }
        (_, true) => (0..16).for_each(|s| to[TILE * s + n] = (block.scale[s] | block.min[s] << 4) as u8),
        (_, false) => (0..16).for_each(|s| to[TILE * s + n] = block.scale[s] as u8),
    }
}

/// 32 elements of all rows: each line's share of a row is four bytes, which move together.
fn pack_step(shape: Shape, rows: &[Block], step: usize, to: &mut [u8]) {
    let each_byte = |bits: usize| 0x0101_0101 * ((1u32 << bits) - 1);
    let (low_mask, high_mask) = (each_byte(shape.low), each_byte(shape.high));
    for (n, row) in rows.iter().enumerate() {
        let q = row.q.as_chunks::<STEP>().0[step].as_chunks::<4>().0;
        let lines: [u32; 8] = std::array::from_fn(|l| u32::from_le_bytes(q[l]));
        let mut put = |line: usize, bits: u32| {
            to[LINE * line + 4 * n..][..4].copy_from_slice(&bits.to_le_bytes());
        };
        for i in 0..shape.low {
            let planes = (i..8).step_by(shape.low).enumerate();
            put(i, planes.fold(0, |all, (j, l)| all | (lines[l] & low_mask) << (shape.low * j)));
        }
        let lines_a_byte = 8usize.checked_div(shape.high).unwrap_or(0);
        for i in 0..shape.high {
            let planes = lines[lines_a_byte * i..][..lines_a_byte].iter().enumerate();
            let bits = planes.fold(0, |all, (j, l)| all | (l >> shape.low & high_mask) << (shape.high * j));
            put(shape.low + i, bits);
        }
    }
}
