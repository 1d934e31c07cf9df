//! The harness, tested: each of these mistakes has been made somewhere, and each must be caught.
//!
//! A wrong procedure must be off by [`CAUGHT`] on at least one model, where a right one is within 1e-12 on all. What is
//! planted in code stands in this suite or in `src/faults.rs`; what a trait does not reach was planted in the library by
//! hand, once, and taken out again.
//!
//! | | mistake | planted | caught by |
//! |---|---|---|---|
//! | 1 | the correction comes from `p`, not from the residual | `Fault::NoResidual` | `wrong_rules_are_caught` |
//! | 2 | `q` is that of another temperature | in the test | `q_of_another_temperature_is_caught` |
//! | 3 | `q` is filtered and normalised again, the token was drawn before | in the test | `q_of_another_filter_is_caught` |
//! | 4 | `u <= ratio` accepts what has probability 0 | `Fault::ZeroAccepted` | `accepting_the_impossible_is_caught` |
//! | 5 | a token is dropped after it was drawn, a weak chain thrown away, a chain cut where the grammar objects | in the test | `dropping_after_the_draw_is_caught` |
//! | 6 | the bonus token comes from the unfiltered distribution | in the test | `rows_scored_with_the_wrong_parameters_are_caught` |
//! | 7 | penalties are those of the round's start | in the test | the same, and `rows_scored_with_the_history_of_the_rounds_start_are_caught` |
//! | 8 | the pending token counts twice | in the test | `rows_scored_with_the_wrong_parameters_are_caught` |
//! | 9 | block verification with the residual of the ratio test | `BlockFault::TokenResidual` | `wrong_block_rules_are_caught` |
//! | 10 | block verification with the noise of the position alone | in the test | `noise_of_the_position_alone_is_caught_in_block_mode` |
//! | 11 | draft and ratio test share their noise | in the test | `noise_shared_by_draft_and_residual_is_caught`, `coupled_noise_under_a_ratio_test_is_caught` |
//! | 12 | siblings of a tree are tried by score, not as they were drawn | `SiblingFault::SortedByScore` | `wrong_rules_for_siblings_are_caught` |
//! | 13 | `q` keeps the mass of a sibling that fell | `SiblingFault::MassKept` | the same |
//! | 14 | a sibling comes twice | `SiblingFault::DrawnTwice` | the same |
//! | 15 | a tree of the best tokens, none of them drawn, is verified by ratio | `SiblingFault::RankedNotDrawn` | the same |
//! | 16 | a tree's positions are its rows, not its depths | by hand, `Span::position` | `trees_are_chains_that_share_a_pass` of `cache.rs` |
//! | 17 | siblings see each other | by hand, `Span::visible` | the same |
//! | 18 | rejected tokens stay in the cache, or one too many leaves it | in the test | `a_cache_cut_in_the_wrong_place_is_seen` of `cache.rs`; `Sequence::check_ready` refuses such a cache |
//! | 19 | after a draft that stood as a whole, its last token is not fed to the draft | `OwnCache` | `a_draft_cache_without_its_last_guess_is_caught` |
//! | 20 | an end inside a round is missed | in the test | `a_stop_token_missed_inside_a_round_is_caught` |
//! | 21 | the grammar heard of rejected tokens | in the test | `a_grammar_advanced_by_rejected_tokens_is_caught` |
//! | 22 | two ids of a draft stand for one of the target, and one's mass is lost | in the test | `a_table_of_ids_that_loses_mass_is_caught` |
//! | 23 | a table of distances between ids is read as ids | in the test | `distances_between_ids_read_as_ids_are_caught` |
//! | 24 | hidden states are tapped one layer off | in the test | `a_tap_is_of_the_layer_it_names` of `cache.rs` |
//! | 25 | a draft made ahead is found by its last token, not by how many tokens stood | in the test | `a_draft_made_ahead_for_another_length_is_caught` |

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use specgen::Engine;
use specgen::distribution::Distribution;
use specgen::draft::{DraftRequest, DraftState, Drafter, NoDraft};
use specgen::model::ToyModel;
use specgen::plan::Planner as _;
use specgen::rng::{CoupledNoise, Noise, RoundNoise};
use specgen::sampling::{History, Mirostat, Sampler, SamplingParams, Xtc};
use specgen::verify::{Chooser, Draft, Picker, rejection};
use specgen_tests::enumeration::{EnumChooser, Law, TOLERANCE, enumerate, exact, law_error};
use specgen_tests::faults::{BlockFault, Fault, Faulty, FaultyBlock, SiblingFault, round_of_siblings};
use specgen_tests::features::{self, Feature};
use specgen_tests::plans::{Adversary, draft_at};
use specgen_tests::statistics::chi_square;
use specgen_tests::toy::{
    Block, RATIO_RULES, Rejection, Rule, SampledToy, Table, Toy, concat, draw_chain, round, sampled_round,
    toys,
};

const CAUGHT: f64 = 1e-3;

fn small_toys() -> impl Iterator<Item = (Toy, usize)> {
    toys().filter(|&(toy, k)| k <= 2 && toy.seed < 24)
}

/// The largest error of a way to run a round, over many models.
fn worst(law: impl Fn(Toy, usize) -> Law<Vec<u32>>) -> f64 {
    small_toys().map(|(toy, k)| toy.error(k, &law(toy, k))).fold(0.0, f64::max)
}

#[test]
fn wrong_rules_are_caught() {
    let with = |fault| worst(|toy, k| sampled_round(toy, k, &Faulty { vocab: toy.vocab, fault }));
    assert!(with(Fault::None) < TOLERANCE, "the plain rule must pass, or the faults prove nothing");
    for fault in [
        Fault::NoResidual,
        Fault::ArgmaxAcceptance,
        Fault::PairedByRank,
        Fault::Epsilon,
        Fault::BonusFromLastRow,
    ] {
        let error = with(fault);
        assert!(error > CAUGHT, "{fault:?} went unnoticed: {error:e}");
    }
}

/// Trees: what is true of chains does not carry over by itself.
#[test]
fn wrong_rules_for_siblings_are_caught() {
    let with = |fault| {
        let error = |width: usize, seed| {
            let toy = Toy { vocab: 4, seed };
            let law = enumerate(|chooser| round_of_siblings(toy, width, fault, chooser));
            law_error(&law, toy.vocab, 2, |text| toy.p(text))
        };
        (0..24).flat_map(|seed| [2, 3].map(|width| error(width, seed))).fold(0.0, f64::max)
    };
    let right = with(SiblingFault::None);
    assert!(right < TOLERANCE, "the plain rule must pass, or the faults prove nothing: {right:e}");
    for fault in [
        SiblingFault::SortedByScore,
        SiblingFault::MassKept,
        SiblingFault::DrawnTwice,
        SiblingFault::RankedNotDrawn,
    ] {
        let error = with(fault);
        assert!(error > CAUGHT, "{fault:?} went unnoticed: {error:e}");
    }
}

/// What a draft of one token is worth: how far its round is from the target's law, and how often the token
/// stands.
fn round_of_one(toy: Toy, draw: impl Fn(&mut EnumChooser) -> (u32, Vec<f64>)) -> (f64, f64) {
    let law = enumerate(|chooser| {
        let (x, q) = draw(chooser);
        let mut draft = Draft::default();
        draft.push(x, Distribution::Dense(q.iter().map(|q| q.ln() as f32).collect()));
        round(&[], &draft, |text| toy.p(text), &Rejection, chooser)
    });
    let accepted = law.iter().filter(|(text, _)| text.len() == 2).map(|(_, probability)| probability).sum();
    (law_error(&law, toy.vocab, 2, |text| toy.p(text)), accepted)
}

/// Off by the rounding of `q` to f32 logarithms, and no more.
const ROUNDED: f64 = 1e-6;

/// A draft of another vocabulary, whose ids stand for the target's by a table: `q` is the law of what they
/// stand for.
#[test]
fn a_table_of_ids_that_loses_mass_is_caught() {
    // Two ids of the draft stand for token 2.
    const STANDS_FOR: [u32; 4] = [0, 1, 2, 2];
    type Mapped = fn(&[f64]) -> [f64; 3];
    let summed: Mapped = |q| [q[0], q[1], q[2] + q[3]];
    let last_one_counts: Mapped = |q| [q[0], q[1], q[3]].map(|weight| weight / (q[0] + q[1] + q[3]));
    let worst = |mapped: Mapped| {
        let error = |seed| {
            let (toy, other) = (Toy { vocab: 3, seed }, Toy { vocab: 4, seed: seed + 100 });
            let q: Vec<f64> = exact(&other.q(&[]), 4).iter().map(|q| 0.9 * q + 0.025).collect();
            let (error, _) = round_of_one(toy, |chooser| {
                let x = chooser.pick(0, (0..).zip(q.iter().copied())).unwrap();
                (STANDS_FOR[x as usize], mapped(&q).to_vec())
            });
            error
        };
        (0..24).map(error).fold(0.0, f64::max)
    };
    let (right, wrong) = (worst(summed), worst(last_one_counts));
    assert!(right < ROUNDED, "{right:e}");
    assert!(wrong > CAUGHT, "{wrong:e}");
}

/// A draft that knows only some of the target's ids, as distances from its own: read as ids they are others.
/// The text keeps its law; what falls is the acceptance, which has a formula.
#[test]
fn distances_between_ids_read_as_ids_are_caught() {
    const DISTANCES: [u32; 2] = [1, 2];
    let added = |id: u32| id + DISTANCES[id as usize];
    let read_as_ids = |id: u32| DISTANCES[id as usize];
    let (mut right, mut wrong) = (0.0_f64, 0.0_f64);
    for seed in 0..24 {
        let (toy, small) = (Toy { vocab: 4, seed }, Toy { vocab: 2, seed: seed + 100 });
        let q = exact(&small.q(&[]), 2);
        let mapped = |token: &dyn Fn(u32) -> u32| {
            let mut row = vec![0.0; 4];
            (0..).zip(&q).for_each(|(id, q)| row[token(id) as usize] += q);
            row
        };
        let p = exact(&toy.p(&[]), 4);
        let formula: f64 = p.iter().zip(mapped(&added)).map(|(p, q)| p.min(q)).sum();
        let tokens: [(&dyn Fn(u32) -> u32, &mut f64); 2] = [(&added, &mut right), (&read_as_ids, &mut wrong)];
        for (token, off) in tokens {
            let (error, accepted) = round_of_one(toy, |chooser| {
                let x = chooser.pick(0, (0..).zip(q.iter().copied())).unwrap();
                (token(x), mapped(token))
            });
            assert!(error < ROUNDED, "{error:e}");
            *off = off.max((accepted - formula).abs());
        }
    }
    assert!(right < ROUNDED, "{right:e}");
    assert!(wrong > 0.1, "{wrong:e}");
}

/// The next draft is made ahead, for a round that ends in some token, and found again by that token alone: it
/// follows a text with more tokens before it.
#[test]
fn a_draft_made_ahead_for_another_length_is_caught() {
    let worst = |knows_length: bool| {
        let error = |seed| {
            let toy = Toy { vocab: 3, seed };
            let law = enumerate(|chooser| {
                let draft = draw_chain(&[], 2, |text| toy.q(text), chooser);
                let text = round(&[], &draft, |text| toy.p(text), &Rejection, chooser);
                let all_accepted = concat(&draft.tokens, &text[text.len() - 1..]);
                let ahead = if knows_length { &text } else { &all_accepted };
                let mut next = draw_chain(ahead, 1, |text| toy.q(text), chooser);
                next.q = vec![toy.q(&text)];
                let is_possible = next.q[0].log_prob(next.tokens[0]) > f32::NEG_INFINITY;
                let behind = match is_possible {
                    true => round(&text, &next, |text| toy.p(text), &Rejection, chooser),
                    // Such a draft would be refused.
                    false => vec![toy.p(&text).draw(chooser, 0)],
                };
                concat(&text, &behind)
            });
            law_error(&law, 3, 5, |text| toy.p(text))
        };
        (0..12).map(error).fold(0.0, f64::max)
    };
    let (right, wrong) = (worst(true), worst(false));
    assert!(right < TOLERANCE, "{right:e}");
    assert!(wrong > CAUGHT, "{wrong:e}");
}

/// A draft model that decodes ahead with a cache of its own, by its length: after a draft that stood as a
/// whole it lacks two tokens, its own last guess and the bonus token.
struct OwnCache {
    model: ToyModel,
    /// Feeds the bonus token alone.
    forgets: bool,
}

struct Fed(Vec<u32>);

impl DraftState for Fed {}

impl Drafter for OwnCache {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(Fed(Vec::new()))
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> specgen::Result<Vec<specgen::Result<Draft>>> {
        let draft = |request: &mut DraftRequest<'_>| {
            let fed = &mut request.state.downcast::<Fed>().0;
            let (is_prompt, pending) = (fed.is_empty(), request.tokens.len() - 1);
            fed.truncate(pending);
            let unseen = if self.forgets && !is_prompt { pending } else { fed.len() };
            fed.extend(&request.tokens[unseen..]);
            let mut tokens = Vec::new();
            for _ in 0..request.k {
                let logits = self.model.logits_after(fed);
                let best = (0..).zip(&logits).max_by(|a, b| a.1.total_cmp(b.1)).map(|(id, _)| id).unwrap();
                tokens.push(best);
                fed.push(best);
            }
            fed.pop();
            Ok(Draft::deterministic(tokens))
        };
        Ok(requests.iter_mut().map(draft).collect())
    }
}

/// No text shows it: only that a model no longer agrees with itself does.
#[test]
fn a_draft_cache_without_its_last_guess_is_caught() {
    let model = ToyModel::new(12, 1, 6.0);
    let run = |drafter: Arc<dyn Drafter>| {
        let engine = Engine::from_parts(Arc::new(model.clone()), drafter, 3, &[]);
        let mut session = engine.session(SamplingParams::greedy()).unwrap();
        let mut generation = session.generate(&[5_u32, 1][..], 200).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        (generation.tokens().to_vec(), generation.stats().acceptance_rate())
    };
    let own_cache = |forgets| run(Arc::new(OwnCache { model: model.clone(), forgets }));
    let plain = run(Arc::new(NoDraft)).0;
    assert_eq!(own_cache(false), (plain.clone(), 1.0));
    let (text, rate) = own_cache(true);
    assert_eq!(text, plain);
    assert!(rate < 0.8, "{rate}");
}

#[test]
fn wrong_block_rules_are_caught() {
    // With one token the rule is the ratio test, and some of these are no faults.
    let with = |fault| {
        let law = |toy: Toy, k| sampled_round(toy, k, &FaultyBlock { vocab: toy.vocab, fault });
        let chains = toys().filter(|&(toy, k)| (2..=3).contains(&k) && toy.seed < 24);
        chains.map(|(toy, k)| toy.error(k, &law(toy, k))).fold(0.0, f64::max)
    };
    assert!(with(BlockFault::None) < TOLERANCE, "the plain rule must pass, or the faults prove nothing");
    for fault in [
        BlockFault::TokenResidual,
        BlockFault::FirstFailure,
        BlockFault::UncutWeights,
        BlockFault::LastLikeTheOthers,
    ] {
        let error = with(fault);
        assert!(error > CAUGHT, "{fault:?} went unnoticed: {error:e}");
    }
}

/// `q` is recorded at another temperature than it was drawn at (or in another precision: the same thing,
/// smaller).
#[test]
fn q_of_another_temperature_is_caught() {
    let reheated = |q: &Distribution, vocab: u32| {
        let weights: Vec<f64> = exact(q, vocab).into_iter().map(f64::sqrt).collect();
        let total: f64 = weights.iter().sum();
        Distribution::Dense(weights.into_iter().map(|weight| (weight / total).ln() as f32).collect())
    };
    for (name, rule) in RATIO_RULES {
        let error = worst(|toy, k| {
            enumerate(|chooser| {
                let mut draft = draw_chain(&[], k, |context| toy.q(context), chooser);
                draft.q.iter_mut().for_each(|q| *q = reheated(q, toy.vocab));
                round(&[], &draft, |context| toy.p(context), rule, chooser)
            })
        });
        assert!(error > CAUGHT, "{name}: {error:e}");
    }
}

/// The best two tokens of `q`, normalised.
fn top_2(q: &Distribution, vocab: u32) -> Distribution {
    let logits: Vec<f32> = (0..vocab).map(|id| q.log_prob(id)).collect();
    let params = SamplingParams { temperature: 1.0, top_k: 2, ..SamplingParams::greedy() };
    Sampler::new(&params, vocab as usize).unwrap().distribution(&logits, &History::default()).unwrap()
}

/// `q` is filtered and normalised again, but the token was drawn before; or the other way round.
#[test]
fn q_of_another_filter_is_caught() {
    let (mut refused, mut runs) = (0, 0);
    for (toy, k) in small_toys() {
        enumerate(|chooser| {
            let mut draft = draw_chain(&[], k, |context| toy.q(context), chooser);
            draft.q.iter_mut().for_each(|q| *q = top_2(q, toy.vocab));
            let outside = draft.tokens.iter().zip(&draft.q).any(|(&x, q)| q.log_prob(x) == f32::NEG_INFINITY);
            let verdict = rejection(&draft, |i| Ok(toy.p(&draft.tokens[..i])), chooser);
            assert_eq!(verdict.is_err(), outside);
            refused += usize::from(outside);
            runs += 1;
        });
    }
    assert!(refused > runs / 100, "{refused} of {runs} were refused");

    let error = worst(|toy, k| {
        enumerate(|chooser| {
            let mut draft = draw_chain(&[], k, |context| top_2(&toy.q(context), toy.vocab), chooser);
            draft.q = (0..k).map(|i| toy.q(&draft.tokens[..i])).collect();
            round(&[], &draft, |context| toy.p(context), &Rejection, chooser)
        })
    });
    assert!(error > CAUGHT, "{error:e}");
}

/// A chooser whose uniform is one of 0, 1/4, 1/2, 3/4 and may equal the ratio: `u <= ratio`.
#[derive(Default)]
struct LooseChooser(EnumChooser);

impl Chooser for LooseChooser {
    fn accept(&mut self, _index: usize, ln_ratio: f64) -> bool {
        let quarter = self.0.decide((0..4).map(|quarter| (quarter, 1.0))).unwrap();
        f64::from(quarter) / 4.0 <= ln_ratio.exp()
    }
}

impl Picker for LooseChooser {
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        self.0.pick(index, weights)
    }
}

/// How often a token the target cannot say comes out, even from the loosest of choosers.
fn impossible_tokens(rule: impl Fn(Toy) -> Box<dyn Rule<LooseChooser>>) -> f64 {
    let mut weight = 0.0;
    for (toy, k) in small_toys() {
        let rule = rule(toy);
        let law = enumerate(|chooser| {
            let mut loose = LooseChooser(std::mem::take(chooser));
            let draft = draw_chain(&[], k, |context| toy.q(context), &mut loose);
            let text = round(&[], &draft, |context| toy.p(context), rule.as_ref(), &mut loose);
            *chooser = loose.0;
            text
        });
        for (text, probability) in law {
            let impossible = |i: usize| toy.p(&text[..i]).log_prob(text[i]) == f32::NEG_INFINITY;
            weight += if (0..text.len()).any(impossible) { probability } else { 0.0 };
        }
    }
    weight
}

#[test]
fn accepting_the_impossible_is_caught() {
    assert_eq!(impossible_tokens(|_| Box::new(Rejection)), 0.0);
    assert_eq!(impossible_tokens(|_| Box::new(Block)), 0.0);
    let loose = |toy: Toy| Box::new(Faulty { vocab: toy.vocab, fault: Fault::ZeroAccepted }) as Box<_>;
    assert!(impossible_tokens(loose) > CAUGHT);
}

/// A draft of another vocabulary draws over its own tokens and ends where the target has no such token, instead of drawing
/// over those that both have.
#[test]
fn drawing_before_the_restriction_is_caught() {
    let error = worst(|toy, k| {
        enumerate(|chooser| {
            let mut draft = Draft::default();
            for i in 0..k {
                let q = Toy { vocab: toy.vocab + 1, ..toy }.q(&draft.tokens);
                let token = q.draw(chooser, i);
                if token == toy.vocab {
                    break;
                }
                draft.push(token, q);
            }
            round(&[], &draft, |context| toy.p(context), &Rejection, chooser)
        })
    });
    assert!(error > CAUGHT, "{error:e}");
}

/// A drawn token is looked at, and dropped because it or its chain looks weak, or because the target cannot say it.
#[test]
fn dropping_after_the_draw_is_caught() {
    type Keep = fn(Toy, &Draft) -> usize;
    let cases: [(&str, Keep); 3] = [
        ("stop at a weak token", |_, draft| {
            let weak = |i: &usize| draft.q[*i].log_prob(draft.tokens[*i]) < -1.2;
            (0..draft.len()).find(weak).unwrap_or(draft.len())
        }),
        ("clear a weak chain", |_, draft| {
            let weak = draft.tokens.iter().zip(&draft.q).any(|(&x, q)| q.log_prob(x) < -1.2);
            if weak { 0 } else { draft.len() }
        }),
        ("cut at the first illegal token", |toy, draft| {
            let illegal =
                |i: &usize| toy.p(&draft.tokens[..*i]).log_prob(draft.tokens[*i]) == f32::NEG_INFINITY;
            (0..draft.len()).find(illegal).unwrap_or(draft.len())
        }),
    ];
    for ((name, keep), (rule_name, rule)) in
        cases.into_iter().flat_map(|case| RATIO_RULES.map(|rule| (case, rule)))
    {
        let error = worst(|toy, k| {
            enumerate(|chooser| {
                let mut draft = draw_chain(&[], k, |context| toy.q(context), chooser);
                let kept = keep(toy, &draft);
                draft.tokens.truncate(kept);
                draft.q.truncate(kept);
                round(&[], &draft, |context| toy.p(context), rule, chooser)
            })
        });
        assert!(error > CAUGHT, "{name} went unnoticed by {rule_name}: {error:e}");
    }
}

/// A plan that would drop drawn tokens for what they are is harmless where the round lets it drop guesses only, and is
/// caught where the round lets it.
#[test]
fn a_plan_that_drops_drawn_tokens_is_caught() {
    for (name, rule) in RATIO_RULES {
        let with = |may_drop: fn(&Draft) -> usize| {
            worst(|toy, k| {
                enumerate(|chooser| {
                    let mut pace = Adversary { max_tokens: k }.new_pace();
                    let draft = draft_at(&mut *pace, &[], toy.vocab, |text| toy.q(text), may_drop, chooser);
                    round(&[], &draft, |context| toy.p(context), rule, chooser)
                })
            })
        };
        let error = with(Draft::num_droppable);
        assert!(error < TOLERANCE, "{name}: {error:e}");
        let error = with(Draft::len);
        assert!(error > CAUGHT, "{name} did not notice: {error:e}");
    }
}

/// The largest error of a way to score the target's rows, after three output tokens.
fn worst_scoring(row: impl Fn(&SampledToy, &[u32], &[u32], usize) -> Distribution) -> f64 {
    let start = [3, 1, 1];
    (0..6)
        .map(|seed| {
            let toy = SampledToy::new(seed);
            let law = toy.law(&start, 2, &Rejection, |tokens, i| row(&toy, &start, tokens, i));
            toy.error(&start, 2, &law)
        })
        .fold(0.0, f64::max)
}

#[test]
fn rows_scored_with_the_wrong_parameters_are_caught() {
    type Row = fn(&SampledToy, &[u32], &[u32], usize) -> Distribution;
    let right: Row = |toy, start, tokens, i| toy.p(&concat(start, &tokens[..i]));
    assert!(worst_scoring(right) < TOLERANCE);

    let unfiltered_bonus: Row = |toy, start, tokens, i| {
        let mut toy = toy.clone();
        if i == tokens.len() {
            toy.target = SamplingParams { top_k: 0, top_p: 1.0, min_p: 0.0, ..toy.target };
        }
        toy.p(&concat(start, &tokens[..i]))
    };
    let penalties_only_on_the_bonus: Row = |toy, start, tokens, i| {
        let text = concat(start, &tokens[..i]);
        let history = if i == tokens.len() { toy.history(&text) } else { History::default() };
        toy.scored(&text, &history)
    };
    let penalties_from_round_start: Row =
        |toy, start, tokens, i| toy.scored(&concat(start, &tokens[..i]), &toy.history(start));
    let pending_token_twice: Row = |toy, start, tokens, i| {
        let text = concat(start, &tokens[..i]);
        let mut history = toy.history(&text);
        history.push(start[start.len() - 1]);
        toy.scored(&text, &history)
    };
    for (name, row) in [
        ("bonus from the unfiltered distribution", unfiltered_bonus),
        ("penalties on the bonus row only", penalties_only_on_the_bonus),
        ("penalties from the start of the round", penalties_from_round_start),
        ("pending token counted twice", pending_token_twice),
    ] {
        let error = worst_scoring(row);
        assert!(error > CAUGHT, "{name} went unnoticed: {error:e}");
    }
}

/// What looks back must look back from each row, not from the start of the round: DRY, bans, the token count,
/// mirostat's bound, the position of XTC's coin, a user's processor.
#[test]
fn rows_scored_with_the_history_of_the_rounds_start_are_caught() {
    type Row = fn(&SampledToy, &[u32], &[u32], usize) -> Distribution;
    let right: Row = |toy, start, tokens, i| toy.p(&concat(start, &tokens[..i]));
    let from_the_start: Row =
        |toy, start, tokens, i| toy.scored(&concat(start, &tokens[..i]), &toy.history(start));
    for Feature { name, params, looks_back } in features::all() {
        let worst = |row: Row| {
            let error = |seed| {
                let params = SamplingParams { seed: Some(seed), ..params.clone() };
                let (toy, start) = (SampledToy::with(seed, params), [3, 1, 3]);
                toy.error(
                    &start,
                    2,
                    &toy.law(&start, 2, &Rejection, |tokens, i| row(&toy, &start, tokens, i)),
                )
            };
            (0..6).map(error).fold(0.0, f64::max)
        };
        let (right, wrong) = (worst(right), worst(from_the_start));
        assert!(right < TOLERANCE, "{name}: {right:e}");
        assert_eq!(wrong > CAUGHT, looks_back, "{name}: {wrong:e}");
    }
}

/// The grammar's state is that of the text with the tokens that were rejected still in it.
#[test]
fn a_grammar_advanced_by_rejected_tokens_is_caught() {
    let Feature { params, .. } =
        features::all().into_iter().find(|feature| feature.name == "grammar").unwrap();
    let worst = |keeps_rejected: bool| {
        let error = |seed| {
            let toy = SampledToy::with(seed, SamplingParams { seed: Some(seed), ..params.clone() });
            let law = enumerate(|chooser| {
                // What was said, and what the grammar was told.
                let (mut text, mut told) = (Vec::new(), Vec::new());
                for _ in 0..2 {
                    let draft = draw_chain(&text, 1, |text| toy.q(text), chooser);
                    let row = |i: usize| {
                        let said = concat(&text, &draft.tokens[..i]);
                        Ok(toy.scored(&said, &toy.history(&concat(&told, &draft.tokens[..i]))))
                    };
                    let verdict = rejection(&draft, row, chooser).unwrap();
                    let kept = concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token]);
                    if keeps_rejected && verdict.num_accepted == 0 && text.is_empty() {
                        told.extend(&draft.tokens);
                        told = allowed(&toy, told, verdict.next_token);
                    } else {
                        told.extend(&kept);
                    }
                    text.extend(kept);
                }
                text
            });
            law_error(&law, 4, 4, |text| toy.p(text))
        };
        (0..6).map(error).fold(0.0, f64::max)
    };
    let (right, wrong) = (worst(false), worst(true));
    assert!(right < TOLERANCE, "{right:e}");
    assert!(wrong > CAUGHT, "{wrong:e}");
}

/// `told` with `id`, or as it is where the grammar would not have it.
fn allowed(toy: &SampledToy, told: Vec<u32>, id: u32) -> Vec<u32> {
    let is_allowed = toy.p(&told).log_prob(id) > f32::NEG_INFINITY;
    if is_allowed { concat(&told, &[id]) } else { told }
}

/// Mirostat is told of a drafted token, but not how likely it was: its bound stands still during the round.
#[test]
fn a_surprise_that_is_not_recorded_is_caught() {
    let mut worst = 0.0_f64;
    for seed in 0..6 {
        let mirostat = Some(Mirostat { tau: 1.0, eta: 0.7 });
        let params = SamplingParams { temperature: 1.0, mirostat, ..SamplingParams::greedy() };
        let (toy, start) = (SampledToy::with(seed, params), [3, 1, 3]);
        let law = toy.law(&start, 2, &Rejection, |tokens, i| {
            let mut history = toy.history(&start);
            tokens[..i].iter().for_each(|&id| history.push(id));
            toy.scored(&concat(&start, &tokens[..i]), &history)
        });
        worst = worst.max(toy.error(&start, 2, &law));
    }
    assert!(worst > CAUGHT, "{worst:e}");
}

/// The coin of XTC, thrown anew for each row instead of once for each position: the draft's row and the
/// target's, or two tries of a round, then disagree, and the text of a seed isn't what plain decoding says.
#[test]
fn a_coin_thrown_anew_is_caught() {
    let xtc = Some(Xtc { probability: 0.5, threshold: 0.1 });
    let params = SamplingParams { temperature: 1.0, xtc, ..SamplingParams::greedy() };
    let mut worst = 0.0_f64;
    for seed in 0..6 {
        let with = |coin| SampledToy::with(seed, SamplingParams { seed: Some(coin), ..params.clone() });
        let (toy, start) = (with(seed), [3, 1, 3]);
        let law = toy.law(&start, 2, &Rejection, |tokens, i| {
            with(100 + seed + i as u64).p(&concat(&start, &tokens[..i]))
        });
        worst = worst.max(toy.error(&start, 2, &law));
    }
    assert!(worst > CAUGHT, "{worst:e}");
}

/// A stop token ends the text wherever in a round it stands.
#[test]
fn a_stop_token_missed_inside_a_round_is_caught() {
    const STOP: u32 = 0;
    const LEN: usize = 3;
    // Both laws are of whole texts: up to the stop token, or `LEN` tokens long.
    let law = |toy: Toy, cut: fn(&mut Vec<u32>) -> bool| {
        enumerate(|chooser| {
            let mut text = Vec::new();
            while text.len() < LEN {
                let draft = draw_chain(&text, 2, |context| toy.q(context), chooser);
                text.extend(round(&text, &draft, |context| toy.p(context), &Rejection, chooser));
                if cut(&mut text) {
                    break;
                }
            }
            text.truncate(LEN);
            text
        })
    };
    let plain = |toy: Toy| {
        enumerate(|chooser| {
            let mut text = Vec::new();
            while text.len() < LEN && text.last() != Some(&STOP) {
                text.push(toy.p(&text).draw(chooser, 0));
            }
            text
        })
    };
    let everywhere = |text: &mut Vec<u32>| match text.iter().position(|&id| id == STOP) {
        Some(at) => {
            text.truncate(at + 1);
            true
        }
        None => false,
    };
    let at_the_end_only = |text: &mut Vec<u32>| text.last() == Some(&STOP);
    let distance = |a: &Law<Vec<u32>>, b: &Law<Vec<u32>>| {
        let probability = |law: &Law<Vec<u32>>, text| law.get(text).copied().unwrap_or(0.0);
        let texts = a.keys().chain(b.keys());
        texts.map(|text| (probability(a, text) - probability(b, text)).abs()).fold(0.0, f64::max)
    };
    let (mut right, mut wrong) = (0.0_f64, 0.0_f64);
    for seed in 0..4 {
        let toy = Toy { vocab: 3, seed };
        right = right.max(distance(&law(toy, everywhere), &plain(toy)));
        wrong = wrong.max(distance(&law(toy, at_the_end_only), &plain(toy)));
    }
    assert!(right < TOLERANCE, "{right:e}");
    assert!(wrong > CAUGHT, "{wrong:e}");
}

/// Tokens in a text of the tests that draw, and drafted tokens in a round of them.
const LEN: u32 = 4;
const NUM_DRAFTED: u32 = 3;

/// How well texts drawn with production noise follow the target's law: χ² and its limit. `round` gives the
/// tokens that a round adds to a text, from a seed's noise and the number of the round.
fn chi_square_of_texts(toy: Toy, round: impl Fn(&Table, Noise, &[u32], u32) -> Vec<u32>) -> (f64, f64) {
    let table = Table::new(toy, LEN - 1 + NUM_DRAFTED);
    let cell = |text: &[u32]| text.iter().fold(0, |cell, &id| cell * toy.vocab as usize + id as usize);
    let mut counts = vec![0; toy.vocab.pow(LEN) as usize];
    for seed in 0..60_000 {
        let mut text = Vec::new();
        for index in 0.. {
            if text.len() >= LEN as usize {
                break;
            }
            text.extend(round(&table, Noise::new(seed), &text, index));
        }
        counts[cell(&text[..LEN as usize])] += 1;
    }
    let law = enumerate(|chooser| {
        let mut text = Vec::new();
        (0..LEN as usize).for_each(|i| text.push(toy.p(&text).draw(chooser, i)));
        text
    });
    let mut expected = vec![0.0; counts.len()];
    law.iter().for_each(|(text, probability)| expected[cell(text)] = *probability);
    chi_square(&counts, &expected)
}

fn drawn_round<C: Chooser>(
    table: &Table,
    text: &[u32],
    rule: &dyn Rule<C>,
    drafter: &mut impl Picker,
    verifier: &mut C,
) -> Vec<u32> {
    let draft = draw_chain(text, NUM_DRAFTED as usize, |context| table.q(context).clone(), drafter);
    round(text, &draft, |context| table.p(context).clone(), rule, verifier)
}

/// Asserts that texts follow the law under `right` and are far from it, for some toy, under `wrong`.
fn assert_only_one_is_caught(
    right: impl Fn(&Table, Noise, &[u32], u32) -> Vec<u32>,
    wrong: impl Fn(&Table, Noise, &[u32], u32) -> Vec<u32>,
) {
    let mut caught = 0;
    for seed in 0..3 {
        let toy = Toy { vocab: 3, seed };
        let (found, limit) = chi_square_of_texts(toy, &right);
        assert!(found < limit, "{toy:?}: chi-square {found:.1}, limit {limit:.1}");
        let (found, limit) = chi_square_of_texts(toy, &wrong);
        caught += usize::from(found > 2.0 * limit);
    }
    assert!(caught > 0);
}

fn at(text: &[u32]) -> u64 {
    text.len() as u64
}

/// The drafter draws with the noise the residual is drawn with: the token just rejected is favoured again.
#[test]
fn noise_shared_by_draft_and_residual_is_caught() {
    for rule in [&Rejection as &dyn Rule<RoundNoise>, &Block] {
        let with = |drafter: fn(Noise, u64, u32) -> RoundNoise| {
            move |table: &Table, noise, text: &[u32], index| {
                let mut verifier = RoundNoise::verify(noise, at(text), index);
                drawn_round(table, text, rule, &mut drafter(noise, at(text), index), &mut verifier)
            }
        };
        assert_only_one_is_caught(with(RoundNoise::draft), with(RoundNoise::verify));
    }
}

/// Draws with the noise of coupled sampling, and accepts by ratio: what the types keep apart.
struct CoupledRatio(CoupledNoise, RoundNoise);

impl Picker for CoupledRatio {
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        self.0.pick(index, weights)
    }
}

impl Chooser for CoupledRatio {
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool {
        self.1.accept(index, ln_ratio)
    }
}

#[test]
fn coupled_noise_under_a_ratio_test_is_caught() {
    let right = |table: &Table, noise, text: &[u32], index| {
        let mut verifier = RoundNoise::verify(noise, at(text), index);
        drawn_round(table, text, &Rejection, &mut RoundNoise::draft(noise, at(text), index), &mut verifier)
    };
    assert_only_one_is_caught(right, |table, noise, text, index| {
        let shared = CoupledNoise::new(noise, at(text));
        let mut verifier = CoupledRatio(shared.clone(), RoundNoise::verify(noise, at(text), index));
        drawn_round(table, text, &Rejection, &mut shared.clone(), &mut verifier)
    });
}

/// Block verification looks past the tokens that stand; a position drafted again must not meet the same
/// noise. The ratio test never looks there and does not mind.
#[test]
fn noise_of_the_position_alone_is_caught_in_block_mode() {
    let with = |rule: &'static dyn Rule<RoundNoise>, keyed: fn(u32) -> u32| {
        move |table: &Table, noise, text: &[u32], index| {
            let mut verifier = RoundNoise::verify(noise, at(text), keyed(index));
            drawn_round(
                table,
                text,
                rule,
                &mut RoundNoise::draft(noise, at(text), keyed(index)),
                &mut verifier,
            )
        }
    };
    assert_only_one_is_caught(with(&Rejection, |_| 0), with(&Block, |_| 0));
    assert_only_one_is_caught(with(&Block, |round| round), with(&Block, |_| 0));
}
