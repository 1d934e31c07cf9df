//! Whether a drafter whose tokens cost time is asked: an off state that asks again now and then, while taking in what the
//! drafter has missed costs no more than a probe may.

use super::{Off, Outlook, cost::DraftCost, forecast::Forecast, hazard::Spot};

/// Estimates are noisy: where drafting seems to lose less than this, it goes on as long as it has gains to lose.
const HOPELESS: f64 = 0.9;
/// Rounds a drafter is left alone for when it does not pay; twice as many after a probe that failed, up to the bound.
const OFF_ROUNDS: u32 = 16;
const MAX_OFF_ROUNDS: u32 = 64;
/// What drafting may lose against plain decoding: so many passes at first, and then this share of the rounds without it.
/// What drafting gains may be lost again, up to a bound.
pub(super) const ALLOWANCE: f64 = 4.0;
const PROBE_SHARE: f64 = 0.01;
pub(super) const MAX_CREDIT: f64 = 8.0;
/// Tokens of a probe, and of those that follow one that stood.
pub(super) const PROBE_TOKENS: usize = 2;
const PROBE_ON_TOKENS: usize = 4;
/// Probes in a row, after which the estimate decides.
const MAX_PROBES: u32 = 8;
/// So many new texts leave the draft model without their prompt for one that gives it another try.
const RETRY_TEXTS: u32 = 8;
/// What a round leaves of the rates before.
pub(super) const RATE_MEMORY: f64 = 0.99;
/// Passes that a forecast of the best length's rate counts for beside what was seen.
const BEST_WEIGHT: f64 = 8.0;

/// Tokens over time; older rounds count less.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Rate {
    tokens: f64,
    time: f64,
}

impl Rate {
    pub(super) fn add(&mut self, tokens: usize, time: f64) {
        self.tokens = RATE_MEMORY * self.tokens + tokens as f64;
        self.time = RATE_MEMORY * self.time + time;
    }

    /// With `prior` counting for `weight` passes.
    pub(super) fn estimate(self, prior: f64, weight: f64) -> f64 {
        (self.tokens + weight * prior) / (self.time + weight)
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum State {
    On,
    /// For so many more rounds; so many probes failed.
    Off {
        rounds: u32,
        failed: u32,
    },
    /// Asked again, for the `probe`-th time in a row.
    Probing {
        probe: u32,
        failed: u32,
    },
}

/// What the drafter is to do in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    Rest,
    /// To draft as seems best.
    Draft,
    /// To draft so many tokens, whatever it says of them. `is_first` of several in a row.
    Probe {
        tokens: usize,
        is_first: bool,
    },
}

/// A drafter that costs something, at one text.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    state: State,
    /// Of rounds that drafted, since that is on.
    drafting: Rate,
    /// Length of the text that the drafter has seen.
    seen: usize,
    /// Passes that drafting has cost beyond what it brought and what it may.
    debt: f64,
    has_begun: bool,
    /// Whether it asks before it goes on, as far as known.
    pub(super) asks: bool,
    /// Why it rests.
    pub(super) off: Option<Off>,
}

impl Worker {
    pub(super) fn new() -> Self {
        Self {
            state: State::On,
            drafting: Rate::default(),
            seen: 0,
            debt: -ALLOWANCE,
            has_begun: false,
            asks: false,
            off: None,
        }
    }

    /// Before the first round: a text begins where those before it ended. `passed_over` counts new texts in a row whose
    /// prompt was kept from the drafter.
    pub(super) fn start(&mut self, forecast: &Forecast, passed_over: &mut u32) {
        if std::mem::replace(&mut self.has_begun, true) || self.rate(forecast) >= 1.0 {
            return;
        }
        *passed_over += 1;
        if passed_over.is_multiple_of(RETRY_TEXTS) {
            self.state = State::Probing { probe: 0, failed: 0 };
        } else {
            // That has been found out already.
            self.debt = 0.0;
            self.turn_off(0, forecast);
        }
    }

    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// Whether it takes a prompt of `len` tokens in.
    pub(super) fn wants_prompt(&mut self, len: usize) -> bool {
        let wanted = !matches!(self.state, State::Off { .. });
        if wanted {
            self.seen = len;
        }
        wanted
    }

    /// Tokens it has not seen.
    pub(super) fn missed(&self, text_len: usize) -> usize {
        text_len.saturating_sub(self.seen)
    }

    /// The rate of rounds that draft: what the best length would have, and what was seen since drafting is on. That sees what
    /// a drafter's confidence brings, and what it costs to ask in vain.
    fn rate(&self, forecast: &Forecast) -> f64 {
        let (_, best) = forecast.best_length(forecast.pass.len() - 1);
        self.drafting.estimate(best, BEST_WEIGHT)
    }

    fn turn_off(&mut self, failed: u32, forecast: &Forecast) {
        let rounds = (OFF_ROUNDS << failed.min(8)).min(MAX_OFF_ROUNDS);
        self.state = State::Off { rounds, failed };
        let acceptance = forecast.chances.of(Spot::of_model(0));
        self.off = Some(Off { acceptance, speed_up: self.rate(forecast) });
    }

    /// What a probe costs if nothing of it stands: most of it may be to take in what the drafter has missed.
    fn probe_price(&self, text_len: usize, forecast: &Forecast, cost: &DraftCost) -> f64 {
        let tokens = PROBE_TOKENS.min(forecast.pass.len() - 1);
        cost.catching_up(self.missed(text_len)) + tokens as f64 * forecast.step + forecast.pass[tokens] - 1.0
    }

    pub(super) fn order(&mut self, outlook: Outlook, forecast: &Forecast, cost: &DraftCost) -> Order {
        if let State::Off { rounds, failed } = self.state {
            self.debt = (self.debt - PROBE_SHARE).max(-MAX_CREDIT);
            if rounds > 0 || self.debt + self.probe_price(outlook.text_len, forecast, cost) > 0.0 {
                self.state = State::Off { rounds: rounds.saturating_sub(1), failed };
                return Order::Rest;
            }
            self.drafting = Rate::default();
            self.state = State::Probing { probe: 0, failed };
        }
        if let State::Probing { probe, failed } = self.state {
            let tokens = if probe == 0 { PROBE_TOKENS } else { PROBE_ON_TOKENS };
            self.state = State::Probing { probe: probe + 1, failed };
            return Order::Probe { tokens, is_first: probe == 0 };
        }
        let rate = self.rate(forecast);
        if rate < 1.0 && (rate < HOPELESS || self.debt >= 0.0) {
            self.turn_off(0, forecast);
            return Order::Rest;
        }
        Order::Draft
    }

    /// Hears of a round that it worked in, `tokens` of which were added in `time` passes; the text is `text_len` long now.
    pub(super) fn learn(&mut self, text_len: usize, tokens: usize, time: f64, is_detour: bool) {
        self.seen = text_len;
        self.debt = (self.debt + time - tokens as f64).max(-MAX_CREDIT);
        if !is_detour {
            self.drafting.add(tokens, time);
        }
    }

    /// What a probe says: go on asking, draft again, or leave it for longer. `stood`: all that was drafted.
    pub(super) fn judge_probe(&mut self, stood: bool, forecast: &Forecast) {
        let State::Probing { probe, failed } = self.state else { return };
        if self.rate(forecast) >= 1.0 && (!stood || probe >= MAX_PROBES) {
            self.state = State::On;
            self.off = None;
        } else if !stood || probe >= MAX_PROBES {
            self.turn_off(failed + 1, forecast);
        }
    }
}
