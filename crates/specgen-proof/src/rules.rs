//! The rules themselves, on toy models: every way a round can go, with its exact probability.

use serde::Serialize;
use specgen::{
    Verification,
    rng::Noise,
    verify::{CoupledNoise, Draft, DraftNoise, block, coupled, rejection},
};

use crate::{
    Watch,
    enumeration::{EnumChooser, TOLERANCE, enumerate},
    toy::{Toy, concat, draw_chain, toys},
};

/// Toys worth their time here: a round on a larger one has tens of thousands of outcomes.
const MAX_DRAFT: usize = 3;
const MAX_VOCAB: u32 = 4;
/// Texts drawn with shared noise, each of so many tokens.
const COUPLED_TEXTS: u64 = 2000;
const COUPLED_TOKENS: usize = 6;

/// A rule on toy models.
#[derive(Clone, Debug, Serialize)]
pub struct RuleCheck {
    /// The rule's name.
    pub rule: &'static str,
    /// How many toys it was run on: enumerated, or sampled where the rule draws with shared noise.
    pub runs: usize,
    /// The largest error of a text's probability; with shared noise, the share of texts that are not plain decoding's.
    pub error: f64,
    /// What rounding may make of it.
    pub tolerance: f64,
}

impl RuleCheck {
    /// Whether the rule leaves the target its law.
    pub fn holds(&self) -> bool {
        self.error <= self.tolerance
    }
}

/// Runs `rules` on the toys.
pub(crate) fn check(rules: &[Verification], watch: &dyn Watch) -> Vec<RuleCheck> {
    watch.stage("rules on toy models", rules.len() as u64);
    let run = |&rule: &Verification| {
        let check = match rule {
            Verification::Coupled => check_coupled(),
            _ => check_by_enumeration(rule),
        };
        watch.advance(1);
        check
    };
    rules.iter().map(run).collect()
}

fn check_by_enumeration(rule: Verification) -> RuleCheck {
    let small = |&(toy, k): &(Toy, usize)| toy.vocab <= MAX_VOCAB && k <= MAX_DRAFT;
    let (mut runs, mut error) = (0, 0.0_f64);
    for (toy, k) in toys().filter(small) {
        let law = enumerate(|chooser| {
            let draft = draw_chain(&[], k, |context| toy.q(context), chooser);
            round(toy, &draft, rule, chooser)
        });
        (runs, error) = (runs + 1, error.max(toy.error(k, &law)));
    }
    RuleCheck { rule: rule.name(), runs, error, tolerance: TOLERANCE }
}

/// The tokens a round adds to an empty text.
fn round(toy: Toy, draft: &Draft, rule: Verification, chooser: &mut EnumChooser) -> Vec<u32> {
    let p = |i: usize| Ok(toy.p(&draft.tokens[..i]));
    let verdict = match rule {
        Verification::Block => block(draft, p, chooser),
        _ => rejection(draft, p, chooser),
    };
    let verdict = verdict.expect("a draft drawn from its q, and rows that are distributions");
    concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token])
}

/// With shared noise there is nothing to enumerate: a text must be plain decoding's, for every seed.
fn check_coupled() -> RuleCheck {
    let toys: Vec<(Toy, usize)> = toys().collect();
    let differs = |&seed: &u64| {
        let (toy, k) = toys[seed as usize % toys.len()];
        coupled_text(toy, k, seed) != coupled_text(toy, 0, seed)
    };
    let different = (0..COUPLED_TEXTS).filter(differs).count();
    RuleCheck {
        rule: Verification::Coupled.name(),
        runs: COUPLED_TEXTS as usize,
        error: different as f64 / COUPLED_TEXTS as f64,
        tolerance: 0.0,
    }
}

fn coupled_text(toy: Toy, k: usize, seed: u64) -> Vec<u32> {
    let mut text = Vec::new();
    while text.len() < COUPLED_TOKENS {
        let mut noise = CoupledNoise::new(Noise::new(seed), text.len() as u64);
        let (mut draft, mut draft_noise) = (Draft::default(), DraftNoise::Shared(noise.clone()));
        for _ in 0..k {
            draft.draw(toy.q(&concat(&text, &draft.tokens)), &mut draft_noise);
        }
        let p = |i: usize| Ok(toy.p(&concat(&text, &draft.tokens[..i])));
        let verdict = coupled(&draft, p, &mut noise).expect("rows that are distributions");
        text.extend_from_slice(&draft.tokens[..verdict.num_accepted]);
        text.push(verdict.next_token);
    }
    text.truncate(COUPLED_TOKENS);
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Unwatched;

    #[test]
    fn every_rule_holds() {
        for check in check(&Verification::ALL, &Unwatched) {
            assert!(check.holds() && check.runs > 100, "{check:?}");
        }
    }

    /// A draft that was not drawn from its `q` is what the enumeration must object to.
    #[test]
    fn a_draft_that_lies_is_seen() {
        let toy = Toy { vocab: 3, seed: 2 };
        let law = enumerate(|chooser| {
            let mut draft = draw_chain(&[], 2, |context| toy.q(context), chooser);
            draft.q = (0..2).map(|i| toy.p(&draft.tokens[..i])).collect();
            match draft.tokens.iter().zip(&draft.q).all(|(&id, q)| q.log_prob(id) > f32::NEG_INFINITY) {
                true => round(toy, &draft, Verification::Rejection, chooser),
                false => vec![0],
            }
        });
        assert!(toy.error(2, &law) > 1e-3);
    }
}
