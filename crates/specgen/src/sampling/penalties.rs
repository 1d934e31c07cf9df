//! Penalties on tokens for having occurred: repetition, presence, frequency.

use super::{Counts, History, SamplingParams};

/// Whether [`apply`] would change anything.
pub(super) fn are_on(params: &SamplingParams) -> bool {
    params.repetition_penalty != 1.0 || params.presence_penalty != 0.0 || params.frequency_penalty != 0.0
}

/// Lowers the logits of the tokens of `history`, of its last `penalty_last_n` where that is not 0. In the order of vLLM:
/// repetition first, which looks at prompt and output, then frequency and presence, which look at the output only.
pub(super) fn apply(params: &SamplingParams, row: &mut [f32], history: &History) {
    let penalise = |(id, counts): (u32, Counts)| {
        let Some(logit) = row.get_mut(id as usize) else { return };
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        if counts.output > 0 {
            *logit -= params.frequency_penalty * counts.output as f32;
            *logit -= params.presence_penalty;
        }
    };
    let window = params.penalty_last_n;
    if window == 0 || window >= history.tokens().len() {
        history.counts().for_each(penalise);
    } else {
        history.counts_of_last(window).for_each(penalise);
    }
}
