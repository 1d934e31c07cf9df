//! `Corpus`: other texts that drafts may be guessed from: those that an engine wrote before, and those it was given.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::texts::Texts;
use crate::verify::{Draft, Source};

/// Tokens of a generation of texts. There are two at most: when the younger is full, the older goes.
const GENERATION: usize = 200_000;

/// Texts to guess from, shared by all that an engine writes. What is old is forgotten: it holds 200,000 to 400,000 tokens
/// once it is full, about 80 bytes each.
#[derive(Default)]
pub struct Corpus {
    generations: Mutex<Generations>,
}

#[derive(Default)]
struct Generations {
    younger: Texts,
    older: Texts,
}

impl Corpus {
    fn lock(&self) -> MutexGuard<'_, Generations> {
        // Texts are added whole or not at all as far as guesses go: any state of them will do.
        self.generations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a text.
    pub fn add(&self, text: &[u32]) {
        let mut generations = self.lock();
        for part in text.chunks(GENERATION) {
            if generations.younger.tokens().len() + part.len() > GENERATION {
                generations.older = std::mem::take(&mut generations.younger);
            }
            generations.younger.add(part);
        }
    }

    /// Forgets all texts.
    pub fn forget(&self) {
        *self.lock() = Generations::default();
    }

    /// Tokens that are held.
    pub fn len(&self) -> usize {
        let generations = self.lock();
        generations.younger.tokens().len() + generations.older.tokens().len()
    }

    /// Whether there is no text.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What followed `tail` elsewhere, by the younger texts where they know.
    pub(super) fn guess(&self, tail: &[u32], k: usize, end_ids: &[u32]) -> Draft {
        let generations = self.lock();
        let younger = generations.younger.guess(tail, k, Source::Corpus, end_ids);
        let older = generations.older.guess(tail, k, Source::Corpus, end_ids);
        if older.expected_len() > younger.expected_len() { older } else { younger }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_texts_are_forgotten_in_the_end() {
        let corpus = Corpus::default();
        corpus.add(&[1, 2, 3]);
        assert_eq!(corpus.guess(&[1, 2], 2, &[]).tokens, [3]);
        for _ in 0..2 {
            corpus.add(&vec![7; GENERATION - 2]);
        }
        assert!(corpus.guess(&[1, 2], 2, &[]).is_empty());
        assert!(corpus.len() <= 2 * GENERATION + 8);
        corpus.forget();
        assert!(corpus.is_empty());
    }
}
