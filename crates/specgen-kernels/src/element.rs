//! How a number is stored: f32, f16 or bf16. Reading widens to f32, exactly.
#![allow(unsafe_code)]
#![allow(unsafe_op_in_unsafe_fn, reason = "every function here is one of `Isa`, with its contract")]

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

use crate::Plain;
use crate::isa::Isa;

/// f32, f16 or bf16.
pub(crate) trait Element: Plain + Default + 'static {
    /// 16 elements.
    ///
    /// # Safety
    /// As [`Isa`]'s functions.
    unsafe fn load<S: Isa>(from: *const u8) -> S::F;
    /// One.
    fn widen(self) -> f32;
    /// The nearest of each, ties to even. Of a type of 16 bits, what has none that is finite becomes NaN: a
    /// large number made infinite would go on to weigh nothing, or everything, and nobody would hear of it.
    fn round(from: &[f32], to: &mut [Self]);
    /// The elements themselves, where they are f32.
    fn as_f32(_elements: &[Self]) -> Option<&[f32]> {
        None
    }
}

impl Element for f32 {
    #[inline(always)]
    unsafe fn load<S: Isa>(from: *const u8) -> S::F {
        S::load_f(from.cast())
    }
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }
    fn round(from: &[f32], to: &mut [f32]) {
        to.copy_from_slice(from);
    }
    fn as_f32(elements: &[f32]) -> Option<&[f32]> {
        Some(elements)
    }
}

macro_rules! half {
    ($half:ty, $load:ident) => {
        impl Element for $half {
            #[inline(always)]
            unsafe fn load<S: Isa>(from: *const u8) -> S::F {
                S::$load(from)
            }
            #[inline(always)]
            fn widen(self) -> f32 {
                self.to_f32_const()
            }
            fn round(from: &[f32], to: &mut [Self]) {
                to.convert_from_f32_slice(from);
                to.iter_mut().filter(|x| x.is_infinite()).for_each(|x| *x = Self::NAN);
            }
        }
    };
}
half!(f16, load_f16);
half!(bf16, load_bf16);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Rng;

    /// Rounds `from` many at a time, and each by plain code, which must agree.
    fn check<E: Element>(from: &[f32], plain: impl Fn(f32) -> E) {
        let mut out = vec![plain(0.0); from.len()];
        E::round(from, &mut out);
        for (x, out) in from.iter().zip(out) {
            let (out, want) = (out.widen(), plain(*x).widen());
            let want = if want.is_finite() { want } else { f32::NAN };
            assert!(out.to_bits() == want.to_bits() || out.is_nan() && want.is_nan(), "{out} for {x}");
        }
    }

    #[test]
    fn rounds_to_the_nearest_and_ties_to_even() {
        let step = if cfg!(miri) { 997 } else { 1 };
        let f16s = (0..u16::MAX).step_by(step).map(f16::from_bits).filter(|x| x.is_finite());
        // Each, what lies between it and the next, and the neighbours of that.
        let between: Vec<f32> = f16s
            .flat_map(|x| {
                let next = f16::from_bits(x.to_bits() + 1).widen();
                let middle = x.widen() + if next.is_finite() { (next - x.widen()) / 2.0 } else { 16.0 };
                [x.widen(), middle.next_down(), middle, middle.next_up()]
            })
            .collect();
        check(&between, f16::from_f32_const);
        let mut rng = Rng::new(5);
        let any: Vec<f32> = (0..if cfg!(miri) { 99 } else { 99_999 })
            .map(|_| f32::from_bits((rng.next() >> 32) as u32))
            .collect();
        check(&any, f16::from_f32_const);
        check(&any, bf16::from_f32_const);
    }

    #[test]
    fn what_is_too_large_is_no_number() {
        let mut out = [f16::ZERO; 4];
        f16::round(&[65504.0, 65519.9, 65520.0, f32::NEG_INFINITY], &mut out);
        assert_eq!((out[0].widen(), out[1].widen()), (65504.0, 65504.0));
        assert!(out[2].is_nan() && out[3].is_nan());
        let mut out = [bf16::ZERO; 3];
        bf16::round(&[1e38, f32::MAX, -f32::MAX], &mut out);
        assert!(out[0].is_finite() && out[1].is_nan() && out[2].is_nan());
    }
}
