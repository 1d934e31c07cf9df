//! `Texts`: tokens, indexed so that what followed a run of them is found at once, with how often (a suffix tree's answers,
//! arXiv:2411.04975, from chains of places as in LZ77: a token is added and taken off again in constant time).

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
};

use crate::verify::{Draft, Signal, Source};

/// What lies between two texts.
const GAP: u32 = u32::MAX;
/// Runs that places are found by; the longest that has any decides.
const RUNS: [usize; 3] = [4, 2, 1];
/// Places that are looked at, the latest.
const MAX_PLACES: usize = 24;
/// Longer matches say no more.
const MAX_MATCH_LEN: usize = 64;
/// A match one token longer has this many times the vote, up to so many tokens.
const LONGER: f64 = 3.0;
const MAX_VOTE_LEN: usize = 24;

/// Texts, one behind the other.
#[derive(Clone, Debug, Default)]
pub(super) struct Texts {
    tokens: Vec<u32>,
    runs: [Run; RUNS.len()],
    hasher: RandomState,
}

/// Where runs of one length end.
#[derive(Clone, Debug, Default)]
struct Run {
    /// By the run's hash, the position behind its latest occurrence.
    latest: HashMap<u64, u32>,
    /// By token, what `latest` held before it: chains the places, and undoes a token.
    before: Vec<Option<u32>>,
}

/// A place where the text's end has been before.
#[derive(Clone, Copy)]
struct Place {
    /// Of the token that followed.
    next: usize,
    /// Tokens that are the same.
    len: usize,
}

impl Texts {
    pub(super) fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Makes `tokens` all that there is, whatever there was before.
    pub(super) fn follow(&mut self, tokens: &[u32]) {
        let shared = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        while self.tokens.len() > shared {
            self.pop();
        }
        tokens[shared..].iter().for_each(|&token| self.push(token));
    }

    /// Adds a text.
    pub(super) fn add(&mut self, text: &[u32]) {
        self.push(GAP);
        text.iter().for_each(|&token| self.push(token));
    }

    fn hash(&self, run: usize, tokens: &[u32]) -> Option<u64> {
        let ending = &tokens[tokens.len().checked_sub(RUNS[run])?..];
        (!ending.contains(&GAP)).then(|| self.hasher.hash_one(ending))
    }

    pub(super) fn push(&mut self, token: u32) {
        self.tokens.push(token);
        // Positions are kept in 32 bits; a text of so many tokens is beyond every context.
        let Ok(end) = u32::try_from(self.tokens.len()) else { return };
        for i in 0..RUNS.len() {
            let hash = self.hash(i, &self.tokens);
            let run = &mut self.runs[i];
            run.before.push(hash.and_then(|hash| run.latest.insert(hash, end)));
        }
    }

    pub(super) fn pop(&mut self) {
        for i in 0..RUNS.len() {
            let hash = self.hash(i, &self.tokens);
            let run = &mut self.runs[i];
            match (hash, run.before.pop().flatten()) {
                (Some(hash), Some(before)) => drop(run.latest.insert(hash, before)),
                (Some(hash), None) => drop(run.latest.remove(&hash)),
                (None, _) => {}
            }
        }
        self.tokens.pop();
    }

    /// Guesses what follows `tail`, at most `k` tokens and none behind one of `end_ids`. Where `tail` is the end of these
    /// texts itself, a loop in it is guessed as a loop.
    pub(super) fn guess(&self, tail: &[u32], k: usize, source: Source, end_ids: &[u32]) -> Draft {
        let mut places = self.places(tail);
        let is_end = self.tokens.ends_with(tail);
        let mut draft = Draft::default();
        while draft.len() < k && !places.is_empty() {
            let behind = draft.len();
            let next = |place: &Place| {
                let at = place.next + behind;
                match self.tokens.get(at) {
                    Some(&token) => (token != GAP).then_some(token),
                    None if is_end => draft.tokens.get(at - self.tokens.len()).copied(),
                    None => None,
                }
            };
            let Some((token, confidence)) = elected(&places, next, behind) else { break };
            places.retain(|place| next(place) == Some(token));
            draft.push_guess(token, Signal { source, confidence: Some(confidence) });
            if end_ids.contains(&token) {
                break;
            }
        }
        draft
    }

    /// The latest places where `tail`, or as much of its end as was ever seen, was before.
    fn places(&self, tail: &[u32]) -> Vec<Place> {
        let mut places = Vec::with_capacity(MAX_PLACES);
        for (i, run) in self.runs.iter().enumerate() {
            let mut end = self.hash(i, tail).and_then(|hash| run.latest.get(&hash).copied());
            let mut num_seen = 0;
            while let Some(next) = end.filter(|_| num_seen < MAX_PLACES) {
                let place = Place { next: next as usize, len: self.match_len(tail, next as usize) };
                // Nothing has followed the end yet; and two runs may have one hash.
                if place.next < self.tokens.len() && place.len >= RUNS[i] {
                    places.push(place);
                }
                num_seen += 1;
                end = run.before[next as usize - 1];
            }
            if !places.is_empty() {
                break;
            }
        }
        places
    }

    /// How many tokens at the end of `tail` are those before `next`.
    fn match_len(&self, tail: &[u32], next: usize) -> usize {
        let pairs = tail.iter().rev().zip(self.tokens[..next].iter().rev());
        pairs.take(MAX_MATCH_LEN).take_while(|(a, b)| a == b).count()
    }
}

/// The token that most places vote for, long matches with more weight, and how sure that is; the latest place's among
/// equals. `behind`: tokens guessed since the places were found.
fn elected(places: &[Place], next: impl Fn(&Place) -> Option<u32>, behind: usize) -> Option<(u32, f32)> {
    let mut votes: Vec<(u32, f64, usize)> = Vec::new();
    let mut total = 0.0;
    for place in places {
        let weight = LONGER.powi(place.len.min(MAX_VOTE_LEN) as i32);
        total += weight;
        let Some(token) = next(place) else { continue };
        match votes.iter_mut().find(|vote| vote.0 == token) {
            Some((_, votes, longest)) => (*votes, *longest) = (*votes + weight, place.len.max(*longest)),
            None => votes.push((token, weight, place.len)),
        }
    }
    let best = votes.into_iter().reduce(|best, vote| if vote.1 > best.1 { vote } else { best })?;
    let (token, weight, len) = best;
    // Places that differ are worse than their share.
    Some((token, (weight / total).powf(1.5) as f32 * sureness(len + behind)))
}

/// How sure a guess behind a match of `len` tokens is, where all places agree: as often as that was right in answers to
/// questions about code, prose and data (0.4 for one token, 0.8 for four, 0.95 for sixteen; each guess that stands makes
/// the match one longer). What it is worth in a text is for a plan to learn.
pub(super) fn sureness(len: usize) -> f32 {
    1.0 - 0.6 * (len.max(1) as f32).powf(-0.85)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of(tokens: &[u32]) -> Texts {
        let mut texts = Texts::default();
        texts.follow(tokens);
        texts
    }

    fn guess(tokens: &[u32], k: usize) -> Vec<u32> {
        of(tokens).guess(tokens, k, Source::Text, &[99]).tokens
    }

    fn first_confidence(tokens: &[u32]) -> f32 {
        let draft = of(tokens).guess(tokens, 1, Source::Text, &[]);
        draft.signals().next().and_then(|signal| signal.confidence).unwrap_or(0.0)
    }

    #[test]
    fn what_followed_most_often_is_guessed_and_the_latest_among_equals() {
        assert_eq!(guess(&[1, 2, 7, 5, 1, 2, 8, 6, 1, 2, 7, 4, 1, 2], 2), [7, 4]);
        assert_eq!(guess(&[1, 2, 7, 5, 1, 2, 8, 6, 1, 2], 2), [8, 6]);
        assert_eq!(guess(&[], 4), [0; 0]);
        assert_eq!(guess(&[1, 2, 3], 4), [0; 0]);
    }

    #[test]
    fn a_longer_match_outvotes_shorter_ones() {
        // `5 6` was followed by 9 twice, `4 5 6` by 7.
        assert_eq!(guess(&[4, 5, 6, 7, 1, 5, 6, 9, 2, 5, 6, 9, 4, 5, 6], 1), [7]);
        assert!(first_confidence(&[9, 1, 2, 3, 7, 8, 1, 2, 3]) > first_confidence(&[9, 2, 3, 7, 8, 2, 3]));
    }

    #[test]
    fn places_that_disagree_make_it_less_sure() {
        let [agree, differ] = [[1, 2, 7, 5, 1, 2, 7, 6, 1, 2], [1, 2, 7, 5, 1, 2, 8, 6, 1, 2]];
        assert!(first_confidence(&agree) > 2.5 * first_confidence(&differ));
    }

    #[test]
    fn loops_go_on_and_ends_end() {
        assert_eq!(guess(&[3, 4, 3, 4, 3, 4], 5), [3, 4, 3, 4, 3]);
        assert_eq!(guess(&[1, 2, 99, 5, 1, 2], 4), [99]);
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let mut texts = Texts::default();
        texts.add(&[1, 2, 3]);
        texts.add(&[4, 5]);
        assert_eq!(texts.guess(&[9, 1, 2], 4, Source::Corpus, &[]).tokens, [3]);
        assert!(texts.guess(&[2, 3], 4, Source::Corpus, &[]).is_empty());
        assert!(texts.guess(&[3, 4, 5], 4, Source::Corpus, &[]).is_empty());
    }

    proptest! {
        /// However a text grows and is cut, it answers as if it had been read at once.
        #[test]
        fn what_is_kept_is_what_would_be_made_anew(
            steps in prop::collection::vec((0..20_usize, prop::collection::vec(0..5_u32, 0..20)), 1..10),
        ) {
            let (mut texts, mut tokens) = (Texts::default(), Vec::new());
            for (num_cut, more) in steps {
                tokens.truncate(tokens.len().saturating_sub(num_cut));
                tokens.extend(more);
                texts.follow(&tokens);
                let guess = |texts: &Texts| texts.guess(&tokens, 8, Source::Text, &[4]);
                prop_assert_eq!(guess(&texts), guess(&of(&tokens)));
            }
        }

        /// Every guess is right of some earlier place, as far as the text goes.
        #[test]
        fn a_guess_has_been_said_before(tokens in prop::collection::vec(0..4_u32, 2..60), k in 1..8_usize) {
            let draft = of(&tokens).guess(&tokens, k, Source::Text, &[]);
            let said = [&tokens[..], &draft.tokens].concat();
            for i in tokens.len()..said.len() {
                let pair = &said[i - 1..=i];
                prop_assert!(said[..i].windows(2).any(|earlier| earlier == pair));
            }
            prop_assert!(draft.signals().all(|s| (0.0..=1.0).contains(&s.confidence.unwrap_or(0.0))));
        }
    }
}
