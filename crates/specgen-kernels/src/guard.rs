//! Kernels on memory that lies against pages nobody may touch: a byte read or written too far stops the test.
//!
//! While a test holds [`beside`], everything its thread allocates ends where such a page begins, or begins
//! where one ends: inputs and outputs, weights, and what the kernels allocate themselves. What works on
//! slices with bounds checks only (norms, gates, packing, quantising) needs no such test.
#![allow(unsafe_code)]
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::attention::attention_at;
use crate::isa::Level;
use crate::matmul::matmul_at;
use crate::testing::{FORMATS, Rng, random};
use crate::{
    Activations, Arena, AttentionShape, Format, KvStore, KvType, MatrixRef, Packed, RowKeys, Team, Weights,
};

/// Which end of an allocation meets the forbidden page.
#[derive(Clone, Copy, Debug)]
enum Side {
    First,
    Last,
}

thread_local! {
    static SIDE: Cell<Option<Side>> = const { Cell::new(None) };
}

/// Addresses kept for such memory; each is used once, so that memory given back is forbidden as well.
const REGION: usize = 16 << 30;
static REGION_START: AtomicUsize = AtomicUsize::new(0);
static USED: AtomicUsize = AtomicUsize::new(0);
static PAGE: AtomicUsize = AtomicUsize::new(0);

#[global_allocator]
static FENCE: Fence = Fence;

/// The system's allocator, but for the threads that hold [`beside`].
struct Fence;

// SAFETY: pieces of the region are apart and as large and aligned as asked; the rest is the system's.
unsafe impl GlobalAlloc for Fence {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match SIDE.try_with(Cell::get).ok().flatten() {
            Some(side) => fenced(layout, side),
            // SAFETY: the caller's contract.
            None => unsafe { System.alloc(layout) },
        }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        let (start, page) = (REGION_START.load(Ordering::Relaxed), PAGE.load(Ordering::Relaxed));
        if start == 0 || at.addr().wrapping_sub(start) >= REGION {
            // SAFETY: not the region's, so the system's.
            return unsafe { System.dealloc(at, layout) };
        }
        let pages = (at.addr() % page + layout.size()).next_multiple_of(page);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED | libc::MAP_NORESERVE;
        // SAFETY: the pages are this allocation's alone.
        unsafe { libc::mmap(at.wrapping_sub(at.addr() % page).cast(), pages, libc::PROT_NONE, flags, -1, 0) };
    }
}

/// Memory in the region, of zeros.
fn fenced(layout: Layout, side: Side) -> *mut u8 {
    let (start, page) = (REGION_START.load(Ordering::Relaxed), PAGE.load(Ordering::Relaxed));
    let pages = layout.size().next_multiple_of(page);
    let at = USED.fetch_add(pages + page, Ordering::Relaxed);
    if layout.align() > page || at + pages + page > REGION {
        return null_mut();
    }
    let first = std::ptr::with_exposed_provenance_mut::<u8>(start + at);
    // SAFETY: nobody has had these pages of the region yet.
    if unsafe { libc::mprotect(first.cast(), pages, libc::PROT_READ | libc::PROT_WRITE) } != 0 {
        return null_mut();
    }
    match side {
        Side::First => first,
        Side::Last => first.wrapping_add((pages - layout.size()) / layout.align() * layout.align()),
    }
}

/// Runs `f` with all memory this thread allocates against forbidden pages.
fn beside<T>(side: Side, f: impl FnOnce() -> T) -> T {
    struct Off;
    impl Drop for Off {
        fn drop(&mut self) {
            SIDE.set(None);
        }
    }
    static REGION_MADE: OnceLock<()> = OnceLock::new();
    REGION_MADE.get_or_init(|| {
        // SAFETY: asks for addresses and a number.
        let (start, page) = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_NORESERVE;
            (libc::mmap(null_mut(), REGION, libc::PROT_NONE, flags, -1, 0), libc::sysconf(libc::_SC_PAGESIZE))
        };
        assert_ne!(start, libc::MAP_FAILED, "{}", std::io::Error::last_os_error());
        let page = usize::try_from(page).unwrap();
        PAGE.store(page, Ordering::Relaxed);
        USED.store(page, Ordering::Relaxed);
        REGION_START.store(start.expose_provenance(), Ordering::Relaxed);
    });
    SIDE.set(Some(side));
    let _off = Off;
    f()
}

/// A copy that lies where the thread's memory lies.
fn copy<T: Copy>(x: &[T]) -> Box<[T]> {
    x.into()
}

#[test]
fn memory_meets_a_forbidden_page() {
    for len in [1, 3, 64, 5000] {
        let last = beside(Side::Last, || vec![7u8; len]);
        let first = beside(Side::First, || vec![7u8; len]);
        let page = PAGE.load(Ordering::Relaxed);
        assert_eq!((last.as_ptr().addr() + len) % page, 0);
        assert_eq!(first.as_ptr().addr() % page, 0);
        for (bad, x) in [(last.as_ptr().wrapping_add(len), &last), (first.as_ptr().wrapping_sub(1), &first)] {
            // The system looks at the page for us, and reports what would have stopped the process.
            let mut pipe = [0; 2];
            // SAFETY: two descriptors are written, and bytes are read by the system, which checks them.
            let (good, bad) = unsafe {
                assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
                (libc::write(pipe[1], x.as_ptr().cast(), 1), libc::write(pipe[1], bad.cast(), 1))
            };
            assert_eq!((good, bad), (1, -1));
            for end in pipe {
                // SAFETY: it is open, and ours.
                unsafe { libc::close(end) };
            }
        }
    }
}

/// A product with everything beside forbidden pages.
fn product(level: Level, team: &Team, side: Side, part: &MatrixRef<'_>, x: &[f32], m: usize) -> Vec<f32> {
    let packed = (part.format().block_len() > 1).then(|| Packed::new(&Arena::new(), team, part).unwrap());
    beside(side, || {
        let bytes = copy(part.bytes());
        let part = MatrixRef::new(part.format(), part.rows(), part.cols(), &bytes).unwrap();
        let packed = packed.as_ref().map(Packed::moved);
        let weights = packed.as_ref().map_or(Weights::Dense(part), Weights::Packed);
        let x = copy(x);
        let mut out = vec![f32::NAN; m * part.rows()];
        matmul_at(level, team, [weights], &mut Activations::new(&x, m, part.cols()), &mut out);
        out
    })
}

#[test]
fn products_touch_only_what_is_theirs() {
    let team = Team::new(1);
    for format in FORMATS {
        let mut rng = Rng::new(7);
        let len = format.block_len();
        for (rows, blocks) in [(1, 1), (19, 3), (32, 2), (53, 1)] {
            let cols = if len == 1 { [1, 37, 64, 15][blocks] } else { len * blocks };
            let data = random(format, rows * cols, rng.next());
            let part = MatrixRef::new(format, rows, cols, &data).unwrap();
            for m in [1, 5, 9, 17, 33] {
                let x = rng.normals(m * cols);
                for level in Level::available() {
                    for side in [Side::First, Side::Last] {
                        let out = product(level, &team, side, &part, &x, m);
                        let whole = out.iter().all(|x| x.is_finite());
                        assert!(whole, "{format:?} {level:?} {side:?} {m} rows by {rows}");
                    }
                }
            }
        }
    }
    assert_eq!(Format::F32.block_len(), 1); // dense formats are among them
}

#[test]
fn attention_touches_only_what_is_its_own() {
    let team = Team::new(1);
    let mut rng = Rng::new(8);
    for (kv_heads, group, head_dim) in [(1, 1, 8), (2, 3, 24), (1, 7, 80), (2, 6, 64), (1, 4, 33)] {
        let num_heads = kv_heads * group;
        let shape = AttentionShape { num_heads, num_kv_heads: kv_heads, head_dim, scale: 0.1, softcap: None };
        let slots = 512; // the store's last slots are seen, and its last values lie against the page
        let kv_dim = kv_heads * head_dim;
        let (keys, values) = (rng.normals(slots * kv_dim), rng.normals(slots * kv_dim));
        let stores = KvType::ALL.map(|kind| {
            let mut kv = KvStore::new(&Arena::new(), kind, kv_dim);
            kv.write(0, &keys, &values).unwrap();
            assert_eq!(kv.slots(), slots);
            kv
        });
        let tail = [511, 3, 500, 510, 480, 511, 64, 63];
        for m in [1, 5, 9] {
            let rows: Vec<_> = (0..m)
                .map(|r| match r % 4 {
                    0 => RowKeys { prefix: r..slots, tail: vec![] },
                    1 => RowKeys { prefix: 448..460 + r, tail: tail.to_vec() },
                    2 => RowKeys { prefix: 0..0, tail: tail[..r % 8 + 1].to_vec() },
                    _ => RowKeys { prefix: 500..511, tail: vec![511] },
                })
                .collect();
            let q = rng.normals(m * num_heads * head_dim);
            for level in Level::available() {
                for (kv, side) in stores.iter().flat_map(|kv| [(kv, Side::First), (kv, Side::Last)]) {
                    let out = beside(side, || {
                        let (kv, q) = (kv.moved(), copy(&q));
                        crate::attention::forget();
                        let mut out = vec![f32::NAN; q.len()];
                        attention_at(level, &team, &shape, &q, &kv, &rows, &mut out);
                        out
                    });
                    let whole = out.iter().all(|x| x.is_finite());
                    assert!(whole, "{level:?} {side:?} {m} rows, {group} heads of {head_dim}");
                }
            }
        }
    }
}
