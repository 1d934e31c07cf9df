//! Many sequences in one round: one that fails fails alone, prompts are fed in pieces to target and draft, and passes
//! are shared.
#![allow(clippy::unwrap_used, missing_docs)]

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use specgen::{
    Engine, Memory, Request, Result, SamplingParams, Sequence, Verification,
    cache::KvCache,
    draft::{Budget, DraftNoise, DraftRequest, Drafter, ForcedDrafter, ModelDrafter, NgramDrafter, NoDraft},
    model::{Batch, Model, ModelInfo, Output, ToyModel},
    rng::{Noise, RoundNoise},
    sampling::{History, Sampler},
};
use specgen_tests::finish_together;

const VOCAB: usize = 12;

/// A toy whose logits are NaN for texts that begin with 9 and have 12 tokens or more, until it is healed; it keeps the
/// number of tokens in each slice of each of its passes.
struct Probe {
    inner: ToyModel,
    ill: AtomicBool,
    passes: Mutex<Vec<Vec<usize>>>,
}

impl Probe {
    fn new(seed: u64) -> Arc<Self> {
        Self::of(ToyModel::new(VOCAB, seed, 6.0))
    }

    fn of(inner: ToyModel) -> Arc<Self> {
        Arc::new(Self { inner, ill: AtomicBool::new(false), passes: Mutex::default() })
    }

    fn take_passes(&self) -> Vec<Vec<usize>> {
        std::mem::take(&mut self.passes.lock().unwrap())
    }
}

impl Model for Probe {
    fn forward(&self, batch: &mut Batch<'_>, out: &mut Output) -> Result<()> {
        self.passes.lock().unwrap().push(batch.slices.iter().map(|slice| slice.tokens.len()).collect());
        self.inner.forward(batch, out)?;
        let mut rows = Vec::new();
        for (i, slice) in batch.slices.iter().enumerate() {
            let text = slice.cache.tokens();
            let wanted = out.num_rows(i);
            for row in 0..wanted {
                let len = text.len() - wanted + row + 1;
                let ill = self.ill.load(Ordering::Relaxed) && text[0] == 9 && len >= 12;
                rows.push(if ill { vec![f32::NAN; VOCAB] } else { out.logits(i, row).to_vec() });
            }
        }
        out.begin(batch, VOCAB);
        rows.iter().for_each(|row| out.push_row(row));
        Ok(())
    }

    fn new_cache(&self) -> KvCache {
        self.inner.new_cache()
    }

    fn info(&self) -> &ModelInfo {
        self.inner.info()
    }
}

fn sampled(seed: u64, verify: Verification) -> SamplingParams {
    SamplingParams {
        seed: Some(seed),
        verify: Some(verify),
        temperature: 1.0,
        repetition_penalty: 1.2,
        ..SamplingParams::default()
    }
}

fn start(engine: &Engine, prompt: &[u32], params: &SamplingParams, memory: &mut Option<Memory>) -> Sequence {
    let request = Request { prompt, params, max_tokens: 30, stops: &[], ignore_eos: false };
    engine.start(&request, memory).unwrap()
}

/// What a text is without neighbours.
fn alone(
    target: &Arc<Probe>,
    prompt: &[u32],
    params: &SamplingParams,
    drafter: &Arc<dyn Drafter>,
) -> Vec<u32> {
    let engine = Engine::from_parts(target.clone(), drafter.clone(), 3, &[]);
    let mut session = engine.session(params.clone()).unwrap();
    session.generate(prompt, 30).unwrap().map(|piece| piece.unwrap().id).collect()
}

/// What ails the sequence in the middle.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Poison {
    TargetNan,
    Banned,
}

fn model_drafter(model: &Arc<Probe>) -> Arc<dyn Drafter> {
    Arc::new(ModelDrafter::new(model.clone(), VOCAB))
}

#[test]
fn a_sequence_that_fails_fails_alone() {
    let ban = (0..VOCAB as u32).map(|id| (id, f32::NEG_INFINITY)).collect();
    let banned = SamplingParams { logit_bias: ban, ..SamplingParams::greedy() };
    let cases = [
        (Poison::TargetNan, false, "step 9 hold NaN"),
        (Poison::TargetNan, true, "step 9 hold NaN"),
        (Poison::Banned, false, "every token is banned"),
        (Poison::Banned, true, "every token is banned"),
    ];
    for ((poison, drafts, wanted), verify) in
        cases.into_iter().flat_map(|case| Verification::ALL.map(|verify| (case, verify)))
    {
        let what = format!("{poison:?}, drafts {drafts}, {verify}");
        let target = Probe::new(1);
        let draft = Probe::new(2);
        let drafter = if drafts { model_drafter(&draft) } else { Arc::new(NgramDrafter::default()) };
        let prompts: [&[u32]; 3] = [&[5, 1, 4], &[9, 2, 2], &[7, 7, 7, 7, 7]];
        let params = [
            SamplingParams::greedy(),
            if poison == Poison::Banned { banned.clone() } else { sampled(3, verify) },
            sampled(4, verify),
        ];
        let want = [0, 1, 2].map(|i| match (i, poison) {
            (1, Poison::Banned) => Vec::new(),
            _ => alone(&target, prompts[i], &params[i], &drafter),
        });

        target.ill.store(poison == Poison::TargetNan, Ordering::Relaxed);
        let engine = Engine::from_parts(target.clone(), drafter, 3, &[]);
        let mut rounds = engine.rounds();
        let mut sequences = [0, 1, 2].map(|i| start(&engine, prompts[i], &params[i], &mut None));
        for sequence in &mut sequences {
            while rounds.prefill(sequence).unwrap() {}
        }
        let mut errors = Vec::new();
        while sequences[0].finish_reason().is_none() || sequences[2].finish_reason().is_none() {
            let before = sequences.each_ref().map(|sequence| sequence.tokens().to_vec());
            let mut live: Vec<_> =
                sequences.iter_mut().enumerate().filter(|(_, s)| s.finish_reason().is_none()).collect();
            let indices: Vec<usize> = live.iter().map(|&(i, _)| i).collect();
            let mut slices: Vec<&mut Sequence> = live.iter_mut().map(|(_, s)| &mut **s).collect();
            let results = rounds.step(&mut slices).unwrap();
            assert_eq!(results.len(), indices.len(), "{what}");
            for (i, result) in indices.into_iter().zip(results) {
                let tokens = sequences[i].tokens();
                match result {
                    Ok(()) => assert!(tokens.len() > before[i].len(), "{what}: sequence {i} moves on"),
                    Err(error) => {
                        assert_eq!((i, tokens), (1, &before[1][..]), "{what}: {error}");
                        errors.push(error.to_string());
                    }
                }
            }
        }
        assert!(!errors.is_empty(), "{what}");
        assert!(errors.iter().all(|error| error.contains(wanted)), "{what}: {errors:?}");
        assert_eq!(sequences[0].output(), want[0], "{what}");
        assert_eq!(sequences[2].output(), want[2], "{what}");

        // The one that failed goes on from where it stood, once it can.
        let reached = sequences[1].output().len();
        assert_eq!(sequences[1].output(), &want[1][..reached], "{what}");
        if poison != Poison::Banned {
            target.ill.store(false, Ordering::Relaxed);
            while sequences[1].finish_reason().is_none() {
                rounds.step(&mut [&mut sequences[1]]).unwrap().remove(0).unwrap();
            }
            assert_eq!(sequences[1].output(), want[1], "{what}");
        }
    }
}

/// A draft whose logits are no numbers ends there, and is counted: the texts are the target's, neighbours included.
#[test]
fn a_broken_draft_breaks_no_text() {
    for verify in Verification::ALL {
        let (target, draft) = (Probe::new(1), Probe::new(2));
        let params = [sampled(3, verify), SamplingParams { temperature: 0.0, ..sampled(4, verify) }];
        let prompts: [&[u32]; 2] = [&[9, 2, 2], &[9, 1, 4]];
        let none: Arc<dyn Drafter> = Arc::new(NoDraft);
        let forced: Arc<dyn Drafter> = Arc::new(ForcedDrafter::new(model_drafter(&draft)));
        for drafter in [model_drafter(&draft), forced] {
            draft.ill.store(true, Ordering::Relaxed);
            let engine = Engine::from_parts(target.clone(), drafter, 3, &[]);
            let mut sequences = [0, 1].map(|i| start(&engine, prompts[i], &params[i], &mut None));
            finish_together(&engine, &mut sequences);
            for (i, sequence) in sequences.iter().enumerate() {
                let stats = sequence.stats();
                assert_eq!(sequence.output().len(), 30, "{verify}");
                // 9 tokens may be drafted for before the text has 12; behind them each round tries in vain.
                assert!(
                    stats.broken_drafts > 15 && stats.broken_drafts <= stats.rounds,
                    "{verify}: {stats:?}"
                );
                assert!(stats.drafted < 30, "{verify}: {stats:?}");
                // By ratio, a seed's text depends on the draft.
                if i == 1 || verify == Verification::Coupled {
                    let plain = alone(&target, prompts[i], &params[i], &none);
                    assert_eq!(sequence.output(), plain, "{verify}");
                }
            }
        }
        draft.ill.store(false, Ordering::Relaxed);
        let engine = Engine::from_parts(target.clone(), model_drafter(&draft), 3, &[]);
        let mut healthy = [start(&engine, prompts[0], &params[0], &mut None)];
        finish_together(&engine, &mut healthy);
        assert_eq!(healthy[0].stats().broken_drafts, 0);
    }
}

/// What a draft of fewer ids cannot say because all of it is banned, the target says by itself.
#[test]
fn a_draft_with_nothing_left_to_say_drafts_nothing() {
    let target = Probe::new(1);
    let small: Arc<dyn Model> = Arc::new(ToyModel::new(4, 2, 6.0));
    let ban = (0..4).map(|id| (id, f32::NEG_INFINITY)).collect();
    let params = SamplingParams { logit_bias: ban, ..SamplingParams::greedy() };
    let none: Arc<dyn Drafter> = Arc::new(NoDraft);
    let want = alone(&target, &[1, 2], &params, &none);
    assert_eq!(want.len(), 30);
    assert_eq!(alone(&target, &[1, 2], &params, &(Arc::new(ModelDrafter::new(small, 4)) as _)), want);
}

fn prompt(len: u32) -> Vec<u32> {
    (0..len).map(|i| (i * 7 + i * i / 5) % VOCAB as u32).collect()
}

#[test]
fn a_prompt_is_fed_in_pieces_to_target_and_draft() {
    let (target, draft) = (Probe::new(1), Probe::new(2));
    let engine = Engine::from_parts(target.clone(), model_drafter(&draft), 3, &[]);
    let mut rounds = engine.rounds();
    let text = prompt(350);
    let mut sequence = start(&engine, &text, &SamplingParams::greedy(), &mut None);
    for (piece, more) in [(128, true), (128, true), (93, false)] {
        assert_eq!(rounds.prefill(&mut sequence).unwrap(), more);
        assert_eq!((target.take_passes(), draft.take_passes()), (vec![vec![piece]], vec![vec![piece]]));
    }
    assert!(!rounds.prefill(&mut sequence).unwrap());
    assert!(target.take_passes().is_empty() && draft.take_passes().is_empty(), "all is fed");
    rounds.step(&mut [&mut sequence]).unwrap().remove(0).unwrap();
    assert_eq!(draft.take_passes(), [[1], [1], [1]], "the pending token and the guesses are left to draft");
    assert!(sequence.stats().prefill > std::time::Duration::ZERO);

    // The next turn: both caches keep what they share with it.
    let held = sequence.tokens().len() - 1;
    let next = [sequence.tokens(), &[3; 300]].concat();
    let mut sequence = start(&engine, &next, &SamplingParams::greedy(), &mut Some(sequence.into_memory()));
    target.take_passes();
    while rounds.prefill(&mut sequence).unwrap() {}
    let fed = |passes: Vec<Vec<usize>>| passes.into_iter().flatten().sum::<usize>();
    assert_eq!(fed(target.take_passes()), next.len() - 1 - held);
    // The draft never fed its last guess, and what it guessed wrong it forgets.
    let of_draft = fed(draft.take_passes());
    assert!((next.len() - 1 - held..next.len() + 3 - held).contains(&of_draft), "{of_draft}");
}

#[test]
fn a_draft_that_will_not_be_asked_is_not_fed() {
    let (target, draft) = (Probe::new(1), Probe::new(2));
    let engine = Engine::from_parts(target, model_drafter(&draft), 0, &[]);
    let mut sequence = start(&engine, &prompt(20), &SamplingParams::greedy(), &mut None);
    let mut rounds = engine.rounds();
    while rounds.prefill(&mut sequence).unwrap() {}
    while sequence.finish_reason().is_none() {
        rounds.step(&mut [&mut sequence]).unwrap().remove(0).unwrap();
    }
    // Nor is one whose context the prompt already fills.
    let short = Probe::of(ToyModel::new(VOCAB, 2, 6.0).with_context_len(19));
    let engine = engine.with_drafter(model_drafter(&short), 3);
    let mut rounds = engine.rounds();
    let mut sequence = start(&engine, &prompt(20), &SamplingParams::greedy(), &mut None);
    while rounds.prefill(&mut sequence).unwrap() {}
    rounds.step(&mut [&mut sequence]).unwrap().remove(0).unwrap();
    assert!(draft.take_passes().is_empty() && short.take_passes().is_empty());
}

/// Sequences of every length catch up and draft in the same passes.
#[test]
fn a_batch_drafts_in_shared_passes() {
    let (target, draft) = (Probe::new(1), Probe::new(2));
    let engine = Engine::from_parts(target.clone(), model_drafter(&draft), 3, &[]);
    let mut rounds = engine.rounds();
    let mut sequences = [3, 40, 300].map(|len| {
        let mut sequence = start(&engine, &prompt(len), &SamplingParams::greedy(), &mut None);
        while rounds.prefill(&mut sequence).unwrap() {}
        sequence
    });
    target.take_passes();
    draft.take_passes();
    rounds.step(&mut sequences.iter_mut().collect::<Vec<_>>()).unwrap();
    assert_eq!(draft.take_passes(), [[1; 3]; 3]);
    assert_eq!(target.take_passes(), [[4; 3]]);

    // A draft state that saw nothing of its text yet catches up with its neighbours, a piece at a time.
    let drafter = model_drafter(&draft);
    let mut states = [300, 2, 150].map(|len| (prompt(len), drafter.new_state()));
    let sampler = Sampler::new(&SamplingParams::greedy(), VOCAB).unwrap();
    let mut histories = states.each_ref().map(|(text, _)| History::new(text));
    let noise = DraftNoise::Own(RoundNoise::draft(Noise::new(1), 0, 0));
    let mut requests: Vec<_> = states
        .iter_mut()
        .zip(&mut histories)
        .map(|((tokens, state), history)| DraftRequest {
            state: state.as_mut(),
            tokens,
            k: 2,
            sampler: &sampler,
            history,
            noise: noise.clone(),
            end_ids: &[],
            branches: false,
            budget: Budget::default(),
        })
        .collect();
    let drafts = drafter.draft(&mut requests).unwrap();
    assert!(drafts.iter().all(|draft| draft.as_ref().unwrap().len() == 2));
    assert_eq!(draft.take_passes(), [vec![128, 128], vec![128], vec![44, 2, 22], vec![1, 1, 1]]);
}
