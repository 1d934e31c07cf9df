//! What a bench of texts found: all that its table, its JSON, its page and a comparison show.

use std::collections::BTreeMap;

use anyhow::Result;
use serde::{Deserialize, Serialize};
use specgen::{
    Plan, Stats,
    bench::read_time,
    device::{Device, DeviceSpec},
    model::Model,
};

use super::{
    figures::{Percentiles, expected_tokens, predicted_speed_up, share_standing},
    median, millis, over,
    prompts::{BenchPrompt, categories},
    rounded,
    texts::{Contestant, Run},
};
use crate::args::BenchArgs;

/// Reads of the weights; their median counts.
const NUM_READS: usize = 5;

/// The results of one target.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BenchResult {
    pub(super) engine: String,
    pub(super) version: String,
    /// `debug` is of no use but to try things.
    pub(super) build: String,
    pub(super) model: String,
    pub(super) machine: Machine,
    pub(super) settings: Settings,
    /// `None` where the model has no weights to read.
    pub(super) bound: Option<Bound>,
    pub(super) categories: Vec<Row>,
    pub(super) texts: Vec<Text>,
}

/// Where it was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Machine {
    /// The CPU's name, where the system tells.
    pub(super) cpu: Option<String>,
    pub(super) cores: usize,
    pub(super) threads: usize,
    pub(super) isa: String,
    pub(super) os: String,
    pub(super) arch: String,
}

/// How it was measured.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Settings {
    pub(super) temperature: f64,
    pub(super) verify: String,
    pub(super) plans: Vec<String>,
    /// A file, or `built-in`.
    pub(super) prompts: String,
    pub(super) num_prompts: usize,
    /// `None`: as the prompt says.
    pub(super) max_tokens: Option<usize>,
    pub(super) rounds: usize,
    pub(super) context: usize,
    pub(super) kv_type: String,
}

/// What the machine's memory allows: as many tokens a second as passes of one row, if a pass took no longer than a
/// plain read of the target's weights.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Bound {
    pub(super) bytes_per_pass: u64,
    pub(super) read_ms: f64,
    pub(super) tokens_per_second: f64,
}

/// One contestant on the prompts of one category.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) category: String,
    pub(super) draft: String,
    pub(super) plan: String,
    /// Median over texts.
    pub(super) tokens_per_second: f64,
    pub(super) slowest: f64,
    pub(super) fastest: f64,
    /// Median over texts of the rate against plain decoding's of the same prompt and round.
    pub(super) speed_up: f64,
    /// The worst text's.
    pub(super) worst_speed_up: f64,
    pub(super) predicted_speed_up: f64,
    /// Accepted of drafted.
    pub(super) acceptance_rate: f64,
    /// Accepted of those put to the test: the formula's α.
    pub(super) share_standing: f64,
    pub(super) accepted_by_position: Vec<usize>,
    pub(super) drafted_by_position: Vec<usize>,
    /// One over the other.
    pub(super) acceptance_by_position: Vec<f64>,
    pub(super) rounds_by_num_drafted: Vec<usize>,
    pub(super) rounds_off: usize,
    pub(super) probes: usize,
    pub(super) tokens_per_round: f64,
    /// By the formula.
    pub(super) expected_tokens_per_round: f64,
    pub(super) draft_seconds: f64,
    pub(super) verify_seconds: f64,
    pub(super) other_seconds: f64,
    /// A token's share of its round.
    pub(super) token_ms: Percentiles,
    pub(super) round_ms: Percentiles,
    /// Median.
    pub(super) first_token_ms: f64,
    pub(super) texts: usize,
    /// Texts that are plain decoding's, token by token.
    pub(super) identical_texts: usize,
}

/// One text by one contestant.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Text {
    pub(super) prompt: String,
    pub(super) category: String,
    pub(super) draft: String,
    pub(super) round: usize,
    pub(super) tokens: usize,
    pub(super) tokens_per_second: f64,
    pub(super) prompt_tokens: usize,
    pub(super) prompt_tokens_per_second: f64,
}

impl BenchResult {
    pub(super) fn new(
        contestants: &[Contestant],
        prompts: &[BenchPrompt],
        runs: &[Run],
        bound: Option<Bound>,
        args: &BenchArgs,
    ) -> Result<Self> {
        let race = Race { contestants, prompts, runs };
        let rows = categories(prompts)
            .into_iter()
            .flat_map(|category| (0..contestants.len()).map(move |contestant| (category, contestant)))
            .map(|(category, contestant)| race.row(category, contestant));
        Ok(Self {
            engine: "specgen".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            build: if cfg!(debug_assertions) { "debug" } else { "release" }.into(),
            model: contestants[0].engine().name().into(),
            machine: Machine::here(args.threads)?,
            settings: Settings::new(args, prompts.len(), contestants[0].engine().context_len())?,
            bound,
            categories: rows.collect(),
            texts: race.texts(),
        })
    }

    /// The categories in order, each with one row a contestant.
    pub(super) fn by_category(&self) -> impl Iterator<Item = &[Row]> {
        self.categories.chunk_by(|a, b| a.category == b.category)
    }

    /// How tokens were chosen, in words.
    pub(super) fn sampling(&self) -> String {
        match self.settings.temperature {
            0.0 => "greedy".into(),
            temperature => format!("temperature {temperature}, {}", self.settings.verify),
        }
    }
}

impl Machine {
    fn here(threads: usize) -> Result<Self> {
        Ok(Self {
            cpu: specgen::device::cpu_name(),
            cores: std::thread::available_parallelism().map_or(0, usize::from),
            // A team of its own is the one way to know how large the system lets it be.
            threads: Device::open(DeviceSpec::Cpu, threads)?.threads(),
            isa: specgen::device::cpu_isa().into(),
            os: std::env::consts::OS.into(),
            arch: std::env::consts::ARCH.into(),
        })
    }
}

impl Settings {
    fn new(args: &BenchArgs, num_prompts: usize, context: usize) -> Result<Self> {
        Ok(Self {
            // As the user wrote it.
            temperature: rounded(f64::from(args.temperature)),
            verify: args.verify.name().into(),
            plans: args.plans().iter().map(Plan::to_string).collect(),
            prompts: args.prompts.as_ref().map_or("built-in".into(), |file| file.display().to_string()),
            num_prompts,
            max_tokens: args.max_tokens,
            rounds: args.reps(),
            context,
            kv_type: DeviceSpec::Cpu.kv_type(args.kv.kind)?.to_string(),
        })
    }
}

impl Bound {
    /// Of `target` on this machine, now.
    pub(super) fn measure(target: &dyn Model) -> Option<Self> {
        let (bytes_per_pass, read) = (target.info().pass_bytes, read_time(target, NUM_READS));
        (bytes_per_pass > 0 && !read.is_zero()).then(|| Self {
            bytes_per_pass,
            read_ms: rounded(millis(read)),
            tokens_per_second: rounded(1.0 / read.as_secs_f64()),
        })
    }
}

impl Row {
    /// The shares of drafting, verification and the rest in its time, in percent.
    pub(super) fn shares(&self) -> [f64; 3] {
        let times = [self.draft_seconds, self.verify_seconds, self.other_seconds];
        times.map(|time| 100.0 * over(time, times.iter().sum()))
    }

    pub(super) fn has_drafted(&self) -> bool {
        !self.drafted_by_position.is_empty()
    }
}

/// Texts that were timed, and who made them of what.
struct Race<'a> {
    contestants: &'a [Contestant],
    prompts: &'a [BenchPrompt],
    runs: &'a [Run],
}

impl Race<'_> {
    fn runs_of(&self, category: &str, contestant: usize) -> Vec<&Run> {
        let is_here =
            |run: &&Run| run.contestant == contestant && self.prompts[run.prompt].category == category;
        self.runs.iter().filter(is_here).collect()
    }

    fn row(&self, category: &str, contestant: usize) -> Row {
        let plain_runs = self.runs_of(category, 0);
        let plain: BTreeMap<_, _> = plain_runs.iter().map(|run| ((run.prompt, run.rep), run)).collect();
        let plain_of = |run: &Run| plain[&(run.prompt, run.rep)];
        let runs = self.runs_of(category, contestant);
        let rate = |run: &Run| run.stats.tokens_per_second();
        let rates: Vec<f64> = runs.iter().map(|run| rate(run)).collect();
        let ups: Vec<f64> = runs.iter().map(|run| over(rate(run), rate(plain_of(run)))).collect();
        let lowest = |values: &[f64]| rounded(values.iter().copied().fold(f64::INFINITY, f64::min));
        let total: Stats = runs.iter().map(|run| &run.stats).sum();
        let plain_total: Stats = plain_runs.iter().map(|run| &run.stats).sum();
        let by_position = total.accepted_by_position.iter().zip(&total.drafted_by_position);
        let alpha = share_standing(&total.by_round);
        Row {
            category: category.into(),
            draft: self.contestants[contestant].name().into(),
            plan: self.contestants[contestant].engine().plan().to_string(),
            slowest: lowest(&rates),
            fastest: rounded(rates.iter().copied().fold(0.0, f64::max)),
            tokens_per_second: rounded(median(rates)),
            worst_speed_up: lowest(&ups),
            speed_up: rounded(median(ups)),
            predicted_speed_up: rounded(predicted_speed_up(&total, &plain_total)),
            acceptance_rate: rounded(total.acceptance_rate()),
            share_standing: rounded(alpha),
            acceptance_by_position: by_position.map(|(&a, &d)| rounded(over(a as f64, d as f64))).collect(),
            expected_tokens_per_round: rounded(expected_tokens(alpha, &total.rounds_by_num_drafted)),
            tokens_per_round: rounded(total.mean_accepted_len()),
            rounds_off: total.plan.rounds_off,
            probes: total.plan.probes,
            draft_seconds: rounded(total.draft.as_secs_f64()),
            verify_seconds: rounded(total.verify.as_secs_f64()),
            other_seconds: rounded(total.other.as_secs_f64()),
            token_ms: Percentiles::of_tokens(&total.by_round),
            round_ms: Percentiles::of_rounds(&total.by_round),
            first_token_ms: rounded(median(
                runs.iter().map(|run| millis(run.stats.time_to_first_token)).collect(),
            )),
            texts: runs.len(),
            identical_texts: runs.iter().filter(|run| run.tokens == plain_of(run).tokens).count(),
            accepted_by_position: total.accepted_by_position,
            drafted_by_position: total.drafted_by_position,
            rounds_by_num_drafted: total.rounds_by_num_drafted,
        }
    }

    fn texts(&self) -> Vec<Text> {
        let text = |run: &Run| Text {
            prompt: self.prompts[run.prompt].id.clone(),
            category: self.prompts[run.prompt].category.clone(),
            draft: self.contestants[run.contestant].name().into(),
            round: run.rep,
            tokens: run.tokens.len(),
            tokens_per_second: rounded(run.stats.tokens_per_second()),
            prompt_tokens: run.stats.prompt_tokens,
            prompt_tokens_per_second: rounded(run.stats.prompt_tokens_per_second()),
        };
        self.runs.iter().map(text).collect()
    }
}

#[cfg(test)]
pub(super) mod tests {
    #![allow(clippy::unwrap_used)]
    use serde_json::{Value, json};

    use super::*;

    fn row(category: &str, draft: &str, speed_up: f64) -> Value {
        let drafted = if draft == "none" { json!([]) } else { json!([40, 20]) };
        let accepted = if draft == "none" { json!([]) } else { json!([30, 10]) };
        json!({
            "category": category, "draft": draft, "plan": "2",
            "tokens_per_second": 50.0 * speed_up, "slowest": 40.0, "fastest": 60.0 * speed_up,
            "speed_up": speed_up, "worst_speed_up": 0.9 * speed_up, "predicted_speed_up": 1.1 * speed_up,
            "acceptance_rate": 0.667, "share_standing": 0.7,
            "accepted_by_position": accepted, "drafted_by_position": drafted,
            "acceptance_by_position": if draft == "none" { json!([]) } else { json!([0.75, 0.5]) },
            "rounds_by_num_drafted": [0, 20, 20], "rounds_off": 0, "probes": 0,
            "tokens_per_round": 2.0, "expected_tokens_per_round": 2.1,
            "draft_seconds": 0.1, "verify_seconds": 0.8, "other_seconds": 0.1,
            "token_ms": { "p50": 10.0, "p95": 20.5, "p99": 30.0 },
            "round_ms": { "p50": 20.0, "p95": 21.0, "p99": 33.0 },
            "first_token_ms": 12.0, "texts": 2, "identical_texts": 2,
        })
    }

    /// A result of two categories, each prompt decoded twice.
    pub(in crate::bench) fn example() -> BenchResult {
        let mut texts = Vec::new();
        for (category, draft, rate) in [
            ("code", "none", 50.0),
            ("code", "ngram", 100.0),
            ("<talk>", "none", 50.0),
            ("<talk>", "ngram", 45.0),
        ] {
            texts.extend((0..2).map(|round| {
                json!({
                    "prompt": format!("{category} 1"), "category": category, "draft": draft, "round": round,
                    "tokens": 20, "tokens_per_second": rate + f64::from(round),
                    "prompt_tokens": 10, "prompt_tokens_per_second": 500.0,
                })
            }));
        }
        let categories = [
            row("code", "none", 1.0),
            row("code", "ngram", 2.0),
            row("<talk>", "none", 1.0),
            row("<talk>", "ngram", 0.9),
        ];
        let result = json!({
            "engine": "specgen", "version": "0.1.0", "build": "release", "model": "a <model>",
            "machine": {
                "cpu": "A CPU", "cores": 4, "threads": 2, "isa": "avx2", "os": "linux", "arch": "x86_64",
            },
            "settings": {
                "temperature": 0.0, "verify": "rejection", "plans": ["2"], "prompts": "built-in",
                "num_prompts": 2, "max_tokens": 20, "rounds": 2, "context": 8192, "kv_type": "f16",
            },
            "bound": { "bytes_per_pass": 100_000_000, "read_ms": 10.0, "tokens_per_second": 100.0 },
            "categories": categories,
            "texts": texts,
        });
        serde_json::from_value(result).unwrap()
    }

    #[test]
    fn what_is_written_is_read_again() {
        let written = serde_json::to_value(example()).unwrap();
        let read: BenchResult = serde_json::from_value(written.clone()).unwrap();
        assert_eq!(serde_json::to_value(&read).unwrap(), written);
        assert_eq!(read.by_category().map(<[Row]>::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(read.categories[1].shares().map(rounded), [10.0, 80.0, 10.0]);
    }
}
