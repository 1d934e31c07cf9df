//! Shared pieces of the test suites.

pub mod drafters;
pub mod faults;
pub mod features;
pub mod real;
pub mod tiny;
pub mod toy;
pub mod vocabularies;

pub use specgen_proof::{enumeration, statistics};

/// Runs sequences of `engine` side by side, each until its text ends.
///
/// # Panics
/// If a round fails.
pub fn finish_together(engine: &specgen::Engine, sequences: &mut [specgen::Sequence]) {
    let mut rounds = engine.rounds();
    for sequence in sequences.iter_mut() {
        while rounds.prefill(sequence).expect("a prompt that can be fed") {}
    }
    loop {
        let mut live: Vec<_> = sequences.iter_mut().filter(|s| s.finish_reason().is_none()).collect();
        if live.is_empty() {
            break;
        }
        for result in rounds.step(&mut live).expect("a round for all") {
            result.expect("a round for each");
        }
    }
}
