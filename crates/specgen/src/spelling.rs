//! Phrases of the sampling parameters from text to token ids: the one thing about sampling that needs a tokenizer.

use std::{borrow::Cow, collections::BTreeSet};

use crate::{
    error::Result,
    sampling::{Phrase, SamplingParams},
    tokenizer::Tokenizer,
};

/// `params` with every phrase as token ids.
///
/// # Errors
/// As [`Tokenizer::encode`].
pub(crate) fn spelled<'a>(
    params: &'a SamplingParams,
    tokenizer: &Tokenizer,
) -> Result<Cow<'a, SamplingParams>> {
    let breakers = params.dry.iter().flat_map(|dry| &dry.sequence_breakers);
    if params.bad_words.iter().chain(breakers).all(|phrase| phrase.ids().is_some()) {
        return Ok(Cow::Borrowed(params));
    }
    let mut params = params.clone();
    params.bad_words = each(&params.bad_words, |word| spellings(word, tokenizer))?;
    if let Some(dry) = &mut params.dry {
        dry.sequence_breakers = each(&dry.sequence_breakers, |text| breakers_of(text, tokenizer))?;
    }
    Ok(Cow::Owned(params))
}

/// What text stands for is put in its place; ids stay.
fn each(phrases: &[Phrase], of_text: impl Fn(&str) -> Result<BTreeSet<Vec<u32>>>) -> Result<Vec<Phrase>> {
    let mut all = Vec::new();
    for phrase in phrases {
        match phrase {
            Phrase::Ids(_) => all.push(phrase.clone()),
            Phrase::Text(text) => all.extend(of_text(text)?.into_iter().map(Phrase::Ids)),
        }
    }
    Ok(all)
}

/// A word with and without a space before it.
fn spellings(word: &str, tokenizer: &Tokenizer) -> Result<BTreeSet<Vec<u32>>> {
    let bare = match word.trim_start_matches(' ') {
        "" => return Ok(BTreeSet::from([tokenizer.encode_within(word, true)?])),
        bare => bare,
    };
    [bare, &format!(" {bare}")].into_iter().map(|text| tokenizer.encode_within(text, true)).collect()
}

/// Every way to begin `text` within a token and to end it within that or the tokens after it, as in llama.cpp.
fn breakers_of(text: &str, tokenizer: &Tokenizer) -> Result<BTreeSet<Vec<u32>>> {
    let mut rests = Vec::new();
    for (at, _) in text.char_indices().skip(1) {
        rests.push((&text.as_bytes()[..at], tokenizer.encode_within(&text[at..], true)?));
    }
    let mut breakers = BTreeSet::new();
    for id in 0..tokenizer.vocab_size() as u32 {
        let Some(bytes) = tokenizer.token_bytes(id) else { continue };
        if bytes.windows(text.len()).any(|window| window == text.as_bytes()) {
            breakers.insert(vec![id]);
            continue;
        }
        for (beginning, rest) in rests.iter().filter(|(beginning, _)| bytes.ends_with(beginning)) {
            debug_assert!(!beginning.is_empty());
            breakers.insert([&[id], &rest[..]].concat());
        }
    }
    Ok(breakers)
}
