//! Figures that follow from rounds: latencies, and the speed-up that a formula predicts.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use specgen::{Round, Stats};

use super::{millis, over, rounded};

/// Times that so many of a hundred are within, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Percentiles {
    pub(super) p50: f64,
    pub(super) p95: f64,
    pub(super) p99: f64,
}

impl Percentiles {
    /// A round's tokens come together: each is charged an equal share of its round's time.
    pub(super) fn of_tokens(rounds: &[Round]) -> Self {
        let shares = rounds.iter().filter(|round| round.num_new > 0);
        Self::of(shares.map(|round| (round.time() / round.num_new as u32, round.num_new)).collect())
    }

    /// Whole rounds: what a reader waits between one arrival of text and the next.
    pub(super) fn of_rounds(rounds: &[Round]) -> Self {
        Self::of(rounds.iter().map(|round| (round.time(), 1)).collect())
    }

    /// Of times, each of which counts so often; zeros of none.
    fn of(mut times: Vec<(Duration, usize)>) -> Self {
        times.sort();
        let [p50, p95, p99] = [50, 95, 99].map(|percent| rounded(millis(percentile(&times, percent))));
        Self { p50, p95, p99 }
    }
}

/// The least of the sorted `times` that `percent` of a hundred are within (the nearest rank).
fn percentile(times: &[(Duration, usize)], percent: usize) -> Duration {
    let total: usize = times.iter().map(|(_, count)| count).sum();
    let rank = (total * percent).div_ceil(100);
    let mut seen = 0;
    let at_rank = times.iter().find(|(_, count)| {
        seen += count;
        seen >= rank
    });
    at_rank.map_or(Duration::ZERO, |(time, _)| *time)
}

/// α: of the drafted tokens that were put to the test (those behind a rejected one never were), the share that stood.
pub(super) fn share_standing(rounds: &[Round]) -> f64 {
    let stood: usize = rounds.iter().map(|round| round.num_accepted).sum();
    let tested: usize = rounds.iter().map(|round| round.num_drafted.min(round.num_accepted + 1)).sum();
    over(stood as f64, tested as f64)
}

/// E: tokens a round if each drafted token stood with the chance `alpha`, whatever its position; Leviathan et al. 2023,
/// equation 1, `(1 - α^(k + 1)) / (1 - α)`, over the rounds by their k.
pub(super) fn expected_tokens(alpha: f64, rounds_by_num_drafted: &[usize]) -> f64 {
    let (mut survival, mut of_round, mut sum) = (1.0, 0.0, 0.0);
    for &num_rounds in rounds_by_num_drafted {
        of_round += survival;
        survival *= alpha;
        sum += num_rounds as f64 * of_round;
    }
    over(sum, rounds_by_num_drafted.iter().sum::<usize>() as f64)
}

/// The speed-up predicted from measured times: E over what a round takes in units of plain decoding's time a token.
pub(super) fn predicted_speed_up(drafting: &Stats, plain: &Stats) -> f64 {
    let tokens = expected_tokens(share_standing(&drafting.by_round), &drafting.rounds_by_num_drafted);
    let round = over(drafting.decode().as_secs_f64(), drafting.rounds as f64);
    let token = over(plain.decode().as_secs_f64(), plain.generated_tokens as f64);
    over(tokens, over(round, token))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn round(num_drafted: usize, num_accepted: usize, millis: u64) -> Round {
        let verify = Duration::from_millis(millis);
        Round { num_drafted, num_accepted, num_new: num_accepted + 1, verify, ..Round::default() }
    }

    #[test]
    fn tokens_of_a_round_share_its_time() {
        // 4 tokens of 5 ms, 1 of 10 ms, and a round that brought none.
        let rounds = [round(3, 3, 20), round(0, 0, 10), Round { num_new: 0, ..round(0, 0, 70) }];
        let tokens = Percentiles::of_tokens(&rounds);
        assert_eq!(tokens, Percentiles { p50: 5.0, p95: 10.0, p99: 10.0 });
        assert_eq!(Percentiles::of_rounds(&rounds), Percentiles { p50: 20.0, p95: 70.0, p99: 70.0 });
        assert_eq!(Percentiles::of_tokens(&[]), Percentiles::default());
    }

    #[test]
    fn percentiles_are_nearest_ranks() {
        let times: Vec<_> = (1..=200).map(|i| (Duration::from_millis(i), 1)).collect();
        assert_eq!(Percentiles::of(times), Percentiles { p50: 100.0, p95: 190.0, p99: 198.0 });
        let one = vec![(Duration::from_millis(7), 1)];
        assert_eq!(Percentiles::of(one), Percentiles { p50: 7.0, p95: 7.0, p99: 7.0 });
    }

    #[test]
    fn the_formula_is_that_of_the_paper() {
        let closed = |alpha: f64, k: i32| (1.0 - alpha.powi(k + 1)) / (1.0 - alpha);
        for k in [0, 1, 4, 7] {
            let mut rounds = vec![0; k + 1];
            rounds[k] = 9;
            assert!((expected_tokens(0.8, &rounds) - closed(0.8, k as i32)).abs() < 1e-12, "k = {k}");
        }
        assert_eq!(expected_tokens(1.0, &[0, 0, 1]), 3.0);
        // As many rounds without a draft as with one of 1.
        assert_eq!(expected_tokens(0.5, &[2, 2]), 1.25);
        assert_eq!(expected_tokens(0.5, &[]), 0.0);
    }

    #[test]
    fn only_what_was_tested_counts() {
        // All of 3 stand; the second of 3 falls; the first of 4 falls.
        let rounds = [round(3, 3, 1), round(3, 1, 1), round(4, 0, 1), round(0, 0, 1)];
        assert_eq!(share_standing(&rounds), 4.0 / 6.0);
        assert_eq!(share_standing(&[]), 0.0);
    }

    #[test]
    fn a_speed_up_is_tokens_over_time() {
        let plain = Stats { generated_tokens: 10, verify: Duration::from_millis(100), ..Stats::default() };
        // Every token stands, two a round and one more; a round takes one and a half plain tokens.
        let drafting = Stats {
            rounds: 4,
            rounds_by_num_drafted: vec![0, 0, 4],
            verify: Duration::from_millis(60),
            by_round: vec![round(2, 2, 15); 4],
            ..Stats::default()
        };
        assert!((predicted_speed_up(&drafting, &plain) - 2.0).abs() < 1e-12);
        assert_eq!(predicted_speed_up(&Stats::default(), &plain), 0.0);
    }
}
