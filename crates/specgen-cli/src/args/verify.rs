//! The options of `specgen verify`.

use std::path::PathBuf;

use clap::Args;
use specgen_proof::Fault;

use super::{ModelArgs, SamplingArgs, within};

#[derive(Debug, Args)]
#[command(after_help = "Checks, each able to fail on its own:
  vocabulary   target and draft mean the same by every token they share
  rules        every outcome of the rules on toy models, by its exact probability
  identity     greedy and coupled texts, and their log-probabilities, are plain decoding's
  acceptance   as many drafted tokens stand as follows from the p and q of each round
  outcomes     the next token, and the next two, have the target's own distribution (G-tests)

Statistical tests are run at a significance at which an exact pair fails any of them once in 10,000 proofs.
--verify, --temperature and the filters say what is checked; without --verify, every rule is. The seed is 1
and drafts have 4 tokens unless options say otherwise.
Exit codes: 0 green, 1 red or failed, 2 wrong usage, 130 interrupted.

Examples:
  specgen verify
  specgen verify -m qwen2.5-coder-1.5b-instruct --draft ngram --html proof.html
  specgen verify --verify block --temperature 0.7 --min-p 0.05 --samples 5000 --json")]
pub(crate) struct VerifyArgs {
    /// Tokens of each text
    #[arg(short = 'n', long, value_name = "N", default_value_t = 128)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, usize::MAX))]
    pub(crate) max_tokens: usize,
    /// Prompts texts are made of
    #[arg(long, value_name = "N", default_value_t = 6)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 1, 10_000))]
    pub(crate) num_prompts: usize,
    /// Places in these texts where next tokens are sampled, for each rule
    #[arg(long, value_name = "N", default_value_t = 3)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 0, 10_000))]
    pub(crate) contexts: usize,
    /// Samples at each of these places; four times as many see half the bias
    #[arg(long, value_name = "N", default_value_t = 1000)]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| within(s, 100, 100_000_000))]
    pub(crate) samples: usize,
    /// A file of prompts instead of the built-in ones, as for `specgen bench`
    #[arg(long, value_name = "FILE")]
    pub(crate) prompts: Option<PathBuf>,
    /// Only the prompts of this category; may be given more than once
    #[arg(long, value_name = "NAME")]
    pub(crate) category: Vec<String>,
    /// Print one JSON object
    #[arg(long)]
    pub(crate) json: bool,
    /// Write the report as a page with charts, too
    #[arg(long, value_name = "FILE")]
    pub(crate) html: Option<PathBuf>,
    /// Plant a fault, to see the proof fail: false-q, rows-differ or short-cache
    #[arg(long, value_name = "FAULT", hide = true)]
    pub(crate) plant_fault: Option<Fault>,
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) sampling: SamplingArgs,
}
