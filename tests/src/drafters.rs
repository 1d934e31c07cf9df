//! Drafters that no one should use, and the list that every exactness test runs through: a new drafter joins by one
//! line in [`all`].

use std::sync::Arc;

use specgen::{
    Result,
    cache::KvCache,
    distribution::Distribution,
    draft::{
        CompositeDrafter, Corpus, Draft, DraftRequest, DraftState, DraftVocab, Drafter, ForcedDrafter,
        ModelDrafter, NgramDrafter, NoDraft, NoState, TokenMemory, Translator,
    },
    model::{Batch, Model, ModelInfo, Output, ToyModel},
};

use crate::vocabularies;

/// A drafter with a name, for messages.
pub type Named = (&'static str, Arc<dyn Drafter>);

/// Every drafter there is, good and bad, for a `target`, another model `other` of its vocabulary, and the `text` plain
/// decoding says after some prompt (prompt included).
pub fn all(target: &Arc<dyn Model>, other: &Arc<dyn Model>, text: &[u32], end_id: u32) -> Vec<Named> {
    let vocab_size = target.info().vocab_size;
    let vocab = vocab_size as u32;
    let oracle = text.to_vec();
    let wrong = text.to_vec();
    let told = |text: &[u32]| {
        let corpus = Corpus::default();
        corpus.add(text);
        Arc::new(corpus)
    };
    let mut nearly = text.to_vec();
    nearly.iter_mut().skip(3).step_by(5).for_each(|token| *token = (*token + 1) % vocab);
    let suffix = || CompositeDrafter::new(Arc::new(Corpus::default()));
    let model = || Arc::new(ModelDrafter::new(other.clone(), vocab_size)) as Arc<dyn Drafter>;
    let at = |text: &[u32], i: usize| text.get(i).copied().unwrap_or(i as u32 % 3);
    vec![
        ("none", Arc::new(NoDraft)),
        ("ngram", Arc::new(NgramDrafter::default())),
        ("the target itself", Arc::new(ModelDrafter::new(target.clone(), vocab_size))),
        ("another model", model()),
        ("forced, then ngram", Arc::new(ForcedDrafter::new(Arc::new(NgramDrafter::default())))),
        ("forced, then another model", Arc::new(ForcedDrafter::new(model()))),
        (
            "another model that learns",
            Arc::new(
                ModelDrafter::new(other.clone(), vocab_size).with_memory(Arc::new(TokenMemory::default())),
            ),
        ),
        ("a corpus of the very text", Arc::new(CompositeDrafter::new(told(text)))),
        ("a corpus of another text", Arc::new(CompositeDrafter::new(told(&[3, 1, 2, 0, 2, 1])))),
        ("a prediction that is nearly right", Arc::new(Expecting(Arc::new(suffix()), nearly))),
        ("suffix", Arc::new(suffix())),
        ("suffix, and another model", Arc::new(suffix().with_model(model()))),
        (
            "forced, then suffix and another model",
            Arc::new(ForcedDrafter::new(Arc::new(suffix().with_model(model())))),
        ),
        ("a model with a small head", Arc::new(ModelDrafter::new(small_head(other), vocab_size))),
        ("another vocabulary", in_other_words(vocab_size, vocab_size * 3 / 2)),
        ("uniform draws", Arc::new(Uniform { vocab_size })),
        ("oracle", scripted(move |n, k| (n..n + k).map(|i| at(&oracle, i)).collect())),
        ("always wrong", scripted(move |n, k| (n..n + k).map(|i| (at(&wrong, i) + 1) % vocab).collect())),
        (
            "random lengths",
            scripted(move |n, k| (0..(n * 7919 % (k + 1))).map(|i| (n + i) as u32 % vocab).collect()),
        ),
        ("ends everywhere", scripted(move |_, k| vec![end_id; k])),
    ]
}

/// `model` with two thirds of its output head.
fn small_head(model: &Arc<dyn Model>) -> Arc<dyn Model> {
    let ids: Vec<u32> = (0..model.info().vocab_size as u32).filter(|id| id % 3 != 1).collect();
    Arc::new(SmallHead::new(model.clone(), &ids))
}

/// A model of which only some logits are shown.
pub struct SmallHead {
    inner: Arc<dyn Model>,
    info: ModelInfo,
}

impl SmallHead {
    /// `inner` with the logits of `ids`, ascending.
    pub fn new(inner: Arc<dyn Model>, ids: &[u32]) -> Self {
        let info = ModelInfo { head_ids: Some(ids.into()), ..inner.info().clone() };
        Self { inner, info }
    }
}

impl Model for SmallHead {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        let mut whole = Output::new();
        self.inner.forward(batch, &mut whole)?;
        out.begin(batch, self.info.num_logits());
        let ids = self.info.head_ids.as_deref().unwrap_or_default();
        for slice in 0..batch.slices.len() {
            for row in 0..whole.num_rows(slice) {
                let logits = whole.logits(slice, row);
                out.push_row(&ids.iter().map(|&id| logits[id as usize]).collect::<Vec<_>>());
            }
        }
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        self.inner.new_cache()
    }

    fn info(&self) -> &ModelInfo {
        &self.info
    }
}

/// Whether what a drafter drafts depends on the texts beside the one it drafts for. (What depends on texts that are over
/// can be told to forget them.)
pub fn learns(name: &str) -> bool {
    name.contains("learns")
}

/// A toy of `draft_size` tokens that drafts for a target of `target_size` others.
fn in_other_words(target_size: usize, draft_size: usize) -> Arc<dyn Drafter> {
    let (target, draft) = (vocabularies::of_target(target_size), vocabularies::of_draft(draft_size));
    let vocab = DraftVocab::Other(Arc::new(Translator::new(&target, &draft)));
    Arc::new(ModelDrafter::with_vocab(Arc::new(ToyModel::new(draft_size, 7, 6.0)), vocab))
}

/// Expects the same of every text.
struct Expecting(Arc<dyn Drafter>, Vec<u32>);

impl Drafter for Expecting {
    fn new_state(&self) -> Box<dyn DraftState> {
        let mut state = self.0.new_state();
        assert!(self.0.expect(state.as_mut(), &self.1));
        state
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        self.0.draft(requests)
    }

    fn inner(&self) -> Option<&Arc<dyn Drafter>> {
        Some(&self.0)
    }

    fn expect(&self, _state: &mut dyn DraftState, _prediction: &[u32]) -> bool {
        true
    }
}

/// Guesses by a rule from the text's length and k.
struct Scripted<F>(F);

fn scripted(rule: impl Fn(usize, usize) -> Vec<u32> + Send + Sync + 'static) -> Arc<dyn Drafter> {
    Arc::new(Scripted(rule))
}

impl<F: Fn(usize, usize) -> Vec<u32> + Send + Sync> Drafter for Scripted<F> {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(NoState)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        Ok(requests.iter().map(|r| Ok(Draft::deterministic((self.0)(r.tokens.len(), r.k)))).collect())
    }
}

/// Draws from the uniform distribution and says so: the ratio test's hardest customer.
struct Uniform {
    vocab_size: usize,
}

impl Drafter for Uniform {
    fn new_state(&self) -> Box<dyn DraftState> {
        Box::new(NoState)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> Result<Vec<Result<Draft>>> {
        let q = Distribution::Dense(vec![-(self.vocab_size as f32).ln(); self.vocab_size]);
        let chain = |request: &mut DraftRequest<'_>| {
            let mut draft = Draft::default();
            for _ in 0..request.k {
                draft.draw(q.clone(), &mut request.noise);
            }
            Ok(draft)
        };
        Ok(requests.iter_mut().map(chain).collect())
    }
}
