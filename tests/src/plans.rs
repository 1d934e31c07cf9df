//! Plans that no one should use, and the list that the exactness tests run through.

use std::{
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use specgen::{
    Plan,
    distribution::Distribution,
    plan::{Choice, Means, Outcome, Outlook, Pace, Planner},
    verify::{Draft, Picker},
};

use crate::enumeration::exact;

/// Every plan whose lengths vary.
pub fn all() -> Vec<Plan> {
    let adversary = Arc::new(Adversary { max_tokens: 9 });
    vec![Plan::Auto, Plan::Window, Plan::Confidence(0.3), Plan::Trees(9), Plan::Custom(adversary)]
}

/// Decides by the hash of everything it is told, drawn tokens included: whatever can bend a distribution, this does.
#[derive(Clone, Copy, Debug)]
pub struct Adversary {
    /// The most tokens of a draft.
    pub max_tokens: usize,
}

impl Planner for Adversary {
    fn new_pace(&self) -> Box<dyn Pace> {
        Box::new(Whim { max_tokens: self.max_tokens, past: 1 })
    }

    fn max_tokens(&self) -> usize {
        self.max_tokens
    }
}

#[derive(Clone)]
struct Whim {
    max_tokens: usize,
    /// The hash of all rounds so far.
    past: u64,
}

impl Whim {
    fn hash(&self, told: impl Hash) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.past, told).hash(&mut hasher);
        hasher.finish()
    }
}

impl Pace for Whim {
    fn begin(&mut self, outlook: Outlook) -> usize {
        let wanted = self.hash((outlook.room, outlook.text_len)) as usize % (self.max_tokens + 1);
        let is_off = self.hash(outlook.text_len).is_multiple_of(5);
        if is_off { 0 } else { wanted.max(self.max_tokens / 2).min(outlook.room) }
    }

    fn wants_prompt(&mut self, len: usize) -> bool {
        self.hash(len).is_multiple_of(2)
    }

    fn reads_confidence(&self) -> bool {
        true
    }

    fn go_on(&mut self, num_drafted: usize, confidence: Option<f32>) -> bool {
        !self.hash((num_drafted, confidence.map(f32::to_bits))).is_multiple_of(4)
    }

    fn choose(&mut self, num_before: usize, guesses: &mut [Draft], means: Means) -> Choice {
        let told: Vec<&[u32]> = guesses.iter().map(|guess| &guess.tokens[..]).collect();
        let hash = self.hash((num_before, told)) as usize;
        let guess = hash % guesses.len().max(1);
        let len = guesses.get(guess).map_or(0, |guess| hash / 16 % (guess.len() + 1));
        let num_more = if means.has_model { hash / 256 % (self.max_tokens + 1) } else { 0 };
        Choice { guess, len, num_more, branches: !hash.is_multiple_of(3) }
    }

    fn branch(&mut self, num_drafted: usize, confidence: f32) -> bool {
        !self.hash((num_drafted, confidence.to_bits())).is_multiple_of(3)
    }

    fn keep(&mut self, draft: &Draft, _least: usize) -> usize {
        let is_unwanted = |i: &usize| self.hash(&draft.tokens[..=*i]).is_multiple_of(3);
        (0..draft.len()).find(is_unwanted).unwrap_or(draft.len())
    }

    fn observe(&mut self, outcome: &Outcome<'_>) {
        self.past = self.hash((&outcome.draft.tokens, outcome.new, outcome.num_accepted));
    }

    fn fork(&self) -> Box<dyn Pace> {
        Box::new(self.clone())
    }
}

/// Drafts after `text` as a drafter does at a pace, each token drawn from `q`; what the pace would drop goes where
/// `may_drop` allows it.
pub fn draft_at(
    pace: &mut dyn Pace,
    text: &[u32],
    vocab: u32,
    q: impl Fn(&[u32]) -> Distribution,
    may_drop: impl Fn(&Draft) -> usize,
    picker: &mut impl Picker,
) -> Draft {
    let k = pace.begin(Outlook { room: 100, text_len: text.len(), num_texts: 1 });
    let mut draft = Draft::default();
    while draft.len() < k {
        let q = q(&[text, &draft.tokens].concat());
        let sure = exact(&q, vocab).into_iter().fold(0.0, f64::max);
        if !pace.go_on(draft.len(), Some(sure as f32)) {
            break;
        }
        let token = q.draw(picker, draft.len());
        draft.push(token, q);
    }
    let least = draft.len() - may_drop(&draft);
    draft.truncate(pace.keep(&draft, least).max(least));
    draft
}
