//! Exactness by enumeration: every way a round can go, with its probability, against the target's own law.
//!
//! There is no sampling error here, so the tolerance is rounding: 1e-12. `faults.rs` breaks the rule, the drafter and
//! the loop on purpose and shows that this harness objects.

#![allow(clippy::unwrap_used)]

use specgen::distribution::Distribution;
use specgen::sampling::{History, SamplingParams};
use specgen::verify::{Chooser, Draft, rejection};
use specgen_tests::enumeration::{Law, TOLERANCE, enumerate, exact, law_error};
use specgen_tests::features::{self, Feature};
use specgen_tests::toy::{Rejection, SampledToy, Toy, concat, draw_chain, round, sampled_round, toys};

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

#[test]
fn sampled_drafts_leave_the_target_its_law() {
    for (toy, k) in toys() {
        let law = sampled_round(toy, k, &Rejection);
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{toy:?}, k = {k}: {error:e}");
        let (found, wanted) = (mean_accepted(&law), expected_accepted(toy, &[], k));
        assert!((found - wanted).abs() < TOLERANCE, "{toy:?}, k = {k}: {found} accepted, not {wanted}");
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
        let law = enumerate(|chooser| round(&[], &draft, |context| toy.p(context), &Rejection, chooser));
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{toy:?}, k = {k}: {error:e}");
        let (mut wanted, mut stands) = (0.0, 1.0);
        for i in 0..k {
            stands *= exact(&toy.p(&draft.tokens[..i]), toy.vocab)[draft.tokens[i] as usize];
            wanted += stands;
        }
        assert!((mean_accepted(&law) - wanted).abs() < TOLERANCE, "{toy:?}, k = {k}");
    }
}

/// A drawn token, a guess, a drawn token of forgotten origin (declared a guess), and so on.
#[test]
fn mixed_drafts_leave_the_target_its_law() {
    for (toy, k) in toys() {
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
            round(&[], &draft, |context| toy.p(context), &Rejection, chooser)
        });
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{toy:?}, k = {k}: {error:e}");
    }
}

/// The length may depend on what is known before a token is drawn: the text so far, `q` itself, chance.
#[test]
fn a_draft_may_stop_before_it_draws() {
    for (toy, k) in toys() {
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
            round(&[], &draft, |context| toy.p(context), &Rejection, chooser)
        });
        let error = toy.error(k, &law);
        assert!(error < TOLERANCE, "{toy:?}, k = {k}: {error:e}");
    }
}

#[test]
fn two_rounds_in_a_row_leave_the_target_its_law() {
    for (vocab, k, models) in [(3, 1, 30), (3, 2, 8), (4, 1, 12)] {
        for seed in 0..models {
            let toy = Toy { vocab, seed };
            let law = enumerate(|chooser| {
                let mut text = Vec::new();
                for _ in 0..2 {
                    let draft = draw_chain(&text, k, |context| toy.q(context), chooser);
                    text.extend(round(&text, &draft, |context| toy.p(context), &Rejection, chooser));
                }
                text
            });
            let error = law_error(&law, vocab, 2 * (k + 1), |context| toy.p(context));
            assert!(error < TOLERANCE, "{toy:?}, k = {k}: {error:e}");
        }
    }
}

/// The law of a round scored as a session does: one history, drafted tokens pushed and taken off again.
fn sessions_law(toy: &SampledToy, start: &[u32]) -> Law<Vec<u32>> {
    enumerate(|chooser| {
        let mut history: History = toy.history(start);
        let draft = draw_chain(start, 2, |text| toy.q(text), chooser);
        let p = |i: usize| {
            if i > 0 {
                toy.push(&mut history, draft.tokens[i - 1]);
            }
            Ok(toy.scored(&concat(start, &draft.tokens[..i]), &history))
        };
        let verdict = rejection(&draft, p, chooser).unwrap();
        history.truncate_output(start.len());
        assert_eq!(history, toy.history(start));
        concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token])
    })
}

#[test]
fn a_sampler_with_filters_penalties_and_bias_keeps_its_law() {
    for seed in 0..12 {
        let (toy, start) = (SampledToy::new(seed), [3, 1, 1]);
        let error = toy.error(&start, 2, &sessions_law(&toy, &start));
        assert!(error < TOLERANCE, "seed {seed}: {error:e}");
    }
}

#[test]
fn every_feature_of_the_sampler_keeps_its_law() {
    for Feature { name, params, .. } in features::all() {
        for seed in 0..8 {
            // Which top choices are excluded, and where, is the seed's.
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            let (toy, start) = (SampledToy::with(seed, params), [3, 1, 3]);
            let error = toy.error(&start, 2, &sessions_law(&toy, &start));
            assert!(error < TOLERANCE, "{name}, seed {seed}: {error:e}");
        }
    }
}

#[test]
fn greedy_is_the_limit() {
    for seed in 0..30 {
        let mut toy = SampledToy::new(seed);
        toy.target.temperature = 0.0;
        let law = toy.law(&[], 3, |tokens, i| toy.p(&tokens[..i]));
        assert!(law.values().all(|&probability| probability > 0.0));
        let error = toy.error(&[], 3, &law);
        assert!(error < TOLERANCE, "seed {seed}: {error:e}");
    }
}
