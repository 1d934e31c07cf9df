//! `ForcedDrafter`: what a grammar dictates is drafted first, and another drafter goes on behind it.

use std::sync::Arc;

use super::{Committed, Draft, DraftRequest, DraftState, DraftVocab, Drafter};
use crate::{error::Result, model::Model};

/// How sure a forced token is: the text is certain, its spelling in tokens nearly.
const FORCED: f32 = 0.98;

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

    /// The inner drafts of texts that `forced` has been said in.
    fn draft_behind(
        &self,
        requests: &mut [DraftRequest<'_>],
        forced: &[Vec<u32>],
    ) -> Result<Vec<Result<Draft>>> {
        let text = |(request, forced): (&DraftRequest<'_>, &Vec<u32>)| [request.tokens, forced].concat();
        let texts: Vec<Vec<u32>> = requests.iter().zip(forced).map(text).collect();
        let mut behind = Vec::with_capacity(requests.len());
        for ((request, forced), tokens) in requests.iter_mut().zip(forced).zip(&texts) {
            forced.iter().for_each(|&id| request.history.push(id));
            let has_ended = forced.last().is_some_and(|id| request.end_ids.contains(id));
            behind.push(DraftRequest {
                state: &mut *request.state,
                tokens,
                k: if has_ended { 0 } else { request.k - forced.len() },
                sampler: request.sampler,
                history: &mut *request.history,
                noise: request.noise.clone().behind(forced.len()),
                end_ids: request.end_ids,
                budget: request.budget.behind(forced.len()),
            });
        }
        self.inner.draft(&mut behind)
    }
}

impl Drafter for ForcedDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.inner.new_state()
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        self.inner.fork_state(state)
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        self.inner.prefill(state, tokens, chunk)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let forced: Vec<Vec<u32>> =
            requests.iter().map(|request| request.sampler.forced(request.history, request.k)).collect();
        if forced.iter().all(Vec::is_empty) {
            return self.inner.draft(requests);
        }
        let committed: Vec<usize> = requests.iter().map(|request| request.history.num_output()).collect();
        let drafts = self.draft_behind(requests, &forced);
        for (request, committed) in requests.iter_mut().zip(committed) {
            request.history.truncate_output(committed);
        }
        let join = |(forced, draft): (Vec<u32>, Result<Draft>)| {
            let sure = vec![FORCED; forced.len()];
            let mut joined = Draft { confidence: sure, ..Draft::deterministic(forced) };
            let Draft { tokens, q, parents, confidence, broken } = draft?;
            joined.tokens.extend(tokens);
            joined.q.extend(q);
            joined.confidence.extend(confidence);
            Ok(Draft { parents, broken, ..joined })
        };
        Ok(forced.into_iter().zip(drafts?).map(join).collect())
    }

    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        self.inner.observe(state, committed);
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.inner.model()
    }

    fn vocab(&self) -> Option<&DraftVocab> {
        self.inner.vocab()
    }
}
