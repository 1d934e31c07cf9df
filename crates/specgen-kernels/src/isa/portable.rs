//! The lanes as arrays: what any CPU can do, vectorised where the compiler finds a way.

use half::f16;

use super::Isa;
use crate::definition::add_lanes;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type I = [i32; 16];
type F = [f32; 16];

#[inline(always)]
fn map(a: I, f: impl Fn(i32) -> i32) -> I {
    a.map(f)
}

#[inline(always)]
fn zip(mut a: I, b: I, f: impl Fn(i32, i32) -> i32) -> I {
    for (a, b) in a.iter_mut().zip(b) {
        *a = f(*a, b);
    }
    a
}

impl Isa for Portable {
    type I = I;
    type F = F;
    const ROWS: usize = 1;

    #[inline(always)]
    unsafe fn columns(from: *const u8, stride: usize) -> [I; 4] {
        let mut lines = [[0; 16]; 4];
        for n in 0..16 {
            let row = from.add(n * stride).cast::<[[u8; 4]; 4]>().read_unaligned();
            for (line, bytes) in lines.iter_mut().zip(row) {
                line[n] = i32::from_le_bytes(bytes);
            }
        }
        lines
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> I {
        from.cast::<I>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store(to: *mut u8, v: I) {
        to.cast::<I>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> I {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn and(a: I, b: I) -> I {
        zip(a, b, |a, b| a & b)
    }
    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        zip(a, b, |a, b| a | b)
    }
    #[inline(always)]
    unsafe fn xor(a: I, b: I) -> I {
        zip(a, b, |a, b| a ^ b)
    }
    #[inline(always)]
    unsafe fn shl(a: I, bits: i32) -> I {
        map(a, |a| a << bits)
    }
    #[inline(always)]
    unsafe fn shr(a: I, bits: i32) -> I {
        map(a, |a| (a.cast_unsigned() >> bits).cast_signed())
    }
    #[inline(always)]
    unsafe fn sar(a: I, bits: i32) -> I {
        map(a, |a| a >> bits)
    }
    #[inline(always)]
    unsafe fn add(a: I, b: I) -> I {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: I, b: I) -> I {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: I, b: I) -> I {
        zip(a, b, i32::wrapping_mul)
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(mut acc: I, w: I, x: [i8; 4]) -> I {
        for (acc, w) in acc.iter_mut().zip(w) {
            let w = w.to_le_bytes();
            for b in 0..4 {
                *acc += i32::from(w[b]) * i32::from(x[b]);
            }
        }
        acc
    }
    #[inline(always)]
    unsafe fn dot2(mut acc: I, w: I, x: [i16; 2]) -> I {
        for (acc, w) in acc.iter_mut().zip(w) {
            *acc += i32::from(w as i16) * i32::from(x[0]) + (w >> 16) * i32::from(x[1]);
        }
        acc
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn f16_to_f(a: I) -> F {
        a.map(|a| f16::from_bits(a as u16).to_f32_const())
    }
    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> F {
        from.cast::<[[u8; 2]; 16]>().read_unaligned().map(|b| f16::from_le_bytes(b).to_f32_const())
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> F {
        let halves = from.cast::<[[u8; 2]; 16]>().read_unaligned();
        halves.map(|b| f32::from_bits(u32::from(u16::from_le_bytes(b)) << 16))
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> F {
        from.cast::<F>().read_unaligned()
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: F) {
        to.cast::<F>().write_unaligned(v);
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn mul_f(mut a: F, b: F) -> F {
        for (a, b) in a.iter_mut().zip(b) {
            *a *= b;
        }
        a
    }
    #[inline(always)]
    unsafe fn fma(a: F, b: F, mut c: F) -> F {
        for ((a, b), c) in a.into_iter().zip(b).zip(&mut c) {
            *c = a.mul_add(b, *c);
        }
        c
    }
    #[inline(always)]
    unsafe fn fms(a: F, b: F, mut c: F) -> F {
        for ((a, b), c) in a.into_iter().zip(b).zip(&mut c) {
            *c = a.mul_add(b, -*c);
        }
        c
    }
    #[inline(always)]
    unsafe fn sum_f(a: F) -> f32 {
        add_lanes(a)
    }
    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
}
