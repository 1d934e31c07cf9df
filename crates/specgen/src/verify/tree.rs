//! Trees: several guesses at the same place, in one pass.

use super::{Draft, RESIDUAL_UNDERFLOW, check_q, exact_laws};
use crate::{
    Error, Result,
    distribution::{Distribution, Law},
    rng::{Chooser, Picker},
};

/// What became of a tree.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Descent {
    /// The draft tokens that stand, by index: each the child of the one before.
    pub path: Vec<usize>,
    /// The token after them.
    pub next_token: u32,
    /// As in [`Verdict`](super::Verdict).
    pub residual_underflow: bool,
}

/// Verifies a tree by drawing from the target, as plain decoding does, for as long as what is drawn is one of the guesses:
/// exact for every tree, however it was built, and with the noise of each position ([`CoupledNoise`](super::CoupledNoise))
/// the text is the same with any tree. With another picker no token may carry a `q` that it was drawn from: its `q` is not
/// looked at, and it would stand less often than it might.
///
/// `p(node)` is the target's distribution behind a node: 0 is the pending token, `i + 1` draft token `i`. It is called for
/// the nodes of one path, from the root on.
///
/// # Errors
///
/// What `p` returns; [`Error::InvalidArgument`] for links that are no tree.
pub fn matched(
    draft: &Draft,
    mut p: impl FnMut(usize) -> Result<Distribution>,
    picker: &mut impl Picker,
) -> Result<Descent> {
    check_links(draft)?;
    let (mut path, mut node) = (Vec::new(), 0);
    loop {
        let next_token = p(node)?.draw(picker, path.len());
        match draft.children(node).find(|&child| draft.tokens[child] == next_token) {
            Some(child) => path.push(child),
            None => return Ok(Descent { path, next_token, residual_underflow: false }),
        }
        node = path[path.len() - 1] + 1;
    }
}

/// Verifies a tree by ratio: the children of a node that were drawn are tested in the order they were drawn in, each against
/// what those before it have left of `p`; then what is left draws, and a guess stands if it is drawn (recursive rejection
/// sampling: arXiv:2305.09781, without replacement arXiv:2402.14160 and 2402.12374). Of a chain it makes what
/// [`rejection`](super::rejection) makes, by the same numbers.
///
/// A child's `q` is the distribution it was drawn from, given the siblings before it. How many children a node has may
/// depend on everything but the tokens of those.
///
/// `p` is as in [`matched`].
///
/// # Errors
///
/// As [`rejection`](super::rejection), and [`Error::InvalidArgument`] for links that are no tree.
pub fn recursive(
    draft: &Draft,
    mut p: impl FnMut(usize) -> Result<Distribution>,
    chooser: &mut impl Chooser,
) -> Result<Descent> {
    check_links(draft)?;
    check_q(draft)?;
    let mut descent = Descent::default();
    let mut node = 0;
    loop {
        let accepted = match test(draft, node, p(node)?, chooser, &mut descent.residual_underflow)? {
            Tested::Child(child) => child,
            Tested::Token(next_token) => return Ok(Descent { next_token, ..descent }),
        };
        descent.path.push(accepted);
        node = accepted + 1;
    }
}

enum Tested {
    /// A child stands.
    Child(usize),
    /// None does, and this comes instead.
    Token(u32),
}

fn test(
    draft: &Draft,
    node: usize,
    p: Distribution,
    chooser: &mut impl Chooser,
    underflow: &mut bool,
) -> Result<Tested> {
    let mut left: Option<Weights> = None;
    for child in draft.children(node) {
        let (x, q) = (draft.tokens[child], &draft.q[child]);
        if matches!(p, Distribution::Point(_)) || matches!(q, Distribution::Point(_)) {
            continue;
        }
        let (p_law, q_law) = exact_laws(child, &p, q)?;
        let ln_p = left.as_ref().map_or_else(|| p_law.log_prob(x), |left| left.log_prob(x));
        if ln_p > f64::NEG_INFINITY && chooser.accept(child, ln_p - q_law.log_prob(x)) {
            return Ok(Tested::Child(child));
        }
        let rest = match &left {
            None => Weights::normalised(p_law.minus(q_law)),
            Some(left) => Weights::normalised(left.minus(q_law)),
        };
        match rest {
            Some(rest) => left = Some(rest),
            None => *underflow = true,
        }
    }
    let y = match &left {
        None => p.draw(chooser, node),
        Some(left) => left.draw(chooser, node),
    };
    let is_drawn = |&child: &usize| draft.tokens[child] == y;
    Ok(draft.children(node).find(is_drawn).map_or(Tested::Token(y), Tested::Child))
}

/// What some siblings have left of `p`: token ids, ascending, with probabilities above 0. In f64, since it is subtracted
/// from again.
struct Weights(Vec<(u32, f64)>);

impl Weights {
    /// `None` where there is nothing but rounding.
    fn normalised(weights: impl Iterator<Item = (u32, f64)>) -> Option<Self> {
        let mut weights: Vec<(u32, f64)> = weights.filter(|&(_, weight)| weight > 0.0).collect();
        let mass: f64 = weights.iter().map(|&(_, weight)| weight).sum();
        weights.iter_mut().for_each(|(_, weight)| *weight /= mass);
        (mass > RESIDUAL_UNDERFLOW).then_some(Self(weights))
    }

    fn log_prob(&self, id: u32) -> f64 {
        match self.0.binary_search_by_key(&id, |&(id, _)| id) {
            Ok(at) => self.0[at].1.ln(),
            Err(_) => f64::NEG_INFINITY,
        }
    }

    /// `max(0, p - q)`.
    fn minus(&self, q: Law<'_>) -> impl Iterator<Item = (u32, f64)> {
        self.0.iter().map(move |&(id, weight)| (id, f64::max(0.0, weight - q.log_prob(id).exp())))
    }

    fn draw(&self, picker: &mut impl Picker, index: usize) -> u32 {
        picker.pick(index, self.0.iter().copied()).expect("weights that sum to 1")
    }
}

/// A parent comes before its children, and no two of these are the same token.
fn check_links(draft: &Draft) -> Result<()> {
    let Some(parents) = &draft.parents else { return Ok(()) };
    let broken = |what: String| Err(Error::InvalidArgument(format!("the draft is no tree: {what}")));
    if parents.len() != draft.len() {
        return broken(format!("{} tokens with {} parents", draft.len(), parents.len()));
    }
    for (i, &parent) in parents.iter().enumerate() {
        if parent as usize > i {
            return broken(format!("token {i} has the parent {parent}, which comes after it"));
        }
        let is_twin = |other: usize| parents[other] == parent && draft.tokens[other] == draft.tokens[i];
        if (0..i).any(is_twin) {
            return broken(format!("token {i} (id {}) is there twice behind one parent", draft.tokens[i]));
        }
    }
    Ok(())
}
