//! Byte-pair encoding: the merges of a vocabulary, applied to one word in n log n steps.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use super::split::{Stage, words};
use super::vocab::{ByBytes, Spelling, Vocab};

/// A byte-pair encoder; its words are bytes, or `▁`-escaped characters.
pub(super) struct Bpe {
    pub(super) stages: Vec<Stage>,
    pub(super) ignore_merges: bool,
    pub(super) spelling: Spelling,
    /// The tokens that text may become, by the bytes of their words.
    pub(super) by_bytes: ByBytes,
    /// The token of each byte: its own letter, or `<0xXX>`.
    pub(super) byte_ids: Box<[Option<u32>; 256]>,
    /// `(left, right)` to `(rank, whole)`.
    pub(super) merges: HashMap<(u32, u32), (u32, u32)>,
    pub(super) unknown: Option<u32>,
}

/// A part of a word that has no token of its own yet, nor any merge.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Symbol {
    id: u32,
    /// Its bytes in the word; `len` 0 once it is merged into the symbol before it.
    start: usize,
    len: usize,
    prev: usize,
    next: usize,
}

/// No neighbour.
const END: usize = usize::MAX;

impl Bpe {
    /// Appends the ids of `text`.
    ///
    /// # Errors
    /// The first byte that no token can stand for.
    pub(super) fn encode(&self, text: &str, ids: &mut Vec<u32>) -> Result<(), u8> {
        let escaped;
        let text = if self.spelling == Spelling::Sentencepiece {
            escaped = text.replace(' ', "▁");
            &escaped
        } else {
            text
        };
        let mut symbols = Vec::new();
        for word in words(&self.stages, text) {
            self.encode_word(&text[word], &mut symbols, ids)?;
        }
        Ok(())
    }

    fn encode_word(&self, word: &str, symbols: &mut Vec<Symbol>, ids: &mut Vec<u32>) -> Result<(), u8> {
        // A run of line breaks is one token where there is one: its merges are not in the files (gemma 4).
        let whole = self.ignore_merges
            || (self.spelling == Spelling::Sentencepiece && word.bytes().all(|byte| byte == b'\n'));
        if whole && let Some(&id) = self.by_bytes.get(word.as_bytes()) {
            ids.push(id);
            return Ok(());
        }
        symbols.clear();
        let mut push = |id: u32, start: usize, len: usize| {
            let index = symbols.len();
            symbols.push(Symbol {
                id,
                start,
                len,
                prev: index.checked_sub(1).unwrap_or(END),
                next: index + 1,
            });
        };
        match self.spelling {
            Spelling::ByteLevel => {
                for (at, byte) in word.bytes().enumerate() {
                    push(self.byte_ids[usize::from(byte)].unwrap_or(NONE), at, 1);
                }
            }
            Spelling::Sentencepiece => {
                for (at, c) in word.char_indices() {
                    let len = c.len_utf8();
                    let id = self.by_bytes.get(&word.as_bytes()[at..at + len]).copied();
                    push(id.unwrap_or(NONE), at, len);
                }
            }
        }
        if let Some(last) = symbols.last_mut() {
            last.next = END;
        }
        self.merge(symbols);
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            if symbol.id != NONE {
                ids.push(symbol.id);
                continue;
            }
            for &byte in &word.as_bytes()[symbol.start..symbol.start + symbol.len] {
                ids.push(self.byte_ids[usize::from(byte)].or(self.unknown).ok_or(byte)?);
            }
        }
        Ok(())
    }

    /// Applies merges, lowest rank first, and of equal ranks the leftmost.
    fn merge(&self, symbols: &mut [Symbol]) {
        // (rank, index of the left symbol, its id then, the right one's id then, the whole's id)
        let mut queue = BinaryHeap::new();
        let candidate = |symbols: &[Symbol], left: usize| {
            let (left_id, right) = (symbols[left].id, symbols[left].next);
            let right_id = symbols.get(right)?.id;
            let &(rank, whole) = self.merges.get(&(left_id, right_id))?;
            Some(Reverse((rank, left, left_id, right_id, whole)))
        };
        for left in 0..symbols.len() {
            queue.extend(candidate(symbols, left));
        }
        while let Some(Reverse((_, left, left_id, right_id, whole))) = queue.pop() {
            let (symbol, right) = (symbols[left], symbols[left].next);
            let stale = symbol.len == 0
                || symbol.id != left_id
                || symbols.get(right).is_none_or(|right| right.id != right_id);
            if stale {
                continue;
            }
            let Symbol { len, next, .. } = symbols[right];
            symbols[right].len = 0;
            symbols[left] = Symbol { id: whole, len: symbol.len + len, next, ..symbol };
            if let Some(after) = symbols.get_mut(next) {
                after.prev = left;
            }
            if symbol.prev != END {
                queue.extend(candidate(symbols, symbol.prev));
            }
            queue.extend(candidate(symbols, left));
        }
    }
}

/// Two tokens that merge, to the merge's rank and the token it makes.
type Merges = HashMap<(u32, u32), (u32, u32)>;

/// Reads `tokenizer.ggml.merges`: `left right`, most important first.
///
/// # Errors
/// The first merge that is not two tokens that make a third, in words.
pub(super) fn read_merges(merges: &[Vec<u8>], vocab: &Vocab, by_text: &ByBytes) -> Result<Merges, String> {
    let mut table = HashMap::with_capacity(merges.len());
    for (rank, merge) in merges.iter().enumerate() {
        let bad = |why: &str| {
            let shown = String::from_utf8_lossy(&merge[..merge.len().min(80)]);
            format!("merge {rank} (`{}`) {why}", shown.escape_debug())
        };
        // A token may begin with a space, so the separator is looked for from the second byte on.
        let space = merge.iter().skip(1).position(|&byte| byte == b' ').map(|at| at + 1);
        let space = space.ok_or_else(|| bad("has no space between its halves"))?;
        let (left, right) = (&merge[..space], &merge[space + 1..]);
        let id = |text: &[u8]| by_text.get(text).copied();
        let left_id = id(left).ok_or_else(|| bad("begins with what is not a token"))?;
        let right_id = id(right).ok_or_else(|| bad("ends with what is not a token"))?;
        let whole = id(&[left, right].concat()).ok_or_else(|| bad("makes what is not a token"))?;
        // Plain text must not grow into a control token.
        if vocab.kind(whole).is_some_and(|kind| !kind.is_special()) {
            let rank = u32::try_from(rank).map_err(|_| bad("is one too many"))?;
            table.entry((left_id, right_id)).or_insert((rank, whole));
        }
    }
    Ok(table)
}
