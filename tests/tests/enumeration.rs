//! Exactness by enumeration: every way a round can go, with its probability, against the target's own law.
//!
//! There is no sampling error here, so the tolerance is rounding: 1e-12. `faults.rs` breaks the rule, the
//! drafter and the loop on purpose and shows that this harness objects.

#![allow(clippy::unwrap_used)]

use specgen::Error;
use specgen::distribution::Distribution;
use specgen::draft::Translator;
use specgen::plan::{Outcome, Planner as _, RoundTimes};
use specgen::rng::{CoupledNoise, Noise, RoundNoise};
use specgen::sampling::{History, Sampler, SamplingParams};
use specgen::verify::{Chooser, Draft, block, coupled, matched, recursive, rejection};
use specgen_tests::enumeration::{EnumChooser, Law, TOLERANCE, enumerate, exact, law_error};
use specgen_tests::features::{self, Feature};
use specgen_tests::plans::{Adversary, draft_at};
use specgen_tests::toy::{
    Block, RATIO_RULES, Rejection, Rule, SampledToy, Scored, Toy, concat, draw_chain, round, sampled_round,
    toys,
};
use specgen_tests::vocabularies;

fn every_rule_and_toy() -> impl Iterator<Item = ((&'static str, &'static dyn Rule<EnumChooser>), (Toy, usize))>
{
    RATIO_RULES.into_iter().flat_map(|rule| toys().map(move |toy| (rule, toy)))
}

fn mean_accepted(law: &Law<Vec<u32>>) -> f64 {
    law.iter().map(|(text, probability)| probability * (text.len() - 1) as f64).sum()
}

/// `Σ_i Σ_{d_1..d_i} Π_j min(p_j(d_j), q_j(d_j))`: the expected number of accepted tokens.
fn expected_accepted(toy: Toy, context: &[u32], k: usize) -> f64 {
    if k == 0 {
        return 0.0;
    }
    let (p, q) = (exact(&toy.p(context), toy.vocab), exact(&toy.q(context), toy.vocab));
    (0..toy.vocab)
        .map(|id| {
            let both = p[id as usize].min(q[id as usize]);
            both * (1.0 + expected_accepted(toy, &concat(context, &[id]), k - 1))
        })
        .sum()
}

/// `Σ_i E_q[w_i]` with `w_i = min(1, w_{i-1} p_i / q_i)`: the expected number of tokens that the block rule
/// accepts, and the most that any rule can (Sun et al. 2024, Theorem 4).
fn expected_accepted_in_block(toy: Toy, context: &[u32], k: usize, drawn: f64, weight: f64) -> f64 {
    if k == 0 {
        return 0.0;
    }
    let (p, q) = (exact(&toy.p(context), toy.vocab), exact(&toy.q(context), toy.vocab));
    let longer = |id: u32| {
        let (p, q) = (p[id as usize], q[id as usize]);
        if q == 0.0 {
            return 0.0;
        }
        let (drawn, weight) = (drawn * q, f64::min(1.0, weight * p / q));
        drawn * weight + expected_accepted_in_block(toy, &concat(context, &[id]), k - 1, drawn, weight)
    };
    (0..toy.vocab).map(longer).sum()
}

#[test]
fn sampled_drafts_leave_the_target_its_law() {
    for (name, rule) in RATIO_RULES {
        for (toy, k) in toys() {
            let error = toy.error(k, &sampled_round(toy, k, rule));
            assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
        }
    }
}

#[test]
fn as_many_tokens_stand_as_the_papers_say() {
    let mut means = Vec::new();
    for (toy, k) in toys() {
        let rejection = mean_accepted(&sampled_round(toy, k, &Rejection));
        let wanted = expected_accepted(toy, &[], k);
        assert!((rejection - wanted).abs() < TOLERANCE, "{toy:?}, k = {k}: {rejection}, not {wanted}");
        let block = mean_accepted(&sampled_round(toy, k, &Block));
        let wanted = expected_accepted_in_block(toy, &[], k, 1.0, 1.0);
        assert!((block - wanted).abs() < TOLERANCE, "{toy:?}, k = {k}: {block}, not {wanted}");
        // On every model, not only on average.
        assert!(block >= rejection - TOLERANCE, "{toy:?}, k = {k}: {block} < {rejection}");
        if toy.vocab == 3 {
            means.resize(means.len().max(k), (0.0, 0.0, 0.0));
            let (count, of_rejection, of_block) = &mut means[k - 1];
            (*count, *of_rejection, *of_block) = (*count + 1.0, *of_rejection + rejection, *of_block + block);
        }
    }
    for (i, (count, rejection, block)) in means.into_iter().enumerate() {
        let (k, rejection, block) = (i + 1, 1.0 + rejection / count, 1.0 + block / count);
        // One token is judged alike; longer drafts gain, as in the paper.
        let gain = block / rejection;
        match k {
            1 => assert!((gain - 1.0).abs() < TOLERANCE),
            _ => assert!((1.005..1.10).contains(&gain), "k = {k}: {gain}"),
        }
    }
}

/// Guesses that were not drawn: some function of the text so far, here its hash.
fn guess(toy: Toy, context: &[u32]) -> u32 {
    context.iter().fold(toy.seed as u32 + 7, |hash, id| hash.wrapping_mul(31) + id) % toy.vocab
}

#[test]
fn guesses_leave_the_target_its_law() {
    for (toy, k) in toys() {
        let mut tokens = Vec::new();
        (0..k).for_each(|_| tokens.push(guess(toy, &tokens)));
        let draft = Draft::deterministic(tokens);
        let (mut wanted, mut stands) = (0.0, 1.0);
        for i in 0..k {
            stands *= exact(&toy.p(&draft.tokens[..i]), toy.vocab)[draft.tokens[i] as usize];
            wanted += stands;
        }
        for (name, rule) in RATIO_RULES {
            let law = enumerate(|chooser| round(&[], &draft, |context| toy.p(context), rule, chooser));
            let error = toy.error(k, &law);
            assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
            assert!((mean_accepted(&law) - wanted).abs() < TOLERANCE, "{name}, {toy:?}, k = {k}");
        }
    }
}

/// A drawn token, a guess, a drawn token of forgotten origin (declared a guess), and so on.
#[test]
fn mixed_drafts_leave_the_target_its_law() {
    for ((name, rule), (toy, k)) in every_rule_and_toy() {
        let law = enumerate(|chooser| {
            let mut draft = Draft::default();
            for i in 0..k {
                let q = toy.q(&draft.tokens);
                match (i as u64 + toy.seed) % 3 {
                    0 => {
                        let token = q.draw(chooser, i);
                        draft.push(token, q);
                    }
                    1 => {
                        let token = guess(toy, &draft.tokens);
                        draft.push(token, Distribution::Point(token));
                    }
                    _ => {
                        let token = q.draw(chooser, i);
                        draft.push(token, Distribution::Point(token));
                    }
                }
            }
            round(&[], &draft, |context| toy.p(context), rule, chooser)
        });
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
    }
}

/// What a tree's tokens are.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Tokens {
    /// Drawn, each from what its siblings have left of `q`.
    Drawn,
    /// Functions of the text.
    Guessed,
    /// Some of each.
    Mixed,
}

/// A tree in which every token at depth `i` has `widths[i]` siblings, itself included, as far as there are so many.
fn draw_tree(toy: Toy, widths: &[usize], tokens: Tokens, chooser: &mut EnumChooser) -> Draft {
    let mut draft = Draft::default();
    let mut nodes = vec![None];
    for width in widths {
        let mut next = Vec::new();
        for at in nodes {
            let path = draft.path(at);
            let mut left = Some(toy.q(&path));
            let mut siblings: Vec<u32> = Vec::new();
            for i in 0..*width {
                let is_drawn = match tokens {
                    Tokens::Drawn => true,
                    Tokens::Guessed => false,
                    Tokens::Mixed => (i as u64 + toy.seed + path.len() as u64) % 3 != 1,
                };
                let (token, q) = match left.clone() {
                    Some(q) if is_drawn => (q.draw(chooser, draft.len()), q),
                    _ => {
                        let token = (guess(toy, &path) + i as u32) % toy.vocab;
                        (token, Distribution::Point(token))
                    }
                };
                // A guess that is there already is none; that may depend on what was drawn.
                if siblings.contains(&token) {
                    continue;
                }
                siblings.push(token);
                left = left.and_then(|left| left.without(token));
                draft.attach(at, Draft { tokens: vec![token], q: vec![q], ..Draft::default() });
                next.push(Some(draft.len() - 1));
            }
        }
        nodes = next;
    }
    draft
}

/// The tokens a round adds to an empty text.
fn round_of_tree(toy: Toy, draft: &Draft, is_matched: bool, chooser: &mut EnumChooser) -> Vec<u32> {
    let p = |node: usize| Ok(toy.p(&draft.path(node.checked_sub(1))));
    let descent = match is_matched {
        true => matched(draft, p, chooser).unwrap(),
        false => recursive(draft, p, chooser).unwrap(),
    };
    concat(&draft.path(descent.path.last().copied()), &[descent.next_token])
}

/// Branchings of every kind, small enough to enumerate.
const TREES: [&[usize]; 6] = [&[2], &[3], &[2, 1], &[1, 2], &[2, 2], &[1, 1, 1]];

#[test]
fn trees_leave_the_target_its_law() {
    for (tokens, widths) in [Tokens::Drawn, Tokens::Guessed, Tokens::Mixed]
        .into_iter()
        .flat_map(|t| TREES.map(|widths| (t, widths)))
    {
        for seed in 0..18 {
            let toy = Toy { vocab: 3, seed };
            for is_matched in [false, true] {
                // Of what was drawn, only the ratio test knows how to make use.
                if is_matched && tokens == Tokens::Mixed {
                    continue;
                }
                let law = enumerate(|chooser| {
                    let draft = draw_tree(toy, widths, tokens, chooser);
                    round_of_tree(toy, &draft, is_matched, chooser)
                });
                let error = toy.error(widths.len(), &law);
                assert!(error < TOLERANCE, "{tokens:?}, {widths:?}, {toy:?}, {is_matched}: {error:e}");
            }
        }
    }
}

/// More guesses at a place are never worse, and a ratio test makes more of drawn ones than matching.
#[test]
fn trees_are_accepted_more_than_chains() {
    let mean = |toy: Toy, widths: &[usize], is_matched| {
        let law = enumerate(|chooser| {
            let draft = draw_tree(toy, widths, Tokens::Drawn, chooser);
            round_of_tree(toy, &draft, is_matched, chooser)
        });
        mean_accepted(&law)
    };
    for seed in 0..30 {
        let toy = Toy { vocab: 4, seed };
        let (chain, tree) = (mean(toy, &[1], false), mean(toy, &[2], false));
        assert!((chain - expected_accepted(toy, &[], 1)).abs() < TOLERANCE);
        assert!(tree > chain - TOLERANCE && chain > mean(toy, &[1], true) - TOLERANCE, "{toy:?}");
    }
}

/// A chain that is written as a tree is verified as the chain is, by the same numbers.
#[test]
fn a_chain_is_a_tree() {
    for (toy, k) in toys().filter(|(toy, _)| toy.vocab == 4) {
        for seed in 0..20 {
            let (mut own, noise) = (RoundNoise::draft(Noise::new(seed), 3, 1), Noise::new(seed));
            let chain = draw_chain(&[], k, |context| toy.q(context), &mut own);
            let tree = Draft { parents: Some((0..k as u32).collect()), ..chain.clone() };
            let p = |i: usize| Ok(toy.p(&chain.tokens[..i]));
            let mut verify = RoundNoise::verify(noise, 3, 1);
            let verdict = rejection(&chain, p, &mut verify.clone()).unwrap();
            let descent = recursive(&tree, p, &mut verify).unwrap();
            assert_eq!((descent.path.len(), descent.next_token), (verdict.num_accepted, verdict.next_token));
            let mut shared = CoupledNoise::new(noise, 3);
            let verdict = coupled(&chain, p, &mut shared.clone()).unwrap();
            let descent = matched(&tree, p, &mut shared).unwrap();
            assert_eq!((descent.path.len(), descent.next_token), (verdict.num_accepted, verdict.next_token));
        }
    }
}

#[test]
fn links_that_are_no_tree_are_refused() {
    let p = |_: usize| Ok(Distribution::Point(0));
    let noise = RoundNoise::verify(Noise::new(1), 0, 0);
    for (tokens, parents) in [(vec![1, 2], vec![0]), (vec![1, 2], vec![0, 3]), (vec![1, 1], vec![0, 0])] {
        let draft = Draft { parents: Some(parents), ..Draft::deterministic(tokens) };
        assert!(recursive(&draft, p, &mut noise.clone()).is_err(), "{draft:?}");
        assert!(matched(&draft, p, &mut noise.clone()).is_err(), "{draft:?}");
    }
}

/// The length may depend on what is known before a token is drawn: the text so far, `q` itself, chance.
#[test]
fn a_draft_may_stop_before_it_draws() {
    for ((name, rule), (toy, k)) in every_rule_and_toy() {
        let law = enumerate(|chooser| {
            let mut draft = Draft::default();
            for i in 0..k {
                let q = toy.q(&draft.tokens);
                let sure = exact(&q, toy.vocab).into_iter().fold(0.0, f64::max);
                if sure < 0.5 || chooser.accept(i, -1.0) {
                    break;
                }
                let token = q.draw(chooser, i);
                draft.push(token, q);
            }
            round(&[], &draft, |context| toy.p(context), rule, chooser)
        });
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
    }
}

#[test]
fn two_rounds_in_a_row_leave_the_target_its_law() {
    for (name, rule) in RATIO_RULES {
        for (vocab, k, models) in [(3, 1, 30), (3, 2, 8), (4, 1, 12)] {
            for seed in 0..models {
                let toy = Toy { vocab, seed };
                let law = enumerate(|chooser| {
                    let mut text = Vec::new();
                    for _ in 0..2 {
                        let draft = draw_chain(&text, k, |context| toy.q(context), chooser);
                        text.extend(round(&text, &draft, |context| toy.p(context), rule, chooser));
                    }
                    text
                });
                let error = law_error(&law, vocab, 2 * (k + 1), |context| toy.p(context));
                assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
            }
        }
    }
}

/// Lengths that depend on rounds before, on confidence before each draw, and on drawn tokens as far as a round allows.
#[test]
fn an_adaptive_plan_leaves_the_target_its_law() {
    for (name, rule) in RATIO_RULES {
        let mut lengths = [0; 3];
        for (vocab, k, models) in [(3, 2, 8), (4, 1, 12)] {
            for seed in 0..models {
                let toy = Toy { vocab, seed };
                let law = enumerate(|chooser| {
                    let (mut pace, mut text) = (Adversary { max_tokens: k }.new_pace(), Vec::new());
                    for _ in 0..2 {
                        let q = |context: &[u32]| toy.q(context);
                        let draft = draft_at(&mut *pace, &text, vocab, q, Draft::num_droppable, chooser);
                        let new = round(&text, &draft, |context| toy.p(context), rule, chooser);
                        lengths[draft.len()] += 1;
                        let (num_accepted, times) = (new.len() - 1, RoundTimes::default());
                        pace.observe(&Outcome { draft: &draft, new: &new, num_accepted, times });
                        text.extend(new);
                    }
                    text
                });
                let error = law_error(&law, vocab, 2 * (k + 1), |context| toy.p(context));
                assert!(error < TOLERANCE, "{name}, {toy:?}, k = {k}: {error:e}");
            }
        }
        assert!(lengths.into_iter().all(|count| count > 100), "{lengths:?}");
    }
}

/// Where the target fails is an outcome like any other: a round fails as often as plain decoding would fail
/// there.
#[test]
fn a_target_that_fails_in_places_keeps_its_law() {
    const LEN: usize = 3;
    let fails = |toy: Toy, text: &[u32]| !text.is_empty() && guess(toy, text) == 0;
    let next = |toy: Toy, text: &[u32]| match fails(toy, text) {
        true => Err(Error::NanLogits { step: text.len(), token: 0 }),
        false => Ok(toy.p(text)),
    };
    // A text goes on by plain decoding to its full length, or to a failure.
    let carry_on = |toy: Toy, mut text: Vec<u32>, chooser: &mut EnumChooser| {
        while text.len() < LEN {
            let i = text.len();
            text.push(next(toy, &text).ok()?.draw(chooser, i));
        }
        Some(text)
    };
    for name in ["rejection", "block"] {
        for seed in 0..60 {
            let toy = Toy { vocab: 3, seed };
            let plain = enumerate(|chooser| carry_on(toy, Vec::new(), chooser));
            let law = enumerate(|chooser| {
                let draft = draw_chain(&[], LEN - 1, |context| toy.q(context), chooser);
                let p = |i| next(toy, &draft.tokens[..i]);
                let verdict = match name {
                    "block" => block(&draft, p, chooser).ok()?,
                    _ => rejection(&draft, p, chooser).ok()?,
                };
                carry_on(toy, concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token]), chooser)
            });
            for outcome in plain.keys().chain(law.keys()) {
                let probability = |law: &Law<_>| law.get(outcome).copied().unwrap_or(0.0);
                let error = (probability(&plain) - probability(&law)).abs();
                assert!(error < TOLERANCE, "{name}, {toy:?}, {outcome:?}: {error:e}");
            }
        }
    }
}

/// The law of a round scored as a session does: one history, drafted tokens pushed and taken off again.
fn sessions_law(rule: &dyn Rule<EnumChooser>, toy: &SampledToy, start: &[u32]) -> Law<Vec<u32>> {
    enumerate(|chooser| {
        let mut history: History = toy.history(start);
        let draft = draw_chain(start, 2, |text| toy.q(text), chooser);
        let mut p = |i: usize| {
            if i > 0 {
                toy.push(&mut history, draft.tokens[i - 1]);
            }
            Ok(toy.scored(&concat(start, &draft.tokens[..i]), &history))
        };
        let verdict = rule.verify(Scored { draft: &draft, p: &mut p }, chooser);
        history.truncate_output(start.len());
        assert_eq!(history, toy.history(start));
        concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token])
    })
}

#[test]
fn a_sampler_with_filters_penalties_and_bias_keeps_its_law() {
    for ((name, rule), seed) in RATIO_RULES.into_iter().flat_map(|rule| (0..12).map(move |seed| (rule, seed)))
    {
        let (toy, start) = (SampledToy::new(seed), [3, 1, 1]);
        let error = toy.error(&start, 2, &sessions_law(rule, &toy, &start));
        assert!(error < TOLERANCE, "{name}, seed {seed}: {error:e}");
    }
}

#[test]
fn every_feature_of_the_sampler_keeps_its_law() {
    let cases = features::all().into_iter().flat_map(|Feature { name, params, .. }| {
        RATIO_RULES.map(|(rule_name, rule)| (name, params.clone(), rule_name, rule))
    });
    for (name, params, rule_name, rule) in cases {
        for seed in 0..8 {
            // Which top choices are excluded, and where, is the seed's.
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            let (toy, start) = (SampledToy::with(seed, params), [3, 1, 3]);
            let error = toy.error(&start, 2, &sessions_law(rule, &toy, &start));
            assert!(error < TOLERANCE, "{name}, {rule_name}, seed {seed}: {error:e}");
        }
    }
}

/// A draft that knows one of the target's four tokens, three, or all and more: its logits are put under the target's ids.
#[test]
fn a_draft_of_another_vocabulary_keeps_the_law() {
    let target = vocabularies::of_target(4);
    for (draft_size, num_twins) in [(3, 1), (5, 3), (9, 4)] {
        let translator = Translator::new(&target, &vocabularies::of_draft(draft_size));
        assert_eq!(translator.coverage().num_twins, num_twins);
        for ((name, rule), seed) in
            RATIO_RULES.into_iter().flat_map(|rule| (0..12).map(move |seed| (rule, seed)))
        {
            let (toy, own) = (SampledToy::new(seed), Toy { vocab: draft_size as u32, seed });
            let sampler = Sampler::new(&toy.draft, 4).unwrap();
            let q = |text: &[u32]| {
                let mut row = [0.0; 4];
                translator.scatter(&own.logits(text, 7), &mut row);
                let q = sampler.distribution(&row, &toy.history(text)).unwrap();
                assert!(q.support().count() <= num_twins);
                q
            };
            let law = enumerate(|chooser| {
                let draft = draw_chain(&[], 2, q, chooser);
                let mut p = |i| Ok(toy.p(&draft.tokens[..i]));
                let verdict = rule.verify(Scored { draft: &draft, p: &mut p }, chooser);
                concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token])
            });
            let error = toy.error(&[], 2, &law);
            assert!(error < TOLERANCE, "{name}, {draft_size} draft tokens, seed {seed}: {error:e}");
        }
    }
}

#[test]
fn greedy_is_the_limit() {
    for ((name, rule), seed) in RATIO_RULES.into_iter().flat_map(|rule| (0..30).map(move |seed| (rule, seed)))
    {
        let mut toy = SampledToy::new(seed);
        toy.target.temperature = 0.0;
        let law = toy.law(&[], 3, rule, |tokens, i| toy.p(&tokens[..i]));
        assert!(law.values().all(|&probability| probability > 0.0));
        let error = toy.error(&[], 3, &law);
        assert!(error < TOLERANCE, "{name}, seed {seed}: {error:e}");
    }
}
