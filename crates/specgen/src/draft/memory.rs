//! `TokenMemory`: a draft that learns while it serves. What followed the last few tokens elsewhere is mixed into the
//! distribution that a model drafts from, with weights that are learned from what the target says.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{Mutex, MutexGuard, PoisonError},
};

use specgen_kernels::softmax::{Exponent, sum_exp};

/// Contexts are the last 1 to 4 tokens.
pub(super) const MAX_CONTEXT: usize = 4;
/// Tokens that are kept of what followed a context.
const MAX_FOLLOWERS: usize = 8;
/// Counts are halved when they add up to more.
const MAX_TOTAL: f32 = 64.0;
/// Contexts of a generation. There are two at most: when the younger is full, the older goes.
const GENERATION: usize = 100_000;
/// The memory's share in the mixture before anything is known, and its bounds.
const FIRST_SHARE: f64 = 0.2;
const SHARES: std::ops::RangeInclusive<f64> = 0.01..=0.95;
/// How far a share follows one observation.
const SHARE_RATE: f64 = 0.03;
/// Classes of how often a context was seen.
const COUNT_CLASSES: usize = 3;
/// By length of the context, how often it was seen, and whether the model is sure.
const BUCKETS: usize = MAX_CONTEXT * COUNT_CLASSES * 2;

/// What followed which tokens, in all texts that a drafter has seen, and how far that is to be trusted.
///
/// A drafted token's distribution is `q = (1 - λ) q_model + λ q_memory` before the sampler; a draw from it carries that `q`,
/// so every rule of verification is as exact with it as without. λ is learned by expectation maximisation, apart for
/// contexts of each length, often and seldom seen, under sure and unsure models. Bounded: what is old is forgotten.
pub struct TokenMemory {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    younger: HashMap<u64, Followers>,
    older: HashMap<u64, Followers>,
    hasher: RandomState,
    shares: Shares,
}

struct Shares([f64; BUCKETS]);

impl Default for Shares {
    fn default() -> Self {
        Self([FIRST_SHARE; BUCKETS])
    }
}

/// Tokens with their counts.
#[derive(Clone, Copy, Debug, Default)]
struct Followers {
    len: usize,
    tokens: [(u32, f32); MAX_FOLLOWERS],
}

/// A distribution that was mixed, for the target to judge.
#[derive(Clone, Copy, Debug)]
pub(super) struct Mixed {
    bucket: usize,
    len: usize,
    /// Token, probability by the model, and by the memory.
    tokens: [(u32, f64, f64); MAX_FOLLOWERS],
}

impl Followers {
    fn add(&mut self, token: u32) {
        let tokens = &mut self.tokens[..self.len];
        match tokens.iter_mut().find(|(other, _)| *other == token) {
            Some((_, count)) => *count += 1.0,
            None if self.len < MAX_FOLLOWERS => {
                self.tokens[self.len] = (token, 1.0);
                self.len += 1;
            }
            None => {
                // The least frequent one makes room.
                if let Some(least) = tokens.iter_mut().min_by(|a, b| a.1.total_cmp(&b.1)) {
                    *least = (token, 1.0);
                }
            }
        }
        if self.total() > MAX_TOTAL {
            self.tokens.iter_mut().for_each(|(_, count)| *count /= 2.0);
        }
    }

    fn total(&self) -> f32 {
        self.tokens[..self.len].iter().map(|(_, count)| count).sum()
    }

    fn count_class(&self) -> usize {
        match self.total() {
            total if total < 2.0 => 0,
            total if total < 6.0 => 1,
            _ => 2,
        }
    }
}

impl Default for TokenMemory {
    fn default() -> Self {
        Self { inner: Mutex::new(Inner::default()) }
    }
}

impl TokenMemory {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Counts and shares are only ever hints: any state of them will do.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Forgets everything.
    pub fn forget(&self) {
        *self.lock() = Inner::default();
    }

    /// Contexts that are known.
    pub fn num_contexts(&self) -> usize {
        let inner = self.lock();
        inner.younger.len() + inner.older.len()
    }

    /// Learns what followed what in `text`, from token `from` on.
    pub(super) fn learn(&self, text: &[u32], from: usize) {
        let mut inner = self.lock();
        for i in from.max(1)..text.len() {
            for len in 1..=MAX_CONTEXT.min(i) {
                inner.followers(&text[i - len..i]).add(text[i]);
            }
        }
    }

    /// Mixes what followed the end of `text` into `logits`; `None` where that is not known.
    pub(super) fn mix(&self, text: &[u32], logits: &mut [f32]) -> Option<Mixed> {
        let inner = self.lock();
        let (len, followers) = (1..=MAX_CONTEXT.min(text.len()))
            .rev()
            .find_map(|len| inner.find(&text[text.len() - len..]).map(|followers| (len, *followers)))?;
        let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum = sum_exp(logits, Exponent { max: best.into(), factor: 1.0, shift: 0.0 });
        let is_sure = sum < 2.0;
        if !sum.is_finite() {
            return None;
        }
        let bucket = ((len - 1) * COUNT_CLASSES + followers.count_class()) * 2 + usize::from(is_sure);
        let share = inner.shares.0[bucket];
        let mut mixed = Mixed { bucket, len: 0, tokens: Default::default() };
        let total = f64::from(followers.total());
        for &(token, count) in &followers.tokens[..followers.len] {
            let Some(logit) = logits.get_mut(token as usize) else { continue };
            let of_model = (f64::from(*logit) - f64::from(best)).exp() / sum;
            let of_memory = f64::from(count) / total;
            mixed.tokens[mixed.len] = (token, of_model, of_memory);
            mixed.len += 1;
            // What the model can't say the draft can't be fed.
            if *logit > f32::NEG_INFINITY {
                let weight = of_model + share / (1.0 - share) * of_memory;
                *logit = (f64::from(best) + (weight * sum).ln()) as f32;
            }
        }
        Some(mixed)
    }

    /// Hears what the target said where a mixture was drawn from.
    pub(super) fn judge(&self, mixed: &Mixed, said: u32) {
        let mut inner = self.lock();
        let share = &mut inner.shares.0[mixed.bucket];
        let known = mixed.tokens[..mixed.len].iter().find(|&&(token, ..)| token == said);
        let of_memory = known.map_or(0.0, |&(_, of_model, of_memory)| {
            *share * of_memory / (*share * of_memory + (1.0 - *share) * of_model).max(f64::MIN_POSITIVE)
        });
        *share = (*share + SHARE_RATE * (of_memory - *share)).clamp(*SHARES.start(), *SHARES.end());
    }
}

impl Inner {
    fn find(&self, context: &[u32]) -> Option<&Followers> {
        let hash = self.hasher.hash_one(context);
        self.younger.get(&hash).or_else(|| self.older.get(&hash))
    }

    fn followers(&mut self, context: &[u32]) -> &mut Followers {
        let hash = self.hasher.hash_one(context);
        if self.younger.len() >= GENERATION && !self.younger.contains_key(&hash) {
            self.older = std::mem::take(&mut self.younger);
        }
        // What is asked for again stays.
        let old = self.older.remove(&hash).unwrap_or_default();
        self.younger.entry(hash).or_insert(old)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::sampling::log_probabilities;

    fn probabilities(logits: &[f32]) -> Vec<f32> {
        log_probabilities(logits).into_iter().map(f32::exp).collect()
    }

    #[test]
    fn a_mixture_is_a_mixture() {
        let memory = TokenMemory::default();
        memory.learn(&[7, 1, 7, 2, 7, 1], 0);
        let logits = [0.0, 1.0, 2.0, -1.0, f32::NEG_INFINITY];
        let mut row = logits;
        let mixed = memory.mix(&[5, 7], &mut row).unwrap();
        assert_eq!(mixed.len, 2);
        let (before, after) = (probabilities(&logits), probabilities(&row));
        let share = FIRST_SHARE as f32;
        for (id, of_memory) in [(0, 0.0), (1, 2.0 / 3.0), (2, 1.0 / 3.0), (3, 0.0), (4, 0.0)] {
            let wanted = (1.0 - share) * before[id] + share * of_memory;
            assert!((after[id] - wanted).abs() < 1e-6, "{id}: {after:?}");
        }
        assert!(memory.mix(&[5, 3], &mut row).is_none());
    }

    #[test]
    fn the_longest_known_context_is_asked() {
        let memory = TokenMemory::default();
        memory.learn(&[1, 2, 3, 9, 2, 4], 0);
        let mut row = [0.0; 10];
        let mixed = memory.mix(&[1, 2], &mut row).unwrap();
        assert_eq!((mixed.len, mixed.tokens[0].0), (1, 3));
    }

    /// The memory is trusted where it is right, and not where it is wrong.
    #[test]
    fn shares_follow_what_the_target_says() {
        for (said, trusted) in [(1, true), (3, false)] {
            let memory = TokenMemory::default();
            memory.learn(&[7, 1, 7, 1], 0);
            for _ in 0..200 {
                let mut row = [0.0; 5];
                let mixed = memory.mix(&[7], &mut row).unwrap();
                memory.judge(&mixed, said);
            }
            let mut row = [0.0; 5];
            memory.mix(&[7], &mut row).unwrap();
            let found = probabilities(&row)[1];
            assert_eq!(found > 0.9, trusted, "{found}");
            assert_eq!(found < 0.25, !trusted, "{found}");
        }
    }

    #[test]
    fn what_is_old_is_forgotten() {
        let memory = TokenMemory::default();
        memory.learn(&[1, 2], 0);
        let many: Vec<u32> = (10..10 + GENERATION as u32).collect();
        memory.learn(&many, 0);
        assert!(memory.num_contexts() <= 2 * GENERATION);
        assert!(memory.mix(&[1], &mut [0.0; 5]).is_none());
        memory.forget();
        assert_eq!(memory.num_contexts(), 0);
    }

    /// Broken rows are left to those who find them.
    #[test]
    fn rows_that_are_no_numbers_pass() {
        let memory = TokenMemory::default();
        memory.learn(&[7, 1], 0);
        for bad in [f32::NAN, f32::INFINITY] {
            let mut row = [0.0, bad, 0.0];
            memory.mix(&[7], &mut row);
            assert!(row[1] == bad || row[1].is_nan());
        }
        memory.mix(&[7], &mut [f32::NEG_INFINITY; 3]);
    }
}
