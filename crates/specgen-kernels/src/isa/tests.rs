//! Every kind's operations against the scalar ones, at the ends of what they may be given.
#![allow(unsafe_code, reason = "the operations are unsafe")]
use super::*;
use crate::testing::Rng;

/// Bytes that are there when the last vector is read.
const SLACK: usize = 64;

/// The results of all operations on `bytes`.
fn results(level: Level, bytes: &[u8], out: &mut Vec<u32>) {
    dispatch!(level, |S| fn(bytes: &[u8], out: &mut Vec<u32>) {
        let keep = |out: &mut Vec<u32>, v: S::F| {
            let mut lanes = [0.0f32; 16];
            // SAFETY: 16 lanes have room; the CPU has the level.
            unsafe { S::store_f(lanes.as_mut_ptr(), v) };
            out.extend(lanes.map(f32::to_bits));
        };
        for at in (0..bytes.len() - SLACK).step_by(16) {
            let from = bytes[at..at + SLACK].as_ptr();
            let [a, b, c, d, ..] = *bytes[at + 5..].first_chunk::<8>().expect("there is slack");
            // Wider than f32's 24 bits, so that rounding shows; below half of i32, so that sums fit.
            let wide = S::shr(S::load(from), 2);
            let quarter = [b, c, d, a].map(|b| b.cast_signed().max(-127));
            let integers = [
                wide,
                S::load_u8(from),
                S::load_i8(from),
                S::load_u8_pairs(from),
                S::and(S::load(from), S::splat(0x0f0f_3f3f)),
                S::or(S::load_u8(from), S::splat(i32::from(a) << 9)),
                S::shl(S::load_u8(from), i32::from(b % 8)),
                S::shr(S::load(from), i32::from(c % 32)),
                S::add(wide, S::splat(-i32::from(d))),
                S::mul(S::load_i8(from), S::splat(-77_777)),
                S::dot4::<false>(wide, S::and(S::load(from), S::splat(0x3f3f_3f3f)), quarter),
                S::dot4::<true>(wide, S::load(from), quarter),
                S::dot4::<true>(S::splat(1), S::splat(-1), [-127, -127, -127, 127 - (a % 2).cast_signed()]),
                S::dot2(wide, S::load_u8_pairs(from), [-4064, 4064 - i16::from(a)]),
                S::dot2(S::splat(-1), S::splat(-0x7fff_7fff), [i16::from(c) - 4064, 4064]),
            ];
            for i in integers {
                // All 32 bits: as numbers of 16.
                keep(out, S::to_f(S::and(i, S::splat(0xffff))));
                keep(out, S::to_f(S::shr(i, 16)));
                keep(out, S::to_f(i));
            }
            let (x, y) = (S::to_f(wide), S::to_f(S::load_i8(from)));
            let z = S::to_f(S::dot4::<true>(S::splat(7), S::load(from), quarter));
            let third = S::splat_f(1.0 / 3.0);
            let floats = [S::fma(x, third, y), S::fms(x, third, z), S::add_f(x, y), S::mul_f(z, third)];
            for f in floats {
                keep(out, f);
                out.push(S::sum_f(f).to_bits());
            }
        }
    });
}

/// All halves that are numbers or infinite, as f16 and as bf16.
fn halves(level: Level, out: &mut Vec<u32>) {
    let is_number = |h: u16| h & 0x7c00 != 0x7c00 || h & 0x3ff == 0;
    let step = if cfg!(miri) { 2003 } else { 1 };
    let f16: Vec<u8> =
        (0..=u16::MAX).step_by(step).filter(|&h| is_number(h)).flat_map(u16::to_le_bytes).collect();
    let bf16: Vec<u8> =
        (0..0x7f80u16).step_by(step).flat_map(|h| [h, h | 0x8000]).flat_map(u16::to_le_bytes).collect();
    let (f16, bf16) = (f16.as_chunks::<32>().0, bf16.as_chunks::<32>().0);
    dispatch!(level, |S| fn(f16: &[[u8; 32]], bf16: &[[u8; 32]], out: &mut Vec<u32>) {
        let mut lanes = [0.0f32; 16];
        for halves in f16 {
            S::store_f(lanes.as_mut_ptr(), S::load_f16(halves.as_ptr()));
            out.extend(lanes.map(f32::to_bits));
        }
        for halves in bf16 {
            S::store_f(lanes.as_mut_ptr(), S::load_bf16(halves.as_ptr()));
            out.extend(lanes.map(f32::to_bits));
        }
    });
}

#[test]
fn all_kinds_give_the_same_bits() {
    let mut rng = Rng::new(1);
    let (len, of_ends) = if cfg!(miri) { (16, 16) } else { (1 << 14, 64) };
    let mut bytes: Vec<u8> = (0..len).map(|_| (rng.next() >> 32) as u8).collect();
    for ends in [[0u8; 64], [0xff; 64], [0x80; 64], [0x7f; 64]] {
        bytes.extend(&ends[..of_ends]);
    }
    bytes.extend([0; SLACK]);
    let run = |level| {
        let mut out = Vec::new();
        results(level, &bytes, &mut out);
        halves(level, &mut out);
        out
    };
    let scalar = run(Level::Portable);
    for level in Level::available() {
        let out = run(level);
        assert_eq!(out.len(), scalar.len());
        let at = out.iter().zip(&scalar).position(|(a, b)| a != b);
        assert_eq!(at, None, "{level:?}: {:x} for {:x}", out[at.unwrap_or(0)], scalar[at.unwrap_or(0)]);
    }
}

#[test]
fn names_are_those_of_their_levels() {
    for level in Level::available() {
        assert_eq!(Level::named(level.name()), Some(level));
    }
    assert_eq!(available_isas()[0], "scalar");
    assert!(!choose_isa("mmx"));
}
