//! Block verification: the draft is judged as a whole.

use super::{Draft, Verdict, check_is_chain, check_q, correction, exact_laws, rejection};
use crate::Result;
use crate::distribution::Distribution;
use crate::rng::Chooser;
use specgen_kernels::softmax::exp_m1;

/// Verifies a chain as a whole (Sun et al. 2024, Algorithm 2, arXiv 2403.10444): a low ratio early may be made good by
/// high ones behind it. With `w_0 = 1` and, for the k draft tokens,
///
/// ```text
/// w_i = min(1, w_{i-1} p_i(d_i) / q_i(d_i))
/// Z_i = Σ_t max(0, w_i p_{i+1}(t) - q_{i+1}(t))
/// h_i = Z_i / (Z_i + 1 - w_i),  1 where that is 0 / 0;  h_k = w_k
/// ```
///
/// as many tokens stand as the largest i whose own chance `h_i` says yes, and the token after them comes from
/// `max(0, w_i p_{i+1} - q_{i+1})`, normalised, or from `p_{k+1}` if all stand. The tokens that come out have the target's
/// distribution, and on average at least as many stand as by any other rule for one chain: `Σ_i E[w_i]`.
///
/// Whether token i stands depends on numbers and tokens behind it, which the next round drafts anew: `chooser` must
/// have other numbers in every round, and so must the draft.
///
/// `p` is as in [`rejection`](super::rejection), but asked for past tokens that fall, up to the first that the target
/// cannot say or where `p` fails: to fail there is one more thing that the target can do and the draft cannot.
///
/// A [`Distribution::Point`] for `q` is the law of a token that was not drawn, given the text before it, and fits in as
/// it is. Where all are points there is nothing to gain, and [`rejection`](super::rejection) asks for less.
///
/// # Errors
///
/// What `p` returns after as many tokens as stand; otherwise as [`rejection`](super::rejection).
pub fn block(
    draft: &Draft,
    p: impl FnMut(usize) -> Result<Distribution>,
    chooser: &mut impl Chooser,
) -> Result<Verdict> {
    check_is_chain(draft)?;
    check_q(draft)?;
    if draft.q.iter().all(|q| matches!(q, Distribution::Point(_))) {
        return rejection(draft, p, chooser);
    }

    let mut prefixes = prefixes(draft, p)?;
    let says_yes = |&i: &usize| chooser.accept(i - 1, prefixes[i].ln_chance);
    let num_accepted = (1..prefixes.len()).rev().find(says_yes).unwrap_or(0);

    let Prefix { ln_weight, p, .. } = prefixes.swap_remove(num_accepted);
    let p = p?;
    Ok(match draft.q.get(num_accepted) {
        Some(q) => {
            let (p_law, q_law) = exact_laws(num_accepted, &p, q)?;
            correction(num_accepted, p_law.scaled(ln_weight).minus(q_law), &p, chooser)
        }
        None => {
            Verdict { num_accepted, next_token: p.draw(chooser, num_accepted), residual_underflow: false }
        }
    })
}

/// The first so many tokens of a draft.
struct Prefix {
    /// `ln w_i`.
    ln_weight: f64,
    /// `ln h_i`.
    ln_chance: f64,
    /// What the target says after them.
    p: Result<Distribution>,
}

/// The prefixes that may stand, from the empty one on.
fn prefixes(draft: &Draft, mut p: impl FnMut(usize) -> Result<Distribution>) -> Result<Vec<Prefix>> {
    let mut prefixes = Vec::with_capacity(draft.len() + 1);
    let mut ln_weight = 0.0;
    loop {
        let i = prefixes.len();
        let p = p(i);
        let (Ok(p_row), Some((&x, q))) = (&p, draft.tokens.get(i).zip(draft.q.get(i))) else {
            prefixes.push(Prefix { ln_weight, ln_chance: ln_weight, p });
            return Ok(prefixes);
        };
        let (p_law, q_law) = exact_laws(i, p_row, q)?;
        let ln_chance = match ln_weight {
            0.0 => 0.0,
            _ => {
                let residual: f64 = p_law.scaled(ln_weight).minus(q_law).map(|(_, weight)| weight).sum();
                (residual / (residual - exp_m1(ln_weight))).ln()
            }
        };
        let ln_ratio = p_law.log_prob(x) - q_law.log_prob(x);
        prefixes.push(Prefix { ln_weight, ln_chance, p });
        ln_weight = f64::min(0.0, ln_weight + ln_ratio);
        if ln_weight == f64::NEG_INFINITY {
            return Ok(prefixes);
        }
    }
}
