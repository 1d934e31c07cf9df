//! Keys and values of one layer of one sequence, in the order attention reads them.

use std::fmt;
use std::io;
use std::str::FromStr;
use std::sync::Arc;

use half::{bf16, f16};

use crate::element::Element;
use crate::{Arena, Piece};

/// Keys that lie together: one block of attention's positions.
pub(crate) const BLOCK: usize = 64;
/// Slots of a chunk, by which a store grows.
const CHUNK: usize = 256;

/// How keys and values are kept. They are rounded once, to the nearest (ties to even), when they are
/// written; attention computes in f32 with what is kept, so that a row's numbers still depend on nothing but
/// its inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvType {
    /// As computed.
    F32,
    /// 11 bits of precision, up to 65504. What is larger is kept as NaN, and what sees it becomes NaN.
    F16,
    /// 8 bits of precision, with the range of f32.
    BF16,
}

impl KvType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F32, Self::F16, Self::BF16];

    /// Its name: `f32`, `f16` or `bf16`.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::BF16 => "bf16",
        }
    }

    /// Bytes of an element.
    pub fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::BF16 => 2,
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for KvType {
    type Err = String;

    /// # Errors
    /// What was found and what is wanted.
    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("`{name}` is no type of keys and values; wanted f32, f16 or bf16"))
    }
}

/// Keys and values of a layer, a row of each for every slot.
///
/// Sixty-four slots' keys are kept side by side, `[kv_dim, 64]`, so that a register holds an element of
/// sixteen keys and a score needs no sum across lanes. Values are rows, `[kv_dim]`.
#[derive(Debug)]
pub struct KvStore(pub(crate) Typed);

/// A store of each type.
#[derive(Debug)]
pub(crate) enum Typed {
    F32(Store<f32>),
    F16(Store<f16>),
    BF16(Store<bf16>),
}

/// `$do` with `$store` the store of whichever type.
macro_rules! typed {
    ($kv:expr, $store:ident => $do:expr) => {
        match $kv {
            $crate::kv::Typed::F32($store) => $do,
            $crate::kv::Typed::F16($store) => $do,
            $crate::kv::Typed::BF16($store) => $do,
        }
    };
}
pub(crate) use typed;

impl KvStore {
    /// A store without slots, for rows of `kv_dim` elements (all key heads' side by side). The layers of a
    /// sequence share an arena, whose memory goes when all of them are gone.
    pub fn new(arena: &Arc<Arena>, kind: KvType, kv_dim: usize) -> Self {
        Self(match kind {
            KvType::F32 => Typed::F32(Store::new(arena, kv_dim)),
            KvType::F16 => Typed::F16(Store::new(arena, kv_dim)),
            KvType::BF16 => Typed::BF16(Store::new(arena, kv_dim)),
        })
    }

    /// Slots there is room for; a multiple of 256.
    pub fn slots(&self) -> usize {
        typed!(&self.0, store => store.slots())
    }

    /// Elements of a row.
    pub fn kv_dim(&self) -> usize {
        typed!(&self.0, store => store.kv_dim)
    }

    /// Bytes it takes.
    pub fn bytes(&self) -> usize {
        typed!(&self.0, store => store.bytes())
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
        typed!(&mut self.0, store => store.write(slot, keys, values))
    }

    /// Copies the row of slot `from` to slot `to`.
    ///
    /// # Panics
    /// If either is not there.
    pub fn copy_slot(&mut self, from: usize, to: usize) {
        typed!(&mut self.0, store => store.copy_slot(from, to));
    }

    /// A copy in memory from the allocator, which is never given back.
    #[cfg(all(test, unix, not(miri)))]
    pub(crate) fn moved(&self) -> Self {
        Self(match &self.0 {
            Typed::F32(store) => Typed::F32(store.moved()),
            Typed::F16(store) => Typed::F16(store.moved()),
            Typed::BF16(store) => Typed::BF16(store.moved()),
        })
    }
}

/// Keys and values of type `E`.
#[derive(Debug)]
pub(crate) struct Store<E> {
    chunks: Vec<Chunk<E>>,
    kv_dim: usize,
    arena: Arc<Arena>,
}

/// 256 slots.
#[derive(Debug)]
struct Chunk<E> {
    /// `[256 / 64, kv_dim, 64]`.
    keys: Piece<E>,
    /// `[256, kv_dim]`.
    values: Piece<E>,
}

impl<E: Element> Store<E> {
    fn new(arena: &Arc<Arena>, kv_dim: usize) -> Self {
        Self { chunks: Vec::new(), kv_dim, arena: Arc::clone(arena) }
    }

    pub(crate) fn slots(&self) -> usize {
        self.chunks.len() * CHUNK
    }

    pub(crate) fn kv_dim(&self) -> usize {
        self.kv_dim
    }

    fn bytes(&self) -> usize {
        2 * self.slots() * self.kv_dim * size_of::<E>()
    }

    fn write(&mut self, slot: usize, keys: &[f32], values: &[f32]) -> io::Result<()> {
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
            let (keys, kept) = self.row_mut(slot);
            E::round(value, kept);
            for (key, places) in key.chunks(BLOCK).zip(keys.chunks_mut(BLOCK)) {
                let mut kept = [E::default(); BLOCK];
                let kept = &mut kept[..key.len()];
                E::round(key, kept);
                for (x, place) in kept.iter().zip(places) {
                    place[slot % BLOCK] = *x;
                }
            }
        }
        Ok(())
    }

    /// The key of a slot, element `slot % 64` of each, and its value.
    fn row_mut(&mut self, slot: usize) -> (&mut [[E; BLOCK]], &mut [E]) {
        let Chunk { keys, values } = &mut self.chunks[slot / CHUNK];
        let keys = &mut keys[slot % CHUNK / BLOCK * BLOCK * self.kv_dim..][..BLOCK * self.kv_dim];
        (keys.as_chunks_mut().0, &mut values[slot % CHUNK * self.kv_dim..][..self.kv_dim])
    }

    fn copy_slot(&mut self, from: usize, to: usize) {
        let value = self.value(from).to_vec();
        let key: Vec<E> = self.keys(from / BLOCK, 0).iter().map(|d| d[from % BLOCK]).collect();
        let (keys, kept) = self.row_mut(to);
        kept.copy_from_slice(&value);
        keys.iter_mut().zip(key).for_each(|(place, x)| place[to % BLOCK] = x);
    }

    #[cfg(all(test, unix, not(miri)))]
    fn moved(&self) -> Self {
        let chunks = self.chunks.iter().map(|c| Chunk { keys: c.keys.moved(), values: c.values.moved() });
        Self { chunks: chunks.collect(), kv_dim: self.kv_dim, arena: Arc::clone(&self.arena) }
    }

    /// Keys of the slots `64 b..64 b + 64`: elements from `first` of `kv_dim` on, `[_, 64]`.
    pub(crate) fn keys(&self, b: usize, first: usize) -> &[[E; BLOCK]] {
        const BLOCKS: usize = CHUNK / BLOCK;
        let block = &self.chunks[b / BLOCKS].keys[b % BLOCKS * BLOCK * self.kv_dim..][..BLOCK * self.kv_dim];
        &block.as_chunks().0[first..]
    }

    /// Values of the slots `64 b..64 b + 64`, `[64, kv_dim]`.
    pub(crate) fn values(&self, b: usize) -> &[E] {
        &self.chunks[b * BLOCK / CHUNK].values[b * BLOCK % CHUNK * self.kv_dim..][..BLOCK * self.kv_dim]
    }

    /// The value of a slot, `[kv_dim]`.
    pub(crate) fn value(&self, slot: usize) -> &[E] {
        &self.chunks[slot / CHUNK].values[slot % CHUNK * self.kv_dim..][..self.kv_dim]
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn rows_come_back_rounded_and_move() {
        for kind in KvType::ALL {
            let mut kv = KvStore::new(&Arena::new(), kind, 3);
            // Whole numbers that all types hold, and a part that only f32 does.
            let row = |slot: usize| (0..3).map(|i| (slot % 250 + i) as f32 + 2e-5).collect::<Vec<_>>();
            let rows: Vec<f32> = (0..300).flat_map(row).collect();
            kv.write(0, &rows[..30], &rows[..30]).unwrap();
            kv.write(10, &rows[30..], &rows[30..]).unwrap();
            assert_eq!((kv.slots(), kv.bytes()), (512, 512 * 3 * 2 * kind.bytes()), "{kind}");
            kv.copy_slot(299, 70);
            kv.copy_slot(4, 4);
            for slot in 0..300 {
                let wanted = row(if slot == 70 { 299 } else { slot });
                let wanted: Vec<f32> = match kind {
                    KvType::F32 => wanted,
                    KvType::F16 => wanted.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
                    KvType::BF16 => wanted.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
                };
                typed!(&kv.0, store => {
                    let keys = &store.keys(slot / BLOCK, 0)[..3];
                    let key: Vec<f32> = keys.iter().map(|d| d[slot % BLOCK].widen()).collect();
                    let value: Vec<f32> = store.value(slot).iter().map(|x| x.widen()).collect();
                    assert_eq!((&key, &value), (&wanted, &wanted), "{kind}, slot {slot}");
                });
            }
        }
    }

    #[test]
    fn names_round_trip() {
        for kind in KvType::ALL {
            assert_eq!(kind.to_string().parse(), Ok(kind));
        }
        let error = "f8".parse::<KvType>().unwrap_err();
        assert!(error.contains("`f8`") && error.contains("wanted f32, f16 or bf16"), "{error}");
    }
}
