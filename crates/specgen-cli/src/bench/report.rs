//! What came of a race, by category of prompts.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use serde_json::{Value, json};
use specgen::{Plan, Stats};

use super::{
    median, millis,
    prompts::{BenchPrompt, categories},
    rounded,
    texts::{Contestant, Run},
};
use crate::args::BenchArgs;

/// The results of one target.
pub(super) struct Report<'a> {
    target: &'a str,
    contestants: &'a [Contestant],
    prompts: &'a [BenchPrompt],
    runs: &'a [Run],
    args: &'a BenchArgs,
}

/// One contestant on the prompts of one category.
struct Row {
    /// Median over texts.
    tokens_per_second: f64,
    slowest: f64,
    fastest: f64,
    /// Median over texts of the rate against plain decoding's of the same prompt and round.
    speed_up: f64,
    /// The worst text's.
    worst: f64,
    total: Stats,
    /// Median.
    first_token: Duration,
    /// Texts that are plain decoding's, token by token, and all.
    identical: usize,
    texts: usize,
}

impl<'a> Report<'a> {
    pub(super) fn new(
        target: &'a str,
        contestants: &'a [Contestant],
        prompts: &'a [BenchPrompt],
        runs: &'a [Run],
        args: &'a BenchArgs,
    ) -> Self {
        Self { target, contestants, prompts, runs, args }
    }

    /// The categories in the order of the prompts, each with one row a contestant.
    fn rows(&self) -> Vec<(&str, Vec<Row>)> {
        let row = |category, i| self.row(category, i);
        let all = |category| (0..self.contestants.len()).map(|i| row(category, i)).collect();
        categories(self.prompts).into_iter().map(|category| (category, all(category))).collect()
    }

    fn row(&self, category: &str, contestant: usize) -> Row {
        let here = |run: &&Run| self.prompts[run.prompt].category == category;
        let plain: BTreeMap<_, _> = self
            .runs
            .iter()
            .filter(|run| run.contestant == 0)
            .map(|run| ((run.prompt, run.rep), run))
            .collect();
        let runs: Vec<&Run> =
            self.runs.iter().filter(here).filter(|run| run.contestant == contestant).collect();
        let rates: Vec<f64> = runs.iter().map(|run| run.stats.tokens_per_second()).collect();
        let ups: Vec<f64> = runs
            .iter()
            .map(|run| {
                run.stats.tokens_per_second() / plain[&(run.prompt, run.rep)].stats.tokens_per_second()
            })
            .collect();
        let lowest = |values: &[f64]| values.iter().copied().fold(f64::INFINITY, f64::min);
        let first = median(runs.iter().map(|run| run.stats.time_to_first_token.as_secs_f64()).collect());
        Row {
            slowest: lowest(&rates),
            fastest: rates.iter().copied().fold(0.0, f64::max),
            tokens_per_second: median(rates),
            worst: lowest(&ups),
            speed_up: median(ups),
            total: runs.iter().map(|run| &run.stats).sum(),
            first_token: Duration::from_secs_f64(first),
            identical: runs.iter().filter(|run| run.tokens == plain[&(run.prompt, run.rep)].tokens).count(),
            texts: runs.len(),
        }
    }

    pub(super) fn text(&self) -> String {
        let how = if self.args.temperature == 0.0 {
            "greedy".into()
        } else {
            format!("temperature {}, {}", self.args.temperature, self.args.verify)
        };
        let width = self.contestants.iter().map(|one| one.name().len()).max().unwrap_or(0).max(10);
        let mut text = format!(
            "{}: {how}, k = {}, {} prompts, {} rounds, {}\n\
             category    {:<width$}   tok/s  (from   to)  speed-up  worst  accepted  tok/round  draft  verify  other  first token  same text\n",
            self.target,
            self.args.plans().iter().map(Plan::to_string).collect::<Vec<_>>().join(", "),
            self.prompts.len(),
            self.args.reps(),
            specgen::device::cpu_isa(),
            "draft",
        );
        for (category, rows) in self.rows() {
            for (row, name) in rows.iter().zip(self.contestants.iter().map(Contestant::name)) {
                let stats = &row.total;
                let share = |time: Duration| 100.0 * time.as_secs_f64() / stats.decode().as_secs_f64();
                let accepted = match stats.drafted {
                    0 => "-".into(),
                    _ => format!("{:.0} %", 100.0 * stats.acceptance_rate()),
                };
                let _ = writeln!(
                    text,
                    "{category:<11} {name:<width$} {:7.1} {:6.1} {:6.1} {:8.2} {:6.2} {accepted:>9} {:10.2} {:4.0} % {:5.0} % {:4.0} % {:9.0} ms {:>6} of {}",
                    row.tokens_per_second,
                    row.slowest,
                    row.fastest,
                    row.speed_up,
                    row.worst,
                    stats.mean_accepted_len(),
                    share(stats.draft),
                    share(stats.verify),
                    share(stats.other),
                    millis(row.first_token),
                    row.identical,
                    row.texts,
                );
            }
        }
        text
    }

    pub(super) fn json(&self) -> Value {
        let categories: Vec<Value> = self
            .rows()
            .iter()
            .flat_map(|(category, rows)| {
                rows.iter().zip(self.contestants).map(move |(row, contestant)| {
                    json!({
                        "category": category,
                        "draft": contestant.name(),
                        "plan": contestant.plan().to_string(),
                        "tokens_per_second": rounded(row.tokens_per_second),
                        "slowest": rounded(row.slowest),
                        "fastest": rounded(row.fastest),
                        "speed_up": rounded(row.speed_up),
                        "worst_speed_up": rounded(row.worst),
                        "acceptance_rate": rounded(row.total.acceptance_rate()),
                        "accepted_by_position": row.total.accepted_by_position,
                        "drafted_by_position": row.total.drafted_by_position,
                        "rounds_by_num_drafted": row.total.rounds_by_num_drafted,
                        "rounds_off": row.total.plan.rounds_off,
                        "probes": row.total.plan.probes,
                        "tokens_per_round": rounded(row.total.mean_accepted_len()),
                        "draft_seconds": rounded(row.total.draft.as_secs_f64()),
                        "verify_seconds": rounded(row.total.verify.as_secs_f64()),
                        "other_seconds": rounded(row.total.other.as_secs_f64()),
                        "first_token_ms": rounded(millis(row.first_token)),
                        "texts": row.texts,
                        "identical_texts": row.identical,
                    })
                })
            })
            .collect();
        let texts: Vec<Value> = self
            .runs
            .iter()
            .map(|run| {
                json!({
                    "prompt": self.prompts[run.prompt].id,
                    "draft": self.contestants[run.contestant].name(),
                    "round": run.rep,
                    "tokens": run.tokens.len(),
                    "tokens_per_second": rounded(run.stats.tokens_per_second()),
                    "prompt_tokens": run.stats.prompt_tokens,
                    "prompt_tokens_per_second": rounded(run.stats.prompt_tokens_per_second()),
                })
            })
            .collect();
        json!({
            "engine": "specgen",
            "version": env!("CARGO_PKG_VERSION"),
            "model": self.target,
            "isa": specgen::device::cpu_isa(),
            "temperature": self.args.temperature,
            "verify": self.args.verify.name(),
            "categories": categories,
            "texts": texts,
        })
    }
}
