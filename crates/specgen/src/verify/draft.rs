//! `Draft`: tokens that are up for verification, and how they came about.

use crate::{
    distribution::Distribution,
    rng::{CoupledNoise, RoundNoise},
};

/// Who guessed a token. How often one is right when it is so sure is a matter of experience, and each has its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Source {
    /// A drafter that does not say.
    #[default]
    Other,
    /// A model that drafts.
    Model,
    /// That model's second thoughts, beside what it goes on with.
    Alternative,
    /// A grammar, which leaves no other choice.
    Grammar,
    /// The text's own past.
    Text,
    /// Other texts.
    Corpus,
    /// What the user expects the text to be.
    Prediction,
}

impl Source {
    /// Every source there is.
    pub const ALL: [Self; 7] = [
        Self::Other,
        Self::Model,
        Self::Alternative,
        Self::Grammar,
        Self::Text,
        Self::Corpus,
        Self::Prediction,
    ];

    /// A word for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Other => "other",
            Self::Model => "model",
            Self::Alternative => "alternative",
            Self::Grammar => "grammar",
            Self::Text => "text",
            Self::Corpus => "corpus",
            Self::Prediction => "prediction",
        }
    }
}

/// Who guessed a token, and how sure it was of it, from 0 to 1, where it says so.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Signal {
    /// Who.
    pub source: Source,
    /// How sure.
    pub confidence: Option<f32>,
}

/// Drafted tokens, with what is known of how they came about.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Draft {
    /// The drafted token ids, in order.
    pub tokens: Vec<u32>,
    /// For a tree: the index of each token's parent plus 1, 0 for the pending token. `None` for a chain.
    pub parents: Option<Vec<u32>>,
    /// For each token, the distribution it was really drawn from; [`Distribution::Point`] if it was not drawn
    /// at all (n-gram, greedy draft, unknown origin) or with noise shared with the target, which is always
    /// safe.
    pub q: Vec<Distribution>,
    /// Where it ends, the model that drafts had logits that are no numbers. It is a draft like any other:
    /// whether there is a next `q` may depend on the tokens before, which stay.
    pub broken: bool,
    /// For each token, who guessed it and how sure it was; empty, or as long as it goes, where the drafter does not say.
    /// For plans and onlookers only: no rule of verification reads it.
    pub signals: Vec<Signal>,
}

impl Draft {
    /// A chain of guesses that were not drawn at random.
    pub fn deterministic(tokens: Vec<u32>) -> Self {
        let q = tokens.iter().map(|&token| Distribution::Point(token)).collect();
        Self { tokens, q, ..Self::default() }
    }

    /// A chain of guesses, all of one source that is equally sure of each.
    pub fn guessed(tokens: &[u32], signal: Signal) -> Self {
        Self { signals: vec![signal; tokens.len()], ..Self::deterministic(tokens.to_vec()) }
    }

    /// Number of drafted tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Who guessed each token, as far as the drafter says.
    pub fn signals(&self) -> impl Iterator<Item = Signal> + '_ {
        (0..self.len()).map(|i| self.signals.get(i).copied().unwrap_or_default())
    }

    /// How many tokens of a chain stand, by what the drafter says of them; those it says nothing of, it is sure of.
    pub fn expected_len(&self) -> f64 {
        let mut survival = 1.0;
        let stand = |signal: Signal| {
            survival *= f64::from(signal.confidence.unwrap_or(1.0));
            survival
        };
        self.signals().map(stand).sum()
    }

    /// The token that token `i` would follow; `None`: the pending token.
    pub fn parent(&self, i: usize) -> Option<usize> {
        match &self.parents {
            Some(parents) => (parents[i] as usize).checked_sub(1),
            None => i.checked_sub(1),
        }
    }

    /// The tokens that would follow a node, 0 for the pending token and `i + 1` for token `i`, in order.
    pub fn children(&self, node: usize) -> impl Iterator<Item = usize> + '_ {
        (node..self.len()).filter(move |&i| self.parent(i).map_or(0, |parent| parent + 1) == node)
    }

    /// Tokens between the pending token and token `i`.
    pub fn depth(&self, i: usize) -> usize {
        std::iter::successors(self.parent(i), |&i| self.parent(i)).count()
    }

    /// The end of the longest path, of several the first.
    pub fn tip(&self) -> Option<usize> {
        match self.parents {
            None => self.len().checked_sub(1),
            Some(_) => (0..self.len()).rev().max_by_key(|&i| self.depth(i)),
        }
    }

    /// The tokens from behind the pending token to token `i`.
    pub fn path(&self, i: Option<usize>) -> Vec<u32> {
        let mut path: Vec<u32> =
            std::iter::successors(i, |&i| self.parent(i)).map(|i| self.tokens[i]).collect();
        path.reverse();
        path
    }

    /// Appends what was drafted behind its longest path.
    pub fn extend(&mut self, behind: Self) {
        self.attach(self.tip(), behind);
    }

    /// Appends `branch` as what would follow token `at`, or the pending token. Which of its tokens are there already is not
    /// looked at.
    pub fn attach(&mut self, at: Option<usize>, branch: Self) {
        let offset = self.len();
        if branch.parents.is_some() || at != offset.checked_sub(1) {
            self.link();
        }
        if let Some(parents) = &mut self.parents {
            let shifted = |i: usize| branch.parent(i).map(|parent| offset + parent).or(at);
            let links = (0..branch.len()).map(|i| shifted(i).map_or(0, |parent| parent as u32 + 1));
            parents.extend(links);
        }
        // Who does not say who it is leaves no gap.
        if !branch.signals.is_empty() {
            self.signals.resize(offset, Signal::default());
        }
        self.tokens.extend(branch.tokens);
        self.q.extend(branch.q);
        self.signals.extend(branch.signals);
        self.broken |= branch.broken;
    }

    /// Adds a chain of guesses from the pending token on, as far as it is not there.
    pub fn graft(&mut self, guess: &Self) {
        let (mut at, mut known) = (None, 0);
        while let Some(&token) = guess.tokens.get(known) {
            let node = at.map_or(0, |at| at + 1);
            let Some(child) = self.children(node).find(|&child| self.tokens[child] == token) else { break };
            (at, known) = (Some(child), known + 1);
        }
        if known < guess.len() {
            let rest = Self {
                tokens: guess.tokens[known..].to_vec(),
                q: guess.q[known..].to_vec(),
                signals: guess.signals().skip(known).collect(),
                ..Self::default()
            };
            self.attach(at, rest);
        }
    }

    /// Writes the links of a chain down.
    fn link(&mut self) {
        if self.parents.is_none() {
            self.parents = Some((0..self.len() as u32).collect());
        }
    }

    /// How many tokens at its end were not drawn for a ratio test: of these any number may be dropped, whatever they are.
    /// Dropping one that was drawn, for what it is, bends the target's distribution.
    pub fn num_droppable(&self) -> usize {
        let is_guess = |q: &&Distribution| matches!(q, Distribution::Point(_));
        self.q.iter().rev().take_while(is_guess).count().min(self.len())
    }

    /// Drops all tokens but the first `len`.
    pub fn truncate(&mut self, len: usize) {
        self.tokens.truncate(len);
        self.parents.iter_mut().for_each(|parents| parents.truncate(len));
        self.q.truncate(len);
        self.signals.truncate(len);
    }

    /// Appends a token to a chain, with the distribution it was drawn from.
    pub fn push(&mut self, token: u32, q: Distribution) {
        self.tokens.push(token);
        self.q.push(q);
    }

    /// Appends a guess to a chain.
    pub fn push_guess(&mut self, token: u32, signal: Signal) {
        self.signals.resize(self.len(), Signal::default());
        self.push(token, Distribution::Point(token));
        self.signals.push(signal);
    }

    /// Draws the next token of a chain from `q`, appends it and returns it with `ln q(token)`. With the
    /// target's own noise it is a guess at the target's draw, and `q` is forgotten: no ratio may be tested
    /// with it.
    pub fn draw(&mut self, q: Distribution, noise: &mut DraftNoise) -> (u32, f32) {
        self.draw_behind(self.len().checked_sub(1), q, noise)
    }

    /// As [`Draft::draw`], for what would follow token `at`, or the pending token. Where that has children already, `q` must
    /// be what is left without them ([`Distribution::without`]).
    pub fn draw_behind(&mut self, at: Option<usize>, q: Distribution, noise: &mut DraftNoise) -> (u32, f32) {
        let token = match noise {
            // Each draw has numbers of its own,
            DraftNoise::Own(noise) => q.draw(noise, self.len()),
            // but those that the target draws with are the position's.
            DraftNoise::Shared(noise) => q.draw(noise, at.map_or(0, |at| self.depth(at) + 1)),
        };
        let ln_q = q.log_prob(token);
        let q = if matches!(noise, DraftNoise::Own(_)) { q } else { Distribution::Point(token) };
        self.attach(at, Self { tokens: vec![token], q: vec![q], ..Self::default() });
        (token, ln_q)
    }
}

/// What a drafter draws with, by [`Draft::draw`].
#[derive(Debug, Clone)]
pub enum DraftNoise {
    /// Numbers of its own, new in every round: its `q` is tested by ratio.
    Own(RoundNoise),
    /// The numbers that the target will draw with.
    Shared(CoupledNoise),
}

impl DraftNoise {
    /// For the tokens behind the next `num_tokens`.
    pub(crate) fn behind(self, num_tokens: usize) -> Self {
        match self {
            Self::Own(noise) => Self::Own(noise.behind(num_tokens)),
            Self::Shared(noise) => Self::Shared(noise.behind(num_tokens)),
        }
    }
}
