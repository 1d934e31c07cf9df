//! `KvCache`: the token ids a sequence has fed to a model, with their keys and values.

use std::any::Any;

use crate::error::{Error, Result};

/// Keys and values of one sequence. Its length *is* the number of ids it holds, so rollback is a length change:
/// slots beyond the length are garbage that the next forward overwrites.
pub struct KvCache {
    tokens: Vec<u32>,
    storage: Box<dyn Storage>,
}

/// Where a backend keeps the keys and values; it knows slots, not lengths.
pub(crate) trait Storage: Any + Send {
    /// Copies slot `from` onto slot `to` in every layer.
    fn copy_slot(&mut self, from: usize, to: usize) -> Result<()>;
    /// Bytes held now, those shared with forks included.
    fn bytes(&self) -> u64;
    /// What another sequence with the same beginning starts from.
    fn fork(&self) -> Result<Box<dyn Storage>>;
}

/// The storage of a model without keys and values (a table of logits, for tests and docs).
struct IdsOnly;

impl Storage for IdsOnly {
    fn copy_slot(&mut self, _from: usize, _to: usize) -> Result<()> {
        Ok(())
    }

    fn bytes(&self) -> u64 {
        0
    }

    fn fork(&self) -> Result<Box<dyn Storage>> {
        Ok(Box::new(Self))
    }
}

impl KvCache {
    /// A cache that remembers ids and nothing else, for models that compute from the ids alone.
    pub fn ids_only() -> Self {
        Self::with_storage(Box::new(IdsOnly))
    }

    pub(crate) fn with_storage(storage: Box<dyn Storage>) -> Self {
        Self { tokens: Vec::new(), storage }
    }

    /// The ids held, oldest first.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Number of ids held.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing is held.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// A cache of the same ids for another sequence. On the CPU both share the keys and values there are, and each has
    /// for itself what it writes; elsewhere they are copied.
    ///
    /// # Errors
    /// Where the device gives no memory.
    pub fn fork(&self) -> Result<Self> {
        Ok(Self { tokens: self.tokens.clone(), storage: self.storage.fork()? })
    }

    /// Bytes of keys and values held now, those shared with forks included.
    pub fn bytes(&self) -> u64 {
        self.storage.bytes()
    }

    /// Forgets everything from `len` on; O(1) in every layer. Longer than the cache: no effect.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
    }

    /// Keeps the longest prefix shared with `tokens`, always leaving the last of `tokens` to be computed, and returns
    /// its length: what is left to feed is `tokens[returned..]`.
    pub fn retain_prefix(&mut self, tokens: &[u32]) -> usize {
        let limit = tokens.len().saturating_sub(1);
        let shared = self.tokens.iter().zip(&tokens[..limit]).take_while(|(a, b)| a == b).count();
        self.truncate(shared);
        shared
    }

    /// Keeps the slots `base + rows[0]`, `base + rows[1]`, … as the new slots `base`, `base + 1`, … and forgets the
    /// rest: the accepted path of a draft tree. `rows` ascends strictly.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `rows` does not ascend or leaves the cache.
    pub fn compact(&mut self, base: usize, rows: &[usize]) -> Result<()> {
        let ascending = rows.windows(2).all(|pair| pair[0] < pair[1]);
        if !ascending || rows.last().is_some_and(|&last| base + last >= self.len()) {
            return Err(Error::InvalidArgument(format!(
                "cache rows {rows:?} after slot {base} must ascend and stay below {}",
                self.len()
            )));
        }
        for (to, &from) in rows.iter().enumerate() {
            if from != to {
                self.storage.copy_slot(base + from, base + to)?;
                self.tokens[base + to] = self.tokens[base + from];
            }
        }
        self.truncate(base + rows.len());
        Ok(())
    }

    /// Commits ids whose keys and values a forward has just written at the end.
    pub fn extend(&mut self, tokens: &[u32]) {
        self.tokens.extend_from_slice(tokens);
    }

    /// The backend's own storage, or an error where the cache belongs to another kind of model.
    pub(crate) fn storage_mut<S: Storage>(&mut self) -> Result<&mut S> {
        let storage: &mut dyn Any = self.storage.as_mut();
        storage
            .downcast_mut()
            .ok_or_else(|| Error::InvalidArgument("this cache was made by another kind of model".into()))
    }
}

impl std::fmt::Debug for KvCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvCache").field("len", &self.len()).field("bytes", &self.bytes()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(tokens: &[u32]) -> KvCache {
        let mut cache = KvCache::ids_only();
        cache.extend(tokens);
        cache
    }

    #[test]
    fn retain_prefix_leaves_the_last_token_to_compute() {
        assert_eq!(cache(&[1, 2, 3]).retain_prefix(&[1, 2, 3]), 2);
        assert_eq!(cache(&[1, 2, 3]).retain_prefix(&[1, 2, 3, 4]), 3);
        assert_eq!(cache(&[1, 2, 3]).retain_prefix(&[1, 9, 3, 4]), 1);
        assert_eq!(cache(&[1, 2, 3]).retain_prefix(&[1]), 0);
        assert_eq!(cache(&[1, 2, 3]).retain_prefix(&[]), 0);
    }

    #[test]
    fn compact_keeps_the_accepted_path() {
        let mut c = cache(&[10, 11, 20, 21, 22, 23]);
        c.compact(2, &[0, 2]).expect("rows ascend");
        assert_eq!(c.tokens(), [10, 11, 20, 22]);
        assert!(c.compact(2, &[1, 1]).is_err());
        assert!(c.compact(2, &[2]).is_err());
    }
}
