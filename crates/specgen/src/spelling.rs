//! Phrases of the sampling parameters from text to token ids: the one thing about sampling that needs a tokenizer.

use std::{borrow::Cow, collections::BTreeSet};

use crate::{
    error::Result,
    sampling::{Phrase, SamplingParams},
    tokenizer::Tokenizer,
};

/// `params` with every phrase as token ids. No text may be empty.
///
/// # Errors
/// As [`Tokenizer::encode`].
pub(crate) fn spelled<'a>(
    params: &'a SamplingParams,
    tokenizer: &Tokenizer,
) -> Result<Cow<'a, SamplingParams>> {
    if params.phrases().all(|phrase| phrase.ids().is_some()) {
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
        for (_, rest) in rests.iter().filter(|(beginning, _)| bytes.ends_with(beginning)) {
            breakers.insert([&[id], &rest[..]].concat());
        }
    }
    Ok(breakers)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        sampling::Dry,
        tokenizer::tests::{byte_pair, open, sentence_piece},
    };

    fn ids(phrases: &[Phrase]) -> Vec<&[u32]> {
        phrases.iter().map(|phrase| phrase.ids().unwrap()).collect()
    }

    fn words(tokenizer: &Tokenizer, words: &[&str]) -> Vec<Phrase> {
        let bad_words = words.iter().map(|&word| word.into()).collect();
        let params = SamplingParams { bad_words, ..SamplingParams::greedy() };
        spelled(&params, tokenizer).unwrap().into_owned().bad_words
    }

    #[test]
    fn a_word_is_spelled_with_and_without_a_space() {
        let tokenizer = open(&byte_pair()).unwrap();
        let [hello, space_hello] = [259, 260];
        for word in ["hello", " hello"] {
            assert_eq!(ids(&words(&tokenizer, &[word])), [&[hello][..], &[space_hello]]);
        }
        assert_eq!(ids(&words(&tokenizer, &["\n"])), [&[10][..], &[32, 10]]);
        assert_eq!(ids(&words(&tokenizer, &[" "])), [&[32][..]]);

        let tokenizer = open(&sentence_piece()).unwrap();
        let [ab, space_ab] = [262, 265];
        assert_eq!(ids(&words(&tokenizer, &["ab"])), [&[ab][..], &[space_ab]]);
    }

    #[test]
    fn a_breaker_is_every_token_that_holds_it_or_begins_it() {
        let tokenizer = open(&byte_pair()).unwrap();
        let [l, ll, hell, hello, space_hello] = [108, 257, 258, 259, 260];
        let breakers = |sequence_breakers: Vec<Phrase>| {
            let dry = Some(Dry { sequence_breakers, ..Dry::default() });
            let params = SamplingParams { dry, ..SamplingParams::greedy() };
            spelled(&params, &tokenizer).unwrap().into_owned().dry.unwrap().sequence_breakers
        };
        let found = breakers(vec!["ll".into(), vec![5].into()]);
        assert_eq!(ids(&found), [&[l, l][..], &[ll], &[hell], &[hello], &[space_hello], &[5]]);
        assert!(ids(&breakers(Dry::default().sequence_breakers)).contains(&&[10][..]));
    }

    #[test]
    fn what_is_spelled_stays_as_it_is() {
        let tokenizer = open(&byte_pair()).unwrap();
        let params = SamplingParams { bad_words: vec![vec![1, 2].into()], ..SamplingParams::greedy() };
        assert!(matches!(spelled(&params, &tokenizer).unwrap(), Cow::Borrowed(same) if *same == params));
    }
}
