//! One drafter behind what another has said.

use super::{Draft, DraftRequest, DraftState, Drafter};
use crate::error::Result;

/// The beginning of a draft, and how many tokens the next drafter may add.
#[derive(Clone, Debug, Default)]
pub(super) struct Lead {
    pub(super) draft: Draft,
    pub(super) num_more: usize,
}

/// What `drafter` drafts for texts in which the leads have been said; `state` finds its own in that of a request.
pub(super) fn draft_behind(
    drafter: &dyn Drafter,
    requests: &mut [DraftRequest<'_>],
    leads: &[Lead],
    state: impl Fn(&mut dyn DraftState) -> &mut dyn DraftState,
) -> Result<Vec<Result<Draft>>> {
    let text = |(request, lead): (&DraftRequest<'_>, &Lead)| [request.tokens, &lead.draft.tokens].concat();
    let texts: Vec<Vec<u32>> = requests.iter().zip(leads).map(text).collect();
    let committed: Vec<usize> = requests.iter().map(|request| request.history.num_output()).collect();
    let mut behind = Vec::with_capacity(requests.len());
    for ((request, Lead { draft, num_more }), tokens) in requests.iter_mut().zip(leads).zip(&texts) {
        draft.tokens.iter().for_each(|&id| request.history.push(id));
        let has_ended = draft.tokens.last().is_some_and(|id| request.end_ids.contains(id));
        behind.push(DraftRequest {
            state: state(&mut *request.state),
            tokens,
            k: if has_ended { 0 } else { *num_more },
            sampler: request.sampler,
            history: &mut *request.history,
            noise: request.noise.clone().behind(draft.len()),
            end_ids: request.end_ids,
            branches: request.branches,
            budget: request.budget.behind(draft.len()),
        });
    }
    let drafts = drafter.draft(&mut behind);
    drop(behind);
    for (request, committed) in requests.iter_mut().zip(committed) {
        request.history.truncate_output(committed);
    }
    drafts
}
