//! Several samples of one prompt: each under a heading once it is done, or all in one JSON object.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use specgen::{Engine, Samples, sampling::TokenLogprobs};

use crate::{
    interrupt::{self, Answering},
    output::{INTERRUPTED, JsonStats, chain, closing_line, note, print, print_json, replay},
    progress,
    tokens::{JsonToken, json_logprobs, json_prompt_logprobs},
};

/// What is made of the samples.
pub(crate) struct Wanted<'a> {
    pub(crate) engine: &'a Engine,
    /// Who drafts, as the user would write it.
    pub(crate) draft: &'a str,
    pub(crate) num_samples: usize,
    pub(crate) json: bool,
    pub(crate) quiet: bool,
    pub(crate) logprobs: bool,
    pub(crate) prompt_logprobs: bool,
}

#[derive(Debug, Serialize)]
struct JsonSamples<'a> {
    choices: Vec<JsonChoice<'a>>,
    prompt_token_ids: &'a [u32],
    verify: &'a str,
    model: &'a str,
    draft: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<JsonToken>>,
}

#[derive(Debug, Serialize)]
struct JsonChoice<'a> {
    index: usize,
    text: &'a str,
    token_ids: &'a [u32],
    finish_reason: &'a str,
    seed: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<JsonToken>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    stats: JsonStats<'a>,
}

/// What came of a sample.
#[derive(Default)]
struct Sample {
    text: String,
    tokens: Vec<(u32, Option<TokenLogprobs>)>,
    error: Option<String>,
}

/// Runs all samples to their ends or to Ctrl-C.
///
/// # Errors
/// A failing prompt or stdout. What fails for one sample is told with it, and makes the exit code.
pub(crate) fn run(mut samples: Samples<'_>, wanted: &Wanted<'_>) -> Result<ExitCode> {
    let engine = wanted.engine;
    let answering = Answering::begin();
    let mut found: Vec<Sample> = (0..wanted.num_samples).map(|_| Sample::default()).collect();
    let bar = progress::tally("tokens", wanted.quiet);
    let mut num_shown = 0;
    // Chunk by chunk, so that Ctrl-C need not wait for a long prompt.
    while !answering.is_interrupted() && samples.prefill()? {}
    while !answering.is_interrupted() {
        let Some((i, piece)) = samples.next() else { break };
        match piece {
            Ok(piece) => {
                bar.inc(1);
                found[i].text += &piece.text;
                found[i].tokens.push((piece.id, piece.logprobs));
            }
            Err(error) => {
                let error = chain(&error.into());
                // What fails for all ends all, and is told with one of them.
                let is_cut = |j: usize| samples.is_done(j) && samples.finish_reason(j).is_none();
                for (j, sample) in found.iter_mut().enumerate() {
                    if j != i && is_cut(j) {
                        sample.error.get_or_insert_with(|| error.clone());
                    }
                }
                found[i].error = Some(error);
            }
        }
        // In order, as soon as those before it are told too.
        while !wanted.json && num_shown < found.len() && is_whole(&samples, &found, num_shown) {
            bar.suspend(|| show(&samples, &found, num_shown, wanted))?;
            num_shown += 1;
        }
    }
    bar.finish_and_clear();

    if wanted.json {
        let sequences = samples.sequences();
        let choices =
            sequences.iter().zip(&found).enumerate().map(|(index, (sequence, sample))| JsonChoice {
                index,
                text: &sample.text,
                token_ids: &sequence.output()[..sample.tokens.len()],
                finish_reason: ending(&samples, &found, index),
                seed: sequence.seed(),
                logprobs: json_logprobs(engine, &sample.tokens, wanted.logprobs),
                error: sample.error.as_deref(),
                stats: JsonStats::from(sequence.stats()),
            });
        print_json(&JsonSamples {
            choices: choices.collect(),
            prompt_token_ids: samples.prompt_tokens(),
            verify: sequences[0].verification().name(),
            model: engine.name(),
            draft: wanted.draft,
            prompt_logprobs: json_prompt_logprobs(
                engine,
                samples.prompt_tokens(),
                sequences[0].prompt_logprobs(),
                wanted.prompt_logprobs,
            ),
        })?;
    }
    for i in num_shown..samples.sequences().len() {
        match &found[i].error {
            Some(error) if wanted.json => note(format_args!("specgen: error: sample {}: {error}", i + 1)),
            _ if wanted.json => {}
            _ => show(&samples, &found, i, wanted)?,
        }
    }
    let has_failed = found.iter().any(|sample| sample.error.is_some());
    Ok(match (has_failed, answering.is_interrupted()) {
        (true, _) => ExitCode::FAILURE,
        (false, true) => interrupt::exit_code(),
        (false, false) => ExitCode::SUCCESS,
    })
}

/// Whether all of a sample has been taken.
fn is_whole(samples: &Samples<'_>, found: &[Sample], i: usize) -> bool {
    samples.is_done(i)
        && samples.sequences()[i].output().len() == found[i].tokens.len()
        && (samples.finish_reason(i).is_some() || found[i].error.is_some())
}

fn ending(samples: &Samples<'_>, found: &[Sample], i: usize) -> &'static str {
    match samples.finish_reason(i) {
        _ if found[i].error.is_some() => "error",
        Some(reason) if is_whole(samples, found, i) => reason.name(),
        _ => INTERRUPTED,
    }
}

/// A sample under its heading; what it took, or what failed, on stderr.
fn show(samples: &Samples<'_>, found: &[Sample], i: usize, wanted: &Wanted<'_>) -> Result<()> {
    let (sequence, sample) = (&samples.sequences()[i], &found[i]);
    let gap = if i > 0 { "\n" } else { "" };
    let end = if sample.text.is_empty() || sample.text.ends_with('\n') { "" } else { "\n" };
    let heading = format!("--- sample {} of {}, seed {} ---", i + 1, wanted.num_samples, sequence.seed());
    print(&format!("{gap}{heading}\n{}{end}", sample.text))?;
    match &sample.error {
        Some(error) => note(format_args!("specgen: error: sample {}: {error}", i + 1)),
        None if wanted.quiet => {}
        None => {
            let replay = replay(wanted.engine, sequence.seed(), sequence.verification());
            note(format_args!("{}", closing_line(sequence.stats(), replay, ending(samples, found, i))));
        }
    }
    Ok(())
}
