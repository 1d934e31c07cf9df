//! Sampling parameters, and the one pure function from logits to a distribution.
//!
//! Plain decoding, verification, the bonus token and the draft all go through [`Sampler::distribution`], so a
//! parameter means the same wherever a token comes from. The order is fixed: penalties, bias, temperature, top-k,
//! top-p, min-p, renormalise; ties go to the lower token id.

mod filter;
mod history;
mod params;
#[cfg(test)]
mod tests;

pub use history::{Counts, History};
pub use params::SamplingParams;

use crate::distribution::{Distribution, exp};
use crate::{Error, Result};
use filter::Candidate;
use std::borrow::Cow;

/// Turns a row of logits into the distribution the next token is drawn from.
#[derive(Debug, Clone)]
pub struct Sampler {
    params: SamplingParams,
    vocab_size: usize,
}

impl Sampler {
    /// A sampler over the token ids below `vocab_size`; logits beyond (a padded output layer) are impossible tokens.
    ///
    /// # Errors
    ///
    /// Those of [`SamplingParams::validate`].
    pub fn new(params: &SamplingParams, vocab_size: usize) -> Result<Self> {
        params.validate(vocab_size)?;
        Ok(Self { params: params.clone(), vocab_size })
    }

    /// The parameters in use.
    pub fn params(&self) -> &SamplingParams {
        &self.params
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
    /// [`Error::NanLogits`]; [`Error::InvalidArgument`] for a short row and where bans leave nothing to say.
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
        let logits = self.adjusted(logits, history);
        let best = filter::argmax(&logits).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "every token is banned at output token {}; ban fewer (or the model returned only -inf)",
                history.num_output()
            ))
        })?;
        if self.is_greedy() || best.logit == f32::INFINITY {
            return Ok(Distribution::Point(best.id));
        }
        Ok(self.filtered(&logits, best))
    }

    /// Penalties and bias: the only steps that look at the history.
    fn adjusted<'a>(&self, logits: &'a [f32], history: &History) -> Cow<'a, [f32]> {
        let SamplingParams { repetition_penalty, presence_penalty, frequency_penalty, .. } = self.params;
        let mut logits = Cow::Borrowed(logits);
        if repetition_penalty != 1.0 || presence_penalty != 0.0 || frequency_penalty != 0.0 {
            let row = logits.to_mut();
            for (id, counts) in history.counts() {
                let Some(logit) = row.get_mut(id as usize) else { continue };
                if *logit > 0.0 {
                    *logit /= repetition_penalty;
                } else {
                    *logit *= repetition_penalty;
                }
                if counts.output > 0 {
                    *logit -= frequency_penalty * counts.output as f32;
                    *logit -= presence_penalty;
                }
            }
        }
        for &(id, bias) in &self.params.logit_bias {
            let logit = &mut logits.to_mut()[id as usize];
            // A ban holds against a logit of +inf too.
            *logit = if bias == f32::NEG_INFINITY { bias } else { *logit + bias };
        }
        logits
    }

    /// Temperature and the filters. `best` is the highest logit, finite.
    fn filtered(&self, logits: &[f32], best: Candidate) -> Distribution {
        let SamplingParams { temperature, top_k, top_p, min_p, .. } = self.params;
        let scale = Scale::new(best.logit, temperature);
        let top_k = if top_k == 0 { usize::MAX } else { top_k };
        if top_k >= logits.len() && top_p >= 1.0 && min_p <= 0.0 {
            return dense(logits, scale);
        }
        let mut candidates = if top_k < logits.len() {
            filter::top_k(logits, top_k)
        } else if top_p < 1.0 {
            filter::nucleus_superset(logits, scale, top_p)
        } else {
            filter::above(logits, scale, f64::from(min_p).ln())
        };
        if top_p < 1.0 {
            let total = if top_k < logits.len() {
                candidates.iter().map(|candidate| scale.weight(candidate.logit)).sum()
            } else {
                filter::total_weight(logits, scale)
            };
            filter::top_p(&mut candidates, scale, f64::from(top_p) * total);
        }
        if min_p > 0.0 {
            let floor = f64::from(min_p).ln();
            candidates.retain(|candidate| scale.apply(candidate.logit) >= floor);
        }
        sparse(candidates, scale)
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
}

fn sparse(mut candidates: Vec<Candidate>, scale: Scale) -> Distribution {
    candidates.sort_unstable_by_key(|candidate| candidate.id);
    let ln_total = candidates.iter().map(|candidate| scale.weight(candidate.logit)).sum::<f64>().ln();
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

/// The log-probabilities of a row of raw logits: a plain log-softmax, nothing filtered. Logits are finite or `-inf`.
pub fn log_probabilities(logits: &[f32]) -> Vec<f32> {
    let Some(best) = filter::argmax(logits) else {
        return vec![f32::NEG_INFINITY; logits.len()];
    };
    let scale = Scale::new(best.logit, 1.0);
    let ln_total = filter::total_weight(logits, scale).ln();
    logits.iter().map(|&logit| (scale.apply(logit) - ln_total) as f32).collect()
}
