//! Plans that know no costs: a fixed length, and two rules of thumb to compare with.

use std::collections::VecDeque;

use super::{Choice, Means, Outcome, Outlook, Pace, Planner};
use crate::verify::{Draft, Signal};

/// Always so many.
#[derive(Clone)]
pub(super) struct Fixed(pub(super) usize);

impl Planner for Fixed {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }

    fn max_tokens(&self) -> usize {
        self.0
    }
}

impl Pace for Fixed {
    fn begin(&mut self, outlook: Outlook) -> usize {
        self.0.min(outlook.room)
    }

    fn wants_prompt(&mut self, _len: usize) -> bool {
        self.0 > 0
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }
}

/// Drafts go on while the drafter is at least so sure.
#[derive(Clone, Copy)]
pub(super) struct Floor(pub(super) f32);

/// No chain of sure guesses is longer.
pub(super) const FLOOR_MAX: usize = 16;

impl Planner for Floor {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(*self)
    }

    fn max_tokens(&self) -> usize {
        FLOOR_MAX
    }
}

impl Pace for Floor {
    fn begin(&mut self, outlook: Outlook) -> usize {
        FLOOR_MAX.min(outlook.room)
    }

    fn reads_confidence(&self) -> bool {
        true
    }

    fn go_on(&mut self, _num_drafted: usize, confidence: Option<f32>) -> bool {
        confidence.is_none_or(|confidence| confidence >= self.0)
    }

    fn keep(&mut self, draft: &Draft, _least: usize) -> usize {
        let is_unsure = |signal: Signal| signal.confidence.is_some_and(|sure| sure < self.0);
        draft.signals().position(is_unsure).unwrap_or(draft.len())
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(*self)
    }
}

/// Always trees of so many tokens: second thoughts that are likely enough come before going deeper.
#[derive(Clone, Copy)]
pub(super) struct Trees(pub(super) usize);

/// The least that a model thinks of a second thought of such a tree.
const LIKELY: f32 = 0.05;

impl Planner for Trees {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(*self)
    }

    fn max_tokens(&self) -> usize {
        self.0
    }
}

impl Pace for Trees {
    fn begin(&mut self, outlook: Outlook) -> usize {
        self.0.min(outlook.room)
    }

    fn wants_prompt(&mut self, _len: usize) -> bool {
        self.0 > 0
    }

    fn choose(&mut self, _num_before: usize, guesses: &mut [Draft], means: Means) -> Choice {
        Choice { branches: true, ..Choice::by_confidence(guesses, means.has_model) }
    }

    fn branch(&mut self, _num_drafted: usize, confidence: f32) -> bool {
        confidence >= LIKELY
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(*self)
    }
}

/// The window rule.
pub(super) struct Window;

/// The longest draft of the window rule.
pub(super) const WINDOW_MAX: usize = 8;
const WINDOW_MIN: f64 = 2.0;
const WINDOW_BASE: f64 = 4.0;
const WINDOW_ROUNDS: usize = 8;
const WINDOW_THRESHOLD: f64 = 0.75;
const WINDOW_STEP: f64 = 0.2;

impl Planner for Window {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(WindowPace { len: WINDOW_BASE, rounds: VecDeque::new() })
    }

    fn max_tokens(&self) -> usize {
        WINDOW_MAX
    }
}

#[derive(Clone)]
struct WindowPace {
    /// Not rounded, or steps of a fifth would stall.
    len: f64,
    /// Drafted and accepted in the last rounds.
    rounds: VecDeque<(usize, usize)>,
}

impl Pace for WindowPace {
    fn begin(&mut self, outlook: Outlook) -> usize {
        (self.len.round() as usize).min(outlook.room)
    }

    fn observe(&mut self, outcome: &Outcome<'_>) {
        if outcome.draft.is_empty() {
            return;
        }
        self.rounds.push_back((outcome.draft.len(), outcome.num_accepted));
        if self.rounds.len() > WINDOW_ROUNDS {
            self.rounds.pop_front();
        }
        let add = |(a, b): (usize, usize), &(drafted, accepted): &(usize, usize)| (a + drafted, b + accepted);
        let (drafted, accepted) = self.rounds.iter().fold((0, 0), add);
        let is_good = accepted as f64 > WINDOW_THRESHOLD * drafted as f64;
        let factor = if is_good { 1.0 + WINDOW_STEP } else { 1.0 - WINDOW_STEP };
        self.len = (self.len * factor).clamp(WINDOW_MIN, WINDOW_MAX as f64);
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }
}
