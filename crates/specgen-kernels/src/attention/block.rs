//! One query row against one block of keys: scores, exponentials, and the values they weigh.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Isa` covers the kernels")]

use std::ops::Range;

use super::AttentionShape;
use crate::definition::{LANES, add_lanes};
use crate::element::Element;
use crate::isa::{Isa, Level, dispatch};
use crate::kv::{BLOCK, Store};
use crate::math::{exp, tanh};

/// One row and one block: the query heads that share a key head.
#[derive(Default)]
pub(super) struct Block {
    /// `[group, BLOCK]`: scores, then their exponentials.
    p: Vec<[f32; BLOCK]>,
    pub(super) max: Vec<f32>,
    pub(super) sum: Vec<f32>,
    /// `[group, head_dim]`.
    pub(super) acc: Vec<f32>,
}

impl Block {
    /// Takes the size of `shape`; what it holds means nothing.
    pub(super) fn fit(&mut self, shape: &AttentionShape) {
        let group = shape.num_heads / shape.num_kv_heads;
        self.p.resize(group, [0.0; BLOCK]);
        self.max.resize(group, 0.0);
        self.sum.resize(group, 0.0);
        self.acc.resize(group * shape.head_dim, 0.0);
    }

    /// Fills in the results for the query heads in `q` (`[group, head_dim]`) and the keys of one block.
    pub(super) fn compute<E: Element>(
        &mut self,
        level: Level,
        shape: &AttentionShape,
        q: &[f32],
        keys: &Keys<'_, E>,
    ) {
        let block = self;
        dispatch!(level, |S, E: Element| fn(
            block: &mut Block, shape: &AttentionShape, q: &[f32], keys: &Keys<'_, E>,
        ) {
            scores::<S, E>(shape, q, keys, block);
            weights(shape, block);
            values::<S, E>(shape, keys, block);
        });
    }
}

/// The keys of one head that a row sees in one block of positions, in order of position.
pub(super) struct Keys<'a, E> {
    pub(super) kv: &'a Store<E>,
    pub(super) kv_head: usize,
    /// Slots that equal their positions.
    pub(super) prefix: Range<usize>,
    /// Those of `prefix` are among these.
    pub(super) wide: Wide<'a>,
    /// The slots at the positions after those.
    pub(super) tail: &'a [u32],
}

/// Keys and values of one head in one block of slots, in f32.
#[derive(Clone, Copy)]
pub(super) struct Wide<'a> {
    /// `[head_dim, 64]`.
    keys: &'a [[f32; BLOCK]],
    /// Rows from the block's first slot on, each `stride` after the one before.
    values: &'a [f32],
    stride: usize,
}

/// Room for the keys and values of one head in one block, on cache lines.
#[derive(Default)]
pub(super) struct Room(Vec<Line>);

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LANES]);

impl Room {
    /// The `slots` of one block, widened for all rows that see them: a load that widened for each query head
    /// and row would do so many times over. What is f32 already is taken where it lies.
    pub(super) fn widen<'a, E: Element>(
        &'a mut self,
        level: Level,
        shape: &AttentionShape,
        kv: &'a Store<E>,
        kv_head: usize,
        slots: Range<usize>,
    ) -> Wide<'a> {
        let (dim, head_dim) = (kv.kv_dim(), shape.head_dim);
        if slots.is_empty() {
            return Wide { keys: &[], values: &[], stride: dim };
        }
        let b = slots.start / BLOCK;
        let keys = kv.keys(b, kv_head * head_dim)[..head_dim].as_flattened();
        let values = &kv.values(b)[kv_head * head_dim..];
        if let (Some(keys), Some(values)) = (E::as_f32(keys), E::as_f32(values)) {
            return Wide { keys: keys.as_chunks().0, values, stride: dim };
        }
        let lines = head_dim * BLOCK / LANES;
        if self.0.len() < 2 * lines {
            self.0.resize(2 * lines, Line([0.0; LANES]));
        }
        let (wide_keys, wide_values) = self.0[..2 * lines].split_at_mut(lines);
        let (wide_keys, wide_values) = (floats(wide_keys), floats(wide_values));
        let (first, end) = (slots.start % BLOCK, slots.end - b * BLOCK);
        let lanes = first / LANES * LANES..end.next_multiple_of(LANES);
        widen(level, &keys[lanes.start..], BLOCK, &mut wide_keys[lanes.start..], BLOCK, lanes.len());
        let to = &mut wide_values[first * head_dim..end * head_dim];
        widen(level, &values[first * dim..], dim, to, head_dim, head_dim);
        Wide { keys: wide_keys.as_chunks().0, values: wide_values, stride: head_dim }
    }
}

fn floats(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a line is its sixteen floats and nothing else.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

/// Widens the first `len` elements of rows that lie `from_stride` and `to_stride` apart.
fn widen<E: Element>(
    level: Level,
    from: &[E],
    from_stride: usize,
    to: &mut [f32],
    to_stride: usize,
    len: usize,
) {
    dispatch!(level, |S, E: Element| fn(
        from: &[E], from_stride: usize, to: &mut [f32], to_stride: usize, len: usize,
    ) {
        for (from, to) in from.chunks(from_stride).zip(to.chunks_mut(to_stride)) {
            let (from, from_rest) = from[..len].as_chunks::<LANES>();
            let (to, to_rest) = to[..len].as_chunks_mut::<LANES>();
            for (from, to) in from.iter().zip(to) {
                S::store_f(to.as_mut_ptr(), E::load::<S>(from.as_ptr().cast()));
            }
            for (from, to) in from_rest.iter().zip(to_rest) {
                *to = from.widen();
            }
        }
    });
}

impl<E> Keys<'_, E> {
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
unsafe fn scores<S: Isa, E: Element>(
    shape: &AttentionShape,
    q: &[f32],
    keys: &Keys<'_, E>,
    block: &mut Block,
) {
    for (p, q) in block.p.chunks_mut(heads::<S>()).zip(q.chunks(heads::<S>() * shape.head_dim)) {
        match p.len() {
            6 if S::ROWS >= 8 => some_scores::<S, E, 6>(shape.head_dim, q, keys, p),
            5 if S::ROWS >= 8 => some_scores::<S, E, 5>(shape.head_dim, q, keys, p),
            4 if S::ROWS >= 8 => some_scores::<S, E, 4>(shape.head_dim, q, keys, p),
            3 if S::ROWS >= 8 => some_scores::<S, E, 3>(shape.head_dim, q, keys, p),
            2 => some_scores::<S, E, 2>(shape.head_dim, q, keys, p),
            _ => some_scores::<S, E, 1>(shape.head_dim, q, keys, p),
        }
    }
}

/// The scores of `H` heads.
#[inline(always)]
unsafe fn some_scores<S: Isa, E: Element, const H: usize>(
    head_dim: usize,
    q: &[f32],
    keys: &Keys<'_, E>,
    p: &mut [[f32; BLOCK]],
) {
    let first = keys.first();
    let end = first + keys.prefix.len();
    if first == 0 && end == BLOCK {
        let scores = products::<S, f32, H, 4>(q, keys.wide.keys, 0);
        for h in 0..H {
            (0..4).for_each(|n| S::store_f(p[h][LANES * n..].as_mut_ptr(), scores[h][n]));
        }
        return;
    }
    let (mut lanes, all) = (first / LANES, end.div_ceil(LANES));
    while lanes < all {
        // Two at a time where there are two: the chains of one alone would wait for each other.
        let n = (all - lanes).min(2);
        if n == 2 {
            let scores = products::<S, f32, H, 2>(q, keys.wide.keys, LANES * lanes);
            for h in 0..H {
                (0..2).for_each(|n| S::store_f(p[h][LANES * (lanes + n)..].as_mut_ptr(), scores[h][n]));
            }
        } else {
            let scores = products::<S, f32, H, 1>(q, keys.wide.keys, LANES * lanes);
            (0..H).for_each(|h| S::store_f(p[h][LANES * lanes..].as_mut_ptr(), scores[h][0]));
        }
        lanes += n;
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
            let of_block = &keys.kv.keys(slot / BLOCK, keys.kv_head * head_dim)[..head_dim];
            let new = products::<S, E, H, 1>(q, of_block, slot % BLOCK / LANES * LANES);
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
unsafe fn products<S: Isa, E: Element, const H: usize, const N: usize>(
    q: &[f32],
    keys: &[[E; BLOCK]],
    lane: usize,
) -> [[S::F; N]; H] {
    let head_dim = keys.len();
    assert!(q.len() >= H * head_dim && lane + LANES * N <= BLOCK, "heads and lanes that are there");
    let mut sums = [[S::splat_f(0.0); N]; H];
    for (d, keys) in keys.iter().enumerate() {
        let mut k = [S::splat_f(0.0); N];
        for n in 0..N {
            k[n] = E::load::<S>(keys.as_ptr().add(lane + LANES * n).cast());
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
        *max = max_lanes(maximums);
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

/// The largest of lanes without a NaN.
#[inline(always)]
fn max_lanes(mut lanes: [f32; LANES]) -> f32 {
    let mut half = LANES / 2;
    while half > 0 {
        for i in 0..half {
            lanes[i] = if lanes[i + half] > lanes[i] { lanes[i + half] } else { lanes[i] };
        }
        half /= 2;
    }
    lanes[0]
}

/// `p v` of all heads into `block.acc`.
#[inline(always)]
unsafe fn values<S: Isa, E: Element>(shape: &AttentionShape, keys: &Keys<'_, E>, block: &mut Block) {
    let head_dim = shape.head_dim;
    let wide = &keys.wide;
    let prefix = match keys.prefix.len() {
        0 => &[],
        rows => &wide.values[keys.first() * wide.stride..][..(rows - 1) * wide.stride + head_dim],
    };
    let mut tail = [[].as_slice(); BLOCK];
    let tail = &mut tail[..keys.tail.len()];
    for (row, &slot) in tail.iter_mut().zip(keys.tail) {
        *row = &keys.kv.value(slot as usize)[keys.kv_head * head_dim..][..head_dim];
    }
    let v = Values { prefix, stride: wide.stride, rows: keys.prefix.len(), tail, first: keys.first() };
    for (p, acc) in block.p.chunks(heads::<S>()).zip(block.acc.chunks_mut(heads::<S>() * head_dim)) {
        match p.len() {
            6 if S::ROWS >= 8 => some_values::<S, E, 6>(head_dim, &v, p, acc),
            5 if S::ROWS >= 8 => some_values::<S, E, 5>(head_dim, &v, p, acc),
            4 if S::ROWS >= 8 => some_values::<S, E, 4>(head_dim, &v, p, acc),
            3 if S::ROWS >= 8 => some_values::<S, E, 3>(head_dim, &v, p, acc),
            2 => some_values::<S, E, 2>(head_dim, &v, p, acc),
            _ => some_values::<S, E, 1>(head_dim, &v, p, acc),
        }
    }
}

/// The values a block's weights belong to, `[head_dim]` each.
struct Values<'a, E> {
    /// `rows` of them, each `stride` after the one before.
    prefix: &'a [f32],
    stride: usize,
    rows: usize,
    /// Those after them.
    tail: &'a [&'a [E]],
    /// The place of the first in the block.
    first: usize,
}

/// `H` heads: one chain over the keys, ascending, for every element.
#[inline(always)]
unsafe fn some_values<S: Isa, E: Element, const H: usize>(
    head_dim: usize,
    v: &Values<'_, E>,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) {
    let mut c = 0;
    while c + 4 * LANES <= head_dim {
        columns::<S, E, H, 4>(head_dim, c, v, p, acc);
        c += 4 * LANES;
    }
    while c + LANES <= head_dim {
        columns::<S, E, H, 1>(head_dim, c, v, p, acc);
        c += LANES;
    }
    for c in c..head_dim {
        for h in 0..H {
            let prefix = (0..v.rows).map(|row| v.prefix[row * v.stride + c]);
            let values = prefix.chain(v.tail.iter().map(|row| row[c].widen()));
            let places = p[h][v.first..].iter().zip(values);
            acc[h * head_dim + c] = places.fold(0.0f32, |sum, (p, value)| p.mul_add(value, sum));
        }
    }
}

/// `16 N` elements from `c` on.
#[inline(always)]
unsafe fn columns<S: Isa, E: Element, const H: usize, const N: usize>(
    head_dim: usize,
    c: usize,
    v: &Values<'_, E>,
    p: &[[f32; BLOCK]],
    acc: &mut [f32],
) {
    let mut sums = [[S::splat_f(0.0); N]; H];
    let prefix = v.prefix.as_ptr();
    add_rows::<S, f32, H, N>(&mut sums, v.rows, |row| prefix.add(row * v.stride + c), p, v.first);
    let tail = |row: usize| v.tail[row].as_ptr().add(c);
    add_rows::<S, E, H, N>(&mut sums, v.tail.len(), tail, p, v.first + v.rows);
    for h in 0..H {
        let to = &mut acc[h * head_dim + c..][..N * LANES];
        for n in 0..N {
            S::store_f(to.as_mut_ptr().add(n * LANES), sums[h][n]);
        }
    }
}

/// Adds to those elements the products with `rows` values, `at` where they are told and in the places from
/// `first` on.
#[inline(always)]
unsafe fn add_rows<S: Isa, E: Element, const H: usize, const N: usize>(
    sums: &mut [[S::F; N]; H],
    rows: usize,
    at: impl Fn(usize) -> *const E,
    p: &[[f32; BLOCK]],
    first: usize,
) {
    for j in 0..rows {
        let value = at(j);
        let mut vs = [S::splat_f(0.0); N];
        for n in 0..N {
            vs[n] = E::load::<S>(value.add(n * LANES).cast());
        }
        for h in 0..H {
            let p = S::splat_f(*p.as_ptr().cast::<f32>().add(h * BLOCK + first + j));
            for n in 0..N {
                sums[h][n] = S::fma(p, vs[n], sums[h][n]);
            }
        }
    }
}
