//! The options that lower or ban tokens: clap type, turned into the library's parameters.

use clap::{Args, builder::NonEmptyStringValueParser};
use specgen::{
    SamplingParams,
    sampling::{Dry, Phrase},
};

use super::{sampling::DEFAULTS, whole};

/// How a user says that nothing breaks a repeat.
const NO_BREAKER: &str = "none";

#[derive(Debug, Args)]
#[command(next_help_heading = "Penalties and bans")]
pub(crate) struct PenaltyArgs {
    /// Divides the logits of tokens already in prompt or text; 1 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.repetition_penalty, allow_hyphen_values = true)]
    repeat_penalty: f32,
    /// Subtracted from the logits of tokens already in the text; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.presence_penalty, allow_hyphen_values = true)]
    presence_penalty: f32,
    /// Subtracted from a token's logit for each time the text holds it; 0 is off
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.frequency_penalty, allow_hyphen_values = true)]
    frequency_penalty: f32,
    /// How many of the last tokens these three look at; 0: all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.penalty_last_n)]
    #[arg(allow_hyphen_values = true, value_parser = whole::<usize>)]
    penalty_last_n: usize,
    /// DRY: lowers a token that would continue a repeat by this times base ^ (repeat length - allowed length)
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    dry_multiplier: Option<f32>,
    /// How fast DRY grows with the length of a repeat [default: 1.75]
    #[arg(long, value_name = "F", allow_hyphen_values = true, requires = "dry_multiplier")]
    dry_base: Option<f32>,
    /// Tokens a repeat may have before DRY looks at it [default: 2]
    #[arg(long, value_name = "N", allow_hyphen_values = true, requires = "dry_multiplier")]
    #[arg(value_parser = whole::<usize>)]
    dry_allowed_length: Option<usize>,
    /// How many of the last tokens DRY looks at; 0: all [default: 0]
    #[arg(long, value_name = "N", allow_hyphen_values = true, requires = "dry_multiplier")]
    #[arg(value_parser = whole::<usize>)]
    dry_penalty_last_n: Option<usize>,
    /// No repeat goes across this text; may be given more than once, `none` for no breaker at all [default: line end,
    /// colon, double quote, asterisk]
    #[arg(long, value_name = "S", allow_hyphen_values = true, requires = "dry_multiplier")]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    dry_sequence_breaker: Vec<String>,
    /// Added to the logit of token ID, such as 42=-1.5; -inf bans it; may be given more than once
    #[arg(long, value_name = "ID=F", value_parser = logit_bias, allow_hyphen_values = true)]
    logit_bias: Vec<(u32, f32)>,
    /// Ban repeats of N tokens that prompt or text already hold; 0 is off
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.no_repeat_ngram)]
    #[arg(allow_hyphen_values = true, value_parser = whole::<usize>)]
    no_repeat_ngram: usize,
    /// Ban this text, with and without a space before it; may be given more than once
    #[arg(long, value_name = "S", allow_hyphen_values = true)]
    #[arg(value_parser = NonEmptyStringValueParser::new())]
    bad_words: Vec<String>,
    /// Ban tokens that end the text until it has N tokens
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.min_tokens)]
    #[arg(allow_hyphen_values = true, value_parser = whole::<usize>)]
    min_tokens: usize,
}

impl PenaltyArgs {
    /// `params` with these penalties and bans.
    pub(super) fn on(&self, params: SamplingParams) -> SamplingParams {
        SamplingParams {
            repetition_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_last_n: self.penalty_last_n,
            dry: self.dry_multiplier.map(|multiplier| self.dry(multiplier)),
            logit_bias: self.logit_bias.clone(),
            no_repeat_ngram: self.no_repeat_ngram,
            bad_words: phrases(&self.bad_words),
            min_tokens: self.min_tokens,
            ..params
        }
    }

    fn dry(&self, multiplier: f32) -> Dry {
        let usual = Dry::default();
        Dry {
            multiplier,
            base: self.dry_base.unwrap_or(usual.base),
            allowed_length: self.dry_allowed_length.unwrap_or(usual.allowed_length),
            penalty_last_n: self.dry_penalty_last_n.unwrap_or(usual.penalty_last_n),
            sequence_breakers: match &self.dry_sequence_breaker[..] {
                [] => usual.sequence_breakers,
                [none] if none == NO_BREAKER => Vec::new(),
                some => phrases(some),
            },
        }
    }
}

fn phrases(texts: &[String]) -> Vec<Phrase> {
    texts.iter().map(|text| Phrase::from(text.as_str())).collect()
}

fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.split_once('=').and_then(|(id, bias)| Some((id.parse().ok()?, bias.parse().ok()?)));
    parsed.ok_or_else(|| "a token id and a number are wanted, such as 42=-1.5".to_owned())
}
