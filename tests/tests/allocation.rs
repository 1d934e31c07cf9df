//! What a round of decoding allocates on the heap: small lists, and nothing of the size of a logits row.
#![allow(clippy::unwrap_used, missing_docs, unsafe_code)]

use std::{
    alloc::{GlobalAlloc, Layout, System},
    sync::atomic::{AtomicUsize, Ordering},
};

use specgen::{Request, SamplingParams};
use specgen_tests::real;

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

#[test]
fn a_round_allocates_next_to_nothing() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let engine = builder.draft("ngram").num_draft_tokens(3).build().unwrap();
    let params = SamplingParams::greedy();
    let prompt: Vec<u32> = (0..40).map(|i| 1000 + i % 10).collect();
    let request = Request { prompt: &prompt, params: &params, max_tokens: 200, stops: &[], ignore_eos: true };
    let mut sequence = engine.start(&request, &mut None).unwrap();
    let mut rounds = engine.rounds();
    while rounds.prefill(&mut sequence).unwrap() {}
    let mut step = || rounds.step(&mut [&mut sequence]).unwrap().into_iter().for_each(Result::unwrap);
    (0..8).for_each(|_| step());
    let before = (COUNT.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    LARGEST.store(0, Ordering::Relaxed);
    const STEPS: usize = 16;
    (0..STEPS).for_each(|_| step());
    let count = (COUNT.load(Ordering::Relaxed) - before.0) / STEPS;
    let bytes = (BYTES.load(Ordering::Relaxed) - before.1) / STEPS;
    let largest = LARGEST.load(Ordering::Relaxed);
    let row = 4 * engine.vocab_size();
    assert!(largest < row / 4, "an allocation of {largest} bytes; a row of logits has {row}");
    assert!(bytes < row, "{count} allocations of {bytes} bytes a round");
}
