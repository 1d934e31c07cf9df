//! Keys and values of one layer of one sequence, in the order attention reads them.

use std::io;
use std::sync::Arc;

use crate::{Arena, Piece};

/// Keys that lie together: one block of attention's positions.
pub(crate) const BLOCK: usize = 64;
/// Slots of a chunk, by which a store grows.
const CHUNK: usize = 256;

/// Keys and values of a layer, a row of each for every slot.
///
/// Sixty-four slots' keys are kept side by side, `[kv_dim, 64]`, so that a register holds an element of
/// sixteen keys and a score needs no sum across lanes. Values are rows, `[kv_dim]`.
#[derive(Debug)]
pub struct KvStore {
    chunks: Vec<Chunk>,
    kv_dim: usize,
    arena: Arc<Arena>,
}

/// 256 slots.
#[derive(Debug)]
struct Chunk {
    /// `[256 / 64, kv_dim, 64]`.
    keys: Piece<f32>,
    /// `[256, kv_dim]`.
    values: Piece<f32>,
}

impl KvStore {
    /// A store without slots, for rows of `kv_dim` elements (all key heads' side by side). The layers of a
    /// sequence share an arena, whose memory goes when all of them are gone.
    pub fn new(arena: &Arc<Arena>, kv_dim: usize) -> Self {
        Self { chunks: Vec::new(), kv_dim, arena: Arc::clone(arena) }
    }

    /// Slots there is room for; a multiple of 256.
    pub fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    /// Elements of a row.
    pub fn kv_dim(&self) -> usize {
        self.kv_dim
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        2 * self.slots() * self.kv_dim * size_of::<f32>()
    }

    /// Writes rows of keys and values (`[rows, kv_dim]`) to the slots from `slot` on, making room where there
    /// is none.
    ///
    /// # Errors
    /// Where the system gives no memory.
    ///
    /// # Panics
    /// If they aren't whole rows, or not as many of each.
    pub fn write(&mut self, slot: usize, keys: &[f32], values: &[f32]) -> io::Result<()> {
        let dim = self.kv_dim;
        assert!(
            keys.len() == values.len() && keys.len().is_multiple_of(dim),
            "rows of {dim} for keys and values"
        );
        let end = slot + keys.len() / dim;
        while self.slots() < end {
            let (keys, values) = (self.arena.alloc(CHUNK * dim)?, self.arena.alloc(CHUNK * dim)?);
            self.chunks.push(Chunk { keys, values });
        }
        for (slot, (key, value)) in (slot..end).zip(keys.chunks_exact(dim).zip(values.chunks_exact(dim))) {
            let chunk = &mut self.chunks[slot / CHUNK];
            chunk.values[slot % CHUNK * dim..][..dim].copy_from_slice(value);
            let block = &mut chunk.keys[slot % CHUNK / BLOCK * BLOCK * dim..];
            for (x, place) in key.iter().zip(block.as_chunks_mut::<BLOCK>().0) {
                place[slot % BLOCK] = *x;
            }
        }
        Ok(())
    }

    /// Copies the row of slot `from` to slot `to`.
    ///
    /// # Panics
    /// If either is not there.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        let value = self.value(from).to_vec();
        let key: Vec<f32> =
            self.keys(from / BLOCK, 0)[..self.kv_dim].iter().map(|d| d[from % BLOCK]).collect();
        self.write(to, &key, &value).expect("the slot is there, so no memory is asked for");
    }

    /// A copy in memory from the allocator, which is never given back.
    #[cfg(all(test, unix, not(miri)))]
    pub(crate) fn moved(&self) -> Self {
        let chunks = self.chunks.iter().map(|c| Chunk { keys: c.keys.moved(), values: c.values.moved() });
        Self { chunks: chunks.collect(), kv_dim: self.kv_dim, arena: Arc::clone(&self.arena) }
    }

    /// Keys of the slots `64 b..64 b + 64`: elements from `first` of `kv_dim` on, `[_, 64]`.
    pub(crate) fn keys(&self, b: usize, first: usize) -> &[[f32; BLOCK]] {
        const BLOCKS: usize = CHUNK / BLOCK;
        let block = &self.chunks[b / BLOCKS].keys[b % BLOCKS * BLOCK * self.kv_dim..][..BLOCK * self.kv_dim];
        &block.as_chunks().0[first..]
    }

    /// The value of a slot, `[kv_dim]`.
    pub(crate) fn value(&self, slot: usize) -> &[f32] {
        &self.chunks[slot / CHUNK].values[slot % CHUNK * self.kv_dim..][..self.kv_dim]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_come_back_and_move() {
        let row = |slot: usize| (0..3).map(|i| (10 * slot + i) as f32).collect::<Vec<_>>();
        let mut store = KvStore::new(&Arena::new(), 3);
        let rows: Vec<f32> = (0..300).flat_map(row).collect();
        store.write(0, &rows[..30], &rows[..30]).unwrap();
        store.write(10, &rows[30..], &rows[30..]).unwrap();
        assert_eq!((store.slots(), store.bytes()), (512, 512 * 3 * 8));
        store.copy_slot(299, 70);
        let key = |slot: usize| {
            store.keys(slot / BLOCK, 0)[..3].iter().map(|d| d[slot % BLOCK]).collect::<Vec<_>>()
        };
        for slot in 0..300 {
            let wanted = row(if slot == 70 { 299 } else { slot });
            assert_eq!(key(slot), wanted);
            assert_eq!(store.value(slot), wanted);
        }
    }
}
