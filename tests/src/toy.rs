//! Rounds of drafting over toy language models.

use crate::enumeration::{EnumChooser, Law, enumerate, law_error};
use specgen::Result;
use specgen::distribution::Distribution;
use specgen::sampling::{History, Sampler, SamplingParams};
use specgen::verify::{Chooser, Draft, Verdict, block, rejection};

pub use specgen_proof::toy::{Toy, concat, draw_chain, toys};

/// A [`Toy`] worked out for every text up to a length, for tests that look often.
#[derive(Debug, Clone)]
pub struct Table {
    vocab: u32,
    rows: Vec<(Distribution, Distribution)>,
}

impl Table {
    /// For texts of up to `len` tokens.
    pub fn new(toy: Toy, len: u32) -> Self {
        // The number of a text, written in tokens behind a 1.
        let text = |number: u32| {
            let digits = number.ilog(toy.vocab);
            (0..digits).rev().map(|digit| number / toy.vocab.pow(digit) % toy.vocab).collect::<Vec<_>>()
        };
        let row = |number: u32| {
            let text = text(number);
            (toy.p(&text), toy.q(&text))
        };
        Self { vocab: toy.vocab, rows: (1..2 * toy.vocab.pow(len)).map(row).collect() }
    }

    /// [`Toy::p`].
    pub fn p(&self, text: &[u32]) -> &Distribution {
        &self.rows[self.number(text)].0
    }

    /// [`Toy::q`].
    pub fn q(&self, text: &[u32]) -> &Distribution {
        &self.rows[self.number(text)].1
    }

    fn number(&self, text: &[u32]) -> usize {
        text.iter().fold(1, |number, id| number * self.vocab + id) as usize - 1
    }
}

/// A draft, and the target's row after each number of its tokens.
pub struct Scored<'a> {
    /// An honest draft.
    pub draft: &'a Draft,
    /// As [`rejection`] asks for it.
    pub p: &'a mut dyn FnMut(usize) -> Result<Distribution>,
}

/// A verifier under test.
pub trait Rule<C: Chooser> {
    /// As [`rejection`].
    fn verify(&self, round: Scored<'_>, chooser: &mut C) -> Verdict;
}

/// The rules of the library that draw anew in every round: one that joins is one line.
pub const RATIO_RULES: [(&str, &dyn Rule<EnumChooser>); 2] = [("rejection", &Rejection), ("block", &Block)];

/// [`rejection`].
#[derive(Debug, Clone, Copy)]
pub struct Rejection;

/// [`block`].
#[derive(Debug, Clone, Copy)]
pub struct Block;

impl<C: Chooser> Rule<C> for Block {
    fn verify(&self, round: Scored<'_>, chooser: &mut C) -> Verdict {
        block(round.draft, round.p, chooser).expect("the draft is honest")
    }
}

impl<C: Chooser> Rule<C> for Rejection {
    fn verify(&self, round: Scored<'_>, chooser: &mut C) -> Verdict {
        rejection(round.draft, round.p, chooser).expect("the draft is honest")
    }
}

/// Verifies `draft` after `context` and returns the tokens the round adds.
pub fn round<C: Chooser>(
    context: &[u32],
    draft: &Draft,
    p: impl Fn(&[u32]) -> Distribution,
    rule: &(impl Rule<C> + ?Sized),
    chooser: &mut C,
) -> Vec<u32> {
    let mut row = |i: usize| Ok(p(&concat(context, &draft.tokens[..i])));
    let verdict = rule.verify(Scored { draft, p: &mut row }, chooser);
    let mut tokens = draft.tokens[..verdict.num_accepted].to_vec();
    tokens.push(verdict.next_token);
    tokens
}

/// The law of one round from an empty text, its `k` tokens drawn from the toy's `q`.
pub fn sampled_round(toy: Toy, k: usize, rule: &(impl Rule<EnumChooser> + ?Sized)) -> Law<Vec<u32>> {
    enumerate(|chooser| {
        let draft = draw_chain(&[], k, |context| toy.q(context), chooser);
        round(&[], &draft, |context| toy.p(context), rule, chooser)
    })
}

/// A toy whose logits go through the real sampler, with every filter and penalty on, after a prompt.
#[derive(Debug, Clone)]
pub struct SampledToy {
    /// Where the logits come from.
    pub toy: Toy,
    /// The parameters of the answer.
    pub target: SamplingParams,
    /// The parameters the drafter draws with: some differ.
    pub draft: SamplingParams,
    /// The prompt, which counts for the repetition penalty.
    pub prompt: Vec<u32>,
}

impl SampledToy {
    /// A vocabulary of four.
    pub fn new(seed: u64) -> Self {
        let target = SamplingParams {
            temperature: 0.8,
            top_k: 3,
            top_p: 0.95,
            min_p: 0.05,
            repetition_penalty: 1.3,
            presence_penalty: 0.7,
            frequency_penalty: 0.9,
            logit_bias: vec![(1, 0.5)],
            ..SamplingParams::greedy()
        };
        Self::with(seed, target)
    }

    /// As [`SampledToy::new`] with these parameters, which need a seed if they are to be random by it. Token
    /// 0 ends a text.
    pub fn with(seed: u64, target: SamplingParams) -> Self {
        let draft = SamplingParams { temperature: 1.2, top_k: 0, min_p: 0.0, ..target.clone() };
        Self { toy: Toy { vocab: 4, seed }, target, draft, prompt: vec![2, 0] }
    }

    /// The history after the output `text`.
    pub fn history(&self, text: &[u32]) -> History {
        let mut history = History::new(&self.prompt);
        text.iter().for_each(|&id| self.push(&mut history, id));
        history
    }

    /// Appends a token that the target says, or might say.
    pub fn push(&self, history: &mut History, id: u32) {
        let logits = self.toy.logits(history.output(), 0);
        self.sampler(&self.target).push(history, id, &logits);
    }

    /// The target's distribution after `text`, with `history` for the penalties.
    pub fn scored(&self, text: &[u32], history: &History) -> Distribution {
        self.distribution(&self.target, text, 0, history)
    }

    /// What plain decoding samples from after `text`.
    pub fn p(&self, text: &[u32]) -> Distribution {
        self.scored(text, &self.history(text))
    }

    /// What the drafter draws from after `text`.
    pub fn q(&self, text: &[u32]) -> Distribution {
        self.distribution(&self.draft, text, 1, &self.history(text))
    }

    /// The law of one round after the output `start`; `row` scores the row after the first `i` of the draft
    /// tokens.
    pub fn law(
        &self,
        start: &[u32],
        k: usize,
        rule: &(impl Rule<EnumChooser> + ?Sized),
        row: impl Fn(&[u32], usize) -> Distribution,
    ) -> Law<Vec<u32>> {
        enumerate(|chooser| {
            let draft = draw_chain(start, k, |text| self.q(text), chooser);
            let mut row = |i| Ok(row(&draft.tokens, i));
            let verdict = rule.verify(Scored { draft: &draft, p: &mut row }, chooser);
            concat(&draft.tokens[..verdict.num_accepted], &[verdict.next_token])
        })
    }

    /// How far the law of one round after `start` is from the target's own.
    pub fn error(&self, start: &[u32], k: usize, law: &Law<Vec<u32>>) -> f64 {
        law_error(law, self.toy.vocab, k + 1, |text| self.p(&concat(start, text)))
    }

    fn distribution(
        &self,
        params: &SamplingParams,
        text: &[u32],
        model: u32,
        history: &History,
    ) -> Distribution {
        let logits = self.toy.logits(text, model);
        self.sampler(params).distribution(&logits, history).expect("the logits are finite")
    }

    fn sampler(&self, params: &SamplingParams) -> Sampler {
        let sampler = Sampler::new(params, self.toy.vocab as usize).expect("the parameters are valid");
        sampler.with_end_ids(&[0])
    }
}
