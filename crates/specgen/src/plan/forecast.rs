//! The rule: which length brings the most tokens a second (renewal reward), and whether one more token does.

use super::hazard::{Chances, Spot};
use crate::verify::Draft;

/// What the next draft is expected to bring and to cost. Times are in passes over the pending tokens alone.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    /// The target's pass by drafted tokens; the first is 1.
    pub(super) pass: Vec<f64>,
    /// One token of a model's draft.
    pub(super) step: f64,
    pub(super) chances: Chances,
    /// λ: what a pass's time brings in tokens elsewhere in this text; at least 1, since plain decoding is always to be had.
    pub(super) rate: f64,
}

/// How far a draft has come.
#[derive(Clone, Copy, Debug)]
pub(super) struct Growth {
    /// Its tokens.
    pub(super) len: usize,
    /// Those at its end that the model drafted.
    pub(super) of_model: usize,
    /// The chance that all stand.
    pub(super) survival: f64,
    /// The most tokens that it may have.
    pub(super) most: usize,
}

/// The beginning of a guess.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Beginning {
    /// Which guess.
    pub(super) guess: usize,
    pub(super) len: usize,
    pub(super) survival: f64,
}

impl Forecast {
    /// The length within `1..=most` of a model's draft with the best rate `(1 + Σ S_i) / (T(g + 1) + g t)`, and that rate;
    /// plain decoding has 1. All lengths are tried: T has steps, so the rate may fall and rise again.
    pub(super) fn best_length(&self, most: usize) -> (usize, f64) {
        let (mut survival, mut tokens, mut best) = (1.0, 1.0, (0, 0.0));
        for g in 1..=most.min(self.pass.len() - 1) {
            survival *= self.chances.of(Spot::of_model(g - 1));
            tokens += survival;
            let rate = tokens / (self.pass[g] + g as f64 * self.step);
            if rate > best.1 {
                best = (g, rate);
            }
        }
        best
    }

    /// What the best length within `1..=most` gains over what its time would bring elsewhere, in tokens; 0 where none gains.
    pub(super) fn worth_of_model(&self, most: usize, catching_up: f64) -> f64 {
        let (mut survival, mut tokens, mut best) = (1.0, 0.0, 0.0);
        for g in 1..=most.min(self.pass.len() - 1) {
            survival *= self.chances.of(Spot::of_model(g - 1));
            tokens += survival;
            let time = self.pass[g] - self.pass[0] + g as f64 * self.step + catching_up;
            best = f64::max(best, tokens - self.rate * time);
        }
        best
    }

    /// The beginning of a guess that gains most, and how much, where what follows it gains `behind` if all of it stands; none
    /// of them may.
    pub(super) fn best_beginning(
        &self,
        num_before: usize,
        guesses: &[Draft],
        behind: f64,
    ) -> (Beginning, f64) {
        let mut best = (Beginning { survival: 1.0, ..Beginning::default() }, behind);
        let row = |i: usize| self.pass[i.min(self.pass.len() - 1)];
        for (guess, draft) in guesses.iter().enumerate() {
            let (mut survival, mut tokens) = (1.0, 0.0);
            for (len, spot) in (1..).zip(Spot::of(draft)) {
                survival *= self.chances.of(spot);
                tokens += survival;
                let time = row(num_before + len) - row(num_before);
                let gain = tokens - self.rate * time + survival * behind;
                if gain > best.1 {
                    best = (Beginning { guess, len, survival }, gain);
                }
            }
        }
        best
    }

    /// How many tokens of a finished draft are worth scoring: the first so many that gain most over what the time of their
    /// rows would bring elsewhere.
    pub(super) fn best_prefix(&self, draft: &Draft) -> usize {
        let mut survivals: Vec<f64> = Vec::with_capacity(draft.len());
        let (mut tokens, mut best) = (0.0, (0, 0.0));
        for (i, spot) in Spot::of(draft).into_iter().take(self.pass.len() - 1).enumerate() {
            let survival = draft.parent(i).map_or(1.0, |parent| survivals[parent]) * self.chances.of(spot);
            survivals.push(survival);
            tokens += survival;
            let gain = tokens - self.rate * (self.pass[i + 1] - self.pass[0]);
            if gain > best.1 {
                best = (i + 1, gain);
            }
        }
        best.0
    }

    /// Whether a token that costs nothing but its row is worth it, behind `len` others; `survival` is the chance of it.
    pub(super) fn is_worth_row(&self, len: usize, survival: f64) -> bool {
        len + 1 < self.pass.len() && survival > self.rate * (self.pass[len + 1] - self.pass[len])
    }

    /// Whether a draft gains by the model going on to any length. `next` is the chance of its next token where the work for
    /// that is done already; else it is to be paid as well.
    pub(super) fn is_worth_more(&self, growth: Growth, next: Option<f64>) -> bool {
        let (mut survival, mut tokens) = (growth.survival, 0.0);
        let mut time = if next.is_some() { -self.step } else { 0.0 };
        (growth.len..growth.most.min(self.pass.len() - 1)).any(|i| {
            let spot = Spot::of_model(growth.of_model + i - growth.len);
            survival *= next.filter(|_| i == growth.len).unwrap_or_else(|| self.chances.of(spot));
            tokens += survival;
            time += self.step + self.pass[i + 1] - self.pass[i];
            tokens > self.rate * time
        })
    }
}
