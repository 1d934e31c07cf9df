//! The lanes as arrays: what any CPU can do, vectorised where the compiler finds a way.

use half::f16;

use super::Isa;
use crate::definition::add_lanes;

/// Plain Rust.
#[derive(Clone, Copy)]
pub(crate) struct Portable;

type F = [f32; 16];

impl Isa for Portable {
    type F = F;
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
}
