//! `Twins`: which tokens of two vocabularies are the same, by what they spell (token-level intersection; Timor et al.
//! 2025, "Accelerating LLM inference with lossless speculative decoding algorithms for heterogeneous vocabularies",
//! arXiv:2502.05202).

use std::collections::HashMap;

use super::head::{NONE, put};
use crate::tokenizer::{Role, Tokenizer};

/// Pairs of a draft token and a target token that mean the same; none is in two pairs.
pub(super) struct Twins {
    to_target: Vec<u32>,
    to_draft: Vec<u32>,
    len: usize,
}

impl Twins {
    /// Text pairs by its bytes, special tokens by their names and then by their roles, padding never.
    pub(super) fn new(target: &Tokenizer, draft: &Tokenizer) -> Self {
        let mut twins = Self {
            to_target: vec![NONE; draft.vocab_size()],
            to_draft: vec![NONE; target.vocab_size()],
            len: 0,
        };
        let targets = by_key(target);
        for id in ordinary_first(draft) {
            if let Some(key) = Key::of(draft, id)
                && let Some(&twin) = targets.get(&key)
            {
                twins.pair(id, twin);
            }
        }
        for role in [Role::Begin, Role::TurnEnd, Role::TextEnd] {
            if let (Some(id), Some(twin)) = (draft.of_role(role), target.of_role(role)) {
                twins.pair(id, twin);
            }
        }
        twins
    }

    /// Makes a pair, where neither is in one yet.
    fn pair(&mut self, draft_id: u32, target_id: u32) {
        let (to_target, to_draft) =
            (&mut self.to_target[draft_id as usize], &mut self.to_draft[target_id as usize]);
        if (*to_target, *to_draft) == (NONE, NONE) {
            (*to_target, *to_draft) = (target_id, draft_id);
            self.len += 1;
        }
    }

    /// Number of pairs.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The draft's token for a target's.
    pub(super) fn of_target(&self, target_id: u32) -> Option<u32> {
        self.to_draft.get(target_id as usize).copied().filter(|&id| id != NONE)
    }

    /// The target's token for a draft's.
    pub(super) fn of_draft(&self, draft_id: u32) -> Option<u32> {
        self.to_target.get(draft_id as usize).copied().filter(|&id| id != NONE)
    }

    /// Makes `row` the draft's `logits` by target id: `-inf` where the draft has no such token.
    pub(super) fn scatter(&self, logits: &[f32], row: &mut [f32]) {
        row.fill(f32::NEG_INFINITY);
        put(logits, &self.to_target, row);
    }
}

/// All ids. A byte may have a token of its own beside the ordinary one: ordinary tokens choose first.
fn ordinary_first(tokenizer: &Tokenizer) -> impl Iterator<Item = u32> {
    let ids = 0..tokenizer.vocab_size() as u32;
    let (ordinary, bytes) = ids.partition::<Vec<u32>, _>(|&id| !tokenizer.is_byte(id));
    ordinary.into_iter().chain(bytes)
}

/// What makes two tokens the same.
#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    /// Text, by its bytes.
    Text(&'a [u8]),
    /// A control token, by its name.
    Control(&'a [u8]),
}

impl<'a> Key<'a> {
    /// `None` for what has no twin: holes, the unknown token, padding.
    fn of(tokenizer: &'a Tokenizer, id: u32) -> Option<Self> {
        let bytes = tokenizer.piece(id).filter(|bytes| !bytes.is_empty())?;
        if !tokenizer.is_special(id) {
            return Some(Self::Text(bytes));
        }
        let is_padding = bytes.to_ascii_lowercase().windows(3).any(|part| part == b"pad");
        (tokenizer.is_control(id) && !is_padding).then_some(Self::Control(bytes))
    }
}

/// The tokens by what makes them the same; of two for one byte the ordinary one, of others the first.
fn by_key(tokenizer: &Tokenizer) -> HashMap<Key<'_>, u32> {
    let mut all = HashMap::with_capacity(tokenizer.vocab_size());
    for id in ordinary_first(tokenizer) {
        if let Some(key) = Key::of(tokenizer, id) {
            all.entry(key).or_insert(id);
        }
    }
    all
}
