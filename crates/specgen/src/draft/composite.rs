//! `CompositeDrafter`: guesses that cost nothing, from what was said before, and a model where that is worth its time.

use std::sync::Arc;

use super::{
    Committed, Corpus, Draft, DraftRequest, DraftState, DraftVocab, Drafter,
    behind::{Lead, draft_behind},
    texts::Texts,
};
use crate::{
    error::Result,
    model::Model,
    plan::{Choice, Means},
    sampling::{History, Sampler},
    verify::{Signal, Source},
};

/// Of the beginning of a prediction nothing is known yet.
const BEGINNING: Signal = Signal { source: Source::Prediction, confidence: Some(0.9) };
/// A text that loses more tokens than this at its end has become another.
const REWRITTEN: usize = 16;

/// Guesses what followed the text's end when it was there before: in this text, in other texts ([`Corpus`]), in what the
/// user expects ([`Drafter::expect`]). A model, where there is one, drafts behind a guess or instead of it, and is followed
/// by guesses in turn: the plan says which of them brings most for its time.
#[derive(Clone)]
pub struct CompositeDrafter {
    corpus: Arc<Corpus>,
    model: Option<Arc<dyn Drafter>>,
}

impl CompositeDrafter {
    /// Guesses alone, by this text and those of `corpus`, to which every text is added when it is over.
    pub fn new(corpus: Arc<Corpus>) -> Self {
        Self { corpus, model: None }
    }

    /// With a drafter whose tokens cost time.
    #[must_use]
    pub fn with_model(self, model: Arc<dyn Drafter>) -> Self {
        Self { model: Some(model), ..self }
    }
}

/// What is known of one text.
struct State {
    text: Texts,
    /// Tokens at its beginning that are in the corpus already, or will be by another.
    num_known: usize,
    prediction: Option<Prediction>,
    corpus: Arc<Corpus>,
    model: Option<Box<dyn DraftState>>,
}

/// What the user expects the output to be.
#[derive(Clone)]
struct Prediction {
    tokens: Vec<u32>,
    texts: Texts,
}

impl DraftState for State {}

impl Drop for State {
    fn drop(&mut self) {
        self.remember();
    }
}

impl State {
    /// Hands the text over to the corpus.
    fn remember(&mut self) {
        let new = self.text.tokens().get(self.num_known..).unwrap_or_default();
        if !new.is_empty() {
            self.corpus.add(new);
        }
        self.num_known = self.text.tokens().len();
    }

    /// Brings itself to `tokens`.
    fn follow(&mut self, tokens: &[u32]) {
        let before = self.text.tokens();
        let shared = before.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        if before.len() > shared + REWRITTEN {
            self.remember();
        }
        self.text.follow(tokens);
        self.num_known = self.num_known.min(shared);
    }

    /// A guess from every source that has one.
    fn guesses(&mut self, wish: &Wish<'_>) -> Vec<Draft> {
        self.follow(wish.tokens);
        let here = self.text.guess(wish.tokens, wish.k, Source::Text, wish.end_ids);
        let elsewhere = self.corpus.guess(wish.tokens, wish.k, wish.end_ids);
        let expected = self.prediction.as_ref().map(|prediction| prediction.guess(wish));
        let mut guesses: Vec<Draft> = [here, elsewhere].into_iter().chain(expected).collect();
        for guess in &mut guesses {
            guess.truncate(wish.num_allowed(&guess.tokens));
        }
        guesses.retain(|guess| !guess.is_empty());
        guesses
    }

    /// A guess at what comes behind a draft.
    fn guess_behind(&mut self, draft: &Draft, wish: &Wish<'_>) -> Draft {
        let (room, path) = (wish.k.saturating_sub(draft.len()), draft.path(draft.tip()));
        let has_ended = path.last().is_some_and(|id| wish.end_ids.contains(id));
        if room == 0 || has_ended || draft.broken {
            return Draft::default();
        }
        path.iter().for_each(|&token| self.text.push(token));
        let tail = [wish.tokens, &path].concat();
        let mut guess = self.text.guess(&tail, room, Source::Text, wish.end_ids);
        path.iter().for_each(|_| self.text.pop());
        let said = [&path[..], &guess.tokens].concat();
        guess.truncate(wish.num_allowed(&said).saturating_sub(path.len()));
        guess
    }
}

/// What guesses depend on.
struct Wish<'a> {
    tokens: &'a [u32],
    k: usize,
    end_ids: &'a [u32],
    sampler: &'a Sampler,
    history: &'a History,
}

impl Wish<'_> {
    /// How many of `tokens` a grammar allows: what it forbids need not be verified. (A token that was drawn must not be
    /// dropped so.)
    fn num_allowed(&self, tokens: &[u32]) -> usize {
        self.sampler.num_allowed(self.history, tokens)
    }
}

impl Prediction {
    fn new(tokens: &[u32]) -> Self {
        let mut texts = Texts::default();
        texts.add(tokens);
        Self { tokens: tokens.to_vec(), texts }
    }

    /// Its beginning, and then what follows the output's end in it.
    fn guess(&self, wish: &Wish<'_>) -> Draft {
        let output = wish.history.output();
        if output.is_empty() {
            return Draft::guessed(&self.tokens[..self.tokens.len().min(wish.k)], BEGINNING);
        }
        self.texts.guess(output, wish.k, Source::Prediction, wish.end_ids)
    }
}

/// A request's state, and what it asks for.
fn parts<'r>(request: &'r mut DraftRequest<'_>) -> (&'r mut State, Wish<'r>) {
    let DraftRequest { state, tokens, k, sampler, history, end_ids, .. } = request;
    (state.downcast::<State>(), Wish { tokens, k: *k, end_ids, sampler, history })
}

impl Drafter for CompositeDrafter {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(State {
            text: Texts::default(),
            num_known: 0,
            prediction: None,
            corpus: self.corpus.clone(),
            model: self.model.as_ref().map(|model| model.new_state()),
        })
    }

    fn fork_state(&self, state: &mut dyn DraftState) -> Result<Box<dyn DraftState>> {
        let state = state.downcast::<State>();
        let model = match (&self.model, &mut state.model) {
            (Some(drafter), Some(state)) => Some(drafter.fork_state(state.as_mut())?),
            _ => None,
        };
        Ok(Box::new(State {
            text: state.text.clone(),
            num_known: state.text.tokens().len(),
            prediction: state.prediction.clone(),
            corpus: self.corpus.clone(),
            model,
        }))
    }

    fn prefill(&self, state: &mut dyn DraftState, tokens: &[u32], chunk: usize) -> Result<bool> {
        match (&self.model, &mut state.downcast::<State>().model) {
            (Some(drafter), Some(state)) => drafter.prefill(state.as_mut(), tokens, chunk),
            _ => Ok(false),
        }
    }

    fn expect(&self, state: &mut dyn DraftState, prediction: &[u32]) -> bool {
        let prediction = (!prediction.is_empty()).then(|| Prediction::new(prediction));
        state.downcast::<State>().prediction = prediction;
        true
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let mut leads = Vec::with_capacity(requests.len());
        let mut others = Vec::with_capacity(requests.len());
        for request in requests.iter_mut() {
            let (state, wish) = parts(request);
            let mut guesses = if wish.k > 0 { state.guesses(&wish) } else { Vec::new() };
            let means = Means { has_model: self.model.is_some(), branches: request.branches };
            let choice = request.budget.choose(&mut guesses, means);
            let Choice { guess, len, num_more, branches } = choice;
            let mut draft = if len > 0 { guesses.swap_remove(guess) } else { Draft::default() };
            draft.truncate(len);
            leads.push(Lead { num_more: num_more.min(request.k - draft.len()), draft });
            guesses.retain(|_| branches && request.branches);
            others.push(guesses);
        }
        let wants_model = leads.iter().any(|lead| lead.num_more > 0);
        let behind = match self.model.as_ref().filter(|_| wants_model) {
            Some(model) => draft_behind(&**model, requests, &leads, |state| {
                state.downcast::<State>().model.as_deref_mut().expect("the state of a drafter with a model")
            })?,
            None => leads.iter().map(|_| Ok(Draft::default())).collect(),
        };
        let mut drafts = Vec::with_capacity(requests.len());
        for (((request, lead), others), behind) in requests.iter_mut().zip(leads).zip(others).zip(behind) {
            drafts.push(behind.map(|behind| {
                let (state, wish) = parts(request);
                let mut draft = lead.draft;
                if !behind.is_empty() {
                    draft.extend(behind);
                    draft.extend(state.guess_behind(&draft, &wish));
                }
                for guess in &others {
                    draft.graft(guess);
                    draft.truncate(wish.k);
                }
                draft
            }));
        }
        Ok(drafts)
    }

    fn observe(&self, state: &mut dyn DraftState, committed: &Committed<'_>) {
        if let (Some(drafter), Some(state)) = (&self.model, &mut state.downcast::<State>().model) {
            drafter.observe(state.as_mut(), committed);
        }
    }

    fn model(&self) -> Option<&Arc<dyn Model>> {
        self.model.as_ref().and_then(|drafter| drafter.model())
    }

    fn vocab(&self) -> Option<&DraftVocab> {
        self.model.as_ref().and_then(|drafter| drafter.vocab())
    }

    fn has_guesses(&self) -> bool {
        true
    }

    fn remember(&self, text: &[u32]) -> bool {
        self.corpus.add(text);
        true
    }

    fn forget(&self) {
        self.corpus.forget();
        self.model.iter().for_each(|model| model.forget());
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use crate::{
        Engine, SamplingParams,
        draft::{Budget, DraftNoise, ModelDrafter},
        model::ToyModel,
        rng::{Noise, RoundNoise},
    };

    /// A draft of up to `k` tokens behind `prompt` and `output`, without a plan.
    fn draft(
        drafter: &dyn Drafter,
        state: &mut dyn DraftState,
        prompt: &[u32],
        output: &[u32],
        k: usize,
    ) -> Draft {
        let sampler = Sampler::new(&SamplingParams::greedy(), 50).unwrap();
        let mut history = History::new(prompt);
        output.iter().for_each(|&id| history.push(id));
        let tokens = [prompt, output].concat();
        let request = DraftRequest {
            state,
            tokens: &tokens,
            k,
            sampler: &sampler,
            history: &mut history,
            noise: DraftNoise::Own(RoundNoise::draft(Noise::new(1), 0, 0)),
            end_ids: &[],
            branches: true,
            budget: Budget::default(),
        };
        drafter.draft(&mut [request]).unwrap().pop().unwrap().unwrap()
    }

    fn sources(draft: &Draft) -> Vec<Source> {
        draft.signals().map(|signal| signal.source).collect()
    }

    #[test]
    fn a_prediction_is_followed_and_found_again() {
        let drafter = CompositeDrafter::new(Arc::default());
        let mut state = drafter.new_state();
        assert!(drafter.expect(state.as_mut(), &[10, 11, 12, 13, 14, 15, 16]));
        let mut next = |output: &[u32]| draft(&drafter, state.as_mut(), &[1, 2], output, 3).tokens;
        assert_eq!(next(&[]), [10, 11, 12]);
        assert_eq!(next(&[10, 11]), [12, 13, 14]);
        // The text left the prediction for a token, and came back.
        assert_eq!(next(&[10, 11, 40, 13, 14]), [15, 16]);
        assert!(next(&[10, 11, 40]).is_empty());
        assert!(drafter.expect(state.as_mut(), &[]));
        assert!(draft(&drafter, state.as_mut(), &[1, 2], &[], 3).is_empty());
    }

    #[test]
    fn a_text_that_is_over_is_guessed_from_and_forgotten_on_demand() {
        let corpus = Arc::new(Corpus::default());
        let drafter = CompositeDrafter::new(corpus.clone());
        let mut state = drafter.new_state();
        draft(&drafter, state.as_mut(), &[1, 2, 3, 4, 5, 6], &[7, 8], 1);
        // Another text begins as it does; what is common is not told twice.
        let mut fork = drafter.fork_state(state.as_mut()).unwrap();
        draft(&drafter, fork.as_mut(), &[1, 2, 3, 4, 5, 6], &[7, 8, 9], 1);
        drop((state, fork));
        assert_eq!(corpus.len(), "|12345678|9".len());
        let mut state = drafter.new_state();
        let found = draft(&drafter, state.as_mut(), &[20, 4, 5], &[], 3);
        assert_eq!((found.tokens.as_slice(), sources(&found)), (&[6, 7, 8][..], vec![Source::Corpus; 3]));
        drafter.forget();
        assert!(draft(&drafter, state.as_mut(), &[20, 4, 5], &[], 3).is_empty());
    }

    #[test]
    fn a_model_goes_on_behind_a_sure_guess_and_begins_where_there_is_none() {
        let model = ModelDrafter::new(Arc::new(ToyModel::new(50, 2, 6.0)), 50);
        let drafter = CompositeDrafter::new(Arc::default()).with_model(Arc::new(model));
        let mut state = drafter.new_state();
        let found = draft(&drafter, state.as_mut(), &[1, 2, 3, 4], &[], 3);
        assert_eq!(sources(&found), [Source::Model; 3]);
        // Six tokens are repeated, and that the text ends there is no reason not to go on.
        drafter.expect(state.as_mut(), &[30, 31]);
        let found = draft(&drafter, state.as_mut(), &[1, 2, 3, 4], &[], 4);
        assert_eq!(sources(&found), [Source::Prediction, Source::Prediction, Source::Model, Source::Model]);
    }

    /// What was expected comes true, in fewer rounds.
    #[test]
    fn a_prediction_that_comes_true_saves_rounds() {
        let target = Arc::new(ToyModel::new(50, 1, 6.0));
        let drafter = Arc::new(CompositeDrafter::new(Arc::default()));
        let engine = Engine::from_parts(target, drafter.clone(), 5, &[]);
        let run = |prediction: Option<&[u32]>| {
            drafter.forget();
            let mut session = engine.session(SamplingParams::greedy()).unwrap();
            if let Some(prediction) = prediction {
                session = session.with_prediction(prediction).unwrap();
            }
            let mut generation = session.generate(&[1u32, 2][..], 40).unwrap();
            generation.by_ref().for_each(|piece| drop(piece.unwrap()));
            (generation.tokens().to_vec(), generation.stats().rounds)
        };
        let (text, _) = run(None);
        let (again, rounds) = run(Some(&text));
        assert_eq!((again, rounds), (text, 7));
    }
}
