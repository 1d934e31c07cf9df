//! The sampling options: clap type, turned into the library's parameters.

use std::sync::LazyLock;

use clap::Args;
use specgen::{
    SamplingParams, Verification,
    sampling::{Mirostat, Xtc},
};

use super::{UsageError, grammar::GrammarArgs, penalties::PenaltyArgs, whole};
use crate::flags;

pub(super) static DEFAULTS: LazyLock<SamplingParams> = LazyLock::new(SamplingParams::default);

#[derive(Debug, Args)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct SamplingArgs {
    /// Always take the most likely token
    #[arg(long, conflicts_with_all = ["temperature", "mirostat_tau"])]
    #[arg(conflicts_with_all = ["top_n_sigma", "top_k", "top_p", "typical_p", "min_p", "xtc_probability"])]
    greedy: bool,
    /// Divides the logits; 0 is greedy, higher is more varied
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.temperature, allow_hyphen_values = true)]
    temperature: f32,
    /// Keep tokens within this many standard deviations of the best logit; 0 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.top_n_sigma, allow_hyphen_values = true)]
    top_n_sigma: f32,
    /// Keep the N most likely tokens; 0 keeps all
    #[arg(long, value_name = "N", default_value_t = DEFAULTS.top_k)]
    #[arg(allow_hyphen_values = true, value_parser = whole::<usize>)]
    top_k: usize,
    /// Keep the most likely tokens that together reach this probability; 1 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.top_p, allow_hyphen_values = true)]
    top_p: f32,
    /// Keep the tokens nearest to the expected surprise that together reach this probability; 1 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.typical_p, allow_hyphen_values = true)]
    typical_p: f32,
    /// Keep tokens at least this fraction as likely as the most likely one; 0 keeps all
    #[arg(long, value_name = "F", default_value_t = DEFAULTS.min_p, allow_hyphen_values = true)]
    min_p: f32,
    /// How often all but the least likely of the top choices are left out (XTC)
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    xtc_probability: Option<f32>,
    /// From which probability on a token is a top choice [default: 0.1]
    #[arg(long, value_name = "F", allow_hyphen_values = true, requires = "xtc_probability")]
    xtc_threshold: Option<f32>,
    /// Aim at this many bits of surprise a token instead of the filters above (mirostat 2.0); 5 is usual
    #[arg(long, value_name = "F", allow_hyphen_values = true)]
    #[arg(conflicts_with_all = ["top_n_sigma", "top_k", "top_p", "typical_p", "min_p", "xtc_probability"])]
    mirostat_tau: Option<f32>,
    /// How fast mirostat corrects its aim [default: 0.1]
    #[arg(long, value_name = "F", allow_hyphen_values = true, requires = "mirostat_tau")]
    mirostat_eta: Option<f32>,
    /// Makes the text repeatable, with any draft or none unless --verify says otherwise [default: drawn, and told]
    #[arg(long, value_name = "N", allow_hyphen_values = true, value_parser = whole::<u64>)]
    seed: Option<u64>,
    /// How drafts are verified, exactly with each: `rejection` token by token, `block` as a whole, which accepts as much
    /// or more, `coupled` so that a seed gives one text with any draft or none [default: coupled where --seed is given
    /// and the temperature is above 0, else rejection]
    #[arg(long, value_name = "RULE")]
    verify: Option<Verification>,
    #[command(flatten)]
    penalties: PenaltyArgs,
    #[command(flatten)]
    grammar: GrammarArgs,
}

impl SamplingArgs {
    /// The library's parameters, checked as far as that is possible without a model.
    pub(crate) fn params(&self) -> Result<SamplingParams, UsageError> {
        let off = SamplingParams { seed: self.seed, ..SamplingParams::greedy() };
        let filters = match self.mirostat_tau {
            _ if self.greedy => off,
            Some(tau) => {
                let eta = self.mirostat_eta.unwrap_or(Mirostat::default().eta);
                SamplingParams { temperature: self.temperature, mirostat: Some(Mirostat { tau, eta }), ..off }
            }
            None => SamplingParams {
                temperature: self.temperature,
                top_n_sigma: self.top_n_sigma,
                top_k: self.top_k,
                top_p: self.top_p,
                typical_p: self.typical_p,
                min_p: self.min_p,
                xtc: self.xtc_probability.map(|probability| Xtc {
                    probability,
                    threshold: self.xtc_threshold.unwrap_or(Xtc::default().threshold),
                }),
                ..off
            },
        };
        for (option, is_given) in [
            ("--mirostat-tau", self.mirostat_tau.is_some()),
            ("--xtc-probability", self.xtc_probability.is_some()),
        ] {
            if is_given && self.temperature == 0.0 {
                return Err(UsageError(format!(
                    "{option} has nothing to choose from at --temperature 0, which always takes the most likely \
                     token; raise the temperature or leave it out"
                )));
            }
        }
        let grammar = self.grammar.grammar()?;
        let params = SamplingParams { verify: self.verify, grammar, ..self.penalties.on(filters) };
        params.validate(usize::MAX).map_err(|error| UsageError(flags::worded(&error)))?;
        Ok(params)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clap::Parser;
    use specgen::{grammar::Grammar, sampling::Dry};

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

    fn params(words: &str) -> SamplingParams {
        generate(&words.split_whitespace().collect::<Vec<_>>()).sampling.params().unwrap()
    }

    #[test]
    fn every_sampling_option_reaches_its_parameter() {
        let found = params(
            "x --temperature 0.5 --top-n-sigma 1.5 --top-k 3 --top-p 0.25 --typical-p 0.75 --min-p 0.125 \
             --xtc-probability 0.5 --xtc-threshold 0.25 --repeat-penalty 1.5 --presence-penalty -2 \
             --frequency-penalty 0.75 --penalty-last-n 64 --dry-multiplier 0.5 --dry-base 2 \
             --dry-allowed-length 4 --dry-penalty-last-n 256 --dry-sequence-breaker a --dry-sequence-breaker - \
             --logit-bias 7=-inf --logit-bias 8=2 --no-repeat-ngram 5 --bad-words no --bad-words never \
             --min-tokens 6 --seed 9 --verify block --regex a|b",
        );
        let wanted = SamplingParams {
            temperature: 0.5,
            top_n_sigma: 1.5,
            top_k: 3,
            top_p: 0.25,
            typical_p: 0.75,
            min_p: 0.125,
            xtc: Some(Xtc { probability: 0.5, threshold: 0.25 }),
            mirostat: None,
            repetition_penalty: 1.5,
            presence_penalty: -2.0,
            frequency_penalty: 0.75,
            penalty_last_n: 64,
            dry: Some(Dry {
                multiplier: 0.5,
                base: 2.0,
                allowed_length: 4,
                penalty_last_n: 256,
                sequence_breakers: vec!["a".into(), "-".into()],
            }),
            logit_bias: vec![(7, f32::NEG_INFINITY), (8, 2.0)],
            processors: Vec::new(),
            no_repeat_ngram: 5,
            bad_words: vec!["no".into(), "never".into()],
            min_tokens: 6,
            grammar: Some(Grammar::regex("a|b")),
            seed: Some(9),
            verify: Some(Verification::Block),
            logprobs: None,
            prompt_logprobs: None,
        };
        assert_eq!(found, wanted);
    }

    /// With the aim of mirostat the usual filters are off; what is not said of it, of XTC and of DRY is the library's.
    #[test]
    fn one_option_is_enough_for_mirostat_xtc_and_dry() {
        let found = params("x --mirostat-tau 3");
        let mirostat = Some(Mirostat { tau: 3.0, ..Mirostat::default() });
        let temperature = DEFAULTS.temperature;
        assert_eq!(found, SamplingParams { temperature, mirostat, ..SamplingParams::greedy() });
        let eta = params("x --mirostat-tau 3 --mirostat-eta 0.5").mirostat.unwrap().eta;
        assert_eq!(eta, 0.5);
        let xtc = Some(Xtc { probability: 0.2, ..Xtc::default() });
        assert_eq!(params("x --xtc-probability 0.2"), SamplingParams { xtc, ..SamplingParams::default() });
        let dry = Some(Dry { multiplier: 0.7, ..Dry::default() });
        assert_eq!(params("x --dry-multiplier 0.7"), SamplingParams { dry, ..SamplingParams::default() });
        let none = params("x --dry-multiplier 0.7 --dry-sequence-breaker none").dry.unwrap();
        assert_eq!(none.sequence_breakers, []);
    }
}
