//! What a user may ask of the sampler, and whether it makes sense.

use std::collections::HashMap;

use crate::{Error, Result, verify::Verification};

/// How tokens are drawn from the model's logits.
///
/// The filters apply in the order of the fields. Penalties look at the text before the token: `repetition_penalty` at
/// the prompt and the output, `presence_penalty` and `frequency_penalty` at the output only (as in vLLM).
#[derive(Debug, Clone, PartialEq)]
pub struct SamplingParams {
    /// Logits are divided by this; 0 always takes the most likely token. At least 0.
    pub temperature: f32,
    /// Keep the `top_k` most likely tokens; 0 keeps all.
    pub top_k: usize,
    /// Keep the fewest most likely tokens whose probabilities sum to at least `top_p`; 1 keeps all. In [0, 1].
    pub top_p: f32,
    /// Keep tokens at least `min_p` times as likely as the most likely one; 0 keeps all. In [0, 1].
    pub min_p: f32,
    /// Divides positive and multiplies other logits of every token seen before; 1 is off. Above 0.
    pub repetition_penalty: f32,
    /// Subtracted from the logit of every token the output holds; 0 is off. In [-100, 100].
    pub presence_penalty: f32,
    /// Subtracted from a token's logit once for each time the output holds it; 0 is off. In [-100, 100].
    pub frequency_penalty: f32,
    /// Added to the logits of the given token ids, after the penalties; `-inf` bans a token. Each id once.
    pub logit_bias: Vec<(u32, f32)>,
    /// Makes the output repeatable; without one, a seed is drawn and reported.
    pub seed: Option<u64>,
    /// How drafts are verified; `None` is [`SamplingParams::verification`]'s choice. Every rule keeps the distribution;
    /// with [`Verification::Coupled`] the text of a seed is the same with any draft or none.
    pub verify: Option<Verification>,
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
            top_k: 0,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            presence_penalty: 0.0,
            frequency_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: None,
            verify: None,
        }
    }

    /// How drafts are verified: as `verify` says. Where it says nothing, a seed at a temperature above 0 means
    /// [`Verification::Coupled`], because one seed is to give one text, and all else [`Verification::Rejection`].
    pub fn verification(&self) -> Verification {
        self.verify.unwrap_or(match self.seed {
            Some(_) if self.temperature > 0.0 => Verification::Coupled,
            _ => Verification::Rejection,
        })
    }

    /// Checks every value against its range, and the biased ids against the vocabulary.
    ///
    /// # Errors
    ///
    /// [`Error::Parameter`] with the name, the value and the range.
    pub fn validate(&self, vocab_size: usize) -> Result<()> {
        let finite = f32::MIN..=f32::MAX;
        let ranges = [
            ("temperature", self.temperature, self.temperature >= 0.0, "a number of at least 0"),
            ("top_p", self.top_p, (0.0..=1.0).contains(&self.top_p), "between 0 and 1"),
            ("min_p", self.min_p, (0.0..=1.0).contains(&self.min_p), "between 0 and 1"),
            (
                "repetition_penalty",
                self.repetition_penalty,
                self.repetition_penalty > 0.0,
                "a number above 0 (1 is off)",
            ),
            (
                "presence_penalty",
                self.presence_penalty,
                (-100.0..=100.0).contains(&self.presence_penalty),
                "between -100 and 100",
            ),
            (
                "frequency_penalty",
                self.frequency_penalty,
                (-100.0..=100.0).contains(&self.frequency_penalty),
                "between -100 and 100",
            ),
        ];
        for (name, value, in_range, wanted) in ranges {
            if !in_range || !finite.contains(&value) {
                return Err(Error::parameter(name, format!("is {value}, but must be {wanted}")));
            }
        }
        let mut biased = HashMap::new();
        for &(id, bias) in &self.logit_bias {
            if let Some(before) = biased.insert(id, bias) {
                let problem =
                    format!("names token {id} twice, with {before} and {bias}; give each token once");
                return Err(Error::parameter("logit_bias", problem));
            }
            if id as usize >= vocab_size {
                let last = vocab_size.saturating_sub(1);
                let problem = format!("names token {id}, but the vocabulary ends at {last}");
                return Err(Error::parameter("logit_bias", problem));
            }
            if bias != f32::NEG_INFINITY && !finite.contains(&bias) {
                let wanted = "a finite number, or -inf to ban the token";
                let problem = format!("of token {id} is {bias}, but must be {wanted}");
                return Err(Error::parameter("logit_bias", problem));
            }
        }
        Ok(())
    }
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
        let fields: [(&str, Change, &[f32], &[f32]); 7] = [
            ("temperature", |p, x| p.temperature = x, &[-0.1, f32::MIN], &[0.0, 1e-40, 2.0, 1e30]),
            ("top_p", |p, x| p.top_p = x, &[-0.1, 1.1], &[0.0, 1.0]),
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
}
