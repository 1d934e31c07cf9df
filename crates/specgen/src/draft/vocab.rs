//! How a draft model's tokens stand for the target's: the same ids, or twins by what they spell.

use std::sync::Arc;

use super::translation::Translator;
use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// Of the tokens of ordinary text, the share that a draft of another vocabulary must have. What it lacks it never
/// drafts, so no draft is longer than the way to the next such token: below this, two tokens on average.
const MIN_TEXT_SHARE: f64 = 0.5;

/// How a draft's tokens stand for the target's.
#[derive(Clone, Debug)]
pub enum DraftVocab {
    /// The same tokens under the same ids, those below this one; ids that only one side knows are never drafted.
    Shared(usize),
    /// Other tokens, or other ids: it reads the text in its own tokens, and drafts those that the target has too.
    Other(Arc<Translator>),
}

impl DraftVocab {
    /// Compares two vocabularies by the bytes behind each id, not by sizes: tails beyond (padding, added tokens) are
    /// allowed.
    ///
    /// # Errors
    /// [`Error::VocabMismatch`] for a draft that lacks so many of the target's tokens that drafting is in vain.
    pub fn between(target: &Tokenizer, draft: &Tokenizer) -> Result<Self> {
        let shared = target.vocab_size().min(draft.vocab_size());
        if (0..shared as u32).all(|id| target.piece(id) == draft.piece(id)) {
            return Ok(Self::Shared(shared));
        }
        let translator = Translator::new(target, draft);
        let coverage = translator.coverage();
        if coverage.text_share < MIN_TEXT_SHARE {
            return Err(Error::VocabMismatch(format!(
                "{coverage}, and it takes {:.0} %; choose a draft of the same family, or `ngram`",
                100.0 * MIN_TEXT_SHARE
            )));
        }
        Ok(Self::Other(Arc::new(translator)))
    }

    /// Tokens that both have.
    pub fn num_shared(&self) -> usize {
        match self {
            Self::Shared(shared) => *shared,
            Self::Other(translator) => translator.coverage().num_twins,
        }
    }

    /// How far a draft of another vocabulary covers the target's.
    pub fn coverage(&self) -> Option<Coverage> {
        match self {
            Self::Shared(_) => None,
            Self::Other(translator) => Some(translator.coverage()),
        }
    }
}

/// How much of the target's language a draft of another vocabulary can say.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coverage {
    /// Draft tokens that are the target's too.
    pub num_twins: usize,
    /// Draft tokens in all.
    pub draft_vocab_size: usize,
    /// Of the tokens the target takes for a page of ordinary text, the share that the draft has too.
    pub text_share: f64,
}

impl std::fmt::Display for Coverage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} of its {} tokens are the target's too, {:.0} % of the tokens of ordinary text",
            self.num_twins,
            self.draft_vocab_size,
            100.0 * self.text_share
        )
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tokenizer::tests::{byte_pair, open, sentence_piece};

    #[test]
    fn equal_ids_are_shared_and_too_few_twins_are_refused_with_the_numbers() {
        let (bytes, words) = (open(&byte_pair()).unwrap(), open(&sentence_piece()).unwrap());
        assert!(matches!(DraftVocab::between(&bytes, &bytes).unwrap(), DraftVocab::Shared(265)));
        let DraftVocab::Other(translator) = DraftVocab::between(&bytes, &words).unwrap() else {
            panic!("they differ from the first id on")
        };
        let coverage = translator.coverage();
        // All of it is bytes to the target, but for a `he` and a `ll` here and there.
        assert!((0.98..1.0).contains(&coverage.text_share), "{coverage:?}");
        assert_eq!(
            coverage.to_string(),
            "257 of its 266 tokens are the target's too, 99 % of the tokens of ordinary text"
        );
        let mut few = byte_pair();
        let tokens = crate::weights::metadata::Value::Strings(vec![b"a".to_vec(), b"b".to_vec()]);
        few.0.insert("tokenizer.ggml.tokens".into(), tokens);
        few.0.insert("tokenizer.ggml.merges".into(), crate::weights::metadata::Value::Strings(Vec::new()));
        let error = DraftVocab::between(&bytes, &open(&few).unwrap()).unwrap_err().to_string();
        assert!(
            error.contains("2 of its 2 tokens are the target's too") && error.contains("50 %"),
            "{error}"
        );
    }
}
