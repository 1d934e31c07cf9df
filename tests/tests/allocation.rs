//! What decoding allocates on the heap: a pass nothing at all, a round its lists of sequences and the text
//! it gives out.
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
    sync::{Mutex, MutexGuard, PoisonError},
};

use specgen::{
    KvType, Request, SamplingParams,
    cache::KvCache,
    model::{Batch, Model, Output, Rows, Slice},
};
use specgen_tests::{
    real,
    tiny::{self, Tiny},
};

/// The system's allocator, counting.
struct Counting;

static COUNT: AtomicUsize = AtomicUsize::new(0);
static BYTES: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);

fn count(size: usize) {
    COUNT.fetch_add(1, Ordering::Relaxed);
    BYTES.fetch_add(size, Ordering::Relaxed);
    LARGEST.fetch_max(size, Ordering::Relaxed);
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        // SAFETY: the caller's contract.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations, all bytes of them, and those of the largest.
#[derive(Debug, PartialEq)]
struct Allocated {
    count: usize,
    bytes: usize,
    largest: usize,
}

/// What the process allocates while `f` runs.
fn allocated(f: impl FnOnce()) -> Allocated {
    COUNT.store(0, Ordering::Relaxed);
    BYTES.store(0, Ordering::Relaxed);
    LARGEST.store(0, Ordering::Relaxed);
    f();
    let [count, bytes, largest] = [&COUNT, &BYTES, &LARGEST].map(|number| number.load(Ordering::Relaxed));
    Allocated { count, bytes, largest }
}

/// Held by a test that counts: the counters are the process's.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes of one row and of several, of one sequence and of two, with what they leave taken back.
fn passes(model: &dyn Model, caches: &mut [KvCache; 2], out: &mut Output) -> Vec<Allocated> {
    let tokens: Vec<u32> = (0..96).map(|i| i * 7 % 61).collect();
    let lens = [[80, 70], [1, 0], [4, 0], [9, 0], [1, 1], [5, 12]];
    let mut found = Vec::new();
    for lens in lens {
        let slices = caches.iter_mut().zip(lens).filter(|(_, len)| *len > 0);
        let slices = slices.map(|(cache, len)| Slice {
            cache,
            tokens: &tokens[..len],
            rows: Rows::Last(9),
            tree: None,
        });
        let mut batch = Batch { slices: slices.collect(), taps: &[] };
        found.push(allocated(|| model.forward(&mut batch, out).unwrap()));
    }
    caches.iter_mut().for_each(|cache| cache.truncate(0));
    found
}

/// What a pass needs is kept from the passes before: lists, activations, attention's scratch.
#[test]
fn a_pass_allocates_nothing() {
    let _alone = alone();
    let kept = KvType::ALL.map(|kv_type| (Tiny::named("gemma3"), Some(kv_type)));
    for (tiny, kv_type) in tiny::all().into_iter().map(|tiny| (tiny, None)).chain(kept) {
        let device = tiny::cpu(2);
        for model in [tiny.load_kept(&device, kv_type), tiny.load_gguf_kept(&device, kv_type)] {
            let (mut caches, mut out) = ([model.new_cache(), model.new_cache()], Output::new());
            // A buffer may first be met by the larger of two uses.
            (0..3).for_each(|_| drop(passes(model.as_ref(), &mut caches, &mut out)));
            for allocated in passes(model.as_ref(), &mut caches, &mut out) {
                assert_eq!(allocated.count, 0, "{}, {kv_type:?}: {allocated:?}", tiny.name);
            }
        }
    }
}

/// A list each of requests, of what they want, of drafts, slices and results, and each token's text. A draft
/// looked up is three lists, and is handed on in three; what stands of it is one, kept as it is found and as it was
/// found. What a text keeps grows now and then.
#[test]
fn a_round_allocates_its_lists_of_sequences() {
    let _alone = alone();
    for (draft, lists) in [("none", 5), ("ngram", 11)] {
        let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
        let engine = builder.draft(draft).num_draft_tokens(3).build().unwrap();
        let params = SamplingParams::greedy();
        let prompt: Vec<u32> = (0..40).map(|i| 1000 + i % 10).collect();
        let request =
            Request { prompt: &prompt, params: &params, max_tokens: 200, stops: &[], ignore_eos: true };
        let mut sequence = engine.start(&request, &mut None).unwrap();
        let mut rounds = engine.rounds();
        while rounds.prefill(&mut sequence).unwrap() {}
        let mut step = || {
            rounds.step(&mut [&mut sequence]).unwrap().into_iter().for_each(Result::unwrap);
            std::iter::from_fn(|| sequence.next_piece()).count()
        };
        let _ = (0..8).map(|_| step()).sum::<usize>();
        const STEPS: usize = 16;
        let mut tokens = 0;
        let Allocated { count, bytes, largest } =
            allocated(|| tokens = (0..STEPS).map(|_| step()).sum::<usize>());
        let of_round = (count - tokens) / STEPS;
        assert!(of_round <= lists, "{draft}: {of_round} allocations a round, of {} bytes", bytes / STEPS);
        let row = 4 * engine.vocab_size();
        assert!(largest < row / 4, "{draft}: an allocation of {largest} bytes; a row of logits has {row}");
    }
}
