//! Softmax attention of query rows over a slot cache, in fixed blocks of keys.
//!
//! Keys are ordered by position and cut into blocks of 64 positions counted from 0, so that a row's
//! numbers depend on what it sees and at which positions, never on where a window, a batch or a
//! draft tree has put it. In a block: `mb = max s`, `p = exp(s - mb)`, `lb = sum p`, `ob = sum p v`;
//! blocks are then joined in ascending order with a running maximum (Milakov and Gimelshein 2018).
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Isa` covers the kernels")]

use std::cell::RefCell;
use std::ops::Range;

use crate::Team;
use crate::definition::{LANES, add_lanes};
use crate::isa::{Isa, Level, dispatch};
use crate::math::{exp, tanh};

/// Positions in a block.
const BLOCK: usize = 64;

/// The sizes of an attention layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionShape {
    /// Query heads; a multiple of `num_kv_heads`.
    pub num_heads: usize,
    /// Key and value heads, each shared by `num_heads / num_kv_heads` query heads in a row.
    pub num_kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
    /// What `q k` is multiplied by.
    pub scale: f32,
    /// Where given, a score becomes `cap * tanh(score / cap)`.
    pub softcap: Option<f32>,
}

/// What one query row sees, ordered by position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowKeys<'a> {
    /// Cache slots that lie at the positions of their own number.
    pub prefix: Range<usize>,
    /// The slots at positions `prefix.end`, `prefix.end + 1`, and so on.
    pub tail: &'a [u32],
}

impl RowKeys<'_> {
    /// One past the last position.
    fn end(&self) -> usize {
        self.prefix.end + self.tail.len()
    }

    /// The first position.
    fn start(&self) -> usize {
        self.prefix.start.min(self.prefix.end)
    }

    /// The blocks it sees something of.
    fn blocks(&self) -> Range<usize> {
        let first = self.start() / BLOCK;
        first..if self.start() < self.end() { self.end().div_ceil(BLOCK) } else { first }
    }

    fn slot(&self, position: usize) -> usize {
        position.checked_sub(self.prefix.end).map_or(position, |i| self.tail[i] as usize)
    }
}

/// Attention of `m` query rows: `out = softmax(scale * q k^T) v` per head.
///
/// `q` and `out` are `[m, num_heads, head_dim]`, `k` and `v` `[slots, num_kv_heads, head_dim]`,
/// `rows` holds what each query row sees. A row that sees nothing gets zeros.
///
/// # Panics
/// If the lengths do not agree or a row names a slot that is not there.
pub fn attention(
    team: &Team,
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    rows: &[RowKeys<'_>],
    out: &mut [f32],
) {
    attention_at(Level::get(), team, shape, q, k, v, rows, out);
}

/// [`attention`] with the instructions of `level`.
#[allow(clippy::too_many_arguments, reason = "those of `attention`, and one")]
fn attention_at(
    level: Level,
    team: &Team,
    shape: &AttentionShape,
    q: &[f32],
    k: &[f32],
    v: &[f32],
    rows: &[RowKeys<'_>],
    out: &mut [f32],
) {
    let m = rows.len();
    let &AttentionShape { num_heads, num_kv_heads, head_dim, .. } = shape;
    assert_eq!(q.len(), m * num_heads * head_dim, "queries of {m} rows");
    assert_eq!(out.len(), q.len(), "output of {m} rows");
    assert_eq!(k.len(), v.len(), "keys and values");
    if q.is_empty() {
        return;
    }
    assert!(
        num_kv_heads > 0 && num_heads.is_multiple_of(num_kv_heads),
        "{num_heads} heads over {num_kv_heads}"
    );
    let slots = k.len() / (num_kv_heads * head_dim);
    for row in rows {
        assert!(row.prefix.is_empty() || row.prefix.end <= slots, "slots {:?} of {slots}", row.prefix);
        assert!(row.tail.iter().all(|&slot| (slot as usize) < slots), "tail slots beyond {slots}");
    }
    let call = Call { level, shape, q, k, v, rows, out: Cells { data: out.as_mut_ptr(), width: head_dim } };
    let start = rows.iter().map(RowKeys::start).min().unwrap_or(0) / BLOCK;
    let end = rows.iter().map(RowKeys::end).max().unwrap_or(0).div_ceil(BLOCK);
    let blocks = end.saturating_sub(start);
    let chunks = m.div_ceil(ROWS);
    let partial_len = m * num_heads * blocks * (head_dim + 2);
    if blocks > 1 && num_kv_heads * chunks < 4 * team.threads() && partial_len <= MAX_PARTIAL {
        call.by_block(team, start..end);
    } else {
        team.run(|worker, workers| {
            let mut scratch = Scratch::new(shape);
            let items = num_kv_heads * chunks;
            for item in items * worker / workers..items * (worker + 1) / workers {
                let first = item % chunks * ROWS;
                call.by_rows(item / chunks, first..(first + ROWS).min(m), &mut scratch);
            }
        });
    }
}

/// Query rows that go through the blocks together, so that a block is read from memory once for them.
const ROWS: usize = 8;

/// The most f32 the blocks' results may take, to be joined afterwards.
const MAX_PARTIAL: usize = 1 << 21;

/// One call of [`attention`].
struct Call<'a> {
    level: Level,
    shape: &'a AttentionShape,
    q: &'a [f32],
    k: &'a [f32],
    v: &'a [f32],
    rows: &'a [RowKeys<'a>],
    out: Cells,
}

impl Call<'_> {
    /// Query heads of a key head.
    fn group(&self) -> usize {
        self.shape.num_heads / self.shape.num_kv_heads
    }

    /// Some rows of one key head, block after block.
    fn by_rows(&self, kv_head: usize, rows: Range<usize>, scratch: &mut Scratch) {
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let keys = &self.rows[rows.clone()];
        let start = keys.iter().map(RowKeys::start).min().unwrap_or(0) / BLOCK;
        let end = keys.iter().map(RowKeys::end).max().unwrap_or(0).div_ceil(BLOCK);
        let Scratch { block, states, sums } = scratch;
        states.fill(0.0);
        sums.fill((f32::NEG_INFINITY, 0.0));
        for b in start..end {
            for (i, row) in rows.clone().enumerate() {
                if self.block(kv_head, row, b, block) {
                    let first = b == self.rows[row].blocks().start;
                    for h in 0..group {
                        let part = Part {
                            max: block.max[h],
                            sum: block.sum[h],
                            acc: &block.acc[h * head_dim..][..head_dim],
                        };
                        let at = i * group + h;
                        join(
                            self.level,
                            &mut sums[at],
                            &mut states[at * head_dim..][..head_dim],
                            &part,
                            first,
                        );
                    }
                }
            }
        }
        for (i, row) in rows.enumerate() {
            for h in 0..group {
                let at = i * group + h;
                // SAFETY: the cell exists, and this item alone has this row and head.
                let out = unsafe { self.out.get(row * self.shape.num_heads + kv_head * group + h) };
                finish(sums[at].1, &states[at * head_dim..][..head_dim], out);
            }
        }
    }

    /// All rows, the blocks shared out among the workers and joined afterwards: for few rows.
    fn by_block(&self, team: &Team, range: Range<usize>) {
        let (m, heads, head_dim, blocks) =
            (self.rows.len(), self.shape.num_heads, self.shape.head_dim, range.len());
        let group = self.group();
        let width = head_dim + 2; // acc, max, sum
        PARTIAL.with_borrow_mut(|partial| {
            partial.resize(partial.len().max(m * heads * blocks * width), 0.0);
            let cells = Cells { data: partial.as_mut_ptr(), width };
            team.run(|worker, workers| {
                let mut scratch = Scratch::new(self.shape);
                let items = self.shape.num_kv_heads * blocks;
                for item in items * worker / workers..items * (worker + 1) / workers {
                    let (kv_head, b) = (item / blocks, item % blocks);
                    for row in 0..m {
                        if self.block(kv_head, row, range.start + b, &mut scratch.block) {
                            for h in 0..group {
                                // SAFETY: the cell exists, and this item alone has this block and head.
                                let cell =
                                    unsafe { cells.get((row * heads + kv_head * group + h) * blocks + b) };
                                cell[..head_dim]
                                    .copy_from_slice(&scratch.block.acc[h * head_dim..][..head_dim]);
                                cell[head_dim] = scratch.block.max[h];
                                cell[head_dim + 1] = scratch.block.sum[h];
                            }
                        }
                    }
                }
            });
            let partial = &partial[..];
            team.run(|worker, workers| {
                let mut state = vec![0.0; head_dim];
                let items = m * heads;
                for item in items * worker / workers..items * (worker + 1) / workers {
                    let keys = &self.rows[item / heads];
                    let mut sum = (f32::NEG_INFINITY, 0.0);
                    for b in keys.blocks() {
                        let cell = &partial[(item * blocks + b - range.start) * width..][..width];
                        let part =
                            Part { max: cell[head_dim], sum: cell[head_dim + 1], acc: &cell[..head_dim] };
                        join(self.level, &mut sum, &mut state, &part, b == keys.blocks().start);
                    }
                    // SAFETY: the cell exists, and this item alone has this row and head.
                    finish(sum.1, &state, unsafe { self.out.get(item) });
                }
            });
        });
    }

    /// Row `row` with block `b`: all query heads of `kv_head`. False where the row sees nothing there.
    fn block(&self, kv_head: usize, row: usize, b: usize, block: &mut Block) -> bool {
        let keys = &self.rows[row];
        let (first, end) = (keys.start().max(b * BLOCK), keys.end().min((b + 1) * BLOCK));
        if first >= end {
            return false;
        }
        let &AttentionShape { num_heads, num_kv_heads, head_dim, .. } = self.shape;
        let mut slots = [0usize; BLOCK];
        for (slot, position) in slots.iter_mut().zip(first..end) {
            *slot = (keys.slot(position) * num_kv_heads + kv_head) * head_dim;
        }
        let slots = &slots[..end - first];
        let group = self.group();
        let q = &self.q[(row * num_heads + kv_head * group) * head_dim..][..group * head_dim];
        let (shape, k, v, first) = (self.shape, self.k, self.v, first % BLOCK);
        dispatch!(self.level, |S| fn(
            shape: &AttentionShape, q: &[f32], k: &[f32], v: &[f32], slots: &[usize], first: usize, block: &mut Block,
        ) {
            scores::<S>(shape, q, k, slots, first, block);
            weights(shape, block);
            values::<S>(shape, v, slots, first, block);
        });
        true
    }
}

thread_local! {
    /// Results of blocks, kept from call to call.
    static PARTIAL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// What a worker needs to hold.
struct Scratch {
    block: Block,
    /// Running values, `[ROWS, group, head_dim]`.
    states: Vec<f32>,
    /// Running maximums and sums, `[ROWS, group]`.
    sums: Vec<(f32, f32)>,
}

/// One row and one block: the query heads that share a key head.
struct Block {
    /// `[group, BLOCK]`: scores, then their exponentials.
    p: Vec<[f32; BLOCK]>,
    max: Vec<f32>,
    sum: Vec<f32>,
    /// `[group, head_dim]`.
    acc: Vec<f32>,
}

impl Scratch {
    fn new(shape: &AttentionShape) -> Self {
        let group = shape.num_heads / shape.num_kv_heads;
        Self {
            block: Block {
                p: vec![[0.0; BLOCK]; group],
                max: vec![0.0; group],
                sum: vec![0.0; group],
                acc: vec![0.0; group * shape.head_dim],
            },
            states: vec![0.0; ROWS * group * shape.head_dim],
            sums: vec![(0.0, 0.0); ROWS * group],
        }
    }
}

/// The result of a block for one head.
struct Part<'a> {
    max: f32,
    sum: f32,
    acc: &'a [f32],
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

/// Takes a block into the running maximum and sum (`total`) and values (`acc`).
fn join(level: Level, total: &mut (f32, f32), acc: &mut [f32], part: &Part<'_>, first: bool) {
    if first {
        *total = (part.max, part.sum);
        acc.copy_from_slice(part.acc);
        return;
    }
    let max = if part.max > total.0 { part.max } else { total.0 };
    let (old_scale, new_scale) = (exp(total.0 - max), exp(part.max - max));
    *total = (max, total.1 * old_scale + part.sum * new_scale);
    let new = part.acc;
    dispatch!(level, |S| fn(acc: &mut [f32], new: &[f32], old_scale: f32, new_scale: f32) {
        for (acc, new) in acc.iter_mut().zip(new) {
            *acc = *acc * old_scale + new * new_scale;
        }
    });
}

fn finish(sum: f32, acc: &[f32], out: &mut [f32]) {
    if sum == 0.0 {
        out.fill(0.0); // the row sees nothing
        return;
    }
    for (o, acc) in out.iter_mut().zip(acc) {
        *o = acc / sum;
    }
}

/// Cells of `width` f32, written by different workers.
struct Cells {
    data: *mut f32,
    width: usize,
}

// SAFETY: workers take different cells.
unsafe impl Sync for Cells {}

impl Cells {
    /// # Safety
    /// The cell must exist, and no other reference to it may.
    #[allow(clippy::mut_from_ref, reason = "each cell is taken once at a time")]
    unsafe fn get(&self, item: usize) -> &mut [f32] {
        // SAFETY: the caller vouches for it.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(item * self.width), self.width) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::testing::Rng;
    use proptest::prelude::*;

    struct Case {
        shape: AttentionShape,
        q: Vec<f32>,
        k: Vec<f32>,
        v: Vec<f32>,
    }

    fn case(rng: &mut Rng, m: usize, slots: usize, kv_heads: usize, group: usize, head_dim: usize) -> Case {
        let num_heads = kv_heads * group;
        let shape = AttentionShape {
            num_heads,
            num_kv_heads: kv_heads,
            head_dim,
            scale: 1.0 / (head_dim as f32).sqrt(),
            softcap: if rng.next().is_multiple_of(2) { Some(5.0) } else { None },
        };
        let q = rng.normals(m * num_heads * head_dim).iter().map(|x| x * 3.0).collect();
        Case {
            shape,
            q,
            k: rng.normals(slots * kv_heads * head_dim),
            v: rng.normals(slots * kv_heads * head_dim),
        }
    }

    impl Case {
        fn run(&self, level: Level, threads: usize, rows: &[RowKeys<'_>]) -> Vec<u32> {
            let mut out = vec![f32::NAN; self.q.len()];
            attention_at(level, &Team::new(threads), &self.shape, &self.q, &self.k, &self.v, rows, &mut out);
            out.iter().map(|x| x.to_bits()).collect()
        }

        /// Softmax by the book, in f64.
        fn naive(&self, rows: &[RowKeys<'_>]) -> Vec<f64> {
            let AttentionShape { num_heads, num_kv_heads, head_dim, scale, softcap } = self.shape;
            let mut out = vec![0.0; self.q.len()];
            for (r, keys) in rows.iter().enumerate() {
                let slots: Vec<usize> =
                    keys.prefix.clone().chain(keys.tail.iter().map(|&slot| slot as usize)).collect();
                for h in 0..num_heads {
                    let at = |slot: usize| (slot * num_kv_heads + h / (num_heads / num_kv_heads)) * head_dim;
                    let q = &self.q[(r * num_heads + h) * head_dim..][..head_dim];
                    let scores: Vec<f64> = slots
                        .iter()
                        .map(|&slot| {
                            let dot: f64 = q
                                .iter()
                                .zip(&self.k[at(slot)..])
                                .map(|(&q, &k)| f64::from(q) * f64::from(k))
                                .sum();
                            let s = dot * f64::from(scale);
                            softcap.map_or(s, |cap| f64::from(cap) * (s / f64::from(cap)).tanh())
                        })
                        .collect();
                    let max = scores.iter().copied().fold(f64::MIN, f64::max);
                    let sum: f64 = scores.iter().map(|s| (s - max).exp()).sum();
                    for (&slot, s) in slots.iter().zip(&scores) {
                        for d in 0..head_dim {
                            out[(r * num_heads + h) * head_dim + d] +=
                                (s - max).exp() / sum * f64::from(self.v[at(slot) + d]);
                        }
                    }
                }
            }
            out
        }
    }

    /// Rows `from..from + m` of a chain, each seeing itself and at most `window` positions.
    fn chain(from: usize, m: usize, window: usize) -> Vec<RowKeys<'static>> {
        (from + 1..=from + m)
            .map(|end| RowKeys { prefix: end.saturating_sub(window)..end, tail: &[] })
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn equals_the_textbook_and_itself(
            from in 0usize..400, m in 1usize..=19, window in prop_oneof![1usize..150, Just(1000)],
            kv_heads in 1usize..=2, group in 1usize..=6, head_dim in prop_oneof![Just(8), Just(24), Just(64), Just(80), Just(128)],
            threads in 1usize..=4, seed: u64,
        ) {
            let mut rng = Rng::new(seed);
            let case = case(&mut rng, m, from + m, kv_heads, group, head_dim);
            let rows = chain(from, m, window);
            let got = case.run(Level::get(), threads, &rows);
            for (got, want) in got.iter().zip(case.naive(&rows)) {
                let got = f64::from(f32::from_bits(*got));
                prop_assert!((got - want).abs() < 2e-5, "{} for {}", got, want);
            }
            for level in Level::available() {
                prop_assert_eq!(&case.run(level, 1, &rows), &got, "{:?}", level);
            }
            // Each row alone, from the other end.
            let width = case.shape.num_heads * head_dim;
            for r in (0..m).rev() {
                let one = Case { q: case.q[r * width..(r + 1) * width].to_vec(), k: case.k.clone(), v: case.v.clone(), ..case };
                prop_assert_eq!(&one.run(Level::get(), threads, &rows[r..r + 1])[..], &got[r * width..(r + 1) * width]);
            }
        }

        #[test]
        fn a_tail_equals_a_chain(
            prefix in 0usize..200, tail in 1usize..80, start in 0usize..200, group in 1usize..=3, seed: u64,
        ) {
            let mut rng = Rng::new(seed);
            let (head_dim, slots, start) = (40, prefix + 2 * tail, start.min(prefix));
            let mut case = case(&mut rng, 1, slots, 1, group, head_dim);
            let chain = case.run(Level::get(), 2, &[RowKeys { prefix: start..prefix + tail, tail: &[] }]);
            // The same keys at the same positions, in other slots; what they leave is made useless.
            let places: Vec<u32> = (0..tail).map(|i| (slots - 1 - i) as u32).collect();
            for cache in [&mut case.k, &mut case.v] {
                let old = cache.clone();
                cache[prefix * head_dim..].fill(f32::NAN);
                for (i, &slot) in places.iter().enumerate() {
                    cache[slot as usize * head_dim..][..head_dim]
                        .copy_from_slice(&old[(prefix + i) * head_dim..][..head_dim]);
                }
            }
            let tree = case.run(Level::get(), 2, &[RowKeys { prefix: start..prefix, tail: &places }]);
            prop_assert_eq!(chain, tree);
        }
    }

    #[test]
    fn long_contexts_take_the_same_bits_on_both_schedules() {
        let mut rng = Rng::new(11);
        let case = case(&mut rng, 3, 1500, 2, 3, 32);
        let rows = chain(1490, 3, 10_000);
        let by_block = case.run(Level::get(), 3, &rows);
        let mut out = vec![0.0; case.q.len()];
        let call = Call {
            level: Level::get(),
            shape: &case.shape,
            q: &case.q,
            k: &case.k,
            v: &case.v,
            rows: &rows,
            out: Cells { data: out.as_mut_ptr(), width: 32 },
        };
        let mut scratch = Scratch::new(&case.shape);
        call.by_rows(0, 0..3, &mut scratch);
        call.by_rows(1, 0..3, &mut scratch);
        assert_eq!(out.iter().map(|x| x.to_bits()).collect::<Vec<_>>(), by_block);
    }

    #[test]
    fn a_row_that_sees_nothing_gets_zeros_and_a_bad_number_stays_in_its_row() {
        let mut case = case(&mut Rng::new(1), 3, 70, 1, 2, 16);
        let rows = [
            RowKeys { prefix: 0..70, tail: &[] },
            RowKeys { prefix: 5..5, tail: &[] },
            RowKeys { prefix: 0..0, tail: &[3, 9] },
        ];
        let clean = case.run(Level::get(), 2, &rows);
        assert!(clean[32..64].iter().all(|&x| x == 0));
        case.q[3] = f32::NAN;
        let out = case.run(Level::get(), 2, &rows);
        assert!(out[..16].iter().all(|&x| f32::from_bits(x).is_nan()));
        assert_eq!(out[16..], clean[16..]);
    }
}
