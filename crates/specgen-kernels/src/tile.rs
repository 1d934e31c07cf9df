//! Packed tiles times quantised activations: every line of weights is unpacked in registers, for several rows at once.
//!
//! Lanes are weight rows. A byte dot product of a line with 4 elements of an activation row, the same for every lane,
//! needs no sum across lanes, and the f32 chain over blocks runs for 16 outputs side by side. See `definition.rs` for
//! the arithmetic.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of each function covers its body")]

use std::ops::Range;

use crate::activations::Quantized;
#[cfg(target_arch = "x86_64")]
use crate::amx;
use crate::isa::{Isa, Level, dispatch};
use crate::layout::{LINE, Layout, STEP, TILE, lines, with_layout};
use crate::matmul::Output;
use crate::{Format, Packed};

/// Activation rows that share the weights of one pass; so many that their integers stay in cache.
const MAX_ROWS: usize = 128;
/// How far ahead of use weights are asked for, in bytes: what arrives in about two latencies of a loaded memory.
pub(crate) const AHEAD: usize = 4096;

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
/// The CPU has `level`. `x` has blocks and columns as the weights have, and `m` rows; `out` has `m` rows and a column for
/// each weight row from `column` on, and nobody else touches those of these tiles meanwhile.
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
        let blocks = job.weights.cols() / L::SHAPE.block_len;
        let tile_bytes = L::SHAPE.tile(blocks);
        let mut acc = [[0.0f32; TILE]; MAX_ROWS];
        for first in (0..job.m).step_by(MAX_ROWS) {
            let acc = &mut acc[..(job.m - first).min(MAX_ROWS)];
            for t in tiles.clone() {
                acc.fill([0.0; TILE]);
                let tile = job.weights.tiles()[t * tile_bytes..][..tile_bytes].as_ptr();
                for b in 0..blocks {
                    let block = Block {
                        head: tile.add(b * L::SHAPE.head()),
                        body: tile.add(L::SHAPE.body_at(blocks) + b * L::SHAPE.body()),
                        // Head and body in equal shares, so that every line is asked for once.
                        ahead: tile.wrapping_add(AHEAD + b * (L::SHAPE.head() + L::SHAPE.body())),
                    };
                    let x = Rows::<L>::at(job, b, first);
                    all_rows::<S, L>(&block, x, acc);
                }
                let rows = TILE.min(job.weights.rows() - t * TILE);
                for (r, acc) in acc.iter().enumerate() {
                    job.out.set_row(first + r, job.column + t * TILE, &acc[..rows]);
                }
            }
        }
    });
}

/// One block of a tile.
pub(crate) struct Block {
    pub(crate) head: *const u8,
    pub(crate) body: *const u8,
    /// What to ask of the memory meanwhile.
    pub(crate) ahead: *const u8,
}

/// One block of activation rows: they lie together, all at fixed distances from the first.
pub(crate) struct Rows<L> {
    pub(crate) q: *const i8,
    pub(crate) d: *const f32,
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
    pub(crate) unsafe fn at(job: &Job<'_>, block: usize, row: usize) -> Self {
        let sums = if L::SHAPE.subs == 8 { &job.x.sums_32 } else { &job.x.sums };
        let at = block * job.m + row;
        Self {
            q: job.x.q.as_ptr().add(at * L::SHAPE.block_len),
            d: job.x.d.as_ptr().add(at),
            sums: sums.as_ptr().add(at * L::SHAPE.subs),
            layout: std::marker::PhantomData,
        }
    }

    #[inline(always)]
    unsafe fn skip(self, rows: usize) -> Self {
        Self {
            q: self.q.add(rows * L::SHAPE.block_len),
            d: self.d.add(rows),
            sums: self.sums.add(rows * L::SHAPE.subs),
            layout: self.layout,
        }
    }

    /// Elements `4 i..4 i + 4` of row `r`.
    #[inline(always)]
    unsafe fn four(self, r: usize, i: usize) -> [i8; 4] {
        self.q.add(r * L::SHAPE.block_len + 4 * i).cast::<[i8; 4]>().read()
    }

    /// The sum of sub-block `s` of row `r`.
    #[inline(always)]
    pub(crate) unsafe fn sum(self, r: usize, s: usize) -> i16 {
        *self.sums.add(r * L::SHAPE.subs + s)
    }
}

/// As many rows together as the registers hold, so that few share an unpacked line with none.
#[inline(always)]
unsafe fn all_rows<S: Isa, L: Layout>(block: &Block, mut x: Rows<L>, mut acc: &mut [[f32; TILE]]) {
    while !acc.is_empty() {
        let rows = acc.len().min(S::ROWS);
        let (now, later) = acc.split_at_mut(rows);
        // Guards are constants: a kind of CPU has no code for more rows than it can hold.
        match rows {
            8 if S::ROWS >= 8 => some_rows::<S, L, 8>(block, x, now),
            7 if S::ROWS >= 8 => some_rows::<S, L, 7>(block, x, now),
            6 if S::ROWS >= 8 => some_rows::<S, L, 6>(block, x, now),
            5 if S::ROWS >= 8 => some_rows::<S, L, 5>(block, x, now),
            4 if S::ROWS >= 4 => some_rows::<S, L, 4>(block, x, now),
            3 if S::ROWS >= 4 => some_rows::<S, L, 3>(block, x, now),
            2 if S::ROWS >= 2 => some_rows::<S, L, 2>(block, x, now),
            _ => some_rows::<S, L, 1>(block, x, now),
        }
        x = x.skip(rows);
        acc = later;
    }
}

#[inline(always)]
unsafe fn some_rows<S: Isa, L: Layout, const R: usize>(block: &Block, x: Rows<L>, acc: &mut [[f32; TILE]]) {
    let acc = acc.first_chunk_mut::<R>().expect("as many as were counted");
    if L::SHAPE.subs == 1 {
        simple::<S, L, R>(block, x, acc);
    } else {
        scaled::<S, L, R>(block, x, acc);
    }
}

/// Blocks of 32 with one scale.
#[inline(always)]
unsafe fn simple<S: Isa, L: Layout, const R: usize>(block: &Block, x: Rows<L>, acc: &mut [[f32; TILE]; R]) {
    prefetch::<S, L>(block, 0);
    let d = S::load_f16(block.head);
    let mut s = [S::splat(0); R];
    if L::SHAPE.offset != 0 {
        for r in 0..R {
            s[r] = S::splat(-L::SHAPE.offset * i32::from(x.sum(r, 0)));
        }
    }
    for (l, line) in lines::<S, L>(block.body).into_iter().enumerate() {
        for r in 0..R {
            s[r] = dot::<S, L>(s[r], line, x.four(r, l));
        }
    }
    for r in 0..R {
        let dx = *x.d.add(r);
        let mut a = S::load_f(acc[r].as_ptr());
        a = S::fma(S::splat_f(dx), S::mul_f(d, S::to_f(s[r])), a);
        if L::SHAPE.min {
            let m = S::load_f16(block.head.add(2 * TILE));
            a = S::fma(S::splat_f(dx * f32::from(x.sum(r, 0))), m, a);
        }
        S::store_f(acc[r].as_mut_ptr(), a);
    }
}

/// Blocks of 256 whose sub-blocks have integer scales.
#[inline(always)]
unsafe fn scaled<S: Isa, L: Layout, const R: usize>(block: &Block, x: Rows<L>, acc: &mut [[f32; TILE]; R]) {
    let shape = L::SHAPE;
    let mut total = [S::splat(0); R];
    let subs = shape.subs / 8; // in a step
    for step in 0..8 {
        prefetch::<S, L>(block, step);
        let lines = lines::<S, L>(block.body.add(shape.scales() + step * shape.step()));
        for sub in subs * step..subs * (step + 1) {
            let scale = scale::<S, L>(block, sub);
            let within = 8 / subs * (sub - subs * step);
            for r in 0..R {
                let mut c = S::splat(-shape.offset * i32::from(x.sum(r, sub)));
                for l in within..within + 8 / subs {
                    c = dot::<S, L>(c, lines[l], x.four(r, 8 * step + l));
                }
                total[r] = S::add(total[r], S::mul(c, scale));
            }
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
        let i = S::to_f(total[r]);
        let t = if shape.min {
            let dmin = S::load_f16(block.head.add(2 * TILE));
            S::fms(d, i, S::mul_f(dmin, S::to_f(mins[r])))
        } else {
            S::mul_f(d, i)
        };
        let a = S::fma(S::splat_f(*x.d.add(r)), t, S::load_f(acc[r].as_ptr()));
        S::store_f(acc[r].as_mut_ptr(), a);
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

/// Asks for a share of the lines ahead with each step: in one burst they would come slower.
#[inline(always)]
pub(crate) unsafe fn prefetch<S: Isa, L: Layout>(block: &Block, step: usize) {
    let steps = L::SHAPE.block_len / STEP;
    let lines = (L::SHAPE.head() + L::SHAPE.body()).div_ceil(LINE);
    for line in lines * step / steps..lines * (step + 1) / steps {
        S::prefetch(block.ahead.wrapping_add(LINE * line));
    }
}
