//! The rule: which length brings the most tokens a second (renewal reward), and whether one more token does.

use super::hazard::Chances;

/// What the next draft is expected to bring and to cost. Times are in passes over the pending tokens alone.
#[derive(Clone, Debug)]
pub(super) struct Forecast {
    /// The target's pass by drafted tokens; the first is 1.
    pub(super) pass: Vec<f64>,
    /// One token of the draft.
    pub(super) step: f64,
    pub(super) chances: Chances,
    /// λ: what a pass's time brings in tokens elsewhere in this text; at least 1, since plain decoding is always to be had.
    pub(super) rate: f64,
}

impl Forecast {
    /// The length within `1..=most` with the best rate `(1 + Σ S_i) / (T(g + 1) + g t)`, and that rate; plain decoding has 1.
    /// All lengths are tried: T has steps, so the rate may fall and rise again.
    pub(super) fn best_length(&self, most: usize) -> (usize, f64) {
        let (mut survival, mut tokens, mut best) = (1.0, 1.0, (0, 0.0));
        for g in 1..=most.min(self.pass.len() - 1) {
            survival *= self.chances.of(g - 1, None);
            tokens += survival;
            let rate = tokens / (self.pass[g] + g as f64 * self.step);
            if rate > best.1 {
                best = (g, rate);
            }
        }
        best
    }

    /// How many tokens of a finished draft are worth scoring: the prefix that gains most over what the time of its rows
    /// would bring elsewhere. `chances` are of its tokens, in order.
    pub(super) fn best_prefix(&self, chances: impl Iterator<Item = f64>) -> usize {
        let (mut survival, mut tokens, mut best) = (1.0, 0.0, (0, 0.0));
        for (i, chance) in chances.take(self.pass.len() - 1).enumerate() {
            survival *= chance;
            tokens += survival;
            let gain = tokens - self.rate * (self.pass[i + 1] - self.pass[0]);
            if gain > best.1 {
                best = (i + 1, gain);
            }
        }
        best.0
    }

    /// Whether a draft of `num_drafted` tokens, all standing with the chance `survival`, gains by going on to any length up
    /// to `most`. `next` is the chance of the next token where its work is done already; else that is to be paid as well.
    pub(super) fn is_worth_more(
        &self,
        num_drafted: usize,
        survival: f64,
        next: Option<f64>,
        most: usize,
    ) -> bool {
        let (mut survival, mut tokens) = (survival, 0.0);
        let mut time = if next.is_some() { -self.step } else { 0.0 };
        (num_drafted..most.min(self.pass.len() - 1)).any(|i| {
            survival *= next.filter(|_| i == num_drafted).unwrap_or_else(|| self.chances.of(i, None));
            tokens += survival;
            time += self.step + self.pass[i + 1] - self.pass[i];
            tokens > self.rate * time
        })
    }
}
