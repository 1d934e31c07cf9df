//! Tests of observed counts against an expected law.

use serde::Serialize;
use statrs::distribution::{ChiSquared, ContinuousCDF};

/// Pearson's χ² against the largest value chance explains: returns `(statistic, limit)`, where the statistic exceeds
/// the limit with probability about 1e-7 if the counts follow `expected` (probabilities that sum to 1). Cells with
/// an expectation below 10 are merged into one.
pub fn chi_square(counts: &[usize], expected: &[f64]) -> (f64, f64) {
    assert_eq!(counts.len(), expected.len(), "one expectation per cell");
    let total: usize = counts.iter().sum();
    let mut statistic = 0.0;
    let mut cells = 0usize;
    let (mut rest_count, mut rest_expected) = (0.0, 0.0);
    for (&count, &probability) in counts.iter().zip(expected) {
        let (count, mean) = (count as f64, probability * total as f64);
        assert!(count == 0.0 || probability > 0.0, "an impossible outcome occurred {count} times");
        if mean < 10.0 {
            rest_count += count;
            rest_expected += mean;
        } else {
            statistic += (count - mean).powi(2) / mean;
            cells += 1;
        }
    }
    if rest_expected > 0.0 {
        statistic += (rest_count - rest_expected).powi(2) / rest_expected.max(1.0);
        cells += 1;
    }
    (statistic, chi_square_limit(cells.saturating_sub(1).max(1) as f64))
}

/// The 1 - 1e-7 quantile of χ² with `dof` degrees of freedom (Wilson and Hilferty 1931).
fn chi_square_limit(dof: f64) -> f64 {
    let z = 5.2;
    dof * (1.0 - 2.0 / (9.0 * dof) + z * (2.0 / (9.0 * dof)).sqrt()).powi(3)
}

/// A test of counts against what they were expected to be.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct GTest {
    /// `2 Σ observed ln(observed / expected)`.
    pub g: f64,
    /// Cells less one.
    pub degrees_of_freedom: usize,
    /// How likely a `g` as large is by chance.
    pub p_value: f64,
    /// The total variation from the expected law that a test of this size tells from chance about nine times in ten
    /// (at a significance of 1e-6): where `4 n d²` reaches `5 √(2 cells) + 20`.
    pub detectable_bias: f64,
}

/// The G-test (likelihood ratio) of `cells`, each observed and expected, every expectation large enough for χ² (5 or more).
pub fn g_test(cells: &[(usize, f64)]) -> GTest {
    let total: usize = cells.iter().map(|&(observed, _)| observed).sum();
    let term = |&(observed, expected): &(usize, f64)| match observed {
        0 => 0.0,
        _ => 2.0 * observed as f64 * (observed as f64 / expected).ln(),
    };
    let g = cells.iter().map(term).sum::<f64>().max(0.0);
    let degrees_of_freedom = cells.len().saturating_sub(1);
    let p_value = match degrees_of_freedom {
        0 => 1.0,
        degrees => ChiSquared::new(degrees as f64).map_or(0.0, |law| law.sf(g)),
    };
    let needed = 5.0 * (2.0 * cells.len() as f64).sqrt() + 20.0;
    let detectable_bias = (needed / (4.0 * total.max(1) as f64)).sqrt().min(1.0);
    GTest { g, degrees_of_freedom, p_value, detectable_bias }
}

/// The law of the sum of two independent whole numbers with these laws, each from 0 on.
pub fn sum_of(a: &[f64], b: &[f64]) -> Vec<f64> {
    let mut law = vec![0.0; a.len() + b.len() - 1];
    for (i, p) in a.iter().enumerate() {
        for (j, q) in b.iter().enumerate() {
            law[i + j] += p * q;
        }
    }
    law
}

/// How likely a number of this law is at least as far out as `found`, on either side.
pub fn two_sided(law: &[f64], found: usize) -> f64 {
    let below: f64 = law.iter().take(found + 1).sum();
    let above: f64 = law.iter().skip(found).sum();
    (2.0 * below.min(above)).min(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_tables() {
        // The exact quantiles, from the incomplete gamma function.
        assert!((chi_square_limit(10.0) - 52.31).abs() < 1.6, "{}", chi_square_limit(10.0));
        assert!((chi_square_limit(100.0) - 191.60).abs() < 0.6, "{}", chi_square_limit(100.0));
    }

    #[test]
    fn a_fair_count_passes_and_a_loaded_one_does_not() {
        let (statistic, limit) = chi_square(&[2480, 2520, 2510, 2490], &[0.25; 4]);
        assert!(statistic < limit);
        let (statistic, limit) = chi_square(&[2700, 2300, 2600, 2400], &[0.25; 4]);
        assert!(statistic > limit, "{statistic} {limit}");
    }

    #[test]
    fn a_g_test_is_that_of_the_books() {
        // Sokal and Rohlf's peas: 315, 108, 101 and 32 of 556, expected 9 : 3 : 3 : 1; G = 0.4754.
        let expected = [9.0, 3.0, 3.0, 1.0].map(|share| 556.0 * share / 16.0);
        let cells: Vec<_> = [315, 108, 101, 32].into_iter().zip(expected).collect();
        let test = g_test(&cells);
        assert!((test.g - 0.4754).abs() < 1e-3 && test.degrees_of_freedom == 3, "{test:?}");
        assert!((test.p_value - 0.924).abs() < 1e-3, "{test:?}");
    }

    #[test]
    fn what_cannot_be_is_never_likely() {
        assert_eq!(g_test(&[(99, 100.0), (1, 0.0)]).p_value, 0.0);
        assert_eq!(g_test(&[(100, 100.0)]).p_value, 1.0);
    }

    #[test]
    fn sums_of_coins_are_binomial() {
        let coin = [0.5, 0.5];
        let four = sum_of(&sum_of(&coin, &coin), &sum_of(&coin, &coin));
        assert_eq!(four, [1.0, 4.0, 6.0, 4.0, 1.0].map(|n| n / 16.0));
        assert_eq!([0, 1, 2, 4].map(|found| two_sided(&four, found)), [0.125, 0.625, 1.0, 0.125]);
        // One rejection where 0.04 were expected is no proof of anything, whatever a normal law would say.
        let certain = (0..100).fold(vec![1.0], |law, _| sum_of(&law, &[0.0004, 0.9996]));
        assert!(two_sided(&certain, 99) > 0.05);
    }
}
