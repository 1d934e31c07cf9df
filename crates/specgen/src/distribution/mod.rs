//! Next-token distributions: probability, draw, residual; arithmetic only.

use specgen_kernels::softmax::{Exponent, exp, exp_m1, sum_exp};

use crate::rng::Picker;

/// A distribution over the tokens that may come next.
///
/// Log-probabilities are natural logarithms, normalised to f32 rounding; the law they stand for is
/// `exp(log_prob) / Σ exp(log_prob)` taken exactly. At least one token is possible.
#[derive(Debug, Clone, PartialEq)]
pub enum Distribution {
    /// A certainty: greedy decoding, or the guess of a drafter that does not draw.
    Point(u32),
    /// Token ids, ascending and distinct, with their log-probabilities; every other token is impossible.
    Sparse(Vec<(u32, f32)>),
    /// The log-probability of every token id from 0; `-inf` is impossible, as is every id beyond.
    Dense(Vec<f32>),
}

impl Distribution {
    /// The log-probability of `id`; `-inf` if it is impossible.
    pub fn log_prob(&self, id: u32) -> f32 {
        match self {
            Self::Point(point) if *point == id => 0.0,
            Self::Point(_) => f32::NEG_INFINITY,
            Self::Sparse(tokens) => match tokens.binary_search_by_key(&id, |&(id, _)| id) {
                Ok(at) => tokens[at].1,
                Err(_) => f32::NEG_INFINITY,
            },
            Self::Dense(tokens) => tokens.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY),
        }
    }

    /// The possible tokens with their log-probabilities, ids ascending.
    pub fn support(&self) -> impl Iterator<Item = (u32, f32)> + '_ {
        let (point, sparse, dense) = match self {
            Self::Point(id) => (Some((*id, 0.0)), [].as_slice(), [].as_slice()),
            Self::Sparse(tokens) => (None, tokens.as_slice(), [].as_slice()),
            Self::Dense(tokens) => (None, [].as_slice(), tokens.as_slice()),
        };
        let dense = (0..).zip(dense.iter().copied());
        point.into_iter().chain(sparse.iter().copied()).chain(dense).filter(|&(_, lp)| lp > f32::NEG_INFINITY)
    }

    /// Draws a token; `index` is its place in the round (see [`Picker`]). A [`Distribution::Point`] asks for no
    /// randomness.
    ///
    /// # Panics
    ///
    /// If no token is possible, which the type's contract rules out.
    pub fn draw(&self, picker: &mut impl Picker, index: usize) -> u32 {
        let drawn = match self {
            Self::Point(id) => Some(*id),
            Self::Sparse(tokens) => {
                picker.pick(index, tokens.iter().map(|&(id, log_prob)| (id, exp(log_prob.into()))))
            }
            Self::Dense(tokens) => {
                picker.pick(index, by_chunk(tokens, &[], |log_prob, _| exp(log_prob.into())))
            }
        };
        drawn.expect("a distribution has at least one possible token")
    }

    /// What is left without `id`; `None` where that is nothing.
    pub fn without(&self, id: u32) -> Option<Self> {
        let mut rest = self.clone();
        match &mut rest {
            Self::Point(point) => return (*point != id).then_some(rest),
            Self::Sparse(tokens) => tokens.retain(|&(other, _)| other != id),
            Self::Dense(tokens) => {
                if let Some(log_prob) = tokens.get_mut(id as usize) {
                    *log_prob = f32::NEG_INFINITY;
                }
            }
        }
        let ln_mass = rest.ln_mass();
        if ln_mass == f64::NEG_INFINITY {
            return None;
        }
        let normalise = |log_prob: &mut f32| *log_prob = (f64::from(*log_prob) - ln_mass) as f32;
        match &mut rest {
            Self::Point(_) => {}
            Self::Sparse(tokens) => tokens.iter_mut().for_each(|(_, log_prob)| normalise(log_prob)),
            Self::Dense(tokens) => tokens.iter_mut().for_each(normalise),
        }
        Some(rest)
    }

    /// The logarithm of `Σ exp(log_prob)`: 0 but for rounding.
    pub fn ln_mass(&self) -> f64 {
        match self {
            Self::Point(_) => 0.0,
            Self::Sparse(tokens) => {
                tokens.iter().map(|&(_, log_prob)| exp(log_prob.into())).sum::<f64>().ln()
            }
            Self::Dense(tokens) => sum_exp(tokens, Exponent::PLAIN).ln(),
        }
    }
}

/// The exact law of a distribution: its log-probabilities with the rounding of their sum taken out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Law<'a> {
    distribution: &'a Distribution,
    ln_mass: f64,
}

impl<'a> Law<'a> {
    pub(crate) fn new(distribution: &'a Distribution) -> Self {
        Self { distribution, ln_mass: distribution.ln_mass() }
    }

    /// How far the sum of the probabilities is from 1, as a logarithm.
    pub(crate) fn ln_mass(&self) -> f64 {
        self.ln_mass
    }

    /// This law times `exp(ln_factor)`: no longer one that sums to 1.
    pub(crate) fn scaled(self, ln_factor: f64) -> Self {
        Self { ln_mass: self.ln_mass - ln_factor, ..self }
    }

    pub(crate) fn log_prob(&self, id: u32) -> f64 {
        f64::from(self.distribution.log_prob(id)) - self.ln_mass
    }

    /// `max(0, p - q)` over the support of `self` = p, tokens paired by id. The difference is taken as
    /// `-p expm1(ln q - ln p)`, which keeps its digits when p and q are close.
    pub(crate) fn minus(&self, q: Law<'a>) -> impl Iterator<Item = (u32, f64)> + use<'a> {
        let p = *self;
        let difference = move |log_p: f32, log_q: f32| {
            let (lp, lq) = (f64::from(log_p) - p.ln_mass, f64::from(log_q) - q.ln_mass);
            if lq < lp { -exp(lp) * exp_m1(lq - lp) } else { 0.0 }
        };
        let (dense, other) = match (p.distribution, q.distribution) {
            (Distribution::Dense(p), Distribution::Dense(q)) => (Some(by_chunk(p, q, difference)), None),
            _ => {
                let mut q_at = Cursor::new(q.distribution);
                let paired =
                    p.distribution.support().map(move |(id, lp)| (id, difference(lp, q_at.log_prob(id))));
                (None, Some(paired))
            }
        };
        dense.into_iter().flatten().chain(other.into_iter().flatten())
    }
}

/// `weight(a[id], b[id])` for every id of `a`, where what `b` lacks is `-inf`. Worked out 64 at a time, so that it
/// can be vector code although its consumer is not.
fn by_chunk<'a>(
    a: &'a [f32],
    b: &'a [f32],
    weight: impl Fn(f32, f32) -> f64 + 'a,
) -> impl Iterator<Item = (u32, f64)> + 'a {
    const CHUNK: usize = 64;
    a.chunks(CHUNK).enumerate().flat_map(move |(chunk, a)| {
        let first = chunk * CHUNK;
        let b = b.get(first..).unwrap_or_default();
        let (mut a_row, mut b_row) = ([f32::NEG_INFINITY; CHUNK], [f32::NEG_INFINITY; CHUNK]);
        a_row[..a.len()].copy_from_slice(a);
        let shared = b.len().min(a.len());
        b_row[..shared].copy_from_slice(&b[..shared]);
        let mut weights = [0.0; CHUNK];
        for ((weight_at, &a), &b) in weights.iter_mut().zip(&a_row).zip(&b_row) {
            *weight_at = weight(a, b);
        }
        (first as u32..).zip(weights).take(a.len())
    })
}

/// Looks up ascending ids, walking a sparse list once instead of searching it each time.
struct Cursor<'a> {
    distribution: &'a Distribution,
    at: usize,
}

impl<'a> Cursor<'a> {
    fn new(distribution: &'a Distribution) -> Self {
        Self { distribution, at: 0 }
    }

    fn log_prob(&mut self, id: u32) -> f32 {
        let Distribution::Sparse(tokens) = self.distribution else {
            return self.distribution.log_prob(id);
        };
        while tokens.get(self.at).is_some_and(|&(other, _)| other < id) {
            self.at += 1;
        }
        match tokens.get(self.at) {
            Some(&(other, log_prob)) if other == id => log_prob,
            _ => f32::NEG_INFINITY,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Noise, RoundNoise};

    const NEVER: f32 = f32::NEG_INFINITY;

    fn dense(probs: &[f32]) -> Distribution {
        Distribution::Dense(probs.iter().map(|p| p.ln()).collect())
    }

    fn sparse(probs: &[(u32, f32)]) -> Distribution {
        Distribution::Sparse(probs.iter().map(|&(id, p)| (id, p.ln())).collect())
    }

    #[test]
    fn every_form_answers_for_every_id() {
        assert_eq!(Distribution::Point(3).log_prob(3), 0.0);
        assert_eq!(Distribution::Point(3).log_prob(2), NEVER);
        let sparse = sparse(&[(1, 0.25), (7, 0.75)]);
        assert_eq!(
            [0, 1, 2, 7, 8].map(|id| sparse.log_prob(id)),
            [NEVER, 0.25_f32.ln(), NEVER, 0.75_f32.ln(), NEVER]
        );
        let dense = dense(&[0.5, 0.0, 0.5]);
        assert_eq!(
            [0, 1, 2, 3, u32::MAX].map(|id| dense.log_prob(id)),
            [0.5_f32.ln(), NEVER, 0.5_f32.ln(), NEVER, NEVER]
        );
    }

    #[test]
    fn what_is_left_without_a_token_sums_to_one() {
        for d in [dense(&[0.5, 0.0, 0.2, 0.3]), sparse(&[(0, 0.5), (2, 0.2), (3, 0.3)])] {
            let left = d.without(0).expect("two tokens are left");
            assert!((left.log_prob(2).exp() - 0.4).abs() < 1e-6 && left.log_prob(0) == NEVER, "{left:?}");
            assert!(left.ln_mass().abs() < 1e-6);
            assert_eq!(left.without(2).and_then(|one| one.without(3)), None);
        }
        assert_eq!(Distribution::Point(1).without(1), None);
        assert_eq!(Distribution::Point(1).without(2), Some(Distribution::Point(1)));
    }

    #[test]
    fn support_lists_what_is_possible_in_ascending_order() {
        let ids = |d: &Distribution| d.support().map(|(id, _)| id).collect::<Vec<_>>();
        assert_eq!(ids(&Distribution::Point(9)), [9]);
        assert_eq!(ids(&sparse(&[(1, 0.25), (4, 0.0), (7, 0.75)])), [1, 7]);
        assert_eq!(ids(&dense(&[0.5, 0.0, 0.5])), [0, 2]);
    }

    #[test]
    fn a_draw_has_the_distribution_in_every_form() {
        let (ids, probs) = ([2_u32, 3, 11, 30], [0.05_f32, 0.2, 0.7, 0.05]);
        let mut row = vec![0.0; 40];
        for (&id, &p) in ids.iter().zip(&probs) {
            row[id as usize] = p;
        }
        let forms = [dense(&row), sparse(&ids.into_iter().zip(probs).collect::<Vec<_>>())];
        let draws = 100_000;
        for position in 0..1000 {
            let mut noise = RoundNoise::verify(Noise::new(8), position, 0);
            assert_eq!(
                forms[0].draw(&mut noise, 1),
                forms[1].draw(&mut noise, 1),
                "the form must not matter"
            );
        }
        let mut counts = [0.0; 4];
        for position in 0..draws {
            let drawn = forms[1].draw(&mut RoundNoise::verify(Noise::new(8), position, 0), 0);
            counts[ids.iter().position(|&id| id == drawn).expect("only possible tokens are drawn")] += 1.0;
        }
        let chi_square: f64 = counts
            .iter()
            .zip(probs)
            .map(|(count, p)| (f64::from(p) * draws as f64, count))
            .map(|(expected, count)| (count - expected).powi(2) / expected)
            .sum();
        // 3 degrees of freedom: above 25 with probability 1.5e-5.
        assert!(chi_square < 25.0, "{chi_square}");
    }

    #[test]
    fn tokens_meet_by_id_in_every_pairing_of_forms() {
        let p = [dense(&[0.5, 0.0, 0.2, 0.3]), sparse(&[(0, 0.5), (2, 0.2), (3, 0.3)])];
        let q = [dense(&[0.1, 0.4, 0.5]), sparse(&[(0, 0.1), (1, 0.4), (2, 0.5)])];
        for p in &p {
            for q in &q {
                let residual: Vec<_> =
                    Law::new(p).minus(Law::new(q)).filter(|&(_, weight)| weight > 0.0).collect();
                assert_eq!(residual.len(), 2);
                for ((id, found), (wanted_id, wanted)) in residual.into_iter().zip([(0, 0.4), (3, 0.3)]) {
                    assert_eq!(id, wanted_id);
                    assert!((found - wanted).abs() < 1e-7, "{p:?} {q:?}: {found} {wanted}");
                }
            }
        }
    }

    #[test]
    fn a_residual_keeps_its_digits_where_p_and_q_nearly_agree() {
        let p = sparse(&[(0, 0.5), (1, 0.5)]);
        // q(0) / q(1) = exp(-gap), hence q(0) = 1 / (1 + exp(gap)) and 1/2 - q(0) = tanh(gap / 2) / 2.
        let gap = 2.0_f32.powi(-22);
        let q = Distribution::Sparse(vec![(0, 0.5_f32.ln() - gap), (1, 0.5_f32.ln())]);
        let found: Vec<_> = Law::new(&p).minus(Law::new(&q)).collect();
        let wanted = 0.5 * (f64::from(gap) / 2.0).tanh();
        assert!((found[0].1 / wanted - 1.0).abs() < 1e-8, "{found:?} {wanted:e}");
        assert_eq!(found[1].1, 0.0);
    }

    #[test]
    fn equal_distributions_leave_nothing() {
        let p = dense(&[0.1, 0.2, 0.7]);
        assert!(Law::new(&p).minus(Law::new(&p)).all(|(_, weight)| weight == 0.0));
    }
}
