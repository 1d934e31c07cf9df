//! Whether a draft model speaks the target's tokens: compared by the bytes behind each id, not by sizes.

use crate::{
    error::{Error, Result},
    tokenizer::Tokenizer,
};

/// Compares two vocabularies over the ids both have and returns how many those are. Tails beyond (padding, added
/// tokens) are allowed: ids that only one side knows are never drafted.
///
/// # Errors
/// [`Error::VocabMismatch`] naming the first id whose bytes differ.
pub fn check_vocab(target: &Tokenizer, draft: &Tokenizer) -> Result<usize> {
    let shared = target.vocab_size().min(draft.vocab_size());
    let differs = |&id: &u32| target.token_bytes(id) != draft.token_bytes(id);
    match (0..shared as u32).find(differs) {
        None => Ok(shared),
        Some(id) => {
            let text = |tokenizer: &Tokenizer| match tokenizer.token_bytes(id) {
                Some(bytes) => format!("{:?}", String::from_utf8_lossy(&bytes)),
                None => "nothing".to_owned(),
            };
            Err(Error::VocabMismatch(format!(
                "id {id} is {} to the target and {} to the draft; choose a draft of the same family, or `ngram`",
                text(target),
                text(draft)
            )))
        }
    }
}
