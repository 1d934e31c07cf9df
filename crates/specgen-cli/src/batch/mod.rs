//! `specgen batch`: a file of requests, several at once in one batch; a finished one makes room for the next.

mod answers;
mod request;

use std::{
    collections::{BTreeMap, VecDeque},
    path::Path,
    process::ExitCode,
    time::Instant,
};

use anyhow::Result;
use serde::Serialize;
use specgen::{Engine, Memory, Request as TextRequest, Rounds, SamplingParams, Sequence, Session};

use self::{answers::Answers, request::Request};
use crate::{
    args::{BatchArgs, RunArgs, UsageError},
    interrupt::{self, Answering},
    output::note,
    progress, prompt,
    tokens::{JsonToken, json_logprobs, json_prompt_logprobs},
};

/// A line of the input that asks for something.
struct Line {
    /// Counted from 1.
    number: usize,
    text: String,
    hash: String,
}

/// A request on its way.
struct Running {
    line: Line,
    custom_id: Option<String>,
    sequence: Sequence,
    is_fed: bool,
    text: String,
    tokens: Vec<(u32, Option<specgen::sampling::TokenLogprobs>)>,
    wants_logprobs: bool,
    wants_prompt_logprobs: bool,
    error: Option<String>,
}

#[derive(Serialize)]
struct JsonRecord<'a> {
    line: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    custom_id: Option<&'a str>,
    hash: &'a str,
    #[serde(flatten)]
    answer: JsonAnswer<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum JsonAnswer<'a> {
    Text {
        text: &'a str,
        token_ids: &'a [u32],
        prompt_tokens: usize,
        finish_reason: &'a str,
        seed: u64,
        verify: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        prompt_logprobs: Option<Vec<JsonToken>>,
        #[serde(skip_serializing_if = "Option::is_none")]
        logprobs: Option<Vec<JsonToken>>,
    },
    Error {
        error: &'a str,
    },
}

pub(crate) fn run(args: &BatchArgs) -> Result<ExitCode> {
    let of_all = args.sampling.params()?;
    if args.output.as_os_str() == "-" || is_same_file(&args.input, &args.output) {
        let problem = format!("{}: answers need a file of their own", args.output.display());
        return Err(UsageError(problem).into());
    }
    let input = prompt::read_file(&args.input)?;
    // Editors on Windows put a byte-order mark before a text.
    let input = input.trim_start_matches('\u{feff}');
    // What a text depends on beside its line.
    let target = args.model.target.as_deref().unwrap_or(specgen::DEFAULT_MODEL);
    let RunArgs { context, device, kv, files, .. } = &args.model.run;
    let rest = format!(
        "{target} {of_all:?} {} {:?} {} {context:?} {device} {kv:?} {:?}",
        args.limits.max_tokens,
        args.limits.stop,
        args.ignore_eos,
        files.overrides()
    );
    let lines: Vec<Line> = (1..)
        .zip(input.lines())
        .filter(|(_, text)| !text.trim().is_empty())
        .map(|(number, text)| Line { number, text: text.to_owned(), hash: hash(&[text, &rest]) })
        .collect();
    let asked: BTreeMap<usize, String> = lines.iter().map(|line| (line.number, line.hash.clone())).collect();
    let (answers, done) = Answers::open(&args.output, &asked)?;
    let num_skipped = done.len();
    let loaded = args.model.load(args.parallel, &*progress::reporter(args.quiet))?;
    let engine = &loaded.engine;
    let queue = lines.into_iter().filter(|line| !done.contains(&line.number)).collect();

    let mut batch = Batch {
        args,
        of_all,
        engine,
        session: engine.session(SamplingParams::greedy())?,
        rounds: engine.rounds(),
        queue,
        running: Vec::new(),
        spare: Vec::new(),
        answers,
        tally: Tally::default(),
        bar: progress::counter("requests", asked.len() as u64, args.quiet),
    };
    batch.bar.set_position(num_skipped as u64);
    batch.bar.reset_eta();
    let (answering, start) = (Answering::begin(), Instant::now());
    let ended = batch.run(&answering);
    batch.bar.finish_and_clear();
    let Batch { answers, tally, queue, running, .. } = batch;
    // What failed to be written whole is better left at the end.
    ended?;
    answers.close()?;
    if !args.quiet {
        let time = start.elapsed().as_secs_f64();
        let left = match queue.len() + running.len() {
            0 => String::new(),
            left => format!(", {left} left: the same command goes on with them"),
        };
        note(format_args!(
            "{} answered, {} failed, {num_skipped} answered before{left} · {} tokens in {time:.1} s, {:.1} tok/s",
            tally.answered,
            tally.failed,
            tally.tokens,
            tally.tokens as f64 / time.max(1e-9),
        ));
    }
    Ok(match (answering.is_interrupted(), tally.failed) {
        (true, _) => interrupt::exit_code(),
        (false, 0) => ExitCode::SUCCESS,
        (false, _) => ExitCode::FAILURE,
    })
}

/// Whether both names lead to one file that is there.
fn is_same_file(a: &str, b: &Path) -> bool {
    match (std::fs::canonicalize(a), std::fs::canonicalize(b)) {
        (Ok(a), Ok(b)) => a == b,
        _ => false,
    }
}

#[derive(Default)]
struct Tally {
    answered: usize,
    failed: usize,
    tokens: usize,
}

struct Batch<'a> {
    args: &'a BatchArgs,
    of_all: SamplingParams,
    engine: &'a Engine,
    /// Turns prompts into ids.
    session: Session,
    rounds: Rounds,
    queue: VecDeque<Line>,
    running: Vec<Running>,
    /// Caches of finished requests: the next may begin as one of them did.
    spare: Vec<Memory>,
    answers: Answers,
    tally: Tally,
    bar: indicatif::ProgressBar,
}

impl Batch<'_> {
    fn run(&mut self, answering: &Answering) -> Result<()> {
        while !answering.is_interrupted() {
            self.admit()?;
            if self.running.is_empty() {
                break;
            }
            self.feed();
            self.step()?;
            self.collect()?;
        }
        Ok(())
    }

    /// Fills the places that are free.
    fn admit(&mut self) -> Result<()> {
        while self.running.len() < self.args.parallel {
            let Some(line) = self.queue.pop_front() else { break };
            let custom_id = request::custom_id(&line.text);
            match Request::parse(&line.text).and_then(|request| self.start(request, line.number)) {
                Ok((sequence, params)) => self.running.push(Running {
                    is_fed: sequence.finish_reason().is_some() && params.prompt_logprobs.is_none(),
                    custom_id,
                    line,
                    sequence,
                    text: String::new(),
                    tokens: Vec::new(),
                    wants_logprobs: params.logprobs.is_some(),
                    wants_prompt_logprobs: params.prompt_logprobs.is_some(),
                    error: None,
                }),
                Err(error) => {
                    let answer = JsonAnswer::Error { error: &error };
                    let custom_id = custom_id.as_deref();
                    self.answers.write(&JsonRecord {
                        line: line.number,
                        custom_id,
                        hash: &line.hash,
                        answer,
                    })?;
                    self.count(true);
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, mut request: Request, number: usize) -> Result<(Sequence, SamplingParams), String> {
        let told = |error: specgen::Error| error.to_string();
        let params = request.params(&self.of_all, number - 1)?;
        let prompt = self.session.encode(&request.start()?.prompt()).map_err(told)?;
        let text = TextRequest {
            prompt: &prompt,
            params: &params,
            max_tokens: request.max_tokens.unwrap_or(self.args.limits.max_tokens),
            stops: &request.stops(&self.args.limits.stop),
            ignore_eos: request.ignore_eos.unwrap_or(self.args.ignore_eos),
        };
        let mut memory = self.spare.pop();
        let sequence = self.engine.start(&text, &mut memory).map_err(told);
        self.spare.extend(memory);
        Ok((sequence?, params))
    }

    /// A chunk of one prompt between two rounds, so that nobody waits for a long one.
    fn feed(&mut self) {
        if let Some(running) = self.running.iter_mut().find(|running| !running.is_fed) {
            match self.rounds.prefill(&mut running.sequence) {
                Ok(more) => running.is_fed = !more,
                Err(error) => running.error = Some(error.to_string()),
            }
        }
    }

    /// A round for all whose prompts are fed.
    fn step(&mut self) -> Result<()> {
        let is_live = |running: &&mut Running| {
            running.is_fed && running.error.is_none() && running.sequence.finish_reason().is_none()
        };
        let (mut sequences, mut errors): (Vec<_>, Vec<_>) =
            self.running.iter_mut().filter(is_live).map(|r| (&mut r.sequence, &mut r.error)).unzip();
        if sequences.is_empty() {
            return Ok(());
        }
        let results = self.rounds.step(&mut sequences)?;
        for (error, result) in errors.iter_mut().zip(results) {
            **error = result.err().map(|error| error.to_string());
        }
        Ok(())
    }

    /// Takes what was said, and writes down what is done.
    fn collect(&mut self) -> Result<()> {
        for i in (0..self.running.len()).rev() {
            let running = &mut self.running[i];
            while let Some(piece) = running.sequence.next_piece() {
                running.text += &piece.text;
                running.tokens.push((piece.id, piece.logprobs));
                self.tally.tokens += 1;
            }
            let has_ended = running.is_fed && running.sequence.finish_reason().is_some();
            if has_ended || running.error.is_some() {
                let running = self.running.swap_remove(i);
                self.answers.write(&running.record(self.engine))?;
                self.count(running.error.is_some());
                self.spare.push(running.sequence.into_memory());
            }
        }
        self.bar.tick();
        let rate = self.tally.tokens as f64 / self.bar.elapsed().as_secs_f64().max(1e-9);
        self.bar.set_message(format!("requests, {rate:.1} tok/s"));
        Ok(())
    }

    fn count(&mut self, has_failed: bool) {
        *(if has_failed { &mut self.tally.failed } else { &mut self.tally.answered }) += 1;
        self.bar.inc(1);
    }
}

impl Running {
    fn record<'a>(&'a self, engine: &Engine) -> JsonRecord<'a> {
        let sequence = &self.sequence;
        let prompt = &sequence.tokens()[..sequence.stats().prompt_tokens];
        let answer = match &self.error {
            Some(error) => JsonAnswer::Error { error },
            None => JsonAnswer::Text {
                text: &self.text,
                token_ids: sequence.output(),
                prompt_tokens: prompt.len(),
                finish_reason: sequence.finish_reason().map_or("", |reason| reason.name()),
                seed: sequence.seed(),
                verify: sequence.verification().name(),
                prompt_logprobs: json_prompt_logprobs(
                    engine,
                    prompt,
                    sequence.prompt_logprobs(),
                    self.wants_prompt_logprobs,
                ),
                logprobs: json_logprobs(engine, &self.tokens, self.wants_logprobs),
            },
        };
        let (line, custom_id) = (self.line.number, self.custom_id.as_deref());
        JsonRecord { line, custom_id, hash: &self.line.hash, answer }
    }
}

/// FNV-1a of 64 bits: the same everywhere and in every version, and nobody's secret.
fn hash(parts: &[&str]) -> String {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0]));
    let hash = bytes.fold(0xCBF2_9CE4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01B3)
    });
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_fnv_1a() {
        assert_eq!(hash(&[]), "cbf29ce484222325");
        // "a\0", by hand from the definition.
        assert_eq!(
            hash(&["a"]),
            format!("{:016x}", 0xAF63_DC4C_8601_EC8Cu64.wrapping_mul(0x0000_0100_0000_01B3))
        );
        assert_ne!(hash(&["ab", "c"]), hash(&["a", "bc"]));
    }
}
