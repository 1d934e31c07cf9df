//! `ForcedDrafter`: what a grammar dictates is drafted first, and another drafter goes on behind it.

use std::sync::Arc;

use super::{
    Draft, DraftRequest, DraftState, Drafter,
    behind::{Lead, draft_behind},
};
use crate::{
    error::Result,
    verify::{Signal, Source},
};

/// How sure a forced token is: the text is certain, its spelling in tokens nearly.
const FORCED: Signal = Signal { source: Source::Grammar, confidence: Some(0.98) };

/// Drafts the keys of a JSON schema and whatever else a grammar leaves no choice about, at no cost, then lets another
/// drafter draft what `k` has room for. Without a grammar it is that drafter.
///
/// The spelling in tokens is a guess where more than one is allowed, so these drafts are guesses like any other: the
/// target draws, and they stand if it draws the same.
pub struct ForcedDrafter {
    inner: Arc<dyn Drafter>,
}

impl ForcedDrafter {
    /// `inner` drafts behind what is forced.
    pub fn new(inner: Arc<dyn Drafter>) -> Self {
        Self { inner }
    }
}

impl Drafter for ForcedDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.inner.new_state()
    }

    fn inner(&self) -> Option<&Arc<dyn Drafter>> {
        Some(&self.inner)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let forced: Vec<Vec<u32>> =
            requests.iter().map(|request| request.sampler.forced(request.history, request.k)).collect();
        if forced.iter().all(Vec::is_empty) {
            return self.inner.draft(requests);
        }
        let lead = |(request, forced): (&DraftRequest<'_>, Vec<u32>)| Lead {
            num_more: request.k - forced.len(),
            draft: Draft::guessed(&forced, FORCED),
        };
        let leads: Vec<Lead> = requests.iter().zip(forced).map(lead).collect();
        let drafts = draft_behind(&*self.inner, requests, &leads, |state| state)?;
        let join = |(mut lead, draft): (Lead, Result<Draft>)| {
            lead.draft.extend(draft?);
            Ok(lead.draft)
        };
        Ok(leads.into_iter().zip(drafts).map(join).collect())
    }
}
