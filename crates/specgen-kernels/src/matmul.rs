//! Activations times weights, split over a team by output rows.
#![allow(unsafe_code)]

use crate::definition::{dot_dense, dot_quantized};
use crate::{Activations, MatrixRef, Team};

/// `out = x * weights^T` for several weight matrices side by side.
///
/// `x` is `[m, cols]`, each part `[rows_i, cols]`, `out` `[m, sum of rows_i]` row-major: a row of
/// `out` holds its product with the first part, then with the second. Parts may differ in format.
/// A number depends on its weight row and its activation row only (see `definition.rs`).
///
/// # Panics
/// If a part's `cols` is not `x`'s, or `out` has another length.
pub fn matmul(team: &Team, parts: &[MatrixRef<'_>], x: &mut Activations<'_>, out: &mut [f32]) {
    let (m, cols) = (x.rows(), x.cols());
    let width: usize = parts.iter().map(MatrixRef::rows).sum();
    assert_eq!(out.len(), m * width, "output of {m} rows by {width}");
    for part in parts {
        assert_eq!(part.cols(), cols, "in features of a weight matrix and of its input");
        x.prepare(part.format().block_len());
    }
    let x = &*x;
    let out = Output { data: out.as_mut_ptr(), width };
    team.run(|worker, workers| {
        let mut first = 0;
        for part in parts {
            let (start, end) = (part.rows() * worker / workers, part.rows() * (worker + 1) / workers);
            for row in start..end {
                for r in 0..m {
                    let value = row_product(part, row, x, r);
                    // SAFETY: `r < m` and `first + row < width`; this worker alone has column `row`.
                    unsafe { out.set(r, first + row, value) };
                }
            }
            first += part.rows();
        }
    });
}

/// One output, by definition.
fn row_product(part: &MatrixRef<'_>, row: usize, x: &Activations<'_>, r: usize) -> f32 {
    let cols = part.cols();
    match part.format().block_len() {
        1 => dot_dense(part.format(), part.row(row), &x.values()[r * cols..(r + 1) * cols]),
        len => dot_quantized(part.format(), part.row(row), x.quantized(len).row(r, cols)),
    }
}

/// The output matrix, written by all workers at different columns.
struct Output {
    data: *mut f32,
    width: usize,
}

// SAFETY: workers write disjoint elements and nobody reads before they have joined.
unsafe impl Sync for Output {}

impl Output {
    /// # Safety
    /// The element must exist, and no other thread may touch it.
    unsafe fn set(&self, row: usize, column: usize, value: f32) {
        // SAFETY: the caller vouches for it.
        unsafe { self.data.add(row * self.width + column).write(value) };
    }
}
