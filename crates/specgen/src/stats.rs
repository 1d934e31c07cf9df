//! `Stats`: what a generation did and how long it took.

use std::time::Duration;

use crate::plan::PlanStats;

/// Counts and times of one generation. Counts are of what was kept: a block cut by a stop counts up to the
/// cut.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stats {
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// How many of them the cache still held from the turn before.
    pub reused_tokens: usize,
    /// Tokens generated, the one that ended the text included.
    pub generated_tokens: usize,
    /// Target passes after the prompt.
    pub rounds: usize,
    /// Tokens drafted, of trees those of the longest path.
    pub drafted: usize,
    /// Tokens of trees beside the longest path.
    pub alternatives: usize,
    /// Drafted tokens kept.
    pub accepted: usize,
    /// Per position in the draft (0: the first), how often a token was drafted there.
    pub drafted_by_position: Vec<usize>,
    /// Per position in the draft, how often that token was kept.
    pub accepted_by_position: Vec<usize>,
    /// Per number of drafted tokens (0: none), the rounds that had so many.
    pub rounds_by_num_drafted: Vec<usize>,
    /// What the plan decided.
    pub plan: PlanStats,
    /// Rejections that rounding alone explains; should be 0.
    pub residual_underflows: usize,
    /// Drafts broken off because their model's logits were no numbers; should be 0. The text is the target's
    /// all the same.
    pub broken_drafts: usize,
    /// Feeding the prompt, to the draft too.
    pub prefill: Duration,
    /// Drafting.
    pub draft: Duration,
    /// Target passes over drafts.
    pub verify: Duration,
    /// Everything else: sampling, acceptance, text.
    pub other: Duration,
    /// From the request to the first token.
    pub time_to_first_token: Duration,
    /// Each round by itself.
    pub by_round: Vec<Round>,
}

/// What one round drafted, kept and brought, and how long it took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// Tokens drafted.
    pub num_drafted: usize,
    /// How many of them were kept.
    pub num_accepted: usize,
    /// Tokens added: those, and one of the target's own where it said one.
    pub num_new: usize,
    /// Drafting.
    pub draft: Duration,
    /// The target's pass.
    pub verify: Duration,
    /// Everything else.
    pub other: Duration,
}

impl Round {
    /// All of its time.
    pub fn time(&self) -> Duration {
        self.draft + self.verify + self.other
    }
}

impl Stats {
    /// Records a round that drafted `num_drafted` tokens, of which `num_kept` were accepted and kept, and
    /// that added `num_new` tokens.
    pub(crate) fn record_round(&mut self, num_drafted: usize, num_kept: usize, num_new: usize) {
        self.by_round.push(Round { num_drafted, num_accepted: num_kept, num_new, ..Round::default() });
        self.rounds += 1;
        self.generated_tokens += num_new;
        self.drafted += num_drafted;
        self.accepted += num_kept;
        if self.drafted_by_position.len() < num_drafted {
            self.drafted_by_position.resize(num_drafted, 0);
            self.accepted_by_position.resize(num_drafted, 0);
        }
        if self.rounds_by_num_drafted.len() <= num_drafted {
            self.rounds_by_num_drafted.resize(num_drafted + 1, 0);
        }
        self.rounds_by_num_drafted[num_drafted] += 1;
        self.drafted_by_position[..num_drafted].iter_mut().for_each(|count| *count += 1);
        self.accepted_by_position[..num_kept].iter_mut().for_each(|count| *count += 1);
    }

    /// Adds what a round took; `is_recorded`: it is the last of those recorded, and not one that failed.
    pub(crate) fn record_times(
        &mut self,
        [draft, verify, other]: [Duration; 3],
        is_recorded: bool,
    ) -> Option<&Round> {
        self.draft += draft;
        self.verify += verify;
        self.other += other;
        let round = self.by_round.last_mut().filter(|_| is_recorded)?;
        (round.draft, round.verify, round.other) = (draft, verify, other);
        Some(round)
    }

    /// Accepted over drafted; 0 where nothing was drafted.
    pub fn acceptance_rate(&self) -> f64 {
        ratio(self.accepted as f64, self.drafted as f64)
    }

    /// Tokens per target pass, `1 + accepted / rounds` where nothing was cut.
    pub fn mean_accepted_len(&self) -> f64 {
        ratio(self.generated_tokens as f64, self.rounds as f64)
    }

    /// Time after the prompt.
    pub fn decode(&self) -> Duration {
        self.draft + self.verify + self.other
    }

    /// Generated tokens per second after the prompt.
    pub fn tokens_per_second(&self) -> f64 {
        ratio(self.generated_tokens as f64, self.decode().as_secs_f64())
    }

    /// Prompt tokens fed per second; what the cache held is not counted.
    pub fn prompt_tokens_per_second(&self) -> f64 {
        ratio((self.prompt_tokens - self.reused_tokens) as f64, self.prefill.as_secs_f64())
    }
}

impl<'a> std::iter::Sum<&'a Stats> for Stats {
    /// Counts and times of several generations together; each ended with a decision of its own, so the sum has none.
    fn sum<I: Iterator<Item = &'a Stats>>(all: I) -> Self {
        let mut sum = Self::default();
        for more in all {
            sum.prompt_tokens += more.prompt_tokens;
            sum.reused_tokens += more.reused_tokens;
            sum.generated_tokens += more.generated_tokens;
            sum.rounds += more.rounds;
            sum.drafted += more.drafted;
            sum.accepted += more.accepted;
            add_counts(&mut sum.drafted_by_position, &more.drafted_by_position);
            add_counts(&mut sum.accepted_by_position, &more.accepted_by_position);
            add_counts(&mut sum.rounds_by_num_drafted, &more.rounds_by_num_drafted);
            sum.plan.rounds_off += more.plan.rounds_off;
            sum.plan.probes += more.plan.probes;
            sum.residual_underflows += more.residual_underflows;
            sum.broken_drafts += more.broken_drafts;
            sum.prefill += more.prefill;
            sum.draft += more.draft;
            sum.verify += more.verify;
            sum.other += more.other;
            sum.time_to_first_token += more.time_to_first_token;
            sum.by_round.extend_from_slice(&more.by_round);
        }
        sum
    }
}

fn add_counts(sum: &mut Vec<usize>, more: &[usize]) {
    sum.resize(sum.len().max(more.len()), 0);
    sum.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
}

fn ratio(a: f64, b: f64) -> f64 {
    if b > 0.0 { a / b } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_add_up_by_position() {
        let mut stats = Stats::default();
        stats.record_round(4, 2, 3);
        stats.record_round(0, 0, 1);
        stats.record_round(2, 2, 3);
        assert_eq!(stats.drafted_by_position, [2, 2, 1, 1]);
        assert_eq!(stats.accepted_by_position, [2, 2, 0, 0]);
        assert_eq!(stats.rounds_by_num_drafted, [1, 0, 1, 0, 1]);
        assert_eq!(stats.generated_tokens, 7);
        assert_eq!(stats.acceptance_rate(), 4.0 / 6.0);
        assert_eq!(stats.mean_accepted_len(), 7.0 / 3.0);

        let mut other = Stats { verify: Duration::from_secs(2), ..Stats::default() };
        other.record_round(1, 1, 2);
        let sum: Stats = [&other, &stats].into_iter().sum();
        assert_eq!((sum.generated_tokens, sum.rounds, sum.verify), (9, 4, Duration::from_secs(2)));
        assert_eq!(sum.rounds_by_num_drafted, [1, 1, 1, 0, 1]);
        assert_eq!(sum.drafted_by_position, [3, 2, 1, 1]);
        assert_eq!(sum.accepted_by_position, [3, 2, 0, 0]);
    }

    #[test]
    fn a_round_has_its_own_times_and_one_that_failed_has_none() {
        let [draft, verify, other] = [1, 20, 3].map(Duration::from_millis);
        let mut stats = Stats::default();
        stats.record_round(4, 2, 3);
        let round = Round { num_drafted: 4, num_accepted: 2, num_new: 3, draft, verify, other };
        assert_eq!(stats.record_times([draft, verify, other], true), Some(&round));
        assert_eq!(stats.record_times([draft, verify, other], false), None);
        assert_eq!((round.time(), stats.decode()), (Duration::from_millis(24), Duration::from_millis(48)));
        let sum: Stats = [&stats, &stats].into_iter().sum();
        assert_eq!(sum.by_round, [round, round]);
    }
}
