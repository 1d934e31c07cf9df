//! Token identity: greedy and coupled texts against plain decoding, with their log-probabilities.

use serde::Serialize;
use specgen::{
    Engine, Result, SamplingParams, Stats, Verification,
    draft::NoDraft,
    model::{Batch, Output, Rows, Slice},
    rng::Noise,
    sampling::{History, Logprobs, Sampler, TokenLogprobs},
    verify::{CoupledNoise, Picker},
};
use std::sync::Arc;

use crate::{ProofPrompt, Watch};

/// Tokens whose log-probabilities are compared at each position, beside the one said.
const TOP: usize = 5;
/// Where a row's bits do not depend on the rows beside it.
const CPU: &str = "cpu";

/// One way of decoding on all prompts.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// `greedy` or `coupled`.
    pub mode: &'static str,
    /// Texts compared.
    pub texts: usize,
    /// Their tokens, plain decoding's.
    pub tokens: usize,
    /// Texts that are plain decoding's token by token.
    pub identical: usize,
    /// The first token of each text that is not.
    pub divergences: Vec<Divergence>,
    /// Tokens whose log-probabilities were compared: those before a divergence.
    pub logprobs: usize,
    /// How many of them differ in a bit.
    pub differing_logprobs: usize,
    /// The largest difference.
    pub worst_logprob: f32,
    /// Whether logits are promised to be the same bits however many rows are scored together, as on the CPU.
    pub promised: bool,
    /// Drafted and accepted tokens of the speculative texts.
    pub drafted: usize,
    /// See `drafted`.
    pub accepted: usize,
}

/// Where a text leaves plain decoding's.
#[derive(Clone, Debug, Serialize)]
pub struct Divergence {
    /// The prompt.
    pub prompt: String,
    /// Tokens of output before it.
    pub position: usize,
    /// What plain decoding said; nothing where its text had ended.
    pub plain: Option<u32>,
    /// What speculative decoding said.
    pub speculative: Option<u32>,
    /// How much higher plain decoding's logit is than the other's, where both said a token.
    pub logit_gap: Option<f32>,
    /// The largest difference of a logit between a pass of one row and one of several over the same tokens.
    pub row_noise: f32,
    /// The gap is within what that difference can turn over.
    pub near_tie: bool,
}

impl Identity {
    /// Whether every text is plain decoding's, or, where bits are not promised, differs at near-ties only.
    pub fn holds(&self) -> bool {
        if self.promised {
            self.divergences.is_empty() && self.differing_logprobs == 0
        } else {
            self.divergences.iter().all(|divergence| divergence.near_tie)
        }
    }
}

/// What is compared with what.
pub(crate) struct Pair<'a> {
    /// The engine as it is used, or with a fault.
    pub(crate) engine: &'a Engine,
    /// The same target without a drafter or fault.
    pub(crate) plain: &'a Engine,
}

pub(crate) fn plain(engine: &Engine) -> Engine {
    engine.with_drafter(Arc::new(NoDraft), 0)
}

pub(crate) fn check(
    pair: &Pair<'_>,
    params: &SamplingParams,
    prompts: &[ProofPrompt],
    tokens: usize,
    watch: &dyn Watch,
) -> Result<Identity> {
    let mode = if params.temperature == 0.0 { "greedy" } else { Verification::Coupled.name() };
    let params =
        SamplingParams { logprobs: Some(Logprobs { num_top: TOP, ..Logprobs::default() }), ..params.clone() };
    watch.stage(&format!("{mode} texts"), prompts.len() as u64);
    let mut identity = Identity {
        mode,
        texts: prompts.len(),
        tokens: 0,
        identical: 0,
        divergences: Vec::new(),
        logprobs: 0,
        differing_logprobs: 0,
        worst_logprob: 0.0,
        promised: pair.plain.target().info().device == CPU,
        drafted: 0,
        accepted: 0,
    };
    for prompt in prompts {
        let plain = Text::of(pair.plain, prompt, &params, tokens)?;
        let speculative = Text::of(pair.engine, prompt, &params, tokens)?;
        identity.tokens += plain.ids.len();
        identity.drafted += speculative.stats.drafted;
        identity.accepted += speculative.stats.accepted;
        let same = plain.ids.iter().zip(&speculative.ids).take_while(|(a, b)| a == b).count();
        for (a, b) in plain.logprobs.iter().zip(&speculative.logprobs).take(same) {
            identity.logprobs += 1;
            identity.differing_logprobs += usize::from(a != b);
            identity.worst_logprob = identity.worst_logprob.max((a.logprob - b.logprob).abs());
        }
        match plain.ids == speculative.ids {
            true => identity.identical += 1,
            false => {
                identity.divergences.push(divergence(pair, &params, prompt, same, (&plain, &speculative))?)
            }
        }
        watch.advance(1);
    }
    Ok(identity)
}

struct Text {
    ids: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    stats: Stats,
}

impl Text {
    fn of(engine: &Engine, prompt: &ProofPrompt, params: &SamplingParams, tokens: usize) -> Result<Self> {
        let mut session = engine.session(params.clone())?;
        let mut generation = session.generate(&prompt.ids[..], tokens)?;
        let mut logprobs = Vec::new();
        for piece in generation.by_ref() {
            logprobs.extend(piece?.logprobs);
        }
        Ok(Self { ids: generation.tokens().to_vec(), logprobs, stats: generation.stats().clone() })
    }
}

fn divergence(
    pair: &Pair<'_>,
    params: &SamplingParams,
    prompt: &ProofPrompt,
    position: usize,
    (plain, speculative): (&Text, &Text),
) -> Result<Divergence> {
    let said = (plain.ids.get(position).copied(), speculative.ids.get(position).copied());
    let before = [&prompt.ids[..], &plain.ids[..position]].concat();
    let alone = last_row(pair.plain, &before, 1)?;
    let beside = last_row(pair.plain, &before, pair.engine.num_draft_tokens() + 1)?;
    let row_noise = alone.iter().zip(&beside).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    let mut divergence = Divergence {
        prompt: prompt.name.clone(),
        position,
        plain: said.0,
        speculative: said.1,
        logit_gap: None,
        row_noise,
        near_tie: false,
    };
    if let (Some(said), Some(other)) = said {
        let mut history = History::new(&prompt.ids);
        plain.ids[..position].iter().for_each(|&id| history.push(id));
        let p = |params: &SamplingParams| {
            Sampler::new(params, pair.plain.vocab_size())?.distribution(&alone, &history)
        };
        // After all that changes logits, and before what filters.
        let logits = p(&SamplingParams { temperature: 1.0, ..params.clone().unfiltered() })?;
        let gap = logits.log_prob(said) - logits.log_prob(other);
        divergence.logit_gap = Some(gap);
        // Each of the two logits may be off by the noise.
        let slack = 2.0 * row_noise;
        divergence.near_tie = match params.temperature {
            0.0 => gap.abs() < slack,
            temperature => {
                let p = p(params)?;
                let weight = |id| f64::from(p.log_prob(id)).exp();
                let favoured = (other, weight(other) * f64::from(slack / temperature).exp());
                let mut race = [(said, weight(said)), favoured];
                race.sort_by_key(|&(id, _)| id);
                let noise = Noise::new(params.seed.unwrap_or_default());
                CoupledNoise::new(noise, position as u64).pick(0, race.into_iter()) == Some(other)
            }
        };
    }
    Ok(divergence)
}

/// The logits after `tokens`, of a pass whose last `rows` rows are scored together.
pub(crate) fn last_row(engine: &Engine, tokens: &[u32], rows: usize) -> Result<Vec<f32>> {
    let target = engine.target();
    let (mut cache, mut out) = (target.new_cache(), Output::new());
    let (before, together) = tokens.split_at(tokens.len() - rows.min(tokens.len()));
    for (tokens, rows) in [(before, Rows::None), (together, Rows::All)] {
        if !tokens.is_empty() {
            let slice = Slice { cache: &mut cache, tokens, rows, tree: None };
            target.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out)?;
        }
    }
    Ok(out.logits(0, together.len() - 1).to_vec())
}
