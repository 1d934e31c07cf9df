//! Next-token distributions: probability, draw, residual; arithmetic only.

use crate::rng::Chooser;

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

    /// Draws a token; `index` is its place in the round (see [`Chooser`]). A [`Distribution::Point`] asks for no
    /// randomness.
    ///
    /// # Panics
    ///
    /// If no token is possible, which the type's contract rules out.
    pub fn draw(&self, chooser: &mut impl Chooser, index: usize) -> u32 {
        let weight = |(id, log_prob): (u32, f32)| (id, f64::from(log_prob).exp());
        let drawn = match self {
            Self::Point(id) => Some(*id),
            Self::Sparse(tokens) => chooser.pick(index, tokens.iter().copied().map(weight)),
            Self::Dense(tokens) => chooser.pick(index, (0..).zip(tokens.iter().copied()).map(weight)),
        };
        drawn.expect("a distribution has at least one possible token")
    }

    /// The logarithm of `Σ exp(log_prob)`: 0 but for rounding.
    pub fn ln_mass(&self) -> f64 {
        let exp = |log_prob: f32| f64::from(log_prob).exp();
        match self {
            Self::Point(_) => 0.0,
            Self::Sparse(tokens) => tokens.iter().map(|&(_, log_prob)| exp(log_prob)).sum::<f64>().ln(),
            Self::Dense(tokens) => tokens.iter().map(|&log_prob| exp(log_prob)).sum::<f64>().ln(),
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

    pub(crate) fn log_prob(&self, id: u32) -> f64 {
        f64::from(self.distribution.log_prob(id)) - self.ln_mass
    }

    /// `max(0, p - q)` over the support of `self` = p, tokens paired by id. The difference is taken as
    /// `-p expm1(ln q - ln p)`, which keeps its digits when p and q are close.
    pub(crate) fn minus(&self, q: Law<'a>) -> impl Iterator<Item = (u32, f64)> + use<'a> {
        let p = *self;
        let mut q_at = Cursor::new(q.distribution);
        p.distribution.support().map(move |(id, log_prob)| {
            let lp = f64::from(log_prob) - p.ln_mass;
            let lq = f64::from(q_at.log_prob(id)) - q.ln_mass;
            (id, if lq < lp { -lp.exp() * (lq - lp).exp_m1() } else { 0.0 })
        })
    }
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
