//! How many tokens to draft: too many cost time that too few accepted ones do not bring back, and where even one does
//! not pay, none.
//!
//! A [`Plan`] is what a user asks for, a [`Planner`] what an engine has of it, a [`Pace`] what one text goes by. A pace
//! decides in three places, and what it may look at there keeps the text exact under every rule of verification:
//!
//! | asked | may look at | why |
//! |---|---|---|
//! | [`Pace::begin`], before a round | everything up to then, clocks included | nothing is drawn yet |
//! | [`Pace::go_on`], before a token is drawn | the tokens drawn before it, and the distribution it would be drawn from | a ratio test is about the token, which nobody has seen |
//! | [`Pace::keep`], after the draft | all of it | only of guesses that no ratio is tested with may any be dropped; the round sees to it |
//!
//! So the distribution of the text never depends on a pace, and greedy and coupled text, token by token, neither. The
//! text that a seed gives under a ratio test does: it is drawn anew in other places where drafts have other lengths.

mod auto;
mod cost;
mod forecast;
mod hazard;
mod measure;
mod simple;
#[cfg(test)]
mod tests;
mod worker;

use std::{fmt, str::FromStr, sync::Arc, time::Duration};

use auto::Auto;
pub(crate) use cost::Costs;
pub(crate) use measure::{Place, Role, curve, guessed};

use crate::{
    error::{Error, Result},
    verify::Draft,
};

/// The floor of [`Plan::Confidence`] unless told otherwise.
const DEFAULT_FLOOR: f32 = 0.75;

/// How the lengths of drafts are chosen.
#[derive(Clone, Default)]
pub enum Plan {
    /// By time: as many as bring the most tokens a second, by what passes cost on this machine and what has been accepted
    /// so far; none where drafting does not pay.
    #[default]
    Auto,
    /// Always so many; 0 is plain decoding.
    Fixed(usize),
    /// By the rule of thumb of many engines: from 4, within 2 and 8, a fifth more after rounds that accepted over 75 %, else
    /// a fifth less. It knows no costs and never stops; a baseline.
    Window,
    /// As long as the draft gives its best guess at least this probability.
    Confidence(f32),
    /// Always trees of so many tokens, as far as the drafter has second thoughts.
    Trees(usize),
    /// One's own.
    Custom(Arc<dyn Planner>),
}

impl From<usize> for Plan {
    fn from(k: usize) -> Self {
        Self::Fixed(k)
    }
}

impl fmt::Display for Plan {
    /// As it is parsed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Fixed(k) => write!(f, "{k}"),
            Self::Window => f.write_str("window"),
            Self::Confidence(floor) => write!(f, "confidence:{floor}"),
            Self::Trees(k) => write!(f, "tree:{k}"),
            Self::Custom(_) => f.write_str("custom"),
        }
    }
}

impl fmt::Debug for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Plan({self})")
    }
}

impl FromStr for Plan {
    type Err = Error;

    /// `auto`, `window`, `confidence`, `confidence:P`, `tree:N`, or a number of tokens.
    fn from_str(text: &str) -> Result<Self> {
        let plan = match text {
            "auto" => Some(Self::Auto),
            "window" => Some(Self::Window),
            "confidence" => Some(Self::Confidence(DEFAULT_FLOOR)),
            _ => match text.split_once(':') {
                Some(("confidence", floor)) => floor.parse().ok().map(Self::Confidence),
                Some(("tree", k)) => k.parse().ok().map(Self::Trees),
                Some(_) => None,
                None => text.parse().ok().map(Self::Fixed),
            },
        };
        plan.filter(|plan| plan.check().is_ok()).ok_or_else(|| {
            Error::InvalidArgument(format!(
                "plan `{text}` is unknown; wanted auto, window, confidence, confidence:P with P between 0 and 1, \
                 tree:N, or a number of tokens"
            ))
        })
    }
}

impl Plan {
    /// # Errors
    /// [`Error::InvalidArgument`] for a floor that is no probability.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            Self::Confidence(floor) if !(0.0..=1.0).contains(floor) => Err(Error::InvalidArgument(format!(
                "the confidence below which drafting stops is {floor}; wanted 0 to 1"
            ))),
            _ => Ok(()),
        }
    }

    /// Whether lengths depend on the clock: then a seed repeats a text only where that does not depend on the draft
    /// ([`Verification::Coupled`](crate::Verification::Coupled), or temperature 0).
    pub fn goes_by_time(&self) -> bool {
        matches!(self, Self::Auto)
    }

    /// The most tokens it ever drafts in a round.
    pub fn max_tokens(&self) -> usize {
        match self {
            Self::Auto => auto::MAX_TOKENS,
            Self::Fixed(k) => *k,
            Self::Window => simple::WINDOW_MAX,
            Self::Confidence(_) => simple::FLOOR_MAX,
            Self::Trees(k) => *k,
            Self::Custom(planner) => planner.max_tokens(),
        }
    }

    /// The plan at work, where a pass and a draft cost what `costs` says.
    pub(crate) fn planner(&self, costs: &Costs) -> Arc<dyn Planner> {
        match self {
            Self::Auto => Arc::new(Auto::new(costs.clone())),
            Self::Fixed(k) => Arc::new(simple::Fixed(*k)),
            Self::Window => Arc::new(simple::Window),
            Self::Confidence(floor) => Arc::new(simple::Floor(*floor)),
            Self::Trees(k) => Arc::new(simple::Trees(*k)),
            Self::Custom(planner) => planner.clone(),
        }
    }
}

/// A plan as an engine has it: what it learns from one text serves the next.
pub trait Planner: Send + Sync {
    /// The pace of a new text.
    fn new_pace(&self) -> Box<dyn Pace>;

    /// The most tokens it ever drafts in a round: buffers are planned by it.
    fn max_tokens(&self) -> usize;
}

/// Decides for one text, round by round, how many tokens are drafted.
pub trait Pace: Send {
    /// The most tokens to draft in the next round. With 0 the drafter is not asked, and has to catch up with the text when
    /// it is asked again.
    fn begin(&mut self, outlook: Outlook) -> usize;

    /// Whether a prompt of `len` tokens goes to the drafter too, before the first round.
    fn wants_prompt(&mut self, _len: usize) -> bool {
        true
    }

    /// Whether drafters are to tell how sure they are; where not, they draft what [`Pace::begin`] says.
    fn reads_confidence(&self) -> bool {
        false
    }

    /// Whether the draft goes on behind its first `num_drafted` tokens. A drafter to which each token is work asks twice:
    /// before the work, with no `confidence`, and when it knows how sure it is, from 0 to 1, of a token not yet drawn.
    fn go_on(&mut self, _num_drafted: usize, _confidence: Option<f32>) -> bool {
        true
    }

    /// What to take of `guesses`, alternatives that cost nothing and would stand behind the first `num_before` tokens of the
    /// draft. Each is cut to what of it is worth scoring.
    fn choose(&mut self, _num_before: usize, guesses: &mut [Draft], means: Means) -> Choice {
        Choice::by_confidence(guesses, means.has_model)
    }

    /// Whether a model's second thought is to be scored too, beside the token it has just drawn, as one more row behind
    /// `num_drafted`. `confidence` may depend on everything but what the second thought is.
    fn branch(&mut self, _num_drafted: usize, _confidence: f32) -> bool {
        false
    }

    /// How many tokens of the draft the target is to score, from the first. The first `least` were drawn for a ratio test,
    /// and stay in any case.
    fn keep(&mut self, draft: &Draft, _least: usize) -> usize {
        draft.len()
    }

    /// Hears what came of the round.
    fn observe(&mut self, _outcome: &Outcome<'_>) {}

    /// The pace of a text that has been this one so far, such as another sample of its prompt.
    fn fork(&self) -> Box<dyn Pace>;

    /// What it has done so far.
    fn stats(&self) -> PlanStats {
        PlanStats::default()
    }
}

/// What else a draft may be made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Means {
    /// Whether a model may go on behind a guess, or begin in its place.
    pub has_model: bool,
    /// Whether the draft may be a tree: guesses beside each other.
    pub branches: bool,
}

/// Who begins a draft, and who goes on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Which guess.
    pub guess: usize,
    /// How many of its tokens; 0 for none.
    pub len: usize,
    /// How many tokens the model may add at most.
    pub num_more: usize,
    /// Whether other guesses may be scored beside these tokens, in one pass.
    pub branches: bool,
}

/// A guess less sure than this is worth less than a model's.
const SURE: f32 = 0.75;

impl Choice {
    /// The guess that is surest of itself, and then the model, to the end: for who knows no costs.
    pub fn by_confidence(guesses: &[Draft], has_model: bool) -> Self {
        let is_sure = |guess: &Draft| guess.signals().next().and_then(|first| first.confidence) >= Some(SURE);
        let sure = guesses.iter().enumerate().filter(|(_, guess)| !has_model || is_sure(guess));
        let best = sure.max_by(|(_, a), (_, b)| a.expected_len().total_cmp(&b.expected_len()));
        let num_more = if has_model { usize::MAX } else { 0 };
        best.map_or(Self { num_more, ..Self::default() }, |(guess, best)| Self {
            guess,
            len: best.len(),
            num_more,
            branches: false,
        })
    }
}

/// What is known before a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outlook {
    /// Tokens that may be drafted at most: no more could be kept.
    pub room: usize,
    /// Tokens of the text so far.
    pub text_len: usize,
    /// Texts that share the round's passes.
    pub num_texts: usize,
}

/// What became of a draft.
#[derive(Clone, Copy, Debug)]
pub struct Outcome<'a> {
    /// What the target scored.
    pub draft: &'a Draft,
    /// The tokens that the round added to the text.
    pub new: &'a [u32],
    /// How many of them had been drafted.
    pub num_accepted: usize,
    /// Clocks.
    pub times: RoundTimes,
}

impl Outcome<'_> {
    /// Tokens of the draft that were up for acceptance: those behind the first that fell, or behind the text's end, were
    /// not, and tell nothing.
    pub fn num_reached(&self) -> usize {
        self.draft.len().min(self.new.len())
    }
}

/// The times of a round, which all texts in it share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RoundTimes {
    /// Drafting.
    pub draft: Duration,
    /// The target's pass.
    pub verify: Duration,
    /// Rows of that pass.
    pub rows: usize,
}

/// What a plan decided in a text.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PlanStats {
    /// Rounds in which the plan had nothing drafted, or nothing scored of what there was.
    pub rounds_off: usize,
    /// Rounds whose draft had another length than seemed best, to learn from.
    pub probes: usize,
    /// Why nothing is drafted at the end, if so.
    pub off: Option<Off>,
}

/// A plan's reason to draft nothing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Off {
    /// The chance that a first drafted token is accepted.
    pub acceptance: f64,
    /// The speed-up over plain decoding that the best length would have.
    pub speed_up: f64,
}
