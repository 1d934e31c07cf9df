//! The options about log-probabilities.

use clap::Args;
use specgen::{
    SamplingParams,
    sampling::{Logprobs, LogprobsMode},
};

#[derive(Debug, Args)]
pub(crate) struct LogprobsArgs {
    /// With --json: each token's log-probability, and those of the N most likely tokens in its place
    #[arg(long, value_name = "N", requires = "json", value_parser = super::whole::<usize>, allow_negative_numbers = true)]
    logprobs: Option<usize>,
    /// Whose log-probabilities: `raw` the model's, `processed` those after penalties, temperature and filters
    #[arg(long, value_name = "MODE", default_value_t = LogprobsMode::Raw, requires = "logprobs")]
    logprobs_mode: LogprobsMode,
    /// With --json: the log-probability of each token of the prompt, the model's, and those of the N most likely in its
    /// place
    #[arg(long, value_name = "N", requires = "json", value_parser = super::whole::<usize>, allow_negative_numbers = true)]
    prompt_logprobs: Option<usize>,
}

impl LogprobsArgs {
    /// `params` with these on.
    pub(crate) fn on(&self, params: SamplingParams) -> SamplingParams {
        let mode = self.logprobs_mode;
        SamplingParams {
            logprobs: self.logprobs.map(|num_top| Logprobs { num_top, mode }),
            prompt_logprobs: self.prompt_logprobs,
            ..params
        }
    }
}
