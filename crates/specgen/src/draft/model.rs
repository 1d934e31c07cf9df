//! `ModelDrafter`: a smaller model of the same vocabulary drafts by decoding ahead.

use std::sync::Arc;

use super::{Draft, DraftRequest, DraftState, Drafter};
use crate::{
    cache::KvCache,
    error::{Error, Result},
    model::{Batch, Model, Output, PROMPT_CHUNK, Rows, Slice, feed_prompt},
    sampling::Sampler,
};

/// Drafts with a model.
pub struct ModelDrafter {
    model: Arc<dyn Model>,
    vocab_size: usize,
}

impl ModelDrafter {
    /// `vocab_size`: the ids target and draft share; logits beyond are padding and never drafted.
    pub fn new(model: Arc<dyn Model>, vocab_size: usize) -> Self {
        let vocab_size = vocab_size.min(model.info().vocab_size);
        Self { model, vocab_size }
    }

    /// The most tokens that can be drafted after `text`. The draft's context may be shorter than the target's: where it
    /// is full, drafting stops, decoding not. A text with an id the draft does not know cannot be fed to it.
    fn room(&self, text: &[u32]) -> usize {
        let info = self.model.info();
        let known = text.iter().all(|&id| (id as usize) < info.vocab_size);
        if known { (info.context_len + 1).saturating_sub(text.len()) } else { 0 }
    }
}

/// The draft's own keys and values.
struct State {
    cache: KvCache,
}

impl DraftState for State {}

/// One sequence's draft as it grows. Its request's `k` falls to the draft's length where it has to end.
struct Chain {
    sampler: Sampler,
    draft: Draft,
    error: Option<Error>,
}

impl Chain {
    /// Draws the next token from `logits`.
    fn extend(&mut self, request: &mut DraftRequest<'_>, logits: &[f32]) {
        match self.sampler.distribution(logits, request.history) {
            Ok(q) => {
                let (token, ln_q) = self.draft.draw(q, &mut request.noise);
                request.history.push_drawn(token, ln_q);
                if request.end_ids.contains(&token) {
                    request.k = self.draft.len();
                }
            }
            // Every id the draft knows is banned: what it cannot say is the target's to say.
            Err(Error::InvalidArgument(_)) => request.k = self.draft.len(),
            Err(error) => {
                request.k = self.draft.len();
                self.error = Some(error);
            }
        }
    }
}

impl Drafter for ModelDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(State { cache: self.model.new_cache() })
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        Ok(Box::new(State { cache: state.downcast::<State>().cache.fork()? }))
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        if self.room(tokens) == 0 {
            return Ok(false);
        }
        let cache = &mut state.downcast::<State>().cache;
        feed_prompt(&*self.model, cache, tokens, chunk, &mut Output::new())
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let mut chains = Vec::with_capacity(requests.len());
        let mut committed = Vec::with_capacity(requests.len());
        for request in requests.iter_mut() {
            request.k = request.k.min(self.room(request.tokens));
            if request.k > 0 {
                request.state.downcast::<State>().cache.retain_prefix(request.tokens);
            }
            // The target's parameters over the draft's ids.
            let sampler = request.sampler.over(self.vocab_size);
            chains.push(Chain { sampler, draft: Draft::default(), error: None });
            committed.push(request.history.num_output());
        }
        let mut out = Output::new();
        let result = self
            .catch_up(requests, &mut out)
            .and_then(|()| self.decode_ahead(requests, &mut chains, &mut out));
        // The guesses leave the histories however decoding ended.
        for (request, committed) in requests.iter_mut().zip(committed) {
            request.history.truncate_output(committed);
        }
        result?;
        Ok(chains.into_iter().map(|chain| chain.error.map_or(Ok(chain.draft), Err)).collect())
    }
}

impl ModelDrafter {
    /// Feeds what the caches lack but for a last chunk, which the first step of drafting feeds. Mostly that is all of
    /// it: after a rejection a cache lacks one token, after a fully accepted draft two (the last guess was never fed).
    fn catch_up(&self, requests: &mut [DraftRequest<'_>], out: &mut Output) -> Result<()> {
        loop {
            let mut slices = Vec::new();
            for request in requests.iter_mut().filter(|request| request.k > 0) {
                let text = request.tokens;
                let cache = &mut request.state.downcast::<State>().cache;
                let unseen = &text[cache.len()..];
                if unseen.len() > PROMPT_CHUNK {
                    let tokens = &unseen[..PROMPT_CHUNK];
                    slices.push(Slice { cache, tokens, rows: Rows::None, tree: None });
                }
            }
            if slices.is_empty() {
                return Ok(());
            }
            self.model.forward(&mut Batch { slices, taps: &[] }, out)?;
        }
    }

    /// One token per pass for every sequence that still wants one.
    fn decode_ahead(
        &self,
        requests: &mut [DraftRequest<'_>],
        chains: &mut [Chain],
        out: &mut Output,
    ) -> Result<()> {
        for step in 0.. {
            let mut feeding = Vec::new();
            let mut slices = Vec::new();
            for (i, (request, chain)) in requests.iter_mut().zip(chains.iter()).enumerate() {
                if step >= request.k {
                    continue;
                }
                let text = request.tokens;
                let cache = &mut request.state.downcast::<State>().cache;
                let tokens = match step {
                    0 => &text[cache.len()..],
                    _ => &chain.draft.tokens[step - 1..],
                };
                slices.push(Slice { cache, tokens, rows: Rows::Last(1), tree: None });
                feeding.push(i);
            }
            if feeding.is_empty() {
                break;
            }
            self.model.forward(&mut Batch { slices, taps: &[] }, out)?;
            for (row, &i) in feeding.iter().enumerate() {
                chains[i].extend(&mut requests[i], out.logits(row, 0));
            }
        }
        Ok(())
    }
}
