//! `specgen score`: how likely a model finds a text.

use std::process::ExitCode;

use anyhow::Result;
use serde::Serialize;
use specgen::{DraftSource, Engine, Prompt, SamplingParams, Score, ScoreOptions};

use crate::{
    args::ScoreArgs,
    output::{counted, print, print_json},
    progress, prompt,
    tokens::JsonToken,
};

#[derive(Debug, Serialize)]
struct JsonScore<'a> {
    model: &'a str,
    /// Of the text, the beginning-of-sequence token included where the model wants one.
    tokens: usize,
    scored_tokens: usize,
    /// That the scored tokens stand for.
    scored_bytes: usize,
    total_logprob: f64,
    mean_nll: f64,
    perplexity: f64,
    bits_per_byte: f64,
    context_len: usize,
    windows: usize,
    /// Where there is more than one window.
    #[serde(skip_serializing_if = "Option::is_none")]
    stride: Option<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    logprobs: Option<Vec<JsonToken>>,
}

pub(crate) fn run(args: &ScoreArgs) -> Result<ExitCode> {
    let text = prompt::read_file(&args.file)?;
    let builder = Engine::builder(&args.target)
        .draft(DraftSource::None)
        .num_draft_tokens(0)
        .store(args.run.files.store()?.options().clone());
    let engine = args.run.on(builder).build_with(&*progress::reporter(args.quiet))?;

    let ids = engine.session(SamplingParams::greedy())?.encode(&Prompt::Text(&text))?;
    let stride = args.stride.unwrap_or((engine.context_len() / 2).max(1));
    let is_longer = ids.len() > engine.context_len();
    // A stride out of its range is a mistake however long the text is.
    let wanted = args.stride.or(is_longer.then_some(stride));
    let scoring = engine.score(&ids, &ScoreOptions { num_top: 0, stride: wanted })?;
    let windows = scoring.num_windows();

    let mut score = Score::default();
    let mut logprobs = Vec::new();
    if args.per_token {
        logprobs.extend(ids.first().map(|&id| JsonToken::new(engine.tokenizer(), id, None)));
    }
    let bar = progress::counter("tokens", ids.len() as u64 - 1, args.quiet);
    for (&id, found) in ids[1..].iter().zip(scoring) {
        let found = found?;
        score.add(&found);
        bar.inc(1);
        if args.per_token {
            logprobs.push(JsonToken::ranked(&engine, id, &found));
        }
    }
    bar.finish_and_clear();

    let scored_bytes = text.len() - unscored_bytes(&engine, ids[0]).min(text.len());
    if args.json {
        print_json(&JsonScore {
            model: engine.name(),
            tokens: ids.len(),
            scored_tokens: score.num_tokens,
            scored_bytes,
            total_logprob: score.total_logprob,
            mean_nll: score.mean_nll(),
            perplexity: score.perplexity(),
            bits_per_byte: score.bits_per_byte(scored_bytes),
            context_len: engine.context_len(),
            windows,
            stride: is_longer.then_some(stride),
            logprobs: args.per_token.then_some(logprobs),
        })?;
    } else {
        print(&lines(&score, scored_bytes, &in_windows(windows, engine.context_len(), stride)))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn in_windows(windows: usize, context_len: usize, stride: usize) -> String {
    match windows {
        1 => String::new(),
        _ => format!(", in {windows} windows of {context_len}, a stride of {stride}"),
    }
}

fn lines(score: &Score, scored_bytes: usize, in_windows: &str) -> String {
    format!(
        "scored         {} of {}{in_windows}\nmean NLL       {:.4} nats per token\n\
         perplexity     {:.4}\nbits per byte  {:.4}\n",
        counted(score.num_tokens, "token"),
        counted(scored_bytes, "byte"),
        score.mean_nll(),
        score.perplexity(),
        score.bits_per_byte(scored_bytes),
    )
}

/// Bytes of the text that its first token, which is not scored, stands for: none, where that was put before it.
fn unscored_bytes(engine: &Engine, first: u32) -> usize {
    let tokenizer =
        engine.tokenizer().filter(|tokenizer| !(tokenizer.adds_bos() && tokenizer.bos() == Some(first)));
    tokenizer.and_then(|tokenizer| tokenizer.token_bytes(first)).map_or(0, |bytes| bytes.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_score_in_lines() {
        let score = Score { num_tokens: 4, total_logprob: -8.0 };
        insta::assert_snapshot!(lines(&score, 10, &in_windows(3, 8192, 4096)), @r"
        scored         4 tokens of 10 bytes, in 3 windows of 8192, a stride of 4096
        mean NLL       2.0000 nats per token
        perplexity     7.3891
        bits per byte  1.1542
        ");
        assert_eq!(in_windows(1, 8192, 4096), "");
    }
}
