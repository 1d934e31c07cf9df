//! Walks through every outcome of a random procedure with its exact probability: exactness without
//! statistics.
//!
//! A procedure takes its randomness from a [`Chooser`]. [`enumerate`] runs it once for each leaf of its tree
//! of decisions; a run replays the decisions before a branch, takes the next option there, and multiplies up
//! the probabilities. What comes out is the law of the result, to f64 rounding.

use specgen::distribution::Distribution;
use specgen::verify::{Chooser, Picker};
use std::collections::HashMap;
use std::hash::Hash;

/// What an exact procedure may be off by: the rounding of a few thousand f64 products and sums.
pub const TOLERANCE: f64 = 1e-12;

/// One decision of a run.
struct Branch {
    /// The options as (token id, probability); yes is 1 and no is 0. None is impossible.
    options: Vec<(u32, f64)>,
    taken: usize,
}

/// Takes every decision both ways, one run after the other.
#[derive(Default)]
pub struct EnumChooser {
    path: Vec<Branch>,
    depth: usize,
}

impl EnumChooser {
    /// Decides among `options` (value and weight), as [`Picker::pick`] does.
    pub fn decide(&mut self, options: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        // The procedure may look at what it is given (and add it up), so all is gone through in a replay too.
        let mut options: Vec<(u32, f64)> = options.filter(|&(_, weight)| weight > 0.0).collect();
        if options.is_empty() {
            return None;
        }
        if self.depth == self.path.len() {
            let total: f64 = options.iter().map(|&(_, weight)| weight).sum();
            options.iter_mut().for_each(|(_, weight)| *weight /= total);
            self.path.push(Branch { options, taken: 0 });
        }
        let branch = &self.path[self.depth];
        self.depth += 1;
        Some(branch.options[branch.taken].0)
    }

    fn probability(&self) -> f64 {
        self.path.iter().map(|branch| branch.options[branch.taken].1).product()
    }

    /// Moves on to the next leaf; false after the last.
    fn advance(&mut self) -> bool {
        self.depth = 0;
        while let Some(branch) = self.path.last_mut() {
            branch.taken += 1;
            if branch.taken < branch.options.len() {
                return true;
            }
            self.path.pop();
        }
        false
    }
}

impl Chooser for EnumChooser {
    fn accept(&mut self, _index: usize, ln_ratio: f64) -> bool {
        let yes = ln_ratio.min(0.0).exp();
        let no = -ln_ratio.min(0.0).exp_m1();
        self.decide([(1, yes), (0, no)].into_iter()) == Some(1)
    }
}

impl Picker for EnumChooser {
    fn pick(&mut self, _index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        self.decide(weights)
    }
}

/// The probability of each outcome.
pub type Law<T> = HashMap<T, f64>;

/// Runs `procedure` once for each way its decisions can go and sums the probabilities of equal outcomes.
pub fn enumerate<T: Eq + Hash>(mut procedure: impl FnMut(&mut EnumChooser) -> T) -> Law<T> {
    let (mut chooser, mut law) = (EnumChooser::default(), Law::new());
    loop {
        let outcome = procedure(&mut chooser);
        *law.entry(outcome).or_insert(0.0) += chooser.probability();
        if !chooser.advance() {
            return law;
        }
    }
}

/// The exact law of a distribution, one probability for each id below `vocab`.
pub fn exact(distribution: &Distribution, vocab: u32) -> Vec<f64> {
    let weights: Vec<f64> = (0..vocab).map(|id| f64::from(distribution.log_prob(id)).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| weight / total).collect()
}

/// How far `law`, of texts of any length up to `len`, is from the text `target` writes on its own: the texts
/// are carried on by the target to `len` tokens, and the largest difference of a probability is returned.
pub fn law_error(
    law: &Law<Vec<u32>>,
    vocab: u32,
    len: usize,
    target: impl Fn(&[u32]) -> Distribution,
) -> f64 {
    let mut worst = (law.values().sum::<f64>() - 1.0).abs();
    let mut plain = vec![(Vec::new(), 1.0, 0.0)]; // text, its probability, the probability with which it was reached
    plain[0].2 = law.get(&Vec::new()).copied().unwrap_or(0.0);
    for _ in 0..len {
        let mut longer = Vec::with_capacity(plain.len() * vocab as usize);
        for (text, wanted, found) in plain {
            let next = exact(&target(&text), vocab);
            for (id, p) in (0..vocab).zip(next) {
                let mut text = text.clone();
                text.push(id);
                // Nobody asks what follows an impossible text: all that the law has behind it is error.
                if p == 0.0 {
                    let behind = law.iter().filter(|(other, _)| other.starts_with(&text));
                    worst = worst.max(behind.map(|(_, probability)| probability).sum());
                    continue;
                }
                let reached = law.get(&text).copied().unwrap_or(0.0);
                longer.push((text, wanted * p, found * p + reached));
            }
        }
        plain = longer;
    }
    for (_, wanted, found) in plain {
        worst = worst.max((wanted - found).abs());
    }
    worst
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A decision without an option is none, however often its branch is come by.
    #[test]
    fn a_law_sums_to_one_where_nothing_can_be_picked() {
        let law = enumerate(|chooser| {
            let first = chooser.decide([(0, 1.0), (1, 3.0)].into_iter());
            let nothing = chooser.decide([(7, 0.0)].into_iter());
            (first, nothing, chooser.decide([(2, 1.0), (3, 1.0)].into_iter()))
        });
        assert_eq!(law.len(), 4);
        assert_eq!(law[&(Some(1), None, Some(3))], 0.375);
    }
}
