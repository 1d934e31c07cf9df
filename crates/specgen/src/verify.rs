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

/// Logarithm of a sum of probabilities: further from 0 than this is no rounding accident.
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
        if let Some(correction) = correct(i, x, &p(i)?, q, chooser)? {
            return Ok(Verdict { num_accepted: i, ..correction });
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
        return Ok((y != x).then(|| Verdict { next_token: y, ..Verdict::default() }));
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
    let mut mass = 0.0;
    let drawn = chooser.pick(i, p_law.minus(q_law).inspect(|&(_, weight)| mass += weight));
    let verdict = match drawn {
        Some(next_token) if mass > RESIDUAL_UNDERFLOW => Verdict { next_token, ..Verdict::default() },
        _ => Verdict { next_token: p.draw(chooser, i), residual_underflow: true, ..Verdict::default() },
    };
    Ok(Some(verdict))
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Answers from a script, so that each branch can be forced; picks the first possible token.
    #[derive(Default)]
    struct Script {
        accept: Vec<bool>,
        asked: Vec<f64>,
        picked_from: Vec<Vec<(u32, f64)>>,
    }

    impl Chooser for Script {
        fn accept(&mut self, _index: usize, ln_ratio: f64) -> bool {
            self.asked.push(ln_ratio);
            self.accept[self.asked.len() - 1]
        }

        fn pick(&mut self, _index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
            self.picked_from.push(weights.filter(|&(_, weight)| weight > 0.0).collect());
            self.picked_from.last().unwrap().first().map(|&(id, _)| id)
        }
    }

    fn dense(probs: &[f32]) -> Distribution {
        Distribution::Dense(probs.iter().map(|p| p.ln()).collect())
    }

    fn drawn(token: u32, q: &[f32]) -> Draft {
        let mut draft = Draft::default();
        draft.push(token, dense(q));
        draft
    }

    #[test]
    fn an_empty_draft_is_plain_sampling() {
        let mut script = Script::default();
        let verdict = rejection(&Draft::default(), |_| Ok(dense(&[0.0, 1.0])), &mut script).unwrap();
        assert_eq!(verdict, Verdict { num_accepted: 0, next_token: 1, residual_underflow: false });
    }

    #[test]
    fn the_ratio_is_p_over_q() {
        let mut script = Script { accept: vec![true], ..Script::default() };
        let rows = [dense(&[0.25, 0.75]), dense(&[0.0, 1.0])];
        let verdict = rejection(&drawn(0, &[0.5, 0.5]), |i| Ok(rows[i].clone()), &mut script).unwrap();
        assert_eq!((verdict.num_accepted, verdict.next_token), (1, 1));
        assert!((script.asked[0] - 0.5_f64.ln()).abs() < 1e-7);
    }

    #[test]
    fn p_is_not_asked_for_past_the_first_rejection() {
        let draft = Draft::deterministic(vec![1, 2, 3]);
        let mut asked = Vec::new();
        let p = |i| {
            asked.push(i);
            Ok(Distribution::Point([1, 9, 3, 4][i]))
        };
        let verdict = rejection(&draft, p, &mut Script::default()).unwrap();
        assert_eq!((verdict.num_accepted, verdict.next_token), (1, 9));
        assert_eq!(asked, [0, 1]);
    }

    #[test]
    fn greedy_decoding_asks_for_nothing_random() {
        let mut script = Script::default();
        let mut draft = drawn(4, &[0.2; 5]);
        draft.push(1, Distribution::Point(1));
        draft.push(3, dense(&[0.2; 5]));
        for (argmax, num_accepted, next_token) in
            [([4, 1, 3, 0], 3, 0), ([4, 1, 2, 0], 2, 2), ([4, 0, 3, 0], 1, 0), ([0, 1, 3, 0], 0, 0)]
        {
            let verdict = rejection(&draft, |i| Ok(Distribution::Point(argmax[i])), &mut script).unwrap();
            assert_eq!(verdict, Verdict { num_accepted, next_token, residual_underflow: false });
        }
        assert!(script.asked.is_empty() && script.picked_from.is_empty());
    }

    #[test]
    fn what_the_target_cannot_say_never_stands() {
        // Even against a chooser that always says yes.
        let mut script = Script { accept: vec![true; 4], ..Script::default() };
        let draft = drawn(0, &[1.0 - 1e-6, 1e-6]);
        let verdict = rejection(&draft, |_| Ok(dense(&[0.0, 0.5, 0.5])), &mut script).unwrap();
        assert_eq!(verdict.num_accepted, 0);
        assert_ne!(verdict.next_token, 0);
        assert!(script.asked.is_empty());
        // An id beyond the target's vocabulary is one of those things.
        let draft = drawn(3, &[0.0, 0.0, 0.0, 0.6, 0.4]);
        assert_eq!(rejection(&draft, |_| Ok(dense(&[0.5, 0.5])), &mut script).unwrap().num_accepted, 0);
    }

    #[test]
    fn an_impossible_rejection_falls_back_to_p_and_is_counted() {
        let mut script = Script { accept: vec![false], ..Script::default() };
        let row = [0.5, 0.5];
        let verdict = rejection(&drawn(1, &row), |_| Ok(dense(&row)), &mut script).unwrap();
        assert_eq!(verdict, Verdict { num_accepted: 0, next_token: 0, residual_underflow: true });
        assert_eq!(script.asked, [0.0], "equal bits must give the ratio 1");
    }

    #[test]
    fn a_draft_that_lies_about_q_is_refused() {
        let p = |_| Ok(dense(&[0.5, 0.5]));
        let mut script = Script { accept: vec![true; 9], ..Script::default() };
        let mut message = |draft: &Draft| rejection(draft, p, &mut script).unwrap_err().to_string();

        let missing = Draft { tokens: vec![1], ..Draft::default() };
        assert!(message(&missing).contains("1 tokens but 0 distributions"));
        assert!(message(&drawn(1, &[1.0, 0.0])).contains("token 0 (id 1) has probability 0"));
        assert!(message(&drawn(1, &[1.0, 1.0])).contains("sum to 2"));
        assert!(message(&drawn(1, &[f32::NAN, 1.0])).contains("sum to NaN"));
        let tree = Draft { parents: Some(vec![0]), ..drawn(1, &[0.5, 0.5]) };
        assert!(message(&tree).contains("trees"));
    }

    #[test]
    fn an_error_of_the_target_comes_through() {
        let p = |i| match i {
            0 => Ok(Distribution::Point(1)),
            _ => Err(Error::NanLogits { step: 5, token: 2 }),
        };
        let error = rejection(&Draft::deterministic(vec![1]), p, &mut Script::default()).unwrap_err();
        assert!(matches!(error, Error::NanLogits { step: 5, token: 2 }));
    }
}
