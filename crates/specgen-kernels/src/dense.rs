//! Dense weights (f32, f16, bf16) times f32 activations, in the 16 lanes of `definition.rs`.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of each function covers its body")]

use std::ops::Range;

use half::{bf16, f16};

use crate::definition::LANES;
use crate::element::Element;
use crate::isa::{Isa, Level, dispatch};
use crate::layout::TILE;
use crate::matmul::Output;
use crate::{Format, MatrixRef};

/// Activation rows that share the weights of one pass; so many that they stay in cache.
const MAX_ROWS: usize = 32;

/// Weight rows taken together.
const GROUP: usize = 4;

/// Multiplies dense weights: rows `16 t..16 t + 16` for each `t` of `tiles`.
///
/// # Safety
/// `x` is `m` rows of the part's `cols`; `out` has `m` rows and the columns, which nobody else
/// touches meanwhile.
pub(crate) unsafe fn multiply(
    level: Level,
    part: &MatrixRef<'_>,
    tiles: Range<usize>,
    x: &[f32],
    m: usize,
    out: &Output,
    column: usize,
) {
    let rows = tiles.start * TILE..(tiles.end * TILE).min(part.rows());
    match part.format() {
        Format::F32 => run::<f32>(level, part, rows, x, m, out, column),
        Format::F16 => run::<f16>(level, part, rows, x, m, out, column),
        Format::BF16 => run::<bf16>(level, part, rows, x, m, out, column),
        format => unreachable!("{format:?} is not dense"),
    }
}

unsafe fn run<E: Element>(
    level: Level,
    part: &MatrixRef<'_>,
    rows: Range<usize>,
    x: &[f32],
    m: usize,
    out: &Output,
    column: usize,
) {
    dispatch!(level, |S, E: Element| fn(
        part: &MatrixRef<'_>, rows: Range<usize>, x: &[f32], m: usize, out: &Output, column: usize,
    ) {
        let cols = part.cols();
        for first in (0..m).step_by(MAX_ROWS) {
            let m = (m - first).min(MAX_ROWS);
            let x = &x[first * cols..(first + m) * cols];
            let mut row = rows.start;
            while row + GROUP <= rows.end {
                group::<S, E, GROUP>(part, row, x, m, first, out, column);
                row += GROUP;
            }
            while row < rows.end {
                group::<S, E, 1>(part, row, x, m, first, out, column);
                row += 1;
            }
        }
    });
}

/// `N` weight rows from `row` on with `m` activation rows, `out`'s rows from `first` on.
#[inline(always)]
unsafe fn group<S: Isa, E: Element, const N: usize>(
    part: &MatrixRef<'_>,
    row: usize,
    x: &[f32],
    m: usize,
    first: usize,
    out: &Output,
    column: usize,
) {
    // Of all the rows from there on: a pointer to one row may not be used for the next.
    let w = part.bytes()[row * part.row_bytes()..].as_ptr();
    let cols = part.cols();
    let mut r = 0;
    if S::ROWS >= 8 {
        // Where that many sums fit the registers; else one row's do.
        while r + 4 <= m {
            let products = products::<S, E, N, 4>(w, part.row_bytes(), x.as_ptr().add(r * cols), cols);
            for (i, products) in products.iter().enumerate() {
                out.set_row(first + r + i, column + row, products);
            }
            r += 4;
        }
    }
    while r < m {
        let products = products::<S, E, N, 1>(w, part.row_bytes(), x.as_ptr().add(r * cols), cols);
        out.set_row(first + r, column + row, &products[0]);
        r += 1;
    }
}

#[inline(always)]
unsafe fn products<S: Isa, E: Element, const N: usize, const R: usize>(
    w: *const u8,
    row_bytes: usize,
    x: *const f32,
    cols: usize,
) -> [[f32; N]; R] {
    let mut acc = [[S::splat_f(0.0); N]; R];
    let whole = cols / LANES * LANES;
    let mut k = 0;
    while k < whole {
        let mut xs = [S::splat_f(0.0); R];
        for r in 0..R {
            xs[r] = S::load_f(x.add(r * cols + k));
        }
        for n in 0..N {
            let at = w.add(n * row_bytes + k * size_of::<E>());
            S::prefetch(at.wrapping_add(N * row_bytes));
            let w = E::load::<S>(at);
            for r in 0..R {
                acc[r][n] = S::fma(w, xs[r], acc[r][n]);
            }
        }
        k += LANES;
    }
    if whole < cols {
        let mut xs = [S::splat_f(0.0); R];
        for r in 0..R {
            let mut padded = [0.0f32; LANES];
            padded[..cols - whole]
                .copy_from_slice(std::slice::from_raw_parts(x.add(r * cols + whole), cols - whole));
            xs[r] = S::load_f(padded.as_ptr());
        }
        for n in 0..N {
            let mut padded = [0u8; 4 * LANES];
            let bytes = (cols - whole) * size_of::<E>();
            let rest = std::slice::from_raw_parts(w.add(n * row_bytes + whole * size_of::<E>()), bytes);
            padded[..bytes].copy_from_slice(rest);
            let w = E::load::<S>(padded.as_ptr());
            for r in 0..R {
                acc[r][n] = S::fma(w, xs[r], acc[r][n]);
            }
        }
    }
    let mut sums = [[0.0; N]; R];
    for r in 0..R {
        for n in 0..N {
            sums[r][n] = S::sum_f(acc[r][n]);
        }
    }
    sums
}
