//! Packed tiles times quantised activations: every line of weights is unpacked in registers, for several rows
//! at once.
//!
//! Lanes are weight rows. A byte dot product of a line with 4 elements of an activation row, the same for
//! every lane, needs no sum across lanes, and the f32 chain over blocks runs for 16 outputs side by side. See
//! `definition.rs` for the arithmetic.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of each function covers its body")]

use std::ops::Range;

use crate::activations::{LESS, Quantized};
#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::isa::{Isa, Level, dispatch};
use crate::layout::{LINE, Layout, STEP, TILE, lines, with_layout};
use crate::matmul::Output;
use crate::{Format, Packed};

/// Activation rows that share the weights of one pass; so many that their integers stay in cache.
const MAX_ROWS: usize = 128;
/// How far ahead of use weights are asked for, in bytes: what arrives in about two latencies of a loaded
/// memory.
pub(crate) const AHEAD: usize = 8192;

/// One part of a matmul: all rows of `x` with packed weights, into columns of `out`.
pub(crate) struct Job<'a> {
    pub(crate) weights: &'a Packed,
    pub(crate) x: &'a Quantized,
    /// Rows of `x`.
    pub(crate) m: usize,
    pub(crate) out: &'a Output,
    /// Where in `out` the weights' outputs begin.
    pub(crate) column: usize,
}

/// Multiplies the tiles `tiles`.
///
/// # Safety
/// The CPU has `level`. `x` has blocks and columns as the weights have, and `m` rows; `out` has `m` rows and
/// a column for each weight row from `column` on, and nobody else touches those of these tiles meanwhile.
pub(crate) unsafe fn multiply(level: Level, job: &Job<'_>, tiles: Range<usize>) {
    #[cfg(target_arch = "x86_64")]
    if level == Level::Amx && amx::is_worth(job.weights.format(), job.m) {
        return amx::multiply(job, tiles);
    }
    macro_rules! run {
        ($layout:ty, ()) => {
            run::<$layout>(level, job, tiles)
        };
    }
    with_layout!(job.weights.format(), run, ())
}

unsafe fn run<L: Layout>(level: Level, job: &Job<'_>, tiles: Range<usize>) {
    dispatch!(level, |S, L: Layout| fn(job: &Job<'_>, tiles: Range<usize>) {
        for first in (0..job.m).step_by(MAX_ROWS) {
            for t in tiles.clone() {
                let end = job.m.min(first + MAX_ROWS);
                let mut row = first;
                while row < end {
                    // As many rows together as the registers hold, so that few share an unpacked line with
                    // none. Guards are constants: a kind of CPU has no code for more rows than it can hold.
                    row += match (end - row).min(S::ROWS) {
                        8 if S::ROWS >= 8 => some_rows::<S, L, 8>(job, t, row, row == first),
                        7 if S::ROWS >= 8 => some_rows::<S, L, 7>(job, t, row, row == first),
                        6 if S::ROWS >= 8 => some_rows::<S, L, 6>(job, t, row, row == first),
                        5 if S::ROWS >= 8 => some_rows::<S, L, 5>(job, t, row, row == first),
                        4 if S::ROWS >= 4 => some_rows::<S, L, 4>(job, t, row, row == first),
                        3 if S::ROWS >= 4 => some_rows::<S, L, 3>(job, t, row, row == first),
                        2 if S::ROWS >= 2 => some_rows::<S, L, 2>(job, t, row, row == first),
                        _ => some_rows::<S, L, 1>(job, t, row, row == first),
                    };
                }
            }
        }
    });
}

/// Tile `t` times the `R` rows from `row` on. Weights that come from memory, not from cache, are asked for
/// ahead.
#[inline(always)]
unsafe fn some_rows<S: Isa, L: Layout, const R: usize>(
    job: &Job<'_>,
    t: usize,
    row: usize,
    ask: bool,
) -> usize {
    let shape = L::SHAPE;
    let blocks = job.weights.cols() / shape.block_len;
    let tile_bytes = shape.tile(blocks);
    let tile = job.weights.tiles()[t * tile_bytes..][..tile_bytes].as_ptr();
    let (body, ahead) = (tile.add(shape.body_at(blocks)), tile.wrapping_add(if ask { AHEAD } else { 0 }));
    let mut acc = [S::splat_f(0.0); R];
    for b in 0..blocks {
        let block = Block {
            head: tile.add(b * shape.head()),
            body: body.add(b * shape.body()),
            // Head and body in equal shares, so that every line is asked for.
            ahead: ahead.wrapping_add(b * (shape.head() + shape.body())),
        };
        let x = Rows::<L>::at(job, b, row);
        if shape.subs == 1 {
            simple::<S, L, R>(&block, x, &mut acc);
        } else {
            scaled::<S, L, R>(&block, x, &mut acc);
        }
    }
    let rows = TILE.min(job.weights.rows() - t * TILE);
    for (r, acc) in acc.into_iter().enumerate() {
        let mut outputs = [0.0; TILE];
        S::store_f(outputs.as_mut_ptr(), acc);
        job.out.set_row(row + r, job.column + t * TILE, &outputs[..rows]);
    }
    R
}

/// One block of a tile.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) head: *const u8,
    pub(crate) body: *const u8,
    /// What to ask of the memory meanwhile.
    pub(crate) ahead: *const u8,
}

/// One block of activation rows: they lie together, all at fixed distances from the first.
pub(crate) struct Rows<L> {
    pub(crate) q: *const i8,
    /// Bytes from a line of a row to its next.
    pub(crate) line_stride: usize,
    pub(crate) d: *const f32,
    /// Blocks of 32: `d` times the sum.
    pub(crate) d_sum: *const f32,
    /// Blocks of 256: [`LESS`] times the negated sums over runs of 16.
    less: *const i32,
    /// Blocks of 256: their sums.
    #[cfg_attr(not(target_arch = "x86_64"), allow(dead_code, reason = "read there only"))]
    total: *const i32,
    /// Sums over sub-blocks, or over the whole block where there are none.
    sums: *const i16,
    layout: std::marker::PhantomData<L>,
}

impl<L> Clone for Rows<L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Rows<L> {}

impl<L: Layout> Rows<L> {
    /// Elements of a row that lie together.
    pub(crate) const LINE: usize = Quantized::line(L::SHAPE.block_len);

    pub(crate) unsafe fn at(job: &Job<'_>, block: usize, row: usize) -> Self {
        let sums = if L::SHAPE.subs == 8 { &job.x.sums_32 } else { &job.x.sums };
        let at = block * job.m + row;
        Self {
            q: job.x.q().add(block * job.m * L::SHAPE.block_len + row * Self::LINE),
            line_stride: job.m * Self::LINE,
            d: job.x.d.as_ptr().add(at),
            total: job.x.total.as_ptr().wrapping_add(at),
            less: job.x.less.as_ptr().wrapping_add(at * L::SHAPE.subs),
            d_sum: job.x.d_sum.as_ptr().wrapping_add(at),
            sums: sums.as_ptr().add(at * L::SHAPE.subs),
            layout: std::marker::PhantomData,
        }
    }

    /// Elements `4 i..4 i + 4` of row `r`.
    #[inline(always)]
    unsafe fn four(self, r: usize, i: usize) -> [i8; 4] {
        let (line, i) = (4 * i / Self::LINE, 4 * i % Self::LINE);
        self.q.add(line * self.line_stride + r * Self::LINE + i).cast::<[i8; 4]>().read()
    }

    /// What the offset of the weights takes from the product of sub-block `s` of row `r`.
    #[inline(always)]
    unsafe fn less(self, r: usize, s: usize) -> i32 {
        // A multiplication and a move to a vector register are saved for the format whose scales are the
        // most.
        if L::SHAPE.offset == LESS {
            return *self.less.add(r * L::SHAPE.subs + s);
        }
        -L::SHAPE.offset * i32::from(self.sum(r, s))
    }

    /// The offset of the weights times the sum of a whole block of 256 of row `r`.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn offset(self, r: usize) -> i32 {
        *self.total.add(r) * L::SHAPE.offset
    }

    /// Where the sums of sub-blocks `2 pair` and `2 pair + 1` of row `r` are.
    #[inline(always)]
    #[cfg(target_arch = "x86_64")]
    pub(crate) unsafe fn sum_pair(self, r: usize, pair: usize) -> *const i16 {
        self.sums.add(r * L::SHAPE.subs + 2 * pair)
    }

    /// The sum of sub-block `s` of row `r`.
    #[inline(always)]
    unsafe fn sum(self, r: usize, s: usize) -> i16 {
        *self.sums.add(r * L::SHAPE.subs + s)
    }
}

/// Blocks of 32 with one scale.
#[inline(always)]
unsafe fn simple<S: Isa, L: Layout, const R: usize>(block: &Block, x: Rows<L>, acc: &mut [S::F; R]) {
    prefetch::<S, L, 1>(block, 0, 0);
    let d = S::load_f16(block.head);
    let mut s = [S::splat(0); R];
    if L::SHAPE.offset != 0 {
        for r in 0..R {
            s[r] = S::splat(x.less(r, 0));
        }
    }
    for (l, line) in lines::<S, L>(block.body).into_iter().enumerate() {
        for r in 0..R {
            s[r] = dot::<S, L>(s[r], line, x.four(r, l));
        }
    }
    for r in 0..R {
        acc[r] = S::fma(S::splat_f(*x.d.add(r)), S::mul_f(d, S::to_f(s[r])), acc[r]);
        if L::SHAPE.min {
            let m = S::load_f16(block.head.add(2 * TILE));
            acc[r] = S::fma(S::splat_f(*x.d_sum.add(r)), m, acc[r]);
        }
    }
}

/// `for r in 0..R`, written out: a loop the compiler leaves as one keeps its sums in memory instead of
/// registers.
macro_rules! each_row {
    ($r:ident in $rows:ident, $body:block) => {
        each_row!($r in $rows, $body, 0 1 2 3 4 5 6 7)
    };
    ($r:ident in $rows:ident, $body:block, $($i:literal)*) => {
        $(if $i < $rows {
            let $r = $i;
            $body
        })*
    };
}

/// Blocks of 256 whose sub-blocks have integer scales.
#[inline(always)]
unsafe fn scaled<S: Isa, L: Layout, const R: usize>(block: &Block, x: Rows<L>, acc: &mut [S::F; R]) {
    let shape = L::SHAPE;
    let mut total = Totals::<S, R>::new();
    let subs = shape.subs / 8; // in a step
    for step in 0..8 {
        let lines = lines::<S, L>(block.body.add(shape.scales() + step * shape.step()));
        for sub in subs * step..subs * (step + 1) {
            let scale = scale::<S, L>(block, sub);
            let within = 8 / subs * (sub - subs * step);
            each_row!(r in R, {
                if sub % subs == 0 {
                    prefetch::<S, L, R>(block, step, r);
                }
                let mut c = if shape.offset == 0 { S::splat(0) } else { S::splat(x.less(r, sub)) };
                for l in within..within + 8 / subs {
                    c = dot::<S, L>(c, lines[l], x.four(r, 8 * step + l));
                }
                total.add::<L>(r, c, scale);
            });
        }
        if step == 3 {
            total.half::<L>();
        }
    }
    let mut mins = [S::splat(0); R];
    if shape.min {
        for pair in 0..shape.subs / 2 {
            let min = min_pair::<S, L>(block, pair);
            for r in 0..R {
                mins[r] = S::dot2(mins[r], min, [x.sum(r, 2 * pair), x.sum(r, 2 * pair + 1)]);
            }
        }
    }
    let d = S::load_f16(block.head);
    for r in 0..R {
        let i = total.get::<L>(r);
        let t = if shape.min {
            let dmin = S::load_f16(block.head.add(2 * TILE));
            S::fms(d, i, S::mul_f(dmin, S::to_f(mins[r])))
        } else {
            S::mul_f(d, i)
        };
        acc[r] = S::fma(S::splat_f(*x.d.add(r)), t, acc[r]);
    }
}

/// Sums of sub-blocks times scales, `I` of the definition, for `R` rows.
///
/// Where sub-blocks and scales are so small that four products stay below 2^24, f32 sums of four are exact,
/// and the sum of two such halves rounds as the integer would: half the work of integer multiplications.
struct Totals<S: Isa, const R: usize> {
    integer: [S::I; R],
    first: [S::F; R],
    second: [S::F; R],
}

impl<S: Isa, const R: usize> Totals<S, R> {
    #[inline(always)]
    unsafe fn new() -> Self {
        Self { integer: [S::splat(0); R], first: [S::splat_f(0.0); R], second: [S::splat_f(0.0); R] }
    }

    /// 4 sub-blocks of 32 elements of up to 15, times up to 127 and scales of up to 63.
    const fn fits<L: Layout>() -> bool {
        L::SHAPE.subs == 8 && L::SHAPE.high == 0 && 4 * 32 * 15 * 127 * 63 < 1 << 24
    }

    #[inline(always)]
    unsafe fn add<L: Layout>(&mut self, r: usize, sum: S::I, scale: S::I) {
        if Self::fits::<L>() {
            self.second[r] = S::fma(S::to_f(sum), S::to_f(scale), self.second[r]);
        } else {
            self.integer[r] = S::add(self.integer[r], S::mul(sum, scale));
        }
    }

    /// Called between the fourth and the fifth sub-block of 32.
    #[inline(always)]
    unsafe fn half<L: Layout>(&mut self) {
        if Self::fits::<L>() {
            self.first = self.second;
            self.second = [S::splat_f(0.0); R];
        }
    }

    #[inline(always)]
    unsafe fn get<L: Layout>(&self, r: usize) -> S::F {
        if Self::fits::<L>() { S::add_f(self.first[r], self.second[r]) } else { S::to_f(self.integer[r]) }
    }
}

#[inline(always)]
unsafe fn dot<S: Isa, L: Layout>(acc: S::I, line: S::I, x: [i8; 4]) -> S::I {
    if L::SHAPE.low == 8 { S::dot4::<true>(acc, line, x) } else { S::dot4::<false>(acc, line, x) }
}

/// The scales of sub-block `sub`.
#[inline(always)]
pub(crate) unsafe fn scale<S: Isa, L: Layout>(block: &Block, sub: usize) -> S::I {
    let at = block.body.add(TILE * sub);
    match (L::SHAPE.subs, L::SHAPE.min) {
        (8, _) => S::load_u8(at),
        (_, true) => S::and(S::load_u8(at), S::splat(15)),
        (_, false) => S::load_i8(at),
    }
}

/// The minimums of sub-blocks `2 pair` and `2 pair + 1`, as halves.
#[inline(always)]
pub(crate) unsafe fn min_pair<S: Isa, L: Layout>(block: &Block, pair: usize) -> S::I {
    if L::SHAPE.subs == 8 {
        return S::load_u8_pairs(block.body.add(TILE * (8 + 2 * pair)));
    }
    let [a, b] = [0, 1].map(|i| S::shr(S::load_u8(block.body.add(TILE * (2 * pair + i))), 4));
    S::or(a, S::shl(b, 16))
}

/// Asks for the lines ahead of a step, one in `R` of them with each row `r`: in one burst they would come
/// slower.
#[inline(always)]
pub(crate) unsafe fn prefetch<S: Isa, L: Layout, const R: usize>(block: &Block, step: usize, r: usize) {
    let steps = L::SHAPE.block_len / STEP;
    let lines = (L::SHAPE.head() + L::SHAPE.body()).div_ceil(LINE * steps);
    // A loop of fixed length, for the compiler to unroll.
    for line in 0..lines {
        if line * R / lines == r {
            S::prefetch(block.ahead.wrapping_add(LINE * (lines * step + line)));
        }
    }
}
