//! Quantised weights repacked into tiles (see `layout.rs`), once, when a model is loaded.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use half::f16;

use crate::arena::{Arena, Bytes};
use crate::blocks::Block;
use crate::layout::{LINE, STEP, Shape, TILE};
use crate::{Format, MatrixRef, Team};

/// A quantised weight matrix `[rows, cols]` (rows = out features), in tiles.
#[derive(Debug)]
pub struct Packed {
    format: Format,
    rows: usize,
    cols: usize,
    bytes: Bytes,
}

impl Packed {
    /// Repacks `matrix`, whose bytes aren't needed afterwards. The values and their products stay the same, bit for bit.
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
        let tiles = rows.div_ceil(TILE);
        let mut bytes = arena.alloc(tiles * tile_bytes)?;
        if tile_bytes > 0 {
            let workers = team.threads();
            let mut rest = &mut *bytes;
            let shares: Vec<_> = (0..workers)
                .map(|worker| {
                    let (first, end) = (tiles * worker / workers, tiles * (worker + 1) / workers);
                    let share = rest.split_off_mut(..(end - first) * tile_bytes).expect("shares add up");
                    Mutex::new((first, share))
                })
                .collect();
            team.run(|worker, _| {
                let mut share = shares[worker].lock().unwrap_or_else(PoisonError::into_inner);
                let (first, share) = &mut *share;
                for (t, tile) in share.chunks_exact_mut(tile_bytes).enumerate() {
                    pack_tile(matrix, *first + t, tile);
                }
            });
        }
        Ok(Self { format, rows, cols, bytes })
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
        crate::read(team, &self.bytes);
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
    let shape = Shape::of(format);
    let (head, body) = to.split_at_mut(shape.body_at(matrix.cols() / shape.block_len));
    let mut block = Block::new();
    for n in 0..TILE.min(matrix.rows() - tile * TILE) {
        let blocks = matrix.row(tile * TILE + n).chunks_exact(format.block_bytes());
        let places = head.chunks_exact_mut(shape.head()).zip(body.chunks_exact_mut(shape.body()));
        for (bytes, (head, body)) in blocks.zip(places) {
            block.read(format, bytes);
            let halves = |x| f16::from_f32_const(x).to_le_bytes(); // exact: it was one in the file
            head[2 * n..2 * n + 2].copy_from_slice(&halves(block.d));
            if shape.min {
                head[2 * (TILE + n)..2 * (TILE + n) + 2].copy_from_slice(&halves(block.m));
            }
            pack_scales(shape, &block, n, body);
            for (q, step) in block
                .q
                .as_chunks::<STEP>()
                .0
                .iter()
                .zip(body[shape.scales()..].chunks_exact_mut(shape.step()))
            {
                pack_step(shape, q, n, step);
            }
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

fn pack_step(shape: Shape, q: &[u8; STEP], n: usize, to: &mut [u8]) {
    for (l, q) in q.as_chunks::<4>().0.iter().enumerate() {
        let low = LINE * (l % shape.low) + 4 * n;
        let shift = l / shape.low * shape.low;
        for (b, q) in q.iter().enumerate() {
            to[low + b] |= (q & ((1u16 << shape.low) - 1) as u8) << shift;
        }
        if shape.high > 0 {
            let lines = 8 / shape.high;
            let high = LINE * (shape.low + l / lines) + 4 * n;
            for (b, q) in q.iter().enumerate() {
                to[high + b] |= q >> shape.low << (shape.high * (l % lines));
            }
        }
    }
}
