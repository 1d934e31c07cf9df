//! From the bytes of 16 neighbouring weight rows to lines: the layouts of `blocks.rs`, 16 rows at a time.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "the contract of `Layout::unpack` covers every body")]
#![allow(clippy::missing_safety_doc, reason = "said once, at `Layout::unpack`")]

use crate::Format;
use crate::isa::IntIsa;
use crate::tile::Tile;

/// How a quantised format lies in memory, and which terms its product has.
pub(crate) trait Layout {
    const FORMAT: Format;
    /// Elements of a block.
    const LEN: usize = Self::FORMAT.block_len();
    /// Bytes of a block.
    const BYTES: usize = Self::FORMAT.block_bytes();
    /// What is taken from every stored integer.
    const OFFSET: i32 = crate::blocks::offset(Self::FORMAT);
    /// Whether stored integers exceed 63.
    const WIDE: bool = matches!(Self::FORMAT, Format::Q8_0);
    /// Sub-blocks with scales of their own.
    const SUBS: usize;
    /// Whether there are minimums.
    const MIN: bool;

    /// Unpacks one block of each of 16 rows, `stride` bytes apart. `ahead` says where the same number
    /// of bytes will be wanted soon; asking for them a few at a time keeps the memory busy throughout.
    ///
    /// # Safety
    /// `from` points to a whole block in each row, and the CPU has what `S` needs.
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile);
}

#[allow(non_camel_case_types, reason = "the field writes it so")]
pub(crate) struct Q4_0;
#[allow(non_camel_case_types, reason = "the field writes it so")]
pub(crate) struct Q4_1;
#[allow(non_camel_case_types, reason = "the field writes it so")]
pub(crate) struct Q5_0;
#[allow(non_camel_case_types, reason = "the field writes it so")]
pub(crate) struct Q5_1;
#[allow(non_camel_case_types, reason = "the field writes it so")]
pub(crate) struct Q8_0;
pub(crate) struct Q2K;
pub(crate) struct Q3K;
pub(crate) struct Q4K;
pub(crate) struct Q5K;
pub(crate) struct Q6K;

/// Asks for part `part` of `PARTS` of the 16 blocks at `ahead`.
#[inline(always)]
unsafe fn prefetch<S: IntIsa, L: Layout, const PARTS: usize>(ahead: *const u8, part: usize) {
    let lines = (16 * L::BYTES).div_ceil(64);
    for line in lines * part / PARTS..lines * (part + 1) / PARTS {
        S::prefetch(ahead.wrapping_add(64 * line));
    }
}

/// `v & bits`, the same bits in every byte.
#[inline(always)]
unsafe fn mask<S: IntIsa>(v: S::I, bits: u8) -> S::I {
    S::and(v, S::splat(i32::from_ne_bytes([bits; 4])))
}

/// Byte `b` of each lane.
#[inline(always)]
unsafe fn byte<S: IntIsa>(v: S::I, b: usize) -> S::I {
    S::and(S::shr(v, 8 * b as i32), S::splat(0xff))
}

/// Low nibbles.
#[inline(always)]
unsafe fn low<S: IntIsa>(v: S::I) -> S::I {
    mask::<S>(v, 15)
}

/// High nibbles.
#[inline(always)]
unsafe fn high<S: IntIsa>(v: S::I) -> S::I {
    mask::<S>(S::shr(v, 4), 15)
}

#[inline(always)]
unsafe fn put<S: IntIsa>(tile: &mut Tile, line: usize, v: S::I) {
    S::store(tile.lines[line].as_mut_ptr(), v);
}

/// 32 bytes of each row as 8 lines.
#[inline(always)]
unsafe fn columns_32<S: IntIsa>(from: *const u8, stride: usize) -> [S::I; 8] {
    let [a, b, c, d] = S::columns(from, stride);
    let [e, f, g, h] = S::columns(from.add(16), stride);
    [a, b, c, d, e, f, g, h]
}

#[inline(always)]
unsafe fn set_d<S: IntIsa>(tile: &mut Tile, halves: S::I) {
    S::store_f(tile.d.as_mut_ptr(), S::f16_to_f(halves));
}

/// d in the low half, m or dmin in the high one.
#[inline(always)]
unsafe fn set_d_m<S: IntIsa>(tile: &mut Tile, v: S::I) {
    set_d::<S>(tile, v);
    S::store_f(tile.m.as_mut_ptr(), S::f16_to_f(S::shr(v, 16)));
}

/// 16 bytes of nibbles, and for the 5-bit formats a word of fifth bits for each row.
#[inline(always)]
unsafe fn nibbles_32<S: IntIsa>(from: *const u8, stride: usize, fifth: Option<S::I>, tile: &mut Tile) {
    let packed = S::columns(from, stride);
    for (l, v) in packed.into_iter().enumerate() {
        let (mut lo, mut hi) = (low::<S>(v), high::<S>(v));
        if let Some(bits) = fifth {
            lo = S::or(lo, spread::<S>(S::shr(bits, 4 * l as i32)));
            hi = S::or(hi, spread::<S>(S::shr(bits, 16 + 4 * l as i32)));
        }
        put::<S>(tile, l, lo);
        put::<S>(tile, l + 4, hi);
    }
}

/// Bits 0..4 of each lane to bit 4 of its bytes 0..4.
#[inline(always)]
unsafe fn spread<S: IntIsa>(v: S::I) -> S::I {
    // The product has bit b at b, b + 7, b + 14, b + 21, no two at one place.
    let copies = S::mul(S::and(v, S::splat(15)), S::splat(0x0020_4081));
    S::shl(mask::<S>(copies, 1), 4)
}

impl Layout for Q4_0 {
    const FORMAT: Format = Format::Q4_0;
    const SUBS: usize = 1;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        prefetch::<S, Self, 1>(ahead, 0);
        set_d::<S>(tile, S::columns(from, stride)[0]);
        nibbles_32::<S>(from.add(2), stride, None, tile);
    }
}

impl Layout for Q4_1 {
    const FORMAT: Format = Format::Q4_1;
    const SUBS: usize = 1;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        prefetch::<S, Self, 1>(ahead, 0);
        set_d_m::<S>(tile, S::columns(from, stride)[0]);
        nibbles_32::<S>(from.add(4), stride, None, tile);
    }
}

impl Layout for Q5_0 {
    const FORMAT: Format = Format::Q5_0;
    const SUBS: usize = 1;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        prefetch::<S, Self, 1>(ahead, 0);
        let [d_and_fifth, fifth_and_q, ..] = S::columns(from, stride);
        set_d::<S>(tile, d_and_fifth);
        let fifth = S::or(S::shr(d_and_fifth, 16), S::shl(fifth_and_q, 16));
        nibbles_32::<S>(from.add(6), stride, Some(fifth), tile);
    }
}

impl Layout for Q5_1 {
    const FORMAT: Format = Format::Q5_1;
    const SUBS: usize = 1;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        prefetch::<S, Self, 1>(ahead, 0);
        let [d_m, fifth, ..] = S::columns(from, stride);
        set_d_m::<S>(tile, d_m);
        nibbles_32::<S>(from.add(8), stride, Some(fifth), tile);
    }
}

impl Layout for Q8_0 {
    const FORMAT: Format = Format::Q8_0;
    const SUBS: usize = 1;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        prefetch::<S, Self, 1>(ahead, 0);
        set_d::<S>(tile, S::columns(from, stride)[0]);
        for (l, v) in columns_32::<S>(from.add(2), stride).into_iter().enumerate() {
            put::<S>(tile, l, S::xor(v, S::splat(0x8080_8080_u32.cast_signed())));
        }
    }
}

/// The header Q4_K and Q5_K share: d, dmin, eight 6-bit scales and minimums in 12 bytes.
#[inline(always)]
unsafe fn header_4k<S: IntIsa>(from: *const u8, stride: usize, tile: &mut Tile) {
    let [d_m, a, b, c] = S::columns(from, stride);
    set_d_m::<S>(tile, d_m);
    let scales = [mask::<S>(a, 63), S::or(low::<S>(c), mask::<S>(S::shr(a, 2), 0x30))];
    let mins = [mask::<S>(b, 63), S::or(high::<S>(c), mask::<S>(S::shr(b, 2), 0x30))];
    for (half, (scales, mins)) in scales.into_iter().zip(mins).enumerate() {
        for i in 0..4 {
            S::store(tile.scales[4 * half + i].as_mut_ptr().cast(), byte::<S>(scales, i));
        }
        for p in 0..2 {
            let pair = S::or(byte::<S>(mins, 2 * p), S::shl(byte::<S>(mins, 2 * p + 1), 16));
            S::store(tile.mins[2 * half + p].as_mut_ptr().cast(), pair);
        }
    }
}

impl Layout for Q4K {
    const FORMAT: Format = Format::Q4_K;
    const SUBS: usize = 8;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        header_4k::<S>(from, stride, tile);
        for run in 0..4 {
            prefetch::<S, Self, 4>(ahead, run);
            let packed = columns_32::<S>(from.add(16 + 32 * run), stride);
            for (l, v) in packed.into_iter().enumerate() {
                put::<S>(tile, 16 * run + l, low::<S>(v));
                put::<S>(tile, 16 * run + 8 + l, high::<S>(v));
            }
        }
    }
}

impl Layout for Q5K {
    const FORMAT: Format = Format::Q5_K;
    const SUBS: usize = 8;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        header_4k::<S>(from, stride, tile);
        let fifth = columns_32::<S>(from.add(16), stride);
        for run in 0..4 {
            prefetch::<S, Self, 4>(ahead, run);
            let packed = columns_32::<S>(from.add(48 + 32 * run), stride);
            for (l, v) in packed.into_iter().enumerate() {
                let bits = S::shr(fifth[l], 2 * run as i32);
                let lo = S::or(low::<S>(v), S::shl(mask::<S>(bits, 1), 4));
                let hi = S::or(high::<S>(v), S::shl(mask::<S>(bits, 2), 3));
                put::<S>(tile, 16 * run + l, lo);
                put::<S>(tile, 16 * run + 8 + l, hi);
            }
        }
    }
}

impl Layout for Q6K {
    const FORMAT: Format = Format::Q6_K;
    const SUBS: usize = 16;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        set_d::<S>(tile, S::shr(S::columns(from.add(194), stride)[3], 16));
        for (j, v) in S::columns(from.add(192), stride).into_iter().enumerate() {
            for b in 0..4 {
                let scale = S::sar(S::shl(v, 24 - 8 * b), 24);
                S::store(tile.scales[4 * j + b as usize].as_mut_ptr().cast(), scale);
            }
        }
        for half in 0..2 {
            prefetch::<S, Self, 4>(ahead, 2 * half);
            let first = columns_32::<S>(from.add(64 * half), stride);
            let second = columns_32::<S>(from.add(64 * half + 32), stride);
            let top = columns_32::<S>(from.add(128 + 32 * half), stride);
            prefetch::<S, Self, 4>(ahead, 2 * half + 1);
            for l in 0..8 {
                let (a, b, t) = (first[l], second[l], top[l]);
                let at = 32 * half + l;
                put::<S>(tile, at, S::or(low::<S>(a), mask::<S>(S::shl(t, 4), 0x30)));
                put::<S>(tile, at + 8, S::or(low::<S>(b), mask::<S>(S::shl(t, 2), 0x30)));
                put::<S>(tile, at + 16, S::or(high::<S>(a), mask::<S>(t, 0x30)));
                put::<S>(tile, at + 24, S::or(high::<S>(b), mask::<S>(S::shr(t, 2), 0x30)));
            }
        }
    }
}

impl Layout for Q2K {
    const FORMAT: Format = Format::Q2_K;
    const SUBS: usize = 16;
    const MIN: bool = true;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        set_d_m::<S>(tile, S::columns(from.add(68), stride)[3]);
        for (j, v) in S::columns(from, stride).into_iter().enumerate() {
            let (scales, mins) = (low::<S>(v), high::<S>(v));
            for b in 0..4 {
                S::store(tile.scales[4 * j + b].as_mut_ptr().cast(), byte::<S>(scales, b));
            }
            for p in 0..2 {
                let pair = S::or(byte::<S>(mins, 2 * p), S::shl(byte::<S>(mins, 2 * p + 1), 16));
                S::store(tile.mins[2 * j + p].as_mut_ptr().cast(), pair);
            }
        }
        for half in 0..2 {
            prefetch::<S, Self, 4>(ahead, 2 * half);
            let packed = columns_32::<S>(from.add(16 + 32 * half), stride);
            prefetch::<S, Self, 4>(ahead, 2 * half + 1);
            for (l, v) in packed.into_iter().enumerate() {
                for plane in 0..4 {
                    put::<S>(tile, 32 * half + 8 * plane + l, mask::<S>(S::shr(v, 2 * plane as i32), 3));
                }
            }
        }
    }
}

impl Layout for Q3K {
    const FORMAT: Format = Format::Q3_K;
    const SUBS: usize = 16;
    const MIN: bool = false;
    #[inline(always)]
    unsafe fn unpack<S: IntIsa>(from: *const u8, stride: usize, ahead: *const u8, tile: &mut Tile) {
        set_d::<S>(tile, S::shr(S::columns(from.add(94), stride)[3], 16));
        let [_, a, b, top] = S::columns(from.add(92), stride);
        let nibbles = [low::<S>(a), low::<S>(b), high::<S>(a), high::<S>(b)];
        for (j, nibbles) in nibbles.into_iter().enumerate() {
            let top = mask::<S>(S::shr(top, 2 * j as i32), 3);
            let scales = S::or(nibbles, S::shl(top, 4));
            for b in 0..4 {
                let scale = S::sub(byte::<S>(scales, b), S::splat(32));
                S::store(tile.scales[4 * j + b].as_mut_ptr().cast(), scale);
            }
        }
        let third = columns_32::<S>(from, stride);
        for half in 0..2 {
            prefetch::<S, Self, 4>(ahead, 2 * half);
            let packed = columns_32::<S>(from.add(32 + 32 * half), stride);
            prefetch::<S, Self, 4>(ahead, 2 * half + 1);
            for (l, v) in packed.into_iter().enumerate() {
                for plane in 0..4 {
                    let bit = mask::<S>(S::shr(third[l], (4 * half + plane) as i32), 1);
                    let two = mask::<S>(S::shr(v, 2 * plane as i32), 3);
                    put::<S>(tile, 32 * half + 8 * plane + l, S::or(two, S::shl(bit, 2)));
                }
            }
        }
    }
}
