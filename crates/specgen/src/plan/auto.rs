//! The plan that goes by time: measured costs, observed acceptance, and an off state that asks again now and then, while
//! taking in what the drafter has missed costs no more than a probe may.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Off, Outcome, Outlook, Pace, PlanStats, Planner,
    cost::Costs,
    forecast::Forecast,
    hazard::{Chances, Hazards, Scope, Trial},
};
use crate::verify::Draft;

/// More tokens than this hardly ever all stand, and their rows are not free.
pub(super) const MAX_TOKENS: usize = 15;

/// A drafter whose token costs less than this share of a pass is asked in every round; what it guesses is judged then.
const FREE_STEP: f64 = 0.01;
/// Every so many rounds a draft has another length than seems best: longer, and every fourth time none at all.
const EXPLORE_EVERY: u32 = 64;
/// Tokens that an exploring draft goes on for.
const EXPLORE_MORE: usize = 1;
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
/// Observations that a text's own past counts for when it is probed again.
const PAST_WEIGHT: f64 = 2.0;
/// So many new texts leave the draft model without their prompt for one that gives it another try.
const RETRY_TEXTS: u32 = 8;
/// What a round leaves of the rates before.
const RATE_MEMORY: f64 = 0.99;
/// Passes that a forecast of a rate counts for beside what was seen: that plain decoding has 1, and what the best length
/// would have.
const PLAIN_WEIGHT: f64 = 2.0;
const BEST_WEIGHT: f64 = 8.0;
/// What a decision leaves of those before, where it is asked whether guesses are of any use.
const DECLINE_MEMORY: f64 = 0.9;
const MOSTLY: f64 = 0.8;

/// Tokens over time; older rounds count less.
#[derive(Clone, Copy, Debug, Default)]
struct Rate {
    tokens: f64,
    time: f64,
}

impl Rate {
    fn add(&mut self, tokens: usize, time: f64, memory: f64) {
        self.tokens = memory * self.tokens + tokens as f64;
        self.time = memory * self.time + time;
    }

    /// With `prior` counting for `weight` passes.
    fn estimate(self, prior: f64, weight: f64) -> f64 {
        (self.tokens + weight * prior) / (self.time + weight)
    }
}

/// What all texts of an engine share.
struct Shared {
    costs: Costs,
    hazards: Hazards,
    /// New texts in a row whose prompt was kept from the drafter.
    passed_over: u32,
}

/// The plan of an engine.
pub(crate) struct Auto {
    shared: Arc<Mutex<Shared>>,
    max_tokens: usize,
}

impl Auto {
    pub(crate) fn new(costs: Costs) -> Self {
        let max_tokens = costs.max_tokens.min(MAX_TOKENS);
        let shared = Shared { costs, hazards: Hazards::new(Scope::Shared), passed_over: 0 };
        Self { shared: Arc::new(Mutex::new(shared)), max_tokens }
    }
}

impl Planner for Auto {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(AutoPace::new(self.shared.clone(), self.max_tokens))
    }

    fn max_tokens(&self) -> usize {
        self.max_tokens
    }
}

/// Whether a drafter that costs something is asked.
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

/// A round of another length than seems best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detour {
    No,
    /// No draft, to see what a pass of one row costs.
    Shorter,
    /// A token more.
    Longer,
    /// So many tokens, whatever the drafter says of them.
    Probe(usize),
}

/// What was decided in the round that is under way.
#[derive(Clone)]
struct Current {
    outlook: Outlook,
    detour: Detour,
    forecast: Forecast,
    /// The most tokens wanted.
    most: usize,
    /// The chance that all tokens up to here stand.
    survival: f64,
    /// Tokens that exploring has gone on for.
    explored: usize,
    /// Whether the drafter asked whether to go on.
    has_asked: bool,
    /// Tokens the drafter worked on, whether or not they are in the draft.
    steps: usize,
    /// What the drafter has to take in first costs so much.
    catching_up: f64,
    /// The first guess that was not scored, if there was one: the text itself will tell what it was worth.
    dropped: Option<(u32, Option<f32>)>,
    /// The position and the chance of a token that was not drawn for the drafter's lack of confidence.
    declined: Option<(usize, f64)>,
}

#[derive(Clone)]
struct AutoPace {
    shared: Arc<Mutex<Shared>>,
    max_tokens: usize,
    own: Hazards,
    /// Of all rounds.
    overall: Rate,
    /// Of rounds that drafted, since that is on.
    drafting: Rate,
    state: State,
    /// Rounds with something to decide.
    num_rounds: u32,
    /// Length of the text that the drafter has seen.
    seen: usize,
    /// Passes that drafting has cost beyond what it brought and what it may.
    debt: f64,
    has_begun: bool,
    /// Whether the drafter asks before it goes on, as far as known.
    asks: bool,
    /// How much of what was guessed lately was not worth scoring.
    declined: f64,
    current: Option<Current>,
    stats: PlanStats,
}

impl AutoPace {
    fn new(shared: Arc<Mutex<Shared>>, max_tokens: usize) -> Self {
        Self {
            shared,
            max_tokens,
            own: Hazards::new(Scope::Own),
            overall: Rate::default(),
            drafting: Rate::default(),
            state: State::On,
            num_rounds: 0,
            seen: 0,
            debt: -ALLOWANCE,
            has_begun: false,
            asks: false,
            declined: 0.0,
            current: None,
            stats: PlanStats::default(),
        }
    }

    /// What counts is counted in one step, so that a panic elsewhere leaves it usable.
    fn shared(&self) -> MutexGuard<'_, Shared> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn forecast(&self, num_texts: usize) -> Forecast {
        let shared = self.shared();
        let curve = &shared.costs.target;
        let one = curve.ratio(num_texts);
        let pass = (0..=self.max_tokens).map(|g| curve.ratio(num_texts * (g + 1)) / one).collect();
        Forecast {
            pass,
            step: shared.costs.draft.step / one,
            chances: Chances::new(&self.own, &shared.hazards),
            rate: self.overall.estimate(1.0, PLAIN_WEIGHT).max(1.0),
        }
    }

    fn is_free(&self) -> bool {
        self.shared().costs.draft.step < FREE_STEP
    }

    /// The rate of rounds that draft: what the best length would have, and what was seen since drafting is on. That sees what
    /// a drafter's confidence brings, and what it costs to ask in vain.
    fn drafting_rate(&self, forecast: &Forecast) -> f64 {
        let (_, best) = forecast.best_length(self.max_tokens);
        self.drafting.estimate(best, BEST_WEIGHT)
    }

    fn turn_off(&mut self, failed: u32, forecast: &Forecast) {
        let rounds = (OFF_ROUNDS << failed.min(8)).min(MAX_OFF_ROUNDS);
        self.state = State::Off { rounds, failed };
        self.stats.off =
            Some(Off { acceptance: forecast.chances.of(0, None), speed_up: self.drafting_rate(forecast) });
    }

    /// What a probe costs if nothing of it stands: most of it may be to take in what the drafter has missed.
    fn probe_price(&self, text_len: usize, forecast: &Forecast) -> f64 {
        let missed = text_len.saturating_sub(self.seen);
        let tokens = PROBE_TOKENS.min(self.max_tokens);
        self.shared().costs.draft.catching_up(missed) + tokens as f64 * forecast.step + forecast.pass[tokens]
            - 1.0
    }

    /// Before the first round: a text begins where those before it ended.
    fn start(&mut self) {
        if std::mem::replace(&mut self.has_begun, true) || self.is_free() {
            return;
        }
        let forecast = self.forecast(1);
        if self.drafting_rate(&forecast) >= 1.0 {
            return;
        }
        let mut shared = self.shared();
        shared.passed_over += 1;
        let is_retry = shared.passed_over.is_multiple_of(RETRY_TEXTS);
        drop(shared);
        match is_retry {
            true => self.state = State::Probing { probe: 0, failed: 0 },
            false => {
                // That has been found out already.
                self.debt = 0.0;
                self.turn_off(0, &forecast);
            }
        }
    }

    /// The most tokens to draft, of a drafter that costs something.
    fn priced(&mut self, outlook: Outlook, forecast: &Forecast) -> (usize, Detour) {
        if let State::Off { rounds, failed } = self.state {
            self.debt = (self.debt - PROBE_SHARE).max(-MAX_CREDIT);
            if rounds > 0 || self.debt + self.probe_price(outlook.text_len, forecast) > 0.0 {
                self.state = State::Off { rounds: rounds.saturating_sub(1), failed };
                return (0, Detour::No);
            }
            self.own.discount(PAST_WEIGHT);
            self.drafting = Rate::default();
            self.state = State::Probing { probe: 0, failed };
        }
        if let State::Probing { probe, failed } = self.state {
            let tokens = if probe == 0 { PROBE_TOKENS } else { PROBE_ON_TOKENS };
            self.state = State::Probing { probe: probe + 1, failed };
            return (tokens, Detour::Probe(tokens));
        }
        let rate = self.drafting_rate(forecast);
        if rate < 1.0 && (rate < HOPELESS || self.debt >= 0.0) {
            self.turn_off(0, forecast);
            return (0, Detour::No);
        }
        // Who does not ask goes on to the end.
        let most = if self.asks { self.max_tokens } else { forecast.best_length(self.max_tokens).0 };
        match self.detour() {
            Detour::Shorter => (0, Detour::Shorter),
            Detour::Longer => ((most + EXPLORE_MORE).min(self.max_tokens), Detour::Longer),
            detour => (most, detour),
        }
    }

    fn detour(&mut self) -> Detour {
        self.num_rounds += 1;
        match self.num_rounds % (4 * EXPLORE_EVERY) {
            0 => Detour::Shorter,
            round if round.is_multiple_of(EXPLORE_EVERY) => Detour::Longer,
            _ => Detour::No,
        }
    }

    /// What a probe says: go on asking, draft again, or leave it for longer.
    fn judge_probe(&mut self, stood: bool) {
        let State::Probing { probe, failed } = self.state else { return };
        let forecast = self.forecast(1);
        if self.drafting_rate(&forecast) >= 1.0 && (!stood || probe >= MAX_PROBES) {
            self.state = State::On;
            self.stats.off = None;
        } else if !stood || probe >= MAX_PROBES {
            self.turn_off(failed + 1, &forecast);
        }
    }
}

impl Pace for AutoPace {
    fn begin(&mut self, outlook: Outlook) -> usize {
        self.start();
        self.current = None;
        if outlook.room == 0 {
            return 0;
        }
        let forecast = self.forecast(outlook.num_texts.max(1));
        let (most, detour) = match self.is_free() {
            true => (self.max_tokens, Detour::No),
            false => self.priced(outlook, &forecast),
        };
        let most = most.min(outlook.room);
        self.stats.rounds_off += usize::from(most == 0 && detour != Detour::Shorter);
        self.stats.probes += usize::from(matches!(detour, Detour::Probe(_) | Detour::Shorter));
        let unseen = outlook.text_len.saturating_sub(self.seen);
        let catching_up =
            if most > 0 && unseen > 2 { self.shared().costs.draft.catching_up(unseen) } else { 0.0 };
        self.current = Some(Current {
            outlook,
            detour,
            forecast,
            most,
            survival: 1.0,
            explored: 0,
            has_asked: false,
            steps: 0,
            catching_up,
            dropped: None,
            declined: None,
        });
        most
    }

    fn wants_prompt(&mut self, len: usize) -> bool {
        self.start();
        let wanted = !matches!(self.state, State::Off { .. });
        if wanted {
            self.seen = len;
        }
        wanted
    }

    fn reads_confidence(&self) -> bool {
        true
    }

    fn go_on(&mut self, num_drafted: usize, confidence: Option<f32>) -> bool {
        let Some(current) = &mut self.current else { return true };
        current.has_asked = true;
        let chance = confidence.map(|sure| current.forecast.chances.of(num_drafted, Some(sure)));
        let most = current.most;
        let is_wanted = current.forecast.is_worth_more(num_drafted, current.survival, chance, most);
        let goes_on = match current.detour {
            Detour::Probe(tokens) => num_drafted < tokens,
            Detour::Longer if !is_wanted && current.explored < EXPLORE_MORE => {
                current.explored += usize::from(confidence.is_some());
                true
            }
            _ => is_wanted,
        };
        if let (true, Some(chance)) = (goes_on, chance) {
            current.survival *= chance;
        }
        current.steps += usize::from(goes_on && confidence.is_none());
        if let (false, Some(chance)) = (goes_on, chance) {
            current.declined = Some((num_drafted, chance));
        }
        goes_on
    }

    fn keep(&mut self, draft: &Draft, least: usize) -> usize {
        let is_free = self.is_free();
        let detour = if is_free && !draft.is_empty() { self.detour() } else { Detour::No };
        let Some(current) = &mut self.current else { return draft.len() };
        if least >= draft.len() || current.detour != Detour::No {
            return draft.len();
        }
        let chances = &current.forecast.chances;
        let best = current
            .forecast
            .best_prefix(draft.confidences().enumerate().map(|(i, sure)| chances.of(i, sure)));
        let kept = match detour {
            Detour::Longer => (best + EXPLORE_MORE).min(draft.len()),
            Detour::Shorter => 0,
            _ => best,
        };
        let kept = kept.max(least);
        if kept != best.max(least) {
            current.detour = detour;
            self.stats.probes += 1;
        }
        current.dropped = draft.tokens.get(kept).copied().zip(Some(draft.confidences().nth(kept).flatten()));
        if kept == 0 && best == 0 {
            self.stats.rounds_off += 1;
        }
        if is_free {
            let first = draft.confidences().next().flatten();
            let chance = current.forecast.chances.of(0, first);
            self.declined =
                DECLINE_MEMORY * self.declined + (1.0 - DECLINE_MEMORY) * f64::from(u8::from(best == 0));
            let off = Off { acceptance: chance, speed_up: (1.0 + chance) / current.forecast.pass[1] };
            self.stats.off = (self.declined > MOSTLY && best == 0).then_some(off);
        }
        kept
    }

    fn observe(&mut self, outcome: &Outcome<'_>) {
        let Some(current) = self.current.take() else { return };
        let draft = outcome.draft;
        let passed = |position| f64::from(u8::from(position < outcome.num_accepted));
        let trial = |(position, confidence)| Trial { position, confidence, passed: passed(position) };
        let mut trials: Vec<Trial> =
            draft.confidences().enumerate().take(outcome.num_reached()).map(trial).collect();
        // Where all stood, the token behind them tells of the guess that was not scored.
        if let (Some((token, confidence)), Some(&next)) = (current.dropped, outcome.new.get(draft.len()))
            && outcome.num_accepted == draft.len()
        {
            trials.push(Trial {
                position: draft.len(),
                confidence,
                passed: f64::from(u8::from(token == next)),
            });
        }
        // What was not even drawn would have stood by that chance, or positions would seem as good as their sure tokens.
        if let Some((position, chance)) = current.declined
            && outcome.num_accepted == draft.len()
        {
            trials.push(Trial { position, confidence: None, passed: chance });
        }
        self.own.learn(&trials);

        let has_drafted = current.most > 0;
        // Who never asks worked on what there is, and perhaps looked in vain.
        let steps = if current.has_asked { current.steps + 1 } else { draft.len().max(1) };
        let steps = if has_drafted { steps } else { 0 };
        let time = current.forecast.pass[draft.len().min(self.max_tokens)]
            + steps as f64 * current.forecast.step
            + current.catching_up;
        self.overall.add(outcome.new.len(), time, RATE_MEMORY);
        if has_drafted {
            self.asks = current.has_asked;
            self.seen = current.outlook.text_len + outcome.new.len();
            self.debt = (self.debt + time - outcome.new.len() as f64).max(-MAX_CREDIT);
            if current.detour == Detour::No {
                self.drafting.add(outcome.new.len(), time, RATE_MEMORY);
            }
        }
        let mut shared = self.shared();
        shared.hazards.learn(&trials);
        shared.costs.target.observe(outcome.times.rows, outcome.times.verify);
        if has_drafted {
            // Only a text alone knows whose steps they were.
            if let Some(speed) = shared.costs.target.speed()
                && current.outlook.num_texts == 1
                && current.catching_up == 0.0
            {
                shared.costs.draft.observe(steps, outcome.times.draft, speed);
            }
        }
        drop(shared);
        if let Detour::Probe(_) = current.detour {
            let stood = !draft.is_empty() && outcome.num_accepted == draft.len();
            self.judge_probe(stood);
        }
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }

    fn stats(&self) -> PlanStats {
        self.stats
    }
}
