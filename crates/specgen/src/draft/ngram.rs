//! Prompt lookup: what followed the most recent earlier occurrence of the text's last tokens (Saxena 2023, "Prompt
//! lookup decoding"). Costs microseconds and no model.

use std::collections::HashMap;

use super::{Draft, DraftRequest, DraftState, Drafter, Signal, Source, texts};
use crate::error::{Error, Result};

/// Drafts by looking up the text's own past.
#[derive(Clone, Copy, Debug)]
pub struct NgramDrafter {
    min_len: usize,
    max_len: usize,
}

impl Default for NgramDrafter {
    /// Matches of 4, 3, then 2 tokens.
    fn default() -> Self {
        Self { min_len: 2, max_len: 4 }
    }
}

impl NgramDrafter {
    /// Looks for the last `max_len` tokens, then fewer, down to `min_len`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] unless `1 <= min_len <= max_len <= 16`.
    pub fn new(min_len: usize, max_len: usize) -> Result<Self> {
        if min_len == 0 || min_len > max_len || max_len > MAX_LEN {
            return Err(Error::InvalidArgument(format!(
                "n-gram lengths {min_len} to {max_len}; wanted 1 <= shortest <= longest <= {MAX_LEN}"
            )));
        }
        Ok(Self { min_len, max_len })
    }
}

impl Drafter for NgramDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(Index { min_len: self.min_len, max_len: self.max_len, ..Index::default() })
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        Ok(Box::new(state.downcast::<Index>().clone()))
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let draft = |request: &mut DraftRequest<'_>| {
            let (tokens, k, end_ids) = (request.tokens, request.k, request.end_ids);
            let index = request.state.downcast::<Index>();
            index.catch_up(tokens);
            let next = index.lookup().filter(|_| k > 0);
            let mut guesses = next.map_or(Vec::new(), |next| continuation(tokens, next, k, end_ids));
            // What a grammar forbids need not be verified. (A token that was drawn must not be dropped so.)
            guesses.truncate(request.sampler.num_allowed(request.history, &guesses));
            let mut draft = Draft::deterministic(guesses);
            if let Some(next) = next {
                let signal = |sure| Signal { source: Source::Text, confidence: Some(sure) };
                draft.signals = sureness(match_len(tokens, next), draft.len()).map(signal).collect();
            }
            Ok(draft)
        };
        Ok(requests.iter_mut().map(draft).collect())
    }
}

/// What follows from position `next` on, running into the guesses themselves where the text ends: a loop in the text
/// is drafted as a loop.
fn continuation(tokens: &[u32], next: usize, k: usize, end_ids: &[u32]) -> Vec<u32> {
    let mut guesses: Vec<u32> = Vec::with_capacity(k);
    for at in next..next + k {
        let guess = match tokens.get(at) {
            Some(&token) => token,
            None => guesses[at - tokens.len()],
        };
        guesses.push(guess);
        if end_ids.contains(&guess) {
            break;
        }
    }
    guesses
}

/// Longer matches say no more.
const MAX_MATCH_LEN: usize = 100;

/// How many tokens at the text's end are those before `next`.
fn match_len(tokens: &[u32], next: usize) -> usize {
    let (end, before) = (tokens.iter().rev(), tokens[..next].iter().rev());
    end.zip(before).take(MAX_MATCH_LEN).take_while(|(a, b)| a == b).count()
}

/// How sure the guesses behind a match of `len` tokens are. If the first stands, the match is one longer.
fn sureness(len: usize, num_guesses: usize) -> impl Iterator<Item = f32> {
    (len..len + num_guesses).map(texts::sureness)
}

/// Where each n-gram last ended. Updated by one token in O(max_len), and shrunk again as fast.
#[derive(Clone, Debug, Default)]
struct Index {
    min_len: usize,
    max_len: usize,
    tokens: Vec<u32>,
    /// n-gram → the position just after its latest occurrence, the occurrence at the very end of the text included.
    latest: HashMap<Ngram, usize>,
    /// Per position and n-gram length, what `latest` held before: undoes a token, and finds the occurrence before the
    /// one at the end. `[tokens, max_len - min_len + 1]`.
    previous: Vec<Option<usize>>,
}

/// The longest n-gram there may be.
const MAX_LEN: usize = 16;

/// An n-gram, by value: a text of a thousand tokens has thousands.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ngram {
    len: usize,
    tokens: [u32; MAX_LEN],
}

impl DraftState for Index {}

impl Index {
    /// Brings the index to `tokens`, whatever it held before.
    fn catch_up(&mut self, tokens: &[u32]) {
        let shared = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        while self.tokens.len() > shared {
            self.pop();
        }
        for &token in &tokens[shared..] {
            self.push(token);
        }
    }

    /// The last `len` tokens, where there are so many.
    fn ending(&self, len: usize) -> Option<Ngram> {
        let start = self.tokens.len().checked_sub(len)?;
        let mut tokens = [0; MAX_LEN];
        tokens[..len].copy_from_slice(&self.tokens[start..]);
        Some(Ngram { len, tokens })
    }

    fn push(&mut self, token: u32) {
        self.tokens.push(token);
        for len in self.min_len..=self.max_len {
            let ngram = self.ending(len);
            self.previous.push(ngram.and_then(|ngram| self.latest.insert(ngram, self.tokens.len())));
        }
    }

    fn pop(&mut self) {
        for len in (self.min_len..=self.max_len).rev() {
            let previous = self.previous.pop().flatten();
            let Some(ngram) = self.ending(len) else { continue };
            match previous {
                Some(position) => self.latest.insert(ngram, position),
                None => self.latest.remove(&ngram),
            };
        }
        self.tokens.pop();
    }

    /// The position after the most recent earlier occurrence of the text's end, the longest that has one.
    fn lookup(&self) -> Option<usize> {
        self.previous
            .rchunks(self.max_len - self.min_len + 1)
            .next()?
            .iter()
            .rev()
            .find_map(|&position| position)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn index() -> Index {
        Index { min_len: 2, max_len: 4, ..Index::default() }
    }

    fn guess(tokens: &[u32], k: usize) -> Vec<u32> {
        let mut index = index();
        index.catch_up(tokens);
        index.lookup().map_or(Vec::new(), |next| continuation(tokens, next, k, &[99]))
    }

    #[test]
    fn proposes_what_followed_the_most_recent_match() {
        assert_eq!(guess(&[1, 2, 7, 1, 2, 8, 1, 2], 2), [8, 1]);
        assert_eq!(guess(&[1, 2, 3], 4), [0; 0]);
        assert_eq!(guess(&[], 4), [0; 0]);
    }

    #[test]
    fn prefers_the_longer_match() {
        // `5 6` was last followed by 9, but `4 5 6` by 7.
        assert_eq!(guess(&[4, 5, 6, 7, 5, 6, 9, 4, 5, 6], 1), [7]);
    }

    #[test]
    fn a_longer_match_is_surer() {
        let tokens = [9, 1, 2, 3, 7, 8, 1, 2, 3];
        assert_eq!(match_len(&tokens, 4), 3);
        assert_eq!(match_len(&[5, 5, 5, 5], 3), 3);
        let sure: Vec<f32> = sureness(2, 3).collect();
        assert!(sure.is_sorted() && sure[0] > 0.6 && sure[2] < 0.85, "{sure:?}");
    }

    #[test]
    fn runs_into_its_own_guesses_and_stops_at_an_end() {
        assert_eq!(guess(&[3, 4, 3, 4, 3, 4], 5), [3, 4, 3, 4, 3]);
        assert_eq!(guess(&[1, 2, 99, 5, 1, 2], 4), [99]);
    }

    /// The rule of the module's first line, by search.
    fn naive(tokens: &[u32]) -> Option<usize> {
        let end = tokens.len();
        (2..=4usize.min(end)).rev().find_map(|len| {
            let suffix = &tokens[end - len..];
            (len..end).rev().find(|&e| &tokens[e - len..e] == suffix)
        })
    }

    proptest! {
        #[test]
        fn index_equals_search_after_any_edits(texts in prop::collection::vec(prop::collection::vec(0u32..3, 0..40), 1..6)) {
            let mut index = index();
            for text in &texts {
                index.catch_up(text);
                prop_assert_eq!(index.lookup(), naive(text));
            }
        }
    }
}
