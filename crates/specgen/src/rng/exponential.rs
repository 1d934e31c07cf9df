//! A uniform number made exponential, in arithmetic that is the same on every platform, which the system's logarithm
//! need not be: a seed's noise is the same everywhere.

use std::f64::consts::{LN_2, SQRT_2};

/// `-ln(1 - u)` for u in (0, 1), within 5e-16 of it relative; exponential with mean 1 where `u` is uniform.
///
/// `1 - u = 2^-n m` with m near 1, and `ln m = 2 atanh((m - 1) / (m + 1))` by its series; nothing but IEEE additions,
/// multiplications and divisions in one order.
pub(super) fn exponential(u: f64) -> f64 {
    // 1 / (2 i + 1) for i = 10 down to 1: s^2 is below 0.0295, so the rest of the series is below 1e-18.
    const SERIES: [f64; 10] = [
        1.0 / 21.0,
        1.0 / 19.0,
        1.0 / 17.0,
        1.0 / 15.0,
        1.0 / 13.0,
        1.0 / 11.0,
        1.0 / 9.0,
        1.0 / 7.0,
        1.0 / 5.0,
        1.0 / 3.0,
    ];
    const MANTISSA: u64 = (1 << 52) - 1;
    let rest = (1.0 - u).to_bits();
    // As 2^-n m with m in [1, 2), then halved where that is nearer to 1.
    let (mut n, mut m) = (1023.0 - (rest >> 52) as f64, f64::from_bits(rest & MANTISSA | 1023 << 52));
    if m > SQRT_2 {
        (n, m) = (n - 1.0, 0.5 * m);
    }
    // Where 1 - u needs no power of two, u itself has more digits than the difference from 1.
    let above_one = if n == 0.0 { -u } else { m - 1.0 };
    let s = above_one / (2.0 + above_one);
    let square = s * s;
    let series = SERIES.iter().fold(0.0, |sum, term| (sum + term) * square);
    n * LN_2 - 2.0 * (s + s * series)
}

#[cfg(test)]
mod tests {
    use super::exponential;

    #[test]
    fn it_is_the_logarithm() {
        let mut worst: f64 = 0.0;
        let mut check = |u: f64| worst = worst.max((exponential(u) / -(-u).ln_1p() - 1.0).abs());
        for i in 1..=1_000_000 {
            check(f64::from(i) / 1_000_001.0);
        }
        for power in 1..=65 {
            let small = 0.5_f64.powi(power);
            [small, 1.3 * small, 1.9 * small].into_iter().for_each(&mut check);
            if power <= 33 {
                check(1.0 - small);
            }
        }
        assert!(worst < 5e-16, "{worst:e}");
    }

    /// Bits that must be the same on every platform and in every release.
    #[test]
    fn its_bits_are_pinned() {
        let bits =
            [0.5_f64.powi(65), 1e-6, 0.1, 0.3, 0.7, 1.0 - 0.5_f64.powi(33)].map(|u| exponential(u).to_bits());
        let pinned = [
            0x3be0_0000_0000_0000,
            0x3eb0_c6f8_2d72_bfbd,
            0x3fba_f8e8_210a_415e,
            0x3fd6_d3c3_24e1_3f50,
            0x3ff3_4378_fcbd_a720,
            0x4036_dfb5_16f2_0bbe,
        ];
        assert_eq!(bits, pinned);
    }
}
