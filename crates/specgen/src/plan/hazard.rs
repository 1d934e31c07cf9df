//! What is accepted: the chance of each draft position, given that those before it stand, by who guessed it, by position
//! and by how sure they were.

use crate::verify::{Draft, Signal, Source};

/// Positions that are told apart.
pub(super) const POSITIONS: usize = super::auto::MAX_TOKENS;

/// Where one class of confidence ends and the next begins. Finer towards 1, where most tokens are.
const EDGES: [f32; 11] = [0.2, 0.35, 0.5, 0.6, 0.7, 0.78, 0.85, 0.9, 0.94, 0.97, 0.99];
/// Classes of confidence.
const CLASSES: usize = EDGES.len() + 1;
/// First, second, and all later tokens of a draft.
const DEPTHS: usize = 3;

/// What a round leaves of what was known about this text, and about all texts.
const OWN_MEMORY: f64 = 0.985;
const SHARED_MEMORY: f64 = 0.998;
/// How many observations a prior is worth: a source's own, the position before, and what other texts showed.
const PRIOR_WEIGHT: f64 = 4.0;
const SHARED_WEIGHT: f64 = 8.0;
/// The last of them for what is looked up: one text repeats itself, and another does not.
const LOOKED_UP_WEIGHT: f64 = 3.0;
/// The chance of a first token where nothing is known.
const PRIOR: f64 = 0.7;

/// The class of `confidence`; what is not a number is no confidence at all.
fn class_of(confidence: f32) -> usize {
    EDGES.iter().take_while(|&&edge| confidence >= edge).count()
}

/// The middle of a class, a good guess at its chance: models are calibrated to begin with.
fn middle(class: usize) -> f64 {
    let low = if class == 0 { 0.0 } else { EDGES[class - 1] };
    let high = EDGES.get(class).copied().unwrap_or(1.0);
    f64::from(low + high) / 2.0
}

/// Tokens that were up for acceptance, and those of them that stood; older ones count less.
#[derive(Clone, Copy, Debug, Default)]
struct Cell {
    reached: f64,
    passed: f64,
}

impl Cell {
    fn forget(&mut self, keep: f64) {
        self.reached *= keep;
        self.passed *= keep;
    }

    fn add(&mut self, passed: f64) {
        self.reached += 1.0;
        self.passed += passed;
    }

    /// The chance, where `weight` earlier observations had said `prior`.
    fn chance(self, prior: f64, weight: f64) -> f64 {
        (self.passed + weight * prior) / (self.reached + weight)
    }
}

/// Whose experience it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// One text's.
    Own,
    /// All texts' of an engine.
    Shared,
}

/// A token with the place that counts for its chance: that in the run of tokens of one source it belongs to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spot {
    pub(super) position: usize,
    pub(super) signal: Signal,
}

impl Spot {
    /// Of a model's token of which it is not known how sure it will be.
    pub(super) fn of_model(position: usize) -> Self {
        Self { position, signal: Signal { source: Source::Model, confidence: None } }
    }

    pub(super) fn with_confidence(mut self, confidence: Option<f32>) -> Self {
        self.signal.confidence = confidence;
        self
    }

    /// Of a model's second thought.
    pub(super) fn of_alternative(confidence: f32) -> Self {
        Self { position: 0, signal: Signal { source: Source::Alternative, confidence: Some(confidence) } }
    }

    /// Of each token of a draft.
    pub(super) fn of(draft: &Draft) -> Vec<Self> {
        let mut spots: Vec<Self> = Vec::with_capacity(draft.len());
        for (i, signal) in draft.signals().enumerate() {
            let before = draft.parent(i).map(|parent| spots[parent]);
            let run = before.filter(|before| slot(before.signal.source) == slot(signal.source));
            spots.push(Self { position: run.map_or(0, |before| before.position + 1), signal });
        }
        spots
    }
}

/// A token that was up for acceptance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Trial {
    pub(super) spot: Spot,
    /// 1 or 0; for a token that was not tried, its chance.
    pub(super) passed: f64,
}

/// Sources whose experience is kept apart.
const SLOTS: usize = Source::ALL.len() - 1;

/// A drafter that does not say who it is counts as a model.
fn slot(source: Source) -> usize {
    match source {
        Source::Other | Source::Model => 0,
        Source::Grammar => 1,
        Source::Text => 2,
        Source::Corpus => 3,
        Source::Prediction => 4,
        Source::Alternative => 5,
    }
}

/// What has been accepted so far. Positions behind the first rejection are censored: they say nothing.
#[derive(Clone, Debug)]
pub(super) struct Hazards {
    memory: f64,
    by_source: [Experience; SLOTS],
}

/// With one source.
#[derive(Clone, Debug, Default)]
struct Experience {
    by_position: [Cell; POSITIONS],
    by_confidence: [[Cell; CLASSES]; DEPTHS],
}

impl Hazards {
    pub(super) fn new(scope: Scope) -> Self {
        let memory = if scope == Scope::Own { OWN_MEMORY } else { SHARED_MEMORY };
        Self { memory, by_source: Default::default() }
    }

    /// Learns from the tokens of one round.
    pub(super) fn learn(&mut self, trials: &[Trial]) {
        for (i, experience) in self.by_source.iter_mut().enumerate() {
            experience.learn(self.memory, trials.iter().filter(|trial| slot(trial.spot.signal.source) == i));
        }
    }

    /// Lets what is known of a model count for no more than `most` observations: the text has gone on unobserved.
    pub(super) fn discount_model(&mut self, most: f64) {
        let experience = &mut self.by_source[slot(Source::Model)];
        let cells = experience.by_position.iter_mut().chain(experience.by_confidence.iter_mut().flatten());
        for cell in cells.filter(|cell| cell.reached > most) {
            cell.forget(most / cell.reached);
        }
    }
}

impl Experience {
    fn learn<'a>(&mut self, memory: f64, trials: impl Iterator<Item = &'a Trial>) {
        let mut seen = [[false; CLASSES]; DEPTHS];
        let mut is_first = true;
        for Trial { spot: Spot { position, signal }, passed } in trials {
            if *position >= POSITIONS {
                continue;
            }
            if std::mem::replace(&mut is_first, false) {
                self.by_position.iter_mut().for_each(|cell| cell.forget(memory));
            }
            self.by_position[*position].add(*passed);
            if let Some(confidence) = signal.confidence {
                let (depth, class) = ((*position).min(DEPTHS - 1), class_of(confidence));
                let cell = &mut self.by_confidence[depth][class];
                // A class that is seldom seen keeps what it showed.
                if !std::mem::replace(&mut seen[depth][class], true) {
                    cell.forget(memory);
                }
                cell.add(*passed);
            }
        }
    }
}

/// The chances of the next draft.
#[derive(Clone, Debug)]
pub(super) struct Chances([SourceChances; SLOTS]);

#[derive(Clone, Debug, Default)]
struct SourceChances {
    by_position: [f64; POSITIONS],
    by_confidence: [[f64; CLASSES]; DEPTHS],
}

impl Chances {
    /// By what `own` text and all texts showed.
    pub(super) fn new(own: &Hazards, shared: &Hazards) -> Self {
        let of_model = [Source::Model, Source::Alternative].map(slot);
        Self(std::array::from_fn(|slot| {
            let weight = if of_model.contains(&slot) { SHARED_WEIGHT } else { LOOKED_UP_WEIGHT };
            SourceChances::new(&own.by_source[slot], &shared.by_source[slot], weight)
        }))
    }

    /// The chance that a token stands if all before it do.
    pub(super) fn of(&self, Spot { position, signal }: Spot) -> f64 {
        let chances = &self.0[slot(signal.source)];
        match signal.confidence {
            Some(confidence) => chances.by_confidence[position.min(DEPTHS - 1)][class_of(confidence)],
            None => chances.by_position[position.min(POSITIONS - 1)],
        }
    }
}

impl SourceChances {
    /// By what this text and all texts showed of a source, the latter counting for `weight` observations.
    fn new(own: &Experience, shared: &Experience, weight: f64) -> Self {
        let mut by_position = [0.0; POSITIONS];
        let (mut of_all, mut before) = (PRIOR, None);
        for (i, chance) in by_position.iter_mut().enumerate() {
            of_all = shared.by_position[i].chance(of_all, PRIOR_WEIGHT);
            // A text that differs from the others does so at its next position too.
            let prior = before.map_or(of_all, |before| (before + of_all) / 2.0);
            *chance = own.by_position[i].chance(prior, weight);
            before = Some(*chance);
        }
        let mut by_confidence = [[0.0; CLASSES]; DEPTHS];
        for (depth, chances) in by_confidence.iter_mut().enumerate() {
            let (own, shared) = (&own.by_confidence[depth], &shared.by_confidence[depth]);
            for (class, chance) in chances.iter_mut().enumerate() {
                let of_all = shared[class].chance(middle(class), PRIOR_WEIGHT);
                *chance = own[class].chance(of_all, weight);
            }
            let seen = |class: usize| own[class].reached + shared[class].reached + 1.0;
            make_ascending(chances, seen);
        }
        Self { by_position, by_confidence }
    }
}

/// The nearest values that do not fall, in weighted least squares: who is surer is right as often, whatever a few
/// observations say (pool adjacent violators).
fn make_ascending(values: &mut [f64], weight: impl Fn(usize) -> f64) {
    // Runs of (mean, weight, length).
    let mut runs: Vec<(f64, f64, usize)> = Vec::with_capacity(values.len());
    for (i, &value) in values.iter().enumerate() {
        let mut run = (value, weight(i), 1);
        while let Some(last) = runs.pop_if(|last| last.0 > run.0) {
            let total = last.1 + run.1;
            run = ((last.0 * last.1 + run.0 * run.1) / total, total, last.2 + run.2);
        }
        runs.push(run);
    }
    let mut filled = values.iter_mut();
    for (mean, _, len) in runs {
        filled.by_ref().take(len).for_each(|value| *value = mean);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(position: usize, passed: bool) -> Trial {
        Trial { spot: Spot::of_model(position), passed: f64::from(u8::from(passed)) }
    }

    fn sure(confidence: f32) -> Spot {
        Spot::of_model(0).with_confidence(Some(confidence))
    }

    /// Accepted over drafted is .59 for four tokens at a chance of .8; the chance of each position is what counts.
    #[test]
    fn what_lies_behind_a_rejection_is_censored() {
        let (mut own, shared) = (Hazards::new(Scope::Own), Hazards::new(Scope::Shared));
        for i in 0..400 {
            match i % 5 {
                0 => own.learn(&[trial(0, false)]),
                _ => own.learn(&[trial(0, true), trial(1, i % 5 != 1)]),
            }
        }
        let chances = Chances::new(&own, &shared);
        assert!((chances.of(Spot::of_model(0)) - 0.8).abs() < 0.05, "{chances:?}");
        assert!((chances.of(Spot::of_model(1)) - 0.75).abs() < 0.05, "{chances:?}");
        // Nobody has been there, but it will be like the position before.
        assert!((chances.of(Spot::of_model(2)) - 0.73).abs() < 0.05, "{chances:?}");
    }

    #[test]
    fn a_new_text_starts_from_what_others_showed() {
        let (own, mut shared) = (Hazards::new(Scope::Own), Hazards::new(Scope::Shared));
        assert_eq!(Chances::new(&own, &shared).of(Spot::of_model(0)), PRIOR);
        (0..200).for_each(|_| shared.learn(&[trial(0, false)]));
        assert!(Chances::new(&own, &shared).of(Spot::of_model(0)) < 0.05);
    }

    #[test]
    fn confidence_is_calibrated_and_ascends() {
        let (mut own, shared) = (Hazards::new(Scope::Own), Hazards::new(Scope::Shared));
        let tried =
            |confidence, passed| Trial { spot: sure(confidence), passed: f64::from(u8::from(passed)) };
        for i in 0..300 {
            own.learn(&[tried(0.95, i % 2 == 0)]);
            own.learn(&[tried(0.3, i % 10 == 0)]);
        }
        let chances = Chances::new(&own, &shared);
        assert!((chances.of(sure(0.95)) - 0.5).abs() < 0.1);
        assert!((chances.of(sure(0.3)) - 0.1).abs() < 0.1);
        let all: Vec<f64> = (0..CLASSES).map(|class| chances.0[0].by_confidence[0][class]).collect();
        assert!(all.is_sorted(), "{all:?}");
        // A bad draft's 0.8 is no better than its 0.95.
        assert!(chances.of(sure(0.8)) <= chances.of(sure(0.95)));
        assert_eq!(class_of(f32::NAN), 0);
    }

    #[test]
    fn each_source_has_its_own_experience() {
        let signal = |source, confidence| Signal { source, confidence: Some(confidence) };
        let mut draft = Draft::guessed(&[1, 2], signal(Source::Text, 0.5));
        draft.extend(Draft::guessed(&[3], signal(Source::Model, 0.5)));
        draft.extend(Draft::guessed(&[4], signal(Source::Text, 0.5)));
        let spots = Spot::of(&draft);
        assert_eq!(spots.iter().map(|spot| spot.position).collect::<Vec<_>>(), [0, 1, 0, 0]);

        let (mut own, shared) = (Hazards::new(Scope::Own), Hazards::new(Scope::Shared));
        for _ in 0..100 {
            own.learn(&[Trial { spot: spots[0], passed: 1.0 }, Trial { spot: spots[2], passed: 0.0 }]);
        }
        let chances = Chances::new(&own, &shared);
        assert!(chances.of(spots[0]) > 0.9 && chances.of(spots[2]) < 0.1, "{chances:?}");
    }

    #[test]
    fn values_are_pooled_by_weight() {
        let mut values = [0.1, 0.6, 0.3, 0.9, 0.8];
        make_ascending(&mut values, |i| if i == 1 { 2.0 } else { 1.0 });
        let wanted = [0.1, 0.5, 0.5, 0.85, 0.85];
        assert!(values.iter().zip(wanted).all(|(value, wanted)| (value - wanted).abs() < 1e-9), "{values:?}");
    }
}
