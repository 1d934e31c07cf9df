//! Which logits a draft is worth computing: those of tokens that matter (FR-Spec; Zhao et al. 2025, arXiv:2502.14856).
//! The output head of a small model is often its largest matrix, and most of its rows are of tokens that are hardly ever
//! said. A draft that cannot say them proposes others, and the text stays the target's: what it draws from is its `q`.

use std::sync::Arc;

use super::{DraftVocab, translation::Translator};
use crate::{model::ModelInfo, tokenizer::Tokenizer};

/// No id.
pub(super) const NONE: u32 = u32::MAX;

impl DraftVocab {
    /// The ids that a draft of `vocab_size` ids is to have logits of, ascending; `None`: all. Of another vocabulary those
    /// that the target has too: the others are never drafted. Of these, where not all are wanted, the `num_frequent` most
    /// frequent, and all that end or steer a text or stand for one byte, which anything can be spelled with.
    ///
    /// No text is counted for it: a vocabulary numbers its tokens in the order of its merges, and what is frequent is
    /// merged early. In one of many languages the words of most come late, and a text in these will have no draft.
    pub fn head_ids(
        &self,
        draft: &Tokenizer,
        vocab_size: usize,
        num_frequent: Option<usize>,
    ) -> Option<Arc<[u32]>> {
        let known = draft.vocab_size().min(vocab_size);
        if matches!(self, Self::Shared(_)) && num_frequent.is_none_or(|num| num >= known) {
            return None;
        }
        let mut room = num_frequent.unwrap_or(known);
        let is_wanted = |id: &u32| {
            is_always_wanted(draft, *id) || {
                let has_room = room > 0;
                room = room.saturating_sub(1);
                has_room
            }
        };
        let ids: Arc<[u32]> = (0..known as u32).filter(|&id| self.has(draft, id)).filter(is_wanted).collect();
        (ids.len() < vocab_size).then_some(ids)
    }

    /// Whether the target has a draft's token too. Holes in a vocabulary are no tokens.
    fn has(&self, draft: &Tokenizer, id: u32) -> bool {
        match self {
            Self::Shared(shared) => {
                (id as usize) < *shared && draft.piece(id).is_some_and(|piece| !piece.is_empty())
            }
            Self::Other(translator) => translator.twins().of_draft(id).is_some(),
        }
    }
}

fn is_always_wanted(draft: &Tokenizer, id: u32) -> bool {
    let piece = draft.piece(id).unwrap_or_default();
    let says = |word: &[u8]| piece.windows(word.len()).any(|part| part == word);
    // Ids kept for later use are often thousands.
    let is_added = draft.is_added(id) && !says(b"unused") && !says(b"reserved");
    is_added || draft.end_of_generation().contains(&id) || piece.len() == 1
}

/// The target's id for each logit of a draft's row, where a row is not by the target's ids as it is.
pub(super) struct Places(Vec<u32>);

impl Places {
    pub(super) fn new(vocab: &DraftVocab, info: &ModelInfo) -> Option<Self> {
        let translated = |translator: &Arc<Translator>, id| translator.twins().of_draft(id).unwrap_or(NONE);
        Some(Self(match (vocab, &info.head_ids) {
            (DraftVocab::Shared(_), None) => return None,
            (DraftVocab::Shared(_), Some(ids)) => ids.to_vec(),
            (DraftVocab::Other(translator), Some(ids)) => {
                ids.iter().map(|&id| translated(translator, id)).collect()
            }
            (DraftVocab::Other(translator), None) => {
                (0..info.vocab_size as u32).map(|id| translated(translator, id)).collect()
            }
        }))
    }

    /// Writes a draft's `logits` into `row`, by the target's ids. What has no place stays as it was, so a row that is
    /// kept is `-inf` there.
    pub(super) fn put(&self, logits: &[f32], row: &mut [f32]) {
        put(logits, &self.0, row);
    }
}

/// Writes each of `logits` at its place in `row`.
pub(super) fn put(logits: &[f32], places: &[u32], row: &mut [f32]) {
    for (&logit, &id) in logits.iter().zip(places) {
        // `NONE` is beyond every row.
        if let Some(at) = row.get_mut(id as usize) {
            *at = logit;
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::tokenizer::tests::{byte_pair, open, sentence_piece};

    /// The ids that are left out.
    fn missing(vocab: &DraftVocab, draft: &Tokenizer, vocab_size: usize, num_frequent: usize) -> Vec<u32> {
        let ids = vocab.head_ids(draft, vocab_size, Some(num_frequent)).unwrap();
        assert!(ids.is_sorted_by(|a, b| a < b));
        (0..draft.vocab_size() as u32).filter(|id| !ids.contains(id)).collect()
    }

    #[test]
    fn the_first_merges_are_wanted_and_what_steers_and_bytes_are_always() {
        // 256 bytes, `he`, `ll`, `hell`, `hello`, `Ġhello`, an end, a control token, `<think>`, a hole.
        let draft = open(&byte_pair()).unwrap();
        let shared = DraftVocab::Shared(265);
        assert_eq!(missing(&shared, &draft, 265, 2), [258, 259, 260, 264]);
        assert_eq!(missing(&shared, &draft, 265, 0), [256, 257, 258, 259, 260, 264]);
        assert_eq!(missing(&shared, &draft, 265, 100), [264], "a hole is no token");
        assert_eq!(missing(&DraftVocab::Shared(262), &draft, 265, 2), [258, 259, 260, 262, 263, 264]);
        assert_eq!(missing(&shared, &draft, 258, 1), [257, 258, 259, 260, 261, 262, 263, 264]);
        assert!(shared.head_ids(&draft, 265, None).is_none());
        assert!(shared.head_ids(&draft, 265, Some(265)).is_none());
        assert!(shared.head_ids(&draft, 258, Some(258)).is_none(), "the model's ids count");
    }

    #[test]
    fn of_another_vocabulary_only_twins_are_wanted() {
        let (target, draft) = (open(&byte_pair()).unwrap(), open(&sentence_piece()).unwrap());
        let translator = Arc::new(Translator::new(&target, &draft));
        let vocab = DraftVocab::Other(translator.clone());
        for num_frequent in [None, Some(1), Some(300)] {
            let ids = vocab.head_ids(&draft, 266, num_frequent).unwrap();
            assert_eq!(ids.len(), 257, "every byte, and the end");
            assert!(ids.iter().all(|&id| translator.twins().of_draft(id).is_some()));
        }
    }
}
