//! The filters: which tokens stay, found without sorting a whole vocabulary.

use super::Scale;
use crate::distribution::{exp, sum_exp};
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

/// Logits are looked at in chunks, so that the common case (nothing of interest) is a few vector instructions.
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

/// Calls `keep` for each token whose logit is above what `keep` last returned, ids ascending, starting at `above`.
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
            // A later token that ties with the worst of the k loses to it by its id, hence the strict threshold.
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
    sum_exp(logits, |logit| scale.apply(logit))
}

/// Tokens that certainly include the fewest that hold `top_p` of all probability: those left out each weigh so little
/// that all of them together hold less than the rest.
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

/// The sum of the candidates' weights.
pub(super) fn weight_of(candidates: &[Candidate], scale: Scale) -> f64 {
    candidates.iter().map(|candidate| scale.weight(candidate.logit)).sum()
}

/// Its logarithm, which is a number even where the best tokens are gone and the weights of the others are too small.
pub(super) fn ln_weight_of(candidates: &[Candidate], scale: Scale) -> f64 {
    let scaled = || candidates.iter().map(|candidate| scale.apply(candidate.logit));
    let max = scaled().fold(f64::NEG_INFINITY, f64::max);
    max + scaled().map(|x| exp(x - max)).sum::<f64>().ln()
}

/// The best of some candidates, at least one.
fn best_of(candidates: &[Candidate]) -> Candidate {
    *candidates.iter().min_by(|a, b| by_logit(a, b)).expect("a filter leaves at least one candidate")
}

/// Keeps the fewest best candidates whose weights sum to at least `wanted`, and at least one.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, scale: Scale, wanted: f64) {
    fewest(candidates, scale, wanted, by_logit);
}

/// Keeps the fewest candidates whose surprise is nearest to the expected one, the entropy, and whose probabilities sum
/// to at least `typical_p` (locally typical sampling: Meister et al. 2022, arXiv 2202.00666).
pub(super) fn typical(candidates: &mut Vec<Candidate>, scale: Scale, typical_p: f32) {
    let total = weight_of(candidates, scale);
    let ln_total = total.ln();
    let entropy = candidates
        .iter()
        .map(|candidate| scale.apply(candidate.logit) - ln_total)
        // What is as good as impossible adds nothing, where 0 times infinity would be no number.
        .filter(|ln_p| *ln_p > f64::NEG_INFINITY)
        .map(|ln_p| -ln_p * exp(ln_p))
        .sum::<f64>();
    let distance = |candidate: &Candidate| (ln_total - scale.apply(candidate.logit) - entropy).abs();
    let nearest = |a: &Candidate, b: &Candidate| distance(a).total_cmp(&distance(b)).then(a.id.cmp(&b.id));
    fewest(candidates, scale, f64::from(typical_p) * total, nearest);
}

/// Keeps candidates at least `min_p` times as likely as the best of them.
pub(super) fn min_p(candidates: &mut Vec<Candidate>, scale: Scale, min_p: f32) {
    let floor = scale.apply(best_of(candidates).logit) + f64::from(min_p).ln();
    candidates.retain(|candidate| scale.apply(candidate.logit) >= floor);
}

/// Of the candidates that reach the probability `threshold`, keeps only the least likely (exclude top choices, by
/// p-e-w: oobabooga/text-generation-webui, pull request 6335).
pub(super) fn exclude_top_choices(candidates: &mut Vec<Candidate>, scale: Scale, threshold: f32) {
    let mut weighed = Weighed::new(candidates, scale);
    let floor = f64::from(threshold).ln();
    let is_top = |ln_p: f64| ln_p >= floor;
    let tops = weighed.candidates.iter().filter(|c| is_top(scale.apply(c.logit) - weighed.ln_total));
    let Some(last) = tops.max_by(|a, b| by_logit(a, b)).copied() else { return };
    weighed.retain(|ln_p, candidate| !is_top(ln_p) || candidate.id == last.id);
}

/// Keeps candidates whose surprise, `-log2 p`, is at most `bits`, and the best one in any case.
pub(super) fn unsurprising(candidates: &mut Vec<Candidate>, scale: Scale, bits: f64) {
    let best = best_of(candidates);
    let floor = -bits * std::f64::consts::LN_2;
    Weighed::new(candidates, scale).retain(|ln_p, candidate| ln_p >= floor || candidate.id == best.id);
}

/// Keeps the fewest candidates, those first that `order` puts first, whose weights sum to at least `wanted`, and at
/// least one.
///
/// Halves the range in which the cut must lie, each time looking only at the half that can still hold it: time linear
/// in the number of candidates.
fn fewest(
    candidates: &mut Vec<Candidate>,
    scale: Scale,
    wanted: f64,
    order: impl Fn(&Candidate, &Candidate) -> Ordering,
) {
    let (mut start, mut end) = (0, candidates.len());
    let mut before = 0.0; // the weight of candidates[..start], all of which stay
    while end - start > 32 {
        let half = (end - start) / 2;
        candidates[start..end].select_nth_unstable_by(half, &order);
        let upper = weight_of(&candidates[start..start + half], scale);
        if before + upper >= wanted {
            end = start + half;
        } else {
            before += upper;
            start += half;
        }
    }
    candidates[start..end].sort_unstable_by(order);
    let mut cut = start;
    while cut < end && (cut == 0 || before < wanted) {
        before += scale.weight(candidates[cut].logit);
        cut += 1;
    }
    candidates.truncate(cut);
}
