//! The options about how many tokens are drafted.

use clap::Args;
use specgen::Plan;

use super::{MAX_DRAFT_TOKENS, UsageError, within};

#[derive(Debug, Args)]
#[command(next_help_heading = "Model")]
pub(crate) struct PlanArgs {
    /// Tokens drafted per round: N, where 0 is plain decoding, or `auto`: as many as save time on this machine, none where
    /// drafting does not pay. With auto, a text drawn with a seed under --verify rejection or block depends on the clock;
    /// coupled and greedy text does not [default: auto]
    #[arg(short = 'k', long = "num-draft-tokens", value_name = "N|auto")]
    #[arg(allow_negative_numbers = true, value_parser = |s: &str| length(s, 0))]
    length: Option<Plan>,
    /// How lengths are chosen where -k gives none: `auto`, `window` (2 to 8 by the share accepted of late, whatever it
    /// costs), `confidence[:P]` (as long as the draft gives its best guess probability P, 0.75 unless given) or `tree:N`
    /// (always N tokens, second thoughts among them)
    #[arg(long = "draft-plan", value_name = "PLAN", value_parser = plan)]
    rule: Option<Plan>,
}

impl PlanArgs {
    /// The plan asked for.
    ///
    /// # Errors
    /// A length and a rule to choose it by.
    pub(crate) fn plan(&self) -> Result<Plan, UsageError> {
        match (&self.length, &self.rule) {
            (Some(k @ Plan::Fixed(_)), Some(rule)) => {
                Err(UsageError(format!("-k {k} fixes what --draft-plan {rule} chooses; give one of them")))
            }
            (_, Some(plan)) | (Some(plan), None) => Ok(plan.clone()),
            (None, None) => Ok(Plan::Auto),
        }
    }
}

/// A number of tokens, or `auto`.
pub(super) fn length(text: &str, min: usize) -> Result<Plan, String> {
    if text == "auto" {
        return Ok(Plan::Auto);
    }
    within(text, min, MAX_DRAFT_TOKENS).map(Plan::Fixed).map_err(|wanted| format!("{wanted}, or `auto`"))
}

/// A rule that chooses lengths.
pub(super) fn plan(text: &str) -> Result<Plan, String> {
    match text.parse() {
        Ok(Plan::Trees(k)) if !(1..=MAX_DRAFT_TOKENS).contains(&k) => {
            Err(format!("a tree of 1 to {MAX_DRAFT_TOKENS} tokens is wanted"))
        }
        Ok(Plan::Fixed(_)) | Err(_) => {
            Err("auto, window, confidence, confidence:P with P from 0 to 1, or tree:N is wanted".into())
        }
        Ok(plan) => Ok(plan),
    }
}
