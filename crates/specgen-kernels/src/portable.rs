//! Quantised weights on any CPU: one weight row at a time, each block unpacked once for all activation rows.
#![allow(unsafe_code)]

use std::ops::Range;

use crate::MatrixRef;
use crate::activations::Quantized;
use crate::blocks::Block;
use crate::definition::step;
use crate::matmul::Output;

/// Multiplies rows `rows` of `part` with all `m` rows of `x`, into the columns of `out` from
/// `column + rows.start` on.
///
/// # Safety
/// `out` has `m` rows and the columns named, which nobody else touches meanwhile.
pub(crate) unsafe fn multiply(
    part: &MatrixRef<'_>,
    rows: Range<usize>,
    x: &Quantized,
    m: usize,
    out: &Output,
    column: usize,
) {
    let format = part.format();
    let mut block = Block::new();
    let mut acc = vec![0.0f32; m];
    for row in rows {
        acc.fill(0.0);
        for (b, bytes) in part.row(row).chunks_exact(format.block_bytes()).enumerate() {
            block.read(format, bytes);
            let w = block.signed();
            for (r, acc) in acc.iter_mut().enumerate() {
                *acc = step(format, &block, &w, x.block(format.block_len(), m, r, b), *acc);
            }
        }
        for (r, acc) in acc.iter().enumerate() {
            // SAFETY: the caller vouches for the row and the column.
            unsafe { out.set_row(r, column + row, std::slice::from_ref(acc)) };
        }
    }
}
