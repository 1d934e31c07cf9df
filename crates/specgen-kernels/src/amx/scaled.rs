//! The formats of 256 elements.
//!
//! A block's sub-block scales are folded into its weights, split over two byte matrices, so that one integer
//! sum runs through the whole block: `I = factor * H + L`.

use std::arch::asm;
use std::arch::x86_64::*;
use std::ops::Range;

use super::{GROUPS, ROWS, first_row, groups};
use crate::Format;
use crate::isa::{Avx512, Isa};
use crate::layout::{LINE, Layout, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K, TILE, lines};
use crate::tile::{AHEAD, Block, Job, Rows, min_pair, prefetch, scale};

/// One block of weights, scales folded in: four matrices of 64 elements, high parts and low ones.
#[repr(C, align(64))]
struct Folded {
    high: [[[u8; LINE]; 16]; 4],
    low: [[[u8; LINE]; 16]; 4],
}

/// How scales are folded in.
trait Fold: Layout {
    /// `I = (H << SHIFT) + L`.
    const SHIFT: u32;
    /// Whether there are high parts at all.
    const HIGH: bool;
    /// Whether high parts are signed bytes, and `join` gives back an offset.
    const SIGNED: bool;
    /// High parts and low ones of a line times its sub-block's scales.
    unsafe fn fold(line: __m512i, scales: &Scales) -> [__m512i; 2];
    /// What `fold` wants of the scales.
    unsafe fn scales(scale: __m512i) -> Scales;
}

/// What lines are multiplied by. Unsigned: scales for high parts and for low ones, as halves. Signed: bytes
/// for weights at even places and for those at odd ones.
struct Scales([__m512i; 2]);

/// Both halves of each lane become its low one.
#[inline(always)]
unsafe fn twice(v: __m512i) -> __m512i {
    _mm512_or_si512(_mm512_and_si512(v, _mm512_set1_epi32(0xffff)), _mm512_slli_epi32::<16>(v))
}

/// Unsigned scales of 6 bits: high and low half of the scale, times up to 31, both fit a byte. Bytes are
/// multiplied in pairs as halves: no product reaches into its neighbour.
macro_rules! fold_unsigned {
    ($layout:ty) => {
        impl Fold for $layout {
            const SHIFT: u32 = 3;
            const HIGH: bool = true;
            const SIGNED: bool = false;
            #[inline(always)]
            unsafe fn scales(scale: __m512i) -> Scales {
                Scales([
                    twice(_mm512_srli_epi32::<3>(scale)),
                    twice(_mm512_and_si512(scale, _mm512_set1_epi32(7))),
                ])
            }
            #[inline(always)]
            unsafe fn fold(line: __m512i, Scales([high, low]): &Scales) -> [__m512i; 2] {
                [_mm512_mullo_epi16(line, *high), _mm512_mullo_epi16(line, *low)]
            }
        }
    };
}
fold_unsigned!(Q4_K);
fold_unsigned!(Q5_K);

/// Scales of 4 bits times up to 3.
impl Fold for Q2_K {
    const SHIFT: u32 = 0;
    const HIGH: bool = false;
    const SIGNED: bool = false;
    #[inline(always)]
    unsafe fn scales(scale: __m512i) -> Scales {
        Scales([twice(scale); 2])
    }
    #[inline(always)]
    unsafe fn fold(line: __m512i, Scales([_, scale]): &Scales) -> [__m512i; 2] {
        [_mm512_setzero_si512(), _mm512_mullo_epi16(line, *scale)]
    }
}

/// Signed scales of up to 8 bits, weights with an offset: `(w - offset) * scale` in 16 bits, cut in the
/// middle.
///
/// A pair of bytes `(w, offset)` is multiplied by `(scale, -scale)`, in the order in which the weight lies:
/// no shift, no mask. That -128 has no opposite in a byte is mended by `!scale = -scale - 1`, which takes
/// another `offset` from each weight; `join` gives it back.
macro_rules! fold_signed {
    ($layout:ty) => {
        impl Fold for $layout {
            const SHIFT: u32 = 8;
            const HIGH: bool = true;
            const SIGNED: bool = true;
            #[inline(always)]
            unsafe fn scales(scale: __m512i) -> Scales {
                let (low, scale) = (_mm512_set1_epi16(0xff), twice(scale));
                let opposite = _mm512_xor_si512(scale, _mm512_set1_epi8(-1));
                Scales([
                    select(low, scale, _mm512_slli_epi16::<8>(opposite)),
                    select(low, opposite, _mm512_slli_epi16::<8>(scale)),
                ])
            }
            #[inline(always)]
            unsafe fn fold(line: __m512i, Scales([even, odd]): &Scales) -> [__m512i; 2] {
                let (low, offset) = (_mm512_set1_epi16(0xff), _mm512_set1_epi8(Self::SHAPE.offset as i8));
                let even = _mm512_maddubs_epi16(select(low, line, offset), *even);
                let odd = _mm512_maddubs_epi16(select(low, offset, line), *odd);
                let swap = _mm512_broadcast_i32x4(_mm_set_epi8(
                    14, 15, 12, 13, 10, 11, 8, 9, 6, 7, 4, 5, 2, 3, 0, 1,
                ));
                [
                    _mm512_mask_shuffle_epi8(odd, EVEN, even, swap),
                    _mm512_mask_shuffle_epi8(even, !EVEN, odd, swap),
                ]
            }
        }
    };
}

/// Every other byte, from the first on.
const EVEN: u64 = 0x5555_5555_5555_5555;

/// `a` where `mask` has ones, else `b`.
#[inline(always)]
unsafe fn select(mask: __m512i, a: __m512i, b: __m512i) -> __m512i {
    _mm512_ternarylogic_epi32::<0xca>(mask, a, b)
}

fold_signed!(Q3_K);
fold_signed!(Q6_K);

/// Multiplies the tiles `tiles`; see `super::multiply`.
pub(super) unsafe fn multiply(job: &Job<'_>, tiles: Range<usize>) {
    match job.weights.format() {
        Format::Q2_K => run::<Q2_K>(job, tiles),
        Format::Q3_K => run::<Q3_K>(job, tiles),
        Format::Q4_K => run::<Q4_K>(job, tiles),
        Format::Q5_K => run::<Q5_K>(job, tiles),
        Format::Q6_K => run::<Q6_K>(job, tiles),
        format => unreachable!("{format:?} has no scaled sub-blocks"),
    }
}

/// What a product's sums are stored to, `[group][high or low][row][weight row]`.
#[repr(C, align(64))]
struct Sums([[[[i32; TILE]; ROWS]; 2]; 2]);

#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
unsafe fn run<L: Fold>(job: &Job<'_>, tiles: Range<usize>) {
    let shape = L::SHAPE;
    let blocks = job.weights.cols() / shape.block_len;
    let tile_bytes = shape.tile(blocks);
    let from = job.weights.tiles()[tiles.start * tile_bytes..tiles.end * tile_bytes].as_ptr();
    // All blocks of all tiles, in the order they lie in; one past the last is asked for, but never read.
    let at = |tile: usize, b: usize| {
        let tile = from.wrapping_add((tile - tiles.start) * tile_bytes);
        Block {
            head: tile.wrapping_add(b * shape.head()),
            body: tile.wrapping_add(shape.body_at(blocks) + b * shape.body()),
            ahead: tile.wrapping_add(AHEAD + b * (shape.head() + shape.body())),
        }
    };
    let mut folded = [const { Folded { high: [[[0; LINE]; 16]; 4], low: [[[0; LINE]; 16]; 4] } }; 2];
    let mut sums = Sums([[[[0; TILE]; ROWS]; 2]; 2]);
    let mut rest = Rest { job, acc: [[[0.0; TILE]; ROWS]; GROUPS] };
    let groups = groups(job.m);
    for first in (0..groups).step_by(GROUPS) {
        let groups = first..groups.min(first + GROUPS);
        let [mut now, mut next] = folded.each_mut();
        let mut before: Option<Step> = None;
        (0..4).for_each(|quarter| unpack::<L>(&at(tiles.start, 0), quarter, now));
        for tile in tiles.clone() {
            for b in 0..blocks {
                let coming = if b + 1 < blocks { at(tile, b + 1) } else { at(tile + 1, 0) };
                let is_last = tile + 1 == tiles.end && b + 1 == blocks;
                let mut beside = (!is_last).then_some(&coming);
                for group in groups.clone().step_by(2) {
                    // While the unit multiplies, the vectors unpack its next block and finish the sums.
                    let step =
                        Step { tile, block: at(tile, b), b, blocks, group, is_pair: group + 1 < groups.end };
                    if step.is_pair {
                        product::<L, 2>(now, step.rows(job), beside.take(), next);
                    } else {
                        product::<L, 1>(now, step.rows(job), beside.take(), next);
                    }
                    // The sums before are read ahead of storing these: loads would wait for stores that the
                    // unit has yet to compute, wherever the low bits of their addresses agree.
                    let is_pair = step.is_pair;
                    if let Some(before) = before.replace(step) {
                        rest.join::<L>(&before, &sums);
                    }
                    store(is_pair, &mut sums);
                }
                std::mem::swap(&mut now, &mut next);
            }
        }
        if let Some(before) = before {
            rest.join::<L>(&before, &sums);
        }
    }
}

/// Unpacks 64 elements of a block, and asks for a share of what comes later.
#[inline(always)]
unsafe fn unpack<L: Fold>(block: &Block, quarter: usize, to: &mut Folded) {
    let shape = L::SHAPE;
    for half in 0..2 {
        let step = 2 * quarter + half;
        prefetch::<Avx512, L, 1>(block, step, 0);
        let lines = lines::<Avx512, L>(block.body.add(shape.scales() + step * shape.step()));
        let per_scale = 64 / shape.subs; // lines
        for l in (0..8).step_by(per_scale) {
            let scales = L::scales(scale::<Avx512, L>(block, (8 * step + l) / per_scale));
            for (i, line) in lines.iter().enumerate().skip(l).take(per_scale) {
                let [high, low] = L::fold(*line, &scales);
                if L::HIGH {
                    _mm512_store_si512(to.high[quarter][8 * half + i].as_mut_ptr().cast(), high);
                }
                _mm512_store_si512(to.low[quarter][8 * half + i].as_mut_ptr().cast(), low);
            }
        }
    }
}

/// Sums of a block for one or two groups of rows, left in the unit; meanwhile `coming` is unpacked to `next`.
#[inline(always)]
unsafe fn product<L: Fold, const G: usize>(
    weights: &Folded,
    x: [Rows<L>; G],
    coming: Option<&Block>,
    next: &mut Folded,
) {
    asm!("tilezero tmm0", "tilezero tmm1", options(nostack, nomem));
    if G == 2 {
        asm!("tilezero tmm2", "tilezero tmm3", options(nostack, nomem));
    }
    for quarter in 0..4 {
        let (high, low) = (&weights.high[quarter], &weights.low[quarter]);
        let x = |group: usize| x[group].q.add(quarter * x[group].line_stride);
        asm!("tileloadd tmm4, [{} + {}]", in(reg) x(0), in(reg) LINE, options(nostack, readonly));
        asm!("tileloadd tmm7, [{} + {}]", in(reg) low, in(reg) LINE, options(nostack, readonly));
        dot::<L, 1>();
        if L::HIGH {
            asm!("tileloadd tmm6, [{} + {}]", in(reg) high, in(reg) LINE, options(nostack, readonly));
            dot::<L, 0>();
        }
        if G == 2 {
            asm!("tileloadd tmm5, [{} + {}]", in(reg) x(1), in(reg) LINE, options(nostack, readonly));
            dot::<L, 3>();
            if L::HIGH {
                dot::<L, 2>();
            }
        }
        if let Some(coming) = coming {
            unpack::<L>(coming, quarter, next);
        }
    }
}

/// Stores what [`product`] has left.
#[inline(always)]
unsafe fn store(is_pair: bool, sums: &mut Sums) {
    let [first, second] = &mut sums.0;
    asm!("tilestored [{} + {}], tmm0", in(reg) &mut first[0], in(reg) LINE, options(nostack));
    asm!("tilestored [{} + {}], tmm1", in(reg) &mut first[1], in(reg) LINE, options(nostack));
    if is_pair {
        asm!("tilestored [{} + {}], tmm2", in(reg) &mut second[0], in(reg) LINE, options(nostack));
        asm!("tilestored [{} + {}], tmm3", in(reg) &mut second[1], in(reg) LINE, options(nostack));
    }
}

/// Adds a product to sum `C`: activations of its group times high or low weights.
#[inline(always)]
unsafe fn dot<L: Fold, const C: usize>() {
    macro_rules! dot {
        ($op:literal) => {
            match C {
                0 => asm!(concat!($op, " tmm0, tmm4, tmm6"), options(nostack, nomem)),
                1 => asm!(concat!($op, " tmm1, tmm4, tmm7"), options(nostack, nomem)),
                2 => asm!(concat!($op, " tmm2, tmm5, tmm6"), options(nostack, nomem)),
                _ => asm!(concat!($op, " tmm3, tmm5, tmm7"), options(nostack, nomem)),
            }
        };
    }
    if L::SIGNED && matches!(C, 0 | 2) { dot!("tdpbssd") } else { dot!("tdpbsud") }
}

/// `acc` and the products of minimums with two sums. Assembly, as the compiler makes two instructions of the
/// one, which costs more here than waiting for it.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_pair(acc: __m512i, min: __m512i, sums: *const i16) -> __m512i {
    let mut acc = acc;
    asm!("vpdpwssd {acc}, {min}, dword ptr [{sums}]{{1to16}}", acc = inout(zmm_reg) acc,
        min = in(zmm_reg) min, sums = in(reg) sums, options(pure, readonly, nostack, preserves_flags));
    acc
}

/// Where a product stands in a matmul.
struct Step {
    tile: usize,
    block: Block,
    /// Of `blocks`.
    b: usize,
    blocks: usize,
    /// The group of rows, or the first of two.
    group: usize,
    is_pair: bool,
}

impl Step {
    /// Activations of the first `G` groups.
    unsafe fn rows<L: Layout, const G: usize>(&self, job: &Job<'_>) -> [Rows<L>; G] {
        std::array::from_fn(|g| Rows::at(job, self.b, first_row(self.group + g, job.m)))
    }
}

/// The f32 steps that follow a product.
struct Rest<'a> {
    job: &'a Job<'a>,
    acc: [[[f32; TILE]; ROWS]; GROUPS],
}

impl Rest<'_> {
    #[inline(always)]
    unsafe fn join<L: Fold>(&mut self, step: &Step, sums: &Sums) {
        for (group, sums) in (step.group..).zip(&sums.0).take(if step.is_pair { 2 } else { 1 }) {
            self.join_group::<L>(step, group, sums);
        }
    }

    #[inline(always)]
    unsafe fn join_group<L: Fold>(
        &mut self,
        step: &Step,
        group: usize,
        [high, low]: &[[[i32; TILE]; ROWS]; 2],
    ) {
        let x = Rows::<L>::at(self.job, step.b, first_row(group, self.job.m));
        let shape = L::SHAPE;
        let d = Avx512::load_f16(step.block.head);
        let mut dmin = d;
        let mut mins = [_mm512_setzero_si512(); 8];
        if shape.min {
            dmin = Avx512::load_f16(step.block.head.add(2 * TILE));
            for (pair, min) in mins.iter_mut().enumerate().take(shape.subs / 2) {
                *min = min_pair::<Avx512, L>(&step.block, pair);
            }
        }
        let rows = self.job.m.min(ROWS);
        let acc = &mut self.acc[group % GROUPS][..rows];
        for (r, acc) in acc.iter_mut().enumerate() {
            let mut i = Avx512::load(low[r].as_ptr().cast());
            if L::HIGH {
                i = Avx512::add(i, Avx512::shl(Avx512::load(high[r].as_ptr().cast()), L::SHIFT as i32));
            }
            if L::SIGNED {
                i = Avx512::add(i, Avx512::splat(x.offset(r)));
            }
            let i = Avx512::to_f(i);
            let t = if shape.min {
                let mut m = _mm512_setzero_si512();
                for (pair, min) in mins.iter().enumerate().take(shape.subs / 2) {
                    m = add_pair(m, *min, x.sum_pair(r, pair));
                }
                Avx512::fms(d, i, Avx512::mul_f(dmin, Avx512::to_f(m)))
            } else {
                Avx512::mul_f(d, i)
            };
            let before = if step.b == 0 { Avx512::splat_f(0.0) } else { Avx512::load_f(acc.as_ptr()) };
            Avx512::store_f(acc.as_mut_ptr(), Avx512::fma(Avx512::splat_f(*x.d.add(r)), t, before));
        }
        if step.b + 1 == step.blocks {
            let (row, column) = (first_row(group, self.job.m), self.job.column + step.tile * TILE);
            let outputs = TILE.min(self.job.weights.rows() - step.tile * TILE);
            for (r, acc) in self.acc[group % GROUPS][..rows].iter().enumerate() {
                self.job.out.set_row(row + r, column, &acc[..outputs]);
            }
        }
    }
}
