//! One suite for every drafter: greedy text equals plain decoding, sampled text has the target's distribution, and a
//! text ends where plain decoding ends it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use specgen::{
    Engine, Error, FinishReason, Plan, Request, Rounds, SamplingParams, Score, ScoreOptions, Sequence,
    Verification,
    draft::{
        Budget, Draft, DraftRequest, DraftState, DraftVocab, Drafter, ModelDrafter, NgramDrafter, NoDraft,
        Translator,
    },
    model::{Batch, Model, Output, Rows, Slice, ToyModel},
    sampling::{History, Logprobs, LogprobsMode, Sampler, TokenLogprobs, Xtc},
    weights::Format,
};
use specgen_tests::{
    drafters,
    features::{self, Feature},
    finish_together,
    plans::{self, Adversary},
    statistics::chi_square,
    tiny::{self, Tiny},
    vocabularies::{self, Reversed},
};

const KS: [usize; 4] = [0, 1, 3, 7];

/// Fixed lengths, and plans whose lengths vary.
fn every_plan() -> Vec<Plan> {
    KS.into_iter().map(Plan::from).chain(plans::all()).collect()
}

type Target = (&'static str, Arc<dyn Model>, Arc<dyn Model>);

/// Targets with a model that drafts for them.
fn targets() -> Vec<Target> {
    let device = tiny::cpu(1);
    let mut targets: Vec<Target> =
        vec![("toy", Arc::new(ToyModel::new(12, 1, 6.0)), Arc::new(ToyModel::new(12, 2, 6.0)))];
    for tiny in tiny::all() {
        targets.push((tiny.name, tiny.load(&device), tiny.clone().with_seed(99).load(&device)));
    }
    targets
}

#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
    finish: Option<FinishReason>,
}

/// With the log-probabilities that `params` ask for, else with the model's.
fn run(engine: &Engine, params: &SamplingParams, prompt: &[u32], max_tokens: usize) -> Outcome {
    let logprobs = params.logprobs.or(Some(Logprobs { num_top: 2, ..Logprobs::default() }));
    let mut session = engine.session(SamplingParams { logprobs, ..params.clone() }).unwrap();
    let mut generation = session.generate(prompt, max_tokens).unwrap();
    let (ids, logprobs): (Vec<u32>, Vec<_>) = generation
        .by_ref()
        .map(|piece| piece.map(|piece| (piece.id, piece.logprobs.unwrap())).unwrap())
        .unzip();
    assert_eq!(ids, generation.tokens(), "pieces carry every token");
    assert_eq!(generation.stats().generated_tokens, ids.len());
    Outcome { finish: generation.finish_reason(), tokens: ids, logprobs }
}

/// Penalties too see each drafted token's own prefix.
#[test]
fn greedy_text_equals_plain_decoding() {
    let penalised = SamplingParams {
        repetition_penalty: 1.3,
        presence_penalty: 0.4,
        frequency_penalty: 0.6,
        ..SamplingParams::greedy()
    };
    for target in targets() {
        for (name, params) in [("greedy", &SamplingParams::greedy()), ("penalised", &penalised)] {
            assert_text_is_plain(&target, name, params);
        }
    }
}

/// One feature after the other, and all at once, at temperature 0.
#[test]
fn greedy_text_with_every_feature_equals_plain_decoding() {
    for target in targets().iter().filter(|(name, ..)| matches!(*name, "toy" | "llama")) {
        for Feature { name, params, .. } in features::all() {
            assert_text_is_plain(target, name, &SamplingParams { temperature: 0.0, ..params });
        }
    }
}

fn assert_text_is_plain((name, target, other): &Target, params_name: &str, params: &SamplingParams) {
    let end_id = 3;
    let prompt = [5, 1, 4];
    let engine = |drafter, plan: Plan| Engine::from_parts(target.clone(), drafter, plan, &[end_id]);
    let plain = run(&engine(Arc::new(NoDraft), 0.into()), params, &prompt, 60);
    let text = [&prompt[..], &plain.tokens].concat();
    for (drafter_name, drafter) in drafters::all(target, other, &text, end_id) {
        for plan in every_plan() {
            let what = format!("{name}, {params_name}, {drafter_name}, k = {plan}");
            let got = run(&engine(drafter.clone(), plan), params, &prompt, 60);
            assert_eq!(got, plain, "{what}");
        }
    }
}

/// Each token's log-probabilities are those of the row it was decided on: accepted, correction and bonus tokens, under
/// every rule, with the history of its own prefix.
#[test]
fn logprobs_are_those_of_the_row_that_decided() {
    let prompt = [5, 1, 4];
    for (name, target, other) in targets().iter().filter(|(name, ..)| matches!(*name, "toy" | "llama")) {
        for verify in Verification::ALL {
            for (temperature, mode) in [
                (0.0, LogprobsMode::Raw),
                (0.0, LogprobsMode::Processed),
                (1.0, LogprobsMode::Raw),
                (1.0, LogprobsMode::Processed),
            ] {
                let logprobs = Some(Logprobs { num_top: 3, mode });
                let params = SamplingParams {
                    temperature,
                    seed: Some(5),
                    verify: Some(verify),
                    repetition_penalty: 1.3,
                    logprobs,
                    ..SamplingParams::default()
                };
                for (drafter_name, drafter) in drafters::all(target, other, &[5, 1, 4, 2, 7], 3) {
                    for k in KS {
                        let what =
                            format!("{name}, {verify}, {mode} at {temperature}, {drafter_name}, k = {k}");
                        let engine = Engine::from_parts(target.clone(), drafter.clone(), k, &[3]);
                        let got = run(&engine, &params, &prompt, 20);
                        let wanted = logprobs_by_definition(&**target, &params, &prompt, &got.tokens);
                        assert_eq!(got.logprobs, wanted, "{what}");
                        let is_certain = temperature == 0.0 && mode == LogprobsMode::Processed;
                        assert!(!is_certain || got.logprobs.iter().all(|one| one.logprob == 0.0), "{what}");
                    }
                }
            }
        }
    }
}

/// One pass over prompt and output, then every row by itself.
fn logprobs_by_definition(
    target: &dyn Model,
    params: &SamplingParams,
    prompt: &[u32],
    output: &[u32],
) -> Vec<TokenLogprobs> {
    let Logprobs { num_top, mode } = params.logprobs.unwrap();
    let text = [prompt, output].concat();
    let (mut cache, mut out) = (target.new_cache(), Output::new());
    let slice = Slice { cache: &mut cache, tokens: &text, rows: Rows::All, tree: None };
    target.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
    let sampler = Sampler::new(params, target.info().vocab_size).unwrap();
    let mut history = History::new(prompt);
    let of = |(i, &id)| {
        let row = out.logits(0, prompt.len() - 1 + i);
        let logprobs = match mode {
            LogprobsMode::Raw => TokenLogprobs::raw(row, id, num_top, i).unwrap(),
            LogprobsMode::Processed => {
                let p = sampler.distribution(row, &history).unwrap();
                let mut top: Vec<(u32, f32)> = p.support().collect();
                top.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
                let rank = 1 + top.iter().take_while(|&&(other, _)| other != id).count();
                top.truncate(num_top);
                TokenLogprobs { logprob: p.log_prob(id), rank, top }
            }
        };
        history.push(id);
        logprobs
    };
    output.iter().enumerate().map(of).collect()
}

/// A text is scored by the rows of one pass over it, however it is cut into chunks and windows.
#[test]
fn scores_are_those_of_one_pass_over_each_window() {
    let params = SamplingParams {
        logprobs: Some(Logprobs { num_top: 3, ..Logprobs::default() }),
        ..SamplingParams::greedy()
    };
    let found = |engine: &Engine, text: &[u32], stride| -> Result<Vec<TokenLogprobs>, Error> {
        engine.score(text, &ScoreOptions { num_top: 3, stride })?.collect()
    };
    for (name, target, _) in targets() {
        let vocab_size = target.info().vocab_size as u32;
        let text: Vec<u32> = (0..75).map(|i| (i * 7 + i * i / 5) % vocab_size).collect();
        let engine = Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[]);
        let wanted = logprobs_by_definition(&*target, &params, &text[..1], &text[1..]);
        assert_eq!(found(&engine, &text, None).unwrap(), wanted, "{name}");
        let score = engine.score(&text, &ScoreOptions::default()).unwrap();
        let score: Score = score.sum::<Result<_, _>>().unwrap();
        let total: f64 = wanted.iter().map(|one| f64::from(one.logprob)).sum();
        assert_eq!((score.num_tokens, score.total_logprob), (74, total), "{name}");
    }
    // Windows of 40 tokens: 0..40, 15..55, 30..70, 45..75.
    let toy: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0).with_context_len(40));
    let text: Vec<u32> = (0..75).map(|i| (i * 7 + i * i / 5) % 12).collect();
    let wanted: Vec<TokenLogprobs> = [(0, 1, 40), (15, 40, 55), (30, 55, 70), (45, 70, 75)]
        .into_iter()
        .flat_map(|(start, scored, end)| {
            logprobs_by_definition(&*toy, &params, &text[start..scored], &text[scored..end])
        })
        .collect();
    let engine = Engine::from_parts(toy, Arc::new(NoDraft), 0, &[]);
    assert_eq!(engine.score(&text, &ScoreOptions { num_top: 0, stride: Some(15) }).unwrap().num_windows(), 4);
    assert_eq!(found(&engine, &text, Some(15)).unwrap(), wanted);
    let error = found(&engine, &text, None).unwrap_err().to_string();
    assert!(error.contains("75 tokens, but the context holds 40"), "{error}");
}

/// What a prompt's tokens are given is what they were given when they were generated, and what a score gives them.
#[test]
fn prompts_are_given_the_logprobs_their_tokens_were_generated_with() {
    let prompt = [3u32, 1, 4, 1, 5];
    for (name, target, draft) in targets() {
        let drafter = Arc::new(ModelDrafter::new(draft, target.info().vocab_size));
        let engine = Engine::from_parts(target, drafter, 3, &[]);
        let params = SamplingParams {
            logprobs: Some(Logprobs { num_top: 2, ..Logprobs::default() }),
            prompt_logprobs: Some(2),
            seed: Some(4),
            ..SamplingParams::default()
        };
        let mut session = engine.session(params.clone()).unwrap();
        let mut first = session.generate(&prompt[..], 60).unwrap();
        let said: Vec<_> = first.by_ref().map(|piece| piece.unwrap().logprobs.unwrap()).collect();
        let text = [&prompt[..], first.tokens()].concat();
        let of_prompt = first.prompt_logprobs().to_vec();
        assert_eq!(of_prompt.len(), prompt.len() - 1, "{name}");
        drop(first);
        let wanted = [of_prompt, said].concat();

        // As a prompt of its own, whose beginning the cache still holds; to be continued, and not at all.
        for max_tokens in [5, 0] {
            let mut second = session.generate(&text[..], max_tokens).unwrap();
            assert_eq!(second.by_ref().filter(|piece| piece.is_ok()).count(), max_tokens, "{name}");
            assert_eq!(second.prompt_logprobs(), wanted, "{name}, {max_tokens}");
        }
        let options = ScoreOptions { num_top: 2, ..ScoreOptions::default() };
        let scored: Vec<_> = engine.score(&text, &options).unwrap().map(Result::unwrap).collect();
        assert_eq!(scored, wanted, "{name}");
    }
}

/// Nobody pays for log-probabilities that nobody asked for.
#[test]
fn pieces_carry_logprobs_only_where_asked_for() {
    let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), Arc::new(NoDraft), 0, &[]);
    let mut session = engine.session(SamplingParams::greedy()).unwrap();
    assert!(session.generate(&[1u32][..], 5).unwrap().all(|piece| piece.unwrap().logprobs.is_none()));
    let too_many = Some(Logprobs { num_top: 13, ..Logprobs::default() });
    let error =
        engine.session(SamplingParams { logprobs: too_many, ..SamplingParams::greedy() }).unwrap_err();
    assert_eq!(error.to_string(), "logprobs is 13, but the vocabulary has 12 tokens");
}

/// Greedy decoding is the limit of every rule.
#[test]
fn greedy_text_equals_plain_decoding_under_every_rule() {
    let (_, target, other) = targets().swap_remove(0);
    let prompt = [5, 1, 4];
    let plain = Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[3]);
    let plain = run(&plain, &SamplingParams::greedy(), &prompt, 60);
    let text = [&prompt[..], &plain.tokens].concat();
    for verify in Verification::ALL {
        let params = SamplingParams { verify: Some(verify), ..SamplingParams::greedy() };
        for (drafter_name, drafter) in drafters::all(&target, &other, &text, 3) {
            for k in KS {
                let engine = Engine::from_parts(target.clone(), drafter.clone(), k, &[3]);
                let got = run(&engine, &params, &prompt, 60);
                assert_eq!(got, plain, "{verify}, {drafter_name}, k = {k}");
            }
        }
    }
}

/// Coupled: a seed gives the text of plain decoding, whatever drafts and however much, under every sampling parameter.
#[test]
fn seeded_text_equals_plain_decoding() {
    let open = SamplingParams { temperature: 1.0, seed: Some(7), ..SamplingParams::greedy() };
    let settings = [
        ("default", SamplingParams { seed: Some(7), ..SamplingParams::default() }),
        ("open", open.clone()),
        ("hot", SamplingParams { temperature: 3.0, ..open.clone() }),
        ("top-k", SamplingParams { top_k: 5, ..open.clone() }),
        ("top-p", SamplingParams { top_p: 0.8, ..open.clone() }),
        ("min-p", SamplingParams { min_p: 0.1, ..open.clone() }),
        (
            "penalties and bias",
            SamplingParams {
                repetition_penalty: 1.3,
                presence_penalty: 0.4,
                frequency_penalty: 0.6,
                logit_bias: vec![(2, 0.7), (4, f32::NEG_INFINITY)],
                ..open
            },
        ),
    ];
    for (name, target, other) in targets() {
        let end_id = 3;
        let prompt = [5, 1, 4];
        let engine = |drafter, plan: Plan| Engine::from_parts(target.clone(), drafter, plan, &[end_id]);
        for (params_name, params) in &settings {
            assert_eq!(params.verification(), Verification::Coupled);
            let plain = run(&engine(Arc::new(NoDraft), 0.into()), params, &prompt, 40);
            let text = [&prompt[..], &plain.tokens].concat();
            for (drafter_name, drafter) in drafters::all(&target, &other, &text, end_id) {
                for plan in every_plan() {
                    let what = format!("{name}, {params_name}, {drafter_name}, k = {plan}");
                    let got = run(&engine(drafter.clone(), plan), params, &prompt, 40);
                    assert_eq!(got, plain, "{what}");
                }
            }
        }
    }
}

/// A model that drafts for itself is right every time, under every rule: by ratio because p = q, coupled because it draws
/// with the target's noise.
#[test]
fn a_model_agrees_with_itself_under_every_rule() {
    let (_, target, _) = targets().swap_remove(0);
    let itself = Arc::new(ModelDrafter::new(target.clone(), target.info().vocab_size));
    let engine = Engine::from_parts(target, itself, 4, &[]);
    for verify in Verification::ALL {
        let params = SamplingParams {
            temperature: 1.5,
            seed: Some(3),
            verify: Some(verify),
            ..SamplingParams::default()
        };
        let mut session = engine.session(params).unwrap();
        let mut generation = session.generate(&[5u32, 1][..], 200).unwrap();
        assert_eq!(generation.verification(), verify);
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(generation.stats().acceptance_rate(), 1.0, "{verify}");
        assert_eq!(generation.stats().residual_underflows, 0, "{verify}");
    }
}

/// The same where its ids are others: it reads the text in them, and its draws are put back into the target's.
#[test]
fn a_model_agrees_with_itself_in_other_ids() {
    let toy = ToyModel::new(12, 1, 6.0);
    let (target_vocab, draft_vocab) = vocabularies::reversed(12);
    let vocab = DraftVocab::Other(Arc::new(Translator::new(&target_vocab, &draft_vocab)));
    assert_eq!(vocab.num_shared(), 12);
    let itself = Arc::new(ModelDrafter::with_vocab(Arc::new(Reversed(toy.clone())), vocab));
    let engine = Engine::from_parts(Arc::new(toy), itself, 4, &[]);
    for verify in Verification::ALL {
        let params = SamplingParams {
            temperature: 1.5,
            repetition_penalty: 1.2,
            seed: Some(3),
            verify: Some(verify),
            ..SamplingParams::default()
        };
        let mut session = engine.session(params).unwrap();
        let mut generation = session.generate(&[5u32, 1][..], 100).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        assert_eq!(generation.stats().acceptance_rate(), 1.0, "{verify}");
    }
}

/// Drafts with a state that has seen nothing, every time.
struct Forgetful(ModelDrafter);

impl Drafter for Forgetful {
    fn new_state(&self) -> Box<dyn DraftState> {
        self.0.new_state()
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> specgen::Result<Vec<specgen::Result<Draft>>> {
        let mut states: Vec<_> = requests.iter().map(|_| self.new_state()).collect();
        let mut fresh: Vec<_> = requests
            .iter_mut()
            .zip(&mut states)
            .map(|(request, state)| DraftRequest {
                state: state.as_mut(),
                tokens: request.tokens,
                k: request.k,
                sampler: request.sampler,
                history: &mut *request.history,
                noise: request.noise.clone(),
                end_ids: request.end_ids,
                branches: request.branches,
                budget: Budget::default(),
            })
            .collect();
        self.0.draft(&mut fresh)
    }
}

/// What a draft of another vocabulary remembers of the text, ids and keys and values, is what reading it anew gives: its
/// drafts are the same, and so is all that becomes of them.
#[test]
fn a_translated_text_is_remembered_as_it_would_be_read_anew() {
    let device = tiny::cpu(1);
    let target: Arc<dyn Model> = Tiny::named("llama").load(&device);
    let draft = Tiny::named("qwen2").load(&device);
    let vocab = target.info().vocab_size;
    let translator = Translator::new(&vocabularies::of_target(vocab), &vocabularies::of_draft(vocab));
    let translator = Arc::new(translator);
    let drafter = || ModelDrafter::with_vocab(draft.clone(), DraftVocab::Other(translator.clone()));
    let engine = |drafter| Engine::from_parts(target.clone(), drafter, 3, &[]);
    let (remembering, forgetful) = (engine(Arc::new(drafter()) as _), engine(Arc::new(Forgetful(drafter()))));
    let (mut accepted, mut rejected) = (0, 0);
    for seed in 0..20 {
        let params = SamplingParams {
            temperature: 1.0,
            seed: Some(seed),
            verify: Some(Verification::Rejection),
            ..SamplingParams::greedy()
        };
        let text = |engine: &Engine| {
            let mut session = engine.session(params.clone()).unwrap();
            let mut tokens = Vec::new();
            let mut counts = Vec::new();
            // A second text shares the first's beginning only.
            for prompt in [&[5u32, 1, 4, 20, 33, 2][..], &[5, 1, 4, 7]] {
                let mut generation = session.generate(prompt, 40).unwrap();
                generation.by_ref().for_each(|piece| tokens.push(piece.unwrap().id));
                counts.push((generation.stats().drafted, generation.stats().accepted));
            }
            (tokens, counts)
        };
        let (got, wanted) = (text(&remembering), text(&forgetful));
        assert_eq!(got, wanted, "seed {seed}");
        got.1.iter().for_each(|(drafted, stood)| {
            (accepted, rejected) = (accepted + stood, rejected + drafted - stood)
        });
    }
    assert!(accepted > 50 && rejected > 50, "{accepted} accepted, {rejected} rejected");
}

/// A copy of a model in fewer bits reads fewer bytes, drafts for it, and changes nothing; more bits, more accepted.
#[test]
fn a_copy_in_fewer_bits_drafts_for_its_model() {
    let device = tiny::cpu(1);
    for name in ["llama", "llama3 rope, tied", "gemma3"] {
        let tiny = Tiny::named(name).with_field("intermediate_size", 64.into());
        for (file, target, copy) in [
            ("safetensors", tiny.load(&device), Tiny::load_copy as fn(&Tiny, &_, _) -> Arc<dyn Model>),
            ("GGUF", tiny.load_gguf(&device), Tiny::load_gguf_copy),
        ] {
            let plain = Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[]);
            let plain = run(&plain, &SamplingParams::greedy(), &[5, 1, 4], 100).tokens;
            let acceptance = [Format::Q4_0, Format::Q8_0].map(|format| {
                let copy = copy(&tiny, &device, format);
                let [before, after] = [&target, &copy].map(|model| model.info().pass_bytes);
                assert!(after * 3 < before, "{name}, {file}, {format:?}: {after} of {before} bytes a pass");
                let drafter = Arc::new(ModelDrafter::new(copy, target.info().vocab_size));
                let engine = Engine::from_parts(target.clone(), drafter, 3, &[]);
                let mut session = engine.session(SamplingParams::greedy()).unwrap();
                let mut generation = session.generate(&[5u32, 1, 4][..], 100).unwrap();
                generation.by_ref().for_each(|piece| drop(piece.unwrap()));
                assert_eq!(generation.tokens(), plain, "{name}, {file}, {format:?}");
                generation.stats().acceptance_rate()
            });
            assert!(acceptance[0] > 0.1 && acceptance[1] > 0.6, "{name}, {file}: {acceptance:?}");
            assert!(acceptance[1] >= acceptance[0], "{name}, {file}: {acceptance:?}");
        }
    }
}

#[test]
fn a_perfect_draft_is_always_accepted_and_a_wrong_one_never() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0));
    let prompt = [5u32, 1];
    let plain = run(
        &Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[]),
        &SamplingParams::greedy(),
        &prompt,
        41,
    );
    let text = [&prompt[..], &plain.tokens].concat();
    for (name, drafter) in drafters::all(&target, &target, &text, 0) {
        let engine = Engine::from_parts(target.clone(), drafter, 4, &[]);
        let mut session = engine.session(SamplingParams::greedy()).unwrap();
        let mut generation = session.generate(&prompt[..], 41).unwrap();
        generation.by_ref().for_each(|piece| drop(piece.unwrap()));
        let stats = generation.stats();
        match name {
            "oracle" | "the target itself" | "another model" => {
                assert_eq!(stats.acceptance_rate(), 1.0, "{name}");
                assert_eq!(stats.rounds, 9, "{name}: 8 full rounds of 5 and one of 1");
            }
            "always wrong" => assert_eq!(stats.accepted, 0),
            _ => {}
        }
    }
}

/// Wherever a text ends, it ends at the token where plain decoding ends it, and the session goes on from there.
#[test]
fn texts_end_where_plain_decoding_ends_them() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0).with_context_len(40));
    let params = SamplingParams::greedy();
    let prompt = [5u32, 1, 4];
    let everything =
        run(&Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[]), &params, &prompt, 100);
    assert_eq!(everything.tokens.len(), 37, "the context is full");
    assert_eq!(everything.finish, Some(FinishReason::Length));
    let text = [&prompt[..], &everything.tokens].concat();
    for end_id in 0..12 {
        for max_tokens in [0, 1, 2, 5, 6, 7, 37, 38] {
            let plain = run(
                &Engine::from_parts(target.clone(), Arc::new(NoDraft), 0, &[end_id]),
                &params,
                &prompt,
                max_tokens,
            );
            for (name, drafter) in drafters::all(&target, &target, &text, end_id) {
                for k in [1, 4, 9] {
                    let engine = Engine::from_parts(target.clone(), drafter.clone(), k, &[end_id]);
                    let what = format!("{name}, k = {k}, end {end_id}, max {max_tokens}");
                    let got = run(&engine, &params, &prompt, max_tokens);
                    assert_eq!(got, plain, "{what}");
                    assert_state_is_restored(&engine, &prompt, &plain.tokens, max_tokens, &what);
                }
            }
        }
    }
}

/// After a text, the cache holds all of it but the pending token, and nothing else.
fn assert_state_is_restored(engine: &Engine, prompt: &[u32], output: &[u32], max_tokens: usize, what: &str) {
    let mut session = engine.session(SamplingParams::greedy()).unwrap();
    session.generate(prompt, max_tokens).unwrap().for_each(|piece| drop(piece.unwrap()));
    let whole = [prompt, output].concat();
    if whole.len() >= 40 {
        return;
    }
    let next = [&whole[..], &[0]].concat();
    let mut generation = session.generate(&next[..], 1).unwrap();
    generation.by_ref().for_each(|piece| drop(piece.unwrap()));
    // Where nothing was generated, nothing was fed.
    let held = if output.is_empty() { 0 } else { whole.len() - 1 };
    assert_eq!(generation.stats().reused_tokens, held, "{what}");
}

fn sequence(engine: &Engine, prompt: &[u32], params: &SamplingParams) -> Sequence {
    let request = Request { prompt, params, max_tokens: 30, stops: &[], ignore_eos: false };
    engine.start(&request, &mut None).unwrap()
}

/// A round of one.
fn step(rounds: &mut Rounds, sequence: &mut Sequence) -> specgen::Result<()> {
    rounds.step(&mut [sequence])?.remove(0)
}

/// A sequence says the same alone and among others, greedy or sampled by seed.
#[test]
fn neighbours_in_a_batch_change_nothing() {
    for (name, target, other) in targets() {
        for (drafter_name, drafter) in drafters::all(&target, &other, &[5, 1, 4, 2, 7], 3) {
            let engine = Engine::from_parts(target.clone(), drafter, 3, &[3]);
            let prompts: [&[u32]; 4] = [&[5, 1, 4], &[2], &[7, 7, 7, 7, 7, 7, 7], &[1, 0]];
            let sampled = |seed, temperature, verify| SamplingParams {
                seed: Some(seed),
                temperature,
                repetition_penalty: 1.3,
                verify: Some(verify),
                ..SamplingParams::default()
            };
            // A ratio test draws anew where drafts differ.
            let by_ratio =
                |verify| if drafters::learns(drafter_name) { Verification::Coupled } else { verify };
            let params = [
                SamplingParams::greedy(),
                sampled(11, 1.0, by_ratio(Verification::Rejection)),
                sampled(12, 0.8, Verification::Coupled),
                sampled(13, 1.2, by_ratio(Verification::Block)),
            ];
            let alone: Vec<_> = prompts
                .iter()
                .zip(&params)
                .map(|(prompt, params)| {
                    engine.drafter().forget();
                    run(&engine, params, prompt, 30).tokens
                })
                .collect();

            engine.drafter().forget();
            let mut sequences: Vec<_> = prompts
                .iter()
                .zip(&params)
                .map(|(prompt, params)| sequence(&engine, prompt, params))
                .collect();
            finish_together(&engine, &mut sequences);
            for (sequence, alone) in sequences.iter().zip(&alone) {
                assert_eq!(sequence.output(), &alone[..], "{name}, {drafter_name}");
            }
        }
    }
}

/// The law of the first two output tokens, by enumeration: `[vocab * vocab]`. A coin of XTC is taken both ways.
fn law_of_two(target: &dyn Model, params: &SamplingParams, prompt: &[u32]) -> Vec<f64> {
    let vocab = target.info().vocab_size;
    let coins: Vec<(f64, Sampler)> = match params.xtc {
        None => vec![(1.0, params.xtc)],
        Some(xtc) => {
            let probability = f64::from(xtc.probability);
            vec![(probability, Some(Xtc { probability: 1.0, ..xtc })), (1.0 - probability, None)]
        }
    }
    .into_iter()
    .map(|(chance, xtc)| {
        let sampler = Sampler::new(&SamplingParams { xtc, ..params.clone() }, vocab).unwrap();
        (chance, sampler.with_end_ids(&[END_OF_SAMPLED]))
    })
    .collect();
    let logits = |history: &History| {
        let (mut cache, mut out) = (target.new_cache(), Output::new());
        let slice = Slice { cache: &mut cache, tokens: history.tokens(), rows: Rows::Last(1), tree: None };
        target.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
        out.logits(0, 0).to_vec()
    };
    let start = History::new(prompt);
    let row = logits(&start);
    let mut law = vec![0.0; vocab * vocab];
    for (chance, sampler) in &coins {
        let p = sampler.distribution(&row, &start).unwrap();
        for (first, log_prob) in p.support() {
            let mut history = start.clone();
            sampler.push(&mut history, first, &row);
            let (row, reached) = (logits(&history), chance * f64::from(log_prob).exp());
            for (chance, sampler) in &coins {
                for (second, log_prob) in sampler.distribution(&row, &history).unwrap().support() {
                    law[first as usize * vocab + second as usize] +=
                        reached * chance * f64::from(log_prob).exp();
                }
            }
        }
    }
    law
}

fn assert_sampled_text_follows(
    target: &Arc<dyn Model>,
    name: &str,
    drafter: &Arc<dyn Drafter>,
    draws: usize,
) {
    let plain =
        SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0, ..SamplingParams::default() };
    let shaped = SamplingParams {
        temperature: 0.7,
        top_k: 7,
        top_p: 0.9,
        min_p: 0.02,
        repetition_penalty: 1.2,
        presence_penalty: 0.5,
        frequency_penalty: 0.3,
        logit_bias: vec![(2, 0.7), (4, f32::NEG_INFINITY)],
        ..SamplingParams::default()
    };
    for (what, params) in [("plain", plain), ("shaped", shaped)] {
        let adversary = || Plan::Custom(Arc::new(Adversary { max_tokens: 3 }));
        let cases = |verify| [(verify, 1.into()), (verify, 3.into()), (verify, adversary())];
        for (verify, plan) in Verification::ALL.into_iter().flat_map(cases) {
            let params = SamplingParams { verify: Some(verify), ..params.clone() };
            let what = format!("{name}, {what}, {verify}, k = {plan}");
            assert_two_tokens_follow(target, drafter, plan, &params, draws, &what);
        }
    }
}

/// Ends a text in the tests of sampled text, if the parameters make much of it.
const END_OF_SAMPLED: u32 = 0;

fn assert_two_tokens_follow(
    target: &Arc<dyn Model>,
    drafter: &Arc<dyn Drafter>,
    plan: impl Into<Plan>,
    params: &SamplingParams,
    draws: usize,
    what: &str,
) {
    let vocab = target.info().vocab_size;
    let prompt = [5u32, 1, 4];
    let law = law_of_two(target.as_ref(), params, &prompt);
    let end_ids: &[u32] = if params.min_tokens > 0 { &[END_OF_SAMPLED] } else { &[] };
    let engine = Engine::from_parts(target.clone(), drafter.clone(), plan, end_ids);
    let mut counts = vec![0; vocab * vocab];
    for seed in 0..draws as u64 {
        let params = SamplingParams { seed: Some(seed), ..params.clone() };
        // Five tokens are decoded so that a round with a whole draft decides the two that are counted.
        let tokens = run(&engine, &params, &prompt, 5).tokens;
        counts[tokens[0] as usize * vocab + tokens[1] as usize] += 1;
    }
    let (statistic, limit) = chi_square(&counts, &law);
    assert!(statistic < limit, "{what}: chi-square {statistic:.1}, limit {limit:.1}");
}

#[test]
fn sampled_text_with_every_feature_has_the_targets_distribution() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(8, 1, 5.0));
    let other: Arc<dyn Model> = Arc::new(ToyModel::new(8, 2, 5.0));
    for (drafter_name, drafter) in drafters::all(&target, &other, &[5, 1, 4, 2, 7, 0, 3], 6) {
        for Feature { name, params, .. } in features::all() {
            for (verify, k) in Verification::ALL.into_iter().flat_map(|verify| [(verify, 1), (verify, 3)]) {
                let params = SamplingParams { verify: Some(verify), ..params.clone() };
                let what = format!("{drafter_name}, {name}, {verify}, k = {k}");
                assert_two_tokens_follow(&target, &drafter, k, &params, 4_000, &what);
            }
        }
    }
}

#[test]
fn sampled_text_has_the_targets_distribution() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(8, 1, 5.0));
    let other: Arc<dyn Model> = Arc::new(ToyModel::new(8, 2, 5.0));
    for (name, drafter) in drafters::all(&target, &other, &[5, 1, 4, 2, 7, 0, 3], 6) {
        assert_sampled_text_follows(&target, name, &drafter, 20_000);
    }
}

/// The same through a real transformer with real caches.
#[test]
fn sampled_text_of_a_transformer_has_its_distribution() {
    let small = |seed| {
        let tiny = Tiny::named("llama").with_seed(seed).with_field("vocab_size", 8.into());
        tiny.with_field("num_hidden_layers", 1.into()).load(&tiny::cpu(1))
    };
    let (target, other) = (small(1), small(2));
    for (name, drafter) in drafters::all(&target, &other, &[5, 1, 4, 2, 7, 0, 3], 6) {
        if matches!(name, "another model" | "uniform draws" | "ngram") {
            assert_sampled_text_follows(&target, name, &drafter, 4_000);
        }
    }
}

#[test]
fn an_unseeded_run_reports_a_seed_that_replays_it() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 3.0));
    let engine = Engine::from_parts(target, Arc::new(specgen::draft::NgramDrafter::default()), 3, &[]);
    let params = SamplingParams { temperature: 1.0, ..SamplingParams::default() };
    let mut session = engine.session(params.clone()).unwrap();
    let mut generation = session.generate(&[1u32, 2][..], 30).unwrap();
    let first: Vec<u32> = generation.by_ref().map(|piece| piece.unwrap().id).collect();
    let (seed, verify) = (generation.seed(), generation.verification());
    assert_eq!(verify, Verification::Rejection);
    let params = SamplingParams { seed: Some(seed), verify: Some(verify), ..params };
    assert_eq!(first, run(&engine, &params, &[1, 2], 30).tokens);
    let other = run(&engine, &SamplingParams { seed: Some(seed + 1), ..params }, &[1, 2], 30);
    assert_ne!(first, other.tokens);
}

/// Fails the `at`-th of its passes, once: with an error, or with NaN logits.
struct FailsOnce {
    inner: ToyModel,
    at: usize,
    nan: bool,
    passes: AtomicUsize,
}

impl Model for FailsOnce {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> specgen::Result<()> {
        let pass = self.passes.fetch_add(1, Ordering::Relaxed);
        if pass != self.at {
            return self.inner.forward(batch, out);
        }
        if !self.nan {
            return Err(Error::Unsupported("the device went away".into()));
        }
        self.inner.forward(batch, out)?;
        let rows: usize = (0..batch.slices.len()).map(|slice| out.num_rows(slice)).sum();
        out.begin(batch, self.inner.info().vocab_size);
        (0..rows).for_each(|_| out.push_row(&[f32::NAN; 12]));
        Ok(())
    }

    fn new_cache(&self) -> specgen::cache::KvCache {
        self.inner.new_cache()
    }

    fn info(&self) -> &specgen::model::ModelInfo {
        self.inner.info()
    }
}

/// A round that failed leaves the sequence as it was: the next try goes on with the plain text.
#[test]
fn a_failed_round_can_be_tried_again() {
    let prompt = [5u32, 1, 4];
    let toy = || ToyModel::new(12, 1, 6.0);
    for verify in Verification::ALL {
        let params = SamplingParams {
            seed: Some(3),
            temperature: 1.0,
            verify: Some(verify),
            ..SamplingParams::default()
        };
        let plain = run(
            &Engine::from_parts(Arc::new(toy()), Arc::new(NgramDrafter::default()), 3, &[]),
            &params,
            &prompt,
            30,
        );
        for nan in [false, true] {
            for at in [0, 1, 2, 7] {
                // A prompt's pass asks for no logits, so there is nothing to be NaN.
                if nan && at == 0 {
                    continue;
                }
                let target = Arc::new(FailsOnce { inner: toy(), at, nan, passes: AtomicUsize::new(0) });
                let engine = Engine::from_parts(target, Arc::new(NgramDrafter::default()), 3, &[]);
                let request = Request {
                    prompt: &prompt,
                    params: &params,
                    max_tokens: 30,
                    stops: &[],
                    ignore_eos: false,
                };
                let mut sequence = engine.start(&request, &mut None).unwrap();
                let mut rounds = engine.rounds();
                let mut failures = Vec::new();
                while sequence.finish_reason().is_none() {
                    let result = match rounds.prefill(&mut sequence) {
                        Ok(true) => continue,
                        Ok(false) => step(&mut rounds, &mut sequence),
                        Err(error) => Err(error),
                    };
                    failures.extend(result.err().map(|error| error.to_string()));
                }
                assert_eq!(sequence.output(), plain.tokens, "{verify}, pass {at}, NaN {nan}");
                let [failure] = &failures[..] else { panic!("one pass fails, not {failures:?}") };
                let wanted = if nan { "logits of step" } else { "device went away" };
                assert!(failure.contains(wanted), "{failure}");
            }
        }
    }
}

/// Drafts for a k.
type Drafts = fn(usize) -> Vec<Draft>;

/// Breaks a drafter's contract in one way.
struct Broken(Drafts);

impl Drafter for Broken {
    fn new_state(&self) -> Box<dyn specgen::draft::DraftState> {
        Box::new(specgen::draft::NoState)
    }

    fn draft(&self, requests: &mut [DraftRequest<'_>]) -> specgen::Result<Vec<specgen::Result<Draft>>> {
        Ok((self.0)(requests[0].k).into_iter().map(Ok).collect())
    }
}

#[test]
fn a_drafter_that_breaks_its_contract_is_named() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0));
    let cases: [(Drafts, &str); 4] = [
        (|_| Vec::new(), "0 drafts for 1 requests"),
        (|k| vec![Draft::deterministic(vec![1; k + 1])], "at most 3 were wanted"),
        (|_| vec![Draft::deterministic(vec![12])], "token 12"),
        (|_| vec![Draft { tokens: vec![1], ..Draft::default() }], "1 tokens but 0 distributions"),
    ];
    for (draft, wanted) in cases {
        let engine = Engine::from_parts(target.clone(), Arc::new(Broken(draft)), 3, &[]);
        let mut session = engine.session(SamplingParams::greedy()).unwrap();
        let error = session.generate(&[1u32, 2][..], 9).unwrap().find_map(|piece| piece.err()).unwrap();
        assert!(error.to_string().contains(wanted), "{error}");
    }
}

#[test]
fn a_round_refuses_sequences_that_are_not_ready() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0));
    let engine = Engine::from_parts(target, Arc::new(NoDraft), 0, &[]);
    let mut rounds = engine.rounds();
    let mut fresh = sequence(&engine, &[1, 2, 3], &SamplingParams::greedy());
    let error = rounds.step(&mut [&mut fresh]).unwrap_err().to_string();
    assert!(error.contains("before its prompt was fed"), "{error}");
    while rounds.prefill(&mut fresh).unwrap() {}
    while fresh.finish_reason().is_none() {
        step(&mut rounds, &mut fresh).unwrap();
    }
    let error = rounds.step(&mut [&mut fresh]).unwrap_err().to_string();
    assert!(error.contains("has ended"), "{error}");
}

/// Caches mean something to the pair that made them only: a text starts anew elsewhere, and a sequence stays at home.
#[test]
fn what_one_engine_made_another_does_not_read() {
    let target: Arc<dyn Model> = Arc::new(ToyModel::new(12, 1, 6.0));
    let params = SamplingParams::greedy();
    let ngram = Engine::from_parts(target.clone(), Arc::new(NgramDrafter::default()), 3, &[]);
    let model = ngram.with_drafter(Arc::new(ModelDrafter::new(target, 12)), 3);
    let prompt = [5u32, 1, 4];
    let plain = run(&ngram, &params, &prompt, 30).tokens;
    let request = Request { prompt: &prompt, params: &params, max_tokens: 30, stops: &[], ignore_eos: false };
    let finish = |engine: &Engine, mut sequence: Sequence| {
        let mut rounds = engine.rounds();
        while rounds.prefill(&mut sequence).unwrap() {}
        while sequence.finish_reason().is_none() {
            step(&mut rounds, &mut sequence).unwrap();
        }
        assert_eq!(sequence.output(), plain);
        sequence
    };
    let first = finish(&ngram, ngram.start(&request, &mut None).unwrap());
    let mut memory = Some(first.into_memory());
    let second = finish(&model, model.start(&request, &mut memory).unwrap());
    assert_eq!(second.stats().reused_tokens, 0);
    let mut memory = Some(second.into_memory());
    let mut third = model.start(&request, &mut memory).unwrap();
    let mut strange = ngram.rounds();
    for error in [strange.prefill(&mut third).unwrap_err(), strange.step(&mut [&mut third]).unwrap_err()] {
        assert!(error.to_string().contains("another engine"), "{error}");
    }
    assert_eq!(finish(&model, third).stats().reused_tokens, 2);
}
