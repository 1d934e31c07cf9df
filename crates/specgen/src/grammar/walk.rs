//! `Walk`: where a text stands in its grammar, after each of its last tokens.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use super::{
    Grammar, Start,
    compiled::{Mask, Place},
};
use crate::{Error, Result};

/// Places kept at first: those of the committed text's end and of a usual draft behind it. A walk that has to
/// go back farther begins anew, and keeps twice as many from then on.
const FEW_PLACES: usize = 32;

/// A text's way through a grammar.
///
/// To its callers it is a pure function of the output. What it remembers are the places behind the last
/// tokens it was asked about, each forked from the one before: an output that goes on is one step, one that
/// lost tokens drops their places, and nothing is ever taken back within a place. So a draft position is
/// masked by its own prefix, and a token that was rejected leaves no trace.
pub(crate) struct Walk {
    start: Arc<Start>,
    steps: Mutex<Steps>,
}

struct Steps {
    /// The output up to the last of `places`.
    output: Vec<u32>,
    /// After all of `output`, the last; before it, one for each token less.
    places: VecDeque<Step>,
    most_places: usize,
}

impl Default for Steps {
    fn default() -> Self {
        Self { output: Vec::new(), places: VecDeque::new(), most_places: FEW_PLACES }
    }
}

struct Step {
    place: Place,
    mask: Option<Arc<Mask>>,
}

impl Walk {
    /// The way of a new text; `None` if the grammar is not compiled.
    pub(crate) fn new(grammar: &Grammar) -> Option<Self> {
        Some(Self { start: grammar.start.clone()?, steps: Mutex::default() })
    }

    /// Bans what may not follow `output`.
    ///
    /// # Errors
    /// [`Error::InvalidArgument`] where `output` is not of the grammar, or nothing may follow.
    pub(crate) fn apply(&self, output: &[u32], logits: &mut [f32]) -> Result<()> {
        self.mask(output)?.apply(logits);
        Ok(())
    }

    /// How many of `tokens` the grammar allows one after the other behind `output`.
    pub(crate) fn num_allowed(&self, output: &[u32], tokens: &[u32]) -> usize {
        let mut text = output.to_vec();
        for (i, &id) in tokens.iter().enumerate() {
            if !self.mask(&text).is_ok_and(|mask| mask.allows(id)) {
                return i;
            }
            text.push(id);
        }
        tokens.len()
    }

    /// At most `k` tokens that most likely follow `output` because their text must: the spelling is a guess,
    /// since a text has many, and a longer token may go beyond what is certain. The end is one of them where
    /// nothing else may follow.
    pub(crate) fn forced(&self, output: &[u32], k: usize) -> Vec<u32> {
        let Ok(bytes) = self.steps().at(&self.start, output).map(|step| step.place.forced_bytes()) else {
            return Vec::new();
        };
        let vocabulary = &self.start.vocabulary;
        let mut tokens = vocabulary.spell(&bytes);
        let is_cut = tokens.len() > k;
        tokens.truncate(k);
        tokens.truncate(self.num_allowed(output, &tokens));
        let text = [output, &tokens].concat();
        let mut steps = self.steps();
        if steps.at(&self.start, &text).is_ok_and(|step| step.place.must_end()) {
            tokens.extend(vocabulary.end().filter(|_| tokens.len() < k));
            return tokens;
        }
        if let (Some(&last), false) = (tokens.last(), is_cut)
            && let Ok(mask) = steps.mask(&self.start, &text[..text.len() - 1])
            && mask.ids().any(|longer| vocabulary.goes_on(last, longer))
        {
            tokens.pop();
        }
        tokens
    }

    fn mask(&self, output: &[u32]) -> Result<Arc<Mask>> {
        self.steps().mask(&self.start, output)
    }

    /// What a panic left behind is only a memory, and is begun anew.
    fn steps(&self) -> MutexGuard<'_, Steps> {
        self.steps.lock().unwrap_or_else(|poisoned: PoisonError<_>| {
            let mut steps = poisoned.into_inner();
            *steps = Steps::default();
            steps
        })
    }
}

impl Steps {
    /// The place behind `output`.
    fn at(&mut self, start: &Start, output: &[u32]) -> Result<&mut Step> {
        let shared = self.output.iter().zip(output).take_while(|(a, b)| a == b).count();
        let gone = self.output.len() - shared;
        if gone < self.places.len() {
            self.places.truncate(self.places.len() - gone);
            self.output.truncate(shared);
        } else {
            if !self.places.is_empty() {
                self.most_places *= 2;
            }
            self.output.clear();
            self.places = [Step { place: start.place.own(), mask: None }].into();
        }
        while let Some(&id) = output.get(self.output.len()) {
            let mut place = self.places[self.places.len() - 1].place.clone();
            place.step(id).map_err(|problem| failed(&problem, self.output.len()))?;
            self.output.push(id);
            self.places.push_back(Step { place, mask: None });
            if self.places.len() > self.most_places {
                self.places.pop_front();
            }
        }
        let last = self.places.len() - 1;
        Ok(&mut self.places[last])
    }

    fn mask(&mut self, start: &Start, output: &[u32]) -> Result<Arc<Mask>> {
        let step = self.at(start, output)?;
        if let Some(mask) = &step.mask {
            return Ok(mask.clone());
        }
        let mask = step.place.mask().map_err(|problem| failed(&problem, output.len()))?;
        Ok(step.mask.insert(Arc::new(mask)).clone())
    }
}

fn failed(problem: &str, position: usize) -> Error {
    let problem = problem.split_whitespace().collect::<Vec<_>>().join(" ");
    Error::InvalidArgument(format!("the grammar cannot go on at output token {position}: {problem}"))
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").finish_non_exhaustive()
    }
}
