//! exp and tanh, written once: every softmax, activation and soft-cap uses these, on every CPU.

/// e^x, within 2 ulp. 0 below -87.3 (where f32 goes denormal), infinity above 88.7, NaN for NaN.
/// Range reduction and polynomial after Cephes `expf` (Moshier, public coefficients).
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    const LOWEST: f32 = -87.336_54; // exp of it is still normal
    const HIGHEST: f32 = 88.722_83;
    const ROUND: f32 = 12_582_912.0; // 1.5 * 2^23: adding it rounds to a whole number, ties to even
    let clamped = x.clamp(LOWEST, HIGHEST); // NaN stays
    let rounded = clamped.mul_add(std::f32::consts::LOG2_E, ROUND);
    let n = rounded - ROUND;
    let r = n.mul_add(-0.693_359_4, clamped);
    let r = n.mul_add(2.121_944_4e-4, r);
    let mut p = 1.987_569_1e-4_f32;
    p = p.mul_add(r, 1.398_2e-3);
    p = p.mul_add(r, 8.333_452e-3);
    p = p.mul_add(r, 4.166_579_6e-2);
    p = p.mul_add(r, 1.666_666_5e-1);
    p = p.mul_add(r, 5e-1);
    p = p.mul_add(r * r, r) + 1.0;
    // 2^n in two factors, since 2^128 is no f32.
    let n = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = n >> 1;
    let y = p * power_of_two(half) * power_of_two(n - half);
    if x < LOWEST {
        0.0
    } else if x > HIGHEST {
        f32::INFINITY
    } else {
        y
    }
}

/// 2^n for -127 < n < 128.
#[inline(always)]
fn power_of_two(n: i32) -> f32 {
    f32::from_bits((n.wrapping_add(127) << 23).cast_unsigned())
}

/// tanh x, within 2 ulp. Odd polynomial after Cephes `tanhf` below 0.625, else from [`exp`].
#[inline(always)]
pub fn tanh(x: f32) -> f32 {
    let a = x.abs();
    let z = x * x;
    let mut p = -5.704_988_7e-3_f32;
    p = p.mul_add(z, 2.063_909e-2);
    p = p.mul_add(z, -5.373_971_6e-2);
    p = p.mul_add(z, 1.333_144_2e-1);
    p = p.mul_add(z, -3.333_328e-1);
    let small = (p * z).mul_add(x, x);
    let large = (1.0 - 2.0 / (exp(a + a) + 1.0)).copysign(x);
    if a < 0.625 { small } else { large }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Thousandths from one argument to the next.
    const STEP: usize = if cfg!(miri) { 97 } else { 1 };

    fn ulps(got: f32, want: f64) -> f64 {
        let want32 = want as f32;
        let ulp = f64::from(f32::from_bits(want32.abs().to_bits() + 1)) - f64::from(want32.abs());
        (f64::from(got) - want).abs() / ulp
    }

    #[test]
    fn exp_is_close_everywhere() {
        for i in (-87_330..=88_720).step_by(STEP) {
            let x = i as f32 * 1e-3;
            let e = ulps(exp(x), f64::from(x).exp());
            assert!(e <= 2.0, "exp({x}) is {e} ulp off");
        }
    }

    #[test]
    fn exp_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-1e30), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(89.0), f32::INFINITY);
        assert!(exp(f32::NAN).is_nan());
        assert!(exp(88.722_82).is_finite());
    }

    #[test]
    fn tanh_is_close_everywhere() {
        for i in (-12_000..=12_000).step_by(STEP) {
            let x = i as f32 * 1e-3;
            if i != 0 {
                let e = ulps(tanh(x), f64::from(x).tanh());
                assert!(e <= 2.0, "tanh({x}) is {e} ulp off");
            }
        }
        assert_eq!(tanh(0.0), 0.0);
        assert_eq!(tanh(f32::INFINITY), 1.0);
        assert_eq!(tanh(f32::NEG_INFINITY), -1.0);
        assert!(tanh(f32::NAN).is_nan());
    }
}
