//! Output text as it grows: whole characters only, and never any part of a stop string.

use crate::{
    error::{Error, Result},
    tokenizer::{DecodeStream, Tokenizer},
};

/// Turns committed tokens into pieces of text and watches for stop strings. It sees tokens one by one, in the order
/// plain decoding would, so a stop string ends the text at the same token with and without speculation.
#[derive(Clone)]
pub(crate) struct TextOutput {
    stream: DecodeStream,
    stops: Vec<String>,
    /// Decoded, but held back: it may be the beginning of a stop string.
    held: String,
}

/// What a token brought.
pub(crate) struct TextPiece {
    pub(crate) text: String,
    pub(crate) stopped: bool,
}

impl TextOutput {
    /// # Errors
    /// [`Error::InvalidArgument`] for an empty stop string.
    pub(crate) fn new(tokenizer: &Tokenizer, stops: &[String]) -> Result<Self> {
        if stops.iter().any(String::is_empty) {
            return Err(Error::InvalidArgument(
                "a stop string is empty; it would end every text at once".into(),
            ));
        }
        Ok(Self { stream: tokenizer.stream(true), stops: stops.to_vec(), held: String::new() })
    }

    /// The text that token `id` makes safe to show, and whether a stop string is complete.
    pub(crate) fn push(&mut self, id: u32) -> TextPiece {
        self.stream.push_to(id, &mut self.held);
        self.release()
    }

    /// What is still held back when the text ends by itself. A character cut in the middle becomes U+FFFD.
    pub(crate) fn finish(&mut self) -> String {
        self.held += &self.stream.finish();
        let piece = self.release();
        piece.text + &std::mem::take(&mut self.held)
    }

    fn release(&mut self) -> TextPiece {
        let found = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min();
        if let Some(at) = found {
            let text = self.held[..at].to_owned();
            self.held.clear();
            return TextPiece { text, stopped: true };
        }
        let keep = self.stops.iter().map(|stop| overlap(&self.held, stop)).max().unwrap_or(0);
        let text = self.held.drain(..self.held.len() - keep).collect();
        TextPiece { text, stopped: false }
    }
}

/// Bytes at the end of `text` that are the beginning of `stop`.
fn overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(i, _)| i).skip(1);
    starts.filter(|&len| text.ends_with(&stop[..len])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::overlap;

    #[test]
    fn overlap_is_the_longest_proper_prefix_at_the_end() {
        assert_eq!(overlap("abc###", "####"), 3);
        assert_eq!(overlap("one <|e", "<|end|>"), 3);
        assert_eq!(overlap("caf", "é"), 0);
        assert_eq!(overlap("x\u{e9}", "\u{e9}\u{e9}"), 2);
        assert_eq!(overlap("####", "####"), 3);
    }
}
