//! `ModelDrafter`: a smaller model of the same vocabulary drafts by decoding ahead.

use std::sync::Arc;

use super::{Draft, DraftRequest, DraftState, Drafter};
use crate::{
    cache::KvCache,
    error::Result,
    model::{Batch, Model, Output, Rows, Slice},
    sampling::{Sampler, SamplingParams},
};

/// Rows of a draft prompt fed in one pass.
const PREFILL_CHUNK: usize = 512;

/// Tokens the first step of a draft may feed at once: a fully accepted draft leaves two.
const CATCH_UP: usize = 2;

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

    /// The target's parameters over the draft's ids. A bias on an id the draft lacks has nothing to act on.
    fn sampler(&self, target: &Sampler) -> Result<Sampler> {
        let mut params: SamplingParams = target.params().clone();
        params.logit_bias.retain(|&(id, _)| (id as usize) < self.vocab_size);
        Sampler::new(&params, self.vocab_size)
    }

    /// Feeds what the cache lacks but for the last few tokens, which the first step of drafting feeds: after a rejection
    /// it lacks one token, after a fully accepted draft two (the last guess was never fed), after a prompt many.
    fn prefill(&self, request: &mut DraftRequest<'_>, out: &mut Output) -> Result<()> {
        let tokens = request.tokens;
        let cache = &mut request.state_mut::<State>().cache;
        let cached = cache.retain_prefix(tokens);
        let early = tokens.len().saturating_sub(CATCH_UP).max(cached);
        for chunk in tokens[cached..early].chunks(PREFILL_CHUNK) {
            let slice = Slice { cache: &mut *cache, tokens: chunk, rows: Rows::None, tree: None };
            self.model.forward(&mut Batch { slices: vec![slice], taps: &[] }, out)?;
        }
        Ok(())
    }
}

/// The draft's own keys and values.
struct State {
    cache: KvCache,
}

impl DraftState for State {}

impl Drafter for ModelDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(State { cache: self.model.new_cache() })
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Draft>> {
        let mut drafts = vec![Draft::default(); requests.len()];
        let mut samplers = Vec::with_capacity(requests.len());
        let mut out = Output::new();
        let context_len = self.model.info().context_len;
        for request in requests.iter_mut() {
            // The draft's context may be shorter than the target's: where it is full, drafting stops, decoding not.
            // A text with an id the draft does not know cannot be fed to it.
            let room = (context_len + 1).saturating_sub(request.tokens.len());
            let known = request.tokens.iter().all(|&id| (id as usize) < self.model.info().vocab_size);
            request.k = if known { request.k.min(room) } else { 0 };
            if request.k > 0 {
                self.prefill(request, &mut out)?;
            }
            samplers.push(self.sampler(request.sampler)?);
        }
        let most = requests.iter().map(|request| request.k).max().unwrap_or(0);
        let result = self.decode_ahead(requests, &samplers, &mut drafts, most, &mut out);
        // The guesses leave the histories however decoding ended.
        for (request, draft) in requests.iter_mut().zip(&drafts) {
            let committed = request.history.num_output() - draft.len();
            request.history.truncate_output(committed);
        }
        result.map(|()| drafts)
    }
}

impl ModelDrafter {
    /// One token per pass for every sequence that still wants one.
    fn decode_ahead(
        &self,
        requests: &mut [DraftRequest<'_>],
        samplers: &[Sampler],
        drafts: &mut [Draft],
        most: usize,
        out: &mut Output,
    ) -> Result<()> {
        for step in 0..most {
            let mut feeding = Vec::new();
            let mut slices = Vec::new();
            for (i, (request, draft)) in requests.iter_mut().zip(drafts.iter()).enumerate() {
                let ended = draft.tokens.last().is_some_and(|id| request.end_ids.contains(id));
                if step >= request.k || ended {
                    continue;
                }
                let text = request.tokens;
                let cache = &mut request.state_mut::<State>().cache;
                let tokens = match step {
                    0 => &text[cache.len()..],
                    _ => &draft.tokens[step - 1..],
                };
                slices.push(Slice { cache, tokens, rows: Rows::Last(1), tree: None });
                feeding.push(i);
            }
            if feeding.is_empty() {
                break;
            }
            self.model.forward(&mut Batch { slices, taps: &[] }, out)?;
            for (row, &i) in feeding.iter().enumerate() {
                let request = &mut requests[i];
                let q = samplers[i].distribution(out.logits(row, 0), request.history)?;
                let token = q.draw(&mut request.noise, step);
                request.history.push(token);
                drafts[i].push(token, q);
            }
        }
        Ok(())
    }
}
