//! Wrong acceptance rules, each a mistake made somewhere before, to show that the tests would catch it.

use crate::enumeration::exact;
use crate::toy::{Rule, Scored, Toy};
use specgen::verify::{Chooser, Verdict};

/// What is wrong with a [`Faulty`] rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// Nothing: the rule is right, which shows that the others fail for their fault alone.
    None,
    /// The correction comes from `p`: the residual is not subtracted.
    NoResidual,
    /// The correction comes from the residual, but a token is accepted whenever it is the most likely one.
    ArgmaxAcceptance,
    /// `u <= ratio` with a `u` that can be 0: accepts what has probability 0.
    ZeroAccepted,
    /// Residual probabilities are paired by rank in the two lists of likely tokens, not by id.
    PairedByRank,
    /// The ratio is `p / (q + 0.01)`.
    Epsilon,
    /// The bonus token comes from the row of the last draft token: off by one.
    BonusFromLastRow,
}

/// The ratio test written out plainly over dense rows, with one fault.
#[derive(Debug, Clone, Copy)]
pub struct Faulty {
    /// Number of tokens.
    pub vocab: u32,
    /// The fault.
    pub fault: Fault,
}

impl<C: Chooser> Rule<C> for Faulty {
    fn verify(&self, Scored { draft, p }: Scored<'_>, chooser: &mut C) -> Verdict {
        let mut row = |i| exact(&p(i).expect("toy models do not fail"), self.vocab);
        let verdict =
            |num_accepted, next_token| Verdict { num_accepted, next_token, residual_underflow: false };
        let g = draft.len();
        for i in 0..g {
            let (p, q, x) = (row(i), exact(&draft.q[i], self.vocab), draft.tokens[i] as usize);
            let ratio = match self.fault {
                Fault::Epsilon => p[x] / (q[x] + 0.01),
                Fault::ArgmaxAcceptance => f64::from(p.iter().all(|&other| other <= p[x])),
                _ => p[x] / q[x],
            };
            let accepted = match self.fault {
                Fault::ZeroAccepted => chooser.accept(i, ratio.ln()),
                _ => ratio > 0.0 && chooser.accept(i, ratio.ln()),
            };
            if accepted {
                continue;
            }
            let residual: Vec<f64> = match self.fault {
                Fault::NoResidual => p.clone(),
                Fault::PairedByRank => {
                    let mut ranked = q.clone();
                    ranked.sort_by(|a, b| b.total_cmp(a));
                    let mut ids: Vec<usize> = (0..p.len()).collect();
                    ids.sort_by(|&a, &b| p[b].total_cmp(&p[a]));
                    let mut residual = vec![0.0; p.len()];
                    ids.iter().zip(ranked).for_each(|(&id, q)| residual[id] = (p[id] - q).max(0.0));
                    residual
                }
                _ => p.iter().zip(&q).map(|(p, q)| (p - q).max(0.0)).collect(),
            };
            let drawn = chooser.pick(i, (0..).zip(residual));
            let next_token = drawn.or_else(|| chooser.pick(i, (0..).zip(p))).expect("p has a possible token");
            return verdict(i, next_token);
        }
        let last = if self.fault == Fault::BonusFromLastRow && g > 0 { g - 1 } else { g };
        verdict(g, chooser.pick(g, (0..).zip(row(last))).expect("p has a possible token"))
    }
}

/// What is wrong with a [`FaultyBlock`] rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockFault {
    /// Nothing.
    None,
    /// The correction comes from the ratio test's residual `max(0, p - q)`, without the weight.
    TokenResidual,
    /// Lengths are tried from the shortest on, and the first no ends it.
    FirstFailure,
    /// Weights are not cut at 1.
    UncutWeights,
    /// The last token stands with the chance of the others: `Z` is taken as 1 there.
    LastLikeTheOthers,
}

/// Block verification written out plainly over dense rows, with one fault.
#[derive(Debug, Clone, Copy)]
pub struct FaultyBlock {
    /// Number of tokens.
    pub vocab: u32,
    /// The fault.
    pub fault: BlockFault,
}

impl<C: Chooser> Rule<C> for FaultyBlock {
    fn verify(&self, Scored { draft, p }: Scored<'_>, chooser: &mut C) -> Verdict {
        let g = draft.len();
        let p: Vec<Vec<f64>> =
            (0..=g).map(|i| exact(&p(i).expect("toy models do not fail"), self.vocab)).collect();
        let q: Vec<Vec<f64>> = draft.q.iter().map(|q| exact(q, self.vocab)).collect();
        let mut w = vec![1.0];
        for (i, &x) in draft.tokens.iter().enumerate() {
            let weight = w[i] * p[i][x as usize] / q[i][x as usize];
            w.push(if self.fault == BlockFault::UncutWeights { weight } else { weight.min(1.0) });
        }
        let residual = |i: usize, w: f64| -> Vec<f64> {
            p[i].iter().zip(&q[i]).map(|(p, q)| (w * p - q).max(0.0)).collect()
        };
        let chance = |i: usize| -> f64 {
            let z: f64 = match i == g {
                true if self.fault == BlockFault::LastLikeTheOthers => 1.0,
                true => return w[g],
                false => residual(i, w[i]).iter().sum(),
            };
            if z + 1.0 - w[i] <= 0.0 { 1.0 } else { z / (z + 1.0 - w[i]) }
        };
        let stands: Vec<bool> = (1..=g).map(|i| chooser.accept(i - 1, chance(i).ln())).collect();
        let a = match self.fault {
            BlockFault::FirstFailure => stands.iter().take_while(|&&yes| yes).count(),
            _ => stands.iter().rposition(|&yes| yes).map_or(0, |i| i + 1),
        };
        let weights = match a == g {
            true => p[g].clone(),
            false if self.fault == BlockFault::TokenResidual => residual(a, 1.0),
            false => residual(a, w[a]),
        };
        let drawn = chooser.pick(a, (0..).zip(weights));
        let next_token =
            drawn.or_else(|| chooser.pick(a, (0..).zip(p[a].clone()))).expect("p has a possible token");
        Verdict { num_accepted: a, next_token, residual_underflow: false }
    }
}

/// What is wrong with a round of siblings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SiblingFault {
    /// Nothing.
    None,
    /// They are tried from the most likely to the least, not as they were drawn.
    SortedByScore,
    /// `q` keeps the mass of a sibling that fell.
    MassKept,
    /// They are drawn independently, so that one may come twice, and verified as if none could.
    DrawnTwice,
    /// They are the most likely tokens, which were never drawn, and verified by ratio.
    RankedNotDrawn,
}

/// A round over a tree of one level, `width` guesses at the next token drawn from `q` without replacement,
/// verified by recursive rejection (Jeon et al. 2024, arXiv 2402.14160) written out plainly, with one fault.
/// Returns the tokens the round adds.
pub fn round_of_siblings(
    toy: Toy,
    width: usize,
    fault: SiblingFault,
    chooser: &mut impl Chooser,
) -> Vec<u32> {
    let mut p = exact(&toy.p(&[]), toy.vocab);
    let q = exact(&toy.q(&[]), toy.vocab);
    let mut siblings = Vec::new();
    let mut left = q.clone();
    for i in 0..width {
        let weights = if fault == SiblingFault::DrawnTwice { &q } else { &left };
        // A `q` with fewer tokens has fewer siblings.
        let Some(x) = chooser.pick(i, (0..).zip(weights.iter().copied())) else { break };
        siblings.push(x);
        left[x as usize] = 0.0;
    }
    let by_score = |a: &u32, b: &u32| q[*b as usize].total_cmp(&q[*a as usize]);
    match fault {
        SiblingFault::SortedByScore => siblings.sort_by(by_score),
        SiblingFault::RankedNotDrawn => {
            siblings = (0..toy.vocab).filter(|&id| q[id as usize] > 0.0).collect();
            siblings.sort_by(by_score);
            siblings.truncate(width);
        }
        _ => {}
    }
    let mut q = q;
    for (i, x) in siblings.into_iter().enumerate() {
        let at = x as usize;
        let ratio = if q[at] > 0.0 { p[at] / q[at] } else { 0.0 };
        if ratio > 0.0 && chooser.accept(i, ratio.ln()) {
            let bonus = exact(&toy.p(&[x]), toy.vocab);
            return vec![x, chooser.pick(i, (0..).zip(bonus)).expect("p has a possible token")];
        }
        let residual: Vec<f64> = p.iter().zip(&q).map(|(p, q)| (p - q).max(0.0)).collect();
        // Where nothing is left, x cannot have fallen but for rounding.
        if let Some(normal) = normalised(residual) {
            p = normal;
        }
        if fault != SiblingFault::MassKept {
            q[at] = 0.0;
            q = normalised(q.clone()).unwrap_or(q);
        }
    }
    vec![chooser.pick(width, (0..).zip(p)).expect("p has a possible token")]
}

fn normalised(weights: Vec<f64>) -> Option<Vec<f64>> {
    let total: f64 = weights.iter().sum();
    (total > 1e-12).then(|| weights.into_iter().map(|weight| weight / total).collect())
}
