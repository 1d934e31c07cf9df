//! Texts with and without speculation: every prompt with every drafter in turn, over one loaded target.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use specgen::{DraftSource, Engine, Plan, SamplingParams, Stats, draft::NoDraft, models::Store};

use super::{
    page,
    prompts::{self, BenchPrompt},
    report,
    result::{BenchResult, Bound},
};
use crate::{
    args::{BenchArgs, DraftHead, UsageError},
    output::{check_writable, note, print, print_json, write},
    progress,
};

/// Tokens of the texts nobody looks at, which bring the machine up to speed.
const WARM_UP_TOKENS: usize = 16;

/// A way to decode.
pub(super) struct Contestant {
    /// As the user would write it: `none`, `ngram`, or a model; with its plan where several are compared.
    name: String,
    engine: Engine,
}

/// A text that was timed.
pub(super) struct Run {
    /// Which of the contestants; 0 is plain decoding.
    pub(super) contestant: usize,
    pub(super) prompt: usize,
    pub(super) rep: usize,
    pub(super) tokens: Vec<u32>,
    pub(super) stats: Stats,
}

pub(super) fn run(args: &BenchArgs) -> Result<ExitCode> {
    let prompts = prompts::read(args.prompts.as_deref(), &args.category)?;
    // Before anything long: a page that cannot be written is known now.
    args.html.as_deref().map_or(Ok(()), check_writable)?;
    let store = args.files.store()?;
    let mut results = Vec::new();
    for target in &args.targets {
        let contestants = contestants(target, &store, args)?;
        let bound = Bound::measure(&**contestants[0].engine.target());
        let runs = race(&contestants, &prompts, args)?;
        let result = BenchResult::new(&contestants, &prompts, &runs, bound, args)?;
        if args.json {
            print_json(&result)?;
        } else {
            print(&report::text(&result))?;
        }
        results.push(result);
        // After each target, so that one that fails takes nothing with it.
        if let Some(file) = &args.html {
            write(file, &page::page(&results)?)?;
            note(format_args!("{}: written", file.display()));
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Contestant {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn engine(&self) -> &Engine {
        &self.engine
    }
}

/// Plain decoding, then the drafters asked for, with each plan. They share the target; a model that drafts is loaded once.
fn contestants(target: &str, store: &Store, args: &BenchArgs) -> Result<Vec<Contestant>> {
    let progress = progress::reporter(false);
    let mut names = args.draft.clone();
    // Each once, and plain decoding is there in any case.
    names.retain(|name| DraftSource::from(name.as_str()) != DraftSource::None);
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if args.draft.is_empty() {
        names.push(DraftSource::Auto.to_string());
    }
    let sources: Vec<DraftSource> = names.iter().map(|name| DraftSource::from(name.as_str())).collect();
    // One that is to be found out is found out by loading.
    let mut models = sources.iter().filter(|source| source.is_model() || **source == DraftSource::Auto);
    let model = models.next();
    if let Some(other) = models.find(|other| other.of_model() != model.and_then(DraftSource::of_model)) {
        let first = model.unwrap_or(other);
        return Err(UsageError(format!(
            "--draft {first} and --draft {other}: one run compares one draft model"
        ))
        .into());
    }
    let plans = args.plans();
    note(format_args!("{target}: loading"));
    let mut builder = Engine::builder(target)
        .draft(model.cloned().unwrap_or(DraftSource::Suffix))
        .plan(longest(&plans))
        .threads(args.threads)
        .adapt(args.adapt)
        .store(store.options().clone())
        .overrides(args.files.overrides());
    if let Some(DraftHead(num_tokens)) = args.draft_head {
        builder = builder.draft_head(num_tokens);
    }
    if let Some(context) = args.context {
        builder = builder.context_len(context);
    }
    if let Some(kv_type) = args.kv.kind {
        builder = builder.kv_type(kv_type);
    }
    let loaded = builder.build_with(&*progress)?;
    let plain = Contestant { name: "none".into(), engine: loaded.with_drafter(Arc::new(NoDraft), 0) };
    let mut contestants = vec![plain];
    for source in &sources {
        let source = if *source == DraftSource::Auto { loaded.draft_source() } else { source };
        for plan in &plans {
            let name = if plans.len() > 1 { format!("{source} {plan}") } else { source.to_string() };
            contestants.push(Contestant { name, engine: loaded.with_source(source, plan.clone())? });
        }
    }
    Ok(contestants)
}

/// The plan to load for: by time if any goes by it, since that takes measurements; else the one with the longest drafts.
fn longest(plans: &[Plan]) -> Plan {
    let by_time = plans.iter().find(|plan| plan.goes_by_time());
    let longest = plans.iter().max_by_key(|plan| plan.max_tokens());
    by_time.or(longest).cloned().unwrap_or_default()
}

/// Times every prompt with every contestant, one after the other, so that a machine that slows down slows all.
fn race(contestants: &[Contestant], prompts: &[BenchPrompt], args: &BenchArgs) -> Result<Vec<Run>> {
    for contestant in contestants {
        time(contestant, &prompts[0], WARM_UP_TOKENS, 0, args)?;
    }
    let mut runs = Vec::new();
    for rep in 0..args.reps() {
        for (i, prompt) in prompts.iter().enumerate() {
            note(format_args!(
                "{}: round {} of {}, prompt {} of {} ({})",
                contestants[0].engine.name(),
                rep + 1,
                args.reps(),
                i + 1,
                prompts.len(),
                prompt.id
            ));
            let max_tokens = args.max_tokens.or(prompt.max_tokens).unwrap_or(256);
            for turn in 0..contestants.len() {
                // Everybody is first in turn.
                let contestant = (turn + rep * prompts.len() + i) % contestants.len();
                let (tokens, stats) = time(&contestants[contestant], prompt, max_tokens, rep, args)?;
                runs.push(Run { contestant, prompt: i, rep, tokens, stats });
            }
        }
    }
    Ok(runs)
}

/// One text, from an empty cache.
fn time(
    contestant: &Contestant,
    prompt: &BenchPrompt,
    max_tokens: usize,
    rep: usize,
    args: &BenchArgs,
) -> Result<(Vec<u32>, Stats)> {
    let params = match args.temperature {
        0.0 => SamplingParams::greedy(),
        temperature => SamplingParams {
            temperature,
            seed: Some(rep as u64),
            verify: Some(args.verify),
            ..SamplingParams::default()
        },
    };
    // The same prompt comes again: what a drafter remembers of it would be no measure of anything.
    contestant.engine.drafter().forget();
    let mut session = contestant.engine.session(params)?;
    let mut generation = session.generate(prompt.prompt(), max_tokens)?;
    generation.by_ref().try_for_each(|piece| piece.map(drop))?;
    Ok((generation.tokens().to_vec(), generation.stats().clone()))
}
