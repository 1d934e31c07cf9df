//! Tokens and their log-probabilities as JSON.

use serde::Serialize;
use specgen::{Engine, sampling::TokenLogprobs, tokenizer::Tokenizer};

/// A token and its text.
#[derive(Debug, Serialize)]
pub(crate) struct JsonText {
    pub(crate) id: u32,
    /// What it decodes to; U+FFFD where it holds a part of a character.
    pub(crate) text: String,
    /// Its bytes, where they are not UTF-8 by themselves.
    #[serde(skip_serializing_if = "Option::is_none")]
    bytes: Option<Vec<u8>>,
}

impl JsonText {
    pub(crate) fn new(tokenizer: Option<&Tokenizer>, id: u32) -> Self {
        let bytes = tokenizer.and_then(|tokenizer| tokenizer.token_bytes(id)).unwrap_or_default();
        let (text, bytes) = match String::from_utf8(bytes) {
            Ok(text) => (text, None),
            Err(error) => (String::from_utf8_lossy(error.as_bytes()).into_owned(), Some(error.into_bytes())),
        };
        Self { id, text, bytes }
    }
}

/// A token with its log-probability; `null` where that is minus infinity.
#[derive(Debug, Serialize)]
pub(crate) struct JsonToken {
    #[serde(flatten)]
    token: JsonText,
    logprob: Option<f32>,
    /// Among all tokens, 1 for the most likely.
    #[serde(skip_serializing_if = "Option::is_none")]
    rank: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    top: Option<Vec<JsonToken>>,
}

impl JsonToken {
    /// Token `id`, `logprob` if it has one, and no others in its place.
    pub(crate) fn new(tokenizer: Option<&Tokenizer>, id: u32, logprob: Option<f32>) -> Self {
        let logprob = logprob.filter(|logprob| logprob.is_finite());
        Self { token: JsonText::new(tokenizer, id), logprob, rank: None, top: None }
    }

    /// Token `id` with its rank.
    pub(crate) fn ranked(engine: &Engine, id: u32, found: &TokenLogprobs) -> Self {
        Self { rank: Some(found.rank), ..Self::new(engine.tokenizer(), id, Some(found.logprob)) }
    }

    /// Token `id` beside the likeliest in its place.
    pub(crate) fn among(engine: &Engine, id: u32, logprobs: &TokenLogprobs) -> Self {
        let tokenizer = engine.tokenizer();
        let top = logprobs.top.iter().map(|&(id, logprob)| Self::new(tokenizer, id, Some(logprob)));
        Self { top: Some(top.collect()), ..Self::ranked(engine, id, logprobs) }
    }
}

/// The prompt's tokens with their log-probabilities, of which the first has none; `None` where none were asked for.
pub(crate) fn json_prompt_logprobs(
    engine: &Engine,
    prompt: &[u32],
    logprobs: &[TokenLogprobs],
    are_wanted: bool,
) -> Option<Vec<JsonToken>> {
    let first = prompt.first().map(|&id| JsonToken::new(engine.tokenizer(), id, None));
    let others = prompt.iter().skip(1).zip(logprobs).map(|(&id, found)| JsonToken::among(engine, id, found));
    are_wanted.then(|| first.into_iter().chain(others).collect())
}

/// The output's tokens with their log-probabilities; `None` where none were asked for.
pub(crate) fn json_logprobs(
    engine: &Engine,
    pieces: &[(u32, Option<TokenLogprobs>)],
    are_wanted: bool,
) -> Option<Vec<JsonToken>> {
    let token = |(id, logprobs): &(u32, Option<TokenLogprobs>)| match logprobs {
        Some(logprobs) => JsonToken::among(engine, *id, logprobs),
        None => JsonToken::new(engine.tokenizer(), *id, None),
    };
    are_wanted.then(|| pieces.iter().map(token).collect())
}
