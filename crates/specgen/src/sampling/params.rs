//! What a user may ask of the sampler, and whether it makes sense.

use std::collections::HashMap;

use super::{Logprobs, Phrase, Processor};
use crate::{Error, Result, grammar::Grammar, verify::Verification};

/// How tokens are drawn from the model's logits. Where each step has its place: [the module](crate::sampling).
///
/// The fields stand in this order: what filters the tokens, what changes their logits, what bans them. All that looks
/// at the text before a token sees, at a draft position, the drafted tokens before it.
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 always takes the most likely token, and no filter matters. At least 0.
    pub temperature: f32,
    /// Keep tokens whose logit is at most `top_n_sigma` standard deviations of all logits below the best (Tang et al.
    /// 2024, arXiv 2411.07641), whatever the temperature; 0 keeps all. At least 0.
    pub top_n_sigma: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities sum to at least `top_p`; 1 keeps all. In [0, 1].
    pub top_p: f32,
    /// Keep the fewest tokens that say about as much as is expected and whose probabilities sum to at least `typical_p`
    /// (locally typical sampling: Meister et al. 2022, arXiv 2202.00666); 1 keeps all. In [0, 1].
    pub typical_p: f32,
    /// Keep tokens at least `min_p` times as likely as the most likely one; 0 keeps all. In [0, 1].
    pub min_p: f32,
    /// Now and then, leave out the most likely tokens; `None` never does.
    pub xtc: Option<Xtc>,
    /// Leave out tokens more surprising than a bound that adapts to the text; `None` does not.
    pub mirostat: Option<Mirostat>,
    /// Divides positive and multiplies other logits of every token in prompt or output; 1 is off. Above 0.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token the output holds (not the prompt, as in vLLM); 0 is off. In [-100, 100].
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time the output holds it; 0 is off. In [-100, 100].
    pub frequency_penalty: f32,
    /// The three penalties above look at this many tokens before the one to come; 0 looks at all.
    pub penalty_last_n: usize,
    /// Penalise tokens that would continue a repeat of a longer stretch; `None` does not.
    pub dry: Option<Dry>,
    /// Added to the logits of the given token ids, after the penalties; `-inf` bans a token. Each id once.
    pub logit_bias: Vec<(u32, f32)>,
    /// A user's own changes to the logits, in order, after the bias.
    pub processors: Vec<Processor>,
    /// Ban tokens that would complete an n-gram of this many tokens which prompt and output already hold; 0 is off.
    pub no_repeat_ngram: usize,
    /// Ban the last token of each of these wherever the tokens before it have just been said, prompt included. Text is
    /// banned as a tokenizer spells it, with and without a space before it; a model may know other spellings.
    pub bad_words: Vec<Phrase>,
    /// Ban tokens that end the text until the output has this many; stop strings still end it. 0 is off.
    pub min_tokens: usize,
    /// Ban all that a grammar does not allow, the end of the text included; `None` allows every text.
    pub grammar: Option<Grammar>,
    /// Makes the output repeatable; without one, a seed is drawn and reported.
    pub seed: Option<u64>,
    /// How drafts are verified; `None` is [`SamplingParams::verification`]'s choice. Every rule keeps the distribution;
    /// with [`Verification::Coupled`] the text of a seed is the same with any draft or none.
    pub verify: Option<Verification>,
    /// Log-probabilities to give with every token ([`Piece::logprobs`](crate::Piece)); `None` computes none.
    pub logprobs: Option<Logprobs>,
    /// Log-probabilities to give of the prompt's tokens ([`Generation::prompt_logprobs`](crate::Generation)), the
    /// model's, with this many of the most likely in each place; `None` computes none. All of the prompt is then fed,
    /// also what an earlier text left in the cache.
    pub prompt_logprobs: Option<usize>,
}

/// Exclude top choices: of the tokens with a probability of at least `threshold`, all but the least likely are left out,
/// at a share `probability` of the output's positions. Which these are depends on the seed and the position only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xtc {
    /// At what share of positions. In [0, 1].
    pub probability: f32,
    /// From which probability on a token is a top choice. In [0, 0.5]: two tokens can't both be above.
    pub threshold: f32,
}

impl Default for Xtc {
    fn default() -> Self {
        Self { probability: 0.5, threshold: 0.1 }
    }
}

/// Mirostat 2.0 (Basu et al. 2021, arXiv 2007.14966; the arithmetic of llama.cpp): tokens with a surprise above
/// `mu = 2 tau - eta * Σ (surprise - tau)` are left out, where the sum is over the output so far and a surprise is
/// `-log2 p` in the distribution the token was drawn from. Applied after the other filters; the paper has none.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mirostat {
    /// The surprise aimed at, in bits per token. At least 0.
    pub tau: f32,
    /// How fast the bound follows. In [0, 1].
    pub eta: f32,
}

impl Default for Mirostat {
    fn default() -> Self {
        Self { tau: 5.0, eta: 0.1 }
    }
}

/// DRY: a token that would continue a repeat, of `allowed_length` tokens or more that prompt or output have said before,
/// loses `multiplier * base ^ (repeat length - allowed_length)` of its logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Dry {
    /// At least 0.
    pub multiplier: f32,
    /// At least 1.
    pub base: f32,
    /// Tokens a repeat may have at no cost. At least 1.
    pub allowed_length: usize,
    /// Look at this many tokens before the one to come; 0 looks at all.
    pub penalty_last_n: usize,
    /// No repeat goes across one of these. Text stands for every token that holds it, and where it is longer than a
    /// token for its tokens in order.
    pub sequence_breakers: Vec<Phrase>,
}

impl Default for Dry {
    fn default() -> Self {
        let sequence_breakers = ["\n", ":", "\"", "*"].map(Phrase::from).to_vec();
        Self { multiplier: 0.8, base: 1.75, allowed_length: 2, penalty_last_n: 0, sequence_breakers }
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 0.7, top_k: 40, top_p: 0.95, min_p: 0.05, ..Self::greedy() }
    }
}

impl SamplingParams {
    /// Always the most likely token: no randomness, no filters, no penalties.
    pub fn greedy() -> Self {
        Self {
            temperature: 0.0,
            top_n_sigma: 0.0,
            top_k: 0,
            top_p: 1.0,
            typical_p: 1.0,
            min_p: 0.0,
            xtc: None,
            mirostat: None,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            penalty_last_n: 0,
            dry: None,
            logit_bias: Vec::new(),
            processors: Vec::new(),
            no_repeat_ngram: 0,
            bad_words: Vec::new(),
            min_tokens: 0,
            grammar: None,
            seed: None,
            verify: None,
            logprobs: None,
            prompt_logprobs: None,
        }
    }

    /// The same without a filter: every token that is not banned may be drawn.
    #[must_use]
    pub fn unfiltered(self) -> Self {
        let Self { top_n_sigma, top_k, top_p, typical_p, min_p, xtc, mirostat, .. } = Self::greedy();
        Self { top_n_sigma, top_k, top_p, typical_p, min_p, xtc, mirostat, ..self }
    }

    /// How drafts are verified: as `verify` says. Where it says nothing, a seed at a temperature above 0 means
    /// [`Verification::Coupled`], because one seed is to give one text, and all else [`Verification::Rejection`].
    pub fn verification(&self) -> Verification {
        self.verify.unwrap_or(match self.seed {
            Some(_) if self.temperature > 0.0 => Verification::Coupled,
            _ => Verification::Rejection,
        })
    }

    /// Checks every value against its range, and the ids of bias and phrases against the vocabulary.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`] with the name, the value and the range.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        let fraction = |name, value: f32| (name, value, (0.0..=1.0).contains(&value), "between 0 and 1");
        let at_least_0 = |name, value: f32| (name, value, value >= 0.0, "a number of at least 0");
        let penalty =
            |name, value: f32| (name, value, (-100.0..=100.0).contains(&value), "between -100 and 100");
        let repetition = self.repetition_penalty;
        let mut ranges = vec![
            at_least_0("temperature", self.temperature),
            at_least_0("top_n_sigma", self.top_n_sigma),
            fraction("top_p", self.top_p),
            fraction("typical_p", self.typical_p),
            fraction("min_p", self.min_p),
            ("repetition_penalty", repetition, repetition > 0.0, "a number above 0 (1 is off)"),
            penalty("presence_penalty", self.presence_penalty),
            penalty("frequency_penalty", self.frequency_penalty),
        ];
        if let Some(Xtc { probability, threshold }) = self.xtc {
            let wanted = "between 0 and 0.5 (two tokens can't both be more likely)";
            ranges.push(fraction("xtc_probability", probability));
            ranges.push(("xtc_threshold", threshold, (0.0..=0.5).contains(&threshold), wanted));
        }
        if let Some(Mirostat { tau, eta }) = self.mirostat {
            ranges.extend([at_least_0("mirostat_tau", tau), fraction("mirostat_eta", eta)]);
        }
        if let Some(Dry { multiplier, base, .. }) = self.dry {
            ranges.push(at_least_0("dry_multiplier", multiplier));
            ranges.push(("dry_base", base, base >= 1.0, "a number of at least 1"));
        }
        let finite = f32::MIN..=f32::MAX;
        for (name, value, in_range, wanted) in ranges {
            if !in_range || !finite.contains(&value) {
                return Err(Error::parameter(name, format!("is {value}, but must be {wanted}")));
            }
        }
        if let Some(dry) = &self.dry {
            if dry.allowed_length == 0 {
                return Err(Error::parameter("dry_allowed_length", "is 0, but must be at least 1"));
            }
            check_phrases("dry_sequence_breaker", &dry.sequence_breakers, vocab_size)?;
        }
        check_phrases("bad_words", &self.bad_words, vocab_size)?;
        let num_top = self.logprobs.map(|logprobs| logprobs.num_top);
        for (name, num_top) in [("logprobs", num_top), ("prompt_logprobs", self.prompt_logprobs)] {
            if let Some(num_top) = num_top.filter(|&num_top| num_top > vocab_size) {
                let problem = format!("is {num_top}, but the vocabulary has {vocab_size} tokens");
                return Err(Error::parameter(name, problem));
            }
        }
        self.grammar.as_ref().map_or(Ok(()), Grammar::check)?;
        self.check_bias(vocab_size)
    }

    fn check_bias(&self, vocab_size: usize) -> Result<()> {
        let finite = f32::MIN..=f32::MAX;
        let mut biased = HashMap::new();
        for &(id, bias) in &self.logit_bias {
            if let Some(before) = biased.insert(id, bias) {
                let problem =
                    format!("names token {id} twice, with {before} and {bias}; give each token once");
                return Err(Error::parameter("logit_bias", problem));
            }
            check_id("logit_bias", id, vocab_size)?;
            if bias != f32::NEG_INFINITY && !finite.contains(&bias) {
                let wanted = "a finite number, or -inf to ban the token";
                let problem = format!("of token {id} is {bias}, but must be {wanted}");
                return Err(Error::parameter("logit_bias", problem));
            }
        }
        Ok(())
    }
}

fn check_id(name: &'static str, id: u32, vocab_size: usize) -> Result<()> {
    if (id as usize) < vocab_size {
        return Ok(());
    }
    let last = vocab_size.saturating_sub(1);
    Err(Error::parameter(name, format!("names token {id}, but the vocabulary ends at {last}")))
}

fn check_phrases(name: &'static str, phrases: &[Phrase], vocab_size: usize) -> Result<()> {
    for phrase in phrases {
        if phrase.is_empty() {
            return Err(Error::parameter(name, "holds an empty text; give at least one character or token"));
        }
        phrase.ids().unwrap_or_default().iter().try_for_each(|&id| check_id(name, id, vocab_size))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    #[test]
    fn the_presets_are_valid() {
        SamplingParams::default().validate(10).unwrap();
        SamplingParams::greedy().validate(0).unwrap();
    }

    #[test]
    fn a_seed_means_one_text_unless_told_otherwise() {
        let greedy = SamplingParams::greedy();
        let sampled = SamplingParams::default();
        let seeded = SamplingParams { seed: Some(1), ..sampled.clone() };
        assert_eq!(greedy.verification(), Verification::Rejection);
        assert_eq!(SamplingParams { seed: Some(1), ..greedy }.verification(), Verification::Rejection);
        assert_eq!(sampled.verification(), Verification::Rejection);
        assert_eq!(seeded.verification(), Verification::Coupled);
        for verify in Verification::ALL {
            for params in [&sampled, &seeded] {
                assert_eq!(SamplingParams { verify: Some(verify), ..params.clone() }.verification(), verify);
            }
        }
    }

    #[test]
    fn every_value_out_of_range_is_named_with_its_range() {
        type Change = fn(&mut SamplingParams, f32);
        let fields: [(&str, Change, &[f32], &[f32]); 15] = [
            ("temperature", |p, x| p.temperature = x, &[-0.1, f32::MIN], &[0.0, 1e-40, 2.0, 1e30]),
            ("top_p", |p, x| p.top_p = x, &[-0.1, 1.1], &[0.0, 1.0]),
            ("top_n_sigma", |p, x| p.top_n_sigma = x, &[-0.1], &[0.0, 1.5, 100.0]),
            ("typical_p", |p, x| p.typical_p = x, &[-0.1, 1.1], &[0.0, 1.0]),
            (
                "xtc_probability",
                |p, x| p.xtc = Some(Xtc { probability: x, ..Xtc::default() }),
                &[-0.1, 1.1],
                &[0.0, 1.0],
            ),
            (
                "xtc_threshold",
                |p, x| p.xtc = Some(Xtc { threshold: x, ..Xtc::default() }),
                &[-0.1, 0.51],
                &[0.0, 0.5],
            ),
            (
                "mirostat_tau",
                |p, x| p.mirostat = Some(Mirostat { tau: x, ..Mirostat::default() }),
                &[-0.1],
                &[0.0, 30.0],
            ),
            (
                "mirostat_eta",
                |p, x| p.mirostat = Some(Mirostat { eta: x, ..Mirostat::default() }),
                &[-0.1, 1.1],
                &[0.0, 1.0],
            ),
            (
                "dry_multiplier",
                |p, x| p.dry = Some(Dry { multiplier: x, ..Dry::default() }),
                &[-0.1],
                &[0.0, 5.0],
            ),
            ("dry_base", |p, x| p.dry = Some(Dry { base: x, ..Dry::default() }), &[0.9], &[1.0, 4.0]),
            ("min_p", |p, x| p.min_p = x, &[-0.1, 1.1], &[0.0, 1.0]),
            ("repetition_penalty", |p, x| p.repetition_penalty = x, &[0.0, -1.0], &[0.5, 1.0, 2.0]),
            ("presence_penalty", |p, x| p.presence_penalty = x, &[-101.0, 101.0], &[-2.0, 2.0]),
            ("frequency_penalty", |p, x| p.frequency_penalty = x, &[-101.0, 101.0], &[-2.0, 2.0]),
            ("logit_bias", |p, x| p.logit_bias = vec![(1, x)], &[], &[f32::NEG_INFINITY, -100.0, 100.0]),
        ];
        for (name, set, bad, good) in fields {
            let with = |value| {
                let mut params = SamplingParams::default();
                set(&mut params, value);
                params.validate(10)
            };
            for &value in bad.iter().chain(&[f32::NAN, f32::INFINITY]) {
                let message = with(value).unwrap_err().to_string();
                assert!(message.contains(name) && message.contains(&value.to_string()), "{message}");
                assert!(message.contains("must be"), "{message}");
            }
            good.iter().for_each(|&value| with(value).unwrap());
        }
    }

    #[test]
    fn a_token_is_biased_once() {
        let with = |bias: &[(u32, f32)]| {
            SamplingParams { logit_bias: bias.to_vec(), ..SamplingParams::default() }.validate(10)
        };
        with(&[(3, 1.0), (4, 1.0)]).unwrap();
        for second in [1.0, 2.5] {
            let message = with(&[(3, 1.0), (4, 0.0), (3, second)]).unwrap_err().to_string();
            let wanted = format!("logit_bias names token 3 twice, with 1 and {second}; give each token once");
            assert_eq!(message, wanted);
        }
    }

    #[test]
    fn a_biased_id_must_be_a_token() {
        let params = SamplingParams { logit_bias: vec![(9, 1.0), (10, 1.0)], ..SamplingParams::default() };
        params.validate(11).unwrap();
        let message = params.validate(10).unwrap_err().to_string();
        assert!(message.contains("token 10") && message.contains("ends at 9"), "{message}");
    }

    #[test]
    fn phrases_say_something_the_vocabulary_has() {
        let with = |words: &[Phrase], breakers: &[Phrase]| {
            let dry = Dry { sequence_breakers: breakers.to_vec(), ..Dry::default() };
            let params =
                SamplingParams { bad_words: words.to_vec(), dry: Some(dry), ..SamplingParams::default() };
            params.validate(10).map_err(|error| error.to_string())
        };
        let known = [Phrase::from("word"), vec![1, 9].into()];
        with(&known, &known).unwrap();
        let unknown = [Phrase::from(vec![1, 10])];
        let message = with(&unknown, &known).unwrap_err();
        assert_eq!(message, "bad_words names token 10, but the vocabulary ends at 9");
        assert!(with(&known, &unknown).unwrap_err().starts_with("dry_sequence_breaker names token 10"));
        for empty in [Phrase::from(""), vec![].into()] {
            let message = with(&[empty], &known).unwrap_err();
            assert_eq!(message, "bad_words holds an empty text; give at least one character or token");
        }
        let dry = Dry { allowed_length: 0, ..Dry::default() };
        let params = SamplingParams { dry: Some(dry), ..SamplingParams::default() };
        let message = params.validate(10).unwrap_err().to_string();
        assert_eq!(message, "dry_allowed_length is 0, but must be at least 1");
    }
}
