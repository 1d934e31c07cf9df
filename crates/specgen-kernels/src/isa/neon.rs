//! The lanes on 64-bit ARM: four 128-bit registers with NEON, which every such CPU has, and its byte products
//! where it has them too.

use std::arch::aarch64::*;
use std::arch::asm;

use super::Isa;

/// NEON. `DOT`: with the sums of four byte products of Armv8.2 (`dotprod`).
#[derive(Clone, Copy)]
pub(crate) struct Neon<const DOT: bool>;

type I4 = [int32x4_t; 4];
type F4 = [float32x4_t; 4];

/// All quarters, a register each.
macro_rules! quarters {
    (|$($v:ident),+| $e:expr) => {
        [
            { $(let $v = $v[0];)+ $e },
            { $(let $v = $v[1];)+ $e },
            { $(let $v = $v[2];)+ $e },
            { $(let $v = $v[3];)+ $e },
        ]
    };
}

impl<const DOT: bool> Isa for Neon<DOT> {
    type F = F4;
    type I = I4;
    /// The 32 registers hold the lines of two rows' step at best; from there on lines are read again, which
    /// the CPU does beside the products, while more rows still share the work of unpacking.
    const ROWS: usize = 4;

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> F4 {
        let halves = vld1q_u16_x2(from.cast());
        let [a, b] = [vreinterpretq_f16_u16(halves.0), vreinterpretq_f16_u16(halves.1)];
        [
            vcvt_f32_f16(vget_low_f16(a)),
            vcvt_high_f32_f16(a),
            vcvt_f32_f16(vget_low_f16(b)),
            vcvt_high_f32_f16(b),
        ]
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> F4 {
        let uint16x8x2_t(a, b) = vld1q_u16_x2(from.cast());
        let halves = [vget_low_u16(a), vget_high_u16(a), vget_low_u16(b), vget_high_u16(b)];
        quarters!(|halves| vreinterpretq_f32_u32(vshll_n_u16::<16>(halves)))
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> F4 {
        [vld1q_f32(from), vld1q_f32(from.add(4)), vld1q_f32(from.add(8)), vld1q_f32(from.add(12))]
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: F4) {
        vst1q_f32(to, v[0]);
        vst1q_f32(to.add(4), v[1]);
        vst1q_f32(to.add(8), v[2]);
        vst1q_f32(to.add(12), v[3]);
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F4 {
        [vdupq_n_f32(x); 4]
    }
    #[inline(always)]
    unsafe fn fma(a: F4, b: F4, c: F4) -> F4 {
        quarters!(|a, b, c| vfmaq_f32(c, a, b))
    }
    /// Lanes `i` and `i + 8` are added, then `i + 4`, `i + 2`, `i + 1`.
    #[inline(always)]
    unsafe fn sum_f(a: F4) -> f32 {
        let a = vaddq_f32(vaddq_f32(a[0], a[2]), vaddq_f32(a[1], a[3]));
        vpadds_f32(vadd_f32(vget_low_f32(a), vget_high_f32(a)))
    }
    /// Into the second-level cache. Inline assembly, as there is no stable intrinsic.
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        asm!("prfm pldl2keep, [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
    }

    #[inline(always)]
    unsafe fn load(from: *const u8) -> I4 {
        let from = [from, from.add(16), from.add(32), from.add(48)];
        quarters!(|from| vreinterpretq_s32_u8(vld1q_u8(from)))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> I4 {
        let bytes = vld1q_u8(from);
        let (a, b) = (vmovl_u8(vget_low_u8(bytes)), vmovl_high_u8(bytes));
        let halves = [vget_low_u16(a), vget_high_u16(a), vget_low_u16(b), vget_high_u16(b)];
        quarters!(|halves| vreinterpretq_s32_u32(vmovl_u16(halves)))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> I4 {
        let bytes = vld1q_s8(from.cast());
        let (a, b) = (vmovl_s8(vget_low_s8(bytes)), vmovl_high_s8(bytes));
        let halves = [vget_low_s16(a), vget_high_s16(a), vget_low_s16(b), vget_high_s16(b)];
        quarters!(|halves| vmovl_s16(halves))
    }
    #[inline(always)]
    unsafe fn load_u8_pairs(from: *const u8) -> I4 {
        let uint8x16x2_t(a, b) = vld1q_u8_x2(from);
        let bytes = [vget_low_u8(a), vget_high_u8(a), vget_low_u8(b), vget_high_u8(b)];
        quarters!(|bytes| vreinterpretq_s32_u16(vmovl_u8(bytes)))
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> I4 {
        [vdupq_n_s32(x); 4]
    }
    #[inline(always)]
    unsafe fn and(a: I4, b: I4) -> I4 {
        quarters!(|a, b| vandq_s32(a, b))
    }
    #[inline(always)]
    unsafe fn or(a: I4, b: I4) -> I4 {
        quarters!(|a, b| vorrq_s32(a, b))
    }
    #[inline(always)]
    unsafe fn shl(a: I4, bits: i32) -> I4 {
        let bits = vdupq_n_s32(bits);
        quarters!(|a| vshlq_s32(a, bits))
    }
    #[inline(always)]
    unsafe fn shr(a: I4, bits: i32) -> I4 {
        let left = vdupq_n_s32(-bits);
        quarters!(|a| vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), left)))
    }
    #[inline(always)]
    unsafe fn add(a: I4, b: I4) -> I4 {
        quarters!(|a, b| vaddq_s32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: I4, b: I4) -> I4 {
        quarters!(|a, b| vmulq_s32(a, b))
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I4, w: I4, x: [i8; 4]) -> I4 {
        let x = vreinterpretq_s8_s32(vdupq_n_s32(i32::from_le_bytes(x.map(i8::cast_unsigned))));
        match (DOT, WIDE) {
            (true, false) => quarters!(|acc, w| sdot(acc, vreinterpretq_s8_s32(w), x)),
            (true, true) => {
                // As a signed byte the top bit is -128 instead of 128: it meets the negated activation.
                let (low, minus_x) = (vdupq_n_s8(0x7f), vnegq_s8(x));
                quarters!(|acc, w| {
                    let w = vreinterpretq_s8_s32(w);
                    sdot(sdot(acc, vandq_s8(w, low), x), vbicq_s8(w, low), minus_x)
                })
            }
            (false, false) => quarters!(|acc, w| {
                // Two products of up to 63 * 128 fit a half.
                let w = vreinterpretq_s8_s32(w);
                let products = (vmull_s8(vget_low_s8(w), vget_low_s8(x)), vmull_high_s8(w, x));
                vpadalq_s16(acc, vpaddq_s16(products.0, products.1))
            }),
            (false, true) => {
                let x = vmovl_s8(vget_low_s8(x));
                quarters!(|acc, w| {
                    let w = vreinterpretq_u8_s32(w);
                    let low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(w)));
                    let high = vreinterpretq_s16_u16(vmovl_high_u8(w));
                    // A product of up to 255 * 128 fits a half, but no sum of two does.
                    let (low, high) = (vpaddlq_s16(vmulq_s16(low, x)), vpaddlq_s16(vmulq_s16(high, x)));
                    vaddq_s32(acc, vpaddq_s32(low, high))
                })
            }
        }
    }
    #[inline(always)]
    unsafe fn dot2(acc: I4, w: I4, x: [i16; 2]) -> I4 {
        let x = vreinterpretq_s16_s32(vdupq_n_s32(i32::from(x[0] as u16) | i32::from(x[1]) << 16));
        quarters!(|acc, w| {
            let w = vreinterpretq_s16_s32(w);
            let products = (vmull_s16(vget_low_s16(w), vget_low_s16(x)), vmull_high_s16(w, x));
            vaddq_s32(acc, vpaddq_s32(products.0, products.1))
        })
    }
    #[inline(always)]
    unsafe fn to_f(a: I4) -> F4 {
        quarters!(|a| vcvtq_f32_s32(a))
    }
    #[inline(always)]
    unsafe fn add_f(a: F4, b: F4) -> F4 {
        quarters!(|a, b| vaddq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn mul_f(a: F4, b: F4) -> F4 {
        quarters!(|a, b| vmulq_f32(a, b))
    }
    #[inline(always)]
    unsafe fn fms(a: F4, b: F4, c: F4) -> F4 {
        quarters!(|a, b, c| vfmaq_f32(vnegq_f32(c), a, b))
    }
}

/// `acc + sum of a[b] * b[b]` over the 4 bytes of each lane. Inline assembly, as the intrinsic isn't stable
/// yet.
#[inline(always)]
unsafe fn sdot(mut acc: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    asm!("sdot {acc:v}.4s, {a:v}.16b, {b:v}.16b", acc = inout(vreg) acc, a = in(vreg) a, b = in(vreg) b,
        options(pure, nomem, nostack, preserves_flags));
    acc
}
