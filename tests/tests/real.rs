//! Real models: speculative text is plain text, byte for byte, and ends where it ends; pairs that do not belong
//! together are refused.
#![allow(clippy::unwrap_used, missing_docs)]

use specgen::{Engine, FinishReason, Prompt, SamplingParams, chat::Message};
use specgen_tests::real;

const PROMPTS: [&str; 4] = [
    "Once upon a time",
    "The days of the week are Monday, Tuesday,",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "1 2 3 4 5 6 7 8 9 10 11 12",
];

struct Outcome {
    text: String,
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    acceptance: f64,
}

fn run(engine: &Engine, prompt: &str, max_tokens: usize, stops: &[&str]) -> Outcome {
    let session = engine.session(SamplingParams::greedy()).unwrap();
    let mut session = session.with_stops(stops.iter().copied());
    let mut generation = session.generate(prompt, max_tokens).unwrap();
    let text = generation.by_ref().map(|piece| piece.unwrap().text).collect();
    Outcome {
        text,
        tokens: generation.tokens().to_vec(),
        finish: generation.finish_reason(),
        acceptance: generation.stats().acceptance_rate(),
    }
}

/// Greedy text under every drafter and k in `ks` equals plain decoding.
fn identical(name: &str, drafts: &[(&str, &[usize])]) {
    let Some(files) = real::files(name) else { return };
    let path = files.weights[0].display().to_string();
    let plain = Engine::builder(&path).draft("none").build().unwrap();
    let want: Vec<_> = PROMPTS.iter().map(|prompt| run(&plain, prompt, 64, &[])).collect();
    for (draft, ks) in drafts {
        let draft = if *draft == "self" { path.as_str() } else { draft };
        for &k in *ks {
            let engine = Engine::builder(&path).draft(draft).num_draft_tokens(k).build().unwrap();
            for (prompt, want) in PROMPTS.iter().zip(&want) {
                let got = run(&engine, prompt, 64, &[]);
                assert_eq!(got.tokens, want.tokens, "{name}, {draft}, k = {k}, {prompt:?}");
                assert_eq!(got.text, want.text, "{name}, {draft}, k = {k}, {prompt:?}");
                if draft == path && k > 0 {
                    assert_eq!(got.acceptance, 1.0, "a model agrees with itself");
                }
            }
        }
    }
}

#[test]
fn smollm2_speculative_text_is_plain_text() {
    identical("smollm2-135m-instruct", &[("ngram", &[0, 1, 3, 7]), ("self", &[1, 3, 7])]);
}

#[test]
fn gemma3_speculative_text_is_plain_text() {
    identical("gemma-3-270m", &[("ngram", &[0, 1, 3, 7]), ("self", &[3])]);
}

#[test]
fn qwen25_speculative_text_is_plain_text() {
    identical("qwen2.5-coder-1.5b-instruct", &[("ngram", &[1, 3, 7]), ("self", &[3])]);
}

/// A stop string may begin and end anywhere in an accepted block, and in the middle of tokens.
#[test]
fn stop_strings_cut_the_same_text_with_and_without_speculation() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let plain = builder.clone().draft("none").build().unwrap();
    let speculative: Vec<_> = ["ngram", "smollm2-135m-instruct"]
        .map(|draft| builder.clone().draft(draft).num_draft_tokens(6).build().unwrap())
        .into();
    let prompt = PROMPTS[1];
    let whole = run(&plain, prompt, 40, &[]);
    let chars: Vec<char> = whole.text.chars().collect();
    for (start, len) in [(0, 1), (3, 2), (10, 5), (17, 9), (30, 3), (41, 12)] {
        let stop: String = chars[start..start + len].iter().collect();
        let want = run(&plain, prompt, 40, &[&stop, "never said"]);
        assert_eq!(want.finish, Some(FinishReason::Stop), "{stop:?}");
        assert_eq!(want.text, whole.text[..whole.text.find(&stop).unwrap()], "{stop:?}");
        assert_eq!(want.tokens, whole.tokens[..want.tokens.len()], "{stop:?}");
        for engine in &speculative {
            let got = run(engine, prompt, 40, &[&stop, "never said"]);
            assert_eq!(
                (got.text, got.tokens, got.finish),
                (want.text.clone(), want.tokens.clone(), want.finish),
                "{stop:?}"
            );
        }
    }
}

#[test]
fn a_conversation_reuses_what_it_shares() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let engine = builder.build().unwrap();
    let mut session = engine.session(SamplingParams::greedy()).unwrap();
    let mut messages = vec![Message::new("user", "Name a colour.")];
    let mut generation = session.generate(&messages[..], 16).unwrap();
    let answer: String = generation.by_ref().map(|piece| piece.unwrap().text).collect();
    assert_eq!(generation.stats().reused_tokens, 0);
    drop(generation);
    assert!(!answer.trim().is_empty());

    messages.push(Message::new("assistant", &answer));
    messages.push(Message::new("user", "Another one."));
    let fresh = {
        let mut other = engine.session(SamplingParams::greedy()).unwrap();
        other.generate(&messages[..], 16).unwrap().map(|piece| piece.unwrap().text).collect::<String>()
    };
    let mut generation = session.generate(&messages[..], 16).unwrap();
    let second: String = generation.by_ref().map(|piece| piece.unwrap().text).collect();
    assert!(generation.stats().reused_tokens > 10, "the first turn is in the cache");
    assert_eq!(second, fresh, "a warm cache changes nothing");
}

#[test]
fn a_draft_of_another_vocabulary_is_refused_by_its_first_differing_id() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let Some(gemma) = real::files("gemma-3-270m") else { return };
    let error = builder.draft(gemma.weights[0].to_str().unwrap()).build().unwrap_err().to_string();
    assert!(error.contains("id 0 is") && error.contains("ngram"), "{error}");
}

#[test]
fn prompts_that_cannot_be_used_are_refused() {
    let Some(builder) = real::engine("gemma-3-270m") else { return };
    let engine = builder.context_len(16).build().unwrap();
    let mut session = engine.session(SamplingParams::greedy()).unwrap();
    let messages = [Message::new("user", "Hello")];
    let error = session.generate(&messages[..], 4).err().unwrap().to_string();
    assert!(error.contains("no chat template"), "{error}");
    let error = session.generate(&"word ".repeat(40), 4).err().unwrap().to_string();
    assert!(error.contains("the context holds 16"), "{error}");
    let error = session.generate(Prompt::Ids(&[]), 4).err().unwrap().to_string();
    assert!(error.contains("empty"), "{error}");
}
