//! Softmax attention of query rows over a slot cache, in fixed blocks of keys.
//!
//! Keys are ordered by position and cut into blocks of 64 positions counted from 0, so that a row's
//! numbers depend on what it sees and at which positions, never on where a window, a batch or a
//! draft tree has put it. In a block: `mb = max s`, `p = exp(s - mb)`, `lb = sum p`, `ob = sum p v`;
//! blocks are then joined in ascending order with a running maximum (Milakov and Gimelshein 2018).
#![allow(unsafe_code)]

use std::ops::Range;

use crate::Team;
use crate::definition::{LANES, add_lanes};
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
    let cells = Cells { data: out.as_mut_ptr(), head_dim };
    team.run(|worker, workers| {
        let mut state = State::new(head_dim);
        let items = m * num_heads;
        for item in items * worker / workers..items * (worker + 1) / workers {
            let (row, head) = (item / num_heads, item % num_heads);
            let kv = Head {
                k,
                v,
                stride: num_kv_heads * head_dim,
                first: head * num_kv_heads / num_heads * head_dim,
            };
            state.attend(shape, &q[item * head_dim..(item + 1) * head_dim], &kv, &rows[row]);
            // SAFETY: `item < m * num_heads`, and items are split among the workers.
            let out = unsafe { cells.get(item) };
            state.write(out);
        }
    });
}

/// Keys and values of one head.
struct Head<'a> {
    k: &'a [f32],
    v: &'a [f32],
    /// From slot to slot.
    stride: usize,
    /// The head's first element in a slot.
    first: usize,
}

impl Head<'_> {
    fn key(&self, slot: usize, head_dim: usize) -> &[f32] {
        &self.k[slot * self.stride + self.first..][..head_dim]
    }

    fn value(&self, slot: usize, head_dim: usize) -> &[f32] {
        &self.v[slot * self.stride + self.first..][..head_dim]
    }
}

/// The running softmax of one query head.
struct State {
    max: f32,
    sum: f32,
    acc: Vec<f32>,
    block_acc: Vec<f32>,
}

impl State {
    fn new(head_dim: usize) -> Self {
        Self { max: f32::NEG_INFINITY, sum: 0.0, acc: vec![0.0; head_dim], block_acc: vec![0.0; head_dim] }
    }

    fn attend(&mut self, shape: &AttentionShape, q: &[f32], kv: &Head<'_>, keys: &RowKeys<'_>) {
        self.max = f32::NEG_INFINITY;
        self.sum = 0.0;
        self.acc.fill(0.0);
        let (mut start, end) = (keys.start(), keys.end());
        let mut first = true;
        while start < end {
            let stop = end.min((start / BLOCK + 1) * BLOCK);
            let mut p = [f32::NEG_INFINITY; BLOCK];
            let mut max = f32::NEG_INFINITY;
            for position in start..stop {
                let mut s = dot(q, kv.key(keys.slot(position), q.len())) * shape.scale;
                if let Some(cap) = shape.softcap {
                    s = cap * tanh(s / cap);
                }
                p[position % BLOCK] = s;
                max = max.max(s);
            }
            let mut lanes = [0.0f32; LANES];
            for (i, p) in p.iter_mut().enumerate() {
                *p = exp(*p - max); // 0 for positions that are not there
                lanes[i % LANES] += *p;
            }
            let sum = add_lanes(lanes);
            self.block_acc.fill(0.0);
            for position in start..stop {
                let p = p[position % BLOCK];
                for (o, v) in self.block_acc.iter_mut().zip(kv.value(keys.slot(position), q.len())) {
                    *o = p.mul_add(*v, *o);
                }
            }
            self.join(max, sum, first);
            first = false;
            start = stop;
        }
    }

    /// Takes in a block.
    fn join(&mut self, max: f32, sum: f32, first: bool) {
        if first {
            (self.max, self.sum) = (max, sum);
            std::mem::swap(&mut self.acc, &mut self.block_acc);
            return;
        }
        let new_max = self.max.max(max);
        let (old_scale, new_scale) = (exp(self.max - new_max), exp(max - new_max));
        self.max = new_max;
        self.sum = self.sum * old_scale + sum * new_scale;
        for (acc, new) in self.acc.iter_mut().zip(&self.block_acc) {
            *acc = *acc * old_scale + new * new_scale;
        }
    }

    fn write(&self, out: &mut [f32]) {
        if self.sum == 0.0 {
            out.fill(0.0);
            return;
        }
        for (o, acc) in out.iter_mut().zip(&self.acc) {
            *o = acc / self.sum;
        }
    }
}

/// The dot product in 16 lanes, as a dense matmul has it.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((lane, a), b) in lanes.iter_mut().zip(a).zip(b) {
            *lane = a.mul_add(*b, *lane);
        }
    }
    add_lanes(lanes)
}

/// The output, one cell of `head_dim` for each row and head.
struct Cells {
    data: *mut f32,
    head_dim: usize,
}

// SAFETY: workers take different cells.
unsafe impl Sync for Cells {}

impl Cells {
    /// # Safety
    /// The cell must exist, and no other reference to it may.
    #[allow(clippy::mut_from_ref, reason = "each cell is taken once")]
    unsafe fn get(&self, item: usize) -> &mut [f32] {
        // SAFETY: the caller vouches for it.
        unsafe { std::slice::from_raw_parts_mut(self.data.add(item * self.head_dim), self.head_dim) }
    }
}
