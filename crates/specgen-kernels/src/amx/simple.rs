//! The formats of 32 elements: a product a block, since every block has its own scale.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{GROUPS, ROWS, first_row, groups};
use crate::Format;
use crate::isa::{Avx512, Isa};
use crate::layout::{LINE, Layout, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, TILE, lines};
use crate::tile::{AHEAD, Block, Job, Rows, prefetch};

/// Bytes from one activation row to the next.
const X_STRIDE: usize = 32;
/// Blocks whose products are in the unit at a time.
const TOGETHER: usize = 4;

/// Multiplies the tiles `tiles`; see `super::multiply`.
pub(super) unsafe fn multiply(job: &Job<'_>, tiles: Range<usize>) {
    match job.weights.format() {
        Format::Q4_0 => run::<Q4_0>(job, tiles),
        Format::Q4_1 => run::<Q4_1>(job, tiles),
        Format::Q5_0 => run::<Q5_0>(job, tiles),
        Format::Q5_1 => run::<Q5_1>(job, tiles),
        Format::Q8_0 => run::<Q8_0>(job, tiles),
        format => unreachable!("{format:?} has blocks of 256"),
    }
}

/// Sums of some blocks, `[block][row][weight row]`.
#[repr(C, align(64))]
struct Sums([[[i32; TILE]; ROWS]; TOGETHER]);

/// The lines of some blocks, signed: offsets are taken off.
#[repr(C, align(64))]
struct Lines([[[i8; LINE]; 8]; TOGETHER]);

/// Neighbouring blocks of a tile.
#[derive(Clone, Copy)]
struct Blocks {
    head: *const u8,
    body: *const u8,
    ahead: *const u8,
    count: usize,
}

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<L: Layout>(job: &Job<'_>, tiles: Range<usize>) {
    let shape = L::SHAPE;
    let blocks = job.weights.cols() / shape.block_len;
    let tile_bytes = shape.tile(blocks);
    let rows = job.m.min(ROWS);
    let mut sums = [const { Sums([[[0; TILE]; ROWS]; TOGETHER]) }; 2];
    let mut lines = [const { Lines([[[0; LINE]; 8]; TOGETHER]) }; 2];
    let mut acc = [[[0.0f32; TILE]; ROWS]; GROUPS];
    let all = groups(job.m);
    let x = |b: usize, group: usize| Rows::<L>::at(job, b, first_row(group, job.m));
    for first in (0..all).step_by(GROUPS) {
        let groups = first..all.min(first + GROUPS);
        for t in tiles.clone() {
            let tile = job.weights.tiles()[t * tile_bytes..][..tile_bytes].as_ptr();
            let at = |b: usize| Blocks {
                head: tile.add(b * shape.head()),
                body: tile.add(shape.body_at(blocks) + b * shape.body()),
                ahead: tile.wrapping_add(AHEAD + b * (shape.head() + shape.body())),
                count: TOGETHER.min(blocks - b),
            };
            acc[..groups.len()].fill([[0.0; TILE]; ROWS]);
            let [mut now, mut next] = lines.each_mut();
            let [mut older, mut newer] = sums.each_mut();
            unpack::<L>(&at(0), now);
            let mut before: Option<(usize, usize)> = None;
            for b in (0..blocks).step_by(TOGETHER) {
                let these = at(b);
                for group in groups.clone() {
                    product(now, these.count, x(b, group).q, X_STRIDE * job.m, newer);
                    // While the unit multiplies, the vectors prepare its next blocks and finish those before.
                    if group == groups.start && b + TOGETHER < blocks {
                        unpack::<L>(&at(b + TOGETHER), next);
                    }
                    if let Some((b, group)) = before.replace((b, group)) {
                        join::<L>(&at(b), job.m, &x(b, group), older, &mut acc[group - first][..rows]);
                    }
                    std::mem::swap(&mut older, &mut newer);
                }
                std::mem::swap(&mut now, &mut next);
            }
            if let Some((b, group)) = before {
                join::<L>(&at(b), job.m, &x(b, group), older, &mut acc[group - first][..rows]);
            }
            let outputs = TILE.min(job.weights.rows() - t * TILE);
            for (group, acc) in groups.clone().zip(&acc) {
                for (r, acc) in acc[..rows].iter().enumerate() {
                    job.out.set_row(first_row(group, job.m) + r, job.column + t * TILE, &acc[..outputs]);
                }
            }
        }
    }
}

#[inline(always)]
unsafe fn unpack<L: Layout>(blocks: &Blocks, to: &mut Lines) {
    let shape = L::SHAPE;
    let offset = _mm512_set1_epi8(shape.offset as u8 as i8);
    for (b, to) in to.0.iter_mut().enumerate().take(blocks.count) {
        let block = Block {
            head: blocks.head,
            body: blocks.body.add(b * shape.body()),
            ahead: blocks.ahead.wrapping_add(b * (shape.head() + shape.body())),
        };
        prefetch::<Avx512, L, 1>(&block, 0, 0);
        for (line, to) in lines::<Avx512, L>(block.body).into_iter().zip(to) {
            _mm512_store_si512(to.as_mut_ptr().cast(), _mm512_sub_epi8(line, offset));
        }
    }
}

/// Products of a group of rows with up to four blocks, whose activations lie `stride` bytes apart from `x`
/// on.
#[inline(always)]
unsafe fn product(lines: &Lines, count: usize, x: *const i8, stride: usize, sums: &mut Sums) {
    macro_rules! product {
        ($b:literal, $sums:literal, $x:literal, $lines:literal) => {
            if $b < count {
                asm!(
                    concat!("tilezero ", $sums),
                    concat!("tileloadd ", $x, ", [{x} + {x_stride}]"),
                    concat!("tileloadd ", $lines, ", [{lines} + {line}]"),
                    concat!("tdpbssd ", $sums, ", ", $x, ", ", $lines),
                    x = in(reg) x.add($b * stride), x_stride = in(reg) X_STRIDE,
                    lines = in(reg) &lines.0[$b], line = in(reg) LINE, options(nostack, readonly),
                );
            }
        };
    }
    product!(0, "tmm0", "tmm4", "tmm6");
    product!(1, "tmm1", "tmm5", "tmm7");
    product!(2, "tmm2", "tmm4", "tmm6");
    product!(3, "tmm3", "tmm5", "tmm7");
    macro_rules! store {
        ($b:literal, $sums:literal) => {
            if $b < count {
                let to = &mut sums.0[$b];
                asm!(concat!("tilestored [{} + {}], ", $sums), in(reg) to, in(reg) LINE, options(nostack));
            }
        };
    }
    store!(0, "tmm0");
    store!(1, "tmm1");
    store!(2, "tmm2");
    store!(3, "tmm3");
}

/// The f32 steps of some blocks, for the rows of a group of `m` rows in all.
#[inline(always)]
unsafe fn join<L: Layout>(blocks: &Blocks, m: usize, x: &Rows<L>, sums: &Sums, acc: &mut [[f32; TILE]]) {
    let head = |b: usize, half: usize| blocks.head.add(b * L::SHAPE.head() + 2 * TILE * half);
    let zero = Avx512::splat_f(0.0);
    let (mut scales, mut mins) = ([zero; TOGETHER], [zero; TOGETHER]);
    for b in 0..blocks.count {
        scales[b] = Avx512::load_f16(head(b, 0));
        if L::SHAPE.min {
            mins[b] = Avx512::load_f16(head(b, 1));
        }
    }
    for (r, acc) in acc.iter_mut().enumerate() {
        let mut a = Avx512::load_f(acc.as_ptr());
        for b in 0..TOGETHER {
            if b < blocks.count {
                let sum = Avx512::to_f(Avx512::load(sums.0[b][r].as_ptr().cast()));
                a = Avx512::fma(Avx512::splat_f(*x.d.add(b * m + r)), Avx512::mul_f(scales[b], sum), a);
                if L::SHAPE.min {
                    a = Avx512::fma(Avx512::splat_f(*x.d_sum.add(b * m + r)), mins[b], a);
                }
            }
        }
        Avx512::store_f(acc.as_mut_ptr(), a);
    }
}
