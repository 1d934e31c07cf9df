//! Coupled sampling: target and draft draw with the same noise, so the text does not depend on the draft.

use super::{Draft, Verdict, check_is_chain};
use crate::Result;
use crate::distribution::Distribution;
use crate::rng::CoupledNoise;

/// Verifies a chain by drawing from the target with the noise of each position, as plain decoding does: a drafted token
/// stands if it is the one drawn, and the first that is not is replaced by it (Daliri, Musco and Suresh 2024, arXiv
/// 2408.07978).
///
/// Each token is the target's own draw given the text before it, so the tokens have its distribution, and a seed gives
/// the same text with any draft or none. A draft drawn with the same noise, by [`Draft::draw`], stands with probability
/// `Σ_i 1 / Σ_j max(p_j / p_i, q_j / q_i)` a token: between `(1 - d) / (1 + d)` and `1 - d`, where `d` is the total
/// variation distance of `p` and `q`. No `q` is looked at.
///
/// `p` is as in [`rejection`](super::rejection).
///
/// # Errors
///
/// What `p` returns; [`Error::Unsupported`](crate::Error::Unsupported) for a tree.
pub fn coupled(
    draft: &Draft,
    mut p: impl FnMut(usize) -> Result<Distribution>,
    noise: &mut CoupledNoise,
) -> Result<Verdict> {
    check_is_chain(draft)?;
    let mut num_accepted = 0;
    loop {
        let next_token = p(num_accepted)?.draw(noise, num_accepted);
        if draft.tokens.get(num_accepted) != Some(&next_token) {
            return Ok(Verdict { num_accepted, next_token, residual_underflow: false });
        }
        num_accepted += 1;
    }
}
