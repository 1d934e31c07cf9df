//! `ModelDrafter`: a smaller model drafts by decoding ahead, in the target's tokens or in its own.

use std::sync::Arc;

use specgen_kernels::softmax::{Exponent, sum_exp};

use super::{Draft, DraftRequest, DraftState, DraftVocab, Drafter, head::Places, translation::Translation};
use crate::{
    cache::KvCache,
    error::{Error, Result},
    model::{Batch, Model, Output, PROMPT_CHUNK, Rows, Slice, feed_prompt},
    sampling::Sampler,
};

/// Drafts with a model.
///
/// One of another vocabulary reads the text in its own tokens and drafts those that the target has too: its distribution
/// is restricted to them and normalised again, and that is the `q` its drafts are drawn from, over the target's ids
/// (token-level intersection, arXiv:2502.05202). So the target's sampling parameters, its noise and every rule act on it
/// as on any other.
pub struct ModelDrafter {
    model: Arc<dyn Model>,
    vocab: DraftVocab,
    /// `None` where its rows are by the target's ids as they are.
    places: Option<Places>,
}

impl ModelDrafter {
    /// A model of the target's vocabulary. `vocab_size`: the ids that both share; logits beyond are padding and never
    /// drafted.
    pub fn new(model: Arc<dyn Model>, vocab_size: usize) -> Self {
        Self::with_vocab(model, DraftVocab::Shared(vocab_size))
    }

    /// A model whose tokens stand for the target's as `vocab` says.
    pub fn with_vocab(model: Arc<dyn Model>, vocab: DraftVocab) -> Self {
        Self { places: Places::new(&vocab, model.info()), model, vocab }
    }

    /// The most tokens that can be drafted after `text`. The draft's context may be shorter than the target's: where it
    /// is full, drafting stops, decoding not. A text with an id the draft does not know cannot be fed to it.
    fn room(&self, text: &[u32]) -> usize {
        let info = self.model.info();
        let known = !text.is_empty() && text.iter().all(|&id| (id as usize) < info.vocab_size);
        if known { (info.context_len + 1).saturating_sub(text.len()) } else { 0 }
    }

    /// The target's parameters over the ids that the draft's logits are given for.
    fn sampler(&self, target: &Sampler) -> Sampler {
        match &self.vocab {
            DraftVocab::Shared(shared) => target.over((*shared).min(self.model.info().vocab_size)),
            DraftVocab::Other(_) => target.clone(),
        }
    }
}

/// The draft's own keys and values, and the text they are of where it is not in the target's tokens.
struct State {
    cache: KvCache,
    translation: Option<Translation>,
    /// The last logits by the target's ids, where they have to be put there: where the draft has none it is `-inf` and
    /// stays so, and only the others are written at each step.
    row: Vec<f32>,
}

impl DraftState for State {}

impl State {
    /// Hears of the text as it is now.
    fn follow(&mut self, tokens: &[u32]) {
        if let Some(translation) = &mut self.translation {
            translation.follow(tokens);
        }
    }

    /// The cache, and the text last followed, `tokens`, as the draft reads it.
    fn parts<'s>(&'s mut self, tokens: &'s [u32]) -> (&'s mut KvCache, &'s [u32]) {
        (&mut self.cache, self.translation.as_ref().map_or(tokens, Translation::ids))
    }

    /// `logits` by the target's ids, of which there are `width`.
    fn placed<'s>(&'s mut self, logits: &'s [f32], places: Option<&Places>, width: usize) -> &'s [f32] {
        let Some(places) = places else { return logits };
        if self.row.len() != width {
            self.row = vec![f32::NEG_INFINITY; width];
        }
        places.put(logits, &mut self.row);
        &self.row
    }
}

/// One sequence's draft as it grows. Its request's `k` falls to the draft's length where it has to end.
struct Chain {
    sampler: Sampler,
    draft: Draft,
    /// The drafted tokens as the draft itself is fed them.
    own: Vec<u32>,
}

impl Chain {
    /// Draws the next token from a row of `drafter`'s `logits`.
    fn extend(&mut self, request: &mut DraftRequest<'_>, logits: &[f32], drafter: &ModelDrafter) {
        let known = self.sampler.vocab_size();
        let state = request.state.downcast::<State>();
        let logits = state.placed(logits, drafter.places.as_ref(), known);
        if !request.budget.goes_on(&mut self.draft, || sureness(&logits[..known])) {
            request.k = self.draft.len();
            return;
        }
        match self.sampler.distribution(logits, request.history) {
            Ok(q) => {
                let (token, ln_q) = self.draft.draw(q, &mut request.noise);
                request.history.push_drawn(token, ln_q);
                let own = match &drafter.vocab {
                    DraftVocab::Shared(_) => Some(token),
                    DraftVocab::Other(translator) => translator.twins().of_target(token),
                };
                self.own.extend(own);
                // A token that the draft cannot be fed is one that a processor of the user's has put there.
                if request.end_ids.contains(&token) || own.is_none() {
                    request.k = self.draft.len();
                }
            }
            // Every id the draft knows is banned, or its model is broken: what it cannot say is the target's to say.
            Err(error) => {
                request.k = self.draft.len();
                self.draft.broken = matches!(error, Error::NanLogits { .. });
            }
        }
        self.draft.confidence.truncate(self.draft.len());
    }
}

/// The probability of the best guess, before any sampler: it says how sure the model is at temperature 0 too, and
/// depends on no token drawn.
fn sureness(logits: &[f32]) -> f32 {
    let best = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    (1.0 / sum_exp(logits, Exponent { max: best.into(), factor: 1.0, shift: 0.0 })) as f32
}

impl Drafter for ModelDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        let translation = match &self.vocab {
            DraftVocab::Shared(_) => None,
            DraftVocab::Other(translator) => Some(Translation::new(translator.clone())),
        };
        Box::new(State { cache: self.model.new_cache(), translation, row: Vec::new() })
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        let State { cache, translation, .. } = state.downcast::<State>();
        Ok(Box::new(State { cache: cache.fork()?, translation: translation.clone(), row: Vec::new() }))
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        let state = state.downcast::<State>();
        state.follow(tokens);
        let (cache, text) = state.parts(tokens);
        if self.room(text) == 0 {
            return Ok(false);
        }
        feed_prompt(&*self.model, cache, text, chunk, &mut Output::new())
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let mut chains = Vec::with_capacity(requests.len());
        let mut committed = Vec::with_capacity(requests.len());
        for request in requests.iter_mut() {
            if request.k > 0 {
                let state = request.state.downcast::<State>();
                state.follow(request.tokens);
                let (cache, text) = state.parts(request.tokens);
                cache.retain_prefix(text);
                request.k = request.k.min(self.room(text));
            }
            let sampler = self.sampler(request.sampler);
            chains.push(Chain { sampler, draft: Draft::default(), own: Vec::new() });
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
        Ok(chains.into_iter().map(|chain| Ok(chain.draft)).collect())
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        Some(&self.model)
    }

    fn vocab(&self) -> Option<&DraftVocab> {
        Some(&self.vocab)
    }
}

impl ModelDrafter {
    /// Feeds what the caches lack but for a last chunk, which the first step of drafting feeds. Mostly that is all of
    /// it: after a rejection a cache lacks one token, after a fully accepted draft two (the last guess was never fed).
    fn catch_up(&self, requests: &mut [DraftRequest<'_>], out: &mut Output) -> Result<()> {
        loop {
            let mut slices = Vec::new();
            for request in requests.iter_mut().filter(|request| request.k > 0) {
                let (cache, text) = request.state.downcast::<State>().parts(request.tokens);
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
                if step > 0 && step < request.k && !request.budget.is_worth_work(&chain.draft) {
                    request.k = step;
                }
                if step >= request.k {
                    continue;
                }
                let (cache, text) = request.state.downcast::<State>().parts(request.tokens);
                let tokens = match step {
                    0 => &text[cache.len()..],
                    _ => &chain.own[step - 1..],
                };
                slices.push(Slice { cache, tokens, rows: Rows::Last(1), tree: None });
                feeding.push(i);
            }
            if feeding.is_empty() {
                break;
            }
            self.model.forward(&mut Batch { slices, taps: &[] }, out)?;
            for (row, &i) in feeding.iter().enumerate() {
                chains[i].extend(&mut requests[i], out.logits(row, 0), self);
            }
        }
        Ok(())
    }
}
