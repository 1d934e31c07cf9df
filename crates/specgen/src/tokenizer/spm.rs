//! SentencePiece vocabularies with scores: neighbours merge while their union is a token, best score first.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::vocab::ByBytes;

/// A SentencePiece encoder.
pub(super) struct Spm {
    /// The tokens that text may become, by their text with `▁` for spaces.
    pub(super) by_text: ByBytes,
    pub(super) scores: Vec<f32>,
    /// `<0xXX>`, or the token that is the byte itself.
    pub(super) byte_ids: Box<[Option<u32>; 256]>,
    pub(super) unknown: Option<u32>,
    /// A space goes before a text that starts, or follows a special token.
    pub(super) space_prefix: bool,
    /// Bytes of the longest token.
    pub(super) longest: usize,
}

#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// 0 once it is merged into the symbol before it.
    len: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const END: usize = usize::MAX;

/// Two neighbours that make a token.
struct Pair {
    score: f32,
    left: usize,
    /// Bytes of both: what they were when this was queued.
    len: usize,
}

impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    /// Appends the ids of `text`; `first` where it starts the text or follows a special token.
    ///
    /// # Errors
    /// The first byte that no token can stand for.
    pub(super) fn encode(&self, text: &str, first: bool, ids: &mut Vec<u32>) -> Result<(), u8> {
        let prefix = if first && self.space_prefix { "▁" } else { "" };
        let text = format!("{prefix}{}", text.replace(' ', "▁"));
        let mut symbols: Vec<Symbol> = text
            .char_indices()
            .enumerate()
            .map(|(index, (start, c))| Symbol {
                start,
                len: c.len_utf8(),
                prev: index.checked_sub(1).unwrap_or(END),
                next: index + 1,
            })
            .collect();
        if let Some(last) = symbols.last_mut() {
            last.next = END;
        }
        self.merge(text.as_bytes(), &mut symbols);
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let bytes = &text.as_bytes()[symbol.start..symbol.start + symbol.len];
            if let Some(&id) = self.by_text.get(bytes) {
                ids.push(id);
                continue;
            }
            for &byte in bytes {
                ids.push(self.byte_ids[usize::from(byte)].or(self.unknown).ok_or(byte)?);
            }
        }
        Ok(())
    }

    fn merge(&self, text: &[u8], symbols: &mut [Symbol]) {
        let mut queue = BinaryHeap::new();
        let candidate = |symbols: &[Symbol], left: usize| {
            let right = symbols.get(symbols[left].next)?;
            let (start, len) = (symbols[left].start, symbols[left].len + right.len);
            if len > self.longest {
                return None;
            }
            let &id = self.by_text.get(&text[start..start + len])?;
            Some(Pair { score: self.scores.get(id as usize).copied().unwrap_or(0.0), left, len })
        };
        for left in 0..symbols.len() {
            queue.extend(candidate(symbols, left));
        }
        while let Some(Pair { left, len, .. }) = queue.pop() {
            let symbol = symbols[left];
            let Some(&right) = symbols.get(symbol.next) else { continue };
            if symbol.len == 0 || symbol.len + right.len != len {
                continue; // one of the two has merged with another since
            }
            symbols[symbol.next].len = 0;
            symbols[left] = Symbol { len, next: right.next, ..symbol };
            if let Some(after) = symbols.get_mut(right.next) {
                after.prev = left;
            }
            if symbol.prev != END {
                queue.extend(candidate(symbols, symbol.prev));
            }
            queue.extend(candidate(symbols, left));
        }
    }
}
