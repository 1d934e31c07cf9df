//! The filters: which tokens stay, found without sorting a whole vocabulary.

use super::Scale;
use specgen_kernels::softmax::{Exponent, exp_all, sum_exp};
use std::cmp::Ordering;

/// A token with its logit.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Candidate {
    pub(super) id: u32,
    pub(super) logit: f32,
}

/// Higher logits first, then lower ids. Logits are numbers, never NaN; 0 and -0 tie.
pub(super) fn by_logit(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.partial_cmp(&a.logit).unwrap_or(Ordering::Equal).then(a.id.cmp(&b.id))
}

/// Logits are looked at in chunks, so that the common case (nothing of interest) is a few vector
/// instructions.
const CHUNK: usize = 64;

/// The first token whose logit is not a number.
pub(super) fn first_nan(logits: &[f32]) -> Option<u32> {
    let chunk_has_nan = |chunk: &[f32]| chunk.iter().fold(false, |found, logit| found | logit.is_nan());
    let at = logits.chunks(CHUNK).position(chunk_has_nan)? * CHUNK;
    (at..logits.len()).find(|&i| logits[i].is_nan()).map(|i| i as u32)
}

/// The highest logit of a chunk, in lanes: one chain of comparisons would take three times as long.
fn highest(chunk: &[f32]) -> f32 {
    let higher = |max: f32, logit: f32| if logit > max { logit } else { max };
    let mut lanes = [f32::NEG_INFINITY; 16];
    let (whole, rest) = chunk.as_chunks::<16>();
    for logits in whole {
        for (lane, &logit) in lanes.iter_mut().zip(logits) {
            *lane = higher(*lane, logit);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, higher)
}

/// Calls `keep` for each token whose logit is above what `keep` last returned, ids ascending, starting at
/// `above`.
fn scan(logits: &[f32], above: f32, mut keep: impl FnMut(Candidate) -> f32) {
    let mut threshold = above;
    for (chunk, first) in logits.chunks(CHUNK).zip((0u32..).step_by(CHUNK)) {
        if highest(chunk) <= threshold {
            continue;
        }
        for (&logit, id) in chunk.iter().zip(first..) {
            if logit > threshold {
                threshold = keep(Candidate { id, logit });
            }
        }
    }
}

/// The highest logit, of ties the one with the lowest id; `None` if every token is impossible.
pub(super) fn argmax(logits: &[f32]) -> Option<Candidate> {
    let mut best = None;
    scan(logits, f32::NEG_INFINITY, |candidate| {
        best = Some(candidate);
        candidate.logit
    });
    best
}

/// The `k` best possible tokens, in no particular order.
pub(super) fn top_k(logits: &[f32], k: usize) -> Vec<Candidate> {
    let capacity = k.saturating_mul(2).min(logits.len());
    let (mut kept, mut threshold) = (Vec::with_capacity(capacity), f32::NEG_INFINITY);
    scan(logits, threshold, |candidate| {
        kept.push(candidate);
        if kept.len() == 2 * k {
            // A later token that ties with the worst of the k loses to it by its id, hence the strict
            // threshold.
            threshold = shrink(&mut kept, k);
        }
        threshold
    });
    if kept.len() > k {
        shrink(&mut kept, k);
    }
    kept
}

/// Keeps the `k` best and returns the worst logit among them; there must be at least `k`.
pub(super) fn shrink(candidates: &mut Vec<Candidate>, k: usize) -> f32 {
    let worst = candidates.select_nth_unstable_by(k - 1, by_logit).1.logit;
    candidates.truncate(k);
    worst
}

/// Every possible token.
pub(super) fn all(logits: &[f32]) -> Vec<Candidate> {
    let mut all: Vec<_> = logits.iter().zip(0..).map(|(&logit, id)| Candidate { id, logit }).collect();
    all.retain(|candidate| candidate.logit > f32::NEG_INFINITY);
    all
}

/// The tokens whose scaled logit is at least `floor`.
pub(super) fn above(logits: &[f32], scale: Scale, floor: f64) -> Vec<Candidate> {
    let mut kept = Vec::new();
    // A rough threshold in the logits' own scale, low enough for its rounding, then the exact test.
    let rough = scale.max + floor / scale.factor;
    let rough = (rough - rough.abs() * 1e-6) as f32 - f32::MIN_POSITIVE;
    scan(logits, rough, |candidate| {
        if scale.apply(candidate.logit) >= floor {
            kept.push(candidate);
        }
        rough
    });
    kept
}

/// The sum of all weights.
pub(super) fn total_weight(logits: &[f32], scale: Scale) -> f64 {
    sum_exp(logits, scale.exponent(0.0))
}

/// Tokens that certainly include the fewest that hold `top_p` of all probability: those left out each weigh
/// so little that all of them together hold less than the rest.
pub(super) fn nucleus_superset(logits: &[f32], scale: Scale, top_p: f32) -> Vec<Candidate> {
    // The total weight is at least 1, that of the best token.
    let negligible = (1.0 - f64::from(top_p)) / (logits.len() as f64 + 1.0);
    above(logits, scale, negligible.ln())
}

/// Of all possible tokens, the standard deviation of their logits; 0 for one alone.
pub(super) fn deviation(logits: &[f32], max: f32) -> f64 {
    let below = |logit: f32| f64::from(logit) - f64::from(max);
    let possible = || logits.iter().filter(|&&logit| logit > f32::NEG_INFINITY);
    let num = possible().count() as f64;
    let mean = possible().map(|&logit| below(logit)).sum::<f64>() / num;
    (possible().map(|&logit| (below(logit) - mean).powi(2)).sum::<f64>() / num).sqrt()
}

/// Candidates with their probabilities among themselves.
struct Weighed<'a> {
    candidates: &'a mut Vec<Candidate>,
    scale: Scale,
    ln_total: f64,
}

impl<'a> Weighed<'a> {
    fn new(candidates: &'a mut Vec<Candidate>, scale: Scale) -> Self {
        let ln_total = ln_weight_of(candidates, scale);
        Self { candidates, scale, ln_total }
    }

    fn retain(&mut self, stays: impl Fn(f64, &Candidate) -> bool) {
        let (scale, ln_total) = (self.scale, self.ln_total);
        self.candidates.retain(|candidate| stays(scale.apply(candidate.logit) - ln_total, candidate));
    }
}

/// `Σ term(exp(exponent of logit), logit)`, added up one by one in the order of `logits`. The exps are worked
/// out many at a time, so that they can be vector code although their sum is not.
fn sum_in_order(
    mut logits: impl Iterator<Item = f32>,
    exponent: Exponent,
    term: impl Fn(f64, f32) -> f64,
) -> f64 {
    let (mut chunk, mut exps) = ([0.0; CHUNK], [0.0; CHUNK]);
    let mut sum = 0.0;
    loop {
        let mut len = 0;
        for (logit_at, logit) in chunk.iter_mut().zip(&mut logits) {
            *logit_at = logit;
            len += 1;
        }
        exp_all(&chunk[..len], exponent, &mut exps[..len]);
        sum = chunk.iter().zip(&exps).take(len).fold(sum, |sum, (&logit, &exp)| sum + term(exp, logit));
        if len < CHUNK {
            return sum;
        }
    }
}

/// The sum of the candidates' weights.
pub(super) fn weight_of(candidates: &[Candidate], scale: Scale) -> f64 {
    let logits = candidates.iter().map(|candidate| candidate.logit);
    sum_in_order(logits, scale.exponent(0.0), |weight, _| weight)
}

/// Its logarithm, which is a number even where the best tokens are gone and the weights of the others are too
/// small.
pub(super) fn ln_weight_of(candidates: &[Candidate], scale: Scale) -> f64 {
    let logits = || candidates.iter().map(|candidate| candidate.logit);
    let max = scale.apply(logits().fold(f32::NEG_INFINITY, f32::max));
    max + sum_in_order(logits(), scale.exponent(max), |weight, _| weight).ln()
}

/// The best of some candidates, at least one.
fn best_of(candidates: &[Candidate]) -> Candidate {
    *candidates.iter().min_by(|a, b| by_logit(a, b)).expect("a filter leaves at least one candidate")
}

/// Keeps the fewest best candidates whose weights sum to at least `wanted`, and at least one.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, scale: Scale, wanted: f64) {
    // Without a sign of 0: 0 and -0 tie.
    fewest(candidates, scale, wanted, |candidate| 0.0 - f64::from(candidate.logit));
}

/// Keeps the fewest candidates whose surprise is nearest to the expected one, the entropy, and whose
/// probabilities sum to at least `typical_p` (locally typical sampling: Meister et al. 2022, arXiv
/// 2202.00666).
pub(super) fn typical(candidates: &mut Vec<Candidate>, scale: Scale, typical_p: f32) {
    let total = weight_of(candidates, scale);
    let ln_total = total.ln();
    let logits = candidates.iter().map(|candidate| candidate.logit);
    let entropy = sum_in_order(logits, scale.exponent(ln_total), |p, logit| {
        let ln_p = scale.apply(logit) - ln_total;
        // What is as good as impossible adds nothing, where 0 times infinity would be no number.
        if ln_p > f64::NEG_INFINITY { -ln_p * p } else { 0.0 }
    });
    let distance = |candidate: &Candidate| (ln_total - scale.apply(candidate.logit) - entropy).abs();
    // As in a nucleus, most of a vocabulary is too unlikely to be needed. What is as far below the expected
    // surprise as those are above it would go with them: mostly there is none.
    let rest = 1.0 - f64::from(typical_p);
    let reach = -(0.5 * rest / (candidates.len() as f64 + 1.0)).ln() - entropy;
    if rest > 1e-6 && distance(&best_of(candidates)) <= reach {
        candidates.retain(|candidate| distance(candidate) <= reach);
    }
    fewest(candidates, scale, f64::from(typical_p) * total, distance);
}

/// Keeps candidates at least `min_p` times as likely as the best of them.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, scale: Scale, min_p: f32) {
    let floor = scale.apply(best_of(candidates).logit) + f64::from(min_p).ln();
    candidates.retain(|candidate| scale.apply(candidate.logit) >= floor);
}

/// Of the candidates that reach the probability `threshold`, keeps only the least likely (exclude top
/// choices, by p-e-w: oobabooga/text-generation-webui, pull request 6335).
pub(super) fn exclude_top_choices(candidates: &mut Vec<Candidate>, scale: Scale, threshold: f32) {
    let mut weighed = Weighed::new(candidates, scale);
    let floor = f64::from(threshold).ln();
    let is_top = |ln_p: f64| ln_p >= floor;
    let tops = weighed.candidates.iter().filter(|c| is_top(scale.apply(c.logit) - weighed.ln_total));
    let Some(last) = tops.max_by(|a, b| by_logit(a, b)).copied() else { return };
    weighed.retain(|ln_p, candidate| !is_top(ln_p) || candidate.id == last.id);
}

/// Of all tokens, those that [`unsurprising`] keeps. `best` is the best of them.
pub(super) fn unsurprising_of_all(
    logits: &[f32],
    best: Candidate,
    scale: Scale,
    bits: f64,
) -> Vec<Candidate> {
    let ln_total = sum_in_order(logits.iter().copied(), scale.exponent(0.0), |weight, _| weight).ln();
    let floor = -bits * std::f64::consts::LN_2;
    // A little more than will stay, and the best, whose scaled logit is 0.
    let mut kept = above(logits, scale, (ln_total + floor - 1e-6).min(0.0));
    kept.retain(|candidate| scale.apply(candidate.logit) - ln_total >= floor || candidate.id == best.id);
    kept
}

/// Keeps candidates whose surprise, `-log2 p`, is at most `bits`, and the best one in any case.
pub(super) fn unsurprising(candidates: &mut Vec<Candidate>, scale: Scale, bits: f64) {
    let best = best_of(candidates);
    let floor = -bits * std::f64::consts::LN_2;
    Weighed::new(candidates, scale).retain(|ln_p, candidate| ln_p >= floor || candidate.id == best.id);
}

/// A candidate as [`fewest`] looks at it.
#[derive(Clone, Copy)]
struct Ranked {
    rank: f64,
    candidate: Candidate,
}

impl Ranked {
    fn order(&self, other: &Self) -> Ordering {
        self.rank.total_cmp(&other.rank).then(self.candidate.id.cmp(&other.candidate.id))
    }
}

/// Keeps the fewest candidates, those of the lowest `rank` first and of equals the lower id, whose weights
/// sum to at least `wanted`, and at least one. The order of those that stay is what it was.
///
/// Halves the range in which the cut must lie, each time looking only at the half that can still hold it:
/// time linear in the number of candidates.
fn fewest(candidates: &mut Vec<Candidate>, scale: Scale, wanted: f64, rank: impl Fn(&Candidate) -> f64) {
    let ranked = |candidate: &Candidate| Ranked { rank: rank(candidate), candidate: *candidate };
    let mut all: Vec<Ranked> = candidates.iter().map(ranked).collect();
    let (mut start, mut end) = (0, all.len());
    let mut before = 0.0; // the weight of all[..start], all of which stay
    while end - start > 32 {
        let half = (end - start) / 2;
        all[start..end].select_nth_unstable_by(half, Ranked::order);
        let logits = all[start..start + half].iter().map(|ranked| ranked.candidate.logit);
        let upper = sum_in_order(logits, scale.exponent(0.0), |weight, _| weight);
        if before + upper >= wanted {
            end = start + half;
        } else {
            before += upper;
            start += half;
        }
    }
    all[start..end].sort_unstable_by(Ranked::order);
    let mut cut = start;
    while cut < end && (cut == 0 || before < wanted) {
        before += scale.weight(all[cut].candidate.logit);
        cut += 1;
    }
    if let Some(last) = cut.checked_sub(1).map(|last| all[last]) {
        candidates.retain(|candidate| ranked(candidate).order(&last).is_le());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// What looks at whole vocabularies in a hurry keeps what the plain way keeps, of flat rows and of
        /// steep ones.
        #[test]
        fn shortcuts_keep_the_same(
            seed in 0_u64..1000, spread in 0.0_f32..12.0, bits in 0.0_f64..25.0, typical_p in 0.0_f32..1.0,
        ) {
            let uniform = |id: u64| (seed * 999 + id).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40;
            let logits: Vec<f32> = (0..900).map(|id| uniform(id) as f32 / (1 << 24) as f32 * spread).collect();
            let best = argmax(&logits).expect("some token is possible");
            let scale = Scale::new(best.logit, 0.7);
            let mut plain = all(&logits);
            unsurprising(&mut plain, scale, bits);
            prop_assert_eq!(unsurprising_of_all(&logits, best, scale, bits), plain);

            let (mut kept, everything) = (all(&logits), all(&logits));
            typical(&mut kept, scale, typical_p);
            let total = weight_of(&everything, scale);
            let surprise = |c: &Candidate| total.ln() - scale.apply(c.logit);
            let entropy: f64 = everything.iter().map(|c| (-surprise(c)).exp() * surprise(c)).sum();
            let mut order = everything;
            order.sort_by(|a, b| (surprise(a) - entropy).abs().total_cmp(&(surprise(b) - entropy).abs()));
            let share = |n: usize| weight_of(&order[..n], scale) / total;
            // The fewest that reach it, but for rounding at the last of them.
            let near = 1e-9;
            prop_assert!(share(kept.len()) >= f64::from(typical_p) - near);
            prop_assert!(kept.len() == 1 || share(kept.len() - 1) < f64::from(typical_p) + near);
            let farthest = kept.iter().map(|c| (surprise(c) - entropy).abs()).fold(0.0, f64::max);
            prop_assert!(order[kept.len()..].iter().all(|c| (surprise(c) - entropy).abs() >= farthest - near));
        }
    }
}
