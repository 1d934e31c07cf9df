//! Tests of observed counts against an expected law.

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
}
