//! The lanes as arrays: what any CPU can do, vectorised where the compiler finds a way.

use half::f16;

use super::Isa;
use crate::definition::add_lanes;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type F = [f32; 16];
type I = [i32; 16];

impl Isa for Portable {
    type F = F;
    type I = I;
    const ROWS: usize = 1;

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
    unsafe fn fma(a: F, b: F, mut c: F) -> F {
        for ((a, b), c) in a.into_iter().zip(b).zip(&mut c) {
            *c = a.mul_add(b, *c);
        }
        c
    }
    #[inline(always)]
    unsafe fn sum_f(a: F) -> f32 {
        add_lanes(a)
    }
    #[inline(always)]
    unsafe fn prefetch(_at: *const u8) {}
    #[inline(always)]
    unsafe fn load(from: *const u8) -> I {
        from.cast::<[[u8; 4]; 16]>().read_unaligned().map(i32::from_le_bytes)
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> I {
        from.cast::<[u8; 16]>().read_unaligned().map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> I {
        from.cast::<[i8; 16]>().read_unaligned().map(i32::from)
    }
    #[inline(always)]
    unsafe fn load_u8_pairs(from: *const u8) -> I {
        from.cast::<[[u8; 2]; 16]>().read_unaligned().map(|[a, b]| i32::from(a) | i32::from(b) << 16)
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> I {
        [x; 16]
    }
    #[inline(always)]
    unsafe fn and(a: I, b: I) -> I {
        lanes(|n| a[n] & b[n])
    }
    #[inline(always)]
    unsafe fn or(a: I, b: I) -> I {
        lanes(|n| a[n] | b[n])
    }
    #[inline(always)]
    unsafe fn shl(a: I, bits: i32) -> I {
        a.map(|a| a << bits)
    }
    #[inline(always)]
    unsafe fn shr(a: I, bits: i32) -> I {
        a.map(|a| (a.cast_unsigned() >> bits).cast_signed())
    }
    #[inline(always)]
    unsafe fn add(a: I, b: I) -> I {
        lanes(|n| a[n] + b[n])
    }
    #[inline(always)]
    unsafe fn mul(a: I, b: I) -> I {
        lanes(|n| a[n] * b[n])
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I, w: I, x: [i8; 4]) -> I {
        let x = x.map(i32::from);
        lanes(|n| {
            let w = w[n].to_le_bytes().map(i32::from);
            acc[n] + w[0] * x[0] + w[1] * x[1] + w[2] * x[2] + w[3] * x[3]
        })
    }
    #[inline(always)]
    unsafe fn dot2(acc: I, w: I, x: [i16; 2]) -> I {
        let x = x.map(i32::from);
        lanes(|n| acc[n] + i32::from(w[n] as i16) * x[0] + (w[n] >> 16) * x[1])
    }
    #[inline(always)]
    unsafe fn to_f(a: I) -> F {
        a.map(|a| a as f32)
    }
    #[inline(always)]
    unsafe fn add_f(a: F, b: F) -> F {
        std::array::from_fn(|n| a[n] + b[n])
    }
    #[inline(always)]
    unsafe fn mul_f(a: F, b: F) -> F {
        std::array::from_fn(|n| a[n] * b[n])
    }
    #[inline(always)]
    unsafe fn fms(a: F, b: F, c: F) -> F {
        std::array::from_fn(|n| a[n].mul_add(b[n], -c[n]))
    }
}

#[inline(always)]
fn lanes(f: impl Fn(usize) -> i32) -> I {
    std::array::from_fn(f)
}
