//! The tokens of a vocabulary: their texts, what they decode to, and which of them are special.

use std::collections::HashMap;

/// What a token is for; the numbers are GGUF's `tokenizer.ggml.token_type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Text.
    Normal,
    /// Stands for what cannot be encoded.
    Unknown,
    /// Steers the model; never part of the text.
    Control,
    /// Taken whole before anything else, in any text, and printed.
    UserDefined,
    /// A hole in the vocabulary; decodes to nothing.
    Unused,
    /// One byte, written `<0xXX>`.
    Byte,
}

impl Kind {
    /// From a GGUF token type; numbers outside the list are holes, as llama.cpp has it.
    pub(super) fn from_gguf(kind: i64) -> Self {
        match kind {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Unused,
        }
    }

    /// Whether decoding may leave it out, and encoding plain text must not produce it.
    pub(super) fn is_special(self) -> bool {
        matches!(self, Self::Unknown | Self::Control)
    }
}

/// Byte strings by index in two allocations, not one for each.
#[derive(Default)]
pub(super) struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    pub(super) fn push(&mut self, text: &[u8]) {
        self.bytes.extend_from_slice(text);
        self.ends.push(self.bytes.len());
    }

    pub(super) fn get(&self, index: usize) -> Option<&[u8]> {
        let end = *self.ends.get(index)?;
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        Some(&self.bytes[start..end])
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }
}

/// Every token of a model, by id.
#[derive(Default)]
pub(super) struct Vocab {
    /// As the file spells them.
    pub(super) texts: Strings,
    /// What they decode to in the middle of a text.
    pub(super) pieces: Strings,
    pub(super) kinds: Vec<Kind>,
}

impl Vocab {
    pub(super) fn len(&self) -> usize {
        self.texts.len()
    }

    /// Works out what every token decodes to, once the kinds are known.
    pub(super) fn spell(&mut self, spelling: Spelling) {
        self.pieces = Strings::default();
        for id in 0..self.len() {
            let text = self.texts.get(id).unwrap_or_default();
            self.pieces.push(&spelling.piece(text, self.kinds[id]));
        }
    }

    pub(super) fn text(&self, id: u32) -> Option<&[u8]> {
        self.texts.get(id as usize)
    }

    pub(super) fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id as usize)
    }

    pub(super) fn kind(&self, id: u32) -> Option<Kind> {
        self.kinds.get(id as usize).copied()
    }
}

/// How a token's text becomes bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spelling {
    /// One character a byte.
    ByteLevel,
    /// `▁` is a space, `<0xXX>` a byte.
    Sentencepiece,
}

impl Spelling {
    /// The bytes a token of this text and kind decodes to.
    pub(super) fn piece(self, text: &[u8], kind: Kind) -> Vec<u8> {
        match kind {
            Kind::Unused => Vec::new(),
            Kind::Unknown | Kind::Control | Kind::UserDefined => text.to_vec(),
            Kind::Byte => byte_token(text).map_or_else(|| text.to_vec(), |byte| vec![byte]),
            Kind::Normal => match (self, std::str::from_utf8(text)) {
                (Self::ByteLevel, Ok(text)) => {
                    super::byte_level::decode(text).unwrap_or_else(|| text.as_bytes().to_vec())
                }
                (Self::Sentencepiece, Ok(text)) => text.replace('▁', " ").into_bytes(),
                (_, Err(_)) => text.to_vec(),
            },
        }
    }
}

/// The byte that `<0xXX>` names.
pub(super) fn byte_token(text: &[u8]) -> Option<u8> {
    let hex = text.strip_prefix(b"<0x")?.strip_suffix(b">")?;
    match hex {
        [high, low] => {
            let digit = |c: u8| char::from(c).to_digit(16);
            u8::try_from(digit(*high)? * 16 + digit(*low)?).ok()
        }
        _ => None,
    }
}

/// Finds the tokens that are taken whole before a text is encoded.
pub(super) struct Whole {
    /// User-defined tokens only: what plain text may contain.
    plain: Finder,
    /// Control and unknown tokens too.
    all: Finder,
}

/// One piece of a partitioned text.
#[derive(Debug, PartialEq)]
pub(super) enum Part<'a> {
    Text(&'a str),
    Token(u32),
}

impl Whole {
    /// `strips(id)`: whether the token swallows the white space after it.
    ///
    /// # Errors
    /// A token too long to search for, in words.
    pub(super) fn new(vocab: &Vocab, strips: impl Fn(u32) -> bool) -> Result<Self, String> {
        let collect = |wanted: &dyn Fn(Kind) -> bool| -> Vec<(u32, bool)> {
            let ids = 0..vocab.len() as u32;
            ids.filter(|&id| {
                vocab.kind(id).is_some_and(wanted)
                    && vocab.text(id).is_some_and(|t| !t.is_empty() && std::str::from_utf8(t).is_ok())
            })
            .map(|id| (id, strips(id)))
            .collect()
        };
        Ok(Self {
            plain: Finder::new(vocab, collect(&|kind| kind == Kind::UserDefined))?,
            all: Finder::new(vocab, collect(&|kind| kind == Kind::UserDefined || kind.is_special()))?,
        })
    }

    /// Cuts `text` into tokens taken whole and the text between them; at one place the longest token wins.
    pub(super) fn split<'a>(&self, text: &'a str, parse_special: bool) -> Vec<Part<'a>> {
        if parse_special { self.all.split(text) } else { self.plain.split(text) }
    }
}

/// The longest token that may be searched for, in bytes; real ones are a few words long. It bounds what a place in the
/// text costs, whatever a file claims.
const LONGEST: usize = 512;

/// A trie over the bytes of the tokens. (Aho-Corasick automata take minutes to build for a million hostile tokens.)
#[derive(Default)]
struct Finder {
    /// Node and byte to the next node; the root is 0.
    next: HashMap<(u32, u8), u32>,
    /// Per node that ends a token: its id, and whether it swallows the white space after it.
    ends: HashMap<u32, (u32, bool)>,
}

impl Finder {
    fn new(vocab: &Vocab, tokens: Vec<(u32, bool)>) -> Result<Self, String> {
        let mut finder = Self::default();
        for (id, strips) in tokens {
            let text = vocab.text(id).unwrap_or_default();
            if text.len() > LONGEST {
                return Err(format!(
                    "special token {id} is {} bytes long, wanted at most {LONGEST}",
                    text.len()
                ));
            }
            let mut node = 0;
            for &byte in text {
                let fresh = finder.next.len() as u32 + 1;
                node = *finder.next.entry((node, byte)).or_insert(fresh);
            }
            // Of two tokens with one text the first is meant.
            finder.ends.entry(node).or_insert((id, strips));
        }
        Ok(finder)
    }

    /// The longest token at the start of `text`: its length, id, and whether it strips.
    fn longest(&self, text: &[u8]) -> Option<(usize, u32, bool)> {
        let mut node = 0;
        let mut found = None;
        for (i, &byte) in text.iter().enumerate() {
            let Some(&next) = self.next.get(&(node, byte)) else { break };
            node = next;
            if let Some(&(id, strips)) = self.ends.get(&node) {
                found = Some((i + 1, id, strips));
            }
        }
        found
    }

    fn split<'a>(&self, text: &'a str) -> Vec<Part<'a>> {
        let mut parts = Vec::new();
        let (mut done, mut at) = (0, 0);
        // Tokens are whole characters, so one that begins inside a character cannot match.
        while at < text.len() {
            let Some((len, id, strips)) = self.longest(&text.as_bytes()[at..]) else {
                at += 1;
                continue;
            };
            if at > done {
                parts.push(Part::Text(&text[done..at]));
            }
            parts.push(Part::Token(id));
            done = at + len;
            if strips {
                let is_space = |c: char| c.is_ascii_whitespace() || c == '\x0b';
                done = text.len() - text[done..].trim_start_matches(is_space).len();
            }
            at = done;
        }
        if done < text.len() {
            parts.push(Part::Text(&text[done..]));
        }
        parts
    }
}

/// Ids by what they spell, for the tokens that plain text may become.
pub(super) type ByBytes = HashMap<Box<[u8]>, u32>;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn vocab(tokens: &[(&str, Kind)]) -> Vocab {
        let mut vocab = Vocab::default();
        for &(text, kind) in tokens {
            vocab.texts.push(text.as_bytes());
            vocab.kinds.push(kind);
        }
        vocab.spell(Spelling::Sentencepiece);
        vocab
    }

    #[test]
    fn byte_tokens_are_read_exactly() {
        assert_eq!(byte_token(b"<0x0A>"), Some(10));
        assert_eq!(byte_token(b"<0xff>"), Some(255));
        for wrong in [&b"<0x0A"[..], b"<0x0A0>", b"<0x+1>", b"0x0A", b"<0x>", b""] {
            assert_eq!(byte_token(wrong), None);
        }
    }

    #[test]
    fn pieces_follow_the_kind() {
        let s = Spelling::Sentencepiece;
        assert_eq!(s.piece("▁a▁b".as_bytes(), Kind::Normal), b" a b");
        assert_eq!(s.piece("▁a".as_bytes(), Kind::UserDefined), "▁a".as_bytes());
        assert_eq!(s.piece(b"<0x0A>", Kind::Byte), b"\n");
        assert_eq!(s.piece(b"<0x0A>", Kind::Normal), b"<0x0A>");
        assert_eq!(s.piece(b"[PAD1]", Kind::Unused), b"");
        assert_eq!(Spelling::ByteLevel.piece("Ġa".as_bytes(), Kind::Normal), b" a");
    }

    #[test]
    fn control_tokens_are_found_only_when_asked_for() {
        let vocab = vocab(&[
            ("<|end|>", Kind::Control),
            ("<think>", Kind::UserDefined),
            ("<think>x", Kind::UserDefined),
            ("<|sys|>", Kind::Control),
        ]);
        let whole = Whole::new(&vocab, |id| id == 3).unwrap();
        let text = "a<|end|><think>xb<|sys|> \n c";
        assert_eq!(
            whole.split(text, true),
            [
                Part::Text("a"),
                Part::Token(0),
                Part::Token(2),
                Part::Text("b"),
                Part::Token(3),
                Part::Text("c")
            ]
        );
        assert_eq!(
            whole.split(text, false),
            [Part::Text("a<|end|>"), Part::Token(2), Part::Text("b<|sys|> \n c")]
        );
        assert_eq!(whole.split("", true), []);
    }
}
