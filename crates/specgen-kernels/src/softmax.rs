//! exp in f64 over whole vocabularies: what distributions are weighed and normalised with. Branch-free, so
//! that compilers make vector code of it, and the same bits on every CPU and platform, which the system's own
//! need not be.
#![allow(unsafe_code)]

use crate::isa::{Level, dispatch};

/// `exp(x)`, within 2e-15 of it relative, for x up to 700; below -700 it is 0.
#[inline(always)]
pub fn exp(x: f64) -> f64 {
    let (rest, power) = reduced(x);
    select(x, rest * power + power, 0.0)
}

/// `exp(x) - 1` without cancellation near 0, for x up to 700; below -700 it is -1.
#[inline(always)]
pub fn exp_m1(x: f64) -> f64 {
    let (rest, power) = reduced(x);
    select(x, rest * power + (power - 1.0), -1.0)
}

/// `value` in range, `below` under it, and what is not a number stays so.
#[inline(always)]
fn select(x: f64, value: f64, below: f64) -> f64 {
    let below = if x.is_nan() { x } else { below };
    if x > -700.0 { value } else { below }
}

/// `x = n ln 2 + r` as (`exp(r) - 1`, `2^n`), with |r| at most ln 2 / 2.
#[inline(always)]
fn reduced(x: f64) -> (f64, f64) {
    use std::f64::consts::LOG2_E;
    // ln 2 in two parts: multiples of the first, which has zeros at its end, are exact.
    const LN_2_HIGH: f64 = f64::from_bits(0x3fe6_2e42_fee0_0000);
    const LN_2_LOW: f64 = f64::from_bits(0x3dea_39ef_3579_3c76);
    // Adding it leaves the nearest integer in the lowest bits of the sum.
    const ROUND: f64 = 6_755_399_441_055_744.0; // 1.5 * 2^52
    // 1 / n! for n = 12 down to 1: the rest of the series is below 2e-16.
    const SERIES: [f64; 12] = [
        1.0 / 479_001_600.0,
        1.0 / 39_916_800.0,
        1.0 / 3_628_800.0,
        1.0 / 362_880.0,
        1.0 / 40_320.0,
        1.0 / 5_040.0,
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
    ];

    let inside = if x > -700.0 { x } else { -700.0 };
    let shifted = inside * LOG2_E + ROUND;
    let n = shifted - ROUND;
    let r = (inside - n * LN_2_HIGH) - n * LN_2_LOW;
    let mut sum = SERIES[0];
    for coefficient in &SERIES[1..] {
        sum = sum * r + coefficient;
    }
    // n goes straight into the exponent of 1.
    let power = f64::from_bits(1_f64.to_bits().wrapping_add(shifted.to_bits() << 52));
    (sum * r, power)
}

/// What a value is an exponent of: `exp((value - max) * factor - shift)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Exponent {
    /// Subtracted first.
    pub max: f64,
    /// Then multiplied with.
    pub factor: f64,
    /// Then subtracted.
    pub shift: f64,
}

impl Exponent {
    /// `exp(value)`.
    pub const PLAIN: Self = Self { max: 0.0, factor: 1.0, shift: 0.0 };

    /// The exponent.
    #[inline(always)]
    pub fn of(self, value: f32) -> f64 {
        (f64::from(value) - self.max) * self.factor - self.shift
    }
}

/// `out[i] = exp(exponent of values[i])`.
///
/// # Panics
/// If the lengths do not agree.
pub fn exp_all(values: &[f32], exponent: Exponent, out: &mut [f64]) {
    assert_eq!(values.len(), out.len(), "exp of values into out");
    dispatch!(Level::get(), |S| fn(values: &[f32], exponent: Exponent, out: &mut [f64]) {
        for (out, &value) in out.iter_mut().zip(values) {
            *out = exp(exponent.of(value));
        }
    });
}

/// `Σ exp(exponent of values[i])`, in 8 lanes: its order is fixed, and independent of the machine.
pub fn sum_exp(values: &[f32], exponent: Exponent) -> f64 {
    dispatch!(Level::get(), |S| fn(values: &[f32], exponent: Exponent) -> f64 {
        let mut lanes = [0.0; 8];
        let (chunks, rest) = values.as_chunks::<8>();
        for chunk in chunks {
            for (lane, &value) in lanes.iter_mut().zip(chunk) {
                *lane += exp(exponent.of(value));
            }
        }
        for (lane, &value) in lanes.iter_mut().zip(rest) {
            *lane += exp(exponent.of(value));
        }
        lanes.iter().sum()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Steps from one argument to the next.
    const STEP: usize = if cfg!(miri) { 9_973 } else { 1 };

    #[test]
    fn exp_is_exp() {
        let mut worst: f64 = 0.0;
        for step in (-1_400_000..=200_000).step_by(STEP) {
            let x = f64::from(step) * 0.000_499_7;
            worst = worst.max((exp(x) / x.exp() - 1.0).abs());
        }
        assert!(worst < 2e-15, "{worst:e}");
        for step in (-1_000_000..=100_000).step_by(STEP) {
            let x = f64::from(step) * 1e-5 + 1e-12;
            let (found, wanted) = (exp_m1(x), x.exp_m1());
            assert!((found / wanted - 1.0).abs() < 4e-15, "{x}: {found:e}, not {wanted:e}");
        }
        assert_eq!([exp_m1(0.0), exp_m1(f64::NEG_INFINITY), exp_m1(1e-300)], [0.0, -1.0, 1e-300]);
        assert!(exp_m1(f64::NAN).is_nan());
        assert_eq!([exp(0.0), exp(-0.0), exp(f64::NEG_INFINITY), exp(-700.0)], [1.0, 1.0, 0.0, 0.0]);
        assert!(exp(f64::NAN).is_nan());
    }

    #[test]
    fn a_sum_covers_every_value() {
        for len in [0, 1, 7, 8, 9, 50] {
            let values: Vec<f32> = (0..len).map(|i| (1.0 + i as f32).ln()).collect();
            let wanted = f64::from(len * (len + 1) / 2);
            assert!((sum_exp(&values, Exponent::PLAIN) - wanted).abs() < 1e-4 * (wanted + 1.0));
        }
    }

    /// Whatever the instruction set, one value at a time and many give the same bits.
    #[test]
    fn many_are_each_by_itself() {
        let values: Vec<f32> = (0..203).map(|i| (i * 37 % 101) as f32 * 0.37 - 20.0).collect();
        let exponent = Exponent { max: 17.25, factor: 1.0 / 0.7, shift: 0.125 };
        let mut found = vec![0.0; values.len()];
        exp_all(&values, exponent, &mut found);
        let mut lanes = [0.0; 8];
        for (i, (&value, found)) in values.iter().zip(&found).enumerate() {
            let wanted = exp((f64::from(value) - 17.25) * exponent.factor - 0.125);
            assert_eq!(found.to_bits(), wanted.to_bits(), "{value}");
            lanes[i % 8] += wanted;
        }
        assert_eq!(sum_exp(&values, exponent).to_bits(), lanes.iter().sum::<f64>().to_bits());
    }
}
