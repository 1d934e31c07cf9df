//! The enumeration harness, tested: each of these mistakes has been made somewhere, and each must be caught.
//!
//! A wrong procedure must be off by [`CAUGHT`] on at least one model, where a right one is within 1e-12 on all.

#![allow(clippy::unwrap_used)]

use specgen::distribution::Distribution;
use specgen::rng::{CoupledNoise, Noise, RoundNoise};
use specgen::sampling::{History, Mirostat, Sampler, SamplingParams, Xtc};
use specgen::verify::{Chooser, Draft, Picker, rejection};
use specgen_tests::enumeration::{EnumChooser, Law, TOLERANCE, enumerate, exact, law_error};
use specgen_tests::faults::{BlockFault, Fault, Faulty, FaultyBlock};
use specgen_tests::features::{self, Feature};
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

/// `q` is recorded at another temperature than it was drawn at (or in another precision: the same thing, smaller).
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

/// What looks back must look back from each row, not from the start of the round: DRY, bans, the token count, mirostat's
/// bound, the position of XTC's coin, a user's processor.
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

/// The coin of XTC, thrown anew for each row instead of once for each position: the draft's row and the target's, or two
/// tries of a round, then disagree, and the text of a seed isn't what plain decoding says.
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

/// How well texts drawn with production noise follow the target's law: χ² and its limit. `round` gives the tokens that a
/// round adds to a text, from a seed's noise and the number of the round.
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

/// Block verification looks past the tokens that stand; a position drafted again must not meet the same noise. The ratio
/// test never looks there and does not mind.
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
