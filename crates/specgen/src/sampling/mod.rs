//! Sampling parameters, and the one pure function from logits to a distribution.
//!
//! Plain decoding, verification, the bonus token and the draft all go through [`Sampler::distribution`], so a
//! parameter means the same wherever a token comes from. The order is fixed, and ties go to the lower token id:
//!
//! 1. what changes logits: repetition, frequency and presence penalties, DRY, bias, the user's processors;
//! 2. what bans: repeated n-grams, bad words, ends before `min_tokens`, all that a grammar does not allow; no bias lifts
//!    a ban;
//! 3. temperature, and with it the end where it is 0: the best token, the lowest id among equals;
//! 4. what filters, each among the tokens the one before it left: top-n-sigma, top-k, top-p, typical-p, min-p, XTC,
//!    mirostat;
//! 5. what is left sums to 1 again.
//!
//! # Cost
//!
//! What is off costs nothing. Penalties cost a step for each different token of the text; DRY and repeated n-grams one
//! pass over the text (or DRY's window) and eight bytes for each of its tokens; typical-p, XTC and mirostat without a
//! top-k, top-p or min-p before them a few passes over the vocabulary.

mod bans;
mod dry;
mod filter;
mod history;
mod logprobs;
mod params;
mod penalties;
mod phrase;
mod processor;
mod repeats;
#[cfg(test)]
mod tests;

pub use history::{Counts, History};
pub use logprobs::{Logprobs, LogprobsMode, TokenLogprobs};
pub use params::{Dry, Mirostat, SamplingParams, Xtc};
pub use phrase::Phrase;
pub use processor::{LogitsProcessor, Processor};

use crate::distribution::Distribution;
use crate::rng::{Noise, Stream, random_seed};
use crate::{Error, Result, grammar::Walk};
use dry::Breakers;
use filter::Candidate;
use logprobs::LogSoftmax;
use specgen_kernels::softmax::{Exponent, exp};
use std::borrow::Cow;
use std::sync::Arc;

/// Turns a row of logits into the distribution the next token is drawn from. Cloning shares.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: Arc<SamplingParams>,
    breakers: Arc<Breakers>,
    end_ids: Arc<[u32]>,
    /// The grammar, with what it remembers of the text; draft and target of a sequence share it.
    walk: Option<Arc<Walk>>,
    noise: Noise,
    vocab_size: usize,
}

impl Sampler {
    /// A sampler over the token ids below `vocab_size`; logits beyond (a padded output layer) are impossible tokens.
    /// Where the parameters have no seed, one is drawn.
    ///
    /// # Errors
    ///
    /// Those of [`SamplingParams::validate`]; [`Error::Unsupported`] for a [`Phrase`] of text, and for a grammar that is not
    /// compiled.
    pub fn new(params: &SamplingParams, vocab_size: usize) -> Result<Self> {
        params.validate(vocab_size)?;
        if let Some(Phrase::Text(text)) = params.phrases().find(|phrase| phrase.ids().is_none()) {
            return Err(Error::Unsupported(format!(
                "the phrase {text:?} is text, and there is no tokenizer; give its token ids instead"
            )));
        }
        let walk = params.grammar.as_ref().map(|grammar| {
            Walk::new(grammar).map(Arc::new).ok_or_else(|| {
                let problem = "the grammar is not compiled, and there is no tokenizer to do it with; compile it for the \
                               bytes of the tokens with Grammar::compile";
                Error::Unsupported(problem.into())
            })
        });
        let walk = walk.transpose()?;
        let breakers = params.dry.as_ref().map(|dry| Breakers::new(&dry.sequence_breakers));
        Ok(Self {
            params: Arc::new(params.clone()),
            breakers: Arc::new(breakers.unwrap_or_default()),
            end_ids: Arc::default(),
            walk,
            noise: Noise::new(params.seed.unwrap_or_else(random_seed)),
            vocab_size,
        })
    }

    /// The same with the ids that end a text, which `min_tokens` is about.
    #[must_use]
    pub fn with_end_ids(self, end_ids: &[u32]) -> Self {
        Self { end_ids: end_ids.into(), ..self }
    }

    /// The same, seed included, over the ids below `vocab_size`: for a draft that knows fewer tokens. What is asked of
    /// a token it lacks has nothing to act on.
    #[must_use]
    pub fn over(&self, vocab_size: usize) -> Self {
        Self { vocab_size, ..self.clone() }
    }

    /// The same for another text, with another seed.
    pub(crate) fn reseeded(&self, seed: u64) -> Self {
        let walk = self.params.grammar.as_ref().and_then(Walk::new).map(Arc::new);
        Self { noise: Noise::new(seed), walk, ..self.clone() }
    }

    /// The parameters in use, as given.
    pub fn params(&self) -> &SamplingParams {
        &self.params
    }

    /// The seed, given or drawn.
    pub fn seed(&self) -> u64 {
        self.noise.seed()
    }

    /// The ids it is over: those below this one.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// Whether every distribution is a point: the temperature is 0.
    pub fn is_greedy(&self) -> bool {
        self.params.temperature == 0.0
    }

    /// The distribution of the token after `history`, from the model's `logits` `[vocab_size or more]`, f32.
    ///
    /// Pure: the same arguments give the same answer. For a draft position, `history` must hold the drafted tokens
    /// before it. With temperature 0, or where one token is left, it is a [`Distribution::Point`]; without any filter
    /// it is dense, else sparse. A logit of `+inf` is a certainty: the lowest such id.
    ///
    /// # Errors
    ///
    /// [`Error::NanLogits`]; [`Error::InvalidArgument`] for a short row, where bans leave nothing to say, and for a
    /// processor that breaks its contract.
    pub fn distribution(&self, logits: &[f32], history: &History) -> Result<Distribution> {
        let Some(logits) = logits.get(..self.vocab_size) else {
            return Err(Error::InvalidArgument(format!(
                "the model returned {} logits for a vocabulary of {}",
                logits.len(),
                self.vocab_size
            )));
        };
        // Looked for before anything is banned: a NaN means a broken model, wherever it is.
        if let Some(token) = filter::first_nan(logits) {
            return Err(Error::NanLogits { step: history.num_output(), token });
        }
        let logits = self.adjusted(logits, history)?;
        let best = filter::argmax(&logits).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "every token is banned at output token {}; ban fewer, or allow more by the grammar (or the model \
                 returned only -inf)",
                history.num_output()
            ))
        })?;
        if self.is_greedy() || best.logit == f32::INFINITY {
            return Ok(Distribution::Point(best.id));
        }
        Ok(self.filtered(&logits, best, history))
    }

    /// The `n` best tokens after `history`, the best first: what a draft would try next at
    /// temperature 0. Fewer where fewer are possible, or the row is broken.
    pub fn best(&self, logits: &[f32], history: &History, n: usize) -> Vec<u32> {
        let Some(logits) = logits.get(..self.vocab_size) else { return Vec::new() };
        let Ok(logits) = self.adjusted(logits, history) else { return Vec::new() };
        let mut best = filter::top_k(&logits, n);
        best.sort_unstable_by(filter::by_logit);
        best.into_iter().map(|candidate| candidate.id).collect()
    }

    /// Appends `id` to `history`, with what this sampler has to remember of it: for mirostat how likely it was in the
    /// row it was said from, `logits`; else nothing, and the row is not looked at.
    pub fn push(&self, history: &mut History, id: u32, logits: &[f32]) {
        let p = self.params.mirostat.and_then(|_| self.distribution(logits, history).ok());
        match p {
            Some(p) => history.push_drawn(id, p.log_prob(id)),
            // A row that has no distribution is one nothing is said from.
            None => history.push(id),
        }
    }

    /// At most `k` tokens that a grammar all but dictates after `history`: guesses, in the spelling that is likely. None
    /// without a grammar.
    pub fn forced(&self, history: &History, k: usize) -> Vec<u32> {
        self.walk.as_ref().map_or(Vec::new(), |walk| walk.forced(history.output(), k))
    }

    /// How many of `tokens`, one after the other behind `history`, the grammar allows: all without one.
    pub fn num_allowed(&self, history: &History, tokens: &[u32]) -> usize {
        self.walk.as_ref().map_or(tokens.len(), |walk| walk.num_allowed(history.output(), tokens))
    }

    /// Penalties, bias, processors and bans.
    fn adjusted<'a>(&self, logits: &'a [f32], history: &History) -> Result<Cow<'a, [f32]>> {
        let params = &*self.params;
        let mut logits = Cow::Borrowed(logits);
        if penalties::are_on(params) {
            penalties::apply(params, logits.to_mut(), history);
        }
        if let Some(dry) = &params.dry {
            dry::apply(dry, &self.breakers, logits.to_mut(), history);
        }
        for &(id, bias) in &params.logit_bias {
            // A draft's vocabulary may be the smaller one.
            let Some(logit) = logits.to_mut().get_mut(id as usize) else { continue };
            // A ban holds against a logit of +inf too.
            *logit = if bias == f32::NEG_INFINITY { bias } else { *logit + bias };
        }
        for processor in &params.processors {
            processor::apply(processor, logits.to_mut(), history)?;
        }
        for id in bans::banned(params, &self.end_ids, history) {
            if let Some(logit) = logits.to_mut().get_mut(id as usize) {
                *logit = f32::NEG_INFINITY;
            }
        }
        if let Some(walk) = &self.walk {
            walk.apply(history.output(), logits.to_mut())?;
        }
        Ok(logits)
    }

    /// Temperature and the filters. `best` is the highest logit, finite.
    fn filtered(&self, logits: &[f32], best: Candidate, history: &History) -> Distribution {
        let SamplingParams { temperature, top_n_sigma, top_k, top_p, typical_p, min_p, mirostat, .. } =
            *self.params;
        let scale = Scale::new(best.logit, temperature);
        let top_k = if top_k == 0 { logits.len() } else { top_k.min(logits.len()) };
        let xtc = self.params.xtc.filter(|xtc| self.is_excluding(xtc, history));
        let ranks = top_n_sigma > 0.0 || top_k < logits.len() || top_p < 1.0 || min_p > 0.0;
        if !ranks && typical_p >= 1.0 && xtc.is_none() && mirostat.is_none() {
            return dense(logits, scale);
        }

        // The first filter does not look at a whole vocabulary of candidates where it can be told what to look at.
        let mut total = None;
        let mut kept = if top_n_sigma > 0.0 {
            let sigma = filter::deviation(logits, best.logit);
            let mut kept = filter::above(logits, scale, -f64::from(top_n_sigma) * sigma * scale.factor);
            if kept.len() > top_k {
                filter::shrink(&mut kept, top_k);
            }
            kept
        } else if top_k < logits.len() {
            filter::top_k(logits, top_k)
        } else if top_p < 1.0 {
            total = Some(filter::total_weight(logits, scale));
            filter::nucleus_superset(logits, scale, top_p)
        } else if min_p > 0.0 && typical_p >= 1.0 {
            filter::above(logits, scale, f64::from(min_p).ln())
        } else if let (Some(mirostat), true) = (mirostat, typical_p >= 1.0 && xtc.is_none()) {
            return sparse(filter::unsurprising_of_all(logits, best, scale, mirostat.bound(history)), scale);
        } else {
            filter::all(logits)
        };
        if top_p < 1.0 {
            let total = total.unwrap_or_else(|| filter::weight_of(&kept, scale));
            filter::top_p(&mut kept, scale, f64::from(top_p) * total);
        }
        if typical_p < 1.0 {
            filter::typical(&mut kept, scale, typical_p);
        }
        if min_p > 0.0 {
            filter::min_p(&mut kept, scale, min_p);
        }
        if let Some(xtc) = xtc {
            filter::exclude_top_choices(&mut kept, scale, xtc.threshold);
        }
        if let Some(mirostat) = mirostat {
            filter::unsurprising(&mut kept, scale, mirostat.bound(history));
        }
        sparse(kept, scale)
    }

    /// Whether top choices are excluded after `history`: the same for target and draft, plain and speculative.
    fn is_excluding(&self, xtc: &Xtc, history: &History) -> bool {
        let position = history.num_output() as u64;
        self.noise.uniform(Stream::Xtc, position, 0, 0) < f64::from(xtc.probability)
    }
}

impl SamplingParams {
    /// Every phrase in use.
    pub(crate) fn phrases(&self) -> impl Iterator<Item = &Phrase> {
        self.bad_words.iter().chain(self.dry.iter().flat_map(|dry| &dry.sequence_breakers))
    }
}

impl Mirostat {
    /// The largest surprise a token may bring after `history`, in bits.
    fn bound(self, history: &History) -> f64 {
        let (known, bits) = history.surprise();
        let tau = f64::from(self.tau);
        2.0 * tau - f64::from(self.eta) * (bits - known as f64 * tau)
    }
}

/// A logit `x` as `(x - max) / temperature`: 0 for the best, negative for the others.
#[derive(Debug, Clone, Copy)]
struct Scale {
    max: f64,
    factor: f64,
}

impl Scale {
    /// `max` is finite, `temperature` above 0; its inverse is finite in f64 for every f32.
    fn new(max: f32, temperature: f32) -> Self {
        Self { max: max.into(), factor: 1.0 / f64::from(temperature) }
    }

    #[inline(always)]
    fn apply(self, logit: f32) -> f64 {
        (f64::from(logit) - self.max) * self.factor
    }

    #[inline(always)]
    fn weight(self, logit: f32) -> f64 {
        exp(self.apply(logit))
    }

    /// For many logits at once: `exp(x - shift)` of a scaled logit x.
    fn exponent(self, shift: f64) -> Exponent {
        Exponent { max: self.max, factor: self.factor, shift }
    }
}

fn sparse(mut candidates: Vec<Candidate>, scale: Scale) -> Distribution {
    candidates.sort_unstable_by_key(|candidate| candidate.id);
    let ln_total = filter::ln_weight_of(&candidates, scale);
    let mut tokens: Vec<(u32, f32)> = candidates
        .iter()
        .map(|candidate| (candidate.id, (scale.apply(candidate.logit) - ln_total) as f32))
        .collect();
    // A low temperature pushes tokens out of the range of f32.
    tokens.retain(|&(_, log_prob)| log_prob > f32::NEG_INFINITY);
    match tokens[..] {
        [(only, _)] => Distribution::Point(only),
        _ => Distribution::Sparse(tokens),
    }
}

fn dense(logits: &[f32], scale: Scale) -> Distribution {
    let ln_total = filter::total_weight(logits, scale).ln();
    if ln_total == 0.0 && logits.iter().filter(|&&logit| logit > f32::NEG_INFINITY).count() == 1 {
        return filter::argmax(logits).map_or(Distribution::Point(0), |best| Distribution::Point(best.id));
    }
    Distribution::Dense(logits.iter().map(|&logit| (scale.apply(logit) - ln_total) as f32).collect())
}

/// The log-probabilities of a row of raw logits: a plain log-softmax, nothing filtered. A logit may be infinite; none is
/// NaN.
pub fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let row = LogSoftmax::new(logits);
    logits.iter().zip(0..).map(|(&logit, id)| row.of(Candidate { id, logit })).collect()
}
