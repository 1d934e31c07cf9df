//! Accepted tokens against the number that must follow from the `p` and `q` of each round.
//!
//! Given a draft, its `q` and the rows of `p`, a rule leaves only its own random decisions open, and the probability of
//! each number of accepted tokens can be worked out. Over many rounds the accepted tokens must be those expected, or
//! the rule was not given what it was said to be given: the `p` of another position, noise that is not fresh.

use std::{
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use serde::Serialize;
use specgen::{
    Engine, Result, SamplingParams, Verification,
    distribution::Distribution,
    draft::Draft,
    sampling::{History, Sampler},
    verify::{Chooser, Picker, block, recursive, rejection},
};

use crate::{
    ProofPrompt, Watch,
    enumeration::{EnumChooser, enumerate},
    statistics::{sum_of, two_sided},
    through::{DrafterThrough, TargetThrough},
};

/// A rule on sampled texts.
#[derive(Clone, Debug, Serialize)]
pub struct Acceptance {
    /// The rule's name.
    pub rule: &'static str,
    /// Rounds with a draft.
    pub rounds: usize,
    /// Drafted tokens, of trees those of the longest path.
    pub drafted: usize,
    /// How many of them stood.
    pub accepted: usize,
    /// How many had to, in expectation.
    pub predicted: f64,
    /// The same by position in the draft.
    pub by_position: Vec<Position>,
    /// How likely a difference as large is by chance.
    pub p_value: f64,
}

/// A position in the draft.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Position {
    /// Rounds whose draft has it.
    pub drafted: usize,
    /// Rounds in which it stood.
    pub accepted: usize,
    /// How many had to, in expectation.
    pub predicted: f64,
}

/// A place in a text where a round began, worth a look by [`crate::outcomes`].
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) prompt: String,
    /// Prompt and output up to it.
    pub(crate) tokens: Vec<u32>,
    /// Entropy of the next token in nats.
    pub(crate) entropy: f64,
}

/// Runs texts of `tokens` tokens under `rule`; gives what was accepted, and the most open place of each text that had a
/// draft.
pub(crate) fn check(
    engine: &Engine,
    params: &SamplingParams,
    prompts: &[ProofPrompt],
    tokens: usize,
    watch: &dyn Watch,
) -> Result<(Acceptance, Vec<Place>)> {
    let rule = params.verification();
    let mut acceptance = Acceptance {
        rule: rule.name(),
        rounds: 0,
        drafted: 0,
        accepted: 0,
        predicted: 0.0,
        by_position: Vec::new(),
        p_value: 1.0,
    };
    watch.stage(&format!("{rule}, sampled texts"), prompts.len() as u64);
    // The law of the number accepted so far.
    let (mut law, mut places) = (vec![1.0], Vec::new());
    for prompt in prompts {
        let mut open: Option<Place> = None;
        run(engine, params, prompt, tokens, |round| {
            if round.draft.is_empty() {
                return;
            }
            let entropy = entropy(&round.p[0]);
            // What comes after the end is nothing a user sees.
            let ended = round.before[prompt.ids.len()..].iter().any(|id| engine.end_ids().contains(id));
            if !ended && open.as_ref().is_none_or(|open| entropy > open.entropy) {
                let (prompt, tokens) = (prompt.name.clone(), round.before.to_vec());
                open = Some(Place { prompt, tokens, entropy });
            }
            if rule != Verification::Coupled {
                let forecast = forecast(rule, round.draft, round.p);
                acceptance.add(round, &forecast);
                law = sum_of(&law, &forecast);
            }
        })?;
        places.extend(open);
        watch.advance(1);
    }
    acceptance.p_value = two_sided(&law, acceptance.accepted);
    Ok((acceptance, places))
}

impl Acceptance {
    /// Takes in a round with the probability of each number of accepted tokens.
    fn add(&mut self, round: &Round<'_>, forecast: &[f64]) {
        let mean: f64 = forecast.iter().zip(0..).map(|(p, n)| p * f64::from(n)).sum();
        let depth = depth(round.draft);
        self.rounds += 1;
        self.drafted += depth;
        self.accepted += round.num_accepted;
        self.predicted += mean;
        if self.by_position.len() < depth {
            self.by_position.resize(depth, Position::default());
        }
        for (i, position) in self.by_position.iter_mut().enumerate().take(depth) {
            position.drafted += 1;
            position.accepted += usize::from(round.num_accepted > i);
            position.predicted += forecast[i + 1..].iter().sum::<f64>();
        }
    }
}

/// A round as it went.
struct Round<'a> {
    /// The text it began after.
    before: &'a [u32],
    draft: &'a Draft,
    /// The target's distribution behind the text, and behind each token of the draft.
    p: &'a [Distribution],
    num_accepted: usize,
}

/// What the last round drafted and scored.
#[derive(Default)]
struct Seen {
    draft: Draft,
    logits: Vec<Vec<f32>>,
}

/// What is guarded is whole whatever panicked.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs one text to `tokens` tokens and shows each round to `see`.
fn run(
    engine: &Engine,
    params: &SamplingParams,
    prompt: &ProofPrompt,
    tokens: usize,
    mut see: impl FnMut(&Round<'_>),
) -> Result<()> {
    let seen = Arc::new(Mutex::new(Seen::default()));
    let target = TargetThrough::new(engine.target().clone(), {
        let seen = seen.clone();
        move |_, out| {
            lock(&seen).logits = (0..out.num_rows(0)).map(|row| out.logits(0, row).to_vec()).collect()
        }
    });
    let drafter = DrafterThrough::new(engine.drafter().clone(), {
        let seen = seen.clone();
        move |drafts| {
            if let Some(Ok(draft)) = drafts.first() {
                lock(&seen).draft = draft.clone();
            }
        }
    });
    let engine = engine.with_target(target).with_drafter(drafter, engine.plan().clone());
    let sampler = Sampler::new(params, engine.vocab_size())?;
    let mut history = History::new(&prompt.ids);
    let request = specgen::Request {
        prompt: &prompt.ids,
        params,
        max_tokens: tokens,
        stops: &[],
        // An end would hide how many of its round's tokens stood.
        ignore_eos: true,
    };
    let mut sequence = engine.start(&request, &mut None)?;
    let mut rounds = engine.rounds();
    while rounds.prefill(&mut sequence)? {}
    while sequence.finish_reason().is_none() {
        let before = sequence.tokens().len();
        rounds.step(&mut [&mut sequence])?.into_iter().collect::<Result<()>>()?;
        let Seen { mut draft, logits } = mem::take(&mut *lock(&seen));
        // A plan may have dropped guesses at its end.
        draft.truncate(logits.len() - 1);

        let mut p = Vec::with_capacity(logits.len());
        for (node, row) in logits.iter().enumerate() {
            let path = path(&draft, node);
            for pair in path.windows(2) {
                sampler.push(&mut history, draft.tokens[pair[1] - 1], &logits[pair[0]]);
            }
            p.push(sampler.distribution(row, &history)?);
            history.truncate_output(before - prompt.ids.len());
        }
        let (before, new) = sequence.tokens().split_at(before);
        see(&Round { before, draft: &draft, p: &p, num_accepted: new.len() - 1 });
        let mut node = 0;
        for &id in new {
            sampler.push(&mut history, id, &logits[node]);
            node =
                draft.children(node).find(|&child| draft.tokens[child] == id).map_or(node, |child| child + 1);
        }
    }
    Ok(())
}

/// The nodes from the pending token, 0, to `node`; a draft's token `i` is node `i + 1`.
fn path(draft: &Draft, node: usize) -> Vec<usize> {
    let parent = |&node: &usize| Some(draft.parent(node.checked_sub(1)?).map_or(0, |parent| parent + 1));
    let mut path: Vec<usize> = std::iter::successors(Some(node), parent).collect();
    path.reverse();
    path
}

fn entropy(p: &Distribution) -> f64 {
    p.support().map(|(_, ln_p)| -f64::from(ln_p).exp() * f64::from(ln_p)).sum()
}

/// The probability of each number of accepted tokens, from 0 to all, over the decisions of `rule`.
fn forecast(rule: Verification, draft: &Draft, p: &[Distribution]) -> Vec<f64> {
    let law = enumerate(|chooser| {
        let mut judge = Judge { chooser, draft };
        let row = |i: usize| Ok(p[i].clone());
        match rule {
            _ if draft.parents.is_some() => {
                recursive(draft, row, &mut judge).ok().map(|found| found.path.len())
            }
            Verification::Block => block(draft, row, &mut judge).ok().map(|verdict| verdict.num_accepted),
            _ => rejection(draft, row, &mut judge).ok().map(|verdict| verdict.num_accepted),
        }
    });
    (0..=depth(draft)).map(|n| law.get(&Some(n)).copied().unwrap_or(0.0)).collect()
}

/// Tokens of the longest path.
fn depth(draft: &Draft) -> usize {
    draft.tip().map_or(0, |tip| draft.depth(tip) + 1)
}

/// Takes both ways of what decides over a drafted token, and any way of what does not.
struct Judge<'a> {
    chooser: &'a mut EnumChooser,
    draft: &'a Draft,
}

impl Chooser for Judge<'_> {
    fn accept(&mut self, index: usize, ln_ratio: f64) -> bool {
        self.chooser.accept(index, ln_ratio)
    }
}

impl Picker for Judge<'_> {
    fn pick(&mut self, index: usize, weights: impl Iterator<Item = (u32, f64)>) -> Option<u32> {
        let drafted = self.draft.children(index).map(|child| (self.draft.tokens[child], 0.0));
        let mut options: Vec<(u32, f64)> = drafted.collect();
        let (mut of_others, mut other) = (0.0, None);
        for (id, weight) in weights {
            match options.iter_mut().find(|(drafted, _)| *drafted == id) {
                Some((_, of_drafted)) => *of_drafted += weight,
                None if weight > 0.0 => (of_others, other) = (of_others + weight, Some(id)),
                None => {}
            }
        }
        // In any order, but always the same one.
        options.push((other.unwrap_or_default(), of_others));
        self.chooser.decide(options.into_iter())
    }
}
