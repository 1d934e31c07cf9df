//! Text to token ids and back, and streaming decode.
//!
//! A tokenizer comes from a `tokenizer.json` (through the `tokenizers` crate) or from a GGUF file's metadata (own
//! code, same ids as llama.cpp). Decoding is the same for both: every token is the bytes it stands for, and text is
//! those bytes joined, so that a stream and a whole text never differ.

mod bpe;
mod byte_level;
mod ends;
mod gguf;
mod json;
mod pre;
mod split;
mod spm;
mod stream;
mod vocab;

#[cfg(test)]
pub(crate) mod tests;

use std::path::Path;
use std::sync::Arc;

use crate::weights::metadata::Metadata;
use crate::{Error, Result};

pub use stream::DecodeStream;

pub(crate) use ends::Role;

use vocab::{Part, Vocab, Whole};

/// Text to token ids and back. Cloning shares.
#[derive(Clone)]
pub struct Tokenizer {
    inner: Arc<Inner>,
}

struct Inner {
    vocab: Vocab,
    engine: Engine,
    /// Finds special tokens; `None` where the engine does that itself.
    whole: Option<Whole>,
    bos: Option<u32>,
    eos: Option<u32>,
    adds_bos: bool,
    ends: Vec<u32>,
    /// Encoding puts a space before the text, so decoding a whole text takes it away.
    drops_first_space: bool,
    description: String,
}

enum Engine {
    Bpe(bpe::Bpe),
    Spm(spm::Spm),
    Json(Box<json::Json>),
}

impl Tokenizer {
    /// Opens a `tokenizer.json`. Files beside it say what it does not: `tokenizer_config.json` and
    /// `special_tokens_map.json` the begin and end tokens, `generation_config.json` every id that ends a generation.
    ///
    /// # Errors
    /// [`Error::Io`] or [`Error::Format`] where a file cannot be read, [`Error::Unsupported`] where its decoder is
    /// of a kind no generative model uses.
    pub fn from_file(path: &Path) -> Result<Self> {
        json::load(path).map(Self::new)
    }

    /// From GGUF metadata (`tokenizer.ggml.*`); `path_for_errors` is the file it came from. `pre_override` names the
    /// pre-tokenizer in place of `tokenizer.ggml.pre`.
    ///
    /// # Errors
    /// [`Error::Format`] where the metadata contradicts itself; [`Error::Unsupported`] where the tokenizer's kind or
    /// pre-tokenizer is unknown: guessing would give wrong ids without a word.
    pub fn from_metadata(
        meta: &Metadata,
        path_for_errors: &Path,
        pre_override: Option<&str>,
    ) -> Result<Self> {
        gguf::load(meta, path_for_errors, pre_override).map(Self::new)
    }

    fn new(inner: Inner) -> Self {
        Self { inner: Arc::new(inner) }
    }

    /// The ids of `text`, without begin or end of text.
    ///
    /// `parse_special`: whether control tokens written out in the text (`<|im_end|>`) become those tokens, as a
    /// rendered chat template needs; `false` is for text from strangers. User-defined tokens (`<think>`) always do.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where a byte of the text has no token and the vocabulary has no unknown token.
    pub fn encode(&self, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        let inner = &*self.inner;
        let mut ids = Vec::new();
        if let Engine::Json(json) = &inner.engine {
            return json.encode(text, parse_special);
        }
        let parts = match &inner.whole {
            Some(whole) => whole.split(text, parse_special),
            None => vec![Part::Text(text)],
        };
        let mut after_special = true;
        for part in parts {
            let encoded = match part {
                Part::Token(id) => {
                    ids.push(id);
                    after_special = true;
                    continue;
                }
                Part::Text(text) => match &inner.engine {
                    Engine::Bpe(bpe) => bpe.encode(text, &mut ids),
                    Engine::Spm(spm) => spm.encode(text, after_special, &mut ids),
                    Engine::Json(_) => Ok(()),
                },
            };
            after_special = false;
            encoded.map_err(|byte| {
                Error::InvalidArgument(format!(
                    "the text holds byte 0x{byte:02X}, for which this vocabulary has no token; leave its character out"
                ))
            })?;
        }
        Ok(ids)
    }

    /// The ids of `text` where it goes on from other text: [`encode`](Self::encode) without the space that it puts first
    /// in some SentencePiece vocabularies.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_within(&self, text: &str, parse_special: bool) -> Result<Vec<u32>> {
        if self.inner.drops_first_space {
            // After a line break no vocabulary puts a space.
            let (before, mut ids) =
                (self.encode("\n", false)?, self.encode(&format!("\n{text}"), parse_special)?);
            if ids.starts_with(&before) {
                return Ok(ids.split_off(before.len()));
            }
        }
        self.encode(text, parse_special)
    }

    /// The token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.inner.bos
    }

    /// Whether the model expects [`bos`](Self::bos) before every text. [`encode`](Self::encode) never adds it.
    pub fn adds_bos(&self) -> bool {
        self.inner.adds_bos
    }

    /// The token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.inner.eos
    }

    /// Every id that ends a generation, ascending: end of text, of turn, of message.
    pub fn end_of_generation(&self) -> &[u32] {
        &self.inner.ends
    }

    /// Number of ids, holes included: the largest id plus one.
    pub fn vocab_size(&self) -> usize {
        self.inner.vocab.len()
    }

    /// The bytes a token decodes to in the middle of a text, special tokens as their text; `None` outside the
    /// vocabulary. Not always UTF-8: a character may take several tokens.
    pub fn token_bytes(&self, id: u32) -> Option<Vec<u8>> {
        self.piece(id).map(<[u8]>::to_vec)
    }

    /// The token as the vocabulary spells it (`Ġthe`, `▁the`, `<0x0A>`); `None` outside it, or where not UTF-8.
    pub fn token_text(&self, id: u32) -> Option<&str> {
        std::str::from_utf8(self.inner.vocab.text(id)?).ok()
    }

    /// [`token_bytes`](Self::token_bytes), not copied.
    pub(crate) fn piece(&self, id: u32) -> Option<&[u8]> {
        self.inner.vocab.piece(id)
    }

    /// The token that does this, where there is one.
    pub(crate) fn of_role(&self, role: Role) -> Option<u32> {
        match role {
            Role::Begin => self.inner.bos.filter(|_| self.inner.adds_bos),
            Role::TurnEnd | Role::TextEnd => {
                let inner = &*self.inner;
                let named = |&id: &u32| ends::is_called(role, inner.vocab.text(id).unwrap_or_default());
                inner.ends.iter().copied().find(named).or(inner.eos)
            }
        }
    }

    /// Whether `id` steers the model.
    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.inner.vocab.kind(id) == Some(vocab::Kind::Control)
    }

    /// Whether `id` was added to the tokens of text: it steers the model, or is taken whole wherever it is written.
    pub(crate) fn is_added(&self, id: u32) -> bool {
        self.is_control(id) || self.inner.vocab.kind(id) == Some(vocab::Kind::UserDefined)
    }

    /// Whether `id` stands for a byte that no other token spells: `<0xXX>`.
    pub(crate) fn is_byte(&self, id: u32) -> bool {
        self.inner.vocab.kind(id) == Some(vocab::Kind::Byte)
    }

    /// Whether encoding puts a space before a text and behind special tokens.
    pub(crate) fn puts_space(&self) -> bool {
        self.inner.drops_first_space
    }

    /// Whether `id` is a control or unknown token: what decoding may leave out. User-defined tokens are text.
    pub fn is_special(&self, id: u32) -> bool {
        self.inner.vocab.kind(id).is_some_and(vocab::Kind::is_special)
    }

    /// The text of `ids` in the middle of a text: what follows a prompt, say. Bytes that are no UTF-8 become U+FFFD,
    /// ids outside the vocabulary nothing.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        String::from_utf8_lossy(&self.decode_bytes(ids, skip_special)).into_owned()
    }

    /// The text of `ids` as a whole text: [`decode`](Self::decode) without the space that
    /// [`encode`](Self::encode) puts first in some SentencePiece vocabularies.
    pub fn decode_from_start(&self, ids: &[u32], skip_special: bool) -> String {
        let bytes = self.decode_bytes(ids, skip_special);
        let bytes =
            if self.inner.drops_first_space { bytes.strip_prefix(b" ").unwrap_or(&bytes) } else { &bytes };
        String::from_utf8_lossy(bytes).into_owned()
    }

    fn decode_bytes(&self, ids: &[u32], skip_special: bool) -> Vec<u8> {
        let pieces = ids.iter().filter_map(|&id| self.decoded_piece(id, skip_special));
        pieces.collect::<Vec<_>>().concat()
    }

    /// Decodes ids one at a time, as [`decode`](Self::decode) does all at once.
    pub fn stream(&self, skip_special: bool) -> DecodeStream {
        DecodeStream::new(self.clone(), skip_special)
    }

    /// What this is, for people: kind, pre-tokenizer, source, size.
    pub fn description(&self) -> String {
        self.inner.description.clone()
    }

    fn decoded_piece(&self, id: u32, skip_special: bool) -> Option<&[u8]> {
        if skip_special && self.is_special(id) {
            return None;
        }
        self.piece(id)
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Tokenizer").field(&self.inner.description).finish()
    }
}
