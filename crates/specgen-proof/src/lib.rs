//! Proof that speculative decoding is exact, on a target and a draft of the user's own.
//!
//! A [`Proof`] runs the checks in the order in which a failure would explain the next, and gives a [`Report`]:
//!
//! | check | what is shown | how |
//! |---|---|---|
//! | [`rules`] | the rules leave the target its law | every outcome on toy models, by its exact probability |
//! | [`identity`] | greedy and coupled texts, and their log-probabilities, are plain decoding's | token by token, bit by bit |
//! | [`acceptance`] | the rules are fed with the right `p`, `q` and randomness | accepted tokens against the number that follows from the logged `p` and `q` |
//! | [`outcomes`] | sampled tokens have the target's own distribution | G-tests of the next one and two tokens |
//!
//! What the test suites share with it lies here too: [`enumeration`], [`statistics`] and the [`toy`] models.
//!
//! To see that the checks can fail, plant a [`Fault`].

pub mod acceptance;
pub mod enumeration;
mod fault;
pub mod identity;
pub mod outcomes;
mod proof;
pub mod rules;
pub mod statistics;
mod through;
pub mod toy;

pub use fault::Fault;
pub use proof::{Options, Proof, ProofPrompt, Report};

/// Who hears how far a proof is.
pub trait Watch {
    /// A stage of `total` steps begins.
    fn stage(&self, what: &str, total: u64);

    /// So many more steps are done.
    fn advance(&self, steps: u64);
}

/// Nobody.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unwatched;

impl Watch for Unwatched {
    fn stage(&self, _what: &str, _total: u64) {}

    fn advance(&self, _steps: u64) {}
}
