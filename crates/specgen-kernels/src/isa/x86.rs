//! The lanes on x86: two 256-bit registers with AVX2, one 512-bit register with AVX-512 and VNNI.

use std::arch::x86_64::*;

use super::Isa;

/// AVX2, FMA and F16C.
#[derive(Clone, Copy)]
pub(crate) struct Avx2;

/// AVX-512 F, BW, DQ, VL and VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Avx512;

type I2 = [__m256i; 2];
type F2 = [__m256; 2];

/// Both halves of a pair of registers.
macro_rules! both {
    (|$($v:ident),+| $e:expr) => {{
        let lo = { $(let $v = $v[0];)+ $e };
        let hi = { $(let $v = $v[1];)+ $e };
        [lo, hi]
    }};
}

impl Isa for Avx2 {
    type F = F2;
    type I = I2;
    const ROWS: usize = 2;

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> F2 {
        [_mm256_cvtph_ps(_mm_loadu_si128(from.cast())), _mm256_cvtph_ps(_mm_loadu_si128(from.add(16).cast()))]
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> F2 {
        let halves = [_mm_loadu_si128(from.cast()), _mm_loadu_si128(from.add(16).cast())];
        both!(|halves| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(halves))))
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> F2 {
        [_mm256_loadu_ps(from), _mm256_loadu_ps(from.add(8))]
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: F2) {
        _mm256_storeu_ps(to, v[0]);
        _mm256_storeu_ps(to.add(8), v[1]);
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> F2 {
        [_mm256_set1_ps(x); 2]
    }
    #[inline(always)]
    unsafe fn fma(a: F2, b: F2, c: F2) -> F2 {
        both!(|a, b, c| _mm256_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn sum_f(a: F2) -> f32 {
        sum_8(_mm256_add_ps(a[0], a[1]))
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        prefetch(at);
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> I2 {
        [_mm256_loadu_si256(from.cast()), _mm256_loadu_si256(from.add(32).cast())]
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> I2 {
        [_mm256_set1_epi32(x); 2]
    }
    #[inline(always)]
    unsafe fn and(a: I2, b: I2) -> I2 {
        both!(|a, b| _mm256_and_si256(a, b))
    }
    #[inline(always)]
    unsafe fn or(a: I2, b: I2) -> I2 {
        both!(|a, b| _mm256_or_si256(a, b))
    }
    #[inline(always)]
    unsafe fn shl(a: I2, bits: i32) -> I2 {
        let bits = _mm256_set1_epi32(bits);
        both!(|a| _mm256_sllv_epi32(a, bits))
    }
    #[inline(always)]
    unsafe fn shr(a: I2, bits: i32) -> I2 {
        let bits = _mm256_set1_epi32(bits);
        both!(|a| _mm256_srlv_epi32(a, bits))
    }
    #[inline(always)]
    unsafe fn add(a: I2, b: I2) -> I2 {
        both!(|a, b| _mm256_add_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn mul(a: I2, b: I2) -> I2 {
        both!(|a, b| _mm256_mullo_epi32(a, b))
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: I2, w: I2, x: [i8; 4]) -> I2 {
        let x = _mm256_set1_epi32(i32::from_le_bytes(x.map(i8::cast_unsigned)));
        if WIDE {
            // `maddubs` would saturate at 2 * 255 * 127: even and odd bytes apart, as i16.
            let (even, odd) = (_mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(x)), _mm256_srai_epi16::<8>(x));
            let low = _mm256_set1_epi16(0xff);
            both!(|acc, w| {
                let even = _mm256_madd_epi16(_mm256_and_si256(w, low), even);
                let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(w), odd);
                _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
            })
        } else {
            let ones = _mm256_set1_epi16(1);
            both!(|acc, w| _mm256_add_epi32(acc, _mm256_madd_epi16(_mm256_maddubs_epi16(w, x), ones)))
        }
    }
    #[inline(always)]
    unsafe fn dot2(acc: I2, w: I2, x: [i16; 2]) -> I2 {
        let x = _mm256_set1_epi32(pair(x));
        both!(|acc, w| _mm256_add_epi32(acc, _mm256_madd_epi16(w, x)))
    }
    #[inline(always)]
    unsafe fn to_f(a: I2) -> F2 {
        both!(|a| _mm256_cvtepi32_ps(a))
    }
    #[inline(always)]
    unsafe fn add_f(a: F2, b: F2) -> F2 {
        both!(|a, b| _mm256_add_ps(a, b))
    }
    #[inline(always)]
    unsafe fn mul_f(a: F2, b: F2) -> F2 {
        both!(|a, b| _mm256_mul_ps(a, b))
    }
    #[inline(always)]
    unsafe fn fms(a: F2, b: F2, c: F2) -> F2 {
        both!(|a, b, c| _mm256_fmsub_ps(a, b, c))
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> I2 {
        [
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())),
            _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> I2 {
        [
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast())),
            _mm256_cvtepi8_epi32(_mm_loadl_epi64(from.add(8).cast())),
        ]
    }
    #[inline(always)]
    unsafe fn load_u8_pairs(from: *const u8) -> I2 {
        [
            _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())),
            _mm256_cvtepu8_epi16(_mm_loadu_si128(from.add(16).cast())),
        ]
    }
}

impl Isa for Avx512 {
    type F = __m512;
    type I = __m512i;
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn load_f16(from: *const u8) -> __m512 {
        _mm512_cvtph_ps(_mm256_loadu_si256(from.cast()))
    }
    #[inline(always)]
    unsafe fn load_bf16(from: *const u8) -> __m512 {
        let halves = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast()));
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(halves))
    }
    #[inline(always)]
    unsafe fn load_f(from: *const f32) -> __m512 {
        _mm512_loadu_ps(from)
    }
    #[inline(always)]
    unsafe fn store_f(to: *mut f32, v: __m512) {
        _mm512_storeu_ps(to, v);
    }
    #[inline(always)]
    unsafe fn splat_f(x: f32) -> __m512 {
        _mm512_set1_ps(x)
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmadd_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn sum_f(a: __m512) -> f32 {
        sum_8(_mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a)))
    }
    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        prefetch(at);
    }
    #[inline(always)]
    unsafe fn load(from: *const u8) -> __m512i {
        _mm512_loadu_si512(from.cast())
    }
    #[inline(always)]
    unsafe fn splat(x: i32) -> __m512i {
        _mm512_set1_epi32(x)
    }
    #[inline(always)]
    unsafe fn and(a: __m512i, b: __m512i) -> __m512i {
        _mm512_and_si512(a, b)
    }
    #[inline(always)]
    unsafe fn or(a: __m512i, b: __m512i) -> __m512i {
        _mm512_or_si512(a, b)
    }
    #[inline(always)]
    unsafe fn shl(a: __m512i, bits: i32) -> __m512i {
        _mm512_sllv_epi32(a, _mm512_set1_epi32(bits))
    }
    #[inline(always)]
    unsafe fn shr(a: __m512i, bits: i32) -> __m512i {
        _mm512_srlv_epi32(a, _mm512_set1_epi32(bits))
    }
    #[inline(always)]
    unsafe fn add(a: __m512i, b: __m512i) -> __m512i {
        _mm512_add_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn mul(a: __m512i, b: __m512i) -> __m512i {
        _mm512_mullo_epi32(a, b)
    }
    #[inline(always)]
    unsafe fn dot4<const WIDE: bool>(acc: __m512i, w: __m512i, x: [i8; 4]) -> __m512i {
        _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(i32::from_le_bytes(x.map(i8::cast_unsigned))))
    }
    #[inline(always)]
    unsafe fn dot2(acc: __m512i, w: __m512i, x: [i16; 2]) -> __m512i {
        _mm512_dpwssd_epi32(acc, w, _mm512_set1_epi32(pair(x)))
    }
    #[inline(always)]
    unsafe fn to_f(a: __m512i) -> __m512 {
        _mm512_cvtepi32_ps(a)
    }
    #[inline(always)]
    unsafe fn add_f(a: __m512, b: __m512) -> __m512 {
        _mm512_add_ps(a, b)
    }
    #[inline(always)]
    unsafe fn mul_f(a: __m512, b: __m512) -> __m512 {
        _mm512_mul_ps(a, b)
    }
    #[inline(always)]
    unsafe fn fms(a: __m512, b: __m512, c: __m512) -> __m512 {
        _mm512_fmsub_ps(a, b, c)
    }
    #[inline(always)]
    unsafe fn load_u8(from: *const u8) -> __m512i {
        _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn load_i8(from: *const u8) -> __m512i {
        _mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))
    }
    #[inline(always)]
    unsafe fn load_u8_pairs(from: *const u8) -> __m512i {
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast()))
    }
}

/// Lanes `i` and `i + 4` are added, then `i + 2`, then `i + 1`.
#[inline(always)]
unsafe fn sum_8(a: __m256) -> f32 {
    let a = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps::<1>(a));
    let a = _mm_add_ps(a, _mm_movehl_ps(a, a));
    _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)))
}

/// Two i16 as the bits of an i32.
#[inline(always)]
fn pair(x: [i16; 2]) -> i32 {
    i32::from(x[0] as u16) | i32::from(x[1]) << 16
}

/// Into the second-level cache. Inline assembly, as the compiler moves the intrinsic about.
#[inline(always)]
unsafe fn prefetch(at: *const u8) {
    std::arch::asm!("prefetcht1 [{at}]", at = in(reg) at, options(nostack, readonly, preserves_flags));
}
