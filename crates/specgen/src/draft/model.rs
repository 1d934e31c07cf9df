//! `ModelDrafter`: a smaller model drafts by decoding ahead, in the target's tokens or in its own.

use std::sync::Arc;

use specgen_kernels::softmax::{Exponent, sum_exp};

use super::{
    Committed, Draft, DraftRequest, DraftState, DraftVocab, Drafter, TokenMemory,
    head::Places,
    memory::{MAX_CONTEXT, Mixed},
    translation::Translation,
};
use crate::{
    cache::KvCache,
    distribution::Distribution,
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
    memory: Option<Arc<TokenMemory>>,
}

impl ModelDrafter {
    /// A model of the target's vocabulary. `vocab_size`: the ids that both share; logits beyond are padding and never
    /// drafted.
    pub fn new(model: Arc<dyn Model>, vocab_size: usize) -> Self {
        Self::with_vocab(model, DraftVocab::Shared(vocab_size))
    }

    /// A model whose tokens stand for the target's as `vocab` says.
    pub fn with_vocab(model: Arc<dyn Model>, vocab: DraftVocab) -> Self {
        Self { places: Places::new(&vocab, model.info()), model, vocab, memory: None }
    }

    /// The same that mixes what `memory` says into its drafts, and teaches it.
    #[must_use]
    pub fn with_memory(self, memory: Arc<TokenMemory>) -> Self {
        Self { memory: Some(memory), ..self }
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
    /// Tokens of the text that the memory has learned from.
    num_learned: usize,
    /// What the tokens of the last draft were drawn from, the text before it, and the draft.
    mixed: Vec<Option<Mixed>>,
    before: Vec<u32>,
    drafted: Vec<u32>,
}

impl DraftState for State {}

impl State {
    fn new(cache: KvCache, translation: Option<Translation>) -> Self {
        Self {
            cache,
            translation,
            row: Vec::new(),
            num_learned: 0,
            mixed: Vec::new(),
            before: Vec::new(),
            drafted: Vec::new(),
        }
    }

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
}

/// Second thoughts at one place.
const MAX_ALTERNATIVES: usize = 3;

/// One sequence's draft as it grows: a chain, with leaves beside it where they pay.
struct Chain {
    sampler: Sampler,
    draft: Draft,
    /// The end of the chain.
    tip: Option<usize>,
    /// The chain's tokens as the draft itself is fed them.
    own: Vec<u32>,
    /// Whether nothing comes behind.
    ended: bool,
    /// What is told to the memory, by token of the chain.
    mixed: Vec<Option<Mixed>>,
}

impl Chain {
    /// Draws the next token from a row of `drafter`'s `logits`.
    fn extend(&mut self, request: &mut DraftRequest<'_>, logits: &[f32], drafter: &ModelDrafter) {
        let mut row = std::mem::take(&mut request.state.downcast::<State>().row);
        let known = self.sampler.vocab_size();
        let logits = drafter.placed(logits, &mut row, known);
        if let Some(memory) = &drafter.memory {
            let end = request.tokens.len().saturating_sub(MAX_CONTEXT);
            let text = [&request.tokens[end..], &self.draft.path(self.tip)].concat();
            self.mixed.push(memory.mix(&text, logits));
        }
        self.draw(request, logits, drafter);
        request.state.downcast::<State>().row = row;
    }

    /// Draws the next token from `logits` by the target's ids, if it is worth it.
    fn draw(&mut self, request: &mut DraftRequest<'_>, logits: &[f32], drafter: &ModelDrafter) {
        if !request.budget.goes_on(&mut self.draft, || sureness(logits)) {
            self.ended = true;
            return;
        }
        match self.sampler.distribution(logits, request.history) {
            Ok(q) => {
                let parent = self.tip;
                let left = (request.branches && request.k > self.draft.len() + 1).then(|| q.clone());
                let (token, ln_q) = self.draft.draw_behind(parent, q, &mut request.noise);
                self.tip = Some(self.draft.len() - 1);
                if let Some(q) = left {
                    self.branch(request, parent, (token, q), logits);
                }
                request.history.push_drawn(token, ln_q);
                let own = match &drafter.vocab {
                    DraftVocab::Shared(_) => Some(token),
                    DraftVocab::Other(translator) => translator.twins().of_target(token),
                };
                self.own.extend(own);
                // A token that the draft cannot be fed is one that a processor of the user's has put there.
                self.ended = request.end_ids.contains(&token) || own.is_none();
            }
            // Every id the draft knows is banned, or its model is broken: what it cannot say is the target's to say.
            Err(error) => {
                self.ended = true;
                self.draft.broken = matches!(error, Error::NanLogits { .. });
            }
        }
        self.draft.signals.truncate(self.draft.len());
    }

    /// Adds what else might follow `parent`, beside a token that was drawn from `q`, as long as it is worth its rows. How
    /// many there are depends on the model's own probabilities, and on no token that a ratio is yet to be tested with.
    fn branch(
        &mut self,
        request: &mut DraftRequest<'_>,
        parent: Option<usize>,
        (token, mut q): (u32, Distribution),
        logits: &[f32],
    ) {
        let sure = self.draft.signals().last().and_then(|signal| signal.confidence).unwrap_or(0.0);
        if !request.budget.could_branch(&self.draft, 1.0 - sure) {
            return;
        }
        let likely = most_likely(logits);
        let guesses = match self.sampler.is_greedy() {
            true => self.sampler.best(logits, request.history, 1 + MAX_ALTERNATIVES),
            false => Vec::new(),
        };
        let mut last = token;
        for rank in 1..=MAX_ALTERNATIVES.min(request.k - self.draft.len()) {
            let left = match self.sampler.is_greedy() {
                true => guesses.get(rank).map(|&guess| Distribution::Point(guess)),
                false => q.without(last),
            };
            let (Some(left), Some(&confidence)) = (left, likely.get(rank)) else { break };
            if !request.budget.branches(&mut self.draft, confidence) {
                break;
            }
            (last, _) = self.draft.draw_behind(parent, left.clone(), &mut request.noise);
            q = left;
        }
    }
}

/// The probabilities of the likeliest tokens before any sampler, the highest first.
fn most_likely(logits: &[f32]) -> Vec<f32> {
    let mut best = [f32::NEG_INFINITY; 1 + MAX_ALTERNATIVES];
    let mut least = f32::NEG_INFINITY;
    for &logit in logits {
        if logit > least {
            let at = best.iter().position(|&other| logit > other).unwrap_or(MAX_ALTERNATIVES);
            best[at..].rotate_right(1);
            best[at] = logit;
            least = best[MAX_ALTERNATIVES];
        }
    }
    let sum = sum_exp(logits, Exponent { max: best[0].into(), factor: 1.0, shift: 0.0 });
    best.iter().map(|&logit| (f64::from(logit - best[0]).exp() / sum) as f32).collect()
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
        Box::new(State::new(self.model.new_cache(), translation))
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        let State { cache, translation, num_learned, .. } = state.downcast::<State>();
        let forked = State::new(cache.fork()?, translation.clone());
        Ok(Box::new(State { num_learned: *num_learned, ..forked }))
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
            chains.push(Chain {
                sampler,
                draft: Draft::default(),
                tip: None,
                own: Vec::new(),
                ended: false,
                mixed: Vec::new(),
            });
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
        let mut drafts = Vec::with_capacity(chains.len());
        for (request, chain) in requests.iter_mut().zip(chains) {
            let state = request.state.downcast::<State>();
            if self.memory.is_some() {
                state.before = request.tokens.to_vec();
                (state.mixed, state.drafted) = (chain.mixed, chain.draft.path(chain.tip));
            }
            drafts.push(Ok(chain.draft));
        }
        Ok(drafts)
    }

    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        let Some(memory) = &self.memory else { return };
        let state = state.downcast::<State>();
        let tokens = committed.tokens;
        let (mixed, drafted) = (std::mem::take(&mut state.mixed), std::mem::take(&mut state.drafted));
        // As far as the text is what the draft was, the target has said what it makes of the next place.
        let mut stands = true;
        let new = tokens.strip_prefix(&state.before[..]).unwrap_or_default();
        for ((mixed, &said), i) in mixed.iter().zip(new).zip(0..) {
            if let Some(mixed) = mixed.as_ref().filter(|_| stands) {
                memory.judge(mixed, said);
            }
            stands &= drafted.get(i) == Some(&said);
        }
        memory.learn(tokens, state.num_learned.min(tokens.len()));
        state.num_learned = tokens.len();
    }

    fn forget(&self) {
        self.memory.iter().for_each(|memory| memory.forget());
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        Some(&self.model)
    }

    fn vocab(&self) -> Option<&DraftVocab> {
        Some(&self.vocab)
    }
}

impl ModelDrafter {
    /// `logits` by the target's ids, of which there are `width`, in `row`.
    fn placed<'r>(&self, logits: &[f32], row: &'r mut Vec<f32>, width: usize) -> &'r mut [f32] {
        match &self.places {
            Some(places) => {
                if row.len() != width {
                    *row = vec![f32::NEG_INFINITY; width];
                }
                places.put(logits, row);
            }
            None => {
                row.clear();
                row.extend_from_slice(&logits[..width]);
            }
        }
        row
    }

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
            for (i, (request, chain)) in requests.iter_mut().zip(chains.iter_mut()).enumerate() {
                let has_room = chain.draft.len() < request.k;
                chain.ended |= step > 0 && has_room && !request.budget.is_worth_work(&chain.draft);
                if chain.ended || !has_room {
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
