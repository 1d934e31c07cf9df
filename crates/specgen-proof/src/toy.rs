//! Toy language models: a table of next-token distributions, made up as it is looked at.

use specgen::{
    distribution::Distribution,
    rng::{Noise, Stream},
    verify::{Draft, Picker},
};

use crate::enumeration::{Law, law_error};

/// Every size the exact tests run on: vocabulary, draft length, number of models.
const SIZES: [(u32, usize, u64); 12] = [
    (3, 1, 60),
    (3, 2, 60),
    (3, 3, 24),
    (3, 4, 12),
    (4, 1, 60),
    (4, 2, 24),
    (4, 3, 12),
    (4, 4, 6),
    (5, 1, 60),
    (5, 2, 12),
    (5, 3, 6),
    (5, 4, 6),
];

/// Toy models of every size, each with the number of tokens to draft.
pub fn toys() -> impl Iterator<Item = (Toy, usize)> {
    SIZES.into_iter().flat_map(|(vocab, k, models)| (0..models).map(move |seed| (Toy { vocab, seed }, k)))
}

/// A pair of toy models over a tiny vocabulary. Each context has its own distributions, some tokens impossible, stored
/// as dense rows or sparse lists.
#[derive(Debug, Clone, Copy)]
pub struct Toy {
    /// Number of tokens.
    pub vocab: u32,
    /// Different seeds are different models.
    pub seed: u64,
}

impl Toy {
    /// The target's distribution after `context`.
    pub fn p(&self, context: &[u32]) -> Distribution {
        self.stored(context, 2, &self.row(context, 0))
    }

    /// The draft's distribution after `context`: of its own for even seeds, near the target's for odd ones.
    pub fn q(&self, context: &[u32]) -> Distribution {
        let mut row = self.row(context, 1);
        if self.seed % 2 == 1 {
            let p = self.row(context, 0);
            let total: (f64, f64) = (p.iter().sum(), row.iter().sum());
            row = p.iter().zip(&row).map(|(p, own)| 0.7 * p / total.0 + 0.3 * own / total.1).collect();
        }
        self.stored(context, 3, &row)
    }

    /// Logits after `context`, for tests that go through the sampler.
    pub fn logits(&self, context: &[u32], model: u32) -> Vec<f32> {
        (0..self.vocab).map(|id| 4.0 * self.uniform(context, 4 + model, id) as f32 - 1.0).collect()
    }

    /// How far the law of one round of `k` drafted tokens is from the target's own.
    pub fn error(&self, k: usize, law: &Law<Vec<u32>>) -> f64 {
        law_error(law, self.vocab, k + 1, |context| self.p(context))
    }

    /// Weights between flat and spiky (by seed), about one in five 0, at least one not.
    fn row(&self, context: &[u32], model: u32) -> Vec<f64> {
        let spikiness = [0.3, 1.0, 3.0][(self.seed % 3) as usize];
        let alive = (self.uniform(context, model, 1000) * f64::from(self.vocab)) as u32;
        (0..self.vocab)
            .map(|id| match self.uniform(context, model, 100 + id) < 0.2 && id != alive {
                true => 0.0,
                false => (-self.uniform(context, model, id).ln()).powf(spikiness) + 1e-3,
            })
            .collect()
    }

    /// Rows are rounded to f32 logarithms here, as everywhere; what is stored is what the model says.
    fn stored(&self, context: &[u32], salt: u32, row: &[f64]) -> Distribution {
        let total: f64 = row.iter().sum();
        let log_probs: Vec<f32> = row.iter().map(|weight| (weight / total).ln() as f32).collect();
        match self.uniform(context, salt, 2000) < 0.5 {
            true => Distribution::Dense(log_probs),
            false => {
                let possible = |&(_, log_prob): &(u32, f32)| log_prob > f32::NEG_INFINITY;
                Distribution::Sparse((0..).zip(log_probs).filter(possible).collect())
            }
        }
    }

    fn uniform(&self, context: &[u32], salt: u32, index: u32) -> f64 {
        let position =
            context.iter().fold(1, |hash, &id| hash * u64::from(self.vocab + 1) + u64::from(id) + 1);
        Noise::new(self.seed).uniform(Stream::Coupled, position, salt, index)
    }
}

/// Both texts, one after the other.
pub fn concat(a: &[u32], b: &[u32]) -> Vec<u32> {
    [a, b].concat()
}

/// Drafts `k` tokens after `context`, each drawn from `q`.
pub fn draw_chain(
    context: &[u32],
    k: usize,
    q: impl Fn(&[u32]) -> Distribution,
    picker: &mut impl Picker,
) -> Draft {
    let mut draft = Draft::default();
    for i in 0..k {
        let q = q(&concat(context, &draft.tokens));
        let token = q.draw(picker, i);
        draft.push(token, q);
    }
    draft
}
