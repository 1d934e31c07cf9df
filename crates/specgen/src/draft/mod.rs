//! Drafters: guesses at what comes next. A bad guess costs time, never correctness.

mod behind;
mod composite;
mod corpus;
mod forced;
mod head;
mod memory;
mod model;
mod ngram;
mod texts;
mod translation;
mod twins;
mod vocab;

use std::{any::Any, sync::Arc};

pub use composite::CompositeDrafter;
pub use corpus::Corpus;
pub use forced::ForcedDrafter;
pub use memory::TokenMemory;
pub use model::ModelDrafter;
pub use ngram::NgramDrafter;
pub use translation::Translator;
pub use vocab::{Coverage, DraftVocab};

pub use crate::verify::{Draft, DraftNoise, Signal, Source};
use crate::{
    error::Result,
    model::Model,
    plan::{Choice, Means, Pace},
    sampling::{History, Sampler},
};

/// A source of drafts. Weights and settings are here and shared; what a sequence needs is in its [`DraftState`].
pub trait Drafter: Send + Sync {
    /// The state of a sequence that has no text yet.
    fn new_state(&self) -> Box<dyn DraftState>;

    /// The drafter whose states this one hands out as its own, where it is one that does something about another's drafts.
    /// What it does not do itself that one does.
    fn inner(&self) -> Option<&Arc<dyn Drafter>> {
        None
    }

    /// The state of a sequence that begins as the one of `state` does: it may copy what that one holds. By default it is
    /// new, and takes the text in when it is first asked. A state must not make it draft otherwise than a new one would.
    ///
    /// # Errors
    /// Where the device gives no memory.
    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        self.inner().map_or_else(|| Ok(self.new_state()), |inner| inner.fork_state(state))
    }

    /// Takes in the next `chunk` tokens of a prompt, or of a text as far as it goes, and returns whether more is left.
    /// For drafters to which a long prompt is work: it is done in pieces, before the first round, and counted as prompt.
    ///
    /// # Errors
    /// A failing draft model; the prompt can be tried again.
    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        self.inner().map_or(Ok(false), |inner| inner.prefill(state, tokens, chunk))
    }

    /// Drafts at most `k` tokens for every request, in order; an empty draft is always allowed. What fails for one
    /// sequence only is that draft's own error.
    ///
    /// A token drawn at random carries the distribution it was drawn from ([`Draft::draw`] sees to it); whether to draft a
    /// further position may depend on everything but the token drawn there (a ratio test would be biased otherwise).
    ///
    /// # Errors
    /// What fails for all, such as a device; the round fails with it.
    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>>;

    /// Hears what became of the last draft: the text now, and how much of it is new. States that catch up from the
    /// text when they next draft need not listen.
    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        if let Some(inner) = self.inner() {
            inner.observe(state, committed);
        }
    }

    /// The model that drafts, where one does: a plan wants to know what its passes cost.
    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.inner()?.model()
    }

    /// How that model's tokens stand for the target's.
    fn vocab(&self) -> Option<&DraftVocab> {
        self.inner()?.vocab()
    }

    /// Hears what the output of a text is expected to be, or, where that is empty, that nothing is known. Returns whether
    /// it makes use of that.
    fn expect(&self, state: &mut dyn DraftState, prediction: &[u32]) -> bool {
        self.inner().is_some_and(|inner| inner.expect(state, prediction))
    }

    /// Whether there may be guesses that cost next to nothing, beside the work of a model.
    fn has_guesses(&self) -> bool {
        self.inner().map_or_else(|| self.model().is_none(), |inner| inner.has_guesses())
    }

    /// Takes in a text to guess from, beside those that it drafts for. Returns whether it makes use of it.
    fn remember(&self, text: &[u32]) -> bool {
        self.inner().is_some_and(|inner| inner.remember(text))
    }

    /// Forgets what it has learned from texts.
    fn forget(&self) {
        if let Some(inner) = self.inner() {
            inner.forget();
        }
    }
}

/// What a drafter keeps for one sequence: a cache, an index. It must survive a text that was cut or replaced.
pub trait DraftState: Any + Send {}

impl dyn DraftState {
    /// The state as the type its drafter made.
    pub fn downcast<S: DraftState>(&mut self) -> &mut S {
        let state: &mut dyn Any = self;
        state.downcast_mut().expect("a sequence's draft state is made by the drafter that uses it")
    }
}

/// One sequence's wish for a draft.
pub struct DraftRequest<'a> {
    /// The sequence's state, from the same drafter's `new_state`.
    pub state: &'a mut dyn DraftState,
    /// Prompt and output so far; the last one is pending (committed, not yet fed to the target).
    pub tokens: &'a [u32],
    /// The most tokens wanted.
    pub k: usize,
    /// The target's sampling parameters; a draft that is drawn through the same ones is accepted most.
    pub sampler: &'a Sampler,
    /// The history of `tokens`. A drafter may push its guesses on it and must take them off again.
    pub history: &'a mut History,
    /// What to draw with, if anything is drawn.
    pub noise: DraftNoise,
    /// Ids that end the text; nothing is drafted after one.
    pub end_ids: &'a [u32],
    /// Whether the draft may be a tree.
    pub branches: bool,
    /// Asked by drafters to which a token is work.
    pub budget: Budget<'a>,
}

/// How long a draft is worth going on, below its `k`. Without a pace: always.
#[derive(Default)]
pub struct Budget<'a> {
    pace: Option<&'a mut dyn Pace>,
    num_before: usize,
}

impl<'a> Budget<'a> {
    /// As `pace` decides.
    pub fn new(pace: &'a mut dyn Pace) -> Self {
        Self { pace: Some(pace), num_before: 0 }
    }

    /// For what follows the next `num_tokens`.
    pub fn behind(&mut self, num_tokens: usize) -> Budget<'_> {
        // Written out, since `as_deref_mut` keeps the longer life of what it borrows from.
        let pace: Option<&mut dyn Pace> = match &mut self.pace {
            Some(pace) => Some(&mut **pace),
            None => None,
        };
        Budget { pace, num_before: self.num_before + num_tokens }
    }

    /// What to take of `guesses`, alternatives that cost nothing, and whether a model goes on behind them or instead. Each
    /// is cut to what is worth scoring.
    pub fn choose(&mut self, guesses: &mut [Draft], means: Means) -> Choice {
        match &mut self.pace {
            Some(pace) => pace.choose(self.num_before, guesses, means),
            None => Choice::by_confidence(guesses, means.has_model),
        }
    }

    /// Whether anybody wants to know how sure the drafter is of its tokens ([`Draft::signals`]).
    pub fn reads_confidence(&self) -> bool {
        self.pace.as_ref().is_some_and(|pace| pace.reads_confidence())
    }

    /// Whether a second thought of that confidence at most may be worth its row.
    pub fn could_branch(&mut self, draft: &Draft, confidence: f32) -> bool {
        let len = self.num_before + draft.len();
        self.pace.as_mut().is_some_and(|pace| pace.branch(len, confidence))
    }

    /// Whether to add a second thought to the draft, beside its newest token; if so, the draft keeps `confidence` for it.
    pub fn branches(&mut self, draft: &mut Draft, confidence: f32) -> bool {
        let len = self.num_before + draft.len();
        let branches = self.pace.as_mut().is_some_and(|pace| pace.branch(len, confidence));
        if branches {
            draft.signals.push(Signal { source: Source::Alternative, confidence: Some(confidence) });
        }
        branches
    }

    /// Whether the work for one more token is worth it.
    pub fn is_worth_work(&mut self, draft: &Draft) -> bool {
        let len = self.num_before + draft.len();
        self.pace.as_mut().is_none_or(|pace| !pace.reads_confidence() || pace.go_on(len, None))
    }

    /// Whether to draw one more token, of whose distribution the drafter is so sure (from 0 to 1); if so, the draft keeps
    /// that beside the token. Nothing that depends on the token itself may go in: a ratio test would be biased.
    pub fn goes_on(&mut self, draft: &mut Draft, confidence: impl FnOnce() -> f32) -> bool {
        let len = self.num_before + draft.len();
        let source = Source::Model;
        let Some(pace) = self.pace.as_mut().filter(|pace| pace.reads_confidence()) else {
            draft.signals.push(Signal { source, confidence: None });
            return true;
        };
        let confidence = confidence();
        let goes_on = pace.go_on(len, Some(confidence));
        if goes_on {
            draft.signals.push(Signal { source, confidence: Some(confidence) });
        }
        goes_on
    }
}

/// What a round committed.
#[derive(Clone, Copy, Debug)]
pub struct Committed<'a> {
    /// The whole text now.
    pub tokens: &'a [u32],
    /// How many tokens at its end are new.
    pub num_new: usize,
    /// Drafted tokens this round.
    pub num_drafted: usize,
    /// How many of them stand.
    pub num_accepted: usize,
}

/// Never drafts: plain decoding through the same loop.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoDraft;

/// A state for drafters that need none.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoState;

impl DraftState for NoState {}

impl Drafter for NoDraft {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(NoState)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        Ok(requests.iter().map(|_| Ok(Draft::default())).collect())
    }
}
