//! Softmax attention of query rows over a slot cache, in fixed blocks of keys.
//!
//! Keys are ordered by position and cut into blocks of 64 positions counted from 0, so that a row's
//! numbers depend on what it sees and at which positions, never on where a window, a batch or a
//! draft tree has put it. In a block: `mb = max s`, `p = exp(s - mb)`, `lb = sum p`, `ob = sum p v`;
//! blocks are then joined in ascending order with a running maximum (Milakov and Gimelshein 2018).
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ops::Range;

use self::block::{Block, Keys, Room, Wide};
use crate::element::Element;
use crate::isa::{Level, dispatch};
use crate::kv::{BLOCK, Store, typed};
use crate::math::exp;
use crate::{KvStore, Team};

mod block;
#[cfg(test)]
mod tests;

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
pub struct RowKeys {
    /// Cache slots that lie at the positions of their own number.
    pub prefix: Range<usize>,
    /// The slots at positions `prefix.end`, `prefix.end + 1`, and so on.
    pub tail: Vec<u32>,
}

impl RowKeys {
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

    /// What lies at the positions `first..end`: slots of the prefix, then of the tail.
    fn slots(&self, first: usize, end: usize) -> (Range<usize>, &[u32]) {
        let split = self.prefix.end.clamp(first, end);
        (first..split, &self.tail[split - self.prefix.end.min(split)..end - self.prefix.end.min(end)])
    }
}

/// Attention of `m` query rows: `out = softmax(scale * q k^T) v` per head.
///
/// `q` and `out` are `[m, num_heads, head_dim]`, the rows of `kv` `[num_kv_heads, head_dim]`,
/// `rows` holds what each query row sees. A row that sees nothing gets zeros.
///
/// # Panics
/// If the lengths do not agree or a row names a slot that is not there.
pub fn attention(
    team: &Team,
    shape: &AttentionShape,
    q: &[f32],
    kv: &KvStore,
    rows: &[RowKeys],
    out: &mut [f32],
) {
    attention_at(Level::get(), team, shape, q, kv, rows, out);
}

/// [`attention`] with the instructions of `level`.
pub(crate) fn attention_at(
    level: Level,
    team: &Team,
    shape: &AttentionShape,
    q: &[f32],
    kv: &KvStore,
    rows: &[RowKeys],
    out: &mut [f32],
) {
    let m = rows.len();
    let &AttentionShape { num_heads, num_kv_heads, head_dim, .. } = shape;
    assert_eq!(q.len(), m * num_heads * head_dim, "queries of {m} rows");
    assert_eq!(out.len(), q.len(), "output of {m} rows");
    if q.is_empty() {
        return;
    }
    assert!(
        num_kv_heads > 0 && num_heads.is_multiple_of(num_kv_heads),
        "{num_heads} heads over {num_kv_heads}"
    );
    assert_eq!(kv.kv_dim(), num_kv_heads * head_dim, "elements of a row of keys");
    let slots = kv.slots();
    for row in rows {
        assert!(row.prefix.is_empty() || row.prefix.end <= slots, "slots {:?} of {slots}", row.prefix);
        assert!(row.tail.iter().all(|&slot| (slot as usize) < slots), "tail slots beyond {slots}");
    }
    let out = Cells { data: out.as_mut_ptr(), width: head_dim };
    typed!(&kv.0, kv => Call { level, shape, q, kv, rows, out }.run(team));
}

/// Query rows that go through the blocks together, so that a block is read from memory once for them.
const ROWS: usize = 8;

/// The most f32 the blocks' results may take, to be joined afterwards.
const MAX_PARTIAL: usize = 1 << 21;

/// One call of [`attention`].
struct Call<'a, E> {
    level: Level,
    shape: &'a AttentionShape,
    q: &'a [f32],
    kv: &'a Store<E>,
    rows: &'a [RowKeys],
    out: Cells,
}

impl<E: Element> Call<'_, E> {
    fn run(&self, team: &Team) {
        let &AttentionShape { num_heads, num_kv_heads, head_dim, .. } = self.shape;
        let (rows, m) = (self.rows, self.rows.len());
        let start = rows.iter().map(RowKeys::start).min().unwrap_or(0) / BLOCK;
        let end = rows.iter().map(RowKeys::end).max().unwrap_or(0).div_ceil(BLOCK);
        let blocks = end.saturating_sub(start);
        let chunks = m.div_ceil(ROWS);
        let partial_len = m * num_heads * blocks * (head_dim + 2);
        if blocks > 1 && num_kv_heads * chunks < 4 * team.threads() && partial_len <= MAX_PARTIAL {
            self.by_block(team, start..end);
        } else {
            team.run(|worker, workers| {
                Scratch::with(self.shape, |scratch| {
                    let items = num_kv_heads * chunks;
                    for item in items * worker / workers..items * (worker + 1) / workers {
                        let first = item % chunks * ROWS;
                        self.by_rows(item / chunks, first..(first + ROWS).min(m), scratch);
                    }
                });
            });
        }
    }

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
        let Scratch { block, room, states, sums } = scratch;
        states.fill(0.0);
        sums.fill((f32::NEG_INFINITY, 0.0));
        for b in start..end {
            let wide = self.widen(kv_head, rows.clone(), b, room);
            for (i, row) in rows.clone().enumerate() {
                if self.block(kv_head, row, b, wide, block) {
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
                finish(self.level, sums[at].1, &states[at * head_dim..][..head_dim], out);
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
                Scratch::with(self.shape, |Scratch { block, room, .. }| {
                    let items = self.shape.num_kv_heads * blocks;
                    for item in items * worker / workers..items * (worker + 1) / workers {
                        let (kv_head, b) = (item / blocks, item % blocks);
                        let wide = self.widen(kv_head, 0..m, range.start + b, room);
                        for row in 0..m {
                            if self.block(kv_head, row, range.start + b, wide, block) {
                                for h in 0..group {
                                    // SAFETY: the cell exists, and this item alone has this block and head.
                                    let cell = unsafe {
                                        cells.get((row * heads + kv_head * group + h) * blocks + b)
                                    };
                                    cell[..head_dim].copy_from_slice(&block.acc[h * head_dim..][..head_dim]);
                                    cell[head_dim] = block.max[h];
                                    cell[head_dim + 1] = block.sum[h];
                                }
                            }
                        }
                    }
                });
            });
            let partial = &partial[..];
            team.run(|worker, workers| {
                Scratch::with(self.shape, |Scratch { states, .. }| {
                    let state = &mut states[..head_dim];
                    let items = m * heads;
                    for item in items * worker / workers..items * (worker + 1) / workers {
                        let keys = &self.rows[item / heads];
                        let mut sum = (f32::NEG_INFINITY, 0.0);
                        for b in keys.blocks() {
                            let cell = &partial[(item * blocks + b - range.start) * width..][..width];
                            let part =
                                Part { max: cell[head_dim], sum: cell[head_dim + 1], acc: &cell[..head_dim] };
                            join(self.level, &mut sum, state, &part, b == keys.blocks().start);
                        }
                        // SAFETY: the cell exists, and this item alone has this row and head.
                        finish(self.level, sum.1, state, unsafe { self.out.get(item) });
                    }
                });
            });
        });
    }

    /// What `rows` see of block `b` in slots that equal their positions, in f32.
    fn widen<'a>(&'a self, kv_head: usize, rows: Range<usize>, b: usize, room: &'a mut Room) -> Wide<'a> {
        let seen = self.rows[rows].iter().map(|row| {
            let start = row.prefix.start.max(b * BLOCK);
            start..row.prefix.end.min((b + 1) * BLOCK)
        });
        let seen = seen.filter(|slots| !slots.is_empty());
        let slots = seen.reduce(|a, b| a.start.min(b.start)..a.end.max(b.end)).unwrap_or_default();
        room.widen(self.level, self.shape, self.kv, kv_head, slots)
    }

    /// Row `row` with block `b`: all query heads of `kv_head`. False where the row sees nothing there.
    fn block(&self, kv_head: usize, row: usize, b: usize, wide: Wide<'_>, block: &mut Block) -> bool {
        let keys = &self.rows[row];
        let (first, end) = (keys.start().max(b * BLOCK), keys.end().min((b + 1) * BLOCK));
        if first >= end {
            return false;
        }
        let (group, head_dim) = (self.group(), self.shape.head_dim);
        let q = &self.q[(row * self.shape.num_heads + kv_head * group) * head_dim..][..group * head_dim];
        let (prefix, tail) = keys.slots(first, end);
        block.compute(self.level, self.shape, q, &Keys { kv: self.kv, kv_head, prefix, wide, tail });
        true
    }
}

thread_local! {
    /// Results of blocks, kept from call to call.
    static PARTIAL: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// A thread's own, kept likewise.
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Lets go of what this thread keeps, so that it is allocated anew.
#[cfg(all(test, unix, not(miri)))]
pub(crate) fn forget() {
    drop((PARTIAL.take(), SCRATCH.take()));
}

/// What a worker needs to hold.
#[derive(Default)]
struct Scratch {
    block: Block,
    room: Room,
    /// Running values, `[ROWS, group, head_dim]`.
    states: Vec<f32>,
    /// Running maximums and sums, `[ROWS, group]`.
    sums: Vec<(f32, f32)>,
}

impl Scratch {
    /// `f` with the thread's own, in the size of `shape`.
    fn with(shape: &AttentionShape, f: impl FnOnce(&mut Self)) {
        SCRATCH.with_borrow_mut(|scratch| {
            let group = shape.num_heads / shape.num_kv_heads;
            scratch.block.fit(shape);
            scratch.states.resize(ROWS * group * shape.head_dim, 0.0);
            scratch.sums.resize(ROWS * group, (0.0, 0.0));
            f(scratch);
        });
    }
}

/// The result of a block for one head.
struct Part<'a> {
    max: f32,
    sum: f32,
    acc: &'a [f32],
}

/// Takes a block into the running maximum and sum (`total`) and values (`acc`).
fn join(level: Level, total: &mut (f32, f32), acc: &mut [f32], part: &Part<'_>, first: bool) {
    if first {
        *total = (part.max, part.sum);
        acc.copy_from_slice(part.acc);
        return;
    }
    // The exponentials too: without the CPU's extras each step of theirs is a call.
    dispatch!(level, |S| fn(total: &mut (f32, f32), acc: &mut [f32], part: &Part<'_>) {
        let max = if part.max > total.0 { part.max } else { total.0 };
        let (old_scale, new_scale) = (exp(total.0 - max), exp(part.max - max));
        *total = (max, total.1 * old_scale + part.sum * new_scale);
        for (acc, new) in acc.iter_mut().zip(part.acc) {
            *acc = *acc * old_scale + new * new_scale;
        }
    });
}

fn finish(level: Level, sum: f32, acc: &[f32], out: &mut [f32]) {
    if sum == 0.0 {
        out.fill(0.0); // the row sees nothing
        return;
    }
    dispatch!(level, |S| fn(sum: f32, acc: &[f32], out: &mut [f32]) {
        for (o, acc) in out.iter_mut().zip(acc) {
            *o = acc / sum;
        }
    });
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
