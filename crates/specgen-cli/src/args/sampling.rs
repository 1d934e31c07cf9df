//! The sampling options: clap type, turned into the library's parameters.

use std::sync::LazyLock;

use clap::Args;
use specgen::{SamplingParams, Verification};

use super::{UsageError, whole};
use crate::flags;

static DEFAULTS: LazyLock<SamplingParams> = LazyLock::new(SamplingParams::default);

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "top_k", "top_p", "min_p"])]
    greedy: bool,
    /// Divides the logits; 0 is greedy, higher is more varied
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.temperature, allow_hyphen_values = true)]
    temperature: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.top_k)]
    #[arg(allow_hyphen_values = true, value_parser = whole::<usize>)]
    top_k: usize,
    /// Keep the most likely tokens that together reach this probability; 1 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.top_p, allow_hyphen_values = true)]
    top_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.min_p, allow_hyphen_values = true)]
    min_p: f32,
    /// Divides the logits of tokens already in prompt or text; 1 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.repetition_penalty, allow_hyphen_values = true)]
    repeat_penalty: f32,
    /// Subtracted from the logits of tokens already in the text; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.presence_penalty, allow_hyphen_values = true)]
    presence_penalty: f32,
    /// Subtracted from a token's logit for each time the text holds it; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.frequency_penalty, allow_hyphen_values = true)]
    frequency_penalty: f32,
    /// Added to the logit of token ID, such as 42=-1.5; -inf bans it; may be given more than once
    #[arg(long, value_name = "ID=F", value_parser = logit_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Makes the text repeatable, with any draft or none unless --verify says otherwise [default: drawn, and told]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// How drafts are verified, exactly with each: `rejection` token by token, `block` as a whole, which accepts as much
    /// or more, `coupled` so that a seed gives one text with any draft or none [default: coupled where --seed is given
    /// and the temperature is above 0, else rejection]
    #[arg(long, value_name = "RULE")]
    verify: Option<Verification>,
}

impl SamplingArgs {
    /// The library's parameters, checked as far as that is possible without a model.
    pub(crate) fn params(&self) -> Result<SamplingParams, UsageError> {
        let filters = match self.greedy {
            true => SamplingParams::greedy(),
            false => SamplingParams {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                ..SamplingParams::greedy()
            },
        };
        let params = SamplingParams {
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            logit_bias: self.logit_bias.clone(),
            seed: self.seed,
            verify: self.verify,
            ..filters
        };
        params.validate(usize::MAX).map_err(|error| UsageError(flags::worded(&error)))?;
        Ok(params)
    }
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "a token id and a number are wanted, such as 42=-1.5".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;

    use super::{
        super::{Cli, Command, GenerateArgs},
        *,
    };

    fn generate(words: &[&str]) -> GenerateArgs {
        match Cli::try_parse_from([&["specgen", "generate"], words].concat()).unwrap().command {
            Command::Generate(args) => args,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn without_options_the_parameters_are_the_librarys() {
        assert_eq!(generate(&["x"]).sampling.params().unwrap(), SamplingParams::default());
        assert_eq!(generate(&["x", "--greedy"]).sampling.params().unwrap(), SamplingParams::greedy());
    }

    #[test]
    fn every_sampling_option_reaches_its_parameter() {
        let words = "x --temperature 0.5 --top-k 3 --top-p 0.25 --min-p 0.125 --repeat-penalty 1.5 \
            --presence-penalty -2 --frequency-penalty 0.75 --logit-bias 7=-inf --logit-bias 8=2 --seed 9 --verify block";
        let params = generate(&words.split_whitespace().collect::<Vec<_>>()).sampling.params().unwrap();
        let wanted = SamplingParams {
            temperature: 0.5,
            top_k: 3,
            top_p: 0.25,
            min_p: 0.125,
            repetition_penalty: 1.5,
            presence_penalty: -2.0,
            frequency_penalty: 0.75,
            logit_bias: vec![(7, f32::NEG_INFINITY), (8, 2.0)],
            seed: Some(9),
            verify: Some(Verification::Block),
        };
        assert_eq!(params, wanted);
    }
}
