//! One query row against one block of keys: scores, exponentials, and the values they weigh.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Isa` covers the kernels")]

use super::{AttentionShape, BLOCK};
use crate::definition::{LANES, add_lanes};
use crate::isa::{Isa, Level, dispatch};
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

    /// Fills in the results for the query heads in `q` (`[group, head_dim]`) and the keys whose first
    /// elements are at `slots`, the first at place `first` of the block.
    #[allow(clippy::too_many_arguments, reason = "three slices and where to look in them")]
    pub(super) fn compute(
        &mut self,
        level: Level,
        shape: &AttentionShape,
        q: &[f32],
        k: &[f32],
        v: &[f32],
        slots: &[usize],
        first: usize,
    ) {
        let block = self;
        dispatch!(level, |S| fn(
            block: &mut Block, shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32], slots: &[usize], first: usize,
        ) {
            scores::<S>(shape, q, k, slots, first, block);
            weights(shape, block);
            values::<S>(shape, v, slots, first, block);
        });
    }
}

/// `q k` of all heads and keys into `block.p`, minus infinity where there is no key.
#[inline(always)]
unsafe fn scores<S: Isa>(
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    slots: &[usize],
    first: usize,
    block: &mut Block,
) {
    block.p.fill([f32::NEG_INFINITY; BLOCK]);
    let mut h = 0;
    while h < block.p.len() {
        let p = &mut block.p[h..];
        let q = &q[h * shape.head_dim..];
        h += match p.len() {
            1 => some_scores::<S, 1>(shape.head_dim, q, k, slots, first, p),
            2 => some_scores::<S, 2>(shape.head_dim, q, k, slots, first, p),
            3 => some_scores::<S, 3>(shape.head_dim, q, k, slots, first, p),
            _ => some_scores::<S, 4>(shape.head_dim, q, k, slots, first, p),
        };
    }
}

/// The first `H` heads.
#[inline(always)]
unsafe fn some_scores<S: Isa, const H: usize>(
    head_dim: usize,
    q: &[f32],
    k: &[f32],
    slots: &[usize],
    first: usize,
    p: &mut [[f32; BLOCK]],
) -> usize {
    let whole = head_dim / LANES * LANES;
    for (j, &slot) in slots.iter().enumerate() {
        let key = &k[slot..slot + head_dim];
        let mut acc = [S::splat_f(0.0); H];
        let mut c = 0;
        while c < whole {
            let key = S::load_f(key.as_ptr().add(c));
            for h in 0..H {
                acc[h] = S::fma(S::load_f(q.as_ptr().add(h * head_dim + c)), key, acc[h]);
            }
            c += LANES;
        }
        if whole < head_dim {
            let key = padded::<S>(&key[whole..]);
            for h in 0..H {
                acc[h] = S::fma(padded::<S>(&q[h * head_dim + whole..(h + 1) * head_dim]), key, acc[h]);
            }
        }
        for h in 0..H {
            p[h][first + j] = S::sum_f(acc[h]);
        }
    }
    H
}

/// Fewer than 16 elements, then zeros.
#[inline(always)]
unsafe fn padded<S: Isa>(x: &[f32]) -> S::F {
    let mut all = [0.0f32; LANES];
    all[..x.len()].copy_from_slice(x);
    S::load_f(all.as_ptr())
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
unsafe fn values<S: Isa>(
    shape: &AttentionShape,
    v: &[f32],
    slots: &[usize],
    first: usize,
    block: &mut Block,
) {
    let head_dim = shape.head_dim;
    let mut h = 0;
    while h < block.p.len() {
        let p = &block.p[h..];
        let acc = &mut block.acc[h * head_dim..];
        h += match p.len() {
            1 => some_values::<S, 1>(head_dim, v, slots, first, p, acc),
            2 => some_values::<S, 2>(head_dim, v, slots, first, p, acc),
            3 => some_values::<S, 3>(head_dim, v, slots, first, p, acc),
            _ => some_values::<S, 4>(head_dim, v, slots, first, p, acc),
        };
    }
}

/// The first `H` heads: one chain over the keys, ascending, for every element.
#[inline(always)]
unsafe fn some_values<S: Isa, const H: usize>(
    head_dim: usize,
    v: &[f32],
    slots: &[usize],
    first: usize,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) -> usize {
    let mut c = 0;
    while c + 4 * LANES <= head_dim && S::ROWS >= 4 {
        columns::<S, H, 4>(head_dim, c, v, slots, first, p, acc);
        c += 4 * LANES;
    }
    while c + LANES <= head_dim {
        columns::<S, H, 1>(head_dim, c, v, slots, first, p, acc);
        c += LANES;
    }
    for c in c..head_dim {
        for h in 0..H {
            let sum = slots
                .iter()
                .enumerate()
                .fold(0.0f32, |sum, (j, &slot)| p[h][first + j].mul_add(v[slot + c], sum));
            acc[h * head_dim + c] = sum;
        }
    }
    H
}

/// `16 N` elements from `c` on.
#[inline(always)]
unsafe fn columns<S: Isa, const H: usize, const N: usize>(
    head_dim: usize,
    c: usize,
    v: &[f32],
    slots: &[usize],
    first: usize,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) {
    let mut sums = [[S::splat_f(0.0); N]; H];
    for (j, &slot) in slots.iter().enumerate() {
        let value = &v[slot + c..slot + c + N * LANES];
        let mut vs = [S::splat_f(0.0); N];
        for n in 0..N {
            vs[n] = S::load_f(value.as_ptr().add(n * LANES));
        }
        for h in 0..H {
            let p = S::splat_f(p[h][first + j]);
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
