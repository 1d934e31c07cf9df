//! Texts with and without speculation: every prompt with every drafter in turn, over one loaded target.

use std::{process::ExitCode, sync::Arc};

use anyhow::Result;
use specgen::{
    DraftSource, Engine, SamplingParams, Stats,
    draft::{Drafter, NgramDrafter, NoDraft},
    models::Store,
};

use super::{
    prompts::{self, BenchPrompt},
    report::Report,
};
use crate::{
    args::{BenchArgs, UsageError},
    output::{note, print, print_json},
    progress,
};

/// Tokens of the texts nobody looks at, which bring the machine up to speed.
const WARM_UP_TOKENS: usize = 16;

/// A way to decode.
pub(super) struct Contestant {
    /// As the user would write it: `none`, `ngram`, or a model.
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
    let store = args.files.store()?;
    for target in &args.targets {
        let contestants = contestants(target, &store, args)?;
        let runs = race(&contestants, &prompts, args)?;
        let report = Report::new(contestants[0].engine.name(), &contestants, &prompts, &runs, args);
        if args.json {
            print_json(&report.json())?;
        } else {
            print(&report.text())?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

impl Contestant {
    pub(super) fn name(&self) -> &str {
        &self.name
    }
}

/// Plain decoding, then the drafters asked for. They share the target; a model that drafts is loaded once.
fn contestants(target: &str, store: &Store, args: &BenchArgs) -> Result<Vec<Contestant>> {
    let progress = progress::reporter(false);
    let mut names = args.draft.clone();
    // Each once, and plain decoding is there in any case.
    names.retain(|name| DraftSource::from(name.as_str()) != DraftSource::None);
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(name.clone()));
    if args.draft.is_empty() {
        names.push(store.resolve(target, &*progress)?.recommended_draft.unwrap_or_else(|| "ngram".into()));
    }
    let mut models = names.iter().filter(|name| DraftSource::from(name.as_str()).is_model());
    let model = models.next();
    if let (Some(first), Some(second)) = (model, models.next()) {
        return Err(UsageError(format!(
            "--draft {first} and --draft {second}: one run compares one draft model"
        ))
        .into());
    }
    note(format_args!("{target}: loading"));
    let mut builder = Engine::builder(target)
        .draft(model.map_or(DraftSource::None, |name| DraftSource::from(name.as_str())))
        .num_draft_tokens(args.num_draft_tokens)
        .threads(args.threads)
        .store(store.options().clone())
        .overrides(args.files.overrides());
    if let Some(context) = args.context {
        builder = builder.context_len(context);
    }
    if let Some(kv_type) = args.kv.kind {
        builder = builder.kv_type(kv_type);
    }
    let loaded = builder.build_with(&*progress)?;
    let plain = Contestant { name: "none".into(), engine: loaded.with_drafter(Arc::new(NoDraft), 0) };
    let drafting = names.iter().map(|name| {
        let engine = match DraftSource::from(name.as_str()) {
            DraftSource::Model(_) | DraftSource::Copy(_) => loaded.clone(),
            DraftSource::Ngram => with(&loaded, NgramDrafter::default(), args),
            DraftSource::None => unreachable!("taken out above"),
        };
        Contestant { name: name.clone(), engine }
    });
    Ok(std::iter::once(plain).chain(drafting).collect())
}

fn with(loaded: &Engine, drafter: impl Drafter + 'static, args: &BenchArgs) -> Engine {
    loaded.with_drafter(Arc::new(drafter), args.num_draft_tokens)
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
    let mut session = contestant.engine.session(params)?;
    let mut generation = session.generate(prompt.prompt(), max_tokens)?;
    generation.by_ref().try_for_each(|piece| piece.map(drop))?;
    Ok((generation.tokens().to_vec(), generation.stats().clone()))
}
