//! The filters: which tokens stay, found without sorting a whole vocabulary.

use super::Scale;
use crate::distribution::sum_exp;
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

/// The highest logit of a chunk.
fn highest(chunk: &[f32]) -> f32 {
    chunk.iter().fold(f32::NEG_INFINITY, |max, &logit| if logit > max { logit } else { max })
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

/// Keeps the `k` best and returns the worst logit among them.
fn shrink(candidates: &mut Vec<Candidate>, k: usize) -> f32 {
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

/// Keeps the fewest best candidates whose weights sum to at least `wanted`, and at least one.
///
/// Halves the range in which the cut must lie, each time looking only at the half that can still hold it: time linear
/// in the number of candidates.
pub(super) fn top_p(candidates: &mut Vec<Candidate>, scale: Scale, wanted: f64) {
    let (mut start, mut end) = (0, candidates.len());
    let mut before = 0.0; // the weight of candidates[..start], all of which stay
    while end - start > 32 {
        let half = (end - start) / 2;
        candidates[start..end].select_nth_unstable_by(half, by_logit);
        let upper: f64 =
            candidates[start..start + half].iter().map(|candidate| scale.weight(candidate.logit)).sum();
        if before + upper >= wanted {
            end = start + half;
        } else {
            before += upper;
            start += half;
        }
    }
    candidates[start..end].sort_unstable_by(by_logit);
    let mut cut = start;
    while cut < end && (cut == 0 || before < wanted) {
        before += scale.weight(candidates[cut].logit);
        cut += 1;
    }
    candidates.truncate(cut);
}
