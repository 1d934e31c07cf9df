//! Sampled tokens against the target's own distribution: G-tests of the next token and of the next two.

use std::collections::HashMap;

use serde::Serialize;
use specgen::{
    Engine, Memory, Request, Result, SamplingParams, Sequence,
    distribution::Distribution,
    sampling::{History, Sampler},
};

use crate::{
    Watch,
    acceptance::Place,
    identity::last_row,
    statistics::{GTest, g_test},
};

/// Rows of logits a pass may have; more bring no speed.
const MAX_ROWS: usize = 40;
/// Samples drawn side by side at most.
pub(crate) const MAX_WIDTH: usize = 8;
/// First tokens behind which the second is looked at.
const MAX_FIRST: usize = 8;
/// A first token is followed to the second where it is expected as often.
const MIN_FIRST: f64 = 25.0;
/// A cell is one outcome, or what is left where the expectation would be lower.
const MIN_EXPECTED: f64 = 10.0;

/// What came next at one place, many times over.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The rule's name.
    pub rule: &'static str,
    /// The prompt.
    pub prompt: String,
    /// Tokens of context.
    pub position: usize,
    /// Tokens looked at: 1 or 2.
    pub len: usize,
    /// Entropy of the next token in nats.
    pub entropy: f64,
    /// How often it was asked.
    pub samples: usize,
    /// The outcomes told apart, most expected first.
    pub cells: Vec<Cell>,
    /// Samples that the target cannot have said.
    pub impossible: usize,
    /// The test of `cells`.
    #[serde(flatten)]
    pub test: GTest,
}

/// An outcome, or all that are too rare to be told apart.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// The tokens; an end that is missing stands for every other token.
    pub tokens: Vec<u32>,
    /// How often it was to be seen.
    pub expected: f64,
    /// How often it was.
    pub observed: usize,
}

/// Draws `samples` times what follows `place`.
pub(crate) fn check(
    engines: (&Engine, &Engine),
    params: &SamplingParams,
    place: &Place,
    samples: usize,
    watch: &dyn Watch,
) -> Result<[Outcome; 2]> {
    let (engine, plain) = engines;
    let rule = params.verification();
    watch.stage(
        &format!("{rule}, samples after {} ({} tokens)", place.prompt, place.tokens.len()),
        samples as u64,
    );
    let law = Law::new(plain, params, &place.tokens, samples)?;
    let counts = draw(engine, params, &place.tokens, samples, watch)?;
    let impossible = counts.iter().filter(|&(&(a, b), _)| !law.is_possible(a, b)).map(|(_, n)| n).sum();
    let outcome = |len, cells: Vec<Cell>| Outcome {
        rule: rule.name(),
        prompt: place.prompt.clone(),
        position: place.tokens.len(),
        len,
        entropy: place.entropy,
        samples,
        impossible,
        test: g_test(&cells.iter().map(|cell| (cell.observed, cell.expected)).collect::<Vec<_>>()),
        cells,
    };
    Ok([outcome(1, law.first_cells(&counts)), outcome(2, law.second_cells(&counts))])
}

/// The target's own law of the next two tokens, as far as it is looked at.
struct Law {
    first: Distribution,
    /// Behind the likeliest first tokens.
    second: HashMap<u32, Distribution>,
    samples: f64,
}

impl Law {
    fn new(plain: &Engine, params: &SamplingParams, tokens: &[u32], samples: usize) -> Result<Self> {
        let sampler = Sampler::new(params, plain.vocab_size())?;
        let mut history = History::new(tokens);
        let row = last_row(plain, tokens, 1)?;
        let first = sampler.distribution(&row, &history)?;
        let mut likeliest = by_probability(&first);
        likeliest.retain(|&(_, p)| p * samples as f64 >= MIN_FIRST);
        likeliest.truncate(MAX_FIRST);
        let mut second = HashMap::new();
        for (id, _) in likeliest {
            sampler.push(&mut history, id, &row);
            let row = last_row(plain, &[tokens, &[id]].concat(), 1)?;
            second.insert(id, sampler.distribution(&row, &history)?);
            history.truncate_output(0);
        }
        Ok(Self { first, second, samples: samples as f64 })
    }

    fn is_possible(&self, first: u32, second: u32) -> bool {
        let says = |p: &Distribution, id| p.log_prob(id) > f32::NEG_INFINITY;
        says(&self.first, first) && self.second.get(&first).is_none_or(|p| says(p, second))
    }

    fn first_cells(&self, counts: &HashMap<(u32, u32), usize>) -> Vec<Cell> {
        let mut observed: HashMap<u32, usize> = HashMap::new();
        counts.iter().for_each(|(&(id, _), n)| *observed.entry(id).or_default() += n);
        let cells = by_probability(&self.first).into_iter().map(|(id, p)| Cell {
            tokens: vec![id],
            expected: p * self.samples,
            observed: observed.get(&id).copied().unwrap_or(0),
        });
        merged(cells.collect(), Vec::new())
    }

    fn second_cells(&self, counts: &HashMap<(u32, u32), usize>) -> Vec<Cell> {
        let (mut cells, mut rest) =
            (Vec::new(), Cell { tokens: Vec::new(), expected: self.samples, observed: 0 });
        rest.observed = counts.values().sum();
        let firsts = by_probability(&self.first)
            .into_iter()
            .filter_map(|(id, p)| Some((id, p, self.second.get(&id)?)));
        for (first, p, second) in firsts {
            let behind: Vec<Cell> = by_probability(second)
                .into_iter()
                .map(|(id, q)| Cell {
                    tokens: vec![first, id],
                    expected: p * q * self.samples,
                    observed: counts.get(&(first, id)).copied().unwrap_or(0),
                })
                .collect();
            rest.expected -= behind.iter().map(|cell| cell.expected).sum::<f64>();
            rest.observed -= behind.iter().map(|cell| cell.observed).sum::<usize>();
            cells.extend(merged(behind, vec![first]));
        }
        cells.push(rest);
        merged(cells, Vec::new())
    }
}

/// The possible tokens with their exact probabilities, likeliest first.
fn by_probability(p: &Distribution) -> Vec<(u32, f64)> {
    let mut tokens: Vec<(u32, f64)> = p.support().map(|(id, ln_p)| (id, f64::from(ln_p).exp())).collect();
    let total: f64 = tokens.iter().map(|&(_, p)| p).sum();
    tokens.iter_mut().for_each(|(_, p)| *p /= total);
    tokens.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    tokens
}

/// The cells that are expected often enough, and one behind them, `rest`, for all others; it takes in the rarest of the
/// former if it would be too rare itself.
fn merged(mut cells: Vec<Cell>, rest: Vec<u32>) -> Vec<Cell> {
    cells.sort_by(|a, b| b.expected.total_cmp(&a.expected).then_with(|| a.tokens.cmp(&b.tokens)));
    let often = cells.partition_point(|cell| cell.expected >= MIN_EXPECTED);
    let rare = cells.split_off(often);
    let mut rest = Cell { tokens: rest, expected: 0.0, observed: 0 };
    for cell in rare {
        rest.expected += cell.expected;
        rest.observed += cell.observed;
    }
    while rest.expected > 0.0 && rest.expected < MIN_EXPECTED {
        let Some(cell) = cells.pop() else { break };
        rest.expected += cell.expected;
        rest.observed += cell.observed;
    }
    if rest.expected > 0.0 || rest.observed > 0 {
        cells.push(rest);
    }
    cells
}

/// How often each pair of next tokens came, over `samples` seeds.
fn draw(
    engine: &Engine,
    params: &SamplingParams,
    tokens: &[u32],
    samples: usize,
    watch: &dyn Watch,
) -> Result<HashMap<(u32, u32), usize>> {
    let k = engine.num_draft_tokens();
    let width = (MAX_ROWS / (k + 1)).clamp(1, MAX_WIDTH);
    let mut memories: Vec<Option<Memory>> = (0..width).map(|_| None).collect();
    let mut rounds = engine.rounds();
    let mut counts = HashMap::new();
    let first_seed = params.seed.unwrap_or_default();
    let mut drawn = 0;
    while drawn < samples {
        let mut sequences = Vec::with_capacity(width);
        for memory in memories.iter_mut().take(samples - drawn) {
            // Seeds far from each other and from those of the texts; any are independent.
            let seed = first_seed.wrapping_add(1_000_003 * (1 + drawn + sequences.len()) as u64);
            let params = SamplingParams { seed: Some(seed), ..params.clone() };
            // Room for a full draft in the first round and the second.
            let request = Request {
                prompt: tokens,
                params: &params,
                max_tokens: (2 * (k + 1)).max(params.min_tokens),
                stops: &[],
                ignore_eos: true,
            };
            let mut sequence = engine.start(&request, memory)?;
            while rounds.prefill(&mut sequence)? {}
            sequences.push(sequence);
        }
        loop {
            let mut open: Vec<&mut Sequence> =
                sequences.iter_mut().filter(|s| s.output().len() < 2).collect();
            if open.is_empty() {
                break;
            }
            rounds.step(&mut open)?.into_iter().collect::<Result<()>>()?;
        }
        drawn += sequences.len();
        watch.advance(sequences.len() as u64);
        for (sequence, memory) in sequences.into_iter().zip(&mut memories) {
            *counts.entry((sequence.output()[0], sequence.output()[1])).or_default() += 1;
            *memory = Some(sequence.into_memory());
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_cells_become_one() {
        let cell = |id, expected, observed| Cell { tokens: vec![id], expected, observed };
        let cells =
            merged(vec![cell(0, 1.0, 2), cell(1, 20.0, 18), cell(2, 2.0, 1), cell(3, 7.0, 9)], vec![]);
        let told: Vec<_> = cells.iter().map(|c| (c.tokens.clone(), c.expected, c.observed)).collect();
        // 3 expected in the rest is too few: it takes in the cell of 7.
        assert_eq!(told, [(vec![1], 20.0, 18), (vec![], 10.0, 12)]);
    }
}
