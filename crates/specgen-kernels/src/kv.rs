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

    /// Bytes it takes, those it shares included.
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
    /// # Errors
    /// Where the system gives no memory.
    ///
    /// # Panics
    /// If either is not there.
    pub fn copy_slot(&mut self, from: usize, to: usize) -> io::Result<()> {
        typed!(&mut self.0, store => store.copy_slot(from, to))
    }

    /// A store of the same rows for another sequence, which grows in `arena`. They share what they hold until one of
    /// them writes: that one then has the 256 slots around it for itself.
    #[must_use]
    pub fn fork(&self, arena: &Arc<Arena>) -> Self {
        Self(match &self.0 {
            Typed::F32(store) => Typed::F32(store.fork(arena)),
            Typed::F16(store) => Typed::F16(store.fork(arena)),
            Typed::BF16(store) => Typed::BF16(store.fork(arena)),
        })
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
    /// Forks share them until they write; attention reads through one pointer more for 64 slots.
    chunks: Vec<Arc<Chunk<E>>>,
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

    fn fork(&self, arena: &Arc<Arena>) -> Self {
        Self { chunks: self.chunks.clone(), kv_dim: self.kv_dim, arena: Arc::clone(arena) }
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
            self.chunks.push(Arc::new(Chunk { keys, values }));
        }
        for chunk in slot / CHUNK..end.div_ceil(CHUNK) {
            self.own(chunk)?;
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

    /// Makes a chunk this store's alone, so that it may be written to.
    fn own(&mut self, chunk: usize) -> io::Result<()> {
        let shared = &mut self.chunks[chunk];
        if Arc::get_mut(shared).is_none() {
            let mut keys = self.arena.alloc(shared.keys.len())?;
            let mut values = self.arena.alloc(shared.values.len())?;
            keys.copy_from_slice(&shared.keys);
            values.copy_from_slice(&shared.values);
            *shared = Arc::new(Chunk { keys, values });
        }
        Ok(())
    }

    /// The key of a slot, element `slot % 64` of each, and its value.
    fn row_mut(&mut self, slot: usize) -> (&mut [[E; BLOCK]], &mut [E]) {
        let chunk = Arc::get_mut(&mut self.chunks[slot / CHUNK]);
        let Chunk { keys, values } =
            chunk.expect("a chunk is made its store's alone before it is written to");
        let keys = &mut keys[slot % CHUNK / BLOCK * BLOCK * self.kv_dim..][..BLOCK * self.kv_dim];
        (keys.as_chunks_mut().0, &mut values[slot % CHUNK * self.kv_dim..][..self.kv_dim])
    }

    fn copy_slot(&mut self, from: usize, to: usize) -> io::Result<()> {
        self.own(to / CHUNK)?;
        let value = self.value(from).to_vec();
        let key: Vec<E> = self.keys(from / BLOCK, 0).iter().map(|d| d[from % BLOCK]).collect();
        let (keys, kept) = self.row_mut(to);
        kept.copy_from_slice(&value);
        keys.iter_mut().zip(key).for_each(|(place, x)| place[to % BLOCK] = x);
        Ok(())
    }

    #[cfg(all(test, unix, not(miri)))]
    fn moved(&self) -> Self {
        let moved = |c: &Arc<Chunk<E>>| Chunk { keys: c.keys.moved(), values: c.values.moved() };
        let chunks = self.chunks.iter().map(|chunk| Arc::new(moved(chunk)));
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
            kv.copy_slot(299, 70).unwrap();
            kv.copy_slot(4, 4).unwrap();
            for slot in (0..300).step_by(if cfg!(miri) { 23 } else { 1 }).chain([70, 299]) {
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

    /// Forks have what was there before them, and what either writes is its own; the rest is in memory once.
    #[test]
    fn forks_share_what_neither_writes() {
        let row = |x: usize| vec![x as f32; 3];
        let mut kv = KvStore::new(&Arena::new(), KvType::F32, 3);
        let rows: Vec<f32> = (0..300).flat_map(row).collect();
        kv.write(0, &rows, &rows).unwrap();
        let mut fork = kv.fork(&Arena::new());
        fork.write(290, &row(1000), &row(1000)).unwrap();
        kv.write(300, &row(2000), &row(2000)).unwrap();
        fork.copy_slot(290, 291).unwrap();
        let (Typed::F32(kv), Typed::F32(fork)) = (kv.0, fork.0) else { unreachable!("both are of f32") };
        let value = |store: &Store<f32>, slot| {
            let key = store.keys(slot / BLOCK, 0).iter().map(|d| d[slot % BLOCK]).collect::<Vec<_>>();
            assert_eq!(key, store.value(slot));
            key[0]
        };
        for slot in 0..300 {
            let forked = if matches!(slot, 290 | 291) { 1000.0 } else { slot as f32 };
            assert_eq!((value(&kv, slot), value(&fork, slot)), (slot as f32, forked));
        }
        assert_eq!((value(&kv, 300), value(&fork, 300)), (2000.0, 0.0));
        let same = |chunk: usize| std::ptr::eq(&raw const *kv.chunks[chunk], &raw const *fork.chunks[chunk]);
        assert_eq!([0, 1].map(same), [true, false]);
        // Whoever is left alone with a chunk writes to it as it is.
        drop(kv);
        let before = &raw const *fork.chunks[0];
        let mut fork = fork;
        fork.write(3, &row(7), &row(7)).unwrap();
        assert!(std::ptr::eq(before, &raw const *fork.chunks[0]) && value(&fork, 3) == 7.0);
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
