//! The acceptance rule: which drafted tokens stand, and the token after them; arithmetic only.
//!
//! As in the paper, `p` is the target's distribution, `q` the draft's, both after every transform (temperature,
//! filters, penalties). The same `p` serves acceptance, residual and bonus.

use crate::distribution::{Distribution, Law};
use crate::{Error, Result};

pub use crate::rng::{Chooser, RoundNoise};

/// Drafted tokens, with what is known of how they came about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// The drafted token ids, in order.
    pub tokens: Vec<u32>,
    /// For a tree: the index of each token's parent plus 1, 0 for the pending token. `None` for a chain.
    pub parents: Option<Vec<u32>>,
    /// For each token, the distribution it was really drawn from; [`Distribution::Point`] if it was not drawn at all
    /// (n-gram, greedy draft, unknown origin), which is always safe.
    pub q: Vec<Distribution>,
    /// For each token, the drafter's estimate of its chance to be accepted, in [0, 1]; empty if it has none.
    pub confidence: Vec<f32>,
}

impl Draft {
    /// A chain of guesses that were not drawn at random.
    pub fn deterministic(tokens: Vec<u32>) -> Self {
        let q = tokens.iter().map(|&token| Distribution::Point(token)).collect();
        Self { tokens, q, ..Self::default() }
    }

    /// Number of drafted tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Appends a token to a chain, with the distribution it was drawn from.
    pub fn push(&mut self, token: u32, q: Distribution) {
        self.tokens.push(token);
        self.q.push(q);
    }
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// How many drafted tokens stand, counted from the first.
    pub num_accepted: usize,
    /// The token after them: a correction, or the bonus token if all stand.
    pub next_token: u32,
    /// A token was rejected although `p` and `q` were equal up to rounding, and the correction came from `p`. The
    /// chance of it is below [`RESIDUAL_UNDERFLOW`]; worth counting, because any other rate means a bug.
    pub residual_underflow: bool,
}

/// A residual `Σ max(0, p - q)` at or below this is rounding, not probability.
pub const RESIDUAL_UNDERFLOW: f64 = 1e-12;

/// Probabilities that sum to something further from 1 than this are no rounding accident.
const MASS_TOLERANCE: f64 = 1e-3;

/// Verifies a chain token by token: `x` stands with probability `min(1, p(x) / q(x))`, and the first that falls is
/// replaced by a draw from `max(0, p - q)`, normalised (Leviathan et al. 2023, Algorithm 1, arXiv 2211.17192; Chen et
/// al. 2023, arXiv 2302.01318). The tokens that come out have the target's distribution, whatever the draft.
///
/// `p(i)` is the target's distribution at the position of draft token `i`, given the committed text and the first `i`
/// draft tokens. It is called for i = 0, 1, … and never past the first rejection, so a draft of k tokens that stand
/// asks for k + 1.
///
/// A token with a [`Distribution::Point`] for `q` was no draw: there the target draws first, and the token stands if it
/// is the same (the ratio test with a one-hot `q`, in one draw). Where `p` is a point (greedy decoding) nothing random
/// is asked for at all.
///
/// # Errors
///
/// What `p` returns; [`Error::InvalidArgument`] if a token has no `q`, or a `q` it cannot have been drawn from;
/// [`Error::Unsupported`] for a tree.
pub fn rejection(
    draft: &Draft,
    mut p: impl FnMut(usize) -> Result<Distribution>,
    chooser: &mut impl Chooser,
) -> Result<Verdict> {
    check_chain(draft)?;
    for (i, (&x, q)) in draft.tokens.iter().zip(&draft.q).enumerate() {
        let p = p(i)?;
        let (accepted, correction) = match (&p, q) {
            (Distribution::Point(y), _) => (*y == x, Some(*y)),
            (_, Distribution::Point(_)) => {
                let y = p.draw(chooser, i);
                (y == x, Some(y))
            }
            _ => (ratio_test(i, x, &p, q, chooser)?, None),
        };
        if !accepted {
            let (next_token, residual_underflow) = match correction {
                Some(y) => (y, false),
                None => draw_residual(i, &p, q, chooser),
            };
            return Ok(Verdict { num_accepted: i, next_token, residual_underflow });
        }
    }
    let bonus = p(draft.len())?.draw(chooser, draft.len());
    Ok(Verdict { num_accepted: draft.len(), next_token: bonus, residual_underflow: false })
}

/// Accepts `x` with probability `min(1, p(x) / q(x))`, and never if the target cannot say it.
fn ratio_test(
    i: usize,
    x: u32,
    p: &Distribution,
    q: &Distribution,
    chooser: &mut impl Chooser,
) -> Result<bool> {
    let (p, q) = (Law::new(p), Law::new(q));
    check_mass(i, "p", &p)?;
    check_mass(i, "q", &q)?;
    let ln_p = p.log_prob(x);
    Ok(ln_p > f64::NEG_INFINITY && chooser.accept(i, ln_p - q.log_prob(x)))
}

/// Draws from `max(0, p - q)`; from `p`, and says so, if that is nothing but rounding.
fn draw_residual(i: usize, p: &Distribution, q: &Distribution, chooser: &mut impl Chooser) -> (u32, bool) {
    let mut mass = 0.0;
    let residual = Law::new(p).minus(Law::new(q)).inspect(|&(_, weight)| mass += weight);
    let drawn = chooser.pick(i, residual);
    match drawn {
        Some(y) if mass > RESIDUAL_UNDERFLOW => (y, false),
        _ => (p.draw(chooser, i), true),
    }
}

/// A draft that lies about its `q` would silently bend the output, so it is refused.
fn check_chain(draft: &Draft) -> Result<()> {
    if draft.parents.is_some() {
        return Err(Error::Unsupported(
            "the rejection rule verifies chains, not trees; drop `parents` or choose a rule for trees".into(),
        ));
    }
    if draft.q.len() != draft.tokens.len() {
        return Err(Error::InvalidArgument(format!(
            "the draft has {} tokens but {} distributions; each token needs the one it was drawn from, or a point",
            draft.tokens.len(),
            draft.q.len()
        )));
    }
    for (i, (&x, q)) in draft.tokens.iter().zip(&draft.q).enumerate() {
        if q.log_prob(x) == f32::NEG_INFINITY {
            return Err(Error::InvalidArgument(format!(
                "draft token {i} (id {x}) has probability 0 in its own q; q must be what it was drawn from"
            )));
        }
    }
    Ok(())
}

fn check_mass(i: usize, name: &str, law: &Law<'_>) -> Result<()> {
    if law.ln_mass().abs() < MASS_TOLERANCE {
        return Ok(());
    }
    Err(Error::InvalidArgument(format!(
        "the probabilities of {name} at draft token {i} sum to {}, not 1",
        law.ln_mass().exp()
    )))
}
