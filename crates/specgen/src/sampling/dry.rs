//! DRY ("don't repeat yourself"): a token that would continue a repeat is penalised, the more the longer the repeat.
//!
//! By p-e-w (oobabooga/text-generation-webui, pull request 5677); the meaning here is that of llama.cpp.

use std::collections::{HashMap, HashSet};

use super::{Dry, History, phrase::Phrase, repeats::continuations};

/// A penalty is at most this: below every logit, and still a number.
const MAX_PENALTY: f64 = 1e30;

/// The token sequences that no repeat may hold.
#[derive(Debug, Default)]
pub(super) struct Breakers {
    singles: HashSet<u32>,
    /// Longer ones, by their last token.
    longer: HashMap<u32, Vec<Vec<u32>>>,
}

impl Breakers {
    pub(super) fn new(phrases: &[Phrase]) -> Self {
        let mut breakers = Self::default();
        for ids in phrases.iter().filter_map(Phrase::ids) {
            match *ids {
                [] => {}
                [id] => _ = breakers.singles.insert(id),
                [.., last] => breakers.longer.entry(last).or_default().push(ids.to_vec()),
            }
        }
        breakers
    }

    /// How many tokens `text` has after the last breaker.
    fn tokens_since(&self, text: &[u32]) -> usize {
        let ends_here = |end: usize| {
            let id = text[end - 1];
            let longer =
                || self.longer.get(&id).is_some_and(|all| all.iter().any(|b| text[..end].ends_with(b)));
            self.singles.contains(&id) || longer()
        };
        let last = (1..=text.len()).rev().find(|&end| ends_here(end));
        text.len() - last.unwrap_or(0)
    }
}

/// The tokens that would continue a repeat, with the longest such repeat: `allowed_length` tokens or more.
fn repeats(dry: &Dry, breakers: &Breakers, text: &[u32]) -> HashMap<u32, usize> {
    let window = match dry.penalty_last_n {
        0 => text,
        len => &text[text.len().saturating_sub(len)..],
    };
    let mut longest = HashMap::new();
    let limit = breakers.tokens_since(window);
    if limit < dry.allowed_length {
        return longest;
    }
    for (id, agreeing) in continuations(window) {
        let repeat = agreeing.min(limit);
        if repeat >= dry.allowed_length && !breakers.singles.contains(&id) {
            let known = longest.entry(id).or_insert(repeat);
            *known = repeat.max(*known);
        }
    }
    longest
}

/// Lowers the logits of tokens that would continue a repeat, by `multiplier * base ^ (repeat - allowed_length)`.
pub(super) fn apply(dry: &Dry, breakers: &Breakers, row: &mut [f32], history: &History) {
    // Times what has grown beyond numbers it would be no number.
    if dry.multiplier == 0.0 {
        return;
    }
    for (id, repeat) in repeats(dry, breakers, history.tokens()) {
        let Some(logit) = row.get_mut(id as usize) else { continue };
        let growth = f64::from(dry.base).powf((repeat - dry.allowed_length) as f64);
        *logit -= (f64::from(dry.multiplier) * growth).min(MAX_PENALTY) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, word by word: every repeat length is tried at every place.
    fn naive(dry: &Dry, breakers: &[Vec<u32>], text: &[u32]) -> HashMap<u32, usize> {
        let len = if dry.penalty_last_n == 0 { text.len() } else { dry.penalty_last_n.min(text.len()) };
        let window = &text[text.len() - len..];
        let mut longest = HashMap::new();
        for at in 0..window.len() {
            for repeat in dry.allowed_length..=at {
                let end = &window[window.len() - repeat..];
                let is_broken = breakers.iter().any(|breaker| {
                    // A breaker that ends inside the repeat, wherever in the text it begins.
                    (window.len() - repeat + 1..=window.len()).any(|end| window[..end].ends_with(breaker))
                });
                if window[..at].ends_with(end) && !is_broken && !breakers.contains(&vec![window[at]]) {
                    let known = longest.entry(window[at]).or_insert(repeat);
                    *known = repeat.max(*known);
                }
            }
        }
        longest
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        #[test]
        fn repeats_are_those_of_the_definition(
            text in prop::collection::vec(0_u32..4, 0..40),
            allowed_length in 1_usize..4,
            penalty_last_n in prop_oneof![Just(0_usize), 1_usize..50],
            breakers in prop::collection::vec(prop::collection::vec(0_u32..4, 1..3), 0..3),
        ) {
            let sequence_breakers: Vec<Phrase> = breakers.iter().cloned().map(Phrase::Ids).collect();
            let prepared = Breakers::new(&sequence_breakers);
            let dry = Dry { allowed_length, penalty_last_n, sequence_breakers, ..Dry::default() };
            prop_assert_eq!(repeats(&dry, &prepared, &text), naive(&dry, &breakers, &text));
        }
    }

    /// The example in llama.cpp's sources: `a b c c b c y a b c`, of which `c` continues a repeat of three.
    #[test]
    fn the_penalty_grows_with_the_repeat() {
        let [a, b, c, y] = [0, 1, 2, 3];
        let mut history = History::new(&[a, b, c, c, b]);
        [c, y, a, b, c].into_iter().for_each(|id| history.push(id));
        let dry = Dry { multiplier: 0.5, base: 2.0, allowed_length: 1, ..Dry::default() };
        let mut row = [0.0; 4];
        apply(&dry, &Breakers::default(), &mut row, &history);
        assert_eq!(row, [0.0, -0.5, -0.5 * 4.0, -0.5 * 2.0]);
        // Every token of a repeat must come after the last breaker.
        let mut row = [0.0; 4];
        apply(&dry, &Breakers::new(&[Phrase::Ids(vec![y, a])]), &mut row, &history);
        assert_eq!(row, [0.0, -0.5, -0.5 * 2.0, -0.5 * 2.0]);
    }

    #[test]
    fn a_penalty_beyond_all_bounds_is_still_a_number() {
        let history = History::new(&[5; 10_000]);
        let mut row = [1.0; 6];
        apply(&Dry::default(), &Breakers::default(), &mut row, &history);
        assert!(row[5] < -1e29 && row[5].is_finite());
    }
}
