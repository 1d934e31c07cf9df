//! Real models: speculative text is plain text, byte for byte, and ends where it ends; pairs that do not belong
//! together are refused.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex};

use specgen::{
    Engine, FinishReason, Prompt, Request, SamplingParams, ScoreOptions, Sequence,
    chat::Message,
    draft::{Drafter, ModelDrafter, NgramDrafter, NoDraft},
    model::{Batch, Model, Output, Rows as SliceRows, Slice},
    models::Progress,
};
use specgen_tests::{finish_together, real};

const PROMPTS: [&str; 8] = [
    "Once upon a time",
    "The days of the week are Monday, Tuesday,",
    "def add(a, b):\n    return a + b\n\ndef sub(a, b):\n",
    "1 2 3 4 5 6 7 8 9 10 11 12",
    "{\"name\": \"Ada\", \"born\": 1815}\n{\"name\": \"Alan\", \"born\": 1912}\n{\"name\":",
    "Il était une fois, dans une forêt lointaine,",
    "| city | country |\n|---|---|\n| Paris | France |\n| Rome | Italy |\n|",
    "Q: What is the capital of Japan?\nA: Tokyo.\nQ: And of Kenya?\nA:",
];

/// The texts that are compared.
#[derive(Clone, Copy)]
struct Grid {
    prompts: &'static [&'static str],
    max_tokens: usize,
}

/// What a run of all tests has time for.
const SMALL: Grid = Grid { prompts: PROMPTS.first_chunk::<4>().unwrap(), max_tokens: 64 };
const WHOLE: Grid = Grid { prompts: &PROMPTS, max_tokens: 256 };

struct Outcome {
    text: String,
    tokens: Vec<u32>,
    finish: Option<FinishReason>,
    acceptance: f64,
}

fn run(engine: &Engine, prompt: &str, max_tokens: usize, stops: &[&str]) -> Outcome {
    run_with(engine, &SamplingParams::greedy(), prompt, max_tokens, stops)
}

fn run_with(
    engine: &Engine,
    params: &SamplingParams,
    prompt: &str,
    max_tokens: usize,
    stops: &[&str],
) -> Outcome {
    let session = engine.session(params.clone()).unwrap();
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

/// The prompts as sequences side by side, each until it ends.
fn run_together(engine: &Engine, Grid { prompts, max_tokens }: Grid) -> Vec<Outcome> {
    let params = SamplingParams::greedy();
    let session = engine.session(params.clone()).unwrap();
    let start = |prompt: &str| {
        let prompt = &session.encode(&Prompt::Text(prompt)).unwrap()[..];
        let request = Request { prompt, params: &params, max_tokens, stops: &[], ignore_eos: false };
        engine.start(&request, &mut None).unwrap()
    };
    let mut sequences: Vec<_> = prompts.iter().copied().map(start).collect();
    finish_together(engine, &mut sequences);
    let outcome = |mut sequence: Sequence| Outcome {
        text: std::iter::from_fn(|| sequence.next_piece()).map(|piece| piece.text).collect(),
        tokens: sequence.output().to_vec(),
        finish: sequence.finish_reason(),
        acceptance: sequence.stats().acceptance_rate(),
    };
    sequences.into_iter().map(outcome).collect()
}

/// Logits of `tokens` fed in passes of `sizes` rows (the last size again and again), as bits.
fn fed(model: &dyn Model, tokens: &[u32], sizes: &[usize], neighbour: Option<&[u32]>) -> Vec<Vec<u32>> {
    let (mut cache, mut out, mut rows) = (model.new_cache(), Output::new(), Vec::new());
    let mut rest = tokens;
    let mut all_sizes = sizes.iter().chain(std::iter::repeat(&sizes[sizes.len() - 1]));
    while let (false, Some(&size)) = (rest.is_empty(), all_sizes.next()) {
        let (now, later) = rest.split_at(size.min(rest.len()));
        let mut others = model.new_cache();
        let slice = |cache, tokens| Slice { cache, tokens, rows: SliceRows::All, tree: None };
        let mut slices = vec![slice(&mut cache, now)];
        slices.extend(neighbour.map(|tokens| slice(&mut others, tokens)));
        model.forward(&mut Batch { slices, taps: &[] }, &mut out).unwrap();
        rows.extend(
            (0..now.len()).map(|row| out.logits(0, row).iter().map(|x| x.to_bits()).collect::<Vec<_>>()),
        );
        rest = later;
    }
    rows
}

/// A row's logits are the same bits in one pass, row by row, in any chunks and beside another text.
fn rows_do_not_depend_on_their_pass(name: &str, engine: &Engine) {
    let session = engine.session(SamplingParams::greedy()).unwrap();
    let tokens = session.encode(&Prompt::Text(&SMALL.prompts.concat())).unwrap();
    let model = &**engine.target();
    let alone = fed(model, &tokens, &[1], None);
    assert!(alone.len() > 33, "{name}: as many rows as the sizes below");
    for sizes in [&[tokens.len()][..], &[2, 3, 4, 5, 6, 7, 8], &[9, 17, 33]] {
        assert!(fed(model, &tokens, sizes, None) == alone, "{name}, passes of {sizes:?}");
    }
    assert!(fed(model, &tokens, &[4], Some(&tokens[5..16])) == alone, "{name}, beside another text");
}

/// Greedy text under every drafter and k, all texts at once, equals plain decoding of each alone. The weights are
/// loaded once: a drafter is exchanged, and the model drafting for itself shares them.
fn identical(name: &str, grid: Grid) -> Option<Engine> {
    let plain = real::engine(name)?.draft("none").num_draft_tokens(0).build().unwrap();
    let want: Vec<_> = grid.prompts.iter().map(|prompt| run(&plain, prompt, grid.max_tokens, &[])).collect();
    rows_do_not_depend_on_their_pass(name, &plain);
    let target = plain.target();
    let drafters: [(&str, Arc<dyn Drafter>); 2] = [
        ("ngram", Arc::new(NgramDrafter::default())),
        ("itself", Arc::new(ModelDrafter::new(target.clone(), target.info().vocab_size))),
    ];
    for (drafter_name, drafter) in drafters {
        for k in [0, 1, 3, 7] {
            let got = run_together(&plain.with_drafter(drafter.clone(), k), grid);
            for ((got, want), prompt) in got.iter().zip(&want).zip(grid.prompts) {
                let what = format!("{name}, {drafter_name}, k = {k}, {prompt:?}");
                assert_eq!(got.tokens, want.tokens, "{what}");
                assert_eq!((&got.text, got.finish), (&want.text, want.finish), "{what}");
                if drafter_name == "itself" && k > 0 {
                    assert_eq!(got.acceptance, 1.0, "{what}: a model agrees with itself");
                }
            }
        }
    }
    Some(plain)
}

#[test]
fn smollm2_speculative_text_is_plain_text() {
    let Some(plain) = identical("smollm2-135m-instruct", SMALL) else { return };
    // A session with a draft of its own weights, as a user would name it.
    let builder = real::engine("smollm2-135m-instruct").unwrap();
    let own = builder.clone().draft("smollm2-135m-instruct").num_draft_tokens(3).build().unwrap();
    let ngram = builder.draft("ngram").num_draft_tokens(7).build().unwrap();
    for &prompt in SMALL.prompts {
        let want = run(&plain, prompt, 64, &[]);
        for engine in [&own, &ngram] {
            let got = run(engine, prompt, 64, &[]);
            assert_eq!(
                (got.text, got.tokens, got.finish),
                (want.text.clone(), want.tokens.clone(), want.finish)
            );
        }
    }
}

/// Sampled text of a seed is one text, whoever drafts it.
#[test]
fn smollm2_seeded_text_is_plain_text() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let plain = builder.draft("none").num_draft_tokens(0).build().unwrap();
    let target = plain.target();
    let drafters: [(&str, Arc<dyn Drafter>); 2] = [
        ("ngram", Arc::new(NgramDrafter::default())),
        ("itself", Arc::new(ModelDrafter::new(target.clone(), target.info().vocab_size))),
    ];
    // The default filters, and a whole vocabulary to draw from.
    let filtered = SamplingParams { temperature: 0.8, seed: Some(17), ..SamplingParams::default() };
    let open = SamplingParams { temperature: 0.8, seed: Some(18), ..SamplingParams::greedy() };
    for (params, prompt) in [&filtered, &open].into_iter().zip(PROMPTS) {
        let want = run_with(&plain, params, prompt, 64, &[]);
        assert_ne!(want.tokens, run(&plain, prompt, 64, &[]).tokens, "sampled text is not the greedy one");
        for (drafter_name, drafter) in &drafters {
            for k in [1, 3, 7] {
                let got = run_with(&plain.with_drafter(drafter.clone(), k), params, prompt, 64, &[]);
                let what = format!("{drafter_name}, k = {k}, {prompt:?}");
                assert_eq!(
                    (&got.tokens, &got.text, got.finish),
                    (&want.tokens, &want.text, want.finish),
                    "{what}"
                );
                if *drafter_name == "itself" {
                    assert_eq!(got.acceptance, 1.0, "{what}: a model draws what it draws");
                }
            }
        }
    }
}

#[test]
fn gemma3_speculative_text_is_plain_text() {
    identical("gemma-3-270m", SMALL);
}

#[test]
fn qwen25_speculative_text_is_plain_text() {
    identical("qwen2.5-coder-1.5b-instruct", SMALL);
}

/// `cargo test --release --workspace --test real -- --ignored`
#[test]
#[ignore = "minutes, in a release build"]
fn the_whole_grid() {
    for name in ["smollm2-135m-instruct", "gemma-3-270m", "qwen2.5-coder-1.5b-instruct"] {
        identical(name, WHOLE);
    }
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

/// Keeps what it is told.
#[derive(Default)]
struct Told(Mutex<Vec<String>>);

impl Progress for Told {
    fn start(&self, _: &str, _: Option<u64>, _: u64) {}
    fn advance(&self, _: u64) {}
    fn message(&self, text: &str) {
        self.0.lock().unwrap().push(text.to_owned());
    }
    fn finish(&self) {}
}

#[test]
fn a_draft_of_another_vocabulary_drafts_what_both_can_say() {
    let Some(builder) = real::engine("smollm2-135m-instruct") else { return };
    let Some(gemma) = real::files("gemma-3-270m") else { return };
    let told = Told::default();
    let engine =
        builder.num_draft_tokens(4).draft(gemma.weights[0].to_str().unwrap()).build_with(&told).unwrap();
    let told = told.0.into_inner().unwrap().join(" ");
    assert!(told.contains("another vocabulary: 46147 of its 262144 tokens are the target's too"), "{told}");
    let plain = engine.with_drafter(Arc::new(NoDraft), 0);
    for prompt in
        ["Once upon a time there was a", "Le café était très", "for (int i = 0; i < n; i++) {\n    "]
    {
        let (got, wanted) = (run(&engine, prompt, 48, &[]), run(&plain, prompt, 48, &[]));
        assert_eq!((&got.tokens, &got.text, got.finish), (&wanted.tokens, &wanted.text, wanted.finish));
        assert!(got.acceptance > 0.0, "{prompt}: nothing was accepted");
    }
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

/// A model that wants a beginning of sequence is lost without one: every window of a long text has it.
#[test]
fn windows_of_a_score_begin_as_texts_do() {
    let Some(builder) = real::engine("gemma-3-270m") else { return };
    let engine = builder.draft("none").context_len(24).build().unwrap();
    let session = engine.session(SamplingParams::greedy()).unwrap();
    let ids = session.encode(&Prompt::Text(&PROMPTS.concat())).unwrap()[..40].to_vec();
    let score = |ids: &[u32], stride| -> Vec<f32> {
        let scoring = engine.score(ids, &ScoreOptions { num_top: 0, stride }).unwrap();
        scoring.map(|token| token.unwrap().logprob).collect()
    };
    // Of 24 places 23 are the text's: 7..30 and 13..36 and 19..40, each after the token that begins all texts.
    let mut wanted = score(&ids[..24], None);
    for (start, scored, end) in [(7, 24, 30), (13, 30, 36), (19, 36, 40)] {
        let window = score(&[&ids[..1], &ids[start..end]].concat(), None);
        wanted.extend(&window[window.len() - (end - scored)..]);
    }
    assert_eq!(score(&ids, Some(6)), wanted);
}
