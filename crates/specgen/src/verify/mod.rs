//! Verification: which drafted tokens stand, and the token after them; arithmetic only.
//!
//! As in the papers, `p` is the target's distribution, `q` the draft's, both after every transform
//! (temperature, filters, penalties). The same `p` serves acceptance, residual and bonus. There are three
//! rules, each exact, and greedy decoding is the limit of them all:
//!
//! | rule | a drafted token stands | needs `q` | the text of a seed |
//! |---|---|---|---|
//! | [`rejection`] | with probability `min(1, p / q)` | yes | depends on the draft |
//! | [`block`] | at least as often: the chain is judged as a whole | yes | depends on the draft |
//! | [`coupled`] | where the target draws it too, by the same noise | no | is that of plain decoding |
//!
//! Trees of guesses go by [`recursive`], the first rule, or by [`matched`], the third.

mod block;
mod coupled;
mod draft;
mod rejection;
#[cfg(test)]
mod tests;
mod tree;

use std::{fmt, str::FromStr};

pub use block::block;
pub use coupled::coupled;
pub use draft::{Draft, DraftNoise, Signal, Source};
pub use rejection::rejection;
pub use tree::{Descent, matched, recursive};

use crate::distribution::{Distribution, Law};
use crate::{Error, Result};

pub use crate::rng::{Chooser, CoupledNoise, Picker, RoundNoise};

/// How drafts are verified.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Verification {
    /// Token by token, by the ratio test ([`rejection`]).
    #[default]
    Rejection,
    /// The draft as a whole ([`block`]): accepts as much as [`Verification::Rejection`] or more.
    Block,
    /// By noise that target and draft share ([`coupled`]): a seed gives one text, with any draft or none.
    Coupled,
}

impl Verification {
    /// Every rule there is.
    pub const ALL: [Self; 3] = [Self::Rejection, Self::Block, Self::Coupled];

    /// `rejection`, `block` or `coupled`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejection => "rejection",
            Self::Block => "block",
            Self::Coupled => "coupled",
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Verification {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|rule| rule.name() == text).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            Error::InvalidArgument(format!("verification `{text}` is unknown; wanted one of {names}"))
        })
    }
}

/// What became of a draft.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Verdict {
    /// How many drafted tokens stand, counted from the first.
    pub num_accepted: usize,
    /// The token after them: a correction, or the bonus token if all stand.
    pub next_token: u32,
    /// A token was rejected although `p` and `q` were equal up to rounding, and the correction came from `p`.
    /// The chance of it is below [`RESIDUAL_UNDERFLOW`]; worth counting, because any other rate means a bug.
    pub residual_underflow: bool,
}

/// A residual `Σ max(0, p - q)` at or below this is rounding, not probability.
pub const RESIDUAL_UNDERFLOW: f64 = 1e-12;

/// Logarithm of a sum of probabilities: further from 0 than this is no rounding accident.
const MASS_TOLERANCE: f64 = 1e-3;

/// A rule for chains cannot follow branches.
fn check_is_chain(draft: &Draft) -> Result<()> {
    match draft.parents {
        None => Ok(()),
        Some(_) => Err(Error::Unsupported(
            "chains are verified here, not trees; drop `parents`, or use `recursive` or `matched`".into(),
        )),
    }
}

/// A draft that lies about its `q` would silently bend the output, so it is refused.
fn check_q(draft: &Draft) -> Result<()> {
    if draft.q.len() != draft.tokens.len() {
        return Err(Error::InvalidArgument(format!(
            "the draft has {} tokens but {} distributions; each token needs the one it was drawn from, or a point",
            draft.tokens.len(),
            draft.q.len()
        )));
    }
    for (i, (&x, q)) in draft.tokens.iter().zip(&draft.q).enumerate() {
        // Written so that what is not a number is refused too.
        let is_possible = q.log_prob(x) > f32::NEG_INFINITY;
        if !is_possible {
            return Err(Error::InvalidArgument(format!(
                "draft token {i} (id {x}) has probability {} in its own q; q must be what it was drawn from",
                q.log_prob(x).exp()
            )));
        }
    }
    Ok(())
}

/// The normalised laws of `p` and `q`, refused if they are far from normalised to begin with.
fn exact_laws<'a>(i: usize, p: &'a Distribution, q: &'a Distribution) -> Result<(Law<'a>, Law<'a>)> {
    let laws = (Law::new(p), Law::new(q));
    for (name, law) in [("p", laws.0), ("q", laws.1)] {
        // Written so that a mass that is not a number fails too.
        let rounding = law.ln_mass().abs() < MASS_TOLERANCE;
        if !rounding {
            return Err(Error::InvalidArgument(format!(
                "the probabilities of {name} at draft token {i} sum to {}, not 1",
                law.ln_mass().exp()
            )));
        }
    }
    Ok(laws)
}

/// Draws the token in the place of draft token `i`, the first that falls: from `residual`, whose weights are
/// `max(0, p - q)` in the rule's own sense.
fn correction(
    i: usize,
    residual: impl Iterator<Item = (u32, f64)>,
    p: &Distribution,
    chooser: &mut impl Chooser,
) -> Verdict {
    if let Distribution::Point(next_token) = *p {
        return Verdict { num_accepted: i, next_token, residual_underflow: false };
    }
    let mut mass = 0.0;
    let drawn = chooser.pick(i, residual.inspect(|&(_, weight)| mass += weight));
    match drawn {
        Some(next_token) if mass > RESIDUAL_UNDERFLOW => {
            Verdict { num_accepted: i, next_token, residual_underflow: false }
        }
        _ => Verdict { num_accepted: i, next_token: p.draw(chooser, i), residual_underflow: true },
    }
}
