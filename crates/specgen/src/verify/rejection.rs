//! The ratio test: token by token.

use super::{Draft, MASS_TOLERANCE, Verdict, check_is_chain, check_q, correction, exact_laws};
use crate::Result;
use crate::distribution::Distribution;
use crate::rng::Chooser;

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
///
/// [`Error::InvalidArgument`]: crate::Error::InvalidArgument
/// [`Error::Unsupported`]: crate::Error::Unsupported
pub fn rejection(
    draft: &Draft,
    mut p: impl FnMut(usize) -> Result<Distribution>,
    chooser: &mut impl Chooser,
) -> Result<Verdict> {
    check_is_chain(draft)?;
    check_q(draft)?;
    for (i, (&x, q)) in draft.tokens.iter().zip(&draft.q).enumerate() {
        if let Some(verdict) = correct(i, x, &p(i)?, q, chooser)? {
            return Ok(verdict);
        }
    }
    let next_token = p(draft.len())?.draw(chooser, draft.len());
    Ok(Verdict { num_accepted: draft.len(), next_token, residual_underflow: false })
}

/// `None` if `x` stands, else a verdict with the token that takes its place.
fn correct(
    i: usize,
    x: u32,
    p: &Distribution,
    q: &Distribution,
    chooser: &mut impl Chooser,
) -> Result<Option<Verdict>> {
    if matches!(p, Distribution::Point(_)) || matches!(q, Distribution::Point(_)) {
        let y = p.draw(chooser, i);
        return Ok((y != x).then_some(Verdict { num_accepted: i, next_token: y, residual_underflow: false }));
    }

    // A q that sums to less than 1 would be accepted too often and never noticed. Summing a whole vocabulary for it
    // is left to debug builds; a rejection always sums.
    let dense = |d: &Distribution| matches!(d, Distribution::Dense(_));
    if cfg!(debug_assertions) || !(dense(p) || dense(q)) {
        exact_laws(i, p, q)?;
    }
    if accepts(i, x, p, q, chooser)? {
        return Ok(None);
    }
    let (p_law, q_law) = exact_laws(i, p, q)?;
    Ok(Some(correction(i, p_law.minus(q_law), p, chooser)))
}

/// Yes with probability `min(1, p(x) / q(x))`, but never to what the target cannot say.
fn accepts(i: usize, x: u32, p: &Distribution, q: &Distribution, chooser: &mut impl Chooser) -> Result<bool> {
    // p and q sum to 1 but for rounding, which nearly always is too little to matter.
    let rough = f64::from(p.log_prob(x)) - f64::from(q.log_prob(x));
    if rough == f64::NEG_INFINITY {
        return Ok(false);
    }
    if let Some(accepted) = chooser.accept_roughly(i, rough, 2.0 * MASS_TOLERANCE) {
        return Ok(accepted);
    }
    let (p, q) = exact_laws(i, p, q)?;
    Ok(chooser.accept(i, p.log_prob(x) - q.log_prob(x)))
}
