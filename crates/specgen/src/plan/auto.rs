//! The plan that goes by time: measured costs and observed acceptance say who drafts and how much.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{
    Choice, Means, Off, Outcome, Outlook, Pace, PlanStats, Planner,
    cost::Costs,
    forecast::{Beginning, Forecast, Growth},
    hazard::{Chances, Hazards, Scope, Spot, Trial},
    worker::{Order, Rate, Worker},
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
/// Observations that a text's own past counts for when a model is probed again.
const PAST_WEIGHT: f64 = 2.0;
/// Rounds that share what it costs a model to take in what it has missed.
const CATCHING_UP_SHARE: f64 = 0.25;
/// What is left of a guess's worth beside a model, which often says the same.
const BESIDE: f64 = 0.5;
/// Passes that plain decoding's rate counts for beside what was seen.
const PLAIN_WEIGHT: f64 = 2.0;
/// What a decision leaves of those before, where it is asked whether guesses are of any use.
const DECLINE_MEMORY: f64 = 0.9;
const MOSTLY: f64 = 0.8;

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

/// A round of another length than seems best.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Detour {
    No,
    /// No draft, to see what a pass of one row costs.
    Shorter,
    /// A token more.
    Longer,
    /// So many tokens of the model, whatever it says of them.
    Probe(usize),
}

/// What was decided in the round that is under way.
#[derive(Clone)]
struct Current {
    outlook: Outlook,
    detour: Detour,
    forecast: Forecast,
    /// The most tokens wanted of a model.
    of_model: usize,
    /// Whether the model drafts, or may.
    works: bool,
    /// How far the draft has come, as far as a model asked, and the chance that all but its last token stand.
    growth: Option<Growth>,
    before: f64,
    /// Tokens that exploring has gone on for.
    explored: usize,
    /// Whether the model asked whether to go on, and the tokens it worked on then, whether or not they are in the draft.
    has_asked: bool,
    steps: usize,
    /// What the model has to take in first costs so much.
    catching_up: f64,
    /// What the guesses were, for the text itself will tell what each was worth, and how much of one begins the draft.
    guesses: Vec<Draft>,
    taken: usize,
    /// The first token that was not scored, if there was one.
    dropped: Option<(u32, Spot)>,
    /// A token that was not drawn for the model's lack of confidence.
    declined: Option<Trial>,
}

#[derive(Clone)]
struct AutoPace {
    shared: Arc<Mutex<Shared>>,
    max_tokens: usize,
    own: Hazards,
    /// Of all rounds.
    overall: Rate,
    model: Worker,
    /// Rounds with something to decide.
    num_rounds: u32,
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
            model: Worker::new(),
            num_rounds: 0,
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

    /// Whether a model drafts, or whatever else costs time.
    fn has_model(&self) -> bool {
        self.shared().costs.draft.step >= FREE_STEP
    }

    fn start(&mut self) {
        if self.model.has_begun() || !self.has_model() {
            return;
        }
        let forecast = self.forecast(1);
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        self.model.start(&forecast, &mut shared.passed_over);
    }

    /// The most tokens that a model may draft in this round.
    fn order(&mut self, outlook: Outlook, forecast: &mut Forecast) -> (usize, Detour) {
        let cost = self.shared().costs.draft.clone();
        match self.model.order(outlook, forecast, &cost) {
            Order::Rest => (0, Detour::No),
            Order::Probe { tokens, is_first } => {
                if is_first {
                    self.own.discount_model(PAST_WEIGHT);
                    forecast.chances = Chances::new(&self.own, &self.shared().hazards);
                }
                (tokens, Detour::Probe(tokens))
            }
            Order::Draft => {
                // Who does not ask goes on to the end.
                let most =
                    if self.model.asks { self.max_tokens } else { forecast.best_length(self.max_tokens).0 };
                match self.detour() {
                    Detour::Shorter => (0, Detour::Shorter),
                    Detour::Longer => ((most + EXPLORE_MORE).min(self.max_tokens), Detour::Longer),
                    detour => (most, detour),
                }
            }
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

    /// Whether guesses are of use: no reason to say so where they mostly are. `chance`: of the first, of which `best` are
    /// worth scoring.
    fn judge_guesses(&mut self, chance: f64, best: usize) {
        let Some(Current { forecast, .. }) = &self.current else { return };
        let declined = f64::from(u8::from(best == 0));
        self.declined = DECLINE_MEMORY * self.declined + (1.0 - DECLINE_MEMORY) * declined;
        let off = Off { acceptance: chance, speed_up: (1.0 + chance) / forecast.pass[1] };
        self.stats.off = (self.declined > MOSTLY && best == 0).then_some(off);
        self.stats.rounds_off += declined as usize;
    }
}

impl Pace for AutoPace {
    fn begin(&mut self, outlook: Outlook) -> usize {
        self.start();
        self.current = None;
        if outlook.room == 0 {
            return 0;
        }
        let mut forecast = self.forecast(outlook.num_texts.max(1));
        let (of_model, detour) = match self.has_model() {
            true => self.order(outlook, &mut forecast),
            false => (0, Detour::No),
        };
        let of_model = of_model.min(outlook.room);
        let has_guesses = self.shared().costs.has_guesses;
        let most = if has_guesses && detour != Detour::Shorter { self.max_tokens } else { of_model };
        let most = most.min(outlook.room);
        self.stats.rounds_off += usize::from(most == 0 && detour != Detour::Shorter);
        self.stats.probes += usize::from(matches!(detour, Detour::Probe(_) | Detour::Shorter));
        let missed = self.model.missed(outlook.text_len);
        let catching_up =
            if of_model > 0 && missed > 2 { self.shared().costs.draft.catching_up(missed) } else { 0.0 };
        self.current = Some(Current {
            outlook,
            detour,
            forecast,
            of_model,
            works: of_model > 0,
            growth: None,
            before: 1.0,
            explored: 0,
            has_asked: false,
            steps: 0,
            catching_up,
            guesses: Vec::new(),
            taken: 0,
            dropped: None,
            declined: None,
        });
        most
    }

    fn wants_prompt(&mut self, len: usize) -> bool {
        self.start();
        self.model.wants_prompt(len)
    }

    fn reads_confidence(&self) -> bool {
        true
    }

    fn choose(&mut self, num_before: usize, guesses: &mut [Draft], means: Means) -> Choice {
        let Some(current) = &mut self.current else {
            return Choice::by_confidence(guesses, means.has_model);
        };
        current.guesses = guesses.to_vec();
        let of_model = if means.has_model { current.of_model } else { 0 };
        let is_probe = of_model > 0 && matches!(current.detour, Detour::Probe(_));
        let forecast = &current.forecast;
        let behind = match of_model {
            0 => 0.0,
            most => forecast.worth_of_model(most, current.catching_up * CATCHING_UP_SHARE),
        };
        let (mut best, gain) = forecast.best_beginning(num_before, guesses, behind);
        let (_, beside) = forecast.best_beginning(num_before, guesses, 0.0);
        // A guess that is none too sure is worth more beside what the model says than in its place.
        let is_beside = means.branches && behind > 0.0 && behind + BESIDE * beside > gain;
        if is_probe || is_beside {
            best = Beginning { survival: 1.0, ..Beginning::default() };
        }
        for (i, guess) in guesses.iter_mut().enumerate() {
            let alone = std::slice::from_ref(&*guess);
            let len = match i == best.guess && best.len > 0 {
                true => best.len,
                false => forecast.best_beginning(num_before, alone, 0.0).0.len,
            };
            guess.truncate(len);
        }
        let num_more = if behind > 0.0 || is_probe { of_model } else { 0 };
        current.works = num_more > 0;
        current.taken = best.len;
        if !current.works {
            current.catching_up = 0.0;
        }
        let (len, most) = (num_before + best.len, num_before + best.len + num_more);
        let survival = best.survival;
        current.growth = Some(Growth { len, of_model: 0, survival, most: most.min(self.max_tokens) });
        let choice =
            Choice { guess: best.guess, len: best.len, num_more, branches: current.detour == Detour::No };
        if num_more == 0 {
            let first = current.guesses.iter().filter_map(|guess| Spot::of(guess).first().copied());
            let chance = first.map(|first| current.forecast.chances.of(first)).fold(0.0, f64::max);
            self.judge_guesses(chance, best.len);
        }
        choice
    }

    fn go_on(&mut self, num_drafted: usize, confidence: Option<f32>) -> bool {
        let Some(current) = &mut self.current else { return true };
        current.has_asked = true;
        let growth = current.growth.get_or_insert(Growth {
            len: num_drafted,
            of_model: 0,
            survival: 1.0,
            most: (num_drafted + current.of_model).min(self.max_tokens),
        });
        growth.len = num_drafted;
        let spot = Spot::of_model(growth.of_model);
        let sure = spot.with_confidence(confidence);
        let chance = confidence.map(|_| current.forecast.chances.of(sure));
        let is_wanted = current.forecast.is_worth_more(*growth, chance);
        let goes_on = match current.detour {
            Detour::Probe(tokens) => growth.of_model < tokens,
            Detour::Longer if !is_wanted && current.explored < EXPLORE_MORE => {
                current.explored += usize::from(confidence.is_some());
                true
            }
            _ => is_wanted,
        };
        if let Some(chance) = chance {
            current.before = growth.survival;
            if goes_on {
                growth.survival *= chance;
                growth.of_model += 1;
            } else {
                current.declined = Some(Trial { spot, passed: chance });
            }
        }
        current.steps += usize::from(goes_on && confidence.is_none());
        goes_on
    }

    fn branch(&mut self, num_drafted: usize, confidence: f32) -> bool {
        let Some(current) = &self.current else { return false };
        let survival = current.before * current.forecast.chances.of(Spot::of_alternative(confidence));
        current.detour == Detour::No && current.forecast.is_worth_row(num_drafted, survival)
    }

    fn keep(&mut self, draft: &Draft, least: usize) -> usize {
        let Some(current) = &self.current else { return draft.len() };
        if least >= draft.len() || current.detour != Detour::No {
            return draft.len();
        }
        let (best, spots) = (current.forecast.best_prefix(draft), Spot::of(draft));
        let (works, has_chosen) = (current.works, current.growth.is_some());
        let detour = if works || draft.is_empty() { Detour::No } else { self.detour() };
        let kept = match detour {
            Detour::Longer => (best + EXPLORE_MORE).min(draft.len()),
            Detour::Shorter => 0,
            _ => best,
        };
        let kept = kept.max(least);
        if let Some(current) = &mut self.current {
            if kept != best.max(least) {
                current.detour = detour;
                self.stats.probes += 1;
            }
            current.dropped = draft.tokens.get(kept).copied().zip(spots.get(kept).copied());
        }
        if let (false, Some(&first)) = (has_chosen, spots.first()) {
            let chance = self.current.as_ref().map_or(0.0, |current| current.forecast.chances.of(first));
            self.judge_guesses(chance, best);
        }
        kept
    }

    fn observe(&mut self, outcome: &Outcome<'_>) {
        let Some(current) = self.current.take() else { return };
        let trials = trials(&current, outcome);
        self.own.learn(&trials);

        let draft = outcome.draft;
        // Who never asks worked on what there is, and perhaps looked in vain.
        let steps = if current.has_asked { current.steps + 1 } else { draft.len().max(1) };
        let steps = if current.works { steps } else { 0 };
        let time = current.forecast.pass[draft.len().min(self.max_tokens)]
            + steps as f64 * current.forecast.step
            + current.catching_up;
        self.overall.add(outcome.new.len(), time);
        if current.works {
            self.model.asks = current.has_asked;
            let text_len = current.outlook.text_len + outcome.new.len();
            self.model.learn(text_len, outcome.new.len(), time, current.detour != Detour::No);
        }
        let mut shared = self.shared();
        shared.hazards.learn(&trials);
        shared.costs.target.observe(outcome.times.rows, outcome.times.verify);
        // Only a text alone knows whose steps they were.
        if let Some(speed) = shared.costs.target.speed()
            && steps > 0
            && current.outlook.num_texts == 1
            && current.catching_up == 0.0
        {
            shared.costs.draft.observe(steps, outcome.times.draft, speed);
        }
        drop(shared);
        if let Detour::Probe(_) = current.detour {
            let stood = !draft.is_empty() && outcome.num_accepted == draft.len();
            self.model.judge_probe(stood, &self.forecast(1));
        }
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }

    fn stats(&self) -> PlanStats {
        // Guesses go on where a model rests.
        let off = match self.has_model() {
            true if !self.shared().costs.has_guesses => self.model.off,
            true => self.stats.off.and(self.model.off),
            false => self.stats.off,
        };
        PlanStats { off, ..self.stats }
    }
}

/// What a round shows of everybody who guessed, asked or not.
fn trials(current: &Current, outcome: &Outcome<'_>) -> Vec<Trial> {
    let draft = outcome.draft;
    let passed = |stands: bool| f64::from(u8::from(stands));
    let mut trials = Vec::with_capacity(draft.len());
    // Whether the text goes through each token: who follows one that it left was never tried.
    let mut stands: Vec<bool> = Vec::with_capacity(draft.len());
    for (i, spot) in Spot::of(draft).into_iter().enumerate() {
        let new =
            outcome.new.get(draft.depth(i)).filter(|_| draft.parent(i).is_none_or(|parent| stands[parent]));
        stands.push(new == Some(&draft.tokens[i]));
        if new.is_some() && i >= current.taken {
            trials.push(Trial { spot, passed: passed(stands[i]) });
        }
    }
    // Guesses that cost nothing are judged by the text that came, whether or not they were in the draft.
    for guess in &current.guesses {
        for ((spot, token), new) in Spot::of(guess).into_iter().zip(&guess.tokens).zip(outcome.new) {
            trials.push(Trial { spot, passed: passed(token == new) });
            if token != new {
                break;
            }
        }
    }
    if outcome.num_accepted < draft.tip().map_or(0, |tip| draft.depth(tip) + 1) {
        return trials;
    }
    // Where all stood, the token behind them tells of the one that was not scored.
    if let (Some((token, spot)), Some(&next)) = (current.dropped, outcome.new.get(draft.len()))
        && draft.len() >= current.taken
        && draft.parents.is_none()
    {
        trials.push(Trial { spot, passed: passed(token == next) });
    }
    // What was not even drawn would have stood by that chance, or positions would seem as good as their sure tokens.
    trials.extend(current.declined);
    trials
}
