//! Sixteen quantised weight rows at a time: each block is unpacked once, for all activation rows.
//!
//! Lanes are weight rows. A *line* holds 4 consecutive elements of each of 16 rows; a byte dot product
//! of a line with the 4 elements of an activation row, the same for every lane, needs no sum across
//! lanes, and the f32 chain over blocks runs for 16 outputs side by side.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of each function covers its body")]

use crate::activations::Quantized;
use crate::isa::{Avx2, Avx512, IntIsa, Level};
use crate::matmul::{Output, TILE};
use crate::unpack::{Layout, Q2K, Q3K, Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};
use crate::{Format, MatrixRef};

/// Activation rows that share the weights of one pass; so many that their integers stay in cache.
const MAX_ROWS: usize = 128;

/// One block of 16 rows, unpacked.
#[repr(C, align(64))]
pub(crate) struct Tile {
    /// Lines in ascending order of elements, unsigned bytes.
    pub(crate) lines: [[u8; 64]; 64],
    /// Scales of sub-blocks.
    pub(crate) scales: [[i32; 16]; 16],
    /// Minimums of two neighbouring sub-blocks, as pairs of i16.
    pub(crate) mins: [[i32; 16]; 8],
    /// The blocks' scales.
    pub(crate) d: [f32; 16],
    /// `dmin` or `m`.
    pub(crate) m: [f32; 16],
}

impl Tile {
    const fn new() -> Self {
        Self { lines: [[0; 64]; 64], scales: [[0; 16]; 16], mins: [[0; 16]; 8], d: [0.0; 16], m: [0.0; 16] }
    }
}

/// Multiplies tiles `tiles` of `part` (rows `16 t..16 t + 16`) with all rows of `x`, into the columns
/// of `out` from `column + 16 t` on.
///
/// # Safety
/// The CPU has `level`, which isn't `Portable`. `x` has blocks as `part` has, and its rows and columns; `out` has the rows of `x` and the columns
/// named, which nobody else touches meanwhile.
pub(crate) unsafe fn multiply(
    level: Level,
    part: &MatrixRef<'_>,
    tiles: std::ops::Range<usize>,
    x: &Quantized,
    m: usize,
    out: &Output,
    column: usize,
) {
    let row_bytes = part.row_bytes();
    let whole = tiles.end.min(part.rows() / TILE);
    let job = Job { row_bytes, cols: part.cols(), x, m, out };
    if tiles.start < whole {
        let weights = &part.bytes()[tiles.start * TILE * row_bytes..whole * TILE * row_bytes];
        run_format(part.format(), level, &job, weights, TILE, column + tiles.start * TILE);
    }
    if whole < tiles.end {
        // The last rows do not fill a tile: a copy does, with zeros.
        let rows = part.rows() - whole * TILE;
        let mut weights = vec![0; TILE * row_bytes];
        weights[..rows * row_bytes].copy_from_slice(&part.bytes()[whole * TILE * row_bytes..]);
        run_format(part.format(), level, &job, &weights, rows, column + whole * TILE);
    }
}

struct Job<'a> {
    row_bytes: usize,
    cols: usize,
    x: &'a Quantized,
    m: usize,
    out: &'a Output,
}

unsafe fn run_format(
    format: Format,
    level: Level,
    job: &Job<'_>,
    weights: &[u8],
    rows: usize,
    column: usize,
) {
    match format {
        Format::Q4_0 => run::<Q4_0>(level, job, weights, rows, column),
        Format::Q4_1 => run::<Q4_1>(level, job, weights, rows, column),
        Format::Q5_0 => run::<Q5_0>(level, job, weights, rows, column),
        Format::Q5_1 => run::<Q5_1>(level, job, weights, rows, column),
        Format::Q8_0 => run::<Q8_0>(level, job, weights, rows, column),
        Format::Q2_K => run::<Q2K>(level, job, weights, rows, column),
        Format::Q3_K => run::<Q3K>(level, job, weights, rows, column),
        Format::Q4_K => run::<Q4K>(level, job, weights, rows, column),
        Format::Q5_K => run::<Q5K>(level, job, weights, rows, column),
        Format::Q6_K => run::<Q6K>(level, job, weights, rows, column),
        Format::F32 | Format::F16 | Format::BF16 => unreachable!("dense weights have no tiles"),
    }
}

/// Whole tiles in `weights`, the first `rows` outputs of each.
unsafe fn run<L: Layout>(level: Level, job: &Job<'_>, weights: &[u8], rows: usize, column: usize) {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn avx2<L: Layout>(job: &Job<'_>, weights: &[u8], rows: usize, column: usize) {
        tiles::<Avx2, L>(job, weights, rows, column);
    }

    #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn avx512<L: Layout>(job: &Job<'_>, weights: &[u8], rows: usize, column: usize) {
        tiles::<Avx512, L>(job, weights, rows, column);
    }

    match level {
        Level::Avx512 => avx512::<L>(job, weights, rows, column),
        Level::Avx2 => avx2::<L>(job, weights, rows, column),
        Level::Portable => unreachable!("`portable.rs` does these"),
    }
}

#[inline(always)]
unsafe fn tiles<S: IntIsa, L: Layout>(job: &Job<'_>, weights: &[u8], rows: usize, column: usize) {
    let mut tile = Tile::new();
    let mut acc = [[0.0f32; TILE]; MAX_ROWS];
    let tile_bytes = TILE * job.row_bytes;
    for first in (0..job.m).step_by(MAX_ROWS) {
        let m = (job.m - first).min(MAX_ROWS);
        for (t, weights) in weights.chunks_exact(tile_bytes).enumerate() {
            acc[..m].fill([0.0; TILE]);
            for b in 0..job.cols / L::LEN {
                // The next tile follows in memory; its bytes come in as this one's are used.
                let ahead = weights.as_ptr().wrapping_add(tile_bytes + b * TILE * L::BYTES);
                L::unpack::<S>(weights.as_ptr().add(b * L::BYTES), job.row_bytes, ahead, &mut tile);
                block::<S, L>(job, &tile, b, first, &mut acc[..m]);
            }
            for (r, acc) in acc[..m].iter().enumerate() {
                job.out.set_row(first + r, column + t * TILE, &acc[..rows]);
            }
        }
    }
}

/// One block of weights for `acc.len()` activation rows from `first` on.
#[inline(always)]
unsafe fn block<S: IntIsa, L: Layout>(
    job: &Job<'_>,
    tile: &Tile,
    b: usize,
    first: usize,
    acc: &mut [[f32; TILE]],
) {
    let mut r = 0;
    if S::ROWS >= 8 {
        while r + 8 <= acc.len() {
            group::<S, L, 8>(job, tile, b, first + r, &mut acc[r..r + 8]);
            r += 8;
        }
    }
    if S::ROWS >= 4 {
        while r + 4 <= acc.len() {
            group::<S, L, 4>(job, tile, b, first + r, &mut acc[r..r + 4]);
            r += 4;
        }
    }
    if S::ROWS >= 2 {
        while r + 2 <= acc.len() {
            group::<S, L, 2>(job, tile, b, first + r, &mut acc[r..r + 2]);
            r += 2;
        }
    }
    while r < acc.len() {
        group::<S, L, 1>(job, tile, b, first + r, &mut acc[r..r + 1]);
        r += 1;
    }
}

/// `R` activation rows together: each line is loaded once. See `definition.rs` for the arithmetic.
#[inline(always)]
unsafe fn group<S: IntIsa, L: Layout, const R: usize>(
    job: &Job<'_>,
    tile: &Tile,
    b: usize,
    row: usize,
    acc: &mut [[f32; TILE]],
) {
    let x = job.x;
    // Rows of a block lie together: all of them at fixed distances from one address.
    let at = b * job.m + row;
    let q = x.q.as_ptr().add(at * L::LEN);
    let dx = x.d.as_ptr().add(at);
    let d = S::load_f(tile.d.as_ptr());
    if L::LEN == 32 {
        let mut s = [S::splat(0); R];
        for r in 0..R {
            s[r] = S::splat(-L::OFFSET * i32::from(*x.sums.as_ptr().add(at + r)));
        }
        for (l, line) in tile.lines[..8].iter().enumerate() {
            let line = S::load(line.as_ptr());
            for r in 0..R {
                let x = q.add(r * L::LEN + 4 * l).cast::<[i8; 4]>().read();
                s[r] = if L::WIDE { S::dot4::<true>(s[r], line, x) } else { S::dot4::<false>(s[r], line, x) };
            }
        }
        for r in 0..R {
            let dx = *dx.add(r);
            let mut a = S::load_f(acc[r].as_ptr());
            a = S::fma(S::splat_f(dx), S::mul_f(d, S::to_f(s[r])), a);
            if L::MIN {
                let sum = f32::from(*x.sums.as_ptr().add(at + r));
                a = S::fma(S::splat_f(dx * sum), S::load_f(tile.m.as_ptr()), a);
            }
            S::store_f(acc[r].as_mut_ptr(), a);
        }
        return;
    }
    // One sum for each sub-block.
    let sums = if L::SUBS == 16 { &x.sums } else { &x.sums_32 };
    let sums = sums.as_ptr().add(at * L::SUBS);
    let mut total = [S::splat(0); R];
    let lines = 64 / L::SUBS;
    for s in 0..L::SUBS {
        let mut sub = [S::splat(0); R];
        if L::OFFSET != 0 {
            for r in 0..R {
                sub[r] = S::splat(-L::OFFSET * i32::from(*sums.add(r * L::SUBS + s)));
            }
        }
        for l in 0..lines {
            let line = S::load(tile.lines[s * lines + l].as_ptr());
            for r in 0..R {
                let x = q.add(r * L::LEN + 4 * (s * lines + l)).cast::<[i8; 4]>().read();
                sub[r] = S::dot4::<false>(sub[r], line, x);
            }
        }
        let scale = S::load(tile.scales[s].as_ptr().cast());
        for r in 0..R {
            total[r] = S::add(total[r], S::mul(sub[r], scale));
        }
    }
    let dmin = S::load_f(tile.m.as_ptr());
    let mut mins = [S::splat(0); R];
    if L::MIN {
        for p in 0..L::SUBS / 2 {
            let min = S::load(tile.mins[p].as_ptr().cast());
            for r in 0..R {
                mins[r] = S::dot2(mins[r], min, sums.add(r * L::SUBS + 2 * p).cast::<[i16; 2]>().read());
            }
        }
    }
    for r in 0..R {
        let dx = S::splat_f(*dx.add(r));
        let i = S::to_f(total[r]);
        let t = if L::MIN { S::fms(d, i, S::mul_f(dmin, S::to_f(mins[r]))) } else { S::mul_f(d, i) };
        let a = S::fma(dx, t, S::load_f(acc[r].as_ptr()));
        S::store_f(acc[r].as_mut_ptr(), a);
    }
}
