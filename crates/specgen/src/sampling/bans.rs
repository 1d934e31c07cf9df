//! Bans that look at the text: repeated n-grams, bad words, ends that come too early.

use super::{History, SamplingParams, phrase::Phrase, repeats::continuations};

/// The ids that may not come next, in no particular order, some perhaps more than once. `end_ids` end a text.
pub(super) fn banned(params: &SamplingParams, end_ids: &[u32], history: &History) -> Vec<u32> {
    let mut ids = Vec::new();
    if params.no_repeat_ngram > 0 {
        let before = params.no_repeat_ngram - 1;
        ids.extend(
            continuations(history.tokens()).filter(|&(_, agreeing)| agreeing >= before).map(|(id, _)| id),
        );
    }
    for word in params.bad_words.iter().filter_map(Phrase::ids) {
        if let [before @ .., last] = word
            && history.tokens().ends_with(before)
        {
            ids.push(*last);
        }
    }
    if history.num_output() < params.min_tokens {
        ids.extend(end_ids);
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(500))]

        /// A token is banned if and only if the text with it ends in what may not be.
        #[test]
        fn what_is_banned_is_what_would_break_a_rule(
            prompt in prop::collection::vec(0_u32..4, 0..10),
            output in prop::collection::vec(0_u32..4, 0..20),
            no_repeat_ngram in 0_usize..5,
            words in prop::collection::vec(prop::collection::vec(0_u32..4, 1..4), 0..4),
            min_tokens in 0_usize..20,
        ) {
            let bad_words = words.iter().cloned().map(Phrase::Ids).collect();
            let params =
                SamplingParams { no_repeat_ngram, bad_words, min_tokens, ..SamplingParams::greedy() };
            let mut history = History::new(&prompt);
            output.iter().for_each(|&id| history.push(id));
            let breaks_a_rule = |id: &u32| {
                let text = [history.tokens(), &[*id]].concat();
                let repeats = |n: usize| {
                    let mut grams = text.windows(n).rev();
                    grams.next().is_some_and(|last| grams.any(|gram| gram == last))
                };
                (no_repeat_ngram > 0 && repeats(no_repeat_ngram))
                    || words.iter().any(|word| text.ends_with(word))
                    || (*id == 3 && output.len() < min_tokens)
            };
            let wanted: BTreeSet<u32> = (0..4).filter(breaks_a_rule).collect();
            prop_assert_eq!(BTreeSet::from_iter(banned(&params, &[3], &history)), wanted);
        }
    }
}
