//! The input of a matmul and its quantised forms, each made once and shared by all weights it meets.
//!
//! A row is cut into blocks of 256 (for the K formats) or 32 (for the `_0` and `_1` ones). In a
//! block, `d = amax / 127` and `q = round_ties_even(x * (127 / amax))`, so `q` is in -127..=127.
//! A block whose `amax` is under 2^-100 is all zeros. One that holds an infinity or a NaN has
//! `d = NaN` and `q = 0`: every output of the row is then NaN.
#![allow(unsafe_code)]

use std::cell::RefCell;

use crate::Team;
#[cfg(test)]
use crate::definition::QuantizedBlock;
use crate::isa::{Level, dispatch};
use crate::layout::LINE;

/// Activations `[rows, cols]`, f32, with their quantised forms.
#[derive(Debug)]
pub struct Activations<'a> {
    x: &'a [f32],
    rows: usize,
    cols: usize,
    by_256: Option<Quantized>,
    by_32: Option<Quantized>,
}

/// Q6_K's offset: what is taken from a product with its unsigned integers is kept ready.
pub(crate) const LESS: i32 = 32;

/// 64 bytes that lie in one line of the cache: a register of the matrix unit is read from 16 lines, not 32.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
struct Line(#[cfg_attr(not(test), expect(dead_code, reason = "read through pointers"))] [i8; LINE]);

impl Line {
    /// The first `len` bytes.
    fn bytes(lines: &mut [Self], len: usize) -> &mut [i8] {
        let all = LINE * lines.len();
        // SAFETY: a line is 64 integers and nothing else.
        unsafe { &mut std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast::<i8>(), all)[..len] }
    }
}

/// Rows quantised block by block. The rows of a block lie together, as a block of weights meets them.
#[derive(Debug, Default)]
pub(crate) struct Quantized {
    /// See [`Quantized::q`].
    lines: Vec<Line>,
    /// `[cols / block_len, rows]`.
    pub(crate) d: Vec<f32>,
    /// Sums of `q` over runs of 16 (blocks of 256) or of 32 (blocks of 32): `[.., rows, block_len / run]`.
    pub(crate) sums: Vec<i16>,
    /// Blocks of 256 only: sums over runs of 32, `[.., rows, 8]`.
    pub(crate) sums_32: Vec<i16>,
    /// Blocks of 256 only: [`LESS`] times `sums`, negated.
    pub(crate) less: Vec<i32>,
    /// Blocks of 256 only: sums over all of them, `[.., rows]`.
    pub(crate) total: Vec<i32>,
    /// Blocks of 32 only: `d` times the sum.
    pub(crate) d_sum: Vec<f32>,
}

impl<'a> Activations<'a> {
    /// Activations `[rows, cols]` in `x`. Nothing is computed yet.
    ///
    /// # Panics
    /// If `x` isn't `rows * cols` long.
    pub fn new(x: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(rows.checked_mul(cols), Some(x.len()), "activations of {rows} rows by {cols}");
        Self { x, rows, cols, by_256: None, by_32: None }
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The f32 values.
    pub(crate) fn values(&self) -> &'a [f32] {
        self.x
    }

    /// Makes the form with blocks of `block_len` (32 or 256; 1 needs none) unless it is there.
    pub(crate) fn prepare(&mut self, team: &Team, level: Level, block_len: usize) {
        let place = match block_len {
            256 => &mut self.by_256,
            32 => &mut self.by_32,
            _ => return,
        };
        if place.is_none() {
            *place = Some(Quantized::new(team, level, self.x, self.rows, block_len));
        }
    }

    /// The form with blocks of `block_len`.
    pub(crate) fn quantized(&self, block_len: usize) -> &Quantized {
        let place = if block_len == 256 { &self.by_256 } else { &self.by_32 };
        place.as_ref().expect("prepared before the threads start")
    }
}

impl Drop for Activations<'_> {
    fn drop(&mut self) {
        SPARE.with_borrow_mut(|spare| {
            spare.extend([self.by_256.take(), self.by_32.take()].into_iter().flatten())
        });
    }
}

thread_local! {
    /// Buffers of activations that are gone, for the next: a decoding loop allocates no large ones.
    static SPARE: RefCell<Vec<Quantized>> = const { RefCell::new(Vec::new()) };
}

impl Quantized {
    fn new(team: &Team, level: Level, x: &[f32], rows: usize, block_len: usize) -> Self {
        let (run, of_256) = (Self::run(block_len), block_len == 256);
        let mut new = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
        // What is left over from others is overwritten below.
        new.lines.resize(x.len().div_ceil(LINE), Line([0; LINE]));
        new.d.resize(x.len() / block_len, 0.0);
        new.sums.resize(x.len() / run, 0);
        new.sums_32.resize(if of_256 { x.len() / 32 } else { 0 }, 0);
        new.less.resize(if of_256 { x.len() / run } else { 0 }, 0);
        new.total.resize(if of_256 { x.len() / 256 } else { 0 }, 0);
        new.d_sum.resize(if of_256 { 0 } else { x.len() / 32 }, 0.0);
        if x.is_empty() {
            return new;
        }
        let blocks = x.len() / rows / block_len;
        let mut rest = Part {
            first: 0,
            q: Line::bytes(&mut new.lines, x.len()),
            d: &mut new.d,
            sums: &mut new.sums,
            sums_32: &mut new.sums_32,
            less: &mut new.less,
            total: &mut new.total,
            d_sum: &mut new.d_sum,
        };
        /// Elements from which on a split pays.
        const SMALL: usize = if cfg!(miri) { 64 } else { 32_768 };
        if x.len() < SMALL {
            rest.quantize(level, x, rows, block_len);
        } else {
            team.share(
                blocks,
                rest,
                |rest, share| rest.split(share.len(), rows, block_len),
                |mut part| part.quantize(level, x, rows, block_len),
            );
        }
        new
    }

    /// Block `block` of row `row` of `rows`.
    #[cfg(test)]
    pub(crate) fn block(
        &self,
        block_len: usize,
        rows: usize,
        row: usize,
        block: usize,
    ) -> QuantizedBlock<'_> {
        let (i, sums) = (block * rows + row, block_len / Self::run(block_len));
        let run = Self::line(block_len);
        let mut q = [0; 256];
        for (line, q) in q[..block_len].chunks_exact_mut(run).enumerate() {
            let from = block * rows * block_len + (line * rows + row) * run;
            let lines = from / LINE..(from + run).div_ceil(LINE);
            let bytes: Vec<i8> = self.lines[lines].iter().flat_map(|line| line.0).collect();
            q.copy_from_slice(&bytes[from % LINE..][..run]);
        }
        QuantizedBlock { q, len: block_len, d: self.d[i], sums: &self.sums[i * sums..(i + 1) * sums] }
    }

    /// The integers, `[cols / block_len, block_len / line, rows, line]`: what the rows of a register of the
    /// matrix unit hold lies side by side.
    pub(crate) fn q(&self) -> *const i8 {
        self.lines.as_ptr().cast()
    }

    /// Elements of a row that lie together.
    pub(crate) const fn line(block_len: usize) -> usize {
        if block_len < LINE { block_len } else { LINE }
    }

    /// Elements that share a sum.
    pub(crate) fn run(block_len: usize) -> usize {
        block_len.min(if block_len == 256 { 16 } else { 32 })
    }
}

/// Where the quantised form of some neighbouring blocks of all rows goes.
struct Part<'a> {
    /// The first of the blocks.
    first: usize,
    q: &'a mut [i8],
    d: &'a mut [f32],
    sums: &'a mut [i16],
    sums_32: &'a mut [i16],
    less: &'a mut [i32],
    total: &'a mut [i32],
    d_sum: &'a mut [f32],
}

impl<'a> Part<'a> {
    /// Takes the first `blocks` away.
    fn split(&mut self, blocks: usize, rows: usize, block_len: usize) -> Self {
        fn take<'a, T>(from: &mut &'a mut [T], len: usize) -> &'a mut [T] {
            from.split_off_mut(..len.min(from.len())).expect("no more than there are")
        }
        let (len, run) = (blocks * rows * block_len, Quantized::run(block_len));
        self.first += blocks;
        Self {
            first: self.first - blocks,
            q: take(&mut self.q, len),
            d: take(&mut self.d, blocks * rows),
            sums: take(&mut self.sums, len / run),
            sums_32: take(&mut self.sums_32, len / 32),
            less: take(&mut self.less, len / run),
            total: take(&mut self.total, blocks * rows),
            d_sum: take(&mut self.d_sum, len / 32),
        }
    }

    fn quantize(&mut self, level: Level, x: &[f32], rows: usize, block_len: usize) {
        let part = self;
        dispatch!(level, |S| fn(part: &mut Part<'_>, x: &[f32], rows: usize, block_len: usize) {
            if block_len == 256 {
                quantize_blocks::<256, 16>(part, x, rows);
                for (sum, pair) in part.sums_32.iter_mut().zip(part.sums.as_chunks::<2>().0) {
                    *sum = pair[0] + pair[1];
                }
                for (less, sum) in part.less.iter_mut().zip(part.sums.iter()) {
                    *less = -LESS * i32::from(*sum);
                }
                for (total, sums) in part.total.iter_mut().zip(part.sums.as_chunks::<16>().0) {
                    *total = sums.iter().map(|&sum| i32::from(sum)).sum();
                }
            } else {
                quantize_blocks::<32, 32>(part, x, rows);
                for ((d_sum, d), sum) in part.d_sum.iter_mut().zip(part.d.iter()).zip(part.sums.iter()) {
                    *d_sum = d * f32::from(*sum);
                }
            }
        });
    }
}

#[inline(always)]
fn quantize_blocks<const LEN: usize, const RUN: usize>(part: &mut Part<'_>, x: &[f32], rows: usize) {
    let (cols, line) = (x.len() / rows, Quantized::line(LEN));
    for (i, (d, sums)) in part.d.iter_mut().zip(part.sums.chunks_exact_mut(LEN / RUN)).enumerate() {
        let (block, row) = (i / rows, i % rows);
        let x =
            x[row * cols + (part.first + block) * LEN..].first_chunk::<LEN>().expect("a row is whole blocks");
        let mut q = [0; LEN];
        *d = quantize_block(x, &mut q);
        for (sum, q) in sums.iter_mut().zip(q.as_chunks::<RUN>().0) {
            *sum = q.iter().map(|&q| i16::from(q)).sum();
        }
        let lines = part.q[block * rows * LEN..][..rows * LEN].chunks_exact_mut(line).skip(row).step_by(rows);
        for (to, q) in lines.zip(q.chunks_exact(line)) {
            to.copy_from_slice(q);
        }
    }
}

#[inline(always)]
fn quantize_block<const LEN: usize>(x: &[f32; LEN], q: &mut [i8; LEN]) -> f32 {
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    const SMALLEST: f32 = 7.888_609e-31; // 2^-100: 127 / amax stays finite
    // Without the sign bit, the order of the bits is that of the values, with NaN above infinity.
    let amax_bits = x.iter().fold(0, |m: u32, x| m.max(x.to_bits() & 0x7fff_ffff));
    let amax = f32::from_bits(amax_bits);
    if !amax.is_finite() || amax < SMALLEST {
        q.fill(0);
        return if amax.is_finite() { 0.0 } else { f32::NAN };
    }
    let inverse = 127.0 / amax;
    for (q, x) in q.iter_mut().zip(x) {
        *q = (x * inverse + ROUND).to_bits() as u8 as i8; // the low byte of the mantissa is the integer
    }
    amax / 127.0
}
