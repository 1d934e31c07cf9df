//! `specgen generate`: one prompt, one text.

use std::process::ExitCode;

use anyhow::{Context as _, Result, bail};
use specgen::{Prompt, Verification, chat::Message};

use crate::{
    args::{GenerateArgs, UsageError},
    interrupt,
    output::{JsonAnswer, JsonStats, check_writable, closing_line, note, print_json, replay_of, stream},
    progress, prompt,
    samples::{self, Wanted},
    tokens::{json_logprobs, json_prompt_logprobs},
    trace::Traced,
};

pub(crate) fn run(args: &GenerateArgs) -> Result<ExitCode> {
    let mut params = args.logprobs.on(args.sampling.params()?);
    let wants_logprobs = params.logprobs.is_some();
    let wants_prompt_logprobs = params.prompt_logprobs.is_some();
    let is_random = params.temperature > 0.0;
    let num_samples = args.num_samples.unwrap_or(1);
    if num_samples > 1 && !is_random {
        bail!(UsageError(format!(
            "--num-samples is {num_samples}, but at temperature 0 all would be the same text; raise --temperature"
        )));
    }
    let text = prompt::read(args.prompt.as_deref(), args.raw)?;
    let prediction = args.prediction.as_deref().map(prompt::read_file).transpose()?;
    // Before anything long: a trace that cannot be written is known now.
    args.trace.as_deref().map_or(Ok(()), check_writable)?;

    if num_samples > 1 {
        // The seed told with each is to give it again, whatever drafts.
        params.verify.get_or_insert(Verification::Coupled);
    }
    let loaded = args.model.load(num_samples, &*progress::reporter(args.text.quiet))?;
    let engine = &loaded.engine;
    let session = engine.session(params)?;
    let mut session = session.with_stops(&args.text.limits.stop).with_ignore_eos(args.ignore_eos);
    if let Some(prediction) = &prediction {
        session = session.with_prediction(prediction).context("--prediction")?;
    }

    let messages = messages(args.text.system.as_deref(), &text);
    let prompt = if args.raw { Prompt::Text(&text) } else { Prompt::Messages(&messages) };
    if num_samples > 1 || (args.json && args.num_samples.is_some()) {
        let samples = session.generate_many(prompt, args.text.limits.max_tokens, num_samples)?;
        let wanted = Wanted {
            engine,
            draft: &loaded.draft,
            num_samples,
            json: args.json,
            quiet: args.text.quiet,
            logprobs: wants_logprobs,
            prompt_logprobs: wants_prompt_logprobs,
        };
        return samples::run(samples, &wanted);
    }
    let mut generation = session.generate(prompt, args.text.limits.max_tokens)?;
    if args.trace.is_some() {
        generation.record_rounds();
    }
    let answer = stream(&mut generation, !args.json);
    if let Some(file) = &args.trace {
        // Of a text that failed too: it may tell why.
        let ending = answer.as_ref().map_or("error", |answer| answer.ending);
        Traced { engine, draft: &loaded.draft, generation: &generation, ending }.write(file)?;
    }
    let answer = answer?;

    let (stats, seed, verification) = (generation.stats(), generation.seed(), generation.verification());
    if args.json {
        print_json(&JsonAnswer {
            text: &answer.text,
            token_ids: generation.tokens(),
            prompt_token_ids: generation.prompt_tokens(),
            finish_reason: answer.ending,
            seed,
            verify: verification.name(),
            model: engine.name(),
            draft: &loaded.draft,
            plan: engine.plan().to_string(),
            prompt_logprobs: json_prompt_logprobs(
                engine,
                generation.prompt_tokens(),
                generation.prompt_logprobs(),
                wants_prompt_logprobs,
            ),
            logprobs: json_logprobs(engine, &answer.tokens, wants_logprobs),
            stats: JsonStats::from(stats),
        })?;
    } else if !args.text.quiet {
        note(format_args!("{}", closing_line(stats, replay_of(&generation, engine), answer.ending)));
    }
    Ok(if answer.is_interrupted() { interrupt::exit_code() } else { ExitCode::SUCCESS })
}

fn messages(system: Option<&str>, prompt: &str) -> Vec<Message> {
    let system = system.map(|text| Message::new("system", text));
    system.into_iter().chain([Message::new("user", prompt)]).collect()
}
