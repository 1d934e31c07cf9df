//! Coupled sampling: one seed, one text, whatever drafts it; the text has the target's law; and target and draft agree
//! as often as the formula says.

#![allow(clippy::unwrap_used)]

use specgen::distribution::Distribution;
use specgen::rng::{CoupledNoise, Noise, RoundNoise};
use specgen::verify::{Draft, DraftNoise, coupled};
use specgen_tests::enumeration::{enumerate, exact};
use specgen_tests::statistics::chi_square;
use specgen_tests::toy::{Table, Toy, concat};

const LEN: usize = 5;
const NUM_DRAFTED: usize = 3;

/// A text by plain decoding.
fn plain(table: &Table, noise: Noise) -> Vec<u32> {
    let mut text = Vec::new();
    for _ in 0..LEN {
        let next = table.p(&text).draw(&mut CoupledNoise::new(noise, text.len() as u64), 0);
        text.push(next);
    }
    text
}

/// A chain of `k` tokens after `text`, each drawn from the toy's `q`.
fn drawn(table: &Table, text: &[u32], k: usize, mut noise: DraftNoise) -> Draft {
    let mut draft = Draft::default();
    for _ in 0..k {
        let q = table.q(&concat(text, &draft.tokens)).clone();
        draft.draw(q, &mut noise);
    }
    draft
}

/// What drafts after `text` in round `index`; `said` is what plain decoding says.
type Drafter = fn(&Table, Noise, &[u32], u32, &[u32]) -> Draft;

const DRAFTERS: [(&str, Drafter); 6] = [
    ("the target's noise", |table, noise, text, _, _| {
        drawn(table, text, NUM_DRAFTED, DraftNoise::Shared(CoupledNoise::new(noise, text.len() as u64)))
    }),
    ("its own noise", |table, noise, text, index, _| {
        drawn(table, text, NUM_DRAFTED, DraftNoise::Own(RoundNoise::draft(noise, text.len() as u64, index)))
    }),
    ("guesses", |_, _, text, _, _| Draft::deterministic(vec![text.len() as u32 % 4, 1, 0])),
    ("always right", |_, _, text, _, said| Draft::deterministic(said[text.len()..].to_vec())),
    ("always wrong", |_, _, text, _, said| {
        Draft::deterministic(said[text.len()..].iter().map(|id| (id + 1) % 4).collect())
    }),
    ("random lengths", |table, noise, text, index, _| {
        let k = (noise.seed() as usize * 7 + index as usize * 5 + text.len()) % (NUM_DRAFTED + 1);
        drawn(table, text, k, DraftNoise::Shared(CoupledNoise::new(noise, text.len() as u64)))
    }),
];

/// A text in rounds of `drafter`, and how many it took.
fn in_rounds(table: &Table, noise: Noise, drafter: Drafter, said: &[u32]) -> (Vec<u32>, u32) {
    let mut text = Vec::new();
    for index in 0.. {
        if text.len() >= LEN {
            text.truncate(LEN);
            return (text, index);
        }
        let draft = drafter(table, noise, &text, index, said);
        let p = |i: usize| Ok(table.p(&concat(&text, &draft.tokens[..i])).clone());
        let verdict = coupled(&draft, p, &mut CoupledNoise::new(noise, text.len() as u64)).unwrap();
        text.extend(concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token]));
    }
    unreachable!("a round adds a token")
}

#[test]
fn a_hundred_thousand_seeds_have_one_text_each() {
    for seed in 0..4 {
        let table = Table::new(Toy { vocab: 4, seed }, (LEN + NUM_DRAFTED) as u32);
        let mut rounds = [0; DRAFTERS.len()];
        for seed in 0..25_000 {
            let noise = Noise::new(seed);
            let said = plain(&table, noise);
            for ((name, drafter), rounds) in DRAFTERS.into_iter().zip(&mut rounds) {
                let (text, num_rounds) = in_rounds(&table, noise, drafter, &said);
                assert_eq!(text, said, "{name}, seed {seed}");
                *rounds += num_rounds;
            }
        }
        // And it pays to share the noise.
        assert!(rounds[0] < rounds[1] && rounds[3] <= rounds[0] && rounds[1] < rounds[4], "{rounds:?}");
    }
}

/// Over seeds, texts have the target's law, and with it positions are independent where the target has no memory.
#[test]
fn texts_follow_the_law() {
    for seed in 0..6 {
        let toy = Toy { vocab: 4, seed };
        let table = Table::new(toy, LEN as u32);
        let cell = |text: &[u32]| text.iter().fold(0, |cell, &id| cell * 4 + id as usize);
        let mut counts = vec![0; 4_usize.pow(LEN as u32)];
        (0..200_000).for_each(|seed| counts[cell(&plain(&table, Noise::new(seed)))] += 1);
        let mut expected = vec![0.0; counts.len()];
        let law = enumerate(|chooser| {
            let mut text = Vec::new();
            (0..LEN).for_each(|i| text.push(table.p(&text).draw(chooser, i)));
            text
        });
        law.iter().for_each(|(text, probability)| expected[cell(text)] = *probability);
        let (statistic, limit) = chi_square(&counts, &expected);
        assert!(statistic < limit, "{toy:?}: chi-square {statistic:.1}, limit {limit:.1}");
    }
}

/// Draws at neighbouring positions, and of neighbouring seeds, are independent.
#[test]
fn positions_and_seeds_are_independent() {
    let p = [0.05_f64, 0.4, 0.15, 0.3, 0.1];
    let row = Distribution::Dense(p.iter().map(|p| p.ln() as f32).collect());
    let draw = |seed, position| row.draw(&mut CoupledNoise::new(Noise::new(seed), position), 0) as usize;
    type Pair<'a> = &'a dyn Fn(u64) -> (usize, usize);
    let pairs: [(&str, Pair<'_>); 4] = [
        ("positions of a seed", &|i| (draw(1, 2 * i), draw(1, 2 * i + 1))),
        ("positions over seeds", &|i| (draw(i, 0), draw(i, 1))),
        ("neighbouring seeds", &|i| (draw(2 * i, 7), draw(2 * i + 1, 7))),
        ("across 2^32", &|i| (draw(i, 5), draw(i, 5 + (1 << 32)))),
    ];
    for (name, pair) in pairs {
        let mut counts = vec![0; 25];
        for i in 0..200_000 {
            let (a, b) = pair(i);
            counts[5 * a + b] += 1;
        }
        let expected: Vec<f64> = (0..25).map(|cell| p[cell / 5] * p[cell % 5]).collect();
        let (statistic, limit) = chi_square(&counts, &expected);
        assert!(statistic < limit, "{name}: chi-square {statistic:.1}, limit {limit:.1}");
    }
}

/// `Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i)`: how often draws from `p` and `q` with one noise agree.
fn agreement(p: &[f64], q: &[f64]) -> f64 {
    let both = (0..p.len()).filter(|&i| p[i] > 0.0 && q[i] > 0.0);
    both.map(|i| 1.0 / p.iter().zip(q).map(|(pj, qj)| (pj / p[i]).max(qj / q[i])).sum::<f64>()).sum()
}

#[test]
fn target_and_draft_agree_as_often_as_the_formula_says() {
    let draws = 40_000_u32;
    for vocab in [2, 5, 50] {
        for seed in 0..12 {
            let toy = Toy { vocab, seed };
            let (p_row, q_row) = (toy.p(&[]), toy.q(&[]));
            let (p, q) = (exact(&p_row, vocab), exact(&q_row, vocab));
            let distance = 1.0 - p.iter().zip(&q).map(|(p, q)| p.min(*q)).sum::<f64>();
            let wanted = agreement(&p, &q);
            assert!(
                wanted <= 1.0 - distance + 1e-12 && wanted >= (1.0 - distance) / (1.0 + distance) - 1e-12
            );
            let agree = |&position: &u32| {
                let mut noise = CoupledNoise::new(Noise::new(seed), position.into());
                p_row.draw(&mut noise, 0) == q_row.draw(&mut noise, 0)
            };
            let found = (0..draws).filter(agree).count() as f64 / f64::from(draws);
            let deviation = (wanted * (1.0 - wanted) / f64::from(draws)).sqrt();
            assert!((found - wanted).abs() < 5.0 * deviation + 1e-9, "{toy:?}: {found}, not {wanted}");
            if vocab == 2 {
                assert!((wanted - (1.0 - distance)).abs() < 1e-12, "two tokens lose nothing");
            }
        }
    }
}
