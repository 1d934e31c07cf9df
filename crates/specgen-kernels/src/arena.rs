//! Where weights, keys and values live: huge pages, handed out piece by piece and given back together.
#![allow(unsafe_code)]

use std::io;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::{MmapMut, MmapRaw};

/// Pieces start on cache lines.
const ALIGN: usize = 64;
const HUGE_PAGE: usize = 2 << 20;
/// Bytes asked of the system at a time. What is not written takes no memory (but Miri writes all).
const CHUNK: usize = if cfg!(miri) { 1 << 16 } else { 256 << 20 };

/// Memory in huge pages.
///
/// Page walks cost a core that streams weights a sixth of its rate, and each pass of a large model leaves the
/// caches without page tables, so that a few cold lines of small pages cost as much as megabytes of weights.
/// But each matrix rounded up to 2 MiB would waste more than small models weigh: so all share chunks.
#[derive(Debug, Default)]
pub struct Arena {
    chunks: Mutex<Vec<Chunk>>,
}

#[derive(Debug)]
struct Chunk {
    /// Raw, for a reference to all of it would deny the pieces theirs.
    map: MmapRaw,
    used: usize,
}

impl Arena {
    /// An empty arena.
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// `len` zeros of its own.
    ///
    /// # Errors
    /// Where the system gives no memory.
    pub fn alloc<T: Plain>(self: &Arc<Self>, len: usize) -> io::Result<Piece<T>> {
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let size = len
            .checked_mul(size_of::<T>())
            .and_then(|n| n.checked_next_multiple_of(ALIGN))
            .ok_or_else(too_large)?;
        let mut chunks = self.chunks.lock().unwrap_or_else(PoisonError::into_inner);
        if chunks.last().is_none_or(|chunk| chunk.map.len() - chunk.used < size) {
            chunks.push(Chunk::new(size)?);
        }
        let chunk = chunks.last_mut().expect("just made sure of it");
        let ptr = chunk.map.as_mut_ptr().wrapping_add(chunk.used).cast();
        chunk.used += size;
        Ok(Piece { ptr, len, _arena: Arc::clone(self) })
    }
}

impl Chunk {
    fn new(size: usize) -> io::Result<Self> {
        let len = size.max(CHUNK).checked_add(HUGE_PAGE).ok_or(io::ErrorKind::OutOfMemory)?;
        let map = MmapRaw::from(MmapMut::map_anon(len)?);
        #[cfg(all(target_os = "linux", not(miri)))]
        let _ = map.advise(memmap2::Advice::HugePage); // a wish: without it all is the same, but slower
        let start = map.as_mut_ptr().align_offset(HUGE_PAGE);
        Ok(Self { map, used: start })
    }
}

/// What may be all zero bits, and needs no more than a cache line's alignment.
///
/// # Safety
/// Both must hold.
pub unsafe trait Plain: Copy + Send + Sync {}
// SAFETY: zero bits are 0.
unsafe impl Plain for u8 {}
// SAFETY: zero bits are 0.0.
unsafe impl Plain for f32 {}
// SAFETY: as above.
unsafe impl Plain for half::f16 {}
// SAFETY: as above.
unsafe impl Plain for half::bf16 {}

/// Some elements in an arena, which lives as long as they do.
#[derive(Debug)]
pub struct Piece<T> {
    ptr: *mut T,
    len: usize,
    _arena: Arc<Arena>,
}

#[cfg(all(test, unix, not(miri)))]
impl<T: Plain> Piece<T> {
    /// A copy in memory from the allocator, which is never given back.
    pub(crate) fn moved(&self) -> Self {
        let ptr = Box::leak(Box::<[T]>::from(&**self)).as_mut_ptr();
        Self { ptr, len: self.len, _arena: Arc::clone(&self._arena) }
    }
}

// SAFETY: no two pieces overlap, and nothing else uses the memory behind them.
unsafe impl<T: Plain> Send for Piece<T> {}
// SAFETY: as above; shared access only reads.
unsafe impl<T: Plain> Sync for Piece<T> {}

impl<T: Plain> Deref for Piece<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements at `ptr` are this value's own, initialised (zeros at first) and mapped while
        // the arena lives.
        unsafe { std::slice::from_raw_parts(self.ptr, self.len) }
    }
}

impl<T: Plain> DerefMut for Piece<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as above, and `self` is borrowed alone.
        unsafe { std::slice::from_raw_parts_mut(self.ptr, self.len) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Bytes of a piece that are looked at.
    const LOOK: usize = if cfg!(miri) { 1 << 10 } else { 1 << 16 };

    #[test]
    fn sizes_beyond_all_memory_are_refused() {
        assert!(Arena::new().alloc::<u8>(usize::MAX - 63).is_err());
        assert!(Arena::new().alloc::<f32>(usize::MAX / 2).is_err());
    }

    #[test]
    fn pieces_are_apart_aligned_and_outlive_the_handle() {
        let arena = Arena::new();
        let mut pieces: Vec<_> =
            [0, 1, 63, 64, 65, 1000, CHUNK, 5].map(|len| arena.alloc::<u8>(len).unwrap()).into();
        drop(arena);
        for (i, piece) in pieces.iter_mut().enumerate() {
            assert!(piece.iter().take(LOOK).all(|&b| b == 0));
            assert!(
                piece.as_ptr().cast::<u128>().is_aligned() && piece.as_ptr().addr().is_multiple_of(ALIGN)
            );
            let ends = piece.len().min(LOOK);
            piece[..ends].fill(i as u8 + 1);
        }
        for (i, piece) in pieces.iter().enumerate() {
            assert!(piece.iter().take(LOOK).all(|&b| usize::from(b) == i + 1), "piece {i}");
        }
    }
}
