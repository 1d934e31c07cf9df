//! One query row against one block of keys: scores, exponentials, and the values they weigh.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Isa` covers the kernels")]

use std::ops::Range;

use super::AttentionShape;
use crate::KvStore;
use crate::definition::{LANES, add_lanes};
use crate::isa::{Isa, Level, dispatch};
use crate::kv::BLOCK;
use crate::math::{exp, tanh};

/// One row and one block: the query heads that share a key head.
pub(super) struct Block {
    /// `[group, BLOCK]`: scores, then their exponentials.
    p: Vec<[f32; BLOCK]>,
    pub(super) max: Vec<f32>,
    pub(super) sum: Vec<f32>,
    /// `[group, head_dim]`.
    pub(super) acc: Vec<f32>,
}

impl Block {
    pub(super) fn new(shape: &AttentionShape) -> Self {
        let group = shape.num_heads / shape.num_kv_heads;
        Self {
            p: vec![[0.0; BLOCK]; group],
            max: vec![0.0; group],
            sum: vec![0.0; group],
            acc: vec![0.0; group * shape.head_dim],
        }
    }

    /// Fills in the results for the query heads in `q` (`[group, head_dim]`) and the keys of one block.
    pub(super) fn compute(&mut self, level: Level, shape: &AttentionShape, q: &[f32], keys: &Keys<'_>) {
        let block = self;
        dispatch!(level, |S| fn(block: &mut Block, shape: &AttentionShape, q: &[f32], keys: &Keys<'_>) {
            scores::<S>(shape, q, keys, block);
            weights(shape, block);
            values::<S>(shape, keys, block);
        });
    }
}

/// The keys of one head that a row sees in one block of positions, in order of position.
pub(super) struct Keys<'a> {
    pub(super) kv: &'a KvStore,
    pub(super) kv_head: usize,
    /// Slots that equal their positions.
    pub(super) prefix: Range<usize>,
    /// The slots at the positions after those.
    pub(super) tail: &'a [u32],
}

impl Keys<'_> {
    /// The place of the first key in the block.
    fn first(&self) -> usize {
        self.prefix.start % BLOCK
    }
}

/// Query heads whose scores a kind of CPU can hold in registers, beside four vectors of keys or values.
const fn heads<S: Isa>() -> usize {
    match S::ROWS {
        8.. => 6,
        4 => 1,
        _ => 2,
    }
}

/// `q k` of all heads and keys into `block.p`, minus infinity where there is no key.
#[inline(always)]
unsafe fn scores<S: Isa>(shape: &AttentionShape, q: &[f32], keys: &Keys<'_>, block: &mut Block) {
    for (p, q) in block.p.chunks_mut(heads::<S>()).zip(q.chunks(heads::<S>() * shape.head_dim)) {
        match p.len() {
            6 if S::ROWS >= 8 => some_scores::<S, 6>(shape.head_dim, q, keys, p),
            5 if S::ROWS >= 8 => some_scores::<S, 5>(shape.head_dim, q, keys, p),
            4 if S::ROWS >= 8 => some_scores::<S, 4>(shape.head_dim, q, keys, p),
            3 if S::ROWS >= 8 => some_scores::<S, 3>(shape.head_dim, q, keys, p),
            2 => some_scores::<S, 2>(shape.head_dim, q, keys, p),
            _ => some_scores::<S, 1>(shape.head_dim, q, keys, p),
        }
    }
}

/// The scores of `H` heads.
#[inline(always)]
unsafe fn some_scores<S: Isa, const H: usize>(
    head_dim: usize,
    q: &[f32],
    keys: &Keys<'_>,
    p: &mut [[f32; BLOCK]],
) {
    let of_slots = |b: usize| &keys.kv.keys(b, keys.kv_head * head_dim)[..head_dim];
    let first = keys.first();
    let end = first + keys.prefix.len();
    if first == 0 && end == BLOCK {
        let scores = products::<S, H, 4>(q, of_slots(keys.prefix.start / BLOCK), 0);
        for h in 0..H {
            (0..4).for_each(|n| S::store_f(p[h][LANES * n..].as_mut_ptr(), scores[h][n]));
        }
        return;
    }
    for lanes in first / LANES..end.div_ceil(LANES) {
        let scores = products::<S, H, 1>(q, of_slots(keys.prefix.start / BLOCK), LANES * lanes);
        for h in 0..H {
            S::store_f(p[h][LANES * lanes..].as_mut_ptr(), scores[h][0]);
        }
    }
    for p in p.iter_mut() {
        p[..first].fill(f32::NEG_INFINITY);
        p[end..].fill(f32::NEG_INFINITY);
    }
    let mut have = None; // the sixteen slots whose scores are in `scores`
    let mut scores = [[0.0f32; LANES]; H];
    for (place, &slot) in (end..).zip(keys.tail) {
        let slot = slot as usize;
        if have != Some(slot / LANES) {
            have = Some(slot / LANES);
            let new = products::<S, H, 1>(q, of_slots(slot / BLOCK), slot % BLOCK / LANES * LANES);
            (0..H).for_each(|h| S::store_f(scores[h].as_mut_ptr(), new[h][0]));
        }
        for h in 0..H {
            p[h][place] = scores[h][slot % LANES];
        }
    }
}

/// Products of `H` query heads with `16 N` keys from `lane` of a block on: one chain over the elements,
/// ascending, for every pair.
#[inline(always)]
unsafe fn products<S: Isa, const H: usize, const N: usize>(
    q: &[f32],
    keys: &[[f32; BLOCK]],
    lane: usize,
) -> [[S::F; N]; H] {
    let head_dim = keys.len();
    assert!(q.len() >= H * head_dim && lane + LANES * N <= BLOCK, "heads and lanes that are there");
    let mut sums = [[S::splat_f(0.0); N]; H];
    for (d, keys) in keys.iter().enumerate() {
        let mut k = [S::splat_f(0.0); N];
        for n in 0..N {
            k[n] = S::load_f(keys.as_ptr().add(lane + LANES * n));
        }
        for h in 0..H {
            let q = S::splat_f(*q.as_ptr().add(h * head_dim + d));
            for n in 0..N {
                sums[h][n] = S::fma(q, k[n], sums[h][n]);
            }
        }
    }
    sums
}

/// Scores to exponentials, with their maximum and sum.
#[inline(always)]
fn weights(shape: &AttentionShape, block: &mut Block) {
    let heads = block.p.iter_mut().zip(&mut block.max).zip(&mut block.sum);
    for ((p, max), sum) in heads {
        for p in p.iter_mut() {
            *p *= shape.scale;
        }
        if let Some(cap) = shape.softcap {
            // A place without a key stays minus infinity.
            for p in p.iter_mut() {
                *p = if *p == f32::NEG_INFINITY { *p } else { cap * tanh(*p / cap) };
            }
        }
        let mut maximums = [f32::NEG_INFINITY; LANES];
        for p in p.as_chunks::<LANES>().0 {
            for (m, &p) in maximums.iter_mut().zip(p) {
                *m = if p > *m { p } else { *m };
            }
        }
        *max = maximums.into_iter().fold(f32::NEG_INFINITY, f32::max);
        let mut lanes = [0.0f32; LANES];
        for p in p.as_chunks_mut::<LANES>().0 {
            for (lane, p) in lanes.iter_mut().zip(p) {
                *p = exp(*p - *max);
                *lane += *p;
            }
        }
        *sum = add_lanes(lanes);
    }
}

/// `p v` of all heads into `block.acc`.
#[inline(always)]
unsafe fn values<S: Isa>(shape: &AttentionShape, keys: &Keys<'_>, block: &mut Block) {
    let head_dim = shape.head_dim;
    let mut rows = [[].as_slice(); BLOCK];
    let slots = keys.prefix.clone().chain(keys.tail.iter().map(|&slot| slot as usize));
    let mut count = 0;
    for (row, slot) in rows.iter_mut().zip(slots) {
        *row = &keys.kv.value(slot)[keys.kv_head * head_dim..][..head_dim];
        count += 1;
    }
    let v = Values { rows: &rows[..count], first: keys.first() };
    for (p, acc) in block.p.chunks(heads::<S>()).zip(block.acc.chunks_mut(heads::<S>() * head_dim)) {
        match p.len() {
            6 if S::ROWS >= 8 => some_values::<S, 6>(head_dim, &v, p, acc),
            5 if S::ROWS >= 8 => some_values::<S, 5>(head_dim, &v, p, acc),
            4 if S::ROWS >= 8 => some_values::<S, 4>(head_dim, &v, p, acc),
            3 if S::ROWS >= 8 => some_values::<S, 3>(head_dim, &v, p, acc),
            2 => some_values::<S, 2>(head_dim, &v, p, acc),
            _ => some_values::<S, 1>(head_dim, &v, p, acc),
        }
    }
}

/// The values a block's weights belong to.
struct Values<'a> {
    /// `[head_dim]` each.
    rows: &'a [&'a [f32]],
    /// The place of the first in the block.
    first: usize,
}

/// `H` heads: one chain over the keys, ascending, for every element.
#[inline(always)]
unsafe fn some_values<S: Isa, const H: usize>(
    head_dim: usize,
    v: &Values<'_>,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) {
    let mut c = 0;
    while c + 4 * LANES <= head_dim {
        columns::<S, H, 4>(head_dim, c, v, p, acc);
        c += 4 * LANES;
    }
    while c + LANES <= head_dim {
        columns::<S, H, 1>(head_dim, c, v, p, acc);
        c += LANES;
    }
    for c in c..head_dim {
        for h in 0..H {
            let places = p[h][v.first..].iter().zip(v.rows);
            acc[h * head_dim + c] = places.fold(0.0f32, |sum, (p, row)| p.mul_add(row[c], sum));
        }
    }
}

/// `16 N` elements from `c` on.
#[inline(always)]
unsafe fn columns<S: Isa, const H: usize, const N: usize>(
    head_dim: usize,
    c: usize,
    v: &Values<'_>,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) {
    let mut sums = [[S::splat_f(0.0); N]; H];
    for (j, row) in v.rows.iter().enumerate() {
        let value = row.as_ptr().add(c);
        let mut vs = [S::splat_f(0.0); N];
        for n in 0..N {
            vs[n] = S::load_f(value.add(n * LANES));
        }
        for h in 0..H {
            let p = S::splat_f(*p.as_ptr().cast::<f32>().add(h * BLOCK + v.first + j));
            for n in 0..N {
                sums[h][n] = S::fma(p, vs[n], sums[h][n]);
            }
        }
    }
    for h in 0..H {
        let to = &mut acc[h * head_dim + c..][..N * LANES];
        for n in 0..N {
            S::store_f(to.as_mut_ptr().add(n * LANES), sums[h][n]);
        }
    }
}
