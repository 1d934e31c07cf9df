//! Sixteen lanes of i32 or f32: the few operations the kernels are written in, for every kind of CPU.
//!
//! All kinds give the same bits: integer operations are exact, and float ones correctly rounded.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "every function here is one or two intrinsics with one contract")]

use std::sync::OnceLock;

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub(crate) use neon::Neon;
pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

static LEVEL: OnceLock<Level> = OnceLock::new();

/// The instruction set the kernels use: `scalar`, on x86 `avx2`, `avx512` or `amx`, on 64-bit ARM `neon` or
/// `dotprod`.
pub fn isa() -> &'static str {
    Level::get().name()
}

/// The instruction sets this CPU has, in ascending order.
pub fn available_isas() -> Vec<&'static str> {
    Level::available().into_iter().map(Level::name).collect()
}

/// Makes the kernels use the instruction set `name` for the life of the process. Results are the same with
/// any. Returns false, and changes nothing, where the CPU does not have it or a kernel has run before with
/// another.
pub fn choose_isa(name: &str) -> bool {
    Level::named(name)
        .filter(|level| Level::available().contains(level))
        .is_some_and(|level| *LEVEL.get_or_init(|| level) == level)
}

/// A kind of CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    /// Whatever the crate was compiled for.
    Portable,
    /// AVX2, FMA, F16C.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// AVX-512 F, BW, DQ, VL and VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// The same with AMX for bytes.
    #[cfg(target_arch = "x86_64")]
    Amx,
    /// NEON.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// The same with sums of byte products.
    #[cfg(target_arch = "aarch64")]
    DotProd,
}

impl Level {
    /// The best this CPU has, or what [`choose_isa`] was told.
    pub(crate) fn get() -> Self {
        *LEVEL.get_or_init(|| *Self::available().last().expect("portable is always there"))
    }

    /// The level of a name.
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "scalar" => Self::Portable,
            #[cfg(target_arch = "x86_64")]
            "avx2" => Self::Avx2,
            #[cfg(target_arch = "x86_64")]
            "avx512" => Self::Avx512,
            #[cfg(target_arch = "x86_64")]
            "amx" => Self::Amx,
            #[cfg(target_arch = "aarch64")]
            "neon" => Self::Neon,
            #[cfg(target_arch = "aarch64")]
            "dotprod" => Self::DotProd,
            _ => return None,
        })
    }

    /// Its name.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Portable => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Amx => "amx",
            #[cfg(target_arch = "aarch64")]
            Self::Neon => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::DotProd => "dotprod",
        }
    }

    /// All this CPU has, in ascending order.
    pub(crate) fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable];
        #[cfg(target_arch = "x86_64")]
        if is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
        {
            levels.push(Self::Avx2);
            if is_x86_feature_detected!("avx512f")
                && is_x86_feature_detected!("avx512bw")
                && is_x86_feature_detected!("avx512dq")
                && is_x86_feature_detected!("avx512vl")
                && is_x86_feature_detected!("avx512vnni")
            {
                levels.push(Self::Avx512);
                if crate::amx::is_available() {
                    levels.push(Self::Amx);
                }
            }
        }
        // The layout of lanes in registers is that of the usual byte order.
        #[cfg(target_arch = "aarch64")]
        if cfg!(target_endian = "little") && std::arch::is_aarch64_feature_detected!("neon") {
            levels.push(Self::Neon);
            if std::arch::is_aarch64_feature_detected!("dotprod") {
                levels.push(Self::DotProd);
            }
        }
        levels
    }
}

/// Runs a function, written in place as `dispatch!(level, |S| fn(x: &[f32]) { .. })` and called with the
/// variables its arguments are named after, under the instruction set of `level`: `S` is bound to it, and its
/// features are on.
macro_rules! dispatch {
    (
        $level:expr,
        |$s:ident $(, $generic:ident: $bound:path)?|
        fn($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block
    ) => {{
        #[inline(always)]
        unsafe fn generic<$s: $crate::isa::Isa $(, $generic: $bound)?>($($arg: $ty),*) $(-> $ret)? $body

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c")]
        unsafe fn avx2$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's contract.
            unsafe { generic::<$crate::isa::Avx2 $(, $generic)?>($($arg),*) }
        }

        #[cfg(target_arch = "x86_64")]
        #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
        unsafe fn avx512$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's contract.
            unsafe { generic::<$crate::isa::Avx512 $(, $generic)?>($($arg),*) }
        }

        #[cfg(target_arch = "aarch64")]
        #[target_feature(enable = "neon")]
        unsafe fn neon$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's contract.
            unsafe { generic::<$crate::isa::Neon<false> $(, $generic)?>($($arg),*) }
        }

        #[cfg(target_arch = "aarch64")]
        #[target_feature(enable = "neon,dotprod")]
        unsafe fn dotprod$(<$generic: $bound>)?($($arg: $ty),*) $(-> $ret)? {
            // SAFETY: the caller's contract.
            unsafe { generic::<$crate::isa::Neon<true> $(, $generic)?>($($arg),*) }
        }

        match $level {
            // SAFETY: no instruction beyond the compiled ones.
            $crate::isa::Level::Portable => unsafe {
                generic::<$crate::isa::Portable $(, $generic)?>($($arg),*)
            },
            // SAFETY: a level is only made where the CPU has its features.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Level::Avx2 => unsafe { avx2$(::<$generic>)?($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            $crate::isa::Level::Avx512 | $crate::isa::Level::Amx => unsafe {
                avx512$(::<$generic>)?($($arg),*)
            },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Level::Neon => unsafe { neon$(::<$generic>)?($($arg),*) },
            // SAFETY: as above.
            #[cfg(target_arch = "aarch64")]
            $crate::isa::Level::DotProd => unsafe { dotprod$(::<$generic>)?($($arg),*) },
        }
    }};
}
pub(crate) use dispatch;

/// A kind of CPU as operations on 16 lanes of f32 or i32.
///
/// # Safety
/// Of every function: the CPU has the kind's features, and pointers are good for what is read or
/// written (64 bytes, unaligned, unless said otherwise).
#[allow(clippy::missing_safety_doc, reason = "said once, above")]
pub(crate) trait Isa: Copy {
    /// 16 x f32.
    type F: Copy;
    /// 16 x i32.
    type I: Copy;
    /// Activation rows that share a loaded line; more would not fit the registers.
    const ROWS: usize;

    /// 16 x f16 (32 bytes).
    unsafe fn load_f16(from: *const u8) -> Self::F;
    /// 16 x bf16 (32 bytes).
    unsafe fn load_bf16(from: *const u8) -> Self::F;
    unsafe fn load_f(from: *const f32) -> Self::F;
    unsafe fn store_f(to: *mut f32, v: Self::F);
    unsafe fn splat_f(x: f32) -> Self::F;
    /// `a * b + c`, rounded once.
    unsafe fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The sum of the lanes by the tree of [`crate::definition::add_lanes`].
    unsafe fn sum_f(a: Self::F) -> f32;
    /// Asks for the cache line at `at`, which may be anywhere.
    unsafe fn prefetch(at: *const u8);

    unsafe fn load(from: *const u8) -> Self::I;
    /// 16 unsigned bytes, one a lane.
    unsafe fn load_u8(from: *const u8) -> Self::I;
    /// 16 signed bytes, one a lane.
    unsafe fn load_i8(from: *const u8) -> Self::I;
    /// 32 unsigned bytes, two a lane, widened to halves.
    unsafe fn load_u8_pairs(from: *const u8) -> Self::I;
    unsafe fn splat(x: i32) -> Self::I;
    unsafe fn and(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn shl(a: Self::I, bits: i32) -> Self::I;
    /// Zeros come in.
    unsafe fn shr(a: Self::I, bits: i32) -> Self::I;
    unsafe fn add(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn mul(a: Self::I, b: Self::I) -> Self::I;
    /// `acc + sum of w[b] * x[b]` over 4 bytes: `w` unsigned (at most 63 unless `WIDE`), `x` signed.
    unsafe fn dot4<const WIDE: bool>(acc: Self::I, w: Self::I, x: [i8; 4]) -> Self::I;
    /// `acc + sum of w[b] * x[b]` over 2 halves, both i16.
    unsafe fn dot2(acc: Self::I, w: Self::I, x: [i16; 2]) -> Self::I;
    /// To f32, ties to even.
    unsafe fn to_f(a: Self::I) -> Self::F;
    unsafe fn add_f(a: Self::F, b: Self::F) -> Self::F;
    unsafe fn mul_f(a: Self::F, b: Self::F) -> Self::F;
    /// `a * b - c`, rounded once.
    unsafe fn fms(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
}
