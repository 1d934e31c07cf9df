//! Several samples of one prompt: each is the text that its seed gives alone, and the prompt is fed once for all.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{Arc, Mutex};

use specgen::{
    Engine, Error, FinishReason, Request, Result, SamplingParams, Sequence, Verification,
    cache::KvCache,
    draft::{Drafter, ModelDrafter, NgramDrafter},
    model::{Batch, Model, ModelInfo, Output, Rows, Slice, ToyModel},
    rng::sample_seed,
    sampling::{Logprobs, TokenLogprobs},
};
use specgen_tests::{drafters, features, tiny};

const NUM_SAMPLES: usize = 3;

/// A target's name, the target, and a model that drafts for it.
type Target = (&'static str, Arc<dyn Model>, Arc<dyn Model>);

#[derive(Debug, PartialEq)]
struct Outcome {
    tokens: Vec<u32>,
    logprobs: Vec<Option<TokenLogprobs>>,
    finish: Option<FinishReason>,
    seed: u64,
    drafted: usize,
    accepted: usize,
}

impl Outcome {
    fn of(sequence: &Sequence, logprobs: Vec<Option<TokenLogprobs>>) -> Self {
        Self {
            tokens: sequence.output().to_vec(),
            logprobs,
            finish: sequence.finish_reason(),
            seed: sequence.seed(),
            drafted: sequence.stats().drafted,
            accepted: sequence.stats().accepted,
        }
    }
}

fn side_by_side(engine: &Engine, params: &SamplingParams, prompt: &[u32]) -> Vec<Outcome> {
    let mut session = engine.session(params.clone()).unwrap();
    let mut samples = session.generate_many(prompt, 24, NUM_SAMPLES).unwrap();
    let mut logprobs = vec![Vec::new(); NUM_SAMPLES];
    for (i, piece) in samples.by_ref() {
        logprobs[i].push(piece.unwrap().logprobs);
    }
    samples.sequences().iter().zip(logprobs).map(|(sample, found)| Outcome::of(sample, found)).collect()
}

fn alone(engine: &Engine, params: &SamplingParams, prompt: &[u32]) -> Outcome {
    let request = Request { prompt, params, max_tokens: 24, stops: &[], ignore_eos: false };
    let mut sequence = engine.start(&request, &mut None).unwrap();
    specgen_tests::finish_together(engine, std::slice::from_mut(&mut sequence));
    let logprobs = std::iter::from_fn(|| Some(sequence.next_piece()?.logprobs)).collect();
    Outcome::of(&sequence, logprobs)
}

#[test]
fn each_sample_is_the_text_of_its_seed() {
    let everything = features::all().pop().unwrap().params;
    let device = tiny::cpu(1);
    let mut targets: Vec<Target> =
        vec![("toy", Arc::new(ToyModel::new(61, 1, 6.0)), Arc::new(ToyModel::new(61, 2, 6.0)))];
    for tiny in tiny::all().into_iter().step_by(4) {
        targets.push((tiny.name, tiny.load(&device), tiny.clone().with_seed(99).load(&device)));
    }
    let prompt: Vec<u32> = (0..23).map(|i| (i * 7 + i * i / 5) % 61).collect();
    for (name, target, other) in targets {
        for (drafter_name, drafter) in drafters::all(&target, &other, &prompt, 3) {
            let engine = Engine::from_parts(target.clone(), drafter, 3, &[3]);
            // A ratio test draws anew where drafts differ.
            let is_same =
                |rule: &Verification| *rule == Verification::Coupled || !drafters::learns(drafter_name);
            for verify in Verification::ALL.into_iter().filter(is_same) {
                let what = format!("{name}, {drafter_name}, {verify}");
                let params = SamplingParams {
                    seed: Some(11),
                    verify: Some(verify),
                    logprobs: Some(Logprobs { num_top: 1, ..Logprobs::default() }),
                    ..everything.clone()
                };
                engine.drafter().forget();
                let mut found = side_by_side(&engine, &params, &prompt);
                let mut wanted: Vec<Outcome> = (0..NUM_SAMPLES)
                    .map(|i| SamplingParams { seed: Some(sample_seed(11, i)), ..params.clone() })
                    .map(|params| {
                        engine.drafter().forget();
                        alone(&engine, &params, &prompt)
                    })
                    .collect();
                if drafters::learns(drafter_name) {
                    let counts = found.iter_mut().chain(&mut wanted);
                    counts.for_each(|outcome| (outcome.drafted, outcome.accepted) = (0, 0));
                }
                assert!(found == wanted, "{what}");
                assert_eq!(found[0].seed, 11);
                assert!(found[0].tokens != found[1].tokens && found[1].tokens != found[2].tokens, "{what}");
            }
        }
    }
}

/// The verification of a request without a seed stays what it is for all, and each tells the seed that repeats it.
#[test]
fn samples_without_a_seed_can_be_repeated() {
    let other = Arc::new(ModelDrafter::new(Arc::new(ToyModel::new(12, 2, 6.0)), 12));
    let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), other, 3, &[]);
    let found = side_by_side(&engine, &SamplingParams::default(), &[5, 1]);
    for sample in found {
        let (seed, verify) = (Some(sample.seed), Some(Verification::Rejection));
        let params = SamplingParams { seed, verify, ..SamplingParams::default() };
        assert_eq!(alone(&engine, &params, &[5, 1]), sample);
    }
}

/// A fork with the seed of its text goes on as that text does, wherever it forks; and changes nothing for it.
#[test]
fn a_text_may_fork_on_its_way() {
    let device = tiny::cpu(1);
    let tiny = &tiny::all()[0];
    let (target, other) = (tiny.load(&device), tiny.clone().with_seed(99).load(&device));
    let params = SamplingParams { seed: Some(7), ..features::all().pop().unwrap().params };
    for verify in Verification::ALL {
        let params = SamplingParams { verify: Some(verify), ..params.clone() };
        let drafter = Arc::new(ModelDrafter::new(other.clone(), target.info().vocab_size));
        let engine = Engine::from_parts(target.clone(), drafter, 3, &[]);
        let wanted = alone(&engine, &params, &[1, 2, 3]);
        let request =
            Request { prompt: &[1, 2, 3], params: &params, max_tokens: 24, stops: &[], ignore_eos: false };
        let mut first = engine.start(&request, &mut None).unwrap();
        let mut rounds = engine.rounds();
        while rounds.prefill(&mut first).unwrap() {}
        for _ in 0..4 {
            rounds.step(&mut [&mut first]).unwrap().remove(0).unwrap();
        }
        let mut sequences = vec![first.fork(7).unwrap(), first.fork(8).unwrap(), first];
        specgen_tests::finish_together(&engine, &mut sequences);
        let tokens = |i: usize| sequences[i].output();
        assert_eq!((tokens(0), tokens(2)), (&wanted.tokens[..], &wanted.tokens[..]), "{verify}");
        let forked_at = tokens(1).iter().zip(tokens(0)).take_while(|(a, b)| a == b).count();
        assert!((4..24).contains(&forked_at), "{verify}: {forked_at}");
    }
}

/// A toy that keeps the number of tokens in each slice of each of its passes.
struct Counting {
    inner: ToyModel,
    passes: Mutex<Vec<Vec<usize>>>,
}

impl Model for Counting {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.passes.lock().unwrap().push(batch.slices.iter().map(|slice| slice.tokens.len()).collect());
        self.inner.forward(batch, out)
    }

    fn new_cache(&self) -> KvCache {
        self.inner.new_cache()
    }

    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
}

#[test]
fn the_prompt_is_fed_once_and_rounds_are_shared() {
    let counting =
        |seed| Arc::new(Counting { inner: ToyModel::new(12, seed, 6.0), passes: Mutex::default() });
    let (target, draft) = (counting(1), counting(2));
    let drafter = Arc::new(ModelDrafter::new(draft.clone(), 12));
    let engine = Engine::from_parts(target.clone(), drafter, 3, &[]);
    let prompt: Vec<u32> = (0..300).map(|i| i % 12).collect();
    let mut session = engine.session(SamplingParams::default()).unwrap();
    let mut samples = session.generate_many(&prompt[..], 10, 4).unwrap();
    let num_pieces = samples.by_ref().filter(|(_, piece)| piece.is_ok()).count();
    assert_eq!(num_pieces, 40);
    assert!((0..4).all(|i| samples.is_done(i)));
    let reused: Vec<usize> = samples.sequences().iter().map(|s| s.stats().reused_tokens).collect();
    assert_eq!(reused, [0, 299, 299, 299]);
    let most = samples.sequences().iter().map(|s| s.stats().rounds).max().unwrap();
    drop(samples);
    for model in [target.clone(), draft] {
        let passes = std::mem::take(&mut *model.passes.lock().unwrap());
        assert_eq!(passes[..3], [[128], [128], [43]]);
        assert_eq!(passes[3].len(), 4);
        assert!(Arc::ptr_eq(&model, &target) == (passes.len() == 3 + most), "{passes:?}");
    }

    // The first sample's text is what the session goes on from.
    let mut next = session.generate(&prompt[..], 2).unwrap();
    next.by_ref().for_each(|piece| drop(piece.unwrap()));
    assert_eq!(next.stats().reused_tokens, 299);
}

#[test]
fn what_makes_no_sense_is_refused_with_its_numbers() {
    let drafter: Arc<dyn Drafter> = Arc::new(NgramDrafter::default());
    let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), drafter, 3, &[]);
    let refused = |params: SamplingParams, num_samples| -> Option<String> {
        let mut session = engine.session(params).unwrap();
        session.generate_many(&[1u32][..], 4, num_samples).err().map(|error| error.to_string())
    };
    let error = refused(SamplingParams::greedy(), 2).unwrap();
    assert!(error.starts_with("num_samples is 2, but at temperature 0"), "{error}");
    assert!(refused(SamplingParams::default(), 0).unwrap().contains("is 0, but must be at least 1"));
    assert_eq!(refused(SamplingParams::greedy(), 1), None);
}

/// What fails for one sample is told with its number, once, and the others go on.
#[test]
fn a_sample_that_fails_fails_alone() {
    use specgen::sampling::{History, LogitsProcessor};
    /// Bans everything after 4.
    struct Trap;
    impl LogitsProcessor for Trap {
        fn name(&self) -> &str {
            "trap"
        }

        fn process(&self, logits: &mut [f32], history: &History) {
            if history.output().last() == Some(&4) {
                logits.fill(f32::NEG_INFINITY);
            }
        }
    }
    let drafter: Arc<dyn Drafter> = Arc::new(NgramDrafter::default());
    let engine = Engine::from_parts(Arc::new(ToyModel::new(12, 1, 6.0)), drafter, 3, &[]);
    let params = SamplingParams {
        seed: Some(2),
        temperature: 1.0,
        processors: vec![Trap.into()],
        ..SamplingParams::default()
    };
    let mut session = engine.session(params).unwrap();
    let mut samples = session.generate_many(&[1u32, 2][..], 9, 8).unwrap();
    let mut errors = [0; 8];
    for (i, piece) in samples.by_ref() {
        match piece {
            Ok(_) => assert_eq!(errors[i], 0),
            Err(error) => {
                assert!(matches!(error, Error::InvalidArgument(_) | Error::Parameter { .. }), "{error}");
                errors[i] += 1;
            }
        }
    }
    for (i, sample) in samples.sequences().iter().enumerate() {
        let trapped = sample.output().last() == Some(&4) && sample.output().len() < 9;
        assert_eq!((errors[i], sample.finish_reason().is_none()), (usize::from(trapped), trapped), "{i}");
    }
    assert!(errors.contains(&0) && errors.contains(&1), "{errors:?}");
}

/// Forked caches go apart: what one is fed is nothing to the other, on every backend.
#[test]
fn forked_caches_go_apart() {
    let feed = |model: &dyn Model, cache: &mut KvCache, tokens: &[u32]| {
        let mut out = Output::new();
        let slice = Slice { cache, tokens, rows: Rows::Last(1), tree: None };
        model.forward(&mut Batch { slices: vec![slice], taps: &[] }, &mut out).unwrap();
        out.logits(0, 0).to_vec()
    };
    let beginning: Vec<u32> = (0..20).collect();
    for (device, tiny) in [tiny::cpu(1), tiny::reference()]
        .iter()
        .flat_map(|device| tiny::all().into_iter().step_by(4).map(move |tiny| (device, tiny)))
    {
        let model = tiny.load(device);
        let parts: [[&[u32]; 2]; 2] = [[&[1, 2, 3], &[4]], [&[5, 6, 7], &[8]]];
        let wanted = parts.map(|parts| {
            let mut cache = model.new_cache();
            feed(&*model, &mut cache, &beginning);
            parts.map(|part| feed(&*model, &mut cache, part))
        });
        let mut first = model.new_cache();
        feed(&*model, &mut first, &beginning);
        let mut second = first.fork().unwrap();
        let caches = [&mut first, &mut second];
        for step in 0..2 {
            for i in 0..2 {
                let found = feed(&*model, caches[i], parts[i][step]);
                assert_eq!(found, wanted[i][step], "{} on {}, cache {i}", tiny.name, model.info().device);
            }
        }
    }
}
