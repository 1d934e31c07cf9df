//! `specgen verify`: shows on the user's own pair that speculation leaves the target's distribution as it is.

mod page;
mod text;
mod vocabulary;

use std::{cell::RefCell, io::IsTerminal, process::ExitCode};

use anyhow::Result;
use indicatif::ProgressBar;
use serde::Serialize;
use specgen::{Engine, Plan, SamplingParams, Verification};
use specgen_proof::{Options, Proof, ProofPrompt, Report, Watch};

use crate::{
    args::{UsageError, VerifyArgs},
    bench::prompts,
    output::{check_writable, note, print, print_json, write},
    progress,
};
use vocabulary::Vocabulary;

/// A pair that is not exact.
const RED: u8 = 1;
/// Where no seed is given: a proof says the same today and tomorrow.
const FIRST_SEED: u64 = 1;
/// Tokens of a draft where no number was asked for.
const NUM_DRAFT_TOKENS: usize = 4;

pub(crate) fn run(args: &VerifyArgs) -> Result<ExitCode> {
    let mut params = args.sampling.params()?;
    if params.grammar.is_some() {
        let problem = "--json-schema, --regex and --grammar cannot be verified: a text of one shape has too few ways to \
                       go; the grammar's own tests are those of the project";
        return Err(UsageError(problem.into()).into());
    }
    let rules = params.verify.map_or_else(|| Verification::ALL.to_vec(), |rule| vec![rule]);
    params.seed.get_or_insert(FIRST_SEED);
    let prompts = prompts::read(args.prompts.as_deref(), &args.category)?;
    // Before anything long: a page that cannot be written is known now.
    args.html.as_deref().map_or(Ok(()), check_writable)?;

    // What is verified must be drafted, whether or not it pays, and in the same lengths every time.
    let plan = Some(args.model.plan.plan()?).filter(|plan| !plan.goes_by_time());
    let plan = plan.unwrap_or(Plan::Fixed(NUM_DRAFT_TOKENS));
    let loaded = args.model.load_by(plan, Proof::NUM_SEQUENCES, &*progress::reporter(false))?;
    let engine = &loaded.engine;
    if engine.num_draft_tokens() == 0 || loaded.draft == "none" {
        let problem = "nothing drafts, so that there is nothing to verify; give a --draft and a -k above 0";
        return Err(UsageError(problem.into()).into());
    }
    let vocabulary = Vocabulary::of(engine)?;
    let (params, prompts) = (spelled(engine, params)?, encoded(engine, &prompts, args.num_prompts)?);
    let options = Options {
        rules,
        tokens: args.max_tokens,
        contexts: args.contexts,
        samples: args.samples,
        fault: args.plant_fault,
        ..Options::default()
    };
    let watch = Bar::default();
    let report = Proof { engine, params: params.clone(), prompts, options: options.clone() }.run(&watch)?;
    watch.clear();

    let verified = Verified {
        verdict: if report.is_green() && vocabulary.holds() { "green" } else { "red" },
        version: env!("CARGO_PKG_VERSION"),
        target: engine.name(),
        draft: &loaded.draft,
        num_draft_tokens: engine.num_draft_tokens(),
        device: &engine.target().info().device,
        isa: specgen::device::cpu_isa(),
        sampling: sampling(&params),
        tokens: options.tokens,
        vocabulary,
        report: &report,
    };
    if let Some(file) = &args.html {
        write(file, &page::page(&verified, engine)?)?;
        note(format_args!("{}: written", file.display()));
    }
    if args.json {
        print_json(&verified)?;
    } else {
        print(&text::text(&verified, engine))?;
    }
    Ok(if verified.verdict == "green" { ExitCode::SUCCESS } else { ExitCode::from(RED) })
}

/// What was verified and what came of it.
#[derive(Serialize)]
struct Verified<'a> {
    verdict: &'static str,
    version: &'static str,
    target: &'a str,
    draft: &'a str,
    num_draft_tokens: usize,
    device: &'a str,
    isa: &'static str,
    sampling: String,
    /// Of each text.
    tokens: usize,
    vocabulary: Vocabulary,
    #[serde(flatten)]
    report: &'a Report,
}

/// The settings that shape the distribution, in words: those that are on.
fn sampling(params: &SamplingParams) -> String {
    let off = SamplingParams::greedy();
    // Without `..`: a setting that is new must be told too.
    let SamplingParams {
        temperature,
        top_n_sigma,
        top_k,
        top_p,
        typical_p,
        min_p,
        xtc,
        mirostat,
        repetition_penalty,
        presence_penalty,
        frequency_penalty,
        penalty_last_n,
        dry,
        logit_bias,
        processors,
        no_repeat_ngram,
        bad_words,
        min_tokens,
        grammar: _,
        seed,
        verify: _,
        logprobs: _,
        prompt_logprobs: _,
    } = params;
    let told = [
        Some(format!("temperature {temperature}")),
        (*top_n_sigma != off.top_n_sigma).then(|| format!("top-n-sigma {top_n_sigma}")),
        (*top_k != off.top_k).then(|| format!("top-k {top_k}")),
        (*top_p != off.top_p).then(|| format!("top-p {top_p}")),
        (*typical_p != off.typical_p).then(|| format!("typical-p {typical_p}")),
        (*min_p != off.min_p).then(|| format!("min-p {min_p}")),
        xtc.as_ref().map(|xtc| format!("XTC {} from {}", xtc.probability, xtc.threshold)),
        mirostat.as_ref().map(|mirostat| format!("mirostat tau {} eta {}", mirostat.tau, mirostat.eta)),
        (*repetition_penalty != off.repetition_penalty)
            .then(|| format!("repetition penalty {repetition_penalty}")),
        (*presence_penalty != off.presence_penalty).then(|| format!("presence penalty {presence_penalty}")),
        (*frequency_penalty != off.frequency_penalty)
            .then(|| format!("frequency penalty {frequency_penalty}")),
        (*penalty_last_n != off.penalty_last_n).then(|| format!("penalties over {penalty_last_n} tokens")),
        dry.as_ref().map(|dry| format!("DRY {}", dry.multiplier)),
        (!logit_bias.is_empty()).then(|| format!("{} biased tokens", logit_bias.len())),
        (!processors.is_empty()).then(|| format!("{} processors", processors.len())),
        (*no_repeat_ngram != off.no_repeat_ngram).then(|| format!("no {no_repeat_ngram}-gram twice")),
        (!bad_words.is_empty()).then(|| format!("{} bad words", bad_words.len())),
        (*min_tokens != off.min_tokens).then(|| format!("at least {min_tokens} tokens")),
        Some(format!("seed {}", seed.unwrap_or(FIRST_SEED))),
    ];
    told.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// The parameters with their phrases as tokens.
fn spelled(engine: &Engine, params: SamplingParams) -> Result<SamplingParams> {
    Ok(engine.session(params)?.params().clone())
}

/// The first `num` prompts, spread over the categories.
fn encoded(engine: &Engine, prompts: &[prompts::BenchPrompt], num: usize) -> Result<Vec<ProofPrompt>> {
    let session = engine.session(SamplingParams::greedy())?;
    let mut by_turn: Vec<(usize, &prompts::BenchPrompt)> = Vec::new();
    for prompt in prompts {
        let turn = by_turn.iter().filter(|(_, other)| other.category == prompt.category).count();
        by_turn.push((turn, prompt));
    }
    by_turn.sort_by_key(|&(turn, _)| turn);
    let chosen = by_turn.into_iter().take(num).map(|(_, prompt)| prompt);
    chosen
        .map(|prompt| Ok(ProofPrompt { name: prompt.id.clone(), ids: session.encode(&prompt.prompt())? }))
        .collect()
}

/// A bar on a terminal, a line a stage elsewhere.
#[derive(Default)]
struct Bar(RefCell<Option<ProgressBar>>);

impl Bar {
    fn clear(&self) {
        if let Some(bar) = self.0.take() {
            bar.finish_and_clear();
        }
    }
}

impl Watch for Bar {
    fn stage(&self, what: &str, total: u64) {
        self.clear();
        if !std::io::stderr().is_terminal() {
            note(format_args!("{what} ..."));
            return;
        }
        self.0.replace(Some(progress::counter(what, total, false)));
    }

    fn advance(&self, steps: u64) {
        if let Some(bar) = &*self.0.borrow() {
            bar.inc(steps);
        }
    }
}
