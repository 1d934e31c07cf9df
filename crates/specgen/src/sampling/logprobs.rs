//! Log-probabilities: what the model, or the sampler, made of each token.

use super::{Sampler, Scale, filter, filter::Candidate, history::History};
use std::{fmt, str::FromStr};

use crate::{Error, Result};

/// Log-probabilities wanted with every output token. They change no text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Logprobs {
    /// How many of the most likely tokens are listed beside the token said, which may be one of them.
    pub num_top: usize,
    /// Whose they are.
    pub mode: LogprobsMode,
}

/// Whose log-probabilities they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum LogprobsMode {
    /// The model's: the log-softmax of its logits, whatever the sampling parameters.
    #[default]
    Raw,
    /// Those of the distribution the token was drawn from, after penalties, temperature and filters. At temperature 0
    /// the token said has 0.
    Processed,
}

impl LogprobsMode {
    const ALL: [Self; 2] = [Self::Raw, Self::Processed];

    /// `raw` or `processed`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Raw => "raw",
            Self::Processed => "processed",
        }
    }
}

impl fmt::Display for LogprobsMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LogprobsMode {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|mode| mode.name() == text).ok_or_else(|| {
            let message = format!("log-probabilities `{text}` are unknown; wanted raw or processed");
            Error::InvalidArgument(message)
        })
    }
}

/// A token's log-probability and those of the likeliest in its place; natural logarithms, `-inf` for the impossible.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TokenLogprobs {
    /// The token's own.
    pub logprob: f32,
    /// Its place among all tokens, 1 for the most likely; of equals the lower id comes first.
    pub rank: usize,
    /// The most likely tokens, best first, of equals the lower id first. None is impossible, so there may be fewer than
    /// were asked for.
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprobs {
    /// Of token `id` in a row of raw logits `[vocab_size]`, f32, with the `num_top` best of the row.
    ///
    /// # Errors
    ///
    /// [`Error::NanLogits`] at step `step`; [`Error::InvalidArgument`] for an id the row does not have.
    pub fn raw(logits: &[f32], id: u32, num_top: usize, step: usize) -> Result<Self> {
        if let Some(token) = filter::first_nan(logits) {
            return Err(Error::NanLogits { step, token });
        }
        let Some(&logit) = logits.get(id as usize) else {
            let len = logits.len();
            return Err(Error::InvalidArgument(format!("token {id} is none of the {len} with a logit")));
        };
        let row = LogSoftmax::new(logits);
        let logits_by_id = logits.iter().copied().zip(0..).map(|(logit, id)| Candidate { id, logit });
        let mut top =
            if num_top == 0 { Vec::new() } else { filter::top_k(logits, num_top.min(logits.len())) };
        top.sort_unstable_by(filter::by_logit);
        Ok(Self {
            logprob: row.of(Candidate { id, logit }),
            rank: rank(Candidate { id, logit }, logits_by_id),
            top: top
                .into_iter()
                .map(|candidate| (candidate.id, row.of(candidate)))
                .filter(|&(_, logprob)| logprob > f32::NEG_INFINITY)
                .collect(),
        })
    }
}

impl Sampler {
    /// The log-probabilities of `id` as the token after `history`, said from the model's `logits`, where the parameters
    /// ask for them. `None` also where nothing could be said from such a row.
    pub fn logprobs(&self, logits: &[f32], history: &History, id: u32) -> Option<TokenLogprobs> {
        let Logprobs { num_top, mode } = self.params.logprobs?;
        match mode {
            LogprobsMode::Raw => {
                TokenLogprobs::raw(logits.get(..self.vocab_size)?, id, num_top, history.num_output()).ok()
            }
            LogprobsMode::Processed => {
                let p = self.distribution(logits, history).ok()?;
                let mut top: Vec<_> = p.support().map(|(id, logit)| Candidate { id, logit }).collect();
                let logprob = p.log_prob(id);
                let rank = rank(Candidate { id, logit: logprob }, top.iter().copied());
                if num_top == 0 {
                    top.clear();
                } else if top.len() > num_top {
                    filter::shrink(&mut top, num_top);
                }
                top.sort_unstable_by(filter::by_logit);
                let top = top.into_iter().map(|candidate| (candidate.id, candidate.logit)).collect();
                Some(TokenLogprobs { logprob, rank, top })
            }
        }
    }
}

fn rank(token: Candidate, among: impl Iterator<Item = Candidate>) -> usize {
    1 + among.filter(|other| filter::by_logit(other, &token).is_lt()).count()
}

/// The log-softmax of a row without NaN, for any of its tokens.
pub(super) struct LogSoftmax {
    best: Option<Candidate>,
    scale: Scale,
    ln_total: f64,
}

impl LogSoftmax {
    pub(super) fn new(logits: &[f32]) -> Self {
        let best = filter::argmax(logits);
        let scale = Scale::new(best.map_or(0.0, |best| best.logit), 1.0);
        Self { best, scale, ln_total: filter::total_weight(logits, scale).ln() }
    }

    pub(super) fn of(&self, token: Candidate) -> f32 {
        match self.best {
            None => f32::NEG_INFINITY,
            // A certainty, as in a distribution.
            Some(best) if best.logit == f32::INFINITY && best.id == token.id => 0.0,
            Some(best) if best.logit == f32::INFINITY => f32::NEG_INFINITY,
            Some(_) => (self.scale.apply(token.logit) - self.ln_total) as f32,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::SamplingParams;

    const INF: f32 = f32::INFINITY;

    #[test]
    fn raw_ones_are_the_log_softmax() {
        let row = [1.0, 3.0, -INF, 3.0, 0.5];
        let found = TokenLogprobs::raw(&row, 4, 9, 0).unwrap();
        let total: f64 = row.iter().map(|&x| f64::from(x).exp()).sum();
        let wanted = |x: f64| (x - total.ln()) as f32;
        assert_eq!((found.logprob, found.rank), (wanted(0.5), 4));
        assert_eq!(found.top, [(1, wanted(3.0)), (3, wanted(3.0)), (0, wanted(1.0)), (4, wanted(0.5))]);
        let impossible = TokenLogprobs { logprob: -INF, rank: 5, top: vec![] };
        assert_eq!(TokenLogprobs::raw(&row, 2, 0, 0).unwrap(), impossible);
        assert_eq!(TokenLogprobs::raw(&row, 0, 1, 0).unwrap().top, found.top[..1]);
        let ranks = [0, 1, 2, 3, 4].map(|id| TokenLogprobs::raw(&row, id, 0, 0).unwrap().rank);
        assert_eq!(ranks, [3, 1, 5, 2, 4]);
    }

    #[test]
    fn rows_at_the_edge_of_numbers_give_numbers_or_errors() {
        let certain = TokenLogprobs::raw(&[1.0, INF, INF], 1, 3, 0).unwrap();
        assert_eq!(certain, TokenLogprobs { logprob: 0.0, rank: 1, top: vec![(1, 0.0)] });
        assert_eq!(TokenLogprobs::raw(&[1.0, INF, INF], 2, 0, 0).unwrap().logprob, -INF);
        let nothing = TokenLogprobs::raw(&[-INF; 3], 1, 3, 0).unwrap();
        assert_eq!(nothing, TokenLogprobs { logprob: -INF, rank: 2, top: vec![] });
        let error = TokenLogprobs::raw(&[1.0, f32::NAN], 0, 1, 7).unwrap_err();
        assert!(matches!(error, Error::NanLogits { step: 7, token: 1 }), "{error}");
        assert!(TokenLogprobs::raw(&[1.0], 1, 1, 0).is_err());
    }

    #[test]
    fn processed_ones_are_those_of_the_distribution() {
        let logprobs = |mode| Some(Logprobs { num_top: 2, mode });
        let history = History::new(&[0]);
        let of = |params: SamplingParams, logprobs| {
            let params = SamplingParams { logprobs, ..params };
            Sampler::new(&params, 4).unwrap().logprobs(&[0.0, 2.0, 1.0, 1.5, 99.0], &history, 1)
        };
        let greedy = of(SamplingParams::greedy(), logprobs(LogprobsMode::Processed)).unwrap();
        assert_eq!(greedy, TokenLogprobs { logprob: 0.0, rank: 1, top: vec![(1, 0.0)] });
        let hot = SamplingParams { temperature: 2.0, top_k: 3, ..SamplingParams::greedy() };
        let processed = of(hot.clone(), logprobs(LogprobsMode::Processed)).unwrap();
        let total = (1f64.exp() + 0.75f64.exp() + 0.5f64.exp()).ln();
        assert_eq!((processed.logprob, processed.rank), ((1.0 - total) as f32, 1));
        assert_eq!(processed.top, [(1, (1.0 - total) as f32), (3, (0.75 - total) as f32)]);
        let raw = of(hot.clone(), logprobs(LogprobsMode::Raw)).unwrap();
        assert_eq!(raw, TokenLogprobs::raw(&[0.0, 2.0, 1.0, 1.5], 1, 2, 0).unwrap());
        assert_eq!(of(hot, None), None);
    }
}
