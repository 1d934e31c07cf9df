//! What the user sees: text on stdout as it comes, notes and the closing line on stderr, JSON at the end.

use std::{
    fmt::{Arguments, Write as _},
    fs::OpenOptions,
    io::{self, Write as _},
    path::Path,
    time::Duration,
};

use anyhow::{Context, Result};
use serde::Serialize;
use specgen::{Engine, Generation, Piece, Stats, Verification, sampling::TokenLogprobs};

use crate::{flags, interrupt::Answering, tokens::JsonToken};

/// Whoever read stdout has closed it.
#[derive(Debug)]
pub(crate) struct ClosedOutput;

impl std::fmt::Display for ClosedOutput {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("stdout is closed")
    }
}

impl std::error::Error for ClosedOutput {}

/// Writes `text` to stdout at once.
///
/// # Errors
/// [`ClosedOutput`], or what else keeps it from being written.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Err(ClosedOutput.into()),
        written => written.context("stdout"),
    }
}

/// Writes `value` to stdout as one indented JSON text.
///
/// # Errors
/// As [`print`].
pub(crate) fn print_json(value: &impl Serialize) -> Result<()> {
    let json = serde_json::to_string_pretty(value).context("JSON")?;
    print(&(json + "\n"))
}

/// Whether `file` can be written: asked before anything long. One that is there keeps what it holds for now.
///
/// # Errors
/// One that cannot be written, by name.
pub(crate) fn check_writable(file: &Path) -> Result<()> {
    let opened = OpenOptions::new().create(true).append(true).open(file);
    opened.map(drop).with_context(|| file.display().to_string())
}

/// Writes `text` to `file`.
///
/// # Errors
/// A file that cannot be written, by name.
pub(crate) fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| file.display().to_string())
}

/// Writes a line to stderr. Where that is closed, nobody wants to know.
pub(crate) fn note(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// An error and its causes in one line. The library's errors already tell theirs, which are not said again.
pub(crate) fn chain(error: &anyhow::Error) -> String {
    let worded = |cause: &(dyn std::error::Error + 'static)| match cause.downcast_ref::<specgen::Error>() {
        Some(error) => flags::worded(error),
        None => cause.to_string(),
    };
    let mut line = String::new();
    for cause in error.chain() {
        let cause = worded(cause);
        if line.is_empty() {
            line = cause;
        } else if !line.ends_with(&cause) {
            line = line + ": " + &cause;
        }
    }
    line
}

/// What came of a generation.
pub(crate) struct Answer {
    pub(crate) text: String,
    /// Its ids, with their log-probabilities where those were asked for.
    pub(crate) tokens: Vec<(u32, Option<TokenLogprobs>)>,
    /// Why it ended: `eos`, `stop`, `length` or `interrupted`.
    pub(crate) ending: &'static str,
}

impl Answer {
    pub(crate) fn is_interrupted(&self) -> bool {
        self.ending == INTERRUPTED
    }
}

pub(crate) const INTERRUPTED: &str = "interrupted";

/// Runs `generation` to its end or to Ctrl-C, on stdout piece by piece if `echo` is set, closed by a line end.
///
/// # Errors
/// A failing generation or stdout; the text so far is then already written.
pub(crate) fn stream(generation: &mut Generation<'_>, echo: bool) -> Result<Answer> {
    let answering = Answering::begin();
    let (mut text, mut tokens) = (String::new(), Vec::new());
    let ended = stream_pieces(generation, &answering, echo, |piece| {
        text.push_str(&piece.text);
        tokens.push((piece.id, piece.logprobs));
    });
    if echo
        && !text.is_empty()
        && !text.ends_with('\n')
        && !ended.as_ref().is_err_and(|e| e.is::<ClosedOutput>())
    {
        print("\n")?;
    }
    Ok(Answer { ending: ended?, text, tokens })
}

fn stream_pieces(
    generation: &mut Generation<'_>,
    answering: &Answering,
    echo: bool,
    mut take: impl FnMut(Piece),
) -> Result<&'static str> {
    // Chunk by chunk, so that Ctrl-C need not wait for a long prompt.
    while !answering.is_interrupted() && generation.prefill()? {}
    while !answering.is_interrupted() {
        let Some(piece) = generation.next() else {
            return Ok(generation.finish_reason().map_or(INTERRUPTED, |reason| reason.name()));
        };
        let piece = piece?;
        if echo {
            print(&piece.text)?;
        }
        take(piece);
    }
    Ok(INTERRUPTED)
}

/// The seed and the verification that give a text drawn by them again, where the clock had no part in it.
pub(crate) fn replay(engine: &Engine, seed: u64, verification: Verification) -> Option<(u64, Verification)> {
    let by_time = engine.plan().goes_by_time() && verification != Verification::Coupled;
    (!by_time).then_some((seed, verification))
}

/// [`replay`] of a generation, where randomness played a part.
pub(crate) fn replay_of(generation: &Generation<'_>, engine: &Engine) -> Option<(u64, Verification)> {
    replay(engine, generation.seed(), generation.verification()).filter(|_| generation.is_random())
}

/// A generation in one line: the prompt with its time, the text with its own, the first token from the request on.
/// `replay`: the seed and the verification that give the same text again, where randomness played a part.
pub(crate) fn closing_line(stats: &Stats, replay: Option<(u64, Verification)>, ending: &str) -> String {
    if stats.generated_tokens == 0 {
        return format!("no tokens · {ending}");
    }
    let reused = match stats.reused_tokens {
        0 => String::new(),
        reused => format!(" ({reused} kept)"),
    };
    let mut line = format!(
        "prompt {}{reused} in {} · text {} in {}, {:.1} tok/s · {} of {:.2} tokens",
        counted(stats.prompt_tokens, "token"),
        seconds(stats.prefill),
        counted(stats.generated_tokens, "token"),
        seconds(stats.decode()),
        stats.tokens_per_second(),
        counted(stats.rounds, "round"),
        stats.mean_accepted_len(),
    );
    if stats.drafted > 0 {
        let percent = stats.acceptance_rate() * 100.0;
        let _ = write!(line, " · accepted {} of {} ({percent:.0} %)", stats.accepted, stats.drafted);
    }
    if stats.broken_drafts > 0 {
        let _ = write!(line, " · {} broken off at NaN", counted(stats.broken_drafts, "draft"));
    }
    let _ = write!(line, " · first token after {}", seconds(stats.time_to_first_token));
    if let Some(off) = stats.plan.off {
        let percent = off.acceptance * 100.0;
        let _ = write!(
            line,
            " · drafting off: {percent:.0} % acceptance and {:.2}x the speed expected",
            off.speed_up
        );
    }
    if let Some((seed, verification)) = replay {
        let _ = write!(line, " · --seed {seed} --verify {verification}");
    }
    line + " · " + ending
}

/// A generation as JSON.
#[derive(Debug, Serialize)]
pub(crate) struct JsonAnswer<'a> {
    pub(crate) text: &'a str,
    pub(crate) token_ids: &'a [u32],
    pub(crate) prompt_token_ids: &'a [u32],
    pub(crate) finish_reason: &'a str,
    pub(crate) seed: u64,
    pub(crate) verify: &'a str,
    pub(crate) model: &'a str,
    pub(crate) draft: &'a str,
    pub(crate) plan: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) prompt_logprobs: Option<Vec<JsonToken>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) logprobs: Option<Vec<JsonToken>>,
    pub(crate) stats: JsonStats<'a>,
}

/// [`Stats`] as JSON; times in seconds.
#[derive(Debug, Serialize)]
pub(crate) struct JsonStats<'a> {
    prompt_tokens: usize,
    reused_tokens: usize,
    generated_tokens: usize,
    rounds: usize,
    drafted: usize,
    accepted: usize,
    acceptance_rate: f64,
    mean_accepted_len: f64,
    drafted_by_position: &'a [usize],
    accepted_by_position: &'a [usize],
    rounds_by_num_drafted: &'a [usize],
    rounds_off: usize,
    probes: usize,
    residual_underflows: usize,
    broken_drafts: usize,
    prefill_seconds: f64,
    draft_seconds: f64,
    verify_seconds: f64,
    other_seconds: f64,
    tokens_per_second: f64,
    prompt_tokens_per_second: f64,
    time_to_first_token_seconds: f64,
}

impl<'a> From<&'a Stats> for JsonStats<'a> {
    fn from(stats: &'a Stats) -> Self {
        Self {
            prompt_tokens: stats.prompt_tokens,
            reused_tokens: stats.reused_tokens,
            generated_tokens: stats.generated_tokens,
            rounds: stats.rounds,
            drafted: stats.drafted,
            accepted: stats.accepted,
            acceptance_rate: stats.acceptance_rate(),
            mean_accepted_len: stats.mean_accepted_len(),
            drafted_by_position: &stats.drafted_by_position,
            accepted_by_position: &stats.accepted_by_position,
            rounds_by_num_drafted: &stats.rounds_by_num_drafted,
            rounds_off: stats.plan.rounds_off,
            probes: stats.plan.probes,
            residual_underflows: stats.residual_underflows,
            broken_drafts: stats.broken_drafts,
            prefill_seconds: stats.prefill.as_secs_f64(),
            draft_seconds: stats.draft.as_secs_f64(),
            verify_seconds: stats.verify.as_secs_f64(),
            other_seconds: stats.other.as_secs_f64(),
            tokens_per_second: stats.tokens_per_second(),
            prompt_tokens_per_second: stats.prompt_tokens_per_second(),
            time_to_first_token_seconds: stats.time_to_first_token.as_secs_f64(),
        }
    }
}

/// `1 token`, `2 tokens`.
pub(crate) fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// A time to two or three digits.
pub(crate) fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 1.0 { format!("{seconds:.2} s") } else { format!("{seconds:.1} s") }
}

/// A size to three digits, in the units of disks and downloads (1 kB = 1000 bytes).
pub(crate) fn bytes(size: u64) -> String {
    let (mut value, mut unit) = (size as f64, "bytes");
    for next in ["kB", "MB", "GB", "TB"] {
        if value < 999.5 {
            break;
        }
        (value, unit) = (value / 1000.0, next);
    }
    match value {
        _ if unit == "bytes" => format!("{size} bytes"),
        v if v < 9.995 => format!("{v:.2} {unit}"),
        v if v < 99.95 => format!("{v:.1} {unit}"),
        v => format!("{v:.0} {unit}"),
    }
}

#[cfg(test)]
mod tests {
    use specgen::plan::{Off, PlanStats};

    use super::*;

    #[test]
    fn the_closing_line() {
        let stats = Stats {
            prompt_tokens: 20,
            reused_tokens: 8,
            generated_tokens: 42,
            rounds: 18,
            drafted: 61,
            accepted: 24,
            prefill: Duration::from_millis(100),
            verify: Duration::from_millis(1200),
            time_to_first_token: Duration::from_millis(210),
            ..Stats::default()
        };
        insta::assert_snapshot!(
            closing_line(&stats, Some((12345, Verification::Block)), "eos"),
            @"prompt 20 tokens (8 kept) in 0.10 s · text 42 tokens in 1.2 s, 35.0 tok/s · 18 rounds of 2.33 tokens · accepted 24 of 61 (39 %) · first token after 0.21 s · --seed 12345 --verify block · eos"
        );
        let off = Some(Off { acceptance: 0.124, speed_up: 0.8 });
        let stats = Stats { plan: PlanStats { off, ..PlanStats::default() }, ..stats };
        let line = closing_line(&stats, None, "eos");
        assert!(
            line.ends_with(" · drafting off: 12 % acceptance and 0.80x the speed expected · eos"),
            "{line}"
        );
        let plain = Stats { prompt_tokens: 1, generated_tokens: 1, rounds: 1, ..Stats::default() };
        insta::assert_snapshot!(
            closing_line(&plain, None, "length"),
            @"prompt 1 token in 0.00 s · text 1 token in 0.00 s, 0.0 tok/s · 1 round of 1.00 tokens · first token after 0.00 s · length"
        );
        assert_eq!(
            closing_line(&Stats::default(), Some((1, Verification::Rejection)), "length"),
            "no tokens · length"
        );
    }

    #[test]
    fn a_cause_is_told_once() {
        let io = || io::Error::other("the disk is full");
        let library = specgen::Error::io("model.gguf", io());
        assert_eq!(chain(&library.into()), "model.gguf: the disk is full");
        assert_eq!(chain(&anyhow::Error::new(io()).context("stdout")), "stdout: the disk is full");
    }

    #[test]
    fn sizes_have_three_digits() {
        let cases = [
            (0, "0 bytes"),
            (999, "999 bytes"),
            (1000, "1.00 kB"),
            (98_362_432, "98.4 MB"),
            (999_499, "999 kB"),
            (999_500, "1.00 MB"),
            (1_117_320_768, "1.12 GB"),
            (u64::MAX, "18446744 TB"),
        ];
        for (size, text) in cases {
            assert_eq!(bytes(size), text, "{size}");
        }
    }
}
