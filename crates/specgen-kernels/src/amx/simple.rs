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
/// Groups whose products are in the unit at a time.
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

/// Sums of some groups, `[group][row][weight row]`.
#[repr(C, align(64))]
struct Sums([[[i32; TILE]; ROWS]; TOGETHER]);

/// The lines of a block, signed: offsets are taken off.
#[repr(C, align(64))]
struct Lines([[i8; LINE]; 8]);

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<L: Layout>(job: &Job<'_>, tiles: Range<usize>) {
    let shape = L::SHAPE;
    let blocks = job.weights.cols() / shape.block_len;
    let tile_bytes = shape.tile(blocks);
    let rows = job.m.min(ROWS);
    let mut sums = Sums([[[0; TILE]; ROWS]; TOGETHER]);
    let mut weights = Lines([[0; LINE]; 8]);
    let mut acc = [[[0.0f32; TILE]; ROWS]; GROUPS];
    let all = groups(job.m);
    for first in (0..all).step_by(GROUPS) {
        let groups = first..all.min(first + GROUPS);
        for t in tiles.clone() {
            let tile = job.weights.tiles()[t * tile_bytes..][..tile_bytes].as_ptr();
            acc[..groups.len()].fill([[0.0; TILE]; ROWS]);
            for b in 0..blocks {
                let block = Block {
                    head: tile.add(b * shape.head()),
                    body: tile.add(shape.body_at(blocks) + b * shape.body()),
                    ahead: tile.wrapping_add(AHEAD + b * (shape.head() + shape.body())),
                };
                prefetch::<Avx512, L, 1>(&block, 0, 0);
                unpack::<L>(&block, &mut weights);
                let d = Avx512::load_f16(block.head);
                let m = if shape.min { Avx512::load_f16(block.head.add(2 * TILE)) } else { d };
                for some in groups.clone().step_by(TOGETHER) {
                    let some = some..groups.end.min(some + TOGETHER);
                    let x = |group: usize| Rows::<L>::at(job, b, first_row(group, job.m));
                    product(&weights, some.clone().map(|group| x(group).q), &mut sums);
                    for (group, sums) in some.zip(&sums.0) {
                        join::<L>([d, m], &x(group), &sums[..rows], &mut acc[group - first]);
                    }
                }
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
unsafe fn unpack<L: Layout>(block: &Block, to: &mut Lines) {
    let offset = _mm512_set1_epi8(L::SHAPE.offset as u8 as i8);
    for (line, to) in lines::<Avx512, L>(block.body).into_iter().zip(&mut to.0) {
        _mm512_store_si512(to.as_mut_ptr().cast(), _mm512_sub_epi8(line, offset));
    }
}

/// Products of up to four groups of rows with a block.
#[inline(always)]
unsafe fn product(weights: &Lines, x: impl Iterator<Item = *const i8>, sums: &mut Sums) {
    asm!("tileloadd tmm6, [{} + {}]", in(reg) weights, in(reg) LINE, options(nostack, readonly));
    let mut count = 0;
    for (i, x) in x.enumerate() {
        macro_rules! product {
            ($sums:literal, $x:literal) => {
                asm!(
                    concat!("tilezero ", $sums),
                    concat!("tileloadd ", $x, ", [{} + {}]"),
                    concat!("tdpbssd ", $sums, ", ", $x, ", tmm6"),
                    in(reg) x, in(reg) X_STRIDE, options(nostack, readonly),
                )
            };
        }
        match i {
            0 => product!("tmm0", "tmm4"),
            1 => product!("tmm1", "tmm5"),
            2 => product!("tmm2", "tmm4"),
            _ => product!("tmm3", "tmm5"),
        }
        count += 1;
    }
    for (i, sums) in sums.0.iter_mut().enumerate().take(count) {
        macro_rules! store {
            ($sums:literal) => {
                asm!(concat!("tilestored [{} + {}], ", $sums), in(reg) sums, in(reg) LINE, options(nostack))
            };
        }
        match i {
            0 => store!("tmm0"),
            1 => store!("tmm1"),
            2 => store!("tmm2"),
            _ => store!("tmm3"),
        }
    }
}

/// The f32 steps of a block, for the rows of a group.
#[inline(always)]
unsafe fn join<L: Layout>(
    [d, m]: [__m512; 2],
    x: &Rows<L>,
    sums: &[[i32; TILE]],
    acc: &mut [[f32; TILE]; ROWS],
) {
    for (r, (sums, acc)) in sums.iter().zip(acc).enumerate() {
        let sum = Avx512::mul_f(d, Avx512::to_f(Avx512::load(sums.as_ptr().cast())));
        let mut a = Avx512::fma(Avx512::splat_f(*x.d.add(r)), sum, Avx512::load_f(acc.as_ptr()));
        if L::SHAPE.min {
            a = Avx512::fma(Avx512::splat_f(*x.d_sum.add(r)), m, a);
        }
        Avx512::store_f(acc.as_mut_ptr(), a);
    }
}
