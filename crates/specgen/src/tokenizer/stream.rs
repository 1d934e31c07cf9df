//! Text from tokens one at a time, never half a character.

use super::Tokenizer;

/// Turns ids into text as they come. All it returned, joined, is [`Tokenizer::decode`] of all it was given.
///
/// A clone is a snapshot: keep one to take rejected tokens back.
#[derive(Clone)]
pub struct DecodeStream {
    tokenizer: Tokenizer,
    skip_special: bool,
    decoder: Utf8Decoder,
}

impl DecodeStream {
    pub(super) fn new(tokenizer: Tokenizer, skip_special: bool) -> Self {
        Self { tokenizer, skip_special, decoder: Utf8Decoder::default() }
    }

    /// Adds one token and returns the characters it completes, often none. Ids outside the vocabulary are nothing.
    pub fn push(&mut self, id: u32) -> String {
        let mut text = String::new();
        self.push_to(id, &mut text);
        text
    }

    /// As [`DecodeStream::push`], behind what `text` holds.
    pub fn push_to(&mut self, id: u32, text: &mut String) {
        if let Some(piece) = self.tokenizer.decoded_piece(id, self.skip_special) {
            self.decoder.push(piece, text);
        }
    }

    /// Ends the text: bytes that never became a character are one U+FFFD. The stream is then as new.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        self.decoder.finish(&mut text);
        text
    }

    /// Bytes held back because their character is not complete.
    pub fn pending(&self) -> &[u8] {
        self.decoder.pending()
    }
}

impl std::fmt::Debug for DecodeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DecodeStream").field("pending", &self.pending()).finish_non_exhaustive()
    }
}

/// `String::from_utf8_lossy`, in pieces: each maximal invalid part is one U+FFFD wherever the cuts fall.
#[derive(Clone, Default)]
pub(super) struct Utf8Decoder {
    /// A valid prefix of one character: at most 3 bytes.
    pending: Vec<u8>,
}

impl Utf8Decoder {
    pub(super) fn push(&mut self, bytes: &[u8], text: &mut String) {
        let joined;
        let mut rest = if self.pending.is_empty() {
            bytes
        } else {
            joined = [&self.pending[..], bytes].concat();
            self.pending.clear();
            &joined[..]
        };
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return;
                }
                Err(error) => {
                    let (valid, bad) = rest.split_at(error.valid_up_to());
                    text.push_str(std::str::from_utf8(valid).expect("valid up to here"));
                    match error.error_len() {
                        Some(len) => {
                            text.push(char::REPLACEMENT_CHARACTER);
                            rest = &bad[len..];
                        }
                        None => {
                            self.pending = bad.to_vec();
                            return;
                        }
                    }
                }
            }
        }
    }

    pub(super) fn finish(&mut self, text: &mut String) {
        if !self.pending.is_empty() {
            self.pending.clear();
            text.push(char::REPLACEMENT_CHARACTER);
        }
    }

    pub(super) fn pending(&self) -> &[u8] {
        &self.pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_cut_gives_the_lossy_text(
            // Bytes that are leads, continuations and ASCII often enough to meet every case.
            bytes in prop::collection::vec(prop_oneof![
                any::<u8>(), 0x80..0xC0_u8, Just(0xE2), Just(0xF0), Just(b'a')
            ], 0..40),
            cuts in prop::collection::vec(0..6_usize, 0..40),
        ) {
            let (mut decoder, mut text, mut rest) = (Utf8Decoder::default(), String::new(), &bytes[..]);
            for cut in cuts {
                let (head, tail) = rest.split_at(cut.min(rest.len()));
                decoder.push(head, &mut text);
                prop_assert!(decoder.pending().len() < 4);
                rest = tail;
            }
            decoder.push(rest, &mut text);
            decoder.finish(&mut text);
            prop_assert_eq!(text, String::from_utf8_lossy(&bytes).into_owned());
        }
    }
}
